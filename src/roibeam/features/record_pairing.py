"""Pairing of records: sources that give records by image id, ids that mean the same image, regions that are the same.

A source is a store or a feature file. Regions of two records pair one to one by the overlap of their boxes.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np

from roibeam.features.exchange.entry_file import FeatureFile
from roibeam.features.exchange.formats import format_of, recognise
from roibeam.features.exchange.reading import Reading
from roibeam.features.reading.temporary_copy import IndexedIds
from roibeam.features.record.fingerprint import ABSENT, IMPORTED_PREFIX, Fingerprint, has_classes, num_classes_of
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, DeadLetter, StoreManifest
from roibeam.features.store import FeatureStore

_KEPT_BAD_ENTRIES = 20
ID_RULES = ("exact", "number")


class RecordSource:
    """A store's folder or a feature file of another code base, opened; use it as a context manager.

    Args:
        name: in place of the path, for a copy of what lies at a URL.
    Attributes:
        fingerprint: of the store; for a feature file its feature space is "imported:<format>" and nothing more is
            known.
        presets: names of the conventions and the selection of the store's run, where it records them.
        feature_dim: D.
        has_classes: False when class ids and scores only fill their place.
        classes, attributes: names in id order, None when unknown.
        num_classes: foreground classes of the network, None when unknown.
        bad_entries: reason -> entries of a feature file that `get` met and could not use; a store is whole or an error.
        first_bad_entries: the first 20 of them.
    Raises:
        FileNotFoundError, ValueError: when it is neither, or damaged.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, name: str | None = None, store: FeatureStore | None = None
    ) -> None:
        self.name = str(path) if name is None else name
        self.bad_entries: Counter[str] = Counter()
        self.first_bad_entries: list[DeadLetter] = []
        if store is None and not Path(path).exists():
            raise FileNotFoundError(f"{path}: no such store or file; give a store's folder or a feature file")
        self._opened: FeatureStore | FeatureFile
        # Ids of a store at a URL are read without copying its shards.
        self._indexed = None if store is None else IndexedIds(store)
        if store is not None or _is_store(Path(path)):
            store = store or FeatureStore(path)
            self._opened, self.feature_dim = store, store.feature_dim
            self.fingerprint, self.has_classes = store.fingerprint, has_classes(store.fingerprint)
            self.classes, self.attributes = store.manifest.classes, store.manifest.attributes
            config = store.manifest.config
            self.presets = {key: str(config[key]) for key in ("conventions", "selection") if config.get(key)}
            self.num_classes = num_classes_of(store.fingerprint)
        else:
            found = format_of(path)
            reading = Reading()
            file = found.open(Path(path), reading)
            if reading.doubts:
                file.__exit__(None, None, None)
                reading.check(self.name)
            self._opened, self.feature_dim = file, int(file.details["feature_dim"])
            self.fingerprint = file.fingerprint or Fingerprint(IMPORTED_PREFIX + found.name)
            self.has_classes = file.details["classes"] != ABSENT
            self.classes, self.attributes = file.names
            self.presets = {}
            self.num_classes = file.details.get("num_classes")
            for letter in file.letters:
                self._note(letter)

    def use_names_of(self, other: Self) -> None:
        """Makes the ids of a file that has names count those of the other side, where that has all of them."""
        if isinstance(self._opened, FeatureFile):
            for names in ((other.classes, None), (None, other.attributes)):
                with suppress(ValueError):
                    self._opened.use_names(*names)
            self.classes, self.attributes = self._opened.names

    @property
    def manifest(self) -> StoreManifest | None:
        """Manifest of a store; None for a feature file."""
        return self._opened.manifest if isinstance(self._opened, FeatureStore) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.__exit__(*error)

    def __contains__(self, image_id: object) -> bool:
        return image_id in (self._opened if self._indexed is None else self._indexed)

    def ids(self) -> Iterator[str]:
        return self._opened.ids() if self._indexed is None else iter(self._indexed)

    def get(self, image_id: str) -> RegionRecord | None:
        """The record; None when no entry of the image can be used (they are in `bad_entries` then)."""
        if isinstance(self._opened, FeatureStore):
            return self._opened.get(image_id, copy=False, check=True)
        record = None
        for outcome in self._opened.outcomes_of(image_id):
            if isinstance(outcome, RegionRecord):
                record = outcome
            elif isinstance(outcome, DeadLetter):
                self._note(outcome)
        return record

    def _note(self, letter: DeadLetter) -> None:
        self.bad_entries[letter.reason] += 1
        if len(self.first_bad_entries) < _KEPT_BAD_ENTRIES:
            self.first_bad_entries.append(letter)


def _is_store(path: Path) -> bool:
    """Whether it is a folder with a store manifest, or one that no format claims, which `FeatureStore` then refuses."""
    return path.is_dir() and ((path / STORE_MANIFEST_NAME).exists() or recognise(path) is None)


def paired_ids(left: RecordSource, right: RecordSource, rule: str) -> Iterator[tuple[str | None, str | None]]:
    """Every image once: (left id, right id), None on the side that lacks it.

    Args:
        rule: "exact": equal ids; "number": ids that end in the same number, so that "COCO_train2014_000000132417" meets
            the "132417" of the original files. An id without a number at its end meets its equal.
    Raises:
        ValueError: on an unknown rule, or two ids of one side that end in one number.
    """
    if rule == "exact":
        for image_id in left.ids():
            yield image_id, image_id if image_id in right else None
        yield from ((None, image_id) for image_id in right.ids() if image_id not in left)
    elif rule == "number":
        numbered = _by_number(right)
        for image_id in left.ids():
            yield image_id, numbered.get(_number(image_id))
        known = _by_number(left)
        yield from ((None, image_id) for number, image_id in numbered.items() if number not in known)
    else:
        raise ValueError(f"id rule {rule!r}: choose one of {', '.join(ID_RULES)}")


