"""What of two sources of records can be compared, and notes on what cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from roibeam.features.comparison.feature_spaces import space_difference
from roibeam.features.comparison.record_source import RecordSource
from roibeam.features.counted import counted


class ComparisonScope:
    """Which fields are compared, and what was met that is not.

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
        """What was not compared, and why; at the end, what differs in the feature spaces.

        Args:
            num_matched: pairs of regions.
            num_attribute_pairs: those of them whose attributes were compared.
        """
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
                    yield f"{what} not compared in {counted(count, 'image')}: the {side} side has none there"
        if self.cases["distributions of other vocabularies"]:
            yield "class distributions not compared: the two vocabularies differ"
        for case, what in (
            ("full against top-k", "are full on one side, top-k on the other"),
            ("other k", "are top-k of another k"),
        ):
            if self.cases[case]:
                images = counted(self.cases[case], "image")
                bounds = "classes that one does not list are compared with the bounds it sets"
                yield f"class distributions of {images} {what}: {bounds}"
        spaces = (left.fingerprint.feature_space, right.fingerprint.feature_space)
        if spaces[0] != spaces[1]:
            names = {part: (left.presets[part], right.presets[part]) for part in left.presets.keys() & right.presets}
            what = space_difference(left.fingerprint, right.fingerprint, names)
            same = left.fingerprint.meaning == right.fingerprint.meaning
            told = "; features mean the same: only the choice of boxes or the dtype differs" if same else ""
            yield f"the feature spaces differ{f' in {what}' if what else ''}: left {spaces[0]}, right {spaces[1]}{told}"


def _same_names(left: Iterable[str] | None, right: Iterable[str] | None) -> bool:
    """Whether ids may be compared; a side without names is taken to use the other's."""
    return left is None or right is None or tuple(left) == tuple(right)
