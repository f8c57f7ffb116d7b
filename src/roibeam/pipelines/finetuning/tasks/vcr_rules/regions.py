"""Which regions of a VCR image are shown, and what classes they are of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.task import JoinedImage
from roibeam.pipelines.sources.datasets.vcr_texts import PERSON, VcrAsked

ANNOTATED, DETECTED, NAMED = "annotated", "detected", "named"
BOXES = (ANNOTATED, DETECTED, NAMED)
NO_LOSS, MASKED, SHOWN = "none", "masked", "shown"
OBJECT_LOSSES = (NO_LOSS, MASKED, SHOWN)
NOT_ASKED = -100  # as IGNORE_INDEX of model/inputs.py
BACKGROUND = 0  # class of the whole image
_EVERYONE = ("everyone", "everyones")

# Classes of COCO as VCR writes them, in COCO's order from 1 on.
OBJECT_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "trafficlight",
    "firehydrant", "stopsign", "parkingmeter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sportsball", "kite", "baseballbat", "baseballglove", "skateboard", "surfboard", "tennisracket", "bottle",
    "wineglass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hotdog", "pizza", "donut", "cake", "chair", "couch", "pottedplant", "bed", "diningtable", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cellphone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddybear", "hairdrier", "toothbrush",
)  # fmt: skip


class JoinedRegions(NamedTuple):
    """Detected regions, then annotated ones.

    Attributes:
        features: (R, D) float32; boxes: (R, 4) float32, x1 y1 x2 y2 in pixels.
        num_detected: how many of them were detected.
        whole: (D,) float32, feature of the whole image.
    """

    features: np.ndarray
    boxes: np.ndarray
    num_detected: int
    whole: np.ndarray


def named_objects(asked: VcrAsked) -> tuple[int, ...]:
    """Numbers of the objects that question, answers or rationales name, in their order; "everyone" names all people.

    All people where nothing is named (rowanz/r2c dataloaders/vcr.py). The same for all choices, so that they tell
    nothing of which is right.
    """
    people = {number for number, kind in enumerate(asked.objects) if kind == PERSON}
    found: set[int] = set()
    for text in (asked.question, *asked.answers, *asked.rationales):
        for token in text:
            if not isinstance(token, str):
                found.update(token)
            elif token.lower() in _EVERYONE:
                found |= people
    return tuple(sorted(found or people))


def join_regions(
    detected: tuple[np.ndarray, np.ndarray], annotated: tuple[np.ndarray, np.ndarray], max_regions: int = 0
) -> JoinedRegions:
    """Regions of two stores as both ViLBERT releases and InterBERT join them (vcr_dataset.py:364).

    Args:
        detected, annotated: (R, D) features and (R, 4) boxes of each store.
        max_regions: the whole image counted; 0 = all. Detected regions are cut from the end, then annotated ones.
    Returns:
        The whole image's feature is the mean of both stores' means, each with its number of regions, plus one for the
        whole image itself, as weight; of all regions, those that are cut too.
    """
    means, weights = [], []
    for features, _ in (detected, annotated):
        weights.append(len(features) + 1)
        means.append(features.sum(axis=0, dtype=np.float64) / max(len(features), 1))
    whole = sum(mean * weight for mean, weight in zip(means, weights, strict=True)) / sum(weights)
    room = max_regions - 1 if max_regions else sum(len(features) for features, _ in (detected, annotated))
    kept = min(len(annotated[0]), room)
    first = min(len(detected[0]), room - kept)
    return JoinedRegions(
        np.concatenate([detected[0][:first], annotated[0][:kept]]).astype(np.float32),
        np.concatenate([detected[1][:first], annotated[1][:kept]]).astype(np.float32),
        first,
        np.asarray(whole, np.float32),
    )


def shown_boxes(max_regions: int) -> Callable[[TaskGroup, int, RegionRecord], np.ndarray]:
    """Of a store of annotated boxes, numbers of those that are shown, in their order.

    Args:
        max_regions: the whole image counted; 0 = all. Boxes are cut from the end.
    """

    def regions(group: TaskGroup, image: int, record: RegionRecord) -> np.ndarray:
        _check_boxes(group, record)
        shown = [number for number in group.facts["shown"] if number < record.num_regions]
        return np.array(shown[: max_regions - 1] if max_regions else shown, np.int64)

    return regions


def joined_image(max_regions: int) -> Callable[[TaskGroup, int, RegionRecord, RegionRecord], JoinedImage]:
    """Detected regions, then all annotated boxes, see `join_regions`."""

    def joined(group: TaskGroup, image: int, detected: RegionRecord, annotated: RegionRecord) -> JoinedImage:
        _check_boxes(group, annotated)
        own = annotated.features.astype(np.float32), annotated.boxes
        found = join_regions((detected.features.astype(np.float32), detected.boxes), own, max_regions)
        first, kept = found.num_detected, len(found.boxes) - found.num_detected
        record = replace(
            detected,
            boxes=found.boxes,
            features=found.features,
            class_ids=np.concatenate([detected.class_ids[:first], annotated.class_ids[:kept]]),
            class_scores=np.concatenate([detected.class_scores[:first], annotated.class_scores[:kept]]),
            attribute_ids=None,
            attribute_scores=None,
            class_distribution=None,
            image_feature=None if detected.image_feature is None else detected.image_feature.astype(np.float32),
        )
        named = {number: first + number for number in range(kept)}
        return JoinedImage(record, named, annotated.num_regions, found.whole)

    return joined


def _check_boxes(group: TaskGroup, record: RegionRecord) -> None:
    """Raises ValueError for a record of other boxes than the question's."""
    if record.num_regions != len(group.facts["objects"]) and not group.swapped:
        raise ValueError(
            f"{group.id}: record {record.image_id!r} has {record.num_regions} regions, VCR names "
            f"{len(group.facts['objects'])} boxes; extract with --boxes, from VCR's own files"
        )


