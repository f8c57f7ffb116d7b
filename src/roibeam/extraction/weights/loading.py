"""Weights into a detector: strict, executing nothing; and the one function that builds a detector from names."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from roibeam.extraction.choice.detector_choice import choose_detector
from roibeam.extraction.choice.detector_folder import conventions_beside
from roibeam.extraction.detector import Detector
from roibeam.extraction.fast.modes import mode_named, warn_if_slow
from roibeam.extraction.network.anchors import cell_anchors
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.rpn import ProposalGenerator
from roibeam.extraction.network.selection_policy import SelectionPolicy
from roibeam.extraction.network.state import CELL_ANCHORS, check_state, is_weight
from roibeam.extraction.weights.anchors import CAFFE_FORM, AnchorForm, anchors_for, recognise_anchors
from roibeam.extraction.weights.families import Family, NamedWeights, name_weights
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.head_layout import (
    CAFFE_LAYOUT,
    HF_LAYOUT,
    PREDICTOR,
    HeadLayout,
    relayout,
    relayout_words,
)
from roibeam.extraction.weights.other_networks import CLASSES_OF_IMAGES
from roibeam.extraction.weights.random_weights import random_seed, random_state
from roibeam.extraction.weights.sources import fetch_weights

_log = logging.getLogger(__name__)
OUTSIDE_RESNET = ("proposal_generator.", PREDICTOR)


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
    """A detector ready to run: `build_detector("toy")`, `build_detector(preset="lxmert", weights="detector.pth")`.

    Args:
        detector, preset, conventions, selection: what `roibeam extract` takes under these names, see
            `choose_detector`: a shipped detector, a detector's folder, or a published extractor ("butd-10-100" where
            nothing is said) and what is to be different in it.
        weights: see `load_weights`; None means those of the folder.
        device: where it computes, such as "cpu" or "cuda:0".
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
    if random_seed(chosen.weights, named=f"weights {chosen.weights}") is None:
        found = read_named(chosen.weights)
        if given_boxes and found[1].family.layout is None:
            config = replace(config, num_classes=0, num_attributes=0)
        check_size(config, *found)
    built = Detector(config, chosen.conventions, chosen.selection, mode=mode)
    _load(chosen.weights, found, built)
    return built.to(device)


_SMALL_LAYER = 2**22  # numbers, 16 MB: a network of such layers is built, and what its file lacks has a better line


def check_size(config: DetectorConfig, source: str, named: NamedWeights) -> None:
    """Raises ValueError for a network with a layer that is larger than all of its weights: it is not built."""
    width, hidden = config.base_channels, config.rpn_hidden_channels
    largest = max((24 * width) ** 2, 9 * 16 * width * hidden if config.num_classes else 0)  # 3x3 of res5 and the RPN
    there = sum(math.prod(value.shape) for value in named.tensors.values() if isinstance(value, Tensor))
    if largest > max(there, _SMALL_LAYER):
        raise ValueError(
            f"{source}: {there:,} numbers in all, while base_channels {width:,} and rpn_hidden_channels {hidden:,} "
            f"make a layer of {largest:,}; is it another detector's?"
        )


def load_weights(spec: str, detector: Detector, *, cache_dir: Path | None = None) -> None:
    """Loads every weight of `detector`, or none; logs what the file is and what was converted.

    Args:
        spec: `random:<seed>` (the reproducible recipe of random_weights.py; one seed is one network, whatever the
            conventions), or a file as `fetch_weights` takes it, of any family in families.py. Rows and scales of
            the heads are brought to the detector's conventions; half-precision files are widened to float32.
        detector: its anchors become the file's where the file has other published ones than the conventions compute.
        cache_dir: where fetched files are kept; None means `default_cache_dir()`.
    Raises:
        ValueError: when the file cannot be read as tensors, is of no known family, or its tensors are not exactly the
            detector's.
        OSError: when it cannot be fetched.
    """
    seed = random_seed(spec, named=f"weights {spec}")
    _load(spec, None if seed is not None else read_named(spec, cache_dir=cache_dir), detector)


