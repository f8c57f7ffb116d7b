"""A probe by the names of its parts: a checkpoint, an image and a text, opened, asked, and drawn into a file.

image -> regions (of a store, or a detector's) -> model -> answers -> picture

Files and names are looked at before torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roibeam.features.record.drawing.notebook import notebook_html
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.answer_place import answer_place
from roibeam.pipelines.extract.one_photo import detect_photo, requested_parts
from roibeam.pipelines.extract.request import RequestedDetector
from roibeam.pipelines.foundation.files.named_files import check_named_files
from roibeam.pipelines.sources.vocabulary import PUBLISHED_LISTS
from roibeam.short_repr import short_repr

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.probing.probe import ProbeResult


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What is asked of which model, and where the picture goes; as of `roibeam probe`.

    Attributes:
        checkpoint: run folder, model folder or official checkpoint.
        image: photo; with `store` the id of a record.
        text: with [MASK] where words are to be guessed.
        out: .svg file to write, not there yet, in a folder that is; None is as of `answer_place`, "probe.svg".
        store: that the regions are taken from; None lets a detector find them.
        photo: of the record, for the picture, and for a model that reads photos.
        preset, detector, weights, conventions, selection, vocab, settings: the detector and what `--set` changes of it,
            as in `roibeam extract`; refused with `store`.
        tokenizer: as of `load_tokenizer`; None takes the one beside the checkpoint.
        options: official JSON configuration beside an official checkpoint.
        background_first: as of `Names`.
        hide, layer, head, top, task: as of `probe`.
        device: as of `choose_device`.
    """

    checkpoint: str
    image: str
    text: str
    out: Path | None = None
    store: str | None = None
    photo: Path | None = None
    preset: str | None = None
    detector: str | None = None
    weights: str | None = None
    conventions: str | None = None
    selection: str | None = None
    vocab: str | None = None
    settings: tuple[str, ...] = ()
    tokenizer: str | None = None
    options: Path | None = None
    background_first: bool = False
    hide: tuple[int, ...] | None = None
    layer: int | None = None
    head: int | None = None
    top: int = 5
    task: int | None = None
    device: str = "auto"


@dataclass(frozen=True, eq=False)
class Probed:
    """
    Attributes:
        result: what the model says.
        record: the regions that it was asked about.
        picture: the file written.
        notes: which detector looked, and what was left out or assumed of the checkpoint, for people.
    """

    result: ProbeResult
    record: RegionRecord
    picture: Path
    notes: tuple[str, ...]

    __repr__ = short_repr

    def _repr_html_(self) -> str:
        """The picture, as long as it is there."""
        title = f"Probe of {self.record.image_id}: {' '.join(self.result.pieces)}"
        drawn = self.picture.read_text("utf-8") if self.picture.is_file() else ""
        note = "; ".join(self.notes) if drawn else f"{self.picture} is not there any more"
        return notebook_html(title, picture=drawn, note=note)


@dataclass(frozen=True, eq=False)
class _Seen:
    """Attributes:
    classes: what the detector calls its classes; empty for none.
    pixels: of the photo, (height, width, 3) uint8, B, G, R; None where there is none.
    detector: which one looked, in words; None where nobody did.
    """

    record: RegionRecord
    classes: tuple[str, ...]
    pixels: np.ndarray | None
    detector: str | None = None


