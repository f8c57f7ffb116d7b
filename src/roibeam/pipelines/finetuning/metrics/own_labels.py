"""How right the labels of a table of one's own are: all rows, each label's rows, and the mean over labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from roibeam.features.printable import printable
from roibeam.pipelines.finetuning.metrics.drawn_rows import drawn_balanced
from roibeam.pipelines.finetuning.metrics.measure import Measure, Whole

ACCURACY, BALANCED = "accuracy", "balanced accuracy"
LISTED = 20  # labels; of more no figure of each is told


def own_label_measures(said: Sequence[str], right: Sequence[str], images: Sequence[str]) -> dict[str, Measure]:
    """The accuracy of all rows, the headline. Where several labels are right, also the mean of their own accuracies, in
    which a rare label counts as much as a common one; and, of up to `LISTED` labels, that of each label's rows.

    Args:
        said, right: (rows,) labels; images: (rows,) of the rows.
    """
    hits = [float(a == b) for a, b in zip(said, right, strict=True)]
    measures: dict[str, Measure] = {
        ACCURACY: Measure(ACCURACY, hits, images, guess=lambda: max(Counter(right).values()) / len(right))
    }
    rows_of: dict[str, list[int]] = {}
    for row, label in enumerate(right):
        rows_of.setdefault(label, []).append(row)
    if len(rows_of) < 2:
        return measures
    own = {
        label: Measure(f"label {printable(label, 200)}", [hits[row] for row in rows], [images[row] for row in rows])
        for label, rows in sorted(rows_of.items())
    }
    measures[BALANCED] = Whole(
        BALANCED,
        hits,
        images,
        sum(each.mean for each in own.values()) / len(own),
        guess=lambda: 1 / len(own),  # one label of all is always right
        drawn=drawn_balanced(hits, right),
    )
    if len(own) <= LISTED:
        measures |= {each.name: each for each in own.values()}
    return measures
