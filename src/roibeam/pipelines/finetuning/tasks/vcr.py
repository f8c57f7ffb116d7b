"""VCR from its official files: a question with four answers, and with an answer four rationales.

A group is a question with its four choices, of which one is right. Where nobody knows the right answer (test), the
rationales are asked for each answer, so a group has 4 x 4 rows. What the releases do differently is in vcr_rules/:
names, cutting, regions, photos with outlines. Source: Zellers et al. (arXiv:1811.10830).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from roibeam.pipelines.common.files.image_ids import image_id_of
from roibeam.pipelines.data.datasets.vcr import NUM_CHOICES
from roibeam.pipelines.data.datasets.vcr_texts import VcrAsked, VcrTokens, named_objects, read_vcr_asked
from roibeam.pipelines.data.fit import check_choice
from roibeam.pipelines.finetuning.results.vcr_results import VcrScores, joined_scores, probabilities
from roibeam.pipelines.finetuning.rows import AUTO, GROUNDINGS, PartPieces, PieceCoder, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.tasks.vcr_rules.names import (
    BY_MENTION,
    NAME_RULES,
    EntryNames,
    NameRule,
    name_rule,
    read_people_names,
)
from roibeam.pipelines.finetuning.tasks.vcr_rules.pieces import (
    EACH_ROW,
    TRUNCATIONS,
    PieceRules,
    row_lengths,
    row_pieces,
)
from roibeam.pipelines.finetuning.tasks.vcr_rules.regions import ANNOTATED, BOXES, NAMED, OBJECT_LOSSES

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
        names: what people are called: by the order of "mention" in a row; "restarted" in the choice (VisualBERT);
            "in-turn", from one question to the next (VL-BERT); "drawn" (ViLBERT). See vcr_rules/names.py.
        people: a file with their names, a table with a column "name"; "" for the 15 of VisualBERT's release,
            "vl-bert" for the 13 of VL-BERT's.
        seed: of names that are drawn.
        joining: a word between the objects of one tag: "and" (VL-BERT), or none.
        truncation: of a longer text, one of `TRUNCATIONS` of vcr_rules/pieces.py.
        max_pieces: text pieces of a row, special ones not counted, but see `PieceRules.separator`; 0 cuts nothing.
        rationale_pieces: the same of rows of rationales; 0 = as `max_pieces`.
        cut_untold: whether rationales are cut in a split without labels; VL-BERT's release does not.
        pieces_twice: cut into word pieces twice, as 12-in-1 does. See `PieceRules`.
        boxes: which regions are shown: those "annotated" in the file; "detected" ones before these (ViLBERT); those
            "named" in question, answers and rationales (VisualBERT). See vcr_rules/regions.py.
        max_boxes: regions of an image, the whole image counted; 0 = all. Detected ones go first.
        whole_region: whether the image as a whole is the first region, all of it inside its outline and of class 0, of
            a system that has no element for it (VisualBERT, as R2C). From photos the encoder makes its feature, else
            `LayoutOptions.whole_image` says which one it has.
        grounding: which "words" are grounded: those that name a box. VL-BERT gives such a word the feature of its
            region in place of the whole image's (its release), VisualBERT the region the position of the word (paper
            and release). "none": no word is (VL-BERT's paper). "auto": both ground them, other systems cannot.
        object_loss: whether the classes of regions are learned beside: "none"; of the "masked" ones, as the paper of
            VL-BERT says; of all "shown", as its release does.
        object_loss_weight: of that loss beside the choice's.
        hidden_boxes: share of the boxes that the loss of "masked" ones hides.
        told_classes: whether the model is told the class of each box: VL-BERT by a token for each class (its release's
            `object_word_embed_mode` 1), VisualBERT by an embedding beside the feature (R2C).
        object_names: a file with the names of object classes, one a line; "" for COCO's 80.
        hidden_words: share of the words that are hidden and told beside the choice; 0 = none. The paper of VL-BERT says
            that this harms.
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
        check_choice(self, "problem", PROBLEMS)
        check_choice(self, "updates", UPDATES)
        check_choice(self, "names", NAME_RULES)
        check_choice(self, "joining", JOINING)
        check_choice(self, "truncation", TRUNCATIONS)
        check_choice(self, "boxes", BOXES)
        check_choice(self, "grounding", GROUNDINGS)
        check_choice(self, "object_loss", OBJECT_LOSSES)
        check_choice(self, "loss", LOSSES)
        if not 0 < self.hidden_boxes < 1 or not 0 <= self.hidden_words < 1:
            raise ValueError("VcrOptions: hidden_boxes and hidden_words are shares, from 0 to below 1")
        if len(self.loss_scales) != 2 or not all(scale > 0 for scale in self.loss_scales):
            raise ValueError(f"VcrOptions: loss_scales must be two numbers above 0, got {list(self.loss_scales)}")
        for name in ("seed", "max_pieces", "rationale_pieces", "max_boxes", "object_loss_weight", "word_loss_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"VcrOptions: {name} must not be negative, got {getattr(self, name)}")

    def pieces_of(self, problem: str) -> int:
        """`max_pieces` of the rows of a problem."""
        return (self.rationale_pieces if problem == RATIONALE else 0) or self.max_pieces

    @property
    def problems(self) -> tuple[str, ...]:
        """One or both."""
        return (ANSWER, RATIONALE) if self.problem == BOTH else (self.problem,)


class VcrQuestionFacts(NamedTuple):
    """What stands beside a group.

    Attributes:
        problem: that the group is of.
        objects: class names of the annotated boxes, in their order; tags of words are numbers among them.
        shown: numbers of the boxes that are shown.
        image: path of the image below the image folder.
        img_id: another name of the image, by which the stores of some releases have it; "" for none.
        answer, rationale: which is right; None where nobody knows.
    """

    problem: str
    objects: tuple[str, ...]
    shown: tuple[int, ...]
    image: str
    img_id: str
    answer: int | None
    rationale: int | None


def read_vcr_groups(path: str, options: VcrOptions, *, told: bool = True) -> Iterator[TaskGroup]:
    """The groups of an annotation file, in its order.

    Args:
        told: whether its labels are used; without them every file is as a test file.
    Raises:
        ValueError: for a file that is not as VCR writes it, or options that do not fit it.
    """
    people = read_people_names(options.people)
    return vcr_groups(read_vcr_asked(path), options, name_rule(options.names, people, seed=options.seed), told=told)


def vcr_groups(
    questions: Iterable[VcrAsked], options: VcrOptions, names: NameRule, *, told: bool = True
) -> Iterator[TaskGroup]:
    """As `read_vcr_groups`, of questions that are read and a rule for names; of both problems see `in_turn`."""
    for asked in questions:
        names.question(asked.objects)
        answer = asked.answer if told else None
        rationale = asked.rationale if told else None
        shown = named_objects(asked) if options.boxes == NAMED else tuple(range(len(asked.objects)))
        facts = VcrQuestionFacts(options.problem, asked.objects, shown, asked.image, asked.img_id, answer, rationale)
        yield TaskGroup(
            id=asked.annot_id,
            images=(image_id_of(asked.image, id_rule="no-extension"),),
            rows=tuple(row for given in _given(options, answer) for row in _rows(asked, given, options, names)),
            target=answer if options.problem == ANSWER else rationale,
            facts=facts._asdict(),
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
    rules = _rules(group, options, separator)
    return [row for rows in _by_context(group) for row in _named(group, row_pieces, rows, coder, rules)]


def group_lengths(
    group: TaskGroup, coder: PieceCoder, options: VcrOptions, *, separator: int | None = None
) -> list[tuple[int, int]]:
    """Pieces of each row of a group before it is cut and after; arguments and errors as `group_pieces`."""
    rules = _rules(group, options, separator)
    return [row for rows in _by_context(group) for row in _named(group, row_lengths, rows, coder, rules)]


def _rules(group: TaskGroup, options: VcrOptions, separator: int | None) -> PieceRules:
    problem = group.facts["problem"]
    untold = problem == RATIONALE and group.facts[ANSWER] is None and not options.cut_untold
    return PieceRules(0 if untold else options.pieces_of(problem), options.truncation, options.pieces_twice, separator)


def _by_context(group: TaskGroup) -> Iterator[list[tuple[TaskText, ...]]]:
    """The rows that differ in their choice alone."""
    for first in range(0, len(group.rows), NUM_CHOICES):
        yield [row.parts for row in group.rows[first : first + NUM_CHOICES]]


def _named(group: TaskGroup, made: Callable[..., list[Made]], *arguments: object) -> list[Made]:
    """What is made of these arguments; an error names the group."""
    try:
        return made(*arguments)
    except ValueError as error:
        raise ValueError(f"{group.id}: {error}") from None


def vcr_scores(
    answers: Mapping[str, np.ndarray] | None, rationales: Mapping[str, np.ndarray] | None, questions: Sequence[str]
) -> Iterator[tuple[str, VcrScores]]:
    """Rows of the leaderboard's file, from what one or two models say to each question.

    Args:
        answers: annot_id -> (4,) scores; rationales: annot_id -> (16,) scores, those for the first answer first. None
            for one that is not told; the file then lacks its columns, and is no leaderboard's file.
        questions: annot_ids, in the order of the annotation file.
    Raises:
        ValueError: for a question without one of them, or scores of another number.
    """
    chosen = answers and {name: probabilities(scores) for name, scores in answers.items()}
    reasons = rationales and {name: probabilities(_by_answer(name, scores)) for name, scores in rationales.items()}
    return joined_scores(chosen, reasons, questions)


def _by_answer(name: str, scores: np.ndarray) -> np.ndarray:
    if np.size(scores) != NUM_CHOICES**2:
        raise ValueError(f"{name}: {np.size(scores)} scores of rationales, expected {NUM_CHOICES} for each answer")
    return np.reshape(scores, (NUM_CHOICES, NUM_CHOICES))


def _given(options: VcrOptions, answer: int | None) -> Sequence[int | None]:
    """Answers that stand before the choices, one after the other; None for none."""
    if options.problem == ANSWER:
        return (None,)
    return range(NUM_CHOICES) if answer is None else (answer,)


def _rows(asked: VcrAsked, given: int | None, options: VcrOptions, names: NameRule) -> Iterator[TaskRow]:
    context = [asked.question] if given is None else [asked.question, asked.answers[given]]
    choices = asked.answers if given is None else asked.rationales
    named: EntryNames = names.entry(asked.objects, [token for part in context for token in part], choices)
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