def _by_number(source: RecordSource) -> dict[int | str, str]:
    numbered: dict[int | str, str] = {}
    for image_id in source.ids():
        other = numbered.setdefault(_number(image_id), image_id)
        if other != image_id:
            raise ValueError(f"{source.name}: {other!r} and {image_id!r} end with one number; pair ids exactly instead")
    return numbered


def _number(image_id: str) -> int | str:
    """The number at the end of an id; the id itself where there is none."""
    found = re.search(r"[0-9]{1,18}$", image_id)
    return int(found.group()) if found else image_id


MATCH_IOU = 0.5
# One matrix of overlaps then takes 128 MB, and matching 1.1 GB if all boxes of both sides lie in one place; published
# records have 10 to 300 regions.
MAX_MATCHED_REGIONS = 4096
_CANDIDATES_AT_ONCE = 65536


def match_regions(left_boxes: np.ndarray, right_boxes: np.ndarray) -> np.ndarray:
    """Pairs of regions, one to one, of IoU >= 0.5, best IoU first; of equal IoU the pair of nearest rows.

    Args:
        left_boxes, right_boxes: (K, 4) and (L, 4) float, x1 y1 x2 y2; at most 4,096 each. Equal boxes have IoU 1 even
            when they have no area.
    Returns:
        (P, 2) int64: row on the left, row on the right; in the order they were chosen.
    Raises:
        ValueError: for more boxes.
    """
    for boxes in (left_boxes, right_boxes):
        if len(boxes) > MAX_MATCHED_REGIONS:
            raise ValueError(f"{len(boxes):,} regions in one image; at most {MAX_MATCHED_REGIONS:,} can be matched")
    # Equal boxes have the largest overlap there is, so they are chosen first anyway; here they need no matrix: n equal
    # ones would be n * n candidates.
    pairs = _equal_pairs(left_boxes, right_boxes)
    free_left, free_right = np.ones(len(left_boxes), bool), np.ones(len(right_boxes), bool)
    free_left[[row for row, _ in pairs]] = free_right[[column for _, column in pairs]] = False
    left_rows, right_rows = np.nonzero(free_left)[0], np.nonzero(free_right)[0]
    overlap = _iou(left_boxes[left_rows].astype(np.float64), right_boxes[right_rows].astype(np.float64))
    nearby = np.nonzero(overlap >= MATCH_IOU)
    rows, columns = left_rows[nearby[0]], right_rows[nearby[1]]
    # Last key first: by overlap, then by distance of the rows; what is left stays in row order (the sort is stable).
    order = np.lexsort((np.abs(rows - columns), -overlap[nearby]))
    for start in range(0, len(order), _CANDIDATES_AT_ONCE):
        part = order[start : start + _CANDIDATES_AT_ONCE]
        part = part[free_left[rows[part]] & free_right[columns[part]]]
        for row, column in zip(rows[part].tolist(), columns[part].tolist(), strict=True):
            if free_left[row] and free_right[column]:
                free_left[row] = free_right[column] = False
                pairs.append((row, column))
    return np.array(pairs, np.int64).reshape(-1, 2)


def _equal_pairs(left_boxes: np.ndarray, right_boxes: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of equal boxes, one to one: nearest rows first, of equal distance the upper row on the left first."""
    number_of: dict[tuple[float, ...], int] = {}
    left, right = (
        np.array([number_of.setdefault(tuple(box), len(number_of)) for box in boxes.tolist()], np.int64)
        for boxes in (left_boxes, right_boxes)
    )
    counts = [np.bincount(numbers, minlength=len(number_of)) for numbers in (left, right)]
    remaining = int(np.minimum(*counts).sum())
    free_left, free_right = np.ones(len(left), bool), np.ones(len(right), bool)
    pairs: list[tuple[int, int]] = []
    distance = 0
    while remaining:
        candidates = []
        for step in {distance, -distance}:  # column - row
            first, last = max(0, -step), min(len(left), len(right) - step)
            if first < last:
                here, there = slice(first, last), slice(first + step, last + step)
                fits = (left[here] == right[there]) & free_left[here] & free_right[there]
                candidates += [(row, row + step) for row in (np.nonzero(fits)[0] + first).tolist()]
        for row, column in sorted(candidates):
            if free_left[row] and free_right[column]:
                free_left[row] = free_right[column] = False
                pairs.append((row, column))
                remaining -= 1
        distance += 1
    return pairs


def _iou(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(K, L) float64; 0 where both boxes have no area."""
    across = np.minimum(left[:, None, 2], right[None, :, 2]) - np.maximum(left[:, None, 0], right[None, :, 0])
    inter = np.minimum(left[:, None, 3], right[None, :, 3]) - np.maximum(left[:, None, 1], right[None, :, 1])
    inter = np.maximum(inter, 0) * np.maximum(across, 0)
    areas = [(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) for boxes in (left, right)]
    union = areas[0][:, None] + areas[1][None, :] - inter
    return np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)
