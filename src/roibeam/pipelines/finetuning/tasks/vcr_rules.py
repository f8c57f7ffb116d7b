"""VCR's rules in which the releases differ: names of people and things, cutting, regions and outlines.

Files name people and things by number. Things have the name of their class; for people each public code has a rule of
its own, and `BY_MENTION` is new. Each public code cuts the rows of a question to a length in a way of its own;
`EACH_ROW` is new: the pieces of one choice take nothing from another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.data.datasets.tables import read_strict_csv
from roibeam.pipelines.data.datasets.vcr import (
    NAMES,
    PERSON,
    VcrTokens,
    metadata_path,
    names_by_mention,
    read_vcr_metadata,
)
from roibeam.pipelines.data.record_regions import masks_of_regions
from roibeam.pipelines.finetuning.rows import PartPieces, PieceCoder, TaskGroup, TaskText
from roibeam.pipelines.finetuning.task import JoinedImage

BY_MENTION, RESTARTED, IN_TURN, DRAWN = "mention", "restarted", "in-turn", "drawn"
NAME_RULES = (BY_MENTION, RESTARTED, IN_TURN, DRAWN)
VL_BERT = "vl-bert"  # in place of a file of names: those of its release (vcr/data/datasets/vcr.py:21)
VL_BERT_NAMES = tuple(name for name in dict.fromkeys(NAMES) if name != "Skyler")


class EntryNames(NamedTuple):
    """Number of an object -> its name: in what precedes the choices, and in each row's choice."""

    context: Mapping[int, str]
    choices: tuple[Mapping[int, str], ...]


class NameRule:
    """Gives names to the objects of questions, which come in the order of their file."""

    def question(self, objects: Sequence[str]) -> None:
        """Begins a new question."""

    def entry(self, objects: Sequence[str], context: VcrTokens, choices: Sequence[VcrTokens]) -> EntryNames:
        """Names for a context with its choices; a question of a test file has four contexts with rationales."""
        raise NotImplementedError


class NamesByMention(NameRule):
    """Names people in the order in which a row mentions them, each question from the first name on.

    Args:
        people_names: used again when there are more people.
        restart: a person whom the choice is the first to mention is counted from the first name on again, and so has
            the name of another (uclanlp/visualbert dataloaders/vcr_data_utils.py:21-33).
    """

    def __init__(self, people_names: Sequence[str] = NAMES, *, restart: bool = False) -> None:
        self._names, self._restart = people_names, restart

    def entry(self, objects: Sequence[str], context: VcrTokens, choices: Sequence[VcrTokens]) -> EntryNames:
        known = names_by_mention(context, objects, people_names=self._names)
        people = 0 if self._restart else None
        return EntryNames(
            known,
            tuple(names_by_mention(each, objects, known, people=people, people_names=self._names) for each in choices),
        )


class NamesInTurn(NameRule):
    """Names all people of an image, in the order of its boxes; the next question goes on with the next name.

    So a name depends on the questions before (jackroos/VL-BERT vcr/data/datasets/vcr.py:118, 282).
    """

    def __init__(self, people_names: Sequence[str] = NAMES) -> None:
        self._names, self._next = people_names, 0
        self._given: dict[int, str] = {}

    def question(self, objects: Sequence[str]) -> None:
        self._given = {}
        for number, kind in enumerate(objects):
            self._given[number] = self._names[self._next] if kind == PERSON else kind
            self._next = (self._next + (kind == PERSON)) % len(self._names)

    def entry(self, objects: Sequence[str], context: VcrTokens, choices: Sequence[VcrTokens]) -> EntryNames:
        return EntryNames(self._given, (self._given,) * len(choices))


class NamesDrawn(NameRule):
    """Draws names for all people of an image, anew for each context; two may have the same name.

    Source: both ViLBERT releases (vcr_dataset.py). They draw once, without a seed, and keep it in a file."""

    def __init__(self, drawn: Iterator[str]) -> None:
        self._drawn = drawn

    def entry(self, objects: Sequence[str], context: VcrTokens, choices: Sequence[VcrTokens]) -> EntryNames:
        given = {number: next(self._drawn) if kind == PERSON else kind for number, kind in enumerate(objects)}
        return EntryNames(given, (given,) * len(choices))


