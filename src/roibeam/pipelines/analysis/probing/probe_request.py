"""A probe by the names of its parts: a checkpoint, an image and a text, opened, asked, and drawn into a file.

image -> regions (of a store, or a detector's) -> model -> answers -> picture
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.extraction.choice.detector_choice import choose_detector
from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.asked_model import pretraining_model, tokenizer_spec
from roibeam.pipelines.analysis.probing.photo_model import PhotoModel
from roibeam.pipelines.analysis.probing.probe import GUESSES, ProbeResult, probe
from roibeam.pipelines.analysis.probing.probe_picture import probe_svg
from roibeam.pipelines.extract.preset_names import choice_words
from roibeam.pipelines.foundation.overrides import apply_overrides
from roibeam.pipelines.inputs.region_names import Names
from roibeam.pipelines.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint
from roibeam.pipelines.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.sources.vocabulary import Vocabulary, load_vocabulary


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What is asked of which model, and where the picture goes; as of `roibeam probe`.

    Attributes:
        checkpoint: run folder, model folder or official checkpoint.
        image: photo; with `store` the id of a record.
        text: with [MASK] where words are to be guessed.
        out: .svg file to write, in a folder that is there; an older one gives way.
        store: that the regions are taken from; None lets a detector find them.
        photo: of the record, for the picture, and for a model that reads photos.
        preset, detector, weights, conventions, selection, vocab, settings: the detector and what `--set` changes of it,
            as in `roibeam extract`; refused with `store`.
        tokenizer: as of `load_tokenizer`; None takes the one beside the checkpoint.
        options: official JSON configuration beside an official checkpoint.
        background_first: as of `Names`.
        hide, layer, head, top, task: as of `probe`.
    """

    checkpoint: str
    image: str
    text: str
    out: Path
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
    top: int = GUESSES
    task: int | None = None


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
    found = load_model_or_joint(request.checkpoint, options=request.options)
    if isinstance(found, JointCheckpoint) and request.store is not None and request.photo is None:
        raise ValueError(f"{request.checkpoint} reads photos: add --photo, that of the record {request.image!r}")
    model = pretraining_model(found, named=request.checkpoint, asking="probe")
    tokenizer = load_tokenizer(tokenizer_spec(found, request.tokenizer))
    seen = _detected(request) if request.store is None else _stored(request.store, request)
    if isinstance(found, JointCheckpoint):
        assert seen.pixels is not None
        model = PhotoModel(found.joint, seen.pixels)
    names = Names(seen.classes, background_first=request.background_first)
    asked: dict[str, Any] = {name: getattr(request, name) for name in ("hide", "layer", "head", "top", "task")}
    result = probe(model, seen.record, request.text, tokenizer, names, **asked)
    picture = probe_svg(result, seen.record, names, text=request.text, photo=seen.pixels)
    request.out.write_text(picture, "utf-8")
    return Probed(result, seen.record, request.out, (*((seen.detector,) if seen.detector else ()), *found.changes))


def _check_files(request: ProbeRequest) -> None:
    if request.store is None and request.photo is not None:
        raise ValueError("--photo is for --store; without it IMAGE is the photo")
    if request.out.suffix != ".svg":
        raise ValueError(f"--out {request.out}: the picture is an .svg file")
    if not request.out.parent.is_dir():
        raise ValueError(f"--out {request.out}: there is no folder {request.out.parent}")


def _stored(store: str, request: ProbeRequest) -> _Seen:
    """The record of a store."""
    for name in ("preset", "detector", "weights", "conventions", "selection", "vocab"):
        if getattr(request, name) is not None:
            raise ValueError(f"--{name} is for a detector; with --store the regions and names are those of the store")
    if request.settings:
        raise ValueError("--set is for a detector; with --store the regions are those of the store")
    with FeatureStore(store) as opened:
        if request.image not in opened:
            raise ValueError(f"--store {store} has no record {request.image!r}; roibeam store show lists ids")
        record, classes = opened[request.image], tuple(opened.vocabulary["classes"] or ())
    return _Seen(record, classes, None if request.photo is None else _pixels(request.photo, record))


def _detected(request: ProbeRequest) -> _Seen:
    """What a detector finds in the photo."""
    chosen = choose_detector(
        request.detector, preset=request.preset, conventions=request.conventions, selection=request.selection,
        weights=request.weights,
    )  # fmt: skip
    parts: dict[str, Any] = {
        "detector": chosen.config,
        "conventions": chosen.conventions,
        "selection": chosen.selection,
    }
    parts = apply_overrides(parts, request.settings)
    built = build_detector(
        parts["detector"], weights=chosen.weights, selection=parts["selection"], conventions=parts["conventions"]
    )
    (outcome,) = extract_regions([ImageRef(Path(request.image).stem, request.image)], built)
    if isinstance(outcome, Failure):
        raise ValueError(f"{request.image}: {outcome.reason} ({outcome.stage}): {outcome.detail}")
    names = Vocabulary(chosen.class_names, chosen.attribute_names)
    if request.vocab is not None:
        sizes = parts["detector"]
        names = load_vocabulary(request.vocab, num_classes=sizes.num_classes, num_attributes=sizes.num_attributes)
    words = choice_words(chosen, request.detector, request.settings, with_boxes=False)
    return _Seen(outcome, tuple(names.classes or ()), _pixels(Path(request.image), outcome), words)


def _pixels(photo: Path, record: RegionRecord) -> np.ndarray:
    """Turned as the record's was."""
    data = photo.read_bytes()
    for orientation in ("applied", "ignored"):
        pixels = decode_image(data, exif_orientation=orientation)
        if pixels.shape[:2] == (record.height, record.width):
            return pixels
    raise ValueError(
        f"{photo}: {pixels.shape[1]} x {pixels.shape[0]} pixels, the record is of a photo of {record.width} x "
        f"{record.height}"
    )
