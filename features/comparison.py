"""The comparison of two sources of records: which images, boxes, features, classes, distributions and attributes
agree, and how far.

Regions are matched one to one by IoU, best first, so the order of regions does not matter, and neither does the dtype
of features: float16 stores and float32 files are compared by value. Records are read one pair at a time; what is
kept are sums, the ids (as keys of the pairing), and the figures of the worst few images.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from features.cosines import Cosines, cosines_of
from features.distribution_error import distribution_error, num_foreground_classes
from features.id_pairing import paired_ids
from features.record import RegionRecord, TopKDistribution
from features.record_source import RecordSource
from features.region_matching import MATCH_IOU, match_regions
from features.space_difference import space_difference

SAME_BOX_PX = 0.1
# Rounding to float16 moves a value by at most 2^-11 = 4.9e-4 of itself: a store equals the file it was made from.
DEFAULT_MAX_ERROR = 1e-3
_EXAMPLES = 5
_ERRORS = {  # figure of an image -> what it is of
    "feature_error": "features",
    "score_error": "class scores",
    "attribute_score_error": "attribute scores",
    "distribution_error": "class distributions",
    "image_feature_error": "image features",
}


@dataclass(frozen=True)
class ImageComparison:
    """One image of both sources.

    Attributes:
        image_id, right_id: its ids; they differ only when ids were paired by number.
        left_hw, right_hw: (height, width), pixels.
        num_left, num_right, num_matched: regions, and pairs of them with IoU >= 0.5.
        num_same_box: pairs whose four coordinates agree within 0.1 px.
        cosine_mean, cosine_min: of the features over the pairs; None when nothing was compared.
        feature_error: largest |left - right| over the pairs / largest |value| in them; None as above.
        num_same_class, num_same_attribute: of the pairs; None when a side has none.
        score_error, attribute_score_error: largest difference of these scores; None when a side has none.
        distribution_error: of the class distributions (`distribution_error`); None when they were not compared.
        image_feature_error: of the feature of the whole image, as `feature_error`; None when they were not compared.
    """

    image_id: str
    right_id: str
    left_hw: tuple[int, int]
    right_hw: tuple[int, int]
    num_left: int
    num_right: int
    num_matched: int
    num_same_box: int
    cosine_mean: float | None
    cosine_min: float | None
    feature_error: float | None
    num_same_class: int | None
    num_same_attribute: int | None
    score_error: float | None
    attribute_score_error: float | None
    distribution_error: float | None
    image_feature_error: float | None

    @property
    def matched_share(self) -> float:
        """Pairs / regions of the side that has more; 1 when neither has any."""
        return self.num_matched / max(self.num_left, self.num_right, 1) if self.num_left or self.num_right else 1.0

    def badness(self) -> tuple[float, ...]:
        """Larger is worse: another image size, then unmatched regions, feature errors, moved boxes, other classes,
        other scores."""
        pairs = max(self.num_matched, 1)
        other_class = 0 if self.num_same_class is None else self.num_matched - self.num_same_class
        return (
            float(self.left_hw != self.right_hw),
            1 - self.matched_share,
            max(self.feature_error or 0.0, self.image_feature_error or 0.0),
            (self.num_matched - self.num_same_box) / pairs,
            other_class / pairs,
            max(self.score_error or 0.0, self.attribute_score_error or 0.0, self.distribution_error or 0.0),
        )


@dataclass(frozen=True)
class SourceFacts:
    """One side: its name, its images, what its features are, and the lines of it that could not be used."""

    name: str
    num_images: int
    feature_space: str
    feature_dim: int
    bad_lines: dict[str, int]
    first_bad_lines: tuple[str, ...]


@dataclass(frozen=True)
class StoreComparison:
    """Two sources compared.

    Attributes:
        left, right: the sides.
        num_common: images compared; `num_only_left`, `num_only_right`: images that one side lacks, with `examples`.
        num_unreadable: images in both of which one side has no usable record.
        num_other_size: images whose height or width differs.
        num_left_regions, num_right_regions, num_matched, num_same_box: sums of what `ImageComparison` counts.
        cosine_mean, cosine_p1, cosine_min: over all pairs; the 1st percentile is exact to 1 % of its distance from 1.
        feature_error: largest of the images' `feature_error`.
        feature_error_image: the image it is from; None when nothing differs.
        num_class_pairs, num_same_class: pairs whose classes were compared, and that agree; attributes alike.
        score_error_mean, score_error: mean and largest difference of class scores.
        attribute_score_error, distribution_error, image_feature_error: largest of the images'; None when none was
            compared.
        notes: what was not compared, and why.
        differences: why the sources are not equal within the tolerances, one sentence each; empty when they are.
        worst: the figures of the worst images, worst first.
    """

    left: SourceFacts
    right: SourceFacts
    num_common: int
    num_only_left: int
    num_only_right: int
    examples_only_left: tuple[str, ...]
    examples_only_right: tuple[str, ...]
    num_unreadable: int
    num_other_size: int
    num_left_regions: int
    num_right_regions: int
    num_matched: int
    num_same_box: int
    cosine_mean: float | None
    cosine_p1: float | None
    cosine_min: float | None
    feature_error: float | None
    feature_error_image: str | None
    num_class_pairs: int
    num_same_class: int
    num_attribute_pairs: int
    num_same_attribute: int
    score_error_mean: float | None
    score_error: float | None
    attribute_score_error: float | None
    distribution_error: float | None
    image_feature_error: float | None
    max_error: float
    notes: tuple[str, ...]
    differences: tuple[str, ...]
    worst: tuple[ImageComparison, ...]

    @property
    def equal(self) -> bool:
        """Same images and sizes, every region matched within 0.1 px; features, scores and distributions within
        `max_error`, and the same classes and attributes, wherever both sides have them."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {"equal": self.equal, **asdict(self)}


