"""Loading of weights into a detector: strict, executing nothing; and `build_detector`, which builds one from names.

Box deltas were learned for a network's own anchors, and the published ones differ in shape, place and order. MILVLG's
and Hugging Face's files hold theirs (`cell_anchors.0`); MILVLG's only work because the file replaces what its config
computes. Anchors of a file that equal the computed ones change nothing; those of another published convention replace
them, with a warning; others are refused.

`load_folder` starts a detector of other classes from a detector's folder: all weights but those of class layers.
`convert_weights` writes a published file of one family as a file of another, checked by reading it back.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from roibeam.extraction.detector import Detector
from roibeam.extraction.fast.modes import mode_named, warn_if_slow
from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, Conventions, SelectionPolicy
from roibeam.extraction.network.rpn import ProposalGenerator
from roibeam.extraction.network.state import (
    CELL_ANCHORS,
    check_state,
    is_plain_tensor,
    is_weight,
    random_seed,
    random_state,
    show_numbers,
    show_tensor,
    weights_digest,
)
from roibeam.extraction.weights.detector_choice import DetectorFolder, choose_detector, conventions_beside
from roibeam.extraction.weights.families import (
    CAFFE_LAYOUT,
    CLASSES_OF_IMAGES,
    COUNTER,
    FAMILIES,
    HF_LAYOUT,
    PREDICTOR,
    HeadLayout,
    NamedWeights,
    family_names,
    name_weights,
    relayout,
    relayout_words,
)
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.sources import FORMATS, WeightFormat, check_written_file, fetch_weights

# Files hold them rounded or as float32 square roots; a hundredth of a pixel moves no box that matters.
TOLERANCE_PX = 1e-2


_HF, _CAFFE = CONVENTIONS["hf"], CONVENTIONS["caffe"]


def recognise_anchors(anchors: object, config: DetectorConfig, conventions: Conventions, source: str) -> Conventions:
    """Conventions that compute a file's anchors, `cell_anchors.0`; the given ones are tried first."""
    computed = cell_anchors(config, conventions)
    if not is_plain_tensor(anchors) or anchors.shape != computed.shape:
        raise ValueError(
            f"{source}: {show_tensor(CELL_ANCHORS, anchors)} where the config gives {tuple(computed.shape)}; "
            f"set anchor_sizes and anchor_ratios to those the file was trained with (--detector)"
        )
    forms = (
        replace(conventions, anchor_sides=sides, anchor_offset=offset, anchor_order=order, box_sides=box_sides)
        for sides, offset, order, box_sides in itertools.product(
            ("exact", "rounded"), (0.0, 0.5), ("size-major", "ratio-major"), ("x2-x1", "x2-x1+1")
        )
    )
    for form in (conventions, _HF, _CAFFE, *forms):
        if torch.allclose(anchors.float(), cell_anchors(config, form), rtol=0, atol=TOLERANCE_PX):
            return form
    row = int((anchors.float() - computed).abs().nan_to_num(torch.inf).amax(dim=1).argmax())
    raise ValueError(
        f"{source}: anchor {row} is {show_numbers(anchors[row])}, the config gives {show_numbers(computed[row])}, "
        f"and no published convention fits; set anchor_sizes and anchor_ratios to those the file was trained with "
        f"(--detector)"
    )


def anchors_for(form: Conventions, config: DetectorConfig, conventions: Conventions) -> Tensor:
    """Anchors of `form` as `cell_anchors`, in the order and with the sides of `conventions`."""
    placed = replace(conventions, anchor_sides=form.anchor_sides, anchor_offset=form.anchor_offset)
    return cell_anchors(config, placed)


_log = logging.getLogger(__name__)
PIXELS = ("pixel_mean", "pixel_std")  # beside the weights in detectron2's older files
OUTSIDE_RESNET = ("proposal_generator.", PREDICTOR, "roi_heads.box_head.", "roi_heads.attribute_predictor.")


