"""One photo, or a zero-padded batch of them, through a detector; every array of its reference file.

What is fed and what is compared: README of the reference arrays, "Arrays". Selections are in selection.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from harness.case_files import ArrayError, Arrays
from harness.checks import Check, equal, failed, guarded, near, near_thinned, numpy_of, within
from harness.detector.options import DetectorSet
from harness.detector.selection import ImagePart, Selections, decided
from harness.detector.weights import built_detector, proposal_generator_of
from harness.tolerances import DETECTOR
from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.network.conventions import CONVENTIONS, PUBLISHED_EDGES
from roibeam.extraction.network.precision import plain_float32
from roibeam.extraction.network.rpn import choose_proposals
from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.preprocessing import NetworkInput, preprocess

CROP = (slice(32, 64), slice(48, 80))  # rows and columns of the stored window of a network input
MAX_GIVEN_BOXES = 4096  # a file from anybody must not keep the machine for days
_MAX_COORDINATE = 1e6


# Other published ways to resize a photo: conventions, and (short edge, limit of the long edge), pixels.
RECIPES = {
    "caffe600": ("caffe", PUBLISHED_EDGES["caffe"][0]),
    "d2_800": ("d2", PUBLISHED_EDGES["d2"][0]),
    "d2_600": ("d2", PUBLISHED_EDGES["d2"][1]),
}


@dataclass(frozen=True)
class PhotoCase:
    """A reference file with what it was made from."""

    network: DetectorSet
    arrays: Arrays
    photos: Sequence[Path]  # image files, in the order of the batch; one of them is a case of a single photo


@torch.inference_mode()
def run_photos(detector: Detector, images: Sequence[np.ndarray]) -> list[HeadOutputs]:
    """What the heads say of each photo.

    One photo goes the way of `Detector.head_outputs`. Several are padded with zeros to a common size and share one call
    of the backbone, as the reference does; padding changes the map inside a photo too.
    """
    if len(images) == 1:
        return [detector.head_outputs(images[0])]
    inputs = [preprocess(image, detector.config, detector.conventions, detector.device) for image in images]
    generator = proposal_generator_of(detector)
    with plain_float32(detector.device):
        pixels = pad_to_common_size(inputs)
        network = detector.network()
        maps = network.feature_map(pixels)
        logits, deltas = network.rpn(maps)
        outputs = []
        for i, one in enumerate(inputs):
            boxes, objectness = generator.score_anchors(logits[i : i + 1], deltas[i : i + 1])
            proposals = choose_proposals(
                boxes, objectness, one.input_hw, one.factor, detector.config, detector.conventions
            )
            regions = network.regions(maps[i : i + 1], proposals.boxes)
            padded = replace(one, pixels=pixels[i : i + 1])
            outputs.append(HeadOutputs(padded, maps[i : i + 1], proposals, regions))
    return outputs


def pad_to_common_size(inputs: Sequence[NetworkInput]) -> Tensor:
    """(N, 3, H, W): zeros at the right and bottom."""
    height = max(one.pixels.shape[2] for one in inputs)
    width = max(one.pixels.shape[3] for one in inputs)
    return torch.cat(
        [
            functional.pad(one.pixels, (0, width - one.pixels.shape[3], 0, height - one.pixels.shape[2]))
            for one in inputs
        ]
    )


def photo_checks(network: DetectorSet, arrays: Arrays, photos: Sequence[Path]) -> Iterator[Check]:
    """All checks of one reference file."""
    case = PhotoCase(network, arrays, photos)
    detector = built_detector(case.network)
    orientation = case.network.conventions.exif_orientation
    images = [decode_image(path.read_bytes(), exif_orientation=orientation) for path in case.photos]
    outputs = run_photos(detector, images)
    maps = torch.cat([one.feature_map for one in outputs])
    yield from guarded("input_shape", _input_checks, case, outputs)
    if len(case.photos) == 1:
        for name in RECIPES:
            yield from guarded(f"{name}_shape", _recipe_checks, case, name, images[0])
    yield from guarded("res4_shape", _map_checks, case, maps)
    yield from guarded("rpn_shape", _rpn_checks, case, detector, maps)
    yield from guarded("given_boxes", _given_checks, case, detector, outputs)
    try:
        parts = image_parts(case, outputs)
    except ArrayError as error:
        yield failed(error.array, str(error))
        return
    yield from guarded("proposal_boxes", _proposal_checks, case, parts)
    yield from guarded("proposal_top5_prob", _proposal_head_checks, case, parts)
    yield from Selections(case.network, detector, case.arrays, parts).checks()


def _input_checks(case: PhotoCase, outputs: Sequence[HeadOutputs]) -> Iterator[Check]:
    arrays, inputs = case.arrays, [one.network_input for one in outputs]
    pixels = torch.cat([one.pixels for one in inputs])
    yield equal("input_shape", list(pixels.shape), arrays.take("input_shape"))
    yield equal("input_sizes_hw", [one.input_hw for one in inputs], arrays.take("input_sizes_hw"))
    yield equal("raw_sizes_hw", [one.image_hw for one in inputs], arrays.take("raw_sizes_hw"))
    scales = torch.stack([one.scale.factors_xyxy[[1, 0]] for one in inputs])
    yield equal("scales_yx", scales, arrays.take("scales_yx"))
    yield from checksum_checks("input", pixels, arrays)
    yield near("input_crop", pixels[:, :, *CROP], arrays.take("input_crop"), case.network.values)


def checksum_checks(prefix: str, pixels: Tensor, arrays: Arrays) -> Iterator[Check]:
    """Sum and sum of absolute values of each channel of (..., 3, H, W), float64."""
    sizes = arrays.take(f"{prefix}_abs_sum", *pixels.shape[:-2])
    for name, values in ((f"{prefix}_sum", pixels.double()), (f"{prefix}_abs_sum", pixels.double().abs())):
        want = arrays.take(name, *pixels.shape[:-2])
        error = np.abs(numpy_of(values.sum((-2, -1))) - want) / np.abs(sizes)
        yield within(name, float(error.max()), DETECTOR.input_sum, "of the sum of |values|")


def _recipe_checks(case: PhotoCase, name: str, image: np.ndarray) -> Iterator[Check]:
    kind, (short_edge, long_edge) = RECIPES[name]
    own = case.network.conventions
    conventions = replace(CONVENTIONS[kind], pixel_mean=own.pixel_mean, pixel_std=own.pixel_std)
    config = replace(case.network.config, short_edge=short_edge, long_edge=long_edge)
    got = preprocess(image, config, conventions)
    arrays, pixels = case.arrays, got.pixels[0]
    yield equal(f"{name}_shape", list(pixels.shape), arrays.take(f"{name}_shape"))
    yield from checksum_checks(name, pixels, arrays)
    yield near(f"{name}_crop", pixels[:, *CROP], arrays.take(f"{name}_crop"), case.network.values)
    if kind == "caffe":
        want = float(arrays.take(f"{name}_scale"))
        yield within(f"{name}_scale", abs(got.factor - want) / want, 1e-12, "relative, in float64")


def _map_checks(case: PhotoCase, maps: Tensor) -> Iterator[Check]:
    arrays, values = case.arrays, case.network.values
    yield equal("res4_shape", list(maps.shape), arrays.take("res4_shape"))
    yield near_thinned("res4_sub", maps, arrays.take("res4_sub"), values)
    yield near("res4_channel_mean", maps.mean((2, 3)), arrays.take("res4_channel_mean"), values)


def _rpn_checks(case: PhotoCase, detector: Detector, maps: Tensor) -> Iterator[Check]:
    with torch.inference_mode(), plain_float32(detector.device):
        logits, deltas = detector.network().rpn(maps)
    arrays, values = case.arrays, case.network.values
    yield equal("rpn_shape", list(logits.shape), arrays.take("rpn_shape"))
    yield near_thinned("rpn_logits_sub", logits, arrays.take("rpn_logits_sub"), values)
    yield near_thinned("rpn_deltas_sub", deltas, arrays.take("rpn_deltas_sub"), values)


def _given_checks(case: PhotoCase, detector: Detector, outputs: Sequence[HeadOutputs]) -> Iterator[Check]:
    arrays, values = case.arrays, case.network.values
    boxes = arrays.take_finite("given_boxes", len(case.photos), None, 4)
    if boxes.shape[1] > MAX_GIVEN_BOXES:
        raise ArrayError("given_boxes", f"has {boxes.shape[1]} boxes for each photo; at most {MAX_GIVEN_BOXES}")
    if np.abs(boxes).max(initial=0) > _MAX_COORDINATE or (boxes[..., 2:] < boxes[..., :2]).any():
        raise ArrayError("given_boxes", "must be x1 y1 x2 y2 with x1 <= x2, y1 <= y2, in network-input pixels")
    with torch.inference_mode(), plain_float32(detector.device):
        found = [
            detector.network().regions(one.feature_map, torch.from_numpy(rows.astype(np.float32)))
            for one, rows in zip(outputs, boxes, strict=True)
        ]
    got = {name: np.stack([numpy_of(getattr(one, name)) for one in found]) for name in _HEADS}
    stable = arrays.take("given_stable", *boxes.shape[:2]).astype(bool)
    unstable = 1 - float(stable.mean()) if stable.size else 1.0
    yield within("given_stable", unstable, DETECTOR.unstable, "share declared unstable")
    yield near("given_features", *_rows(stable, got["features"], arrays.take("given_features")), values)
    logits = arrays.take("given_cls_logits", *boxes.shape[:2], None)
    yield near("given_cls_logits", *_rows(stable, got["class_logits"], logits), values)
    attributes = arrays.take("given_attr_logits")
    sure = stable & decided(logits, values)
    yield near("given_attr_logits", *_rows(sure, got["attribute_logits"], attributes), values)
    deltas = arrays.take("given_box_deltas", *boxes.shape[:2], None, 4)
    yield near_thinned("given_box_deltas", *_rows(stable, got["box_deltas"], deltas), values)


_HEADS = ("features", "class_logits", "attribute_logits", "box_deltas")


def _rows(keep: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows to compare; arrays whose leading shapes differ go on whole, so that the shapes are reported."""
    if theirs.shape[: keep.ndim] != keep.shape or ours.shape[: keep.ndim] != keep.shape:
        return ours, theirs
    return ours[keep], theirs[keep]


