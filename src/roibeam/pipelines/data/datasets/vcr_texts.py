"""What VCR's questions say, in words: {train,val}.jsonl name objects by number, texts for a model name them by word.

People become names that fit anyone, in the order in which a text mentions them, as in rowanz/r2c and, after it,
uclanlp/visualbert dataloaders/vcr_data_utils.py; other objects become the names of their classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from roibeam.pipelines.common.files.image_ids import is_utf8, path_below
from roibeam.pipelines.data.datasets.image_boxes import shown
from roibeam.pipelines.data.datasets.json_pieces import read_json_lines
from roibeam.pipelines.data.datasets.vcr import NUM_CHOICES

PERSON = "person"
_EVERYONE = ("everyone", "everyones")

# The releases' list, in which Peyton stands twice.
NAMES = (
    "Casey", "Riley", "Jessie", "Jackie", "Avery", "Jaime", "Peyton", "Kerry", "Jody", "Kendall", "Peyton", "Skyler",
    "Frankie", "Pat", "Quinn",
)  # fmt: skip

VcrTokens = Sequence[str | list[int]]  # words, and lists of the objects that a tag names


class VcrText(NamedTuple):
    """Words parted by single spaces, and which of them name an object: (place among the words, its number)."""

    words: str
    objects: tuple[tuple[int, int], ...]


class VcrChoice(NamedTuple):
    """What precedes a choice (the question; of a rationale its right answer too), the choice, whether it is right."""

    context: VcrText
    choice: VcrText
    is_right: bool


@dataclass(frozen=True)
class VcrQuestion:
    """Attributes:
    where: file and line, for errors.
    split: first part of its annot_id: train, val or test.
    image: path below the image folder.
    shown: numbers of the objects that it shows, see `named_objects`.
    choices: four answers, then four rationales.
    """

    where: str
    split: str
    image: str
    shown: tuple[int, ...]
    choices: tuple[VcrChoice, ...]


@dataclass(frozen=True)
class VcrAsked:
    """A question as its file has it: objects by number.

    Attributes:
        where: file and line, for errors.
        annot_id: such as "val-0", by which results name it.
        image: path below the image folder.
        img_id: such as "val-12", another name of the image; "" where the file has none.
        objects: class names of the image's objects, in the order of its boxes.
        answers, rationales: four texts each.
        answer, rationale: which is right; None in a test file, which does not tell.
    """

    where: str
    annot_id: str
    image: str
    img_id: str
    objects: tuple[str, ...]
    question: VcrTokens
    answers: tuple[VcrTokens, ...]
    rationales: tuple[VcrTokens, ...]
    answer: int | None
    rationale: int | None


def read_vcr_asked(path: str) -> Iterator[VcrAsked]:
    """The questions of an annotation file in its order, those of a test file too.

    Raises:
        ValueError: naming the line that is not as VCR writes it.
    """
    for where, row in read_json_lines(path):
        annotation, image = _named(row, where)
        yield _asked(row, where, annotation, image)


def read_vcr_questions(path: str) -> Iterator[VcrQuestion]:
    """The questions of an annotation file in its order; those of a test file, which has no labels, without choices.

    Raises:
        ValueError: naming the line that is not as VCR writes it.
    """
    for where, row in read_json_lines(path):
        annotation, image = _named(row, where)
        asked = _asked(row, where, annotation, image)
        choices = tuple(_choices(asked)) if "answer_label" in row else ()
        yield VcrQuestion(where, annotation.partition("-")[0], image, named_objects(asked), choices)


def named_objects(asked: VcrAsked) -> tuple[int, ...]:
    """Numbers of the objects that question, answers or rationales name, in their order; "everyone" names all people.

    All people where nothing is named (rowanz/r2c dataloaders/vcr.py). The same for all choices, so that they tell
    nothing of which is right.
    """
    people = {number for number, kind in enumerate(asked.objects) if kind == PERSON}
    found: set[int] = set()
    for text in (asked.question, *asked.answers, *asked.rationales):
        for token in text:
            if not isinstance(token, str):
                found.update(token)
            elif token.lower() in _EVERYONE:
                found |= people
    return tuple(sorted(found or people))


def names_by_mention(
    tokens: VcrTokens,
    objects: Sequence[str],
    known: Mapping[int, str] | None = None,
    *,
    people: int | None = None,
    people_names: Sequence[str] = NAMES,
) -> dict[int, str]:
    """What the objects of a text are called, besides those that have a name: people in turn, others by their class.

    Args:
        known: number of an object -> its name.
        people: how many names are used up; None counts the people that are known.
        people_names: names of people, used again when there are more people.
    """
    names = dict(known or {})
    used = sum(objects[number] == PERSON for number in names) if people is None else people
    for number in (number for token in tokens if not isinstance(token, str) for number in token):
        if number not in names:
            is_person = objects[number] == PERSON
            names[number] = people_names[used % len(people_names)] if is_person else objects[number]
            used += is_person
    return names


def _named(row: dict[str, Any], where: str) -> tuple[str, str]:
    """annot_id, and the image's path below the image folder."""
    name, annotation = row.get("img_fn"), row.get("annot_id")
    if not isinstance(name, str) or not isinstance(annotation, str):
        raise ValueError(
            f"{where}: expected a VCR row with img_fn and annot_id, got {shown(name)} and {shown(annotation)}"
        )
    try:
        return annotation, path_below(name)
    except ValueError as error:
        raise ValueError(f"{where}: img_fn {name!r}: {error}") from None