def write_probe(request: ProbeRequest) -> Probed:
    """Asks the model, and draws photo, answers and attention.

    Raises:
        ValueError, OSError: whatever cannot be opened or does not fit, saying what to do.
    """
    _check_files(request)
    out = _checked_out(request)
    detector = None if request.store is not None else _requested_detector(request)
    if detector is not None:
        requested_parts(detector)
    # Torch comes now, when nothing is wrong with the names.
    from roibeam.pipelines.analysis.asked_model import pretraining_model, tokenizer_spec
    from roibeam.pipelines.analysis.probing.photo_model import PhotoModel
    from roibeam.pipelines.analysis.probing.probe import probe
    from roibeam.pipelines.analysis.probing.probe_picture import probe_svg
    from roibeam.pipelines.inputs.region_names import Names
    from roibeam.pipelines.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint
    from roibeam.pipelines.model_files.tokenizer import load_tokenizer

    found = load_model_or_joint(request.checkpoint, options=request.options)
    if isinstance(found, JointCheckpoint) and request.store is not None and request.photo is None:
        raise ValueError(f"{request.checkpoint} reads photos: add --photo, that of the record {request.image!r}")
    model = pretraining_model(found, named=request.checkpoint, asking="probe")
    tokenizer = load_tokenizer(tokenizer_spec(found, request.tokenizer))
    seen = _stored(request) if detector is None else _detected(request, detector)
    if isinstance(found, JointCheckpoint):
        assert seen.pixels is not None
        model = PhotoModel(found.joint, seen.pixels)
    names = Names(seen.classes, background_first=request.background_first)
    asked: dict[str, Any] = {name: getattr(request, name) for name in ("hide", "layer", "head", "top", "task")}
    result = probe(model, seen.record, request.text, tokenizer, names, **asked)
    picture = probe_svg(result, seen.record, names, text=request.text, photo=seen.pixels)
    out.write_text(picture, "utf-8")
    return Probed(result, seen.record, out, (*((seen.detector,) if seen.detector else ()), *found.changes))


def _checked_out(request: ProbeRequest) -> Path:
    """Where the picture goes."""
    if request.store is None and request.photo is not None:
        raise ValueError("--photo is for --store; without it IMAGE is the photo")
    out = answer_place(request.checkpoint, request.out, "probe.svg")
    if out.suffix != ".svg":
        raise ValueError(f"--out {out}: the picture is an .svg file")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}")
    return out


def _check_files(request: ProbeRequest) -> None:
    if request.store is not None:
        for name in ("preset", "detector", "weights", "conventions", "selection", "vocab"):
            if getattr(request, name) is not None:
                raise ValueError(
                    f"--{name} is for a detector; with --store the regions and names are those of the store"
                )
        if request.settings:
            raise ValueError("--set is for a detector; with --store the regions are those of the store")
    named: list[tuple[str, str | Path | None]] = [
        ("the checkpoint", request.checkpoint), ("--store", request.store), ("--photo", request.photo),
        ("--config", request.options), ("--weights", request.weights),
        ("--vocab", None if request.vocab == PUBLISHED_LISTS else request.vocab),
    ]  # fmt: skip
    check_named_files([*named, *([("the photo", request.image)] if request.store is None else [])])
    if request.store is None:
        return
    with FeatureStore(request.store) as opened:
        if request.image not in opened:
            raise ValueError(f"--store {request.store} has no record {request.image!r}; roibeam store show lists ids")


def _stored(request: ProbeRequest) -> _Seen:
    """The record of a store."""
    assert request.store is not None
    with FeatureStore(request.store) as opened:
        record, classes = opened[request.image], tuple(opened.vocabulary["classes"] or ())
    return _Seen(record, classes, None if request.photo is None else _pixels(request.photo, record))


def _requested_detector(request: ProbeRequest) -> RequestedDetector:
    return RequestedDetector(
        request.detector, preset=request.preset, weights=request.weights, conventions=request.conventions,
        selection=request.selection, settings=request.settings, vocabulary=request.vocab, device=request.device,
    )  # fmt: skip


def _detected(request: ProbeRequest, detector: RequestedDetector) -> _Seen:
    """What a detector finds in the photo."""
    found = detect_photo(Path(request.image), detector)
    return _Seen(found.record, tuple(found.vocabulary.classes or ()), found.pixels, found.detector)


def _pixels(photo: Path, record: RegionRecord) -> np.ndarray:
    """Turned as the record's was. Checked as `extract` checks photos: a model may be given these pixels."""
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
