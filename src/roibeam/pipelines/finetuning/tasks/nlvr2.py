"""NLVR2: whether a statement is true of two images, from its official files.

One group for each statement, with one row of both images; a system puts them into one row of its own, or each beside
the statement in a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roibeam.pipelines.data.compatibility import check_choices, check_least
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.finetuning.metrics.measure import Measure, check_row_ids
from roibeam.pipelines.finetuning.metrics.nlvr2 import JudgedStatement, nlvr2_measures, write_nlvr2_predictions
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup, text_row
from roibeam.pipelines.finetuning.scored_tasks import find_file
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, QuestionRows, TaskSplit, labelled_answers

SPLITS = ("train", "dev", "test1", "test2")
LABELS = ("False", "True")  # by their numbers
IMAGE_NAMES = ("no-extension", "with-extension")
FILE_ORDER, BEST = "file", "best"
ORDERS = (FILE_ORDER, BEST)
LOSSES = ("class", "class_bce")


@dataclass(frozen=True)
class Nlvr2Options:
    """
    Attributes:
        max_regions: of each image; 0 = all that are stored. VisualBERT's release takes 144 of the 150 in its files.
        region_order: which of them: those that stand first in the "file" (the release), or the "best", by their scores.
        image_names: whether images are called by the names of their files "with-extension", as in the release's
            feature files, or with "no-extension", as extraction calls them.
        loss: cross-entropy of the two labels ("class": VisualBERT), or binary cross-entropy of each of them by itself
            ("class_bce": vilbert-multi-task).
    """

    max_regions: int = 0
    region_order: str = FILE_ORDER
    image_names: str = "no-extension"
    loss: str = "class"

    def __post_init__(self) -> None:
        check_choices(self, region_order=ORDERS, image_names=IMAGE_NAMES, loss=LOSSES)
        check_least(self, max_regions=0)


def open_nlvr2(folder: Path, options: Nlvr2Options, _labels: Sequence[str] | None) -> DownstreamTask:
    """NLVR2 with its official files in `folder`, found by their names."""
    return DownstreamTask(
        name="nlvr2",
        form=LABEL,
        loss=options.loss,
        read=lambda split: TaskSplit(nlvr2_groups(str(find_file(folder, f"{split}.json")), options)),
        train="train",
        validation="dev",
        judge=nlvr2_scores,
        answers=judged_lines,
        write=write_nlvr2_predictions,
        labels=LABELS,
        num_images=2,
        splits=SPLITS,
        regions=lambda _group, _image, record: input_regions(record.class_scores, options),
        directly=QuestionRows(lambda texts: text_row(*texts, images=(0, 1)), predicted_labels),
    )


def predicted_labels(predictions: Iterable[Prediction]) -> list[str]:
    """One of `LABELS` for each statement; the first of them where both score alike."""
    return [LABELS[int(each.scores.argmax())] for each in predictions]


# A line of the result file for each statement: its identifier, and whether it is judged true.
judged_lines = labelled_answers(predicted_labels, lambda group, label: (group.id, label == LABELS[1]))


def nlvr2_groups(path: str, options: Nlvr2Options) -> list[TaskGroup]:
    """The statements of a file in its order. A target is 1 or 0, or None without a label. Raises ValueError for a line
    that is not in NLVR2's format, an identifier that comes twice, or no statement."""
    bare = options.image_names == "no-extension"
    groups = [
        TaskGroup(
            id=each.identifier,
            images=tuple(name.removesuffix(".png") if bare else name for name in each.images),
            rows=(text_row(each.sentence, images=(0, 1)),),
            target=None if each.is_true is None else int(each.is_true),
        )
        for each in read_nlvr2(path)
    ]
    if not groups:
        raise ValueError(f"{path!r}: no statement in it")
    check_row_ids(repr(path), [group.id for group in groups], unit="statement")
    return groups


def input_regions(class_scores: np.ndarray, options: Nlvr2Options) -> np.ndarray:
    """(n,) int64, the input regions of an image, in the order of the file.

    Args:
        class_scores: (R,) of the regions; of equal ones the first is better.
    """
    count = len(class_scores)
    if not options.max_regions or count <= options.max_regions:
        return np.arange(count)
    if options.region_order == FILE_ORDER:
        return np.arange(options.max_regions)
    return np.sort(np.argsort(-class_scores, kind="stable")[: options.max_regions])


def nlvr2_scores(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> dict[str, Measure]:
    """ "accuracy" and "consistency". Raises ValueError for a statement whose label is not known."""
    unknown = [group.id for group in groups if group.target is None]
    if unknown:
        raise ValueError(f"{len(unknown)} statements without a label (first: {unknown[0]}); they cannot be scored")
    return nlvr2_measures(
        JudgedStatement(identifier, is_true == bool(group.target), bool(group.target))
        for group, (identifier, is_true) in zip(groups, judged_lines(groups, predictions), strict=True)
    )
