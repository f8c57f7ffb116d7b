"""VCR as a task, from its official files: a question with four answers, and with an answer four rationales.

A group is a question with its four choices, of which one is right. Where the right answer is not known (test), the
rationales are scored for each answer, so a group has 4 x 4 rows. Rules in which releases differ are in vcr_rules.py.
Source: Zellers et al. (arXiv:1811.10830).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from roibeam.pipelines.common.image_ids import image_id_of
from roibeam.pipelines.data.compatibility import check_choices, check_least
from roibeam.pipelines.data.datasets.vcr import (
    NUM_CHOICES,
    OBJECT_CLASSES,
    RawVcrQuestion,
    VcrTokens,
    named_objects,
    object_classes,
    read_object_names,
    read_raw_vcr,
)
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.metrics.vcr import (
    ChosenRow,
    VcrScores,
    best_choice,
    joined_scores,
    probabilities,
    vcr_measures,
    write_vcr_results,
)
from roibeam.pipelines.finetuning.rows import (
    AUTO,
    CHOICE,
    GROUNDINGS,
    PartPieces,
    PieceCoder,
    TaskGroup,
    TaskRow,
    TaskText,
)
from roibeam.pipelines.finetuning.scored_tasks import find_file
from roibeam.pipelines.finetuning.task import AuxiliaryTargets, BoxClasses, DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.finetuning.tasks.vcr_rules import (
    ANNOTATED,
    BOXES,
    BY_MENTION,
    DETECTED,
    EACH_ROW,
    MASKED,
    NAME_RULES,
    NAMED,
    NO_LOSS,
    OBJECT_LOSSES,
    TRUNCATIONS,
    EntryNames,
    NameRule,
    PieceRules,
    box_selection,
    joined_image,
    name_rule,
    read_people_names,
    region_masks,
    row_lengths,
    row_pieces,
)

ANSWER, RATIONALE, BOTH = "answer", "rationale", "both"
PROBLEMS = (ANSWER, RATIONALE, BOTH)
UPDATES = ("step", "task")
JOINING = ("", "and")
LOSSES = ("softmax", "sigmoid")
_NO_OBJECT = -1
Made = TypeVar("Made")


@dataclass(frozen=True)
class VcrOptions:
    """
    Attributes:
        problem: what is chosen: the "answer" of a question, or the "rationale" of a question and its answer; or "both",
            which one model learns in turn (ViLBERT).
        updates: of both problems, whether they make one update a "step", or each its own in the release's way ("task").
            See `AlternatingTask`.
        loss_scales: of both problems, what the loss of answers and that of rationales are multiplied by. The releases
            of ViLBERT and InterBERT take the problem's rate over the smallest, which is 1 for each.
        names: of people: by the order of "mention" in a row; "restarted" in the choice (VisualBERT); "in-turn", from
            one question to the next (VL-BERT); "drawn" (ViLBERT). See `name_rule` of vcr_rules.py.
        people: a file with their names, a table with a column "name"; "" for the 15 of VisualBERT's release,
            "vl-bert" for the 13 of VL-BERT's.
        seed: of names that are drawn.
        joining: a word between the objects of one tag: "and" (VL-BERT), or none.
        truncation: of a longer text, one of `TRUNCATIONS` of vcr_rules.py.
        max_pieces: text pieces of a row, special ones not counted, but see `PieceRules.separator`; 0 cuts nothing.
        rationale_pieces: the same of rows of rationales; 0 = as `max_pieces`.
        cut_untold: whether rationales are cut in a split without labels; VL-BERT's release does not.
        pieces_twice: cut into word pieces twice, as 12-in-1 does. See `PieceRules`.
        boxes: input regions: those "annotated" in the file; "detected" ones before these (ViLBERT); those "named" in
            question, answers and rationales (VisualBERT). See vcr_rules.py.
        max_boxes: regions of an image, the whole image counted; 0 = all. Detected ones go first.
        whole_region: whether the image as a whole is the first region, all of it inside its outline and of class 0, of
            a system that has no element for it (VisualBERT, as R2C). From photos the encoder makes its feature, else
            `LayoutOptions.whole_image` chooses it.
        grounding: which "words" are grounded: those that name a box. VL-BERT gives such a word the feature of its
            region in place of the whole image's (its release), VisualBERT the region the position of the word (paper
            and release). "none": no word is (VL-BERT's paper). "auto": both ground them, other systems cannot.
        object_loss: auxiliary loss of the classes of regions: "none"; of the "masked" ones, as the paper of VL-BERT
            has it; of all inputs ("shown"), as its release does.
        object_loss_weight: of that loss beside the choice's.
        hidden_boxes: share of the boxes that the loss of "masked" ones hides.
        told_classes: whether the class of each box is an input: in VL-BERT a token for each class (its release's
            `object_word_embed_mode` 1), in VisualBERT an embedding beside the feature (R2C).
        object_names: a file with the names of object classes, one a line; "" for COCO's 80.
        hidden_words: share of the words that are hidden and predicted beside the choice; 0 = none. The paper of VL-BERT
            finds that this harms.
        word_loss_weight: of that loss.
        loss: of the choice: "softmax" over the four (the papers), or "sigmoid" of each (VL-BERT's release).
    """

    problem: str = ANSWER
    updates: str = "step"
    loss_scales: tuple[float, float] = (1.0, 1.0)
    names: str = BY_MENTION
    people: str = ""
    seed: int = 0
    joining: str = ""
    truncation: str = EACH_ROW
    max_pieces: int = 0
    rationale_pieces: int = 0
    cut_untold: bool = True
    pieces_twice: bool = False
    boxes: str = ANNOTATED
    max_boxes: int = 0
    whole_region: bool = False
    grounding: str = AUTO
    object_loss: str = "none"
    object_loss_weight: float = 1.0
    hidden_boxes: float = 0.15
    told_classes: bool = False
    object_names: str = ""
    hidden_words: float = 0.0
    word_loss_weight: float = 1.0
    loss: str = "softmax"

    def __post_init__(self) -> None:
        check_choices(self, problem=PROBLEMS, updates=UPDATES, names=NAME_RULES, joining=JOINING)
        check_choices(self, truncation=TRUNCATIONS, boxes=BOXES, grounding=GROUNDINGS)
        check_choices(self, object_loss=OBJECT_LOSSES, loss=LOSSES)
        if not 0 < self.hidden_boxes < 1 or not 0 <= self.hidden_words < 1:
            raise ValueError("VcrOptions: hidden_boxes and hidden_words are shares, from 0 to below 1")
        if len(self.loss_scales) != 2 or not all(scale > 0 for scale in self.loss_scales):
            raise ValueError(f"VcrOptions: loss_scales must be two numbers above 0, got {list(self.loss_scales)}")
        check_least(self, seed=0, max_pieces=0, rationale_pieces=0, max_boxes=0)
        check_least(self, object_loss_weight=0, word_loss_weight=0)

    def pieces_of(self, problem: str) -> int:
        """`max_pieces` of the rows of a problem."""
        return (self.rationale_pieces if problem == RATIONALE else 0) or self.max_pieces

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of the task, one or both."""
        return (ANSWER, RATIONALE) if self.problem == BOTH else (self.problem,)


def read_vcr_groups(path: str, options: VcrOptions, *, labelled: bool = True) -> Iterator[TaskGroup]:
    """The groups of an annotation file, in its order.

    Args:
        labelled: whether its labels are used; without them every file is as a test file.
    """
    people = read_people_names(options.people)
    return vcr_groups(
        read_raw_vcr(path), options, name_rule(options.names, people, seed=options.seed), labelled=labelled
    )


def vcr_groups(
    questions: Iterable[RawVcrQuestion], options: VcrOptions, names: NameRule, *, labelled: bool = True
) -> Iterator[TaskGroup]:
    """Groups of questions that are read, by a rule for names; see `read_vcr_groups`."""
    for question in questions:
        names.question(question.objects)
        answer = question.answer if labelled else None
        rationale = question.rationale if labelled else None
        facts = {
            "problem": options.problem,
            "objects": question.objects,  # classes of the annotated boxes; tags of words are numbers among them
            "input_boxes": named_objects(question) if options.boxes == NAMED else tuple(range(len(question.objects))),
            "image": question.image,  # path below the image folder
            "img_id": question.img_id,  # by which the stores of some releases have the image; "" for none
            ANSWER: answer,
            RATIONALE: rationale,
        }
        yield TaskGroup(
            id=question.annot_id,
            images=(image_id_of(question.image, id_rule="no-extension"),),
            rows=tuple(row for given in _given(options, answer) for row in _rows(question, given, options, names)),
            target=answer if options.problem == ANSWER else rationale,
            facts=facts,
        )


def group_pieces(
    group: TaskGroup, coder: PieceCoder, options: VcrOptions, *, separator: int | None = None
) -> list[list[PartPieces]]:
    """The rows of a group in word pieces, cut as the options say; of each row its parts, the choice last.

    Args:
        separator: id of a piece that a system puts between question and answer, and that is cut like a word.
    Raises:
        ValueError: naming the question whose context alone is too long, under a rule that cuts the choice alone.
    """
    return _by_context(group, options, separator, lambda rows, rules: row_pieces(rows, coder, rules))


def group_lengths(
    group: TaskGroup, coder: PieceCoder, options: VcrOptions, *, separator: int | None = None
) -> list[tuple[int, int]]:
    """Pieces of each row of a group before it is cut and after; arguments and errors as `group_pieces`."""
    return _by_context(group, options, separator, lambda rows, rules: row_lengths(rows, coder, rules))


def _by_context(
    group: TaskGroup,
    options: VcrOptions,
    separator: int | None,
    made: Callable[[list[tuple[TaskText, ...]], PieceRules], list[Made]],
) -> list[Made]:
    """Calls `made` with the rows of each context, which differ in their choice alone; an error names the group."""
    problem = group.facts["problem"]
    is_whole = problem == RATIONALE and group.facts[ANSWER] is None and not options.cut_untold
    limit = 0 if is_whole else options.pieces_of(problem)
    rules = PieceRules(limit, options.truncation, options.pieces_twice, separator)
    parts = [row.parts for row in group.rows]
    try:
        return [row for at in range(0, len(parts), NUM_CHOICES) for row in made(parts[at : at + NUM_CHOICES], rules)]
    except ValueError as error:
        raise ValueError(f"{group.id}: {error}") from None


def vcr_scores(
    answers: Mapping[str, np.ndarray] | None, rationales: Mapping[str, np.ndarray] | None, questions: Sequence[str]
) -> Iterator[tuple[str, VcrScores]]:
    """Rows of the leaderboard's file, from the scores of one or two models.

    Args:
        answers: annot_id -> (4,) scores; rationales: annot_id -> (16,) scores, those for the first answer first. None
            without predictions; the file then lacks its columns, and is no leaderboard's file.
        questions: annot_ids, in the order of the annotation file.
    """
    chosen = answers and {name: probabilities(scores) for name, scores in answers.items()}
    reasons: dict[str, np.ndarray] = {}
    for name, scores in (rationales or {}).items():
        if np.size(scores) != NUM_CHOICES**2:
            raise ValueError(f"{name}: {np.size(scores)} scores of rationales, expected {NUM_CHOICES} for each answer")
        reasons[name] = probabilities(np.reshape(scores, (NUM_CHOICES, NUM_CHOICES)))
    return joined_scores(chosen, None if rationales is None else reasons, questions)


def _given(options: VcrOptions, answer: int | None) -> Sequence[int | None]:
    """Answers that stand before the choices, one after the other; None for none."""
    if options.problem == ANSWER:
        return (None,)
    return range(NUM_CHOICES) if answer is None else (answer,)


def _rows(question: RawVcrQuestion, given: int | None, options: VcrOptions, names: NameRule) -> Iterator[TaskRow]:
    context = [question.question] if given is None else [question.question, question.answers[given]]
    choices = question.answers if given is None else question.rationales
    named: EntryNames = names.entry(question.objects, [token for part in context for token in part], choices)
    parts = tuple(_text(part, named.context, options.joining) for part in context)
    for choice, own in zip(choices, named.choices, strict=True):
        yield TaskRow((*parts, _text(choice, own, options.joining)))


def _text(tokens: VcrTokens, names: Mapping[int, str], joining: str) -> TaskText:
    words: list[str] = []
    tags: list[int] = []
    for token in tokens:
        if isinstance(token, str):
            words.append(token)
            tags.append(_NO_OBJECT)
            continue
        for place, number in enumerate(token):
            if place and joining:
                words.append(joining)
                tags.append(_NO_OBJECT)
            words.append(names[number])
            tags.append(number)
    return TaskText(tuple(words), tuple(tags))


WHOLE_IMAGE = "background"  # name of the class of the whole image, which is class 0


def _object_names(options: VcrOptions) -> tuple[str, ...]:
    return read_object_names(options.object_names) if options.object_names else OBJECT_CLASSES


def vcr_auxiliary_targets(options: VcrOptions) -> AuxiliaryTargets | None:
    """Auxiliary targets of the options, classes of boxes and hidden words (VL-BERT); None for none."""
    words: dict[str, Any] = {"hidden_words": options.hidden_words, "word_weight": options.word_loss_weight}
    if options.object_loss == NO_LOSS:
        return AuxiliaryTargets(**words) if options.hidden_words else None
    names = _object_names(options)
    return AuxiliaryTargets(
        class_names=(WHOLE_IMAGE, *names),
        classes=lambda group: object_classes(group.facts["objects"], group.id, names),
        hidden_regions=options.hidden_boxes if options.object_loss == MASKED else 0.0,
        region_weight=options.object_loss_weight,
        **words,
    )


def vcr_input_classes(options: VcrOptions) -> BoxClasses | None:
    """Input classes of the options; None for none."""
    if not options.told_classes:
        return None
    names = _object_names(options)
    return BoxClasses(1 + len(names), lambda group: object_classes(group.facts["objects"], group.id, names), names)


TRAIN, VALIDATION = "train", "val"
_MAIN = ("Q->AR", "Q->A", "QA->R")  # the first that is there is what a run is judged by


def open_vcr(folder: Path, options: VcrOptions, _labels: Sequence[str] | None) -> DownstreamTask:
    """VCR with its official files in `folder`, found by their names; the store has the annotated boxes, in their order.

    Rationales are trained for the right answer. Elsewhere they are predicted for each answer, as on the leaderboard,
    and judged for the right one.
    """
    check_vcr(options)
    beside, input_classes = vcr_auxiliary_targets(options), vcr_input_classes(options)
    of_boxes = (None if beside is None else beside.classes, None if input_classes is None else input_classes.of)

    def read(split: str) -> TaskSplit:
        path = find_file(folder, f"{split}.jsonl")
        by_problem = [_groups(path, replace(options, problem=problem), split) for problem in options.problems]
        groups = [group for question in zip(*by_problem, strict=True) for group in question]
        for classes in filter(None, of_boxes):
            for group in groups:
                classes(group)  # raises for an object of an unknown class before anything is trained
        return TaskSplit(groups, (path,))

    def judged_rows(group: TaskGroup) -> tuple[slice, int | None]:
        first = 0 if len(group.rows) == NUM_CHOICES else NUM_CHOICES * group.facts[ANSWER]
        return slice(first, first + NUM_CHOICES), _right(group)

    def answers(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Iterator[tuple[str, VcrScores]]:
        for group, each in zip(groups, predictions, strict=True):
            found = {group.id: each.scores}
            chosen, reasons = (found, None) if group.facts["problem"] == ANSWER else (None, found)
            yield from vcr_scores(chosen, reasons, [group.id])

    most = max(map(options.pieces_of, options.problems))
    cuts: dict[str, Any] = {}
    if most or options.pieces_twice:
        cuts["pieces"] = lambda group, coder, part: group_pieces(group, coder, options, separator=part)
        cuts["lengths"] = lambda group, coder, part: group_lengths(group, coder, options, separator=part)
    has_two_stores = options.boxes == DETECTED
    return DownstreamTask(
        name="vcr",
        form=CHOICE,
        loss=options.loss,
        read=read,
        train=TRAIN,
        validation=VALIDATION,
        judge=judge_vcr,
        answers=answers,
        write=write_vcr_entries,
        has_label=lambda group: _right(group) is not None and group.facts[ANSWER] is not None,
        judged_rows=judged_rows,
        regions=None if has_two_stores else box_selection(options.max_boxes),
        joined=joined_image(options.max_boxes) if has_two_stores else None,
        num_boxes=lambda group: len(group.facts["objects"]),
        **cuts,
        max_pieces=most,
        turns=(lambda group: str(group.facts["problem"])) if options.problem == BOTH else None,
        updates=options.updates,
        loss_scales=dict(zip((ANSWER, RATIONALE), options.loss_scales, strict=True)),
        judged=rows_of_right_answer,
        problems=options.problems,
        beside=beside,
        whole_region=options.whole_region,
        grounding=options.grounding,
        input_classes=input_classes,
        mirrored=lambda group: replace(group, mirrored=True),
        outlines=region_masks,
    )


def _right(group: TaskGroup) -> int | None:
    """Number of the right choice; None without a label."""
    right: int | None = group.facts[group.facts["problem"]]
    return right


def rows_of_right_answer(group: TaskGroup) -> TaskGroup:
    """The group with only the four rationales that are judged, of those for each answer."""
    right = group.facts[ANSWER]
    if len(group.rows) == NUM_CHOICES or right is None:
        return group
    return replace(group, rows=group.rows[right * NUM_CHOICES : (right + 1) * NUM_CHOICES])


def judge_vcr(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
    """Measures of the predicted problems, the main one first; "Q->AR" over questions with both problems."""
    taken: dict[str, dict[str, int]] = {}
    facts: dict[str, TaskGroup] = {}
    for group, each in zip(groups, predictions, strict=True):
        if None in (group.facts[ANSWER], group.facts[RATIONALE]):
            raise ValueError(f"{group.id}: no label; nothing is known to be right in a split without labels")
        scores = each.scores
        if len(scores) != NUM_CHOICES:  # of four rationales for each answer
            scores = scores.reshape(NUM_CHOICES, NUM_CHOICES)[group.facts[ANSWER]]
        taken.setdefault(group.id, {})[group.facts["problem"]] = best_choice(scores.tolist())
        facts[group.id] = group
    rows = (
        ChosenRow(
            own.get(ANSWER), own.get(RATIONALE), facts[name].facts[ANSWER], facts[name].facts[RATIONALE],
            facts[name].images[0],
        )
        for name, own in taken.items()
    )  # fmt: skip
    measures = vcr_measures(rows)
    return {name: measures[name] for name in _MAIN if name in measures}


def write_vcr_entries(
    path: Path, entries: Sequence[tuple[str, tuple[Sequence[float], Sequence[Sequence[float]]]]]
) -> None:
    """Writes entries of one model or two, as read from the parts of a prediction: lists in place of tuples. Raises
    ValueError as `write_vcr_results`."""
    answers: dict[str, tuple[float, ...]] = {}
    rationales: dict[str, tuple[tuple[float, ...], ...]] = {}
    for name, (own, reasons) in entries:
        if own:
            answers[name] = tuple(own)
        if reasons:
            rationales[name] = tuple(map(tuple, reasons))
    names = dict.fromkeys(name for name, _ in entries)
    write_vcr_results(path, ((name, VcrScores(answers.get(name, ()), rationales.get(name, ()))) for name in names))


def _groups(path: Path, options: VcrOptions, split: str) -> list[TaskGroup]:
    groups = list(read_vcr_groups(str(path), options, labelled=True))
    if options.problem == ANSWER or split == TRAIN:
        return groups
    every = read_vcr_groups(str(path), options, labelled=False)
    return [replace(group, facts=labelled.facts) for labelled, group in zip(groups, every, strict=True)]


def check_vcr(options: VcrOptions) -> None:
    """Raises ValueError for a setting that would change nothing."""
    if options.rationale_pieces and (options.problem == ANSWER or not options.max_pieces):
        raise ValueError("rationale_pieces is of rationales beside answers of max_pieces; set vcr.max_pieces alone")
    if not options.max_pieces and (options.truncation != EACH_ROW or not options.cut_untold):
        raise ValueError("truncation and cut_untold are of vcr.max_pieces; set that too, such as 61 of 64")
    if options.updates != "step" and options.problem != BOTH:
        raise ValueError(f"updates '{options.updates}': only with problem 'both'; leave it at step")
    if set(options.loss_scales) != {1.0} and options.problem != BOTH:
        raise ValueError("loss_scales are of both problems beside each other; set vcr.problem=both, or leave them out")
