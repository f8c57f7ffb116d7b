"""Interface of a downstream task: its groups, labels, metric and result file. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.rows import (
    AUTO,
    CHOICE,
    LABEL,
    PHRASE,
    REGION,
    PartPieces,
    PieceCoder,
    TaskGroup,
    TaskRow,
)

NUMBER_LOSS = "number"  # regression, a LABEL task without labels: the single score is the predicted value


class Prediction(NamedTuple):
    """Scores of one group.

    Attributes:
        scores: (n,) float32: of each label, of each row, or of each region of the input; (P, n) of each region for each
            phrase.
        boxes: (n, 4) float32, x1 y1 x2 y2 in pixels of those regions; None where no region is chosen.
    """

    scores: np.ndarray
    boxes: np.ndarray | None = None


Judge = Callable[[Sequence[TaskGroup], Sequence[Prediction]], Mapping[str, Measure]]


class Kept(NamedTuple):
    """Reduced predictions for evaluations of a task with many scores: with VQA's 3,129 labels those of the validation
    split would take gigabytes.

    Attributes:
        of: predictions, none of which it holds on to -> the part of each that is judged; it can be pickled.
        judge: groups and what was kept of each -> the result of `DownstreamTask.judge` on the whole predictions.
    """

    of: Callable[[Iterable[Prediction]], Iterable[Any]]
    judge: Callable[[Sequence[TaskGroup], Sequence[Any]], Mapping[str, Measure]]


# The prediction of a group that is not open.
NO_PREDICTION = Prediction(np.zeros(0, np.float32), np.zeros((0, 4), np.float32))
_FEW_GROUPS = 200


@dataclass(frozen=True)
class TaskSplit:
    """
    Attributes:
        groups: in the order of their file.
        notes: what was left out, for people.
    """

    groups: Sequence[TaskGroup]
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def has_target(group: TaskGroup) -> bool:
    return group.target is not None


class JoinedImage(NamedTuple):
    """An image with the regions of two stores, all of them inputs.

    Attributes:
        record: detected regions, then annotated ones.
        named: number of a box, as words name it -> its place among these regions.
        num_boxes: number of boxes that words may name.
        whole: (D,) float32, feature of the whole image, of all regions of both stores.
    """

    record: RegionRecord
    named: Mapping[int, int]
    num_boxes: int
    whole: np.ndarray


@dataclass(frozen=True)
class AuxiliaryTargets:
    """Auxiliary targets of a run, from the rows of its task.

    Attributes:
        class_names: of regions, the first one that of the whole image; () predicts no classes.
        classes: group -> (boxes,) int64, the class of each box, by the number that words name it by.
        hidden_regions: share of the boxes that are hidden and predicted; 0 predicts all of them, and hides none.
        region_weight, word_weight: of these losses beside the task's.
        hidden_words: share of words that are hidden and predicted; 0 for none.
    """

    class_names: tuple[str, ...] = ()
    classes: Callable[[TaskGroup], np.ndarray] | None = None
    hidden_regions: float = 0.0
    region_weight: float = 1.0
    hidden_words: float = 0.0
    word_weight: float = 1.0


class BoxClasses(NamedTuple):
    """Classes of a task's boxes, as inputs of a model.

    Attributes:
        num_classes: including class 0, of the whole image and of regions without a class.
        of: group -> (boxes,) int64, the class of each box, by the number that words name it by.
        names: of the classes from 1 on; () where they are unknown.
    """

    num_classes: int
    of: Callable[[TaskGroup], np.ndarray]
    names: tuple[str, ...] = ()


class QuestionRows(NamedTuple):
    """Rows and labels of a task of one label for texts and images at hand, without its files.

    Attributes:
        row: the texts of one row -> the row, with every image of its group.
        labels_of: predictions of rows -> the label of each, as the result file has it.
    """

    row: Callable[[Sequence[str]], TaskRow]
    labels_of: Callable[[Sequence[Prediction]], Sequence[str]]
    num_texts: int = 1


SPLITS = "splits"
DrawGroup = Callable[[TaskGroup, np.random.Generator], TaskGroup]


@dataclass(frozen=True)
class DownstreamTask:
    """A task with its folder of files opened.

    Attributes:
        form: one of `FORMS` in rows.py.
        loss: a name that `loss_named` of run/losses.py takes for this form.
        train, validation: splits that a run trains on, and is judged on; None for none.
        judge: groups and their predictions -> measures by name, the first of them the main one.
        kept: what the evaluations of a run keep in place of predictions; None for these.
        answers: groups and their predictions -> entries of the result file, one for each group.
        write: entries -> the result file.
        own_table: whether rows are of the user's own table: entries are texts by name, and have image and text too.
        labels: what the numbers of a LABEL task mean; kept with the model.
        label_weights: of the loss "class", the weight of a row of each label; () for 1 each.
        num_images: of a row; 0 for texts alone, which need no store.
        mirrored: a group -> the same beside its mirrored images; None for a task without a rule for mirrored texts.
        mirrors: whether every other group of training, by chance, is mirrored on stored features; from photos
            `PhotoRequest.flip` decides.
        outlines: path of a photo, its record, cells each way -> (K, cells, cells) float32, what each cell of each of
            the record's regions counts, from photos; None for regions that count whole.
        whole_image: of REGION, the image as a whole is the first candidate; every group has its box.
        whole_region: the image as a whole is the first of its regions, which no word names, for a model that has no
            element for it.
        grounding: one of `GROUNDINGS`: which words of a text are grounded in the region that they name.
        region_targets: of REGION, how targets follow from the right box: arguments of `referred_targets`.
        measured_in_input: of REGION, from photos: overlaps with the right box are measured in pixels of the network's
            input, where all boxes are resized and clipped to the photo; else in those of the photo.
        splits: their names, in the order of lists for people.
        regions: group, place of an image in it, its record -> (R,) int64, the input regions in their order; None leaves
            that to the layout.
        has_label: whether a group has a label, so that it can be judged.
        judged_rows: of CHOICE: which rows of a group are judged, and which of these is right; None for all of them,
            with the target's.
        right_words: the label of a group, for people; None where labels, choices or boxes give it.
        joined: group, place of an image in it, its record, and that of the annotated boxes -> the input image; None for
            a task that takes no second store.
        joins_training_alone: whether only the training split has boxes of the second store, so that others need none.
        gives_boxes: whether groups have all of their boxes, so that photos need no second store.
        num_boxes: group -> boxes of its image that the store of them must have, no more and no fewer; None where any
            number will do.
        pieces: group, tokenizer, and the piece that the system puts between parts of a context or None -> of each row
            its parts in pieces, the choice last, cut by the task's own rules; None leaves that to the layout.
        lengths: as `pieces` -> of each row its pieces before it is cut and after, with the same errors.
        max_pieces: text pieces of a row, special ones not counted, that `pieces` leaves; 0 for any number.
        turns: group -> its problem, of several that one model learns in turn; None for one problem.
        updates, loss_scales: of several problems, as of `AlternatingTask`.
        judged: a group of the validation split -> the same with the judged rows alone, as evaluations of a run take it;
            None for all rows.
        num_heads: of PHRASE, attention heads of the task's own, whose mean weights are the scores.
        problems: problems that a result file of this model answers; a second model may answer the rest. () for all.
        beside: auxiliary targets; None for none.
        input_classes: classes of regions, inputs beside their features; None for none.
        drawn_from: groups that are joined, the store, and the folder of the run -> a function that draws the rows of a
            group for an epoch; for the validation split, where the folder is None, once. None takes groups as they are.
        drawn: result of `drawn_from` for the training split; the run sets it.
        directly: predictions without the task's files; None for a task that needs them.
        reported_by: rule of `HeldOut` that reads its validation and test files; "" for that of the task's name;
            `SPLITS` for its splits as the task reads them itself.
    """

    name: str
    form: str
    loss: str
    read: Callable[[str], TaskSplit]
    train: str
    validation: str | None
    judge: Judge
    answers: Callable[[Sequence[TaskGroup], Sequence[Prediction]], Iterator[Any]]
    write: Callable[[Path, Sequence[Any]], None]
    labels: tuple[str, ...] = ()
    label_weights: tuple[float, ...] = ()
    num_images: int = 1
    whole_image: bool = False
    whole_region: bool = False
    grounding: str = AUTO
    mirrored: Callable[[TaskGroup], TaskGroup] | None = None
    mirrors: bool = False
    outlines: Callable[[str, RegionRecord, int], np.ndarray] | None = None
    region_targets: Mapping[str, Any] = field(default_factory=dict)
    measured_in_input: bool = False
    splits: tuple[str, ...] = ("train", "val", "test")
    regions: Callable[[TaskGroup, int, RegionRecord], np.ndarray] | None = None
    has_label: Callable[[TaskGroup], bool] = has_target
    judged_rows: Callable[[TaskGroup], tuple[slice, int | None]] | None = None
    right_words: Callable[[TaskGroup], str] | None = None
    joined: Callable[[TaskGroup, int, RegionRecord, RegionRecord], JoinedImage] | None = None
    joins_training_alone: bool = False
    gives_boxes: bool = False
    num_boxes: Callable[[TaskGroup], int] | None = None
    pieces: Callable[[TaskGroup, PieceCoder, int | None], list[list[PartPieces]]] | None = None
    lengths: Callable[[TaskGroup, PieceCoder, int | None], list[tuple[int, int]]] | None = None
    max_pieces: int = 0
    turns: Callable[[TaskGroup], str] | None = None
    updates: str = "step"
    loss_scales: Mapping[str, float] = field(default_factory=dict)
    judged: Callable[[TaskGroup], TaskGroup] | None = None
    num_heads: int = 1
    problems: tuple[str, ...] = ()
    beside: AuxiliaryTargets | None = None
    input_classes: BoxClasses | None = None
    drawn_from: Callable[[Sequence[TaskGroup], Any, Path | None], DrawGroup] | None = None
    drawn: DrawGroup | None = None
    directly: QuestionRows | None = None
    reported_by: str = ""
    kept: Kept | None = None
    own_table: bool = False

    def __post_init__(self) -> None:
        if self.form == LABEL and self.loss != NUMBER_LOSS and len(self.labels) < 2:
            raise ValueError(f"{self.name}: {len(self.labels)} labels; a model that chooses needs at least 2")
        assert self.form == CHOICE or self.pieces is None, "only rows of choices are cut by their task"
        if (self.pieces is None) != (self.lengths is None):
            raise ValueError(f"{self.name}: pieces and lengths belong together; give both, or none")

    def resolve_split(self, split: str) -> str:
        """The named split; for "" val, or what the task calls so: dev, or MNLI's dev_matched. Raises ValueError for an
        unknown split."""
        found = split or next((name for name in ("val", "dev", "dev_matched") if name in self.splits), "val")
        if found not in self.splits:
            raise ValueError(f"{self.name} has no split {found!r}; choose one of {', '.join(self.splits)}")
        return found


def labelled_answers(
    words: Callable[[Iterable[Prediction]], Sequence[str]],
    entry: Callable[[TaskGroup, str], Any] = lambda group, word: (group.id, word),
) -> Callable[[Sequence[TaskGroup], Sequence[Prediction]], Iterator[Any]]:
    """`DownstreamTask.answers` of a task of labels.

    Args:
        words: predictions -> the label of each, as the result file has it.
        entry: a group and its label -> the entry of the result file.
    """

    def answers(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Iterator[Any]:
        return map(entry, groups, words(predictions))

    return answers


def logged_name(measure: str) -> str:
    """Name of a measure in evaluation.jsonl and `train.best_by`."""
    return measure.replace(" ", "_")


def check_best_by(task: DownstreamTask, groups: Sequence[TaskGroup], best_by: str) -> None:
    """Raises ValueError, with the known names, for a `best_by` that is no measure of these groups; "" is none.

    The names may follow from the groups, such as types of answers. So empty predictions are judged.
    """
    if not best_by:
        return
    names: list[str] = []
    for judged in (groups[:_FEW_GROUPS], groups):  # most names are those of the first groups already
        names = [logged_name(name) for name in task.judge(judged, [_zero_prediction(task, group) for group in judged])]
        if best_by in names:
            return
    raise ValueError(f"train.best_by {best_by!r}: evaluations of {task.name} have {', '.join(names)}; name one of them")


def _zero_prediction(task: DownstreamTask, group: TaskGroup) -> Prediction:
    """A prediction whose scores are all 0; of one region where regions are scored."""
    boxes: np.ndarray = np.zeros((1, 4), np.float32)
    if not group.is_open:
        return NO_PREDICTION
    if task.form == REGION:
        return Prediction(boxes[:, 0], boxes)
    if task.form == PHRASE:
        return Prediction(np.zeros((len(group.rows[0].phrases), 1), np.float32), boxes)
    return Prediction(np.zeros(len(group.rows) if task.form == CHOICE else len(task.labels) or 1, np.float32))


class NamedTask(NamedTuple):
    """A task that can be opened.

    Attributes:
        options: frozen dataclass of its settings, all with defaults.
        open: folder of its files, its settings, and the labels that a model learned, None for a new model -> the task.
            ValueError for files that are missing or damaged.
        check: its settings -> nothing; ValueError for those that cannot be trained with. None where all can.
        check_stored: the same for training on stored features.
        all_pairs: whether all texts with all images of a split are scored, not group by group.
        reads_images: whether it has images; one of texts alone takes no store.
    """

    options: type
    open: Callable[[Path, Any, Sequence[str] | None], DownstreamTask]
    check: Callable[[Any], None] | None = None
    check_stored: Callable[[Any], None] | None = None
    all_pairs: bool = False
    reads_images: bool = True