def build_detector(
    detector: str | Path | DetectorConfig | None = None,
    *,
    preset: str | None = None,
    weights: str | Path | None = None,
    conventions: str | Conventions | None = None,
    selection: str | SelectionPolicy | None = None,
    device: str | torch.device = "cpu",
    mode: str = "exact",
    given_boxes: bool = False,
) -> Detector:
    """A detector of the Visual Genome family; `build_detector` of ../adapters/any_detector.py makes others too.

    Args:
        detector, preset, conventions, selection: as `roibeam extract` takes them under these names, see
            `choose_detector`: a shipped detector, a detector's folder, or a published extractor ("butd-10-100" by
            default) and its differing parts.
        weights: see `load_weights`; None means those of the folder.
        device: device of the computation, such as "cpu" or "cuda:0".
        mode: "exact", or a faster one that rounds more: "batched", "tf32" (CUDA), "bf16"; see `MODES`.
        given_boxes: whether it will describe given boxes alone. Then the file of a ResNet alone will do, such as
            torchvision's; the network has no classes and no attributes.
    Raises:
        ValueError: for an unknown name, a mode that the device does not have, or weights that are missing or do not
            fit.
    """
    chosen = choose_detector(detector, preset=preset, conventions=conventions, selection=selection, weights=weights)
    warn_if_slow(mode_named(mode, device), device)
    config, found = chosen.config, None
    if random_seed(chosen.weights) is None:
        found = read_named(chosen.weights)
        if given_boxes and found.family.layout is None:
            config = replace(config, num_classes=0, num_attributes=0)
        check_size(config, found)
    built = Detector(config, chosen.conventions, chosen.selection, mode=mode)
    _load(chosen.weights, found, built)
    return built.to(device)


_SMALL_LAYER = 2**22  # numbers, 16 MB: a network of such layers is built, for a better message on missing weights


def check_size(config: DetectorConfig, named: NamedWeights) -> None:
    """Raises ValueError for a network with a layer that is larger than all of its weights: it is not built."""
    width, hidden = config.base_channels, config.rpn_hidden_channels
    largest = max((24 * width) ** 2, 9 * 16 * width * hidden if config.num_classes else 0)  # 3x3 of res5 and the RPN
    there = sum(math.prod(value.shape) for value in named.tensors.values() if isinstance(value, Tensor))
    if largest > max(there, _SMALL_LAYER):
        raise ValueError(
            f"{named.source}: {there:,} numbers in all, while base_channels {width:,} and rpn_hidden_channels "
            f"{hidden:,} make a layer of {largest:,}; is it another detector's?"
        )


def load_weights(spec: str, detector: Detector, *, cache_dir: Path | None = None) -> None:
    """Loads every weight of `detector`, or none; logs the file's family and conversions.

    Args:
        spec: `random:<seed>` (the reproducible recipe of network/state.py; one seed is one network, for any
            conventions), or a file as `fetch_weights` takes it, of any family in families.py. Rows and scales of the
            heads are converted to the detector's conventions; half-precision files are widened to float32.
        detector: gets the file's anchors if these are published ones that differ from those of the conventions.
        cache_dir: folder of fetched files; None means `default_cache_dir()`.
    Raises:
        ValueError: if the file cannot be read as tensors, is of no known family, or its tensors are not exactly the
            detector's.
        OSError: if it cannot be fetched.
    """
    _load(spec, None if random_seed(spec) is not None else read_named(spec, cache_dir=cache_dir), detector)


def _load(spec: str, found: NamedWeights | None, detector: Detector) -> None:
    """See `load_weights`, for a file that is read; None for random weights."""
    config, conventions = detector.config, detector.conventions
    everything: dict[str, Tensor] = detector.state_dict()
    # Trainable norms count batches; files may lack these counters.
    expected = {name: tensor for name, tensor in everything.items() if is_weight(name)}
    layout, anchors = HeadLayout.of(conventions), cell_anchors(config, conventions)
    if found is None:
        seed = random_seed(spec)
        assert seed is not None
        hf_shaped = in_layout(on_meta(expected), layout, HF_LAYOUT, config)
        shapes = {name: tuple(value.shape) for name, value in hf_shaped.items()}
        drawn = random_state(shapes, seed)
        if config.grid:  # The recipe's stem reads grey levels. That of r2c, divided too, stays as it has been drawn.
            drawn["backbone.stem.conv1.weight"] *= torch.tensor(conventions.pixel_std).view(1, 3, 1, 1)
        state = in_layout(drawn, HF_LAYOUT, layout, config)
    elif not config.num_classes:
        state = _resnet_state(found, expected)
    else:
        tensors, layout_there, form = understand(found, config, conventions)
        shapes_there = in_layout(on_meta(expected), layout, layout_there, config)
        state = in_layout(check_state(tensors, shapes_there, found.source), layout_there, layout, config)
        if form is not None:
            anchors = _anchors_of_file(form, found.source, config, conventions)
        _report(found, relayout_words(layout_there, layout))
    detector.load_state_dict({**everything, **state}, strict=True)
    if isinstance(generator := detector.proposal_generator, ProposalGenerator):
        generator.cell_anchors.copy_(anchors)