def compare(
    left: RecordSource, right: RecordSource, *, id_rule: str = "exact", max_error: float = DEFAULT_MAX_ERROR,
    worst: int = 8,
) -> StoreComparison:  # fmt: skip
    """Compares all images that both have.

    Args:
        id_rule: "exact", or "number": ids are paired by the number at their end, so that "COCO_train2014_000000132417"
            meets "132417" of the original files.
        max_error: features, scores and probabilities may differ by this much (features: of the largest value of the
            image's pairs, or of both image features).
        worst: how many images `worst` lists.
    Raises:
        ValueError: on an unknown rule, two ids of one number, a damaged store, over 4,096 regions in an image.
    """
    if not (0 <= max_error <= 1) or worst < 0:
        raise ValueError(f"max_error {max_error} must be from 0 to 1, worst {worst} not negative")
    tally = _Tally(left, right, worst)
    only_left, only_right = _Missing(), _Missing()
    for left_id, right_id in paired_ids(left, right, id_rule):
        if right_id is None:
            assert left_id is not None
            only_left.add(left_id)
        elif left_id is None:
            only_right.add(right_id)
        else:
            tally.add(left_id, right_id)
    return tally.result(only_left, only_right, max_error=max_error, id_rule=id_rule)


class _Missing:
    """Counts ids that one side lacks, and keeps a few."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: tuple[str, ...] = ()

    def add(self, image_id: str) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples = (*self.examples, image_id)


class _Tally:
    """Sums over the images compared so far."""

    def __init__(self, left: RecordSource, right: RecordSource, worst: int) -> None:
        self._left, self._right = left, right
        self._num_worst = worst
        self._worst: list[tuple[tuple[float, ...], int, ImageComparison]] = []  # a heap, its mildest on top
        self._images = self._unreadable = self._other_size = 0
        self._regions = [0, 0]
        self._matched = self._same_box = 0
        self._class_pairs = self._same_class = self._attribute_pairs = self._same_attribute = 0
        self._score_sum = 0.0
        self._errors: dict[str, float] = {}  # largest of each figure in `_ERRORS` so far
        self._cases: Counter[str] = Counter()  # images by what is special about their optional fields
        self._cosines = Cosines()
        self._feature_error_image: str | None = None
        self._compares_features = left.feature_dim == right.feature_dim
        self._same_classes = _same_names(left.classes, right.classes)
        counts = (left.num_classes, right.num_classes)
        # Networks with other classes have other attributes too, unless both are named and the same.
        self._other_counts = None not in counts and counts[0] != counts[1]
        self._compares_classes = (
            left.has_classes and right.has_classes and self._same_classes and not self._other_counts
        )
        self._compares_attributes = _same_names(left.attributes, right.attributes) and not (
            self._other_counts and left.attributes is None
        )

    def add(self, left_id: str, right_id: str) -> None:
        left, right = self._left.get(left_id), self._right.get(right_id)
        if left is None or right is None:
            self._unreadable += 1
            return
        try:
            pairs = match_regions(left.boxes, right.boxes)
        except ValueError as error:
            raise ValueError(f"image {left_id!r}: {error}") from None
        image = self._compare(left, right, pairs)
        self._images += 1
        self._other_size += image.left_hw != image.right_hw
        self._regions[0] += image.num_left
        self._regions[1] += image.num_right
        self._matched += image.num_matched
        self._same_box += image.num_same_box
        if image.num_same_class is not None:
            self._class_pairs += image.num_matched
            self._same_class += image.num_same_class
        if image.num_same_attribute is not None:
            self._attribute_pairs += image.num_matched
            self._same_attribute += image.num_same_attribute
        if image.feature_error is not None and image.feature_error > self._errors.get("feature_error", 0.0):
            self._feature_error_image = image.image_id
        for name in _ERRORS:
            figure: float | None = getattr(image, name)
            if figure is not None:
                self._errors[name] = max(self._errors.get(name, 0.0), figure)
        if self._num_worst:
            # Of equally bad images the first ones stay: a later one counts as milder.
            entry = (image.badness(), -self._images, image)
            if len(self._worst) < self._num_worst:
                heapq.heappush(self._worst, entry)
            else:
                heapq.heappushpop(self._worst, entry)

    def _compare(self, left: RegionRecord, right: RegionRecord, pairs: np.ndarray) -> ImageComparison:
        rows, columns = pairs[:, 0], pairs[:, 1]
        moved = np.abs(left.boxes[rows].astype(np.float64) - right.boxes[columns]).max(axis=1, initial=0.0)
        cosine_mean = cosine_min = feature_error = score_error = None
        same_class = same_attribute = attribute_score_error = None
        if self._compares_features and len(pairs):
            # float64: the difference of two float32 values can be more than a float32 holds.
            first, second = left.features[rows].astype(np.float64), right.features[columns].astype(np.float64)
            cosines = cosines_of(first, second)
            self._cosines.add(cosines)
            cosine_mean, cosine_min = float(cosines.mean()), float(cosines.min())
            feature_error = _relative_error(first, second)
        if self._compares_classes and len(pairs):
            same_class = int((left.class_ids[rows] == right.class_ids[columns]).sum())
            difference = np.abs(left.class_scores[rows].astype(np.float64) - right.class_scores[columns])
            self._score_sum += float(difference.sum())
            score_error = float(difference.max())
        attributes = (left.attribute_ids, right.attribute_ids)
        if self._both_have("attributes", *attributes) and self._compares_attributes and len(pairs):
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

    def _both_have(self, what: str, left: object | None, right: object | None) -> bool:
        """Whether a field is there on both sides; where it is on one only, that is counted for the notes."""
        if (left is None) != (right is None):
            self._cases[f"{what} without {'left' if left is None else 'right'}"] += 1
        return left is not None and right is not None

    def _distribution_error(self, left: RegionRecord, right: RegionRecord, pairs: np.ndarray) -> float | None:
        first, second = left.class_distribution, right.class_distribution
        if not self._both_have("class distributions", first, second):
            return None
        assert first is not None and second is not None
        if not self._same_classes:
            self._cases["distributions of other vocabularies"] += 1
            return None
        if num_foreground_classes(first) != num_foreground_classes(second):
            self._cases["distributions of other widths"] += 1
            return None
        if isinstance(first, TopKDistribution) != isinstance(second, TopKDistribution):
            self._cases["full against top-k"] += 1
        elif isinstance(first, TopKDistribution) and isinstance(second, TopKDistribution):
            self._cases["other k"] += first.class_ids.shape[1] != second.class_ids.shape[1]
        return distribution_error(first, second, pairs) if len(pairs) else None

    def _image_feature_error(self, left: RegionRecord, right: RegionRecord) -> float | None:
        first, second = left.image_feature, right.image_feature
        if not self._both_have("image features", first, second):
            return None
        assert first is not None and second is not None
        if first.shape != second.shape:
            self._cases["image features of other widths"] += 1
            return None
        return _relative_error(first.astype(np.float64), second.astype(np.float64))

    def result(self, only_left: _Missing, only_right: _Missing, *, max_error: float, id_rule: str) -> StoreComparison:
        facts = []
        for source, alone in ((self._left, only_left), (self._right, only_right)):
            lines = tuple(f"{bad.location}: {bad.detail}" for bad in source.first_bad_lines)
            num_images = self._images + self._unreadable + alone.count
            facts.append(
                SourceFacts(
                    source.name,
                    num_images,
                    source.fingerprint.feature_space,
                    source.feature_dim,
                    dict(source.bad_lines),
                    lines,
                )
            )
        return StoreComparison(
            left=facts[0],
            right=facts[1],
            num_common=self._images,
            num_only_left=only_left.count,
            num_only_right=only_right.count,
            examples_only_left=only_left.examples,
            examples_only_right=only_right.examples,
            num_unreadable=self._unreadable,
            num_other_size=self._other_size,
            num_left_regions=self._regions[0],
            num_right_regions=self._regions[1],
            num_matched=self._matched,
            num_same_box=self._same_box,
            cosine_mean=self._cosines.mean,
            cosine_p1=self._cosines.first_percentile,
            cosine_min=self._cosines.smallest,
            feature_error=self._errors.get("feature_error"),
            feature_error_image=self._feature_error_image,
            num_class_pairs=self._class_pairs,
            num_same_class=self._same_class,
            num_attribute_pairs=self._attribute_pairs,
            num_same_attribute=self._same_attribute,
            score_error_mean=self._score_sum / self._class_pairs if self._class_pairs else None,
            score_error=self._errors.get("score_error"),
            attribute_score_error=self._errors.get("attribute_score_error"),
            distribution_error=self._errors.get("distribution_error"),
            image_feature_error=self._errors.get("image_feature_error"),
            max_error=max_error,
            notes=tuple(self._notes()),
            differences=tuple(self._differences(only_left, only_right, max_error, id_rule)),
            worst=tuple(image for _, _, image in sorted(self._worst, key=lambda entry: entry[:2], reverse=True)),
        )

    def _notes(self) -> Iterator[str]:
        left, right = self._left, self._right
        for side, source in (("left", left), ("right", right)):
            if not source.has_classes:
                yield f"classes and scores not compared: the {side} side has none"
        why = "the two vocabularies differ"
        if self._other_counts:
            why = f"{left.num_classes:,} classes on the left, {right.num_classes:,} on the right"
        if left.has_classes and right.has_classes and not self._compares_classes:
            yield f"classes and scores not compared: {why}"
        if not self._compares_attributes:
            yield f"attributes not compared: {why}"
        elif self._matched and not self._attribute_pairs:
            yield "attributes not compared: no image has them on both sides"
        partly = ("attributes",) if self._attribute_pairs else ()
        for what in (*partly, "class distributions", "image features"):
            for side in ("left", "right"):
                count = self._cases[f"{what} without {side}"]
                if count:
                    yield f"{what} not compared in {_images(count)}: the {side} side has none there"
        if self._cases["distributions of other vocabularies"]:
            yield "class distributions not compared: the two vocabularies differ"
        for case, what in (
            ("full against top-k", "are full on one side, top-k on the other"),
            ("other k", "are top-k of another k"),
        ):
            if self._cases[case]:
                yield (
                    f"class distributions of {_images(self._cases[case])} {what}: classes that one does not list are "
                    f"compared with the bounds it sets"
                )
        spaces = (left.fingerprint.feature_space, right.fingerprint.feature_space)
        if spaces[0] != spaces[1]:
            names = {part: (left.presets[part], right.presets[part]) for part in left.presets.keys() & right.presets}
            what = space_difference(left.fingerprint, right.fingerprint, names)
            yield f"the feature spaces differ{f' in {what}' if what else ''}: left {spaces[0]}, right {spaces[1]}"

    def _differences(self, only_left: _Missing, only_right: _Missing, max_error: float, id_rule: str) -> Iterator[str]:
        if not self._images and not self._unreadable:
            shown = ", ".join(repr(one.examples[0]) for one in (only_left, only_right) if one.examples)
            other = "; pairing ids by number may help (--ids number)" if id_rule == "exact" and shown else ""
            yield f"no image is on both sides (ids such as {shown or 'none'}){other}"
        for side, missing in (("left", only_left), ("right", only_right)):
            if missing.count:
                yield f"{_images(missing.count)} {'is' if missing.count == 1 else 'are'} only on the {side}"
        for source in (self._left, self._right):
            if source.bad_lines:
                yield f"{source.bad_lines.total():,} lines of {source.name} cannot be used"
        if self._unreadable:
            yield f"{_images(self._unreadable)} {_have(self._unreadable)} no usable record on one side"
        if self._other_size:
            yield f"{_images(self._other_size)} {_have(self._other_size)} another height or width"
        alone = [regions - self._matched for regions in self._regions]
        if any(alone):
            regions = f"{alone[0]:,} regions of the left and {alone[1]:,} of the right"
            yield f"{regions} have no partner of IoU >= {MATCH_IOU}"
        if self._same_box < self._matched:
            yield f"{self._matched - self._same_box:,} matched boxes differ by more than {SAME_BOX_PX} px"
        if not self._compares_features:
            yield f"features are {self._left.feature_dim} wide on the left, {self._right.feature_dim} on the right"
        for case, what in (
            ("distributions of other widths", "class distributions of another number of classes"),
            ("image features of other widths", "an image feature of another width"),
        ):
            if self._cases[case]:
                yield f"{_images(self._cases[case])} {_have(self._cases[case])} {what}"
        for name, what in _ERRORS.items():
            error = self._errors.get(name, 0.0)
            if error > max_error:
                yield f"{what} differ by up to {error:.2e}, more than {max_error:g}"
        for what, same, pairs in (
            ("classes", self._same_class, self._class_pairs),
            ("attributes", self._same_attribute, self._attribute_pairs),
        ):
            if same < pairs:
                yield f"{pairs - same:,} of {pairs:,} {what} differ"


def _images(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _same_names(left: Iterable[str] | None, right: Iterable[str] | None) -> bool:
    """Whether ids may be compared; a side without names is taken to use the other's."""
    return left is None or right is None or tuple(left) == tuple(right)


def _relative_error(first: np.ndarray, second: np.ndarray) -> float:
    """Largest |first - second| / largest |value| of float64 arrays with at least one value."""
    largest = max(float(np.abs(first).max()), float(np.abs(second).max()))
    return float(np.abs(first - second).max()) / largest if largest else 0.0
