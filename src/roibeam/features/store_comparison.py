"""Comparison of two sources of records: how far images, boxes, features, classes, distributions and attributes agree.

Regions are matched one to one by IoU, best first, so the order of regions does not matter, and neither does the dtype
of features: float16 stores and float32 files are compared by value. Class distributions may be full or only the most
probable classes. Records are read one pair at a time; sums, the ids (as keys of the pairing) and the figures of the
worst few images are kept.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import numpy as np

from roibeam.features.comparison_result import ERRORS, SAME_BOX_PX, ImageComparison, SourceFacts, StoreComparison
from roibeam.features.record.fingerprint import space_difference
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.record_pairing import MATCH_IOU, RecordSource, match_regions, paired_ids
from roibeam.features.store import FeatureStore
from roibeam.messages import plural


class Cosines:
    """Mean, smallest and 1st percentile of any number of cosines, from 2,000 counts."""

    def __init__(self) -> None:
        # Bins of 1 - cosine, evenly spaced in its logarithm from 1e-9 to 2: each is 1.1 % wide.
        self._edges = np.geomspace(1e-9, 2.0, 2000)
        self._counts = np.zeros(len(self._edges) + 1, np.int64)
        self._sum, self._count = 0.0, 0
        self.smallest: float | None = None

    def add(self, cosines: np.ndarray) -> None:
        self._counts += np.bincount(np.searchsorted(self._edges, 1 - cosines), minlength=len(self._counts))
        self._sum += float(cosines.sum())
        self._count += len(cosines)
        smallest = float(cosines.min())
        self.smallest = smallest if self.smallest is None else min(self.smallest, smallest)

    @property
    def mean(self) -> float | None:
        return self._sum / self._count if self._count else None

    @property
    def first_percentile(self) -> float | None:
        """A hundredth of the pairs (rounded down) have a smaller cosine."""
        if self.smallest is None:
            return None
        above = np.cumsum(self._counts[::-1])[::-1]  # pairs in this bin or in one of smaller cosines
        bin_ = int(np.nonzero(above > self._count // 100)[0][-1])
        return max(float(1 - self._edges[min(bin_, len(self._edges) - 1)]), self.smallest)


def cosines_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(P,) float64 of float64 rows; 1 for two zero rows, 0 for a zero row and another."""
    dots = np.einsum("pd,pd->p", first, second)
    norms: np.ndarray = np.sqrt(np.einsum("pd,pd->p", first, first) * np.einsum("pd,pd->p", second, second))
    both_zero = ~first.any(axis=1) & ~second.any(axis=1)
    cosines = np.array(both_zero, np.float64)
    some = norms > 0
    cosines[some] = np.clip(dots[some] / norms[some], -1.0, 1.0)
    return cosines


Distribution = np.ndarray | TopKDistribution
_VALUES_AT_ONCE = 2**20


def num_foreground_classes(distribution: Distribution) -> int:
    if isinstance(distribution, TopKDistribution):
        return distribution.num_classes
    return int(distribution.shape[1]) - 1