def _load(spec: str, found: tuple[str, NamedWeights] | None, detector: Detector) -> None:
    """As `load_weights`, of a file that is read; None for random weights."""
    config, conventions = detector.config, detector.conventions
    everything: dict[str, Tensor] = detector.state_dict()
    # Trainable norms count batches, which no file need tell.
    expected = {name: tensor for name, tensor in everything.items() if is_weight(name)}
    layout, anchors = HeadLayout.of(conventions), cell_anchors(config, conventions)
    if found is None:
        seed = random_seed(spec, named=f"weights {spec}")
        assert seed is not None
        hf_shaped = in_layout(on_meta(expected), layout, HF_LAYOUT, config)
        shapes = {name: tuple(value.shape) for name, value in hf_shaped.items()}
        state = in_layout(random_state(shapes, seed), HF_LAYOUT, layout, config)
    elif not config.num_classes:
        state = _resnet_state(*found, expected)
    else:
        published = understand(*found, config, conventions)
        shapes_there = in_layout(on_meta(expected), layout, published.layout, config)
        theirs = check_state(published.tensors, shapes_there, published.source)
        state = in_layout(theirs, published.layout, layout, config)
        anchors = _anchors(published, config, conventions)
        _report(published.source, published.family, [*published.changes, *relayout_words(published.layout, layout)])
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
        ValueError: as `load_weights`. The file's proposal network and heads are not looked at, all of its ResNet is.
        OSError: when it cannot be fetched.
    """
    if (seed := random_seed(spec, named=f"weights {spec}")) is not None:
        return random_state({name: tuple(value.shape) for name, value in expected.items()}, seed)
    return _resnet_state(*read_named(spec, cache_dir=cache_dir), expected)


def _resnet_state(source: str, named: NamedWeights, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found, left_out = resnet_of(named)
    state = check_state(found, expected, f"{source} ({named.family.title})")
    _report(source, named.family, [*named.changes, *left_out])
    return state


def resnet_of(named: NamedWeights) -> tuple[dict[str, object], list[str]]:
    """The ResNet of a file, and what was left out of it, for people."""
    found, left = dict(named.tensors), []
    for what, beginnings in (("of classes of photos (fc)", CLASSES_OF_IMAGES), ("outside the ResNet", OUTSIDE_RESNET)):
        outside = [name for name in found if name.startswith(beginnings)]
        found = {name: value for name, value in found.items() if name not in set(outside)}
        left += [f"{len(outside)} weights {what} left out"] if outside else []
    return found, left


@dataclass(frozen=True)
class PublishedWeights:
    """A file of a whole detector, named and understood but not yet checked.

    Attributes:
        source: names the file in errors.
        family: what the file is.
        tensors: Hugging Face name -> value as the file has it, anchors left out.
        layout: of the tensors; with the order of anchors that the file itself shows.
        anchor_form: of the file's anchors; None when neither the file nor its family says.
        changes: what was done to the names, for people.
    """

    source: str
    family: Family
    tensors: dict[str, object]
    layout: HeadLayout
    anchor_form: AnchorForm | None
    changes: tuple[str, ...]


def read_named(spec: str, *, cache_dir: Path | None = None) -> tuple[str, NamedWeights]:
    """How errors call a file, and its weights in Hugging Face names; see `load_weights` for what it raises."""
    source, path = f"weights {spec}", fetch_weights(spec, cache_dir=cache_dir)
    conventions = conventions_beside(path)
    written = None if conventions is None else HeadLayout.of(conventions)
    return source, name_weights(read_tensors(path), source, written=written)


def understand(source: str, named: NamedWeights, config: DetectorConfig, conventions: Conventions) -> PublishedWeights:
    """What the file of a whole detector is: its layout, its anchors.

    Args:
        source, named: of `read_named`.
        config: has the sizes and ratios of the anchors.
        conventions: anchors in the file are compared with theirs.
    Raises:
        ValueError: for a file of a ResNet alone, and for anchors of no known form.
    """
    layout, anchors = named.family.layout, named.tensors.get(CELL_ANCHORS)
    if layout is None:
        raise ValueError(
            f"{source}: {named.family.title}, which has no proposal network and no heads; hand over a whole detector. "
            f"A ResNet describes given boxes (extract --boxes) and starts an encoder (--end-to-end) or a detector "
            f"(detector train --resnet)"
        )
    form = CAFFE_FORM if layout == CAFFE_LAYOUT else None
    if anchors is not None:
        form = recognise_anchors(anchors, config, conventions, source)
        layout = replace(layout, anchor_order=form.anchor_order)
    elif named.family.name == "milvlg":
        _log.warning("%s: has no cell_anchors, as MILVLG's files do; they are taken to be Caffe's", source)
    tensors = {name: value for name, value in named.tensors.items() if name != CELL_ANCHORS}
    return PublishedWeights(source, named.family, tensors, layout, form, named.changes)


def _report(source: str, family: Family, changes: Sequence[str]) -> None:
    say = _log.info if changes else _log.debug  # each process of a run says it
    say("%s: %s; %s", source, family.title, ", ".join(changes) or "nothing to convert")


def on_meta(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same names and shapes without values."""
    return {name: torch.empty_like(value, device="meta") for name, value in state.items()}


def in_layout(
    state: Mapping[str, Tensor], source: HeadLayout, target: HeadLayout, config: DetectorConfig
) -> dict[str, Tensor]:
    """`relayout` with the counts of a config."""
    num_sizes, num_ratios = len(config.anchor_sizes), len(config.anchor_ratios)
    return relayout(state, source, target, num_sizes=num_sizes, num_ratios=num_ratios)


def _anchors(published: PublishedWeights, config: DetectorConfig, conventions: Conventions) -> Tensor:
    """The anchors a detector of these conventions uses with these weights."""
    computed = cell_anchors(config, conventions)
    if published.anchor_form is None:
        return computed
    anchors = anchors_for(published.anchor_form, config, conventions)
    if not torch.equal(anchors, computed):
        _log.warning(
            "%s: its anchors (%s) are used, not those of the conventions (%s)",
            published.source,
            published.anchor_form.describe(),
            AnchorForm.of(conventions).describe(),
        )
    return anchors