def image_parts(case: PhotoCase, outputs: Sequence[HeadOutputs]) -> list[ImagePart]:
    """The proposals of each photo with those of the reference, which are concatenated in its file."""
    arrays = case.arrays
    counts = arrays.take("proposal_count", len(case.photos)).astype(int)
    total = int(counts.sum())
    boxes = arrays.take("proposal_boxes", None, 4)
    logits = arrays.take("proposal_logits", len(boxes))
    most = case.network.config.proposals_after_nms
    if counts.max(initial=0) > most:
        raise ArrayError("proposal_count", f"says {counts.tolist()}, the config allows {most}")
    if (counts < 0).any() or total != len(boxes):
        raise ArrayError("proposal_count", f"says {counts.tolist()}, but there are {len(boxes)} proposal_boxes")
    ends = np.cumsum(counts)
    return [
        ImagePart.match(one, boxes[end - count : end], logits[end - count : end])
        for one, end, count in zip(outputs, ends, counts, strict=True)
    ]


def _proposal_checks(case: PhotoCase, parts: Sequence[ImagePart]) -> Iterator[Check]:
    values = case.network.values
    yield equal("proposal_count", [part.num_proposals for part in parts], case.arrays.take("proposal_count"))
    found = np.concatenate([part.found for part in parts])
    distance = np.concatenate([part.distance for part in parts])
    missed = 1 - float(found.mean()) if found.size else 0.0
    note = f"{int(found.sum())} of {found.size} within {DETECTOR.proposal_px} px"
    if found.any():
        note += f", these within {float(distance[found].max()):.1e} px"
    yield within("proposal_boxes", missed, DETECTOR.proposals_missed, "share not found", note)
    ours = np.concatenate([numpy_of(part.outputs.proposals.objectness)[part.index[part.found]] for part in parts])
    theirs = np.concatenate([part.logits[part.found] for part in parts])
    yield near("proposal_logits", ours, theirs, values)
    largest = float(np.abs(theirs).max(initial=0)) or 1.0
    out_of_order = max((part.order_error() for part in parts), default=0.0) / largest
    yield within("proposal_logits", out_of_order, values.max_rel, "largest gap of a pair in another order")


