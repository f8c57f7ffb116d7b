"""Probe by the names of its parts: a checkpoint, an image and a text, opened, evaluated, and drawn into a file.

image -> regions (of a store, or a detector's) -> model -> predictions -> picture

Files and names are checked before torch is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roibeam.features.record.notebook import image_html, notebook_html
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import short_repr
from roibeam.pipelines.analysis.analysis_settings import check_new, default_output_path, named_model
from roibeam.pipelines.analysis.requests import ProbeRequest
from roibeam.pipelines.common.compute import check_device, choose_device
from roibeam.pipelines.common.console.command_files import FILE
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.extract.one_photo import BLANK, detect_photo, photo_detector
from roibeam.pipelines.extract.request import DetectorOptions
from roibeam.pipelines.extract.requested_detector import need_detector
from roibeam.pipelines.extract.store_page import warning_of_store
from roibeam.pipelines.training.model_files.provenance import check_feature_space

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.probe import ProbeResult
    from roibeam.pipelines.training.model_files.model_checkpoint import ModelCheckpoint


@dataclass(frozen=True, eq=False)
class Probed:
    """
    Attributes:
        result: the model's predictions.
        numbers: those of the picture and more, as in the .json file beside it.
        notes: on the device, the detector, and what was left out or assumed of the checkpoint; for people.
        device: where the model ran, as torch names it.
    """

    result: ProbeResult
    record: RegionRecord
    picture: Path
    numbers: dict[str, Any]
    notes: tuple[str, ...]
    device: str

    __repr__ = short_repr

    def _repr_html_(self) -> str:
        """The picture, as long as it is there."""
        title = f"Probe of {self.record.image_id}: {' '.join(self.result.pieces)}"
        picture, drawn = self.picture, ""
        if picture.is_file():
            is_svg = picture.suffix == ".svg"
            drawn = picture.read_text("utf-8") if is_svg else image_html(picture.read_bytes(), "png", picture.name)
        note = "; ".join(self.notes) if drawn else f"{self.picture} is not there any more"
        return notebook_html(title, picture=drawn, note=note)


@dataclass(frozen=True, eq=False)
class _Seen:
    """Attributes:
    classes: names of the detector's classes; empty for none.
    pixels: of the photo, (height, width, 3) uint8, B, G, R; None where there is none.
    detector: the one that ran, in words; None with a store.
    banner: why the regions mean nothing; None where they may mean something.
    notes: on differences between a store's features and those that the model was trained on.
    """

    record: RegionRecord
    classes: tuple[str, ...]
    pixels: np.ndarray | None
    detector: str | None = None
    banner: Banner | None = None
    notes: Sequence[str] = ()


def write_probe(request: ProbeRequest) -> Probed:
    """Runs the model, and draws photo, predictions and attention."""
    if request.store is not None and request.photo == BLANK:
        request = replace(request, photo=None)
    detector = None if request.store is not None else request
    out = _checked(request, detector)
    if detector is not None:
        photo_detector(detector)
    # Torch is imported only when the names are in order.
    from roibeam.pipelines.analysis.load_for_evaluation import feature_assumptions, pretraining_model, tokenizer_of
    from roibeam.pipelines.analysis.probe import PhotoModel, probe
    from roibeam.pipelines.analysis.probe_picture import write_probe_files
    from roibeam.pipelines.data.vocabulary import Names
    from roibeam.pipelines.training.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint

    found = load_model_or_joint(request.checkpoint, options=request.config)
    if isinstance(found, JointCheckpoint) and request.store is not None and request.photo is None:
        raise ValueError(f"{request.checkpoint} reads photos: add --photo, that of the record {request.image!r}")
    model = pretraining_model(found, named=request.checkpoint, verb="probe")
    tokenizer = tokenizer_of(found, request.tokenizer)
    device = choose_device(request.device)
    seen = _stored(request, found) if detector is None else _detected(request, detector)
    choices = [*seen.notes, *feature_assumptions(found, seen.record)]
    if isinstance(found, JointCheckpoint):
        assert seen.pixels is not None
        model = PhotoModel(found.joint.to(device.name), seen.pixels)
    else:
        model.to(device.name)
    names = Names(seen.classes, background=request.background)
    result = probe(
        model, found.as_read(seen.record), request.text, tokenizer, names, hide=request.hide, layer=request.layer,
        head=request.head, top=request.top, task=request.task_token,
    )  # fmt: skip
    numbers = write_probe_files(
        out, result, seen.record, names, text=request.text, photo=seen.pixels, banner=seen.banner, notes=choices
    )
    lines = (device.words, seen.detector, None if seen.banner is None else seen.banner.line)
    notes = (*(line for line in lines if line), *choices, *found.changes)
    return Probed(result, seen.record, out, numbers, notes, device.name)


def _checked_out(request: ProbeRequest) -> Path:
    """Returns the path of the picture, checked."""
    if request.store is None and request.photo is not None:
        raise ValueError("--photo is for --store; without it IMAGE is the photo")
    out = default_output_path(request.checkpoint, request.out, "probe.svg")
    if out.suffix not in (".svg", ".png"):
        raise ValueError(f"--out {out}: the picture is an .svg or a .png file")
    check_new(out.with_suffix(".json"))
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    return out


def _checked(request: ProbeRequest, detector: DetectorOptions | None) -> Path:
    """Returns the path of the picture; ValueError lists all that is wrong with the names."""
    _refuse_detector(request)
    named, has_checkpoint, has_store = named_model(request)
    named.need("--photo", request.photo, FILE)
    named.look(lambda: check_device(request.device))
    if detector is not None:
        named.need("PHOTO", request.image, FILE)
        need_detector(named, detector)
    elif has_store:
        named.look(lambda: _check_record(request))
    out = named.look(lambda: _checked_out(request)) if has_checkpoint else None
    named.check()
    assert out is not None
    return out


def _refuse_detector(request: ProbeRequest) -> None:
    """Raises ValueError for options of a detector where a store is named."""
    if request.store is None:
        return
    for name in ("preset", "detector", "weights", "conventions", "selection", "vocab"):
        if getattr(request, name) is not None:
            raise ValueError(f"--{name} is for a detector; with --store the regions and names are those of the store")
    if request.set:
        raise ValueError("--set is for a detector; with --store the regions are those of the store")


def _check_record(request: ProbeRequest) -> None:
    assert request.store is not None
    with FeatureStore(request.store) as opened:
        if request.image not in opened:
            has = f"its ids are such as {next(opened.ids(), None)!r}"
            raise ValueError(f"--store {request.store} has no record {request.image!r}; {has}")


def _stored(request: ProbeRequest, found: ModelCheckpoint) -> _Seen:
    assert request.store is not None
    with FeatureStore(request.store) as opened:
        notes = check_feature_space(found, opened)
        record, classes = opened.get(request.image, check=True), tuple(opened.vocabulary["classes"] or ())
        banner = warning_of_store(opened.manifest)
    pixels = None if request.photo is None else _pixels(request.photo, record)
    return _Seen(record, classes, pixels, banner=banner, notes=notes)


def _detected(request: ProbeRequest, detector: DetectorOptions) -> _Seen:
    """Returns the detector's regions of the photo."""
    found = detect_photo(Path(request.image), detector)
    classes = tuple(found.vocabulary.classes or ())
    return _Seen(found.record, classes, found.pixels, found.detector, found.banner)


def _pixels(photo: Path, record: RegionRecord) -> np.ndarray:
    """Pixels of the photo, turned as the record's was; checked as `extract` does, since models may read them."""
    from roibeam.extraction.photos.decode import decode_image

    data = photo.read_bytes()
    for orientation in ("applied", "ignored"):
        pixels = decode_image(data, exif_orientation=orientation)
        if pixels.shape[:2] == (record.height, record.width):
            return pixels
    raise ValueError(
        f"{photo}: {pixels.shape[1]} x {pixels.shape[0]} pixels, the record is of a photo of {record.width} x "
        f"{record.height}"
    )