def name_rule(rule: str, people_names: Sequence[str] = NAMES, *, seed: int = 0) -> NameRule:
    """The rule of a name of `NAME_RULES`; of DRAWN the draws follow from the seed and the order of the questions.
    Raises ValueError for an unknown rule, or no names."""
    if not people_names:
        raise ValueError("names of people: expected at least one, got none")
    if rule == IN_TURN:
        return NamesInTurn(people_names)
    if rule == DRAWN:
        return NamesDrawn(_draws(people_names, seed))
    if rule in (BY_MENTION, RESTARTED):
        return NamesByMention(people_names, restart=rule == RESTARTED)
    raise ValueError(f"names {rule!r}: expected one of {', '.join(NAME_RULES)}")


def read_people_names(path: str) -> Sequence[str]:
    """Names from a table with a column "name", such as the releases' unisex_names_table.csv; "" for those of
    VisualBERT's release, "vl-bert" for those of VL-BERT's. Raises ValueError for a file without that column, or without
    a name in it.
    """
    if path in ("", VL_BERT):
        return VL_BERT_NAMES if path else NAMES
    names = tuple(row["name"] for row in read_strict_csv(path) if row.get("name"))
    if not names:
        raise ValueError(f'{path!r}: expected a table with names in a column "name", got none')
    return names


def _draws(people_names: Sequence[str], seed: int) -> Iterator[str]:
    generator = np.random.default_rng(seed)
    while True:
        yield people_names[int(generator.integers(len(people_names)))]


EACH_ROW, SHARED, RUNNING, CHOICE_END, CHOICE_FRONT = "each-row", "shared", "running", "choice-end", "choice-front"
TRUNCATIONS = (EACH_ROW, SHARED, RUNNING, CHOICE_END, CHOICE_FRONT)


class KeptPieces(NamedTuple):
    """Pieces of each part of the context that are kept, from its start; and first and end of those of the choice."""

    context: tuple[int, ...]
    choice: tuple[int, int]


@dataclass(frozen=True)
class PieceRules:
    """
    Attributes:
        limit: text pieces of a row, special ones not counted; 0 cuts nothing.
        truncation: one of `TRUNCATIONS`, see `cut_rows`.
        twice: pieces are written as text and cut into pieces again, so that "##ing" becomes "#", "#", "ing" (12-in-1:
            facebookresearch/vilbert-multi-task vilbert/datasets/vcr_dataset.py:224, 237).
        separator: id of a piece between the parts of the context, which counts and may be cut; None for none.
    """

    limit: int
    truncation: str = EACH_ROW
    twice: bool = False
    separator: int | None = None


def row_pieces(rows: Sequence[Sequence[TaskText]], coder: PieceCoder, rules: PieceRules) -> list[list[PartPieces]]:
    """Rows with one context and different choices, in pieces and cut; of each row its parts, separators among them.
    Raises ValueError when the context leaves no room and the rule cuts only the choice."""
    first = rows[0][:-1]
    context: list[PartPieces] = []
    for part in first:
        if context and rules.separator is not None:
            context.append(PartPieces(np.array([rules.separator]), np.array([-1]), np.array([-1])))  # of no word
        context.append(_pieces(part, coder, twice=rules.twice))
    choices = [_pieces(row[-1], coder, twice=rules.twice) for row in rows]
    if not rules.limit:
        return [[*context, choice] for choice in choices]
    lengths = [len(part.ids) for part in context]
    kept = cut_rows(lengths, [len(choice.ids) for choice in choices], rules.limit, rules.truncation)
    return [
        [*(part.kept(0, count) for part, count in zip(context, row.context, strict=True)), choice.kept(*row.choice)]
        for row, choice in zip(kept, choices, strict=True)
    ]


def row_lengths(rows: Sequence[Sequence[TaskText]], coder: PieceCoder, rules: PieceRules) -> list[tuple[int, int]]:
    """Number of pieces of each row before it is cut and after, as by `row_pieces`, with its errors."""
    parts = rows[0][:-1]
    context = [_num_pieces(part, coder, twice=rules.twice) for part in parts]
    if rules.separator is not None:
        context += [1] * (len(parts) - 1)
    choices = [_num_pieces(row[-1], coder, twice=rules.twice) for row in rows]
    whole = [sum(context) + choice for choice in choices]
    if not rules.limit or max(whole) <= rules.limit:
        return [(length, length) for length in whole]
    kept = cut_rows(context, choices, rules.limit, rules.truncation)
    left = [sum(row.context) + row.choice[1] - row.choice[0] for row in kept]
    return list(zip(whole, left, strict=True))


