"""Result of a comparison of two sources of records: the figures of one image, and of all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from roibeam.features.record.notebook import notebook_html
from roibeam.messages import plural, short_repr

SAME_BOX_PX = 0.1
ERRORS = {  # figure of an image, and of all -> what it is of
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

    __repr__ = short_repr

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
    bad_entries: dict[str, int]
    first_bad_entries: tuple[str, ...]

    __repr__ = short_repr


@dataclass(frozen=True)
class StoreComparison:
    """Two sources compared.

    Attributes:
        num_common: images compared; `num_only_left`, `num_only_right`: images that one side lacks, with examples.
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

    def rows(self) -> list[tuple[str, str]]:
        """(what, figure) in reading order."""
        rows = [
            ("left", _side(self.left)),
            ("right", _side(self.right)),
            (
                "images on both sides",
                f"{self.num_common:,} ({self.num_only_left:,} only left, {self.num_only_right:,} only right)",
            ),
            ("other image size", f"{self.num_other_size:,}"),
            ("regions", f"{self.num_left_regions:,} left, {self.num_right_regions:,} right"),
            (
                "matched, IoU >= 0.5",
                f"{self.num_matched:,} ({_share(self.num_matched, self.num_left_regions)} of left, "
                f"{_share(self.num_matched, self.num_right_regions)} of right)",
            ),
            ("  within 0.1 px", f"{self.num_same_box:,} ({_share(self.num_same_box, self.num_matched)} of matched)"),
        ]
        if self.cosine_mean is not None and self.cosine_p1 is not None and self.cosine_min is not None:
            cosines = (
                f"mean {self.cosine_mean:.6f}, 1st percentile {self.cosine_p1:.6f}, smallest {self.cosine_min:.6f}"
            )
            rows.append(("feature cosine", cosines))
        if self.feature_error is not None:
            where = f", in {self.feature_error_image}" if self.feature_error_image is not None else ""
            rows.append(("feature error", f"{self.feature_error:.2e} of the largest value{where}"))
        for what, same, pairs in (
            ("same class", self.num_same_class, self.num_class_pairs),
            ("same attribute", self.num_same_attribute, self.num_attribute_pairs),
        ):
            if pairs:
                rows.append((what, f"{same:,} of {pairs:,} ({_share(same, pairs)})"))
        if self.score_error is not None and self.score_error_mean is not None:
            rows.append(("class score error", f"mean {self.score_error_mean:.2e}, largest {self.score_error:.2e}"))
        for what, error in (
            ("attribute score error", self.attribute_score_error),
            ("distribution error", self.distribution_error),
            ("image feature error", self.image_feature_error),
        ):
            if error is not None:
                rows.append((what, f"{error:.2e}{' of the largest value' if what == 'image feature error' else ''}"))
        return rows

    def __repr__(self) -> str:
        verdict = "equal" if self.equal else plural(len(self.differences), "difference")
        pairs = f"{self.num_matched:,} pairs of {self.num_left_regions:,} and {self.num_right_regions:,} regions"
        images = plural(self.num_common, "common image")
        return f"StoreComparison({self.left.name!r} and {self.right.name!r}: {verdict}, {images}, {pairs})"

    def _repr_html_(self) -> str:
        verdict = f"equal within {self.max_error:g}" if self.equal else "They differ: " + "; ".join(self.differences)
        return notebook_html("Comparison of two stores", facts=[("verdict", verdict), *self.rows()])


def _side(side: SourceFacts) -> str:
    return f"{side.name}: {plural(side.num_images, 'image')}, {side.feature_space[:24]}"


def _share(part: int, whole: int) -> str:
    if part < whole and part / whole > 0.9995:
        return "< 100 %"  # one pair among millions is not all of them
    return f"{100 * part / whole:.1f} %" if whole else "-"
