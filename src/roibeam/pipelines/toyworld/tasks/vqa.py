"""VQA v2 about COCO's pictures: v2_OpenEnded_mscoco_<year>_questions.json, v2_mscoco_<year>_annotations.json.

Six kinds of questions, one of each where the picture allows it, with the answer of the scene graph.
The answers yes and no, none and some, come about equally often. Of ten annotators most answer right, some are mistaken,
and they do not all write alike. train2014 asks about the training pictures, val2014 about those of Karpathy's val and
test. Ids are VQA's: the number of the picture, and 1,000 times that with the place of the question.
"""

import json
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.pipelines.toyworld.captions import NUMBERS, RELATION_PHRASES, RELATION_WEIGHTS
from roibeam.pipelines.toyworld.formats import INFO
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream, Weights
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.tasks.scene_queries import (
    INVERSE,
    STRENGTHS,
    VQA_SPLITS,
    BlindReader,
    Description,
    Keys,
    SceneQueries,
    Task,
    pattern_of,
)
from roibeam.pipelines.toyworld.world import CATEGORIES, COLOURS, PATTERNS
from roibeam.pipelines.toyworld.world_files import write_text

YES, NO, NO_PATTERN = "yes", "no", "none"
# Kind -> its names in VQA's annotations (question_type, answer_type).
TYPES = {
    "kind": ("what is the", "other"),
    "colour": ("what color is the", "other"),
    "pattern": ("what", "other"),
    "count": ("how many", "number"),
    "existence": ("is there a", "yes/no"),
    "relation": ("is the", "yes/no"),
}
_PHRASES = tuple(INVERSE)
_PATTERNED_CHANCE, _NONE_CHANCE, _SEVERAL_CHANCE = 75, 20, 70


@dataclass(frozen=True)
class Question:
    """Attributes:
    kind: of `TYPES`.
    answer: as the scene graph has it.
    keys: for a reader without the picture, see `BlindReader`.
    """

    kind: str
    text: str
    answer: str
    keys: Keys


def make_questions(known: SceneQueries, stream: IntegerStream, elsewhere: Sequence[SceneObject]) -> list[Question]:
    """Makes the questions about a picture.

    Args:
        elsewhere: things of other pictures, for questions about missing things.
    """
    found = [
        _kind(known, stream),
        _colour(known, stream),
        _pattern(known, stream),
        _count(known, stream, elsewhere),
        _existence(known, stream, elsewhere),
        _relation(known, stream),
    ]
    return [question for question in found if question is not None]


def _question(kind: str, text: str, answer: str, *about: str) -> Question:
    keys = [(kind,), *((kind, *about[: count + 1]) for count in range(len(about))), (kind, text)]
    return Question(kind, text, answer, keys)


def _kind(known: SceneQueries, stream: IntegerStream) -> Question | None:
    """Asks for the category of a thing, by its place or by an attribute that only it has."""
    if stream.percent(40):
        single = [
            (thing, name)
            for thing in known.clear
            for name in thing.attributes
            if len(known.meant(Description("", (name,)))) == 1
        ]
        if single:
            thing, name = stream.pick(single)
            return _question("kind", f"What is the {name} thing?", thing.category, name)
    links = known.clear_links(_PHRASES)
    alone = [
        (first, phrase, second)
        for first, phrase, second in links
        if sum(known.could_hold(other, phrase, second) for other in known.seen if other is not second) == 1
    ]
    if not alone:
        return None
    first, phrase, second = stream.pick(alone)
    named = known.name(second, stream)
    if named is None:
        return None
    return _question("kind", f"What is {phrase} the {named.words}?", first.category, phrase, second.category)


def _colour(known: SceneQueries, stream: IntegerStream) -> Question | None:
    thing = stream.pick(known.clear)
    named = known.name(thing, stream, without=tuple(COLOURS))
    if named is None:
        return None
    return _question("colour", f"What color is the {named.words}?", thing.colour, thing.category)


def _pattern(known: SceneQueries, stream: IntegerStream) -> Question | None:
    able = [thing for thing in known.clear if CATEGORIES[thing.category].patterns]
    patterned = [thing for thing in able if pattern_of(thing)]
    if patterned and stream.percent(_PATTERNED_CHANCE):
        able = patterned
    if not able:
        return None
    thing = stream.pick(able)
    named = known.name(thing, stream, without=PATTERNS)
    if named is None:
        return None
    answer = pattern_of(thing) or NO_PATTERN
    return _question("pattern", f"What pattern is on the {named.words}?", answer, thing.category)


