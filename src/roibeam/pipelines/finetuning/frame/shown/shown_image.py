"""An image of a group as it is shown, and what is hidden of it while a model learns something beside its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.finetuning.rows import PartPieces, TaskGroup
from roibeam.pipelines.finetuning.task import BesideTask


@dataclass(frozen=True, eq=False)
class ShownImage:
    """An image of a group.

    Attributes:
        record: of the image.
        regions: (R,) int64, numbers of the record's regions that are shown, in their order.
        named: number of a box, as words name it -> its place among these; a box that is not there is not shown.
        num_boxes: that words may name.
        boxes: (R, 4) float32, of these regions, where they are shown: those of a mirrored image are mirrored; before a
            photo is read they are those of the photo as it is.
        swapped: whether boxes that words name need not be there.
        whole: (D,) float32, feature of the whole image where it is of more than the record.
        hidden: (R,) bool, of `regions`, which the model must not see.
        classes: (R, C) float32, 1 at the class of each region that is asked for it; None where nothing is asked.
        asked: (R,) bool.
        mirrored: whether the image is shown mirrored.
        told: (R,) int64, the class of each region, as the model is told; None where it is told nothing.
    """

    record: RegionRecord
    regions: np.ndarray
    named: Mapping[int, int]
    num_boxes: int
    boxes: np.ndarray
    swapped: bool = False
    whole: np.ndarray | None = None
    hidden: np.ndarray | None = None
    classes: torch.Tensor | None = None
    asked: np.ndarray | None = None
    mirrored: bool = False
    told: np.ndarray | None = None


def joined_pieces(parts: Sequence[PartPieces]) -> PartPieces:
    """Parts one after the other; words keep apart."""
    words, before = [], 0
    for part in parts:
        words.append(np.where(part.words < 0, -1, part.words + before))
        before += int(part.words.max(initial=-1)) + 1
    return PartPieces(
        np.concatenate([part.ids for part in parts]),
        np.concatenate(words),
        np.concatenate([part.tags for part in parts]),
    )


def asked_beside(shown: ShownImage, group: TaskGroup, beside: BesideTask, generator: np.random.Generator) -> ShownImage:
    """The image with what is hidden of it, and the classes that are asked of its boxes."""
    if beside.classes is None or not beside.class_names:
        return shown
    classes = torch.zeros(len(shown.regions), len(beside.class_names))
    known = np.zeros(len(shown.regions), bool)
    for number, kind in enumerate(beside.classes(group)):
        if number in shown.named:
            classes[shown.named[number], int(kind)], known[shown.named[number]] = 1.0, True
    if not beside.hidden_regions:
        return replace(shown, classes=classes, asked=known)
    hidden = known & (generator.random(len(known)) < beside.hidden_regions)
    return replace(shown, classes=classes, asked=hidden, hidden=hidden)


def told_classes(shown: ShownImage, classes: np.ndarray) -> ShownImage:
    """The image with the class of each region; 0 for a region that is no box of the task.

    Args:
        classes: of the boxes, by the number that words name them by.
    """
    told = np.zeros(len(shown.regions), np.int64)
    for number, place in shown.named.items():
        if number < len(classes):
            told[place] = classes[number]
    return replace(shown, told=told)


def with_whole_region(shown: ShownImage, feature: torch.Tensor | None) -> ShownImage:
    """The image with the whole of it as its first region, which no word names and whose class is 0.

    In the record it stands last, so that numbers of regions stay what they are.

    Args:
        feature: (D,) of the whole image; None for the mean of the regions that are shown, zeros where there is none.
    """
    record, count = shown.record, shown.record.num_regions
    whole = np.array([[0, 0, record.width, record.height]], np.float32)
    if feature is None:
        own = record.features[shown.regions].astype(np.float32)
        mean = own.sum(axis=0) / max(len(own), 1)
    else:
        mean = feature.numpy()
    more = replace(
        record,
        boxes=np.concatenate([record.boxes, whole]),
        features=np.concatenate([record.features, mean[None].astype(record.features.dtype)]),
        class_ids=np.append(record.class_ids, np.uint16(0)),
        class_scores=np.append(record.class_scores, np.float32(0)),
        attribute_ids=None,
        attribute_scores=None,
        class_distribution=None,
    )
    return replace(
        shown,
        record=more,
        regions=np.concatenate([[count], shown.regions]),
        named={number: place + 1 for number, place in shown.named.items()},
        boxes=np.concatenate([whole, shown.boxes]),
    )


def flags_of(given: Sequence[np.ndarray | None], nothing: np.ndarray) -> np.ndarray:
    """(R,) bool of several images' regions."""
    known = [each for each in given if each is not None]
    return np.concatenate(known) if len(known) == len(given) else nothing
