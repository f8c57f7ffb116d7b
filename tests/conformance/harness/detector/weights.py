"""Checksums of the random weights, and the published lists of names and shapes, against our detector."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.checks import Check, failed, within
from harness.detector.options import DetectorSet
from harness.tolerances import DETECTOR
from roibeam.extraction.detector import Detector
from roibeam.extraction.network.rpn import ProposalGenerator
from roibeam.extraction.weights.families import CELL_ANCHORS, COUNTER, HF_LAYOUT, name_weights
from roibeam.extraction.weights.loading import build_detector

# Kind of list -> the family of extraction/weights/families.py that it must be taken for.
KEY_LISTS: Mapping[str, str] = {
    "hf_frcnn_keys": "hf",
    "detectron2_keys": "detectron2",
    "resnet101_vgbua_keys": "vlbert",
}
_RESNET = ("backbone.", "roi_heads.res5.")  # what VL-BERT's file holds
_SHOWN = 3


@functools.lru_cache(maxsize=1)
def built_detector(network: DetectorSet) -> Detector:
    """The set's detector with its random weights, kept until another one is asked for (0.3 GB at true size)."""
    conventions = network.conventions
    # The recipe draws what a file of the port holds, whatever its config says of the box deltas; the loader would scale
    # them from the published file's weights to these.
    drawn_for = replace(conventions, region_delta_weights=HF_LAYOUT.region_delta_weights)
    published = build_detector(network.config, weights=f"random:{network.salt}", conventions=drawn_for)
    detector = Detector(network.config, conventions, network.selection)
    detector.load_state_dict(published.state_dict(), strict=True, assign=True)
    return detector


def proposal_generator_of(detector: Detector) -> ProposalGenerator:
    generator = detector.proposal_generator
    assert isinstance(generator, ProposalGenerator)
    return generator


def weight_sum_checks(network: DetectorSet, sums: Mapping[str, Any]) -> Iterator[Check]:
    """Sum and sum of absolute values of every tensor, float64.

    Args:
        sums: name in a Hugging Face checkpoint -> [sum, sum of absolute values]; counters of batches are 0.
    """
    detector = built_detector(network)
    state: dict[str, Tensor] = dict(detector.state_dict())
    if CELL_ANCHORS in sums:  # computed, so a list of what was drawn may leave it out
        state[CELL_ANCHORS] = proposal_generator_of(detector).cell_anchors
    counters = {f"{name.removesuffix('.running_var')}.{COUNTER}" for name in state if name.endswith(".running_var")}
    yield _names("names", set(sums), set(state) | counters)
    malformed = [name for name, value in sums.items() if not _is_sum(value)]
    if malformed:
        yield failed("sums", f"{_show(malformed)}: expected [sum, sum of absolute values]")
        return
    nonzero = [name for name in sums if name.endswith(COUNTER) and sums[name] != [0, 0]]
    yield within(COUNTER, len(nonzero), 0, "counters above 0", _show(nonzero))
    for index, label in enumerate(("sum", "abs_sum")):
        worst, worst_name = 0.0, ""
        for name in state.keys() & sums.keys():
            values = state[name].double()
            ours = (values if index == 0 else values.abs()).sum().item()
            size = abs(sums[name][1])
            error = abs(ours - sums[name][index]) / size if size else abs(ours - sums[name][index])
            if not error <= worst:
                worst, worst_name = error, name
        yield within(label, worst, DETECTOR.weight_sum, "of the tensor's sum of |values|", worst_name)


def key_list_checks(network: DetectorSet, shapes: Mapping[str, Any], kind: str, file: str) -> Iterator[Check]:
    """A published list of names and shapes, through the same table of names that loads such files.

    Args:
        shapes: name in the published file -> shape.
        kind: a key of `KEY_LISTS`.
        file: named in errors.
    """
    malformed = [name for name, shape in shapes.items() if not _is_shape(shape)]
    if malformed:
        raise ValueError(f"{file}: the shape of {_show(malformed)} is no list of whole numbers")
    # On the meta device: names and shapes alone, without memory.
    found: dict[str, object] = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    named = name_weights(found, file)
    family, wanted_family = named.family.name, KEY_LISTS[kind]
    # A ResNet alone is VL-BERT's by its number of layers: a set's may have others.
    is_resnet = wanted_family == "vlbert" and family in ("vlbert", "resnet")
    wrong = family != wanted_family and not is_resnet
    yield within("family", wrong, 0, f"expected {wanted_family}", f"taken for {family}")
    with torch.device("meta"):
        detector = Detector(network.config, network.conventions)
    expected: dict[str, Tensor] = dict(detector.state_dict())
    expected[CELL_ANCHORS] = proposal_generator_of(detector).cell_anchors
    if is_resnet:
        expected = {name: tensor for name, tensor in expected.items() if name.startswith(_RESNET)}
    yield _names("names", set(named.tensors), set(expected))
    misshapen = [
        f"{name} {tuple(value.shape)}, ours {tuple(expected[name].shape)}"
        for name, value in named.tensors.items()
        if isinstance(value, Tensor) and name in expected and value.shape != expected[name].shape
    ]
    yield within("shapes", len(misshapen), 0, "tensors of another shape", _show(misshapen))
    # Every norm has a counter of batches, or none has: detectron2's files never do.
    norms = sum(name.endswith(".running_var") for name in shapes)
    counters = [name for name in shapes if name.endswith(COUNTER)]
    wanted = 0 if family == "detectron2" else norms
    yield within(COUNTER, abs(len(counters) - wanted), 0, f"expected {wanted} counters", f"{len(counters)} there")
    scalars = [name for name in counters if list(shapes[name])]
    yield within(f"{COUNTER} shapes", len(scalars), 0, "counters that are no scalar", _show(scalars))


def _names(array: str, found: set[str], expected: set[str]) -> Check:
    missing, extra = sorted(expected - found), sorted(found - expected)
    kinds = {"missing": missing, "extra": extra}
    parts = [f"{len(names)} {word}: {_show(names)}" for word, names in kinds.items() if names]
    return within(array, len(missing) + len(extra), 0, "names that differ", "; ".join(parts))


def _show(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _is_sum(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(type(number) in (int, float) and math.isfinite(number) for number in value)


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 4 and all(type(v) is int and 0 < v < 1 << 24 for v in value)
