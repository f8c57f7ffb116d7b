"""VCR about COCO's pictures: {train,val,test}.jsonl beside vcr1images/<year>/<name>.jpg and <name>.json, and
object_names.txt with the world's classes, one a line, for recipes whose model learns the classes of boxes.

A question has four answers and four rationales, one right each. Wrong choices name things of the same picture with
facts that are true of others there. Two facts of a choice, such as two colours, come right and wrong in all four
combinations, so that no choice stands in the middle of the others. Things are named by their numbers in the scene
graph, which are those of the regions in a perfect store; no choice lets the order tell which is in front. The year
stands where VCR has the movie, so that img_fn is the picture's path below the world's folder coco. test.jsonl has no
labels.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.pipelines.toyworld.captions import noun_phrase
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.tasks.scene_queries import (
    COCO_SPLITS,
    INVERSE,
    STRENGTHS,
    BlindReader,
    Description,
    Keys,
    SceneQueries,
    Task,
    colours_of,
    shuffled,
)
from roibeam.pipelines.toyworld.world import CATEGORIES, COLOURS
from roibeam.pipelines.toyworld.world_files import write_text

Tokens = tuple[str | list[int], ...]  # as VCR writes a text: words, and the numbers of the things that are meant
CHOICES = 4
_SIDES = ("to the left of", "to the right of", "above", "below")
_SIZES = ("larger than", "smaller than")  # which a reader without the picture can often guess
_UPON = {"in front of": 1, "behind": -1, "inside": 1, "around": -1}


@dataclass(frozen=True)
class Choice:
    """A text, and the facts that it claims, for a reader without the picture (see `BlindReader`)."""

    tokens: Tokens
    facts: tuple[Keys, ...]


@dataclass(frozen=True)
class VcrRow:
    """A question with its choices; `answer` and `rationale` are the places of the right ones."""

    question: Tokens
    answers: tuple[Choice, ...]
    answer: int
    rationales: tuple[Choice, ...]
    rationale: int


def make_questions(known: SceneQueries, stream: IntegerStream) -> list[VcrRow]:
    """Makes the questions about a picture: where, twice if possible; which; how two differ."""
    found: list[VcrRow] = []
    for make in (_where, _where, _which, _differ):
        row = make(known, stream)
        if row is not None and all(row.question != other.question for other in found):
            found.append(row)
    return found


def _where(known: SceneQueries, stream: IntegerStream) -> VcrRow | None:
    """Asks for the thing in a relation to another one; the rationale gives the colours of both."""
    for first, phrase, second in shuffled(known.clear_links((*_SIDES, *_UPON)), stream):
        # With two things of one colour, a choice that has it twice could only be the right one.
        if first.colour == second.colour or sum(known.holds(thing, phrase, second) for thing in known.seen) > 1:
            continue
        side = _UPON.get(phrase)
        others = [
            thing
            for thing in known.clear
            if thing is not first
            and thing is not second
            and not known.could_hold(thing, phrase, second)
            and (side is None or (thing.number - second.number) * side > 0)
        ]
        if len(others) >= CHOICES - 1:
            break
    else:
        return None
    wrong = shuffled(others, stream)[: CHOICES - 1]
    answers = [
        Choice(
            ("It", "is", [thing.number], "."),
            ((("where", phrase), ("where", phrase, thing.category), (phrase, thing.category, second.category)),),
        )
        for thing in (first, *wrong)
    ]
    question: Tokens = ("What", "is", *phrase.split(" "), [second.number], "?")
    return _row(question, answers, _colour_choices(known, first, second, stream), stream)


def _which(known: SceneQueries, stream: IntegerStream) -> VcrRow | None:
    """Asks for the thing with some attributes; the rationale gives its place."""
    thing = stream.pick(known.clear)
    names = shuffled(thing.attributes, stream)[: 1 + stream.below(2)]
    described = Description("", tuple(names))
    others = [other for other in known.clear if other is not thing]
    if len(known.meant(described)) != 1 or len(others) < CHOICES - 1:
        return None
    words = noun_phrase(names, "one").split(" ")[1:]
    answers = [
        Choice(
            ("It", "is", [each.number], "."), tuple((("which", name), ("which", name, each.category)) for name in names)
        )
        for each in (thing, *shuffled(others, stream)[: CHOICES - 1])
    ]
    return _row(("Which", "is", "the", *words, "?"), answers, _place_choices(known, thing, stream), stream)


def _differ(known: SceneQueries, stream: IntegerStream) -> VcrRow | None:
    """Asks how the colours of two things differ; the rationale gives the place of the first one."""
    pairs = [(a, b) for a in known.clear for b in known.clear if a is not b and a.colour != b.colour]
    if not pairs:
        return None
    first, second = stream.pick(pairs)
    question: Tokens = ("How", "do", [first.number], "and", [second.number], "differ", "?")
    return _row(question, _colour_choices(known, first, second, stream), _place_choices(known, first, stream), stream)


def _colour_choices(
    known: SceneQueries, first: SceneObject, second: SceneObject, stream: IntegerStream
) -> list[Choice]:
    """Choices that give each thing its colour or another one; the right choice is the first."""
    taken = {first.colour, second.colour}
    near = shuffled([name for name in colours_of(known.things) if name not in taken], stream)
    near += shuffled([name for name in COLOURS if name not in taken and name not in near], stream)
    return [
        Choice(
            ([first.number], "is", one, "and", [second.number], "is", other, "."),
            tuple(
                (("colour", name), ("colour", name, thing.category)) for name, thing in ((one, first), (other, second))
            ),
        )
        for one in (first.colour, near[0])
        for other in (second.colour, near[1])
    ]


def _place_choices(known: SceneQueries, thing: SceneObject, stream: IntegerStream) -> list[Choice]:
    """Choices of two relations, each as it is or the other way round; the right choice is the first. Empty without any.

    None is about what lies upon what: the numbers would give it away.
    """
    links = [
        link
        for phrases in (_SIDES, _SIZES)
        for link in shuffled(known.clear_links(phrases), stream)
        if link[0] is thing
    ]
    if len({other.number for _, _, other in links}) < 2:
        return []
    first = links[0]
    second = next(link for link in links if link[2] is not first[2])
    return [
        Choice(
            (
                [thing.number], "is", *one.split(" "), [first[2].number],
                "and", *other.split(" "), [second[2].number], ".",
            ),
            tuple(
                (("place", phrase), ("place", phrase, thing.category), (phrase, thing.category, there.category))
                for phrase, there in ((one, first[2]), (other, second[2]))
            ),
        )
        for one in (first[1], INVERSE[first[1]])
        for other in (second[1], INVERSE[second[1]])
    ]  # fmt: skip


def _row(
    question: Tokens, answers: Sequence[Choice], rationales: Sequence[Choice], stream: IntegerStream
) -> VcrRow | None:
    """Puts the choices, the right one first, in an order drawn by lot."""
    if not rationales:
        return None
    orders = [shuffled(range(CHOICES), stream) for _ in range(2)]
    placed = [
        tuple(choices[place] for place in order) for choices, order in zip((answers, rationales), orders, strict=True)
    ]
    return VcrRow(question, placed[0], orders[0].index(0), placed[1], orders[1].index(0))


_PURPOSE = 5
IMAGES_FOLDER, OBJECT_NAMES = "vcr1images", "object_names.txt"


class VcrTask(Task):
    name, splits = "vcr", COCO_SPLITS

    def __init__(self) -> None:
        self._pictures: dict[str, list[Picture]] = {split: [] for split in COCO_SPLITS}
        self._rows: dict[str, list[tuple[Picture, VcrRow]]] = {split: [] for split in COCO_SPLITS}

    def add_to(self, split: str, picture: Picture) -> None:
        stream = IntegerStream(picture.scene.seed, _PURPOSE, picture.scene.index)
        rows = make_questions(SceneQueries(picture), stream)
        self._pictures[split] += [picture] * bool(rows)
        self._rows[split] += [(picture, row) for row in rows]

    def rows(self) -> dict[str, int]:
        return {split: len(rows) for split, rows in self._rows.items()}

    def links(self) -> Iterator[tuple[Picture, str]]:
        for pictures in self._pictures.values():
            for picture in pictures:
                yield picture, f"{IMAGES_FOLDER}/{picture.file_name}"

    def write(self, folder: Path) -> None:
        for pictures in self._pictures.values():
            for picture in pictures:
                text = json.dumps(_metadata(picture), separators=(",", ":")) + "\n"
                write_text(folder / IMAGES_FOLDER / _metadata_name(picture), text)
        for split, rows in self._rows.items():
            lines = [json.dumps(self._line(split, place, *row)) for place, row in enumerate(rows)]
            write_text(folder / f"{split}.jsonl", "".join(f"{line}\n" for line in lines))
        write_text(folder / OBJECT_NAMES, "".join(f"{name}\n" for name in CATEGORIES))

    def _line(self, split: str, place: int, picture: Picture, row: VcrRow) -> dict[str, Any]:
        labels = {} if split == "test" else {"answer_label": row.answer, "rationale_label": row.rationale}
        return {
            "movie": picture.file_name.partition("/")[0],
            "objects": [thing.category for thing in picture.scene.objects],
            "img_fn": picture.file_name,
            "metadata_fn": _metadata_name(picture),
            "question": row.question,
            "answer_choices": [choice.tokens for choice in row.answers],
            "rationale_choices": [choice.tokens for choice in row.rationales],
            "img_id": f"{split}-{picture.number}",
            "question_number": place,
            "annot_id": f"{split}-{place}",
            "match_fold": f"{split}-0",
            "match_index": place,
        } | labels

    def write_results(self, folder: Path) -> None:
        """Writes the scores of a reader with the scene graph, and of one with the training file only."""
        rows = [row for _, row in self._rows["val"]]
        _write_scores(folder / "perfect" / "vcr_val.csv", [(_sure(row.answer), _sure(row.rationale)) for row in rows])
        _write_scores(folder / "blind" / "vcr_val.csv", self._guessed(rows))

    def _guessed(self, rows: list[VcrRow]) -> list[tuple[list[float], list[float]]]:
        reader = BlindReader()
        for _, row in self._rows["train"]:
            for choices, right in ((row.answers, row.answer), (row.rationales, row.rationale)):
                # A claim is learnt as true where the right choice makes it: its wrong ones share half of it.
                true = set(choices[right].facts)
                for keys in dict.fromkeys(keys for choice in choices for keys in choice.facts):
                    reader.learn(keys, keys in true)

        def best(right: list[int], choices: list[tuple[Choice, ...]]) -> list[list[float]]:
            def weighed(strength: float) -> list[list[float]]:
                return [[reader.evidence(each.facts, strength) for each in four] for four in choices]

            return max(
                map(weighed, STRENGTHS),
                key=lambda scores: sum(
                    four.index(max(four)) == place for four, place in zip(scores, right, strict=True)
                ),
            )

        answers = best([row.answer for row in rows], [row.answers for row in rows])
        rationales = best([row.rationale for row in rows], [row.rationales for row in rows])
        return list(zip(answers, rationales, strict=True))


def _sure(place: int) -> list[float]:
    return [float(choice == place) for choice in range(CHOICES)]


def _write_scores(path: Path, scores: list[tuple[list[float], list[float]]]) -> None:
    """Writes the leaderboard's file; the rationales' scores are the same for each answer that they may follow."""
    head = [f"answer_{choice}" for choice in range(CHOICES)]
    head += [f"rationale_conditioned_on_a{answer}_{choice}" for answer in range(CHOICES) for choice in range(CHOICES)]
    lines = [",".join(["annot_id", *head])]
    for place, (answers, rationales) in enumerate(scores):
        lines.append(",".join([f"val-{place}", *(f"{score:.6f}" for score in [*answers, *rationales * CHOICES])]))
    write_text(path, "".join(f"{line}\n" for line in lines))


def _metadata_name(picture: Picture) -> str:
    return picture.file_name.rpartition(".")[0] + ".json"


def _metadata(picture: Picture) -> dict[str, Any]:
    things = picture.scene.objects
    return {
        "boxes": [[x, y, x + width, y + height, 1.0] for x, y, width, height in (thing.box for thing in things)],
        "segms": [
            [[list(points) for points in zip(outline[::2], outline[1::2], strict=True)] for outline in outlines]
            for outlines in picture.polygons
        ],
        "names": [thing.category for thing in things],
        "width": picture.scene.width,
        "height": picture.scene.height,
    }
