"""Counts of an import and an export: what a feature file holds, and what is lost as a format has no place for it.

Counted while the entries pass: the facts that differ silently between code bases.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from roibeam.features.exchange.entry_record import FAR_EDGES
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.shard.writer import Repeat
from roibeam.messages import plural, printable

_LISTED_LETTERS = 5


class CheckReport:
    """Facts about the entries of one file, by the `details` of its `FeatureFile`."""

    def __init__(self, layout: str, details: dict[str, Any]) -> None:
        self._layout, self._details = layout, details
        self._in_shares = details.get("image_size") == ABSENT  # the image is 1 x 1 then, for want of another size
        self._records = self._regions = self._repeats = self._without_regions = 0
        self._fewest, self._most = 2**31, 0
        self._dims: Counter[str] = Counter()
        self._distributions: Counter[str] = Counter()
        self._letters: Counter[str] = Counter()
        self._first_letters: list[str] = []
        self._low, self._reach, self._far = np.inf, 0.0, 0.0
        self._no_area = self._over_edge = 0
        self._top_class, self._scores = -1, [np.inf, -np.inf]
        self._first_id = self._last_id = ""
        self._longest_id = self._numbered = self._with_attributes = 0

    def watch(
        self, outcomes: Iterable[RegionRecord | DeadLetter | Repeat]
    ) -> Iterator[RegionRecord | DeadLetter | Repeat]:
        for outcome in outcomes:
            if isinstance(outcome, RegionRecord):
                self._count(outcome)
            elif isinstance(outcome, DeadLetter):
                self._letters[outcome.reason] += 1
                if len(self._first_letters) < _LISTED_LETTERS:
                    self._first_letters.append(f"{outcome.location}: {outcome.detail}")
            else:
                self._repeats += 1
            yield outcome

    def to_json(self) -> dict[str, Any]:
        """Plain values; None where there was nothing to measure."""
        found = self._regions > 0
        return {
            "layout": self._layout,
            "records": self._records,
            "equal_repeats": self._repeats,
            "unusable": dict(self._letters),
            "first_unusable": list(self._first_letters),
            "ids": {
                "first": self._first_id or None,
                "last": self._last_id or None,
                "longest_bytes": self._longest_id,
                "ending_in_a_number": self._numbered,
            },
            "regions": {
                "all": self._regions,
                "fewest": self._fewest if self._records else None,
                "most": self._most if self._records else None,
                "records_without": self._without_regions,
            },
            "features": dict(self._dims),
            "boxes": {
                "form": self._details.get("boxes"),
                "lowest_px": float(self._low) if found else None,
                "farthest_px": self._far if found else None,
                "farthest_share": self._reach if found else None,
                "over_the_edge": self._over_edge,
                "without_area": self._no_area,
            },
            "classes": {
                "from": self._details.get("classes"),
                "largest_id": self._top_class if found else None,
                "scores": [float(value) for value in self._scores] if found else None,
                "distribution": dict(self._distributions),
                "background": self._details.get("background"),
            },
            "attributes": {"from": self._details.get("attributes"), "records_with": self._with_attributes},
            "doubts": self.doubts(),
        }

    def doubts(self) -> list[str]:
        """Findings that may be valid and mostly are mistakes."""
        found = []
        if self._regions and 0 < self._far <= 1.001 and not self._in_shares:
            found.append("every box lies in 0..1: they look normalised, and are taken for pixels here")
        if self._details.get("image_size") == FAR_EDGES:
            found.append("the file has no image sizes: a photo is taken to end at the far edges of its boxes")
        if len(self._dims) > 1:
            found.append(f"records differ in feature width or dtype: {', '.join(self._dims)}")
        return found

    def lines(self) -> list[str]:
        """The report as text, for a terminal."""
        facts = self.to_json()
        ids, regions, boxes, classes = (facts[name] for name in ("ids", "regions", "boxes", "classes"))
        rows = {"layout": self._layout, "records": f"{self._records:,}, {plural(self._repeats, 'equal repeat')}"}
        if self._records:
            numbered = f"{ids['ending_in_a_number']:,} end in a number"
            rows["ids"] = f"{printable(ids['first'], 60)} ... {printable(ids['last'], 60)}; {numbered}"
            spread = f"{regions['fewest']} to {regions['most']} per image"
            rows["regions"] = f"{regions['all']:,}, {spread}, {plural(regions['records_without'], 'image')} without"
            rows["features"] = ", ".join(f"{name} ({count:,})" for name, count in self._dims.items())
        if self._regions:
            reach = f"{boxes['lowest_px']:.1f} to {boxes['farthest_px']:.1f} px"
            rows["boxes"] = (
                f"{boxes['form']} in the file; {'without image sizes' if self._in_shares else reach}, at most "
                f"{100 * boxes['farthest_share']:.2f} % of a side; {boxes['over_the_edge']:,} over the edge by up to a "
                f"pixel, {boxes['without_area']:,} without area"
            )
            low, high = classes["scores"]
            ids_and_scores = f"ids to {classes['largest_id']}, scores {low:.4f} to {high:.4f}"
            kinds = ", ".join(f"{kind} ({count:,})" for kind, count in self._distributions.items())
            place = f", background {classes['background']} in the file" if self._distributions else ""
            rows["classes"] = f"{classes['from']}: {ids_and_scores}"
            rows["distribution"] = (kinds or "none") + place
            rows["attributes"] = f"{facts['attributes']['from']}: {plural(self._with_attributes, 'record')} with"
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self._letters.most_common())
        rows["unusable"] = reasons or "none"
        lines = [f"  {name:<13} {value}" for name, value in rows.items()]
        lines += [f"    {printable(letter, 300)}" for letter in self._first_letters]
        return lines + [f"  doubt         {doubt}" for doubt in facts["doubts"]]

    def _count(self, record: RegionRecord) -> None:
        self._records += 1
        self._regions += record.num_regions
        self._without_regions += record.num_regions == 0
        self._fewest = min(self._fewest, record.num_regions)
        self._most = max(self._most, record.num_regions)
        self._first_id = self._first_id or record.image_id
        self._last_id = record.image_id
        self._longest_id = max(self._longest_id, len(record.image_id.encode("utf-8")))
        self._numbered += record.image_id[-1:].isdigit()
        self._dims[f"{record.features.shape[1]} x {record.feature_dtype}"] += 1
        self._with_attributes += record.attribute_ids is not None
        if record.class_distribution is not None:
            top = record.class_distribution
            width = top.num_classes + 1 if isinstance(top, TopKDistribution) else top.shape[1]
            kind = f"top {top.class_ids.shape[1]} of {width}" if isinstance(top, TopKDistribution) else f"{width} wide"
            self._distributions[kind] += 1
        if record.num_regions:
            self._count_regions(record)

    def _count_regions(self, record: RegionRecord) -> None:
        boxes, sides = record.boxes, np.array([record.width, record.height], np.float32)
        self._low = min(self._low, float(boxes.min()))
        self._far = max(self._far, float(boxes.max()))
        self._reach = max(self._reach, float((boxes[:, 2:] / sides).max()))
        self._over_edge += int(((boxes.min(axis=1) < 0) | (boxes[:, 2:] > sides).any(axis=1)).sum())
        self._no_area += int((boxes[:, 2:] <= boxes[:, :2]).any(axis=1).sum())
        self._top_class = max(self._top_class, int(record.class_ids.max()))
        low, high = self._scores
        self._scores = [min(low, float(record.class_scores.min())), max(high, float(record.class_scores.max()))]


NO_REGIONS = "records without regions"


def count_losses(
    losses: Counter[str], record: RegionRecord, rows: np.ndarray | None, *, held: Iterable[str] = ()
) -> None:
    """Counts the fields of a record that the file will not give back: "classes", "attributes", and so on.

    Args:
        losses: field -> records, added to.
        rows: class probabilities that the file gets, background first, (K, C + 1); its reader takes the best
            foreground class of each. None when it gets none.
        held: names of fields that the file has a place for of their own.
    """
    if rows is None:
        lost = {"classes"} if record.class_ids.any() or record.class_scores.any() else set()
        lost |= {"class_distribution"} if record.class_distribution is not None else set()
    else:
        best = rows[:, 1:].argmax(axis=1)
        same = (best == record.class_ids).all() and (rows[np.arange(len(rows)), best + 1] == record.class_scores).all()
        lost = set() if same else {"classes"}
        if isinstance(record.class_distribution, TopKDistribution):
            lost.add("class_distribution beyond its top k")
    lost |= {"attributes"} if record.attribute_ids is not None else set()
    lost |= {"image_feature"} if record.image_feature is not None else set()
    losses.update(sorted(lost - set(held)))