def _count(known: SceneQueries, stream: IntegerStream, elsewhere: Sequence[SceneObject]) -> Question | None:
    """Asks for the number of a category, of a category and colour, or of a colour; none of what could be disputed."""
    if elsewhere and stream.percent(_NONE_CHANCE):
        near, far = stream.pick(known.clear), stream.pick(elsewhere)
        things = Description(near.category, (far.colour,)) if stream.percent(60) else Description(far.category)
        if known.meant(things):
            return None
    else:
        choices = [
            Description(category, colours)
            for thing in known.clear
            for category, colours in ((thing.category, ()), (thing.category, (thing.colour,)), ("", (thing.colour,)))
        ]
        several = [each for each in choices if len(known.meant(each)) > 1]
        things = stream.pick(several if several and stream.percent(_SEVERAL_CHANCE) else choices)
        if not all(map(known.is_clear, known.meant(things))):
            return None
    text = f"How many {things.plural} are there?"
    return _question("count", text, str(len(known.meant(things))), things.category, *things.attributes)


def _existence(known: SceneQueries, stream: IntegerStream, elsewhere: Sequence[SceneObject]) -> Question | None:
    """Asks whether a thing is there. A missing one is of another picture, or has another attribute here."""
    if stream.percent(50):
        thing = stream.pick(known.clear)
        wanted, answer = Description(thing.category, (stream.pick(thing.attributes),)), YES
    else:
        here = {thing.category for thing in known.things}
        near = [thing for thing in elsewhere if thing.category in here]
        missing = [
            description
            for thing in (near if near and stream.percent(50) else elsewhere)
            for description in (Description(thing.category, (name,)) for name in thing.attributes)
            if not known.meant(description)
        ]
        if not missing:
            return None
        wanted, answer = stream.pick(missing), NO
    return _question("existence", f"Is there {wanted.indefinite}?", answer, wanted.category, *wanted.attributes)


def _relation(known: SceneQueries, stream: IntegerStream) -> Question | None:
    links = known.clear_links(_PHRASES)
    if not links:
        return None
    weights = Weights([_LINK_WEIGHTS[phrase] for _, phrase, _ in links])
    first, phrase, second = links[stream.weighted(weights)]
    one, other = known.name(first, stream), known.name(second, stream)
    if one is None or other is None:
        return None
    words, answer = (phrase, YES) if stream.percent(50) else (INVERSE[phrase], NO)
    text = f"Is the {one.words} {words} the {other.words}?"
    return _question("relation", text, answer, words, one.category, other.category)


_LINK_WEIGHTS = {phrase: RELATION_WEIGHTS[name] for name, both in RELATION_PHRASES.items() for phrase in both}


PEOPLE = 10
# In percent: mistakes in questions of three difficulties; share of them that are the common mistake; other wordings;
# sure annotators.
_MISTAKES, _DIFFICULTIES = (2, 15, 70), Weights((70, 22, 8))
_COMMON_MISTAKE, _OTHER_WORDING, _SURE = 60, 12, 80
_NUMBER_WORDS = {"0": "zero", "1": "one"} | {str(count): word for count, word in NUMBERS.items()}
_WRONG: dict[str, tuple[str, ...]] = {
    "kind": tuple(CATEGORIES),
    "colour": tuple(COLOURS),
    "pattern": (*PATTERNS, NO_PATTERN),
    "existence": (YES, NO),
    "relation": (YES, NO),
}


def annotation(question: Question, stream: IntegerStream, *, number: int, image: int) -> dict[str, Any]:
    """Returns an entry of VQA's annotations; `number` and `image` are its ids."""
    mistakes = _MISTAKES[stream.weighted(_DIFFICULTIES)]
    common = _mistaken(question, stream)
    meant = [
        question.answer
        if not stream.percent(mistakes)
        else common
        if stream.percent(_COMMON_MISTAKE)
        else _mistaken(question, stream)
        for _ in range(PEOPLE)
    ]
    question_type, answer_type = TYPES[question.kind]
    return {
        "question_type": question_type,
        "multiple_choice_answer": Counter(meant).most_common(1)[0][0],
        "answers": [
            {
                "answer": _written(question.kind, answer, stream),
                "answer_confidence": "yes" if stream.percent(_SURE) else "maybe",
                "answer_id": place,
            }
            for place, answer in enumerate(meant, 1)
        ],
        "image_id": image,
        "answer_type": answer_type,
        "question_id": number,
    }