def _asked(row: dict[str, Any], where: str, annotation: str, image: str) -> VcrAsked:
    objects = row.get("objects")
    if not isinstance(objects, list) or not all(isinstance(each, str) and is_utf8(each) for each in objects):
        raise ValueError(f"{where}: objects must be a list of names, got {shown(objects)}")
    question = _tokens(row.get("question"), objects, f"{where}: question")
    texts: list[tuple[VcrTokens, ...]] = []
    labels: list[int | None] = []
    for kind in ("answer", "rationale"):
        choices, label = row.get(f"{kind}_choices"), row.get(f"{kind}_label")
        if not isinstance(choices, list) or len(choices) != NUM_CHOICES:
            raise ValueError(f"{where}: {kind}_choices must be a list of {NUM_CHOICES}, got {shown(choices)}")
        if not (label is None and "answer_label" not in row) and (
            type(label) is not int or not 0 <= label < NUM_CHOICES
        ):
            raise ValueError(f"{where}: {kind}_label must be in 0..{NUM_CHOICES - 1}, got {shown(label)}")
        texts.append(tuple(_tokens(choice, objects, f"{where}: {kind}_choices") for choice in choices))
        labels.append(label)
    img_id = row.get("img_id", "")
    if not isinstance(img_id, str):
        raise ValueError(f"{where}: img_id must be a name, got {shown(img_id)}")
    return VcrAsked(
        where, annotation, image, img_id, tuple(objects), question, texts[0], texts[1], labels[0], labels[1]
    )


def _choices(asked: VcrAsked) -> Iterator[VcrChoice]:
    """Those of a question with labels."""
    context = list(asked.question)
    for choices, label in ((asked.answers, asked.answer), (asked.rationales, asked.rationale)):
        assert label is not None
        known = names_by_mention(context, asked.objects)
        for index, choice in enumerate(choices):
            names = names_by_mention(choice, asked.objects, known)
            yield VcrChoice(_text(context, names), _text(choice, names), index == label)
        context += choices[label]


def _tokens(value: Any, objects: Sequence[str], where: str) -> VcrTokens:
    """A text as VCR writes it: words, and lists of the objects that a tag names."""
    if isinstance(value, list) and value:
        for token in value:
            is_word = isinstance(token, str) and is_utf8(token)
            is_tag = isinstance(token, list) and all(type(each) is int and 0 <= each < len(objects) for each in token)
            if not is_word and not is_tag:
                raise ValueError(
                    f"{where}: expected words and lists of object numbers below {len(objects)}, got {shown(token)}"
                )
        return value
    raise ValueError(f"{where} must be a list of words and object numbers, got {shown(value)}")


def _text(tokens: VcrTokens, names: Mapping[int, str]) -> VcrText:
    """One name for each object of a tag; a name of several words is where its first one stands."""
    words: list[str] = []
    named: list[tuple[int, int]] = []
    for token in tokens:
        if isinstance(token, str):
            words += token.split()
            continue
        for number in token:
            name = names[number].split()
            named += [(len(words), number)] * bool(name)
            words += name
    return VcrText(" ".join(words), tuple(named))