def cut_rows(context: Sequence[int], choices: Sequence[int], limit: int, rule: str) -> list[KeptPieces]:
    """Kept pieces of rows that share a context, so that none has more than `limit`.

    Args:
        context: pieces of each part of the context: a question, or a question and its answer.
        rule: EACH_ROW: the longest part of a row loses its last piece, of equal ones the last part, until it fits.
            SHARED: as VL-BERT: the choice loses its last piece where it is longer than the context, else the question
            down to one piece (of a context of one part, to none), then the rest of the context from its end. The
            context is the same in all rows, so a long choice shortens it for all.
            RUNNING: as the first ViLBERT release: the context loses its last piece where it is longer than the choice,
            else the choice; later rows find the context as earlier ones left it.
            CHOICE_END, CHOICE_FRONT: the choice alone loses its last (12-in-1) or its first pieces (VisualBERT).
    Raises:
        ValueError: for an unknown rule, or a context that alone is longer than the limit where it must not be cut.
    """
    if rule == EACH_ROW:
        return [_each_row([*context, choice], limit) for choice in choices]
    if rule == SHARED:
        return _shared(list(context), choices, limit)
    if rule == RUNNING:
        return _running(list(context), choices, limit)
    if rule not in TRUNCATIONS:
        raise ValueError(f"truncation {rule!r}: expected one of {', '.join(TRUNCATIONS)}")
    room = limit - sum(context)
    if room < 0:
        raise ValueError(
            f"a context of {sum(context)} pieces where {limit} fit; truncation {rule!r} cuts the choice alone, set "
            f"another or more pieces"
        )
    at_front = rule == CHOICE_FRONT
    cuts = [max(0, length - room) for length in choices]
    return [
        KeptPieces(tuple(context), (cut, length) if at_front else (0, length - cut))
        for length, cut in zip(choices, cuts, strict=True)
    ]


def _each_row(lengths: list[int], limit: int) -> KeptPieces:
    for _ in range(sum(lengths) - limit):
        lengths[max(range(len(lengths)), key=lambda place: (lengths[place], place))] -= 1
    return KeptPieces(tuple(lengths[:-1]), (0, lengths[-1]))


def _shared(context: list[int], choices: Sequence[int], limit: int) -> list[KeptPieces]:
    least = 1 if len(context) > 1 else 0
    kept = []
    for choice in choices:
        while (length := sum(context)) + choice > limit:
            if choice > length:
                choice -= 1
            elif context[0] > least:
                context[0] -= 1
            else:
                _cut_end(context)
        kept.append(choice)
    return [KeptPieces(tuple(context), (0, choice)) for choice in kept]


def _running(context: list[int], choices: Sequence[int], limit: int) -> list[KeptPieces]:
    kept = []
    for choice in choices:
        while (length := sum(context)) + choice > limit:
            if length > choice:
                _cut_end(context)
            else:
                choice -= 1
        kept.append(KeptPieces(tuple(context), (0, choice)))
    return kept


def _cut_end(context: list[int]) -> None:
    """Takes one piece from the last part that has one."""
    context[max(place for place, length in enumerate(context) if length)] -= 1


def _num_pieces(part: TaskText, coder: PieceCoder, *, twice: bool) -> int:
    words = map(coder.encode, part.words)
    if twice:
        return sum(len(coder.encode(coder.piece(int(each)))) for word in words for each in word)
    return sum(map(len, words))


def _pieces(part: TaskText, coder: PieceCoder, *, twice: bool) -> PartPieces:
    words = [coder.encode(word) for word in part.words]
    if twice:
        nothing = np.zeros(0, np.int64)
        words = [np.concatenate([nothing, *(coder.encode(coder.piece(int(each))) for each in word)]) for word in words]
    counts = [len(word) for word in words]
    return PartPieces(
        np.concatenate([np.zeros(0, np.int64), *words]),
        np.repeat(np.arange(len(words)), counts),
        np.repeat(np.array(part.tags or (-1,) * len(words), np.int64), counts),
    )


ANNOTATED, DETECTED, NAMED = "annotated", "detected", "named"
BOXES = (ANNOTATED, DETECTED, NAMED)
NO_LOSS, MASKED, SHOWN = "none", "masked", "shown"
OBJECT_LOSSES = (NO_LOSS, MASKED, SHOWN)


class JoinedRegions(NamedTuple):
    """Detected regions, then annotated ones.

    Attributes:
        features: (R, D) float32; boxes: (R, 4) float32, x1 y1 x2 y2 in pixels.
        whole: (D,) float32, feature of the whole image.
    """

    features: np.ndarray
    boxes: np.ndarray
    num_detected: int
    whole: np.ndarray