def part_state(spec: str, expected: Mapping[str, Tensor], *, cache_dir: Path | None = None) -> dict[str, Tensor]:
    """The weights of a network's ResNet, from a file of the ResNet alone or of a whole detector.

    Args:
        spec: as in `load_weights`; also a ResNet alone: VL-BERT's `resnet101-pt-vgbua-0000.model`, torchvision's; and
            VL-BERT's end-to-end checkpoints.
        expected: name -> tensor of the wanted shape, in Hugging Face names: `backbone....` and `roi_heads.res5....`.
    Returns:
        exactly the names of `expected`, float32.
    Raises:
        ValueError: as `load_weights`. The file's proposal network and heads are not checked, all of its ResNet is.
        OSError: if it cannot be fetched.
    """
    if (seed := random_seed(spec)) is not None:
        return random_state({name: tuple(value.shape) for name, value in expected.items()}, seed)
    return _resnet_state(read_named(spec, cache_dir=cache_dir), expected)


def _resnet_state(named: NamedWeights, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found, left_out = resnet_of(named)
    state = check_state(found, expected, f"{named.source} ({named.family.title})")
    _report(named, left_out)
    return state


def resnet_of(named: NamedWeights) -> tuple[dict[str, object], list[str]]:
    """The ResNet of a file, and its left-out parts, for people."""
    found, left = dict(named.tensors), []
    outside_resnet = (*OUTSIDE_RESNET, *PIXELS)
    for what, beginnings in (("of classes of photos (fc)", CLASSES_OF_IMAGES), ("outside the ResNet", outside_resnet)):
        outside = [name for name in found if name.startswith(beginnings)]
        found = {name: value for name, value in found.items() if name not in set(outside)}
        left += [f"{len(outside)} weights {what} left out"] if outside else []
    return found, left


def read_named(spec: str, *, cache_dir: Path | None = None) -> NamedWeights:
    """The weights of a file in Hugging Face names; errors as of `load_weights`."""
    path = fetch_weights(spec, cache_dir=cache_dir)
    conventions = conventions_beside(path)
    written = None if conventions is None else HeadLayout.of(conventions)
    return name_weights(read_tensors(path), f"weights {spec}", written=written)


def understand(
    named: NamedWeights, config: DetectorConfig, conventions: Conventions
) -> tuple[dict[str, object], HeadLayout, Conventions | None]:
    """Tensors, layout and anchors of the file of a whole detector, not yet checked.

    Args:
        config: has the sizes and ratios of the anchors.
        conventions: their anchors are compared with those in the file.
    Returns:
        Hugging Face name -> value, anchors left out; the layout of these, with the order of anchors in the file itself;
        conventions that compute its anchors, None if neither the file nor its family has any.
    """
    source, layout, anchors = named.source, named.family.layout, named.tensors.get(CELL_ANCHORS)
    if layout is None:
        raise ValueError(
            f"{source}: {named.family.title}, which has no proposal network and no heads; hand over a whole detector. "
            f"A ResNet describes given boxes (extract --boxes) and starts an encoder (--end-to-end) or a detector "
            f"(detector train --resnet)"
        )
    form = _CAFFE if layout == CAFFE_LAYOUT else None
    if anchors is not None:
        form = recognise_anchors(anchors, config, conventions, source)
        layout = replace(layout, anchor_order=form.anchor_order)
    elif named.family.name == "milvlg":
        _log.warning("%s: has no cell_anchors, as MILVLG's files do; they are taken to be Caffe's", source)
    tensors = {name: value for name, value in named.tensors.items() if name != CELL_ANCHORS}
    for name in PIXELS:
        value, own = tensors.pop(name, None), torch.tensor(getattr(conventions, name))
        if isinstance(value, Tensor) and (value.numel() != 3 or not torch.allclose(value.float().flatten(), own)):
            _log.warning(
                "%s: its %s is not that of the conventions, %s, which is used", source, name, show_numbers(own)
            )
    return tensors, layout, form


def _report(named: NamedWeights, more: Sequence[str]) -> None:
    changes = [*named.changes, *more]
    log = _log.info if changes else _log.debug  # each process of a run logs it
    log("%s: %s; %s", named.source, named.family.title, ", ".join(changes) or "nothing to convert")


def on_meta(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same names and shapes without values."""
    return {name: torch.empty_like(value, device="meta") for name, value in state.items()}


def in_layout(
    state: Mapping[str, Tensor], source: HeadLayout, target: HeadLayout, config: DetectorConfig
) -> dict[str, Tensor]:
    """`relayout` with the counts of a config."""
    num_sizes, num_ratios = len(config.anchor_sizes), len(config.anchor_ratios)
    return relayout(state, source, target, num_sizes=num_sizes, num_ratios=num_ratios)


def _anchors_of_file(form: Conventions, source: str, config: DetectorConfig, conventions: Conventions) -> Tensor:
    """The file's anchors for a detector of these conventions; warns where they are not its own."""
    anchors = anchors_for(form, config, conventions)
    if not torch.equal(anchors, cell_anchors(config, conventions)):
        there, here = (
            f"{each.anchor_sides} sides, centre at {each.anchor_offset:g} strides, {each.anchor_order}"
            for each in (form, conventions)
        )
        _log.warning("%s: its anchors (%s) are used, not those of the conventions (%s)", source, there, here)
    return anchors


_OF_CLASSES = ("cls_score", "bbox_pred", "cls_embedding")
_OF_ATTRIBUTES = ("attr_score",)


def load_folder(
    folder: DetectorFolder, detector: Detector, *, same_classes: bool, same_attributes: bool
) -> tuple[str, ...]:
    """Loads a detector's folder into a detector of the same sizes, which may have other classes.

    Args:
        detector: its weights stay where the folder has none for it.
        same_classes, same_attributes: whether the ids of both mean the same.
    Returns:
        The layers whose weights stayed, by their own names.
    """
    config = replace(
        detector.config, num_classes=folder.config.num_classes, num_attributes=folder.config.num_attributes
    )
    source = Detector(config, detector.conventions)
    load_weights(folder.weights, source)
    left = (() if same_classes else _OF_CLASSES) + (() if same_attributes else _OF_ATTRIBUTES)
    without = tuple(f"{PREDICTOR}{layer}." for layer in left)
    own, found = detector.state_dict(), source.state_dict()
    taken = {name: value for name, value in found.items() if name in own and not name.startswith(without)}
    detector.load_state_dict({**own, **taken})
    old, new = source.proposal_generator, detector.proposal_generator
    if isinstance(old, ProposalGenerator) and isinstance(new, ProposalGenerator):
        new.cell_anchors.copy_(old.cell_anchors)
    stayed = [name for name in own if name not in taken and not name.endswith(COUNTER)]
    return tuple(dict.fromkeys(name.removeprefix(PREDICTOR).rpartition(".")[0] for name in stayed))


@dataclass(frozen=True)
class Conversion:
    """Result of `convert_weights`.

    Attributes:
        family: title of the file that was read.
        digest_before, digest_after: `weights_digest` of the input and of the written file, both in Hugging Face's
            layout: equal, but for one rounding if box deltas were scaled.
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
    Raises:
        ValueError: as `load_weights`, and for an `out` that exists, has no folder or another suffix than the format.
        OSError: if a file cannot be read or written.
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
        written[CELL_ANCHORS] = anchors_for(form or _HF, config, CONVENTIONS[target.conventions])
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
) -> tuple[dict[str, Tensor], Conventions | None, str, list[str]]:
    """Checked weights, conventions of their anchors, the title of their family, and steps taken."""
    with torch.device("meta"):
        expected = Detector(config, _HF).state_dict()
    named = read_named(spec)
    if not any(name.startswith(OUTSIDE_RESNET) for name in named.tensors):
        part = {name: value for name, value in expected.items() if not name.startswith(OUTSIDE_RESNET)}
        resnet, left_out = resnet_of(named)
        state = check_state(resnet, part, f"{named.source} ({named.family.title})")
        return state, None, named.family.title, [*named.changes, *left_out]
    tensors, layout, form = understand(named, config, _HF)
    found = check_state(tensors, in_layout(on_meta(expected), HF_LAYOUT, layout, config), named.source)
    changes = [*named.changes, *relayout_words(layout, HF_LAYOUT)]
    return in_layout(found, layout, HF_LAYOUT, config), form, named.family.title, changes


def _write_checked(
    named: dict[str, Tensor], out: Path, target: WeightFormat, config: DetectorConfig
) -> dict[str, Tensor]:
    """Writes aside, reads back, renames; returns the read weights, in Hugging Face's layout."""
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