def object_classes(names: Sequence[str], where: str, known: Sequence[str] = OBJECT_CLASSES) -> np.ndarray:
    """(R,) int64, number of each name among the known classes, from 1 on.

    Args:
        known: names of classes; COCO's where nobody says others.
    Raises:
        ValueError: naming a class that is not known.
    """
    numbers = {name: number for number, name in enumerate(known, start=1)}
    unknown = next((name for name in names if name not in numbers), None)
    if unknown is not None:
        those = "of COCO as VCR writes them, such as 'diningtable'" if known is OBJECT_CLASSES else "of those given"
        raise ValueError(
            f"{where}: object {unknown!r} is no class {those}; vcr.object_names takes a file of other names, one a "
            "line (a toy world's is object_names.txt in the folder of its VCR)"
        )
    return np.array([numbers[name] for name in names], np.int64)


def object_targets(classes: np.ndarray, loss: str, masked: np.ndarray | None = None) -> np.ndarray:
    """(1 + R,) int64, the class that is to be told of the whole image and of each region; NOT_ASKED for none.

    Args:
        classes: (R,), from `object_classes`.
        loss: MASKED: of the regions that are hidden (arXiv:1908.08530v1, section 4.2). SHOWN: of all regions and of the
            whole image, whose class is the background (VL-BERT's release, vcr/modules/resnet_vlbert_for_vcr.py:394).
        masked: (R,) bool, which are hidden; for MASKED.
    Raises:
        ValueError: for MASKED without `masked`.
    """
    every = np.concatenate([[BACKGROUND], classes])
    if loss == SHOWN:
        return every
    asked = np.zeros(len(every), bool)
    if loss == MASKED:
        if masked is None or np.shape(masked) != np.shape(classes):
            raise ValueError(f"object loss of masked regions: expected which of {len(classes)} are hidden")
        asked[1:] = masked
    return np.where(asked, every, NOT_ASKED)