def join_regions(
    detected: tuple[np.ndarray, np.ndarray], annotated: tuple[np.ndarray, np.ndarray], max_regions: int = 0
) -> JoinedRegions:
    """Joins regions of two stores as both ViLBERT releases and InterBERT do (vcr_dataset.py:364).

    Args:
        detected, annotated: (R, D) features and (R, 4) boxes of each store.
        max_regions: the whole image counted; 0 = all. Detected regions are cut from the end, then annotated ones.
    Returns:
        The whole image's feature is the mean of both stores' means, each with its number of regions, plus one for the
        whole image itself, as weight; of all regions, those that are cut too.
    """
    means, weights = [], []
    for features, _ in (detected, annotated):
        weights.append(len(features) + 1)
        means.append(features.sum(axis=0, dtype=np.float64) / max(len(features), 1))
    whole = sum(mean * weight for mean, weight in zip(means, weights, strict=True)) / sum(weights)
    room = max_regions - 1 if max_regions else sum(len(features) for features, _ in (detected, annotated))
    kept = min(len(annotated[0]), room)
    first = min(len(detected[0]), room - kept)
    return JoinedRegions(
        np.concatenate([detected[0][:first], annotated[0][:kept]]).astype(np.float32),
        np.concatenate([detected[1][:first], annotated[1][:kept]]).astype(np.float32),
        first,
        np.asarray(whole, np.float32),
    )


def box_selection(max_regions: int) -> Callable[[TaskGroup, int, RegionRecord], np.ndarray]:
    """Function that gives the numbers of the annotated boxes that are inputs, in their order.

    Args:
        max_regions: the whole image counted; 0 = all. Boxes are cut from the end.
    """

    def regions(group: TaskGroup, _image: int, record: RegionRecord) -> np.ndarray:
        _check_boxes(group, record)
        numbers = [number for number in group.facts["input_boxes"] if number < record.num_regions]
        return np.array(numbers[: max_regions - 1] if max_regions else numbers, np.int64)

    return regions


def joined_image(max_regions: int) -> Callable[[TaskGroup, int, RegionRecord, RegionRecord], JoinedImage]:
    """Function that joins detected regions and then all annotated boxes, see `join_regions`."""

    def joined(group: TaskGroup, _image: int, detected: RegionRecord, annotated: RegionRecord) -> JoinedImage:
        _check_boxes(group, annotated)
        own = annotated.features.astype(np.float32), annotated.boxes
        found = join_regions((detected.features.astype(np.float32), detected.boxes), own, max_regions)
        first, kept = found.num_detected, len(found.boxes) - found.num_detected
        record = replace(
            detected,
            boxes=found.boxes,
            features=found.features,
            class_ids=np.concatenate([detected.class_ids[:first], annotated.class_ids[:kept]]),
            class_scores=np.concatenate([detected.class_scores[:first], annotated.class_scores[:kept]]),
            attribute_ids=None,
            attribute_scores=None,
            class_distribution=None,
            image_feature=None if detected.image_feature is None else detected.image_feature.astype(np.float32),
        )
        named = {number: first + number for number in range(kept)}
        return JoinedImage(record, named, annotated.num_regions, found.whole)

    return joined


def _check_boxes(group: TaskGroup, record: RegionRecord) -> None:
    """Raises ValueError for a record of other boxes than the question's."""
    if record.num_regions != len(group.facts["objects"]) and not group.swapped:
        raise ValueError(
            f"{group.id}: record {record.image_id!r} has {record.num_regions} regions, VCR names "
            f"{len(group.facts['objects'])} boxes; extract with --boxes, from VCR's own files"
        )


def region_masks(photo: str, record: RegionRecord, side: int) -> np.ndarray:
    """Outlines of a photo's regions as masks, see `masks_of_regions`.

    Args:
        photo: path of the photo; its metadata lies beside it.
    Raises:
        ValueError: when the metadata cannot be read, or its boxes are not among the record's.
    """
    path = metadata_path(photo)
    try:
        metadata = read_vcr_metadata(path)
    except OSError as error:
        raise ValueError(
            f"{path}: {error.strerror or error}; VCR's outlines lie beside its photos: name the folder vcr1images with "
            f"--photos, or take whole boxes with --set photos.outlines=false"
        ) from None
    return masks_of_regions(record, metadata.boxes[:, :4], metadata.outlines, side)
