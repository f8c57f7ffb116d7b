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

NUMBER_LOSS = "number"  # of a LABEL task without labels: its one score is the number that is asked for


class Prediction(NamedTuple):
    """What a model says to one group.

    Attributes:
        scores: (n,) float32: of each label, of each row, or of each region that was shown; (P, n) of each region for
            each phrase.
        boxes: (n, 4) float32, x1 y1 x2 y2 in pixels of those regions; None where no region is chosen.
    """

    scores: np.ndarray
    boxes: np.ndarray | None = None


Judge = Callable[[Sequence[TaskGroup], Sequence[Prediction]], Mapping[str, Measure]]


class Kept(NamedTuple):
    """What evaluations keep of each prediction, of a task whose scores are many: with VQA's 3,129 labels those of the
    validation split would take gigabytes.

    Attributes:
        of: predictions, none of which it holds on to -> what of each is judged; it can be pickled.
        judge: groups and what was kept of each -> what `DownstreamTask.judge` says of the whole predictions.
    """

    of: Callable[[Iterable[Prediction]], Iterable[Any]]
    judge: Callable[[Sequence[TaskGroup], Sequence[Any]], Mapping[str, Measure]]


# Of a group that is not open.
NOTHING_SAID = Prediction(np.zeros(0, np.float32), np.zeros((0, 4), np.float32))
_FEW_GROUPS = 200


@dataclass(frozen=True)
class TaskSplit:
    """
    Attributes:
        groups: in the order of their file.
        files: that they were read from.
        notes: what was left out, for people.
    """

    groups: Sequence[TaskGroup]
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def has_target(group: TaskGroup) -> bool:
    return group.target is not None


class JoinedImage(NamedTuple):
    """An image with the regions of two stores, all of them shown.

    Attributes:
        record: detected regions, then annotated ones.
        named: number of a box, as words name it -> its place among these regions.
        num_boxes: that words may name.
        whole: (D,) float32, feature of the whole image, of all regions of both stores.
    """

    record: RegionRecord
    named: Mapping[int, int]
    num_boxes: int
    whole: np.ndarray


@dataclass(frozen=True)
class BesideTask:
    """What a run learns beside its task, from the same rows.

    Attributes:
        class_names: of regions, the first one that of the whole image; () asks nothing of regions.
        classes: group -> (boxes,) int64, the class of each box, by the number that words name it by.
        hidden_regions: share of the boxes that are hidden and asked; 0 asks all of them, and hides none.
        region_weight, word_weight: of these losses beside the task's.
        hidden_words: share of words that are hidden and asked; 0 asks none.
    """

    class_names: tuple[str, ...] = ()
    classes: Callable[[TaskGroup], np.ndarray] | None = None
    hidden_regions: float = 0.0
    region_weight: float = 1.0
    hidden_words: float = 0.0
    word_weight: float = 1.0


class BoxClasses(NamedTuple):
    """What the boxes of a task are, as a model may be told.

    Attributes:
        num_classes: with that of the whole image and of what has none among them: it is 0.
        of: group -> (boxes,) int64, the class of each box, by the number that words name it by.
        names: of the classes from 1 on; none where nobody tells.
    """

    num_classes: int
    of: Callable[[TaskGroup], np.ndarray]
    names: tuple[str, ...] = ()


class AskedDirectly(NamedTuple):
    """How a task of one label is asked about texts and images at hand, without its files.

    Attributes:
        row: the texts of one row -> the row, which shows every image of its group.
        said: what a model says to each row -> the label of each, as the result file has it.
        num_texts: of a row.
    """

    row: Callable[[Sequence[str]], TaskRow]
    said: Callable[[Sequence[Prediction]], Sequence[str]]
    num_texts: int = 1


SPLITS = "splits"
DrawGroup = Callable[[TaskGroup, np.random.Generator], TaskGroup]


