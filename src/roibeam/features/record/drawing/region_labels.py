"""What regions are called on a picture: class, attribute and score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from roibeam.features.printable import printable
from roibeam.name_list import check_list

# `attr_thresh` of the bottom-up-attention demo notebook and of what was made from it: weaker attributes are not shown.
ATTRIBUTE_SCORE = 0.1
MAX_NAME_CHARACTERS = 34


class NamedRegions(Protocol):
    """What a picture needs of a `RegionRecord`."""

    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def boxes(self) -> np.ndarray: ...
    @property
    def class_ids(self) -> np.ndarray: ...
    @property
    def class_scores(self) -> np.ndarray: ...
    @property
    def attribute_ids(self) -> np.ndarray | None: ...
    @property
    def attribute_scores(self) -> np.ndarray | None: ...


def name_of(number: int, names: Sequence[str] | None, kind: str) -> str:
    """ "cat", or "class 7" where there is no such name; `kind` is "class" or "attribute"."""
    return names[number] if names is not None and number < len(names) else f"{kind} {number}"


def region_name(
    regions: NamedRegions, region: int, classes: Sequence[str] | None, attributes: Sequence[str] | None
) -> str:
    """ "red car" for one region; its attribute only where it has a name and the detector is fairly sure of it."""
    name = name_of(int(regions.class_ids[region]), classes, "class")
    ids, scores = regions.attribute_ids, regions.attribute_scores
    if attributes and ids is not None and scores is not None and scores[region] >= ATTRIBUTE_SCORE:
        name = f"{name_of(int(ids[region]), attributes, 'attribute')} {name}"
    return name


def label_of(name: str, score: float) -> str:
    """ "red car 0.93"; of a long name the middle is left out."""
    return f"{printable(name, MAX_NAME_CHARACTERS)} {score:.2f}"


def region_labels(
    regions: NamedRegions, classes: Sequence[str] | None = None, attributes: Sequence[str] | None = None
) -> list[str]:
    """ "red car 0.93" for each region."""
    check_list(classes, "classes")
    check_list(attributes, "attributes")
    return [
        label_of(region_name(regions, region, classes, attributes), float(regions.class_scores[region]))
        for region in range(len(regions.class_ids))
    ]
