"""A published weight file of one family as a file of another, checked by reading it back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.state import CELL_ANCHORS, check_state, weights_digest
from roibeam.extraction.weights.anchors import HF_FORM, AnchorForm, anchors_for
from roibeam.extraction.weights.families import COUNTER, FAMILIES, family_names
from roibeam.extraction.weights.file_formats import FORMATS, WeightFormat, check_written_file
from roibeam.extraction.weights.head_layout import HF_LAYOUT, relayout_words
from roibeam.extraction.weights.loading import OUTSIDE_RESNET, in_layout, on_meta, read_named, resnet_of, understand

_HF = CONVENTIONS["hf"]


@dataclass(frozen=True)
class Conversion:
    """What `convert_weights` did.

    Attributes:
        family: title of the file that was read.
        changes: what was done, for people.
        num_tensors: written.
        digest_before, digest_after: `weights_digest` of what was read and of what was written, both in Hugging Face's
            layout: equal, but for one rounding where box deltas were scaled.
        largest_change: of a weight, relative to the largest of its tensor.
    """

    family: str
    changes: tuple[str, ...]
    num_tensors: int
    digest_before: str
    digest_after: str
    largest_change: float


def convert_weights(spec: str, out: Path, *, to: str, config: DetectorConfig) -> Conversion:
    """Writes the weights of a file of any family as a file of the format `to`.

    Args:
        spec: the file, as `fetch_weights` takes it. A ResNet alone can become safetensors or vlbert.
        out: written aside, read back, compared, then renamed; must not be there yet.
        to: key of `FORMATS`; "vlbert" keeps the ResNet only.
        config: sizes that the file must have.
    Raises:
        ValueError: as `load_weights`, and for an `out` that exists, has no folder or another suffix than the format.
        OSError: when a file cannot be read or written.
    """
    target = FORMATS[to]
    check_written_file(out, to)
    state, form, family, changes = _read_in_hf_layout(spec, config)
    whole = any(name.startswith(OUTSIDE_RESNET) for name in state)
    if not whole and to not in ("safetensors", "vlbert"):
        raise ValueError(f"weights {spec}: {family}, a ResNet alone; it can become safetensors or vlbert")
    layout = FAMILIES[target.family].layout
    if layout is None:
        state, form = {name: value for name, value in state.items() if not name.startswith(OUTSIDE_RESNET)}, None
        written = dict(state)
    else:
        written = in_layout(state, HF_LAYOUT, layout, config)
        changes += relayout_words(HF_LAYOUT, layout) if whole else []
    if whole and (form or target.needs_anchors) and layout is not None:
        written[CELL_ANCHORS] = anchors_for(form or HF_FORM, config, CONVENTIONS[target.conventions])
        if form is None:
            changes.append("no anchors in the file: those of hf written, they will override --conventions")
    names = family_names(FAMILIES[target.family].naming)
    named = {names[name]: value.contiguous() for name, value in written.items()}
    for name in written:
        if name.endswith(".running_var") and name.startswith(target.counted or ("-",)):
            named[names[name].replace("running_var", COUNTER)] = torch.tensor(0)
    after = _write_checked(named, out, target, config)
    return Conversion(
        family=family,
        changes=tuple(changes),
        num_tensors=len(named),
        digest_before=weights_digest(state),
        digest_after=weights_digest(after),
        largest_change=max(_relative_change(state[name], after[name]) for name in state),
    )


def _read_in_hf_layout(
    spec: str, config: DetectorConfig
) -> tuple[dict[str, Tensor], AnchorForm | None, str, list[str]]:
    """Checked weights, the form of their anchors, the title of their family, and what was done to them."""
    with torch.device("meta"):
        expected = Detector(config, _HF).state_dict()
    source, named = read_named(spec)
    if not any(name.startswith(OUTSIDE_RESNET) for name in named.tensors):
        part = {name: value for name, value in expected.items() if not name.startswith(OUTSIDE_RESNET)}
        resnet, left_out = resnet_of(named)
        state = check_state(resnet, part, f"{source} ({named.family.title})")
        return state, None, named.family.title, [*named.changes, *left_out]
    published = understand(source, named, config, _HF)
    found = check_state(published.tensors, in_layout(on_meta(expected), HF_LAYOUT, published.layout, config), source)
    changes = [*published.changes, *relayout_words(published.layout, HF_LAYOUT)]
    return in_layout(found, published.layout, HF_LAYOUT, config), published.anchor_form, published.family.title, changes


def _write_checked(
    named: dict[str, Tensor], out: Path, target: WeightFormat, config: DetectorConfig
) -> dict[str, Tensor]:
    """Writes aside, reads back, renames; returns what was read, in Hugging Face's layout."""
    aside = out.with_name(f".part-{os.getpid()}-{out.name}")
    aside.touch(exist_ok=False)
    try:
        target.write(named, aside)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        after = _read_in_hf_layout(str(aside), config)[0]
        os.replace(aside, out)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return after


def _relative_change(before: Tensor, after: Tensor) -> float:
    largest = float(before.abs().max()) if before.numel() else 0.0
    return float((before - after).abs().max()) / largest if largest else 0.0