@dataclass(frozen=True)
class DownstreamTask:
    """A task with its folder of files opened.

    Attributes:
        name: as the command line has it.
        form: one of `FORMS`.
        loss: a name that `loss_named` of run/losses.py takes for this form.
        read: the groups of a split.
        train, validation: splits that a run trains on, and is judged on; None for none.
        judge: groups and what was said to them -> measures by name, the first of them the main one.
        kept: what the evaluations of a run keep in place of predictions; None for these.
        answers: groups and what was said to them -> entries of the result file, one for each group.
        write: entries -> the result file.
        labels: what the numbers of a LABEL task mean; kept with the model.
        label_weights: of the loss "class", what a row of each label counts; () for 1 each.
        num_images: that a row shows; 0 for texts alone, which need no store.
        mirrored: a group -> the same beside its mirrored images; None for a task that does not say what its words
            become.
        mirrors: whether every other group of training, by chance, is mirrored on stored features; from photos the run
            says it (`TaskPhotos.flip`).
        outlines: path of a photo, its record, cells each way -> (K, cells, cells) float32, what each cell of each of
            the record's regions counts, from photos; None for regions that count whole.
        whole_image: of REGION, the image as a whole is the first candidate; every group says its box.
        whole_region: the image as a whole is shown as the first of its regions, which no word names, to a model that
            has no element for it.
        grounding: one of `GROUNDINGS`: which words of a text are grounded in the region that they name.
        region_targets: of REGION, how targets follow from the right box: arguments of `referred_targets`.
        measured_in_input: of REGION, from photos: overlaps with the right box are measured in pixels of the network's
            input, where all boxes are resized and clipped to the photo; else in those of the photo.
        splits: their names, in the order to be shown.
        regions: group, place of an image in it, its record -> (R,) int64, which of its regions are shown in which
            order; None leaves that to the layout.
        is_told: whether it is known what is right for a group, so that it can be judged.
        judged_rows: of CHOICE: which rows of a group are judged, and which of these is right; None for all of them,
            with the target's.
        right_words: what is right for a group, for people; None where labels, choices or boxes say it.
        joined: group, place of an image in it, its record, and that of the annotated boxes -> what is shown; None for a
            task that takes no second store.
        joins_training_alone: whether only the training split shows boxes of the second store, so that others need none.
        gives_boxes: whether groups have all of their boxes, so that photos need no second store.
        num_boxes: group -> boxes of its image that the store of them must have, no more and no fewer; None where any
            number will do.
        pieces: group, tokenizer, and the piece that the system puts between parts of a context or None -> of each row
            its parts in pieces, the choice last, cut by the task's own rules; None leaves that to the layout.
        lengths: as `pieces` -> of each row its pieces before it is cut and after, with the same errors.
        max_pieces: text pieces of a row, special ones not counted, that `pieces` leaves; 0 for any number.
        turns: group -> what of several problems it is of, which one model learns in turn; None for one problem.
        updates, loss_scales: of several problems, as of `AlternatingTask`.
        judged: a group of the validation split -> as a run asks about it while it trains, with the rows that are judged
            alone; None asks about all.
        num_heads: of PHRASE, attention heads of the task's own, whose mean weights are the scores.
        tells: what a result file of this model tells; a second model may tell the rest. () for all there is.
        beside: what is learned beside the task; None for nothing.
        told_classes: what the model is told of its regions beside their features; None for nothing.
        drawn_from: groups that are joined, the store, and the folder of the run -> what is shown of a group in an
            epoch, by a generator; of the validation split, where the folder is None, once for all. None shows groups as
            they are.
        drawn: what `drawn_from` gave for the training split; the run sets it.
        directly: how it is asked without its files; None for a task that needs them.
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
    is_told: Callable[[TaskGroup], bool] = has_target
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
    tells: tuple[str, ...] = ()
    beside: BesideTask | None = None
    told_classes: BoxClasses | None = None
    drawn_from: Callable[[Sequence[TaskGroup], Any, Path | None], DrawGroup] | None = None
    drawn: DrawGroup | None = None
    directly: AskedDirectly | None = None
    reported_by: str = ""
    kept: Kept | None = None

    def __post_init__(self) -> None:
        if self.form == LABEL and self.loss != NUMBER_LOSS and len(self.labels) < 2:
            raise ValueError(f"{self.name}: {len(self.labels)} labels; a model that chooses needs at least 2")
        assert self.form == CHOICE or self.pieces is None, "only rows of choices are cut by their task"
        if (self.pieces is None) != (self.lengths is None):
            raise ValueError(f"{self.name}: pieces and lengths belong together; give both, or none")

    def check_split(self, split: str) -> None:
        """Raises ValueError for a split that there is not."""
        if split not in self.splits:
            raise ValueError(f"{self.name} has no split {split!r}; choose one of {', '.join(self.splits)}")

    def asked_split(self, split: str) -> str:
        """The split that is asked for; of "" val, or what the task calls so: dev, or MNLI's dev_matched.

        Raises:
            ValueError: for a split that there is not.
        """
        asked = split or next((name for name in ("val", "dev", "dev_matched") if name in self.splits), "val")
        self.check_split(asked)
        return asked


def logged_name(measure: str) -> str:
    """As evaluation.jsonl and `train.best_by` have it."""
    return measure.replace(" ", "_")


def check_best_by(task: DownstreamTask, groups: Sequence[TaskGroup], best_by: str) -> None:
    """Raises ValueError, with the names, for one that no measure of these groups has; "" asks for none.

    The names may follow from the groups, such as types of answers. So they are judged, as if nothing was said to them.
    """
    if not best_by:
        return
    names: list[str] = []
    for asked in (groups[:_FEW_GROUPS], groups):  # most names are those of the first groups already
        names = [logged_name(name) for name in task.judge(asked, [_unsaid(task, group) for group in asked])]
        if best_by in names:
            return
    raise ValueError(f"train.best_by {best_by!r}: evaluations of {task.name} have {', '.join(names)}; name one of them")


def _unsaid(task: DownstreamTask, group: TaskGroup) -> Prediction:
    """A prediction whose scores are all 0, of one region where some are asked about."""
    boxes: np.ndarray = np.zeros((1, 4), np.float32)
    if not group.is_open:
        return NOTHING_SAID
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
            ValueError for files that are not there or not what they should be.
        check: its settings -> nothing; ValueError for those that cannot be trained with. None where all can.
        check_stored: the same of settings that cannot be trained with on stored features.
        all_pairs: whether a model is asked about all texts with all images of a split, not group by group.
        reads_images: whether it shows any; one of texts alone takes no store.
    """

    options: type
    open: Callable[[Path, Any, Sequence[str] | None], DownstreamTask]
    check: Callable[[Any], None] | None = None
    check_stored: Callable[[Any], None] | None = None
    all_pairs: bool = False
    reads_images: bool = True