def distribution_error(left: Distribution, right: Distribution, pairs: np.ndarray) -> float:
    """The largest difference of a probability that the two certainly have.

    A class that a top-k distribution does not list has a probability from 0 to the smallest of the listed and of the
    rest; against that only what lies outside counts, so equal distributions with other k, or one full, have error 0.
    The rests are compared where both list the same classes.

    Args:
        left, right: as in `RegionRecord.class_distribution`, with equally many foreground classes.
        pairs: (P, 2) int64, rows on the left and right; P >= 1.
    Returns:
        0..1, or more for values that are no probabilities.
    """
    if isinstance(left, TopKDistribution) and isinstance(right, TopKDistribution):
        # Not all classes: their number comes from a file, and may be any.
        classes = np.union1d(left.class_ids[pairs[:, 0]], right.class_ids[pairs[:, 1]]).astype(np.int64)
    else:
        classes = np.arange(num_foreground_classes(left) + 1)
    at_once = max(1, _VALUES_AT_ONCE // len(classes))
    largest = 0.0
    for start in range(0, len(pairs), at_once):
        rows, columns = pairs[start : start + at_once].T
        left_low, left_high, left_listed = _bounds(left, rows, classes)
        right_low, right_high, right_listed = _bounds(right, columns, classes)
        apart = np.maximum(left_low - right_high, right_low - left_high)
        largest = max(largest, float(apart.max()))
        if isinstance(left, TopKDistribution) and isinstance(right, TopKDistribution):
            rests = np.abs(left.rest[rows].astype(np.float32) - right.rest[columns].astype(np.float32))
            largest = max(largest, float(rests[(left_listed == right_listed).all(axis=1)].max(initial=0.0)))
    return largest


def _bounds(distribution: Distribution, rows: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, ...]:
    """(R, len(classes)) each: float32 smallest and largest probability that the class may have; bool, is it listed."""
    if not isinstance(distribution, TopKDistribution):
        known = distribution[rows].astype(np.float32)
        return known, known, np.ones(known.shape, bool)
    probabilities = distribution.probabilities[rows].astype(np.float32)
    low = np.zeros((len(rows), len(classes)), np.float32)
    most = np.minimum(probabilities.min(axis=1), distribution.rest[rows].astype(np.float32))
    high = np.repeat(most[:, None], len(classes), axis=1)
    listed = np.zeros(low.shape, bool)
    at = (np.arange(len(rows))[:, None], np.searchsorted(classes, distribution.class_ids[rows]))
    low[at] = high[at] = probabilities
    listed[at] = True
    return low, high, listed


class ComparisonScope:
    """Fields that are compared, and counts of what was not compared.

    Attributes:
        features: whether features have one width.
        classes: whether both sides have classes, and ids that name the same ones.
        attributes: whether attribute ids may name the same ones.
        same_class_names: whether the class names are the same as far as they are known.
        cases: what is special about optional fields -> images with it.
    """

    def __init__(self, left: RecordSource, right: RecordSource) -> None:
        self._left, self._right = left, right
        counts = (left.num_classes, right.num_classes)
        # Networks with other classes have other attributes too, unless both are named and the same.
        self._other_counts = None not in counts and counts[0] != counts[1]
        self.cases: Counter[str] = Counter()
        self.features = left.feature_dim == right.feature_dim
        self.same_class_names = _same_names(left.classes, right.classes)
        self.classes = left.has_classes and right.has_classes and self.same_class_names and not self._other_counts
        self.attributes = _same_names(left.attributes, right.attributes) and not (
            self._other_counts and left.attributes is None
        )

    def both_have(self, what: str, left: object | None, right: object | None) -> bool:
        """Whether a field is there on both sides of an image; where it is on one only, that is counted."""
        if (left is None) != (right is None):
            self.cases[f"{what} without {'left' if left is None else 'right'}"] += 1
        return left is not None and right is not None

    def notes(self, *, num_matched: int, num_attribute_pairs: int) -> Iterator[str]:
        """Notes on what was not compared, and why; at the end, the differences of the feature spaces."""
        left, right = self._left, self._right
        for side, source in (("left", left), ("right", right)):
            if not source.has_classes:
                yield f"classes and scores not compared: the {side} side has none"
        why = "the two vocabularies differ"
        if self._other_counts:
            why = f"{left.num_classes:,} classes on the left, {right.num_classes:,} on the right"
        if left.has_classes and right.has_classes and not self.classes:
            yield f"classes and scores not compared: {why}"
        if not self.attributes:
            yield f"attributes not compared: {why}"
        elif num_matched and not num_attribute_pairs:
            yield "attributes not compared: no image has them on both sides"
        partly = ("attributes",) if num_attribute_pairs else ()
        for what in (*partly, "class distributions", "image features"):
            for side in ("left", "right"):
                count = self.cases[f"{what} without {side}"]
                if count:
                    yield f"{what} not compared in {plural(count, 'image')}: the {side} side has none there"
        if self.cases["distributions of other vocabularies"]:
            yield "class distributions not compared: the two vocabularies differ"
        for case, what in (
            ("full against top-k", "are full on one side, top-k on the other"),
            ("other k", "are top-k of another k"),
        ):
            if self.cases[case]:
                images = plural(self.cases[case], "image")
                bounds = "classes that one does not list are compared with the bounds it sets"
                yield f"class distributions of {images} {what}: {bounds}"
        spaces = (left.fingerprint.feature_space, right.fingerprint.feature_space)
        if spaces[0] != spaces[1]:
            names = {part: (left.presets[part], right.presets[part]) for part in left.presets.keys() & right.presets}
            what = space_difference(left.fingerprint, right.fingerprint, names)
            same = left.fingerprint.meaning == right.fingerprint.meaning
            note = "; features mean the same: only the choice of boxes or the dtype differs" if same else ""
            yield f"the feature spaces differ{f' in {what}' if what else ''}: left {spaces[0]}, right {spaces[1]}{note}"


def _same_names(left: Iterable[str] | None, right: Iterable[str] | None) -> bool:
    """Whether ids may be compared; a side without names is taken to use the other's."""
    return left is None or right is None or tuple(left) == tuple(right)


Comparable = RecordSource | FeatureStore | str | os.PathLike[str]
# Rounding to float16 moves a value by at most 2^-11 = 4.9e-4 of itself: a store equals the file it was made from.
DEFAULT_MAX_ERROR = 1e-3
_EXAMPLES = 5


def compare(
    left: Comparable, right: Comparable, *, id_rule: str = "exact", max_error: float = DEFAULT_MAX_ERROR,
    worst: int = 8, progress: Callable[[], None] = lambda: None,
) -> StoreComparison:  # fmt: skip
    """Compares all images that both have.

    Args:
        left, right: each a store, the folder of one, a feature file of another code base, or an opened `RecordSource`.
        id_rule: "exact", or "number": ids are paired by the number at their end, so that "COCO_train2014_000000132417"
            meets "132417" of the original files.
        max_error: features, scores and probabilities may differ by this much (features: of the largest value of the
            image's pairs, or of both image features).
        worst: how many images `worst` lists.
        progress: called after each image.
    Raises:
        FileNotFoundError: for a path where nothing is.
        ValueError: on an unknown rule, two ids of one number, a damaged store, over 4,096 regions in an image.
    """
    if not (0 <= max_error <= 1) or worst < 0:
        raise ValueError(f"max_error {max_error} must be from 0 to 1, worst {worst} not negative")
    with ExitStack() as opened:
        first, second = (_source(each, opened) for each in (left, right))
        first.use_names_of(second)
        second.use_names_of(first)
        tally = _Tally(first, second, worst)
        only_left, only_right = _Missing(), _Missing()
        for left_id, right_id in paired_ids(first, second, id_rule):
            if right_id is None:
                assert left_id is not None
                only_left.add(left_id)
            elif left_id is None:
                only_right.add(right_id)
            else:
                tally.add(left_id, right_id)
            progress()
        return tally.result(only_left, only_right, max_error=max_error, id_rule=id_rule)


def _source(given: Comparable, opened: ExitStack) -> RecordSource:
    if isinstance(given, RecordSource):
        return given
    if isinstance(given, FeatureStore):
        return RecordSource(given.path, store=given)
    return opened.enter_context(RecordSource(given))


class _Missing:
    """Counts ids that one side lacks, and keeps a few."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: tuple[str, ...] = ()

    def add(self, image_id: str) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples = (*self.examples, image_id)


# Fields of a `StoreComparison` that are sums over the images that both sides have.
_COUNTS = [each.name for each in fields(StoreComparison) if each.type == "int" and "_only_" not in each.name]


class _Tally:
    """Sums over the images compared so far."""

    def __init__(self, left: RecordSource, right: RecordSource, worst: int) -> None:
        self._left, self._right = left, right
        self._num_worst = worst
        self._worst: list[tuple[tuple[float, ...], int, ImageComparison]] = []  # a heap, its mildest on top
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._score_sum = 0.0
        self._errors: dict[str, float] = {}  # largest of each figure in `ERRORS` so far
        self._cosines = Cosines()
        self._feature_error_image: str | None = None
        self._scope = ComparisonScope(left, right)

    def add(self, left_id: str, right_id: str) -> None:
        left, right = self._left.get(left_id), self._right.get(right_id)
        if left is None or right is None:
            self._counts["num_unreadable"] += 1
            return
        try:
            pairs = match_regions(left.boxes, right.boxes)
        except ValueError as error:
            raise ValueError(f"image {left_id!r}: {error}") from None
        image = self._compare(left, right, pairs)
        counts = self._counts
        counts["num_common"] += 1
        counts["num_other_size"] += image.left_hw != image.right_hw
        counts["num_left_regions"] += image.num_left
        counts["num_right_regions"] += image.num_right
        counts["num_matched"] += image.num_matched
        counts["num_same_box"] += image.num_same_box
        for what, same in (("class", image.num_same_class), ("attribute", image.num_same_attribute)):
            if same is not None:
                counts[f"num_{what}_pairs"] += image.num_matched
                counts[f"num_same_{what}"] += same
        if image.feature_error is not None and image.feature_error > self._errors.get("feature_error", 0.0):
            self._feature_error_image = image.image_id
        for name in ERRORS:
            figure: float | None = getattr(image, name)
            if figure is not None:
                self._errors[name] = max(self._errors.get(name, 0.0), figure)
        if self._num_worst:
            # The first of equally bad images stay: a later one counts as milder.
            entry = (image.badness(), -counts["num_common"], image)
            if len(self._worst) < self._num_worst:
                heapq.heappush(self._worst, entry)
            else:
                heapq.heappushpop(self._worst, entry)

    def _compare(self, left: RegionRecord, right: RegionRecord, pairs: np.ndarray) -> ImageComparison:
        rows, columns = pairs[:, 0], pairs[:, 1]
        moved = np.abs(left.boxes[rows].astype(np.float64) - right.boxes[columns]).max(axis=1, initial=0.0)
        cosine_mean = cosine_min = feature_error = score_error = None
        same_class = same_attribute = attribute_score_error = None
        if self._scope.features and len(pairs):
            # float64: the difference of two float32 values can be more than a float32 holds.
            first, second = left.features[rows].astype(np.float64), right.features[columns].astype(np.float64)
            cosines = cosines_of(first, second)
            self._cosines.add(cosines)
            cosine_mean, cosine_min = float(cosines.mean()), float(cosines.min())
            feature_error = _relative_error(first, second)
        if self._scope.classes and len(pairs):
            same_class = int((left.class_ids[rows] == right.class_ids[columns]).sum())
            difference = np.abs(left.class_scores[rows].astype(np.float64) - right.class_scores[columns])
            self._score_sum += float(difference.sum())
            score_error = float(difference.max())
        attributes = (left.attribute_ids, right.attribute_ids)
        if self._scope.both_have("attributes", *attributes) and self._scope.attributes and len(pairs):
            assert left.attribute_ids is not None and right.attribute_ids is not None
            assert left.attribute_scores is not None and right.attribute_scores is not None  # they come with the ids
            same_attribute = int((left.attribute_ids[rows] == right.attribute_ids[columns]).sum())
            difference = np.abs(left.attribute_scores[rows].astype(np.float64) - right.attribute_scores[columns])
            attribute_score_error = float(difference.max())
        return ImageComparison(
            image_id=left.image_id,
            right_id=right.image_id,
            left_hw=(left.height, left.width),
            right_hw=(right.height, right.width),
            num_left=left.num_regions,
            num_right=right.num_regions,
            num_matched=len(pairs),
            num_same_box=int((moved <= SAME_BOX_PX).sum()),
            cosine_mean=cosine_mean,
            cosine_min=cosine_min,
            feature_error=feature_error,
            num_same_class=same_class,
            num_same_attribute=same_attribute,
            score_error=score_error,
            attribute_score_error=attribute_score_error,
            distribution_error=self._distribution_error(left, right, pairs),
            image_feature_error=self._image_feature_error(left, right),
        )

    def _distribution_error(self, left: RegionRecord, right: RegionRecord, pairs: np.ndarray) -> float | None:
        first, second = left.class_distribution, right.class_distribution
        if not self._scope.both_have("class distributions", first, second):
            return None
        assert first is not None and second is not None
        if not self._scope.same_class_names:
            self._scope.cases["distributions of other vocabularies"] += 1
            return None
        if num_foreground_classes(first) != num_foreground_classes(second):
            self._scope.cases["distributions of other widths"] += 1
            return None
        if isinstance(first, TopKDistribution) != isinstance(second, TopKDistribution):
            self._scope.cases["full against top-k"] += 1
        elif isinstance(first, TopKDistribution) and isinstance(second, TopKDistribution):
            self._scope.cases["other k"] += first.class_ids.shape[1] != second.class_ids.shape[1]
        return distribution_error(first, second, pairs) if len(pairs) else None

    def _image_feature_error(self, left: RegionRecord, right: RegionRecord) -> float | None:
        first, second = left.image_feature, right.image_feature
        if not self._scope.both_have("image features", first, second):
            return None
        assert first is not None and second is not None
        if first.shape != second.shape:
            self._scope.cases["image features of other widths"] += 1
            return None
        return _relative_error(first.astype(np.float64), second.astype(np.float64))

    def result(self, only_left: _Missing, only_right: _Missing, *, max_error: float, id_rule: str) -> StoreComparison:
        counts, facts = self._counts, []
        for source, alone in ((self._left, only_left), (self._right, only_right)):
            lines = tuple(f"{bad.location}: {bad.detail}" for bad in source.first_bad_entries)
            num_images = counts["num_common"] + counts["num_unreadable"] + alone.count
            space, bad_entries = source.fingerprint.feature_space, dict(source.bad_entries)
            facts.append(SourceFacts(source.name, num_images, space, source.feature_dim, bad_entries, lines))
        notes = self._scope.notes(num_matched=counts["num_matched"], num_attribute_pairs=counts["num_attribute_pairs"])
        figures: dict[str, Any] = {name: self._errors.get(name) for name in ERRORS} | counts
        found = StoreComparison(
            left=facts[0],
            right=facts[1],
            num_only_left=only_left.count,
            num_only_right=only_right.count,
            examples_only_left=only_left.examples,
            examples_only_right=only_right.examples,
            cosine_mean=self._cosines.mean,
            cosine_p1=self._cosines.first_percentile,
            cosine_min=self._cosines.smallest,
            feature_error_image=self._feature_error_image,
            score_error_mean=self._score_sum / counts["num_class_pairs"] if counts["num_class_pairs"] else None,
            max_error=max_error,
            notes=tuple(notes),
            differences=(),
            worst=tuple(image for _, _, image in sorted(self._worst, key=lambda entry: entry[:2], reverse=True)),
            **figures,
        )
        return replace(found, differences=tuple(_differences(found, self._scope, id_rule)))


def _differences(found: StoreComparison, scope: ComparisonScope, id_rule: str) -> Iterator[str]:
    """One sentence for each kind of difference; none when the sources are equal within `found.max_error`."""
    if not found.num_common and not found.num_unreadable:
        examples = ", ".join(repr(ids[0]) for ids in (found.examples_only_left, found.examples_only_right) if ids)
        other = "; pairing ids by number may help (--match-ids number)" if id_rule == "exact" and examples else ""
        yield f"no image is on both sides (ids such as {examples or 'none'}){other}"
    for side, count in (("left", found.num_only_left), ("right", found.num_only_right)):
        if count:
            yield f"{plural(count, 'image')} {'is' if count == 1 else 'are'} only on the {side}"
    for source in (found.left, found.right):
        if source.bad_entries:
            yield f"{plural(sum(source.bad_entries.values()), 'entry', 'entries')} of {source.name} cannot be used"
    for count, what in (
        (found.num_unreadable, "no usable record on one side"),
        (found.num_other_size, "another height or width"),
    ):
        if count:
            yield _images_have(count, what)
    alone = [count - found.num_matched for count in (found.num_left_regions, found.num_right_regions)]
    if any(alone):
        regions = f"{plural(alone[0], 'region')} of the left and {alone[1]:,} of the right"
        yield f"{regions} have no partner of IoU >= {MATCH_IOU}"
    if moved := found.num_matched - found.num_same_box:
        yield f"{plural(moved, 'matched box', 'matched boxes')} differ{_s(moved)} by more than {SAME_BOX_PX} px"
    if not scope.features:
        yield f"features are {found.left.feature_dim} wide on the left, {found.right.feature_dim} on the right"
    for case, what in (
        ("distributions of other widths", "class distributions of another number of classes"),
        ("image features of other widths", "an image feature of another width"),
    ):
        if scope.cases[case]:
            yield _images_have(scope.cases[case], what)
    for name, what in ERRORS.items():
        error: float | None = getattr(found, name)
        if error is not None and error > found.max_error:
            yield f"{what} differ by up to {error:.2e}, more than {found.max_error:g}"
    for what, same, pairs in (
        ("classes", found.num_same_class, found.num_class_pairs),
        ("attributes", found.num_same_attribute, found.num_attribute_pairs),
    ):
        if same < pairs:
            yield f"{pairs - same:,} of {pairs:,} {what} differ{_s(pairs - same)}"


def _images_have(count: int, what: str) -> str:
    return f"{plural(count, 'image')} {'has' if count == 1 else 'have'} {what}"


def _s(count: int) -> str:
    """Ending of the verb."""
    return "s" if count == 1 else ""


def _relative_error(first: np.ndarray, second: np.ndarray) -> float:
    """Largest |first - second| / largest |value| of float64 arrays with at least one value."""
    largest = max(float(np.abs(first).max()), float(np.abs(second).max()))
    return float(np.abs(first - second).max()) / largest if largest else 0.0