def _proposal_head_checks(case: PhotoCase, parts: Sequence[ImagePart]) -> Iterator[Check]:
    """What the heads say of the proposals that were found."""
    arrays, values = case.arrays, case.network.values
    found = np.concatenate([part.found for part in parts])
    regions = {
        name: np.concatenate([numpy_of(getattr(part.outputs.regions, name))[part.index[part.found]] for part in parts])
        for name in _HEADS[1:]
    }
    logits = torch.from_numpy(regions["class_logits"])
    probabilities = numpy_of(logits.softmax(1))
    best = arrays.take("proposal_top5_prob", len(found), None)[found]
    ids = arrays.take("proposal_top5_id", len(found), best.shape[1])[found].astype(int)
    num_best = best.shape[1]
    yield near("proposal_top5_prob", -np.sort(-probabilities, axis=1)[:, :num_best], best, values)
    if ids.size and not 0 <= ids.min() <= ids.max() < probabilities.shape[1]:
        raise ArrayError("proposal_top5_id", f"must be in 0..{probabilities.shape[1] - 1}")
    # By probability, since classes of equal probability may stand in either order.
    yield near("proposal_top5_id", np.take_along_axis(probabilities, ids, 1), best, values)
    # The reduced sets hold every head output; at true size the five best classes stand for them.
    if case.network.is_reduced or any(name in arrays for name in _EVERY_OUTPUT):
        want_classes, want_attributes, want_deltas = (arrays.take(name, len(found), None) for name in _EVERY_OUTPUT)
        yield near("proposal_cls_logits", regions["class_logits"], want_classes[found], values)
        sure = decided(regions["class_logits"], values)
        attributes = want_attributes[found][sure]
        yield near("proposal_attr_logits", regions["attribute_logits"][sure], attributes, values)
        deltas = want_deltas[found]
        yield near("proposal_box_deltas", regions["box_deltas"].reshape(len(deltas), -1), deltas, values)


_EVERY_OUTPUT = ("proposal_cls_logits", "proposal_attr_logits", "proposal_box_deltas")