def _mistaken(question: Question, stream: IntegerStream) -> str:
    if question.kind == "count":
        count = int(question.answer)
        return str(count + 1 if count == 0 or stream.percent(50) else count - 1)
    return stream.pick([answer for answer in _WRONG[question.kind] if answer != question.answer])


def _written(kind: str, answer: str, stream: IntegerStream) -> str:
    """Writes an answer in a form that the official metric treats alike: "2" and "two", "ball" and "a ball"."""
    if not stream.percent(_OTHER_WORDING):
        return answer
    if kind == "count":
        return _NUMBER_WORDS.get(answer, answer)
    return f"the {answer}" if kind == "kind" else answer


_PURPOSE = 4
_YEARS = {"train": "train2014", "val": "val2014"}
_ELSEWHERE = 40  # things of the pictures before, for questions about missing things
_INFO = INFO | {"version": "2.0"}
_LICENSE = {"name": "Apache License 2.0", "url": "http://www.apache.org/licenses/LICENSE-2.0"}


class VqaTask(Task):
    name, splits = "vqa", VQA_SPLITS

    def __init__(self) -> None:
        self._questions: dict[str, list[tuple[int, Question]]] = {split: [] for split in VQA_SPLITS}
        self._annotations: dict[str, list[dict[str, Any]]] = {split: [] for split in VQA_SPLITS}
        self._elsewhere: dict[str, deque[SceneObject]] = {split: deque(maxlen=_ELSEWHERE) for split in VQA_SPLITS}

    def add_to(self, split: str, picture: Picture) -> None:
        stream = IntegerStream(picture.scene.seed, _PURPOSE, picture.scene.index)
        known = SceneQueries(picture)
        elsewhere = self._elsewhere[split]
        for place, question in enumerate(make_questions(known, stream, list(elsewhere))):
            number = picture.number * 1000 + place
            self._questions[split].append((number, question))
            entry = annotation(question, stream, number=number, image=picture.number)
            self._annotations[split].append(entry)
        elsewhere.extend(known.clear)

    def rows(self) -> dict[str, int]:
        return {split: len(questions) for split, questions in self._questions.items()}

    def write(self, folder: Path) -> None:
        for split, year in _YEARS.items():
            shared = {"info": _INFO, "license": _LICENSE, "data_subtype": year, "data_type": "mscoco"}
            questions = [
                {"image_id": number // 1000, "question": question.text, "question_id": number}
                for number, question in self._questions[split]
            ]
            questions_file = shared | {"task_type": "Open-Ended", "questions": questions}
            write_text(folder / f"v2_OpenEnded_mscoco_{year}_questions.json", json.dumps(questions_file) + "\n")
            annotations_file = shared | {"annotations": self._annotations[split]}
            write_text(folder / f"v2_mscoco_{year}_annotations.json", json.dumps(annotations_file) + "\n")

    def write_results(self, folder: Path) -> None:
        """Writes the answers of a reader with the scene graph, and of one with the training file only."""
        questions = self._questions["val"]
        _write_answers(folder / "perfect" / "vqa_val.json", [(number, each.answer) for number, each in questions])
        _write_answers(folder / "blind" / "vqa_val.json", self._guessed())

    def _guessed(self) -> list[tuple[int, str]]:
        reader = BlindReader()
        for _, question in self._questions["train"]:
            reader.learn(question.keys, question.answer)

        def guesses(strength: float) -> list[tuple[int, str]]:
            return [(number, str(reader.best(each.keys, strength))) for number, each in self._questions["val"]]

        right = {number: each.answer for number, each in self._questions["val"]}
        return max(map(guesses, STRENGTHS), key=lambda found: sum(right[number] == answer for number, answer in found))


def _write_answers(path: Path, answers: list[tuple[int, str]]) -> None:
    rows = [{"question_id": number, "answer": answer} for number, answer in answers]
    write_text(path, json.dumps(rows) + "\n")
