"""What VCR's questions say, in words: {train,val}.jsonl name objects by number, texts for a model name them by word.

People become names that fit anyone, in the order in which a text mentions them, as in rowanz/r2c and, after it,
uclanlp/visualbert dataloaders/vcr_data_utils.py; other objects become the names of their classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from roibeam.pipelines.foundation.files.image_ids import is_utf8, path_below
from roibeam.pipelines.sources.datasets.image_boxes import shown
from roibeam.pipelines.sources.datasets.json_pieces import read_json_lines
from roibeam.pipelines.sources.datasets.vcr import NUM_CHOICES

# The releases' list, in which Peyton stands twice.
NAMES = (
    "Casey", "Riley", "Jessie", "Jackie", "Avery", "Jaime", "Peyton", "Kerry", "Jody", "Kendall", "Peyton", "Skyler",
    "Frankie", "Pat", "Quinn",
)  # fmt: skip

_Tokens = Sequence[str | list[int]]


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
    choices: four answers, then four rationales.
    """

    where: str
    split: str
    image: str
    choices: tuple[VcrChoice, ...]


def read_vcr_questions(path: str) -> Iterator[VcrQuestion]:
    """The questions of an annotation file in its order; those of a test file, which has no labels, without choices.

    Raises:
        ValueError: naming the line that is not as VCR writes it.
    """
    for where, row in read_json_lines(path):
        name, annotation = row.get("img_fn"), row.get("annot_id")
        if not isinstance(name, str) or not isinstance(annotation, str):
            raise ValueError(
                f"{where}: expected a VCR row with img_fn and annot_id, got {shown(name)} and {shown(annotation)}"
            )
        try:
            below = path_below(name)
        except ValueError as error:
            raise ValueError(f"{where}: img_fn {name!r}: {error}") from None
        split = annotation.partition("-")[0]
        yield VcrQuestion(where, split, below, () if "answer_label" not in row else tuple(_choices(row, where)))


def _choices(row: dict[str, Any], where: str) -> Iterator[VcrChoice]:
    objects = row.get("objects")
    if not isinstance(objects, list) or not all(isinstance(each, str) and is_utf8(each) for each in objects):
        raise ValueError(f"{where}: objects must be a list of names, got {shown(objects)}")
    question = _tokens(row.get("question"), objects, f"{where}: question")
    context = question
    for kind in ("answer", "rationale"):
        choices, label = row.get(f"{kind}_choices"), row.get(f"{kind}_label")
        if not isinstance(choices, list) or len(choices) != NUM_CHOICES:
            raise ValueError(f"{where}: {kind}_choices must be a list of {NUM_CHOICES}, got {shown(choices)}")
        if type(label) is not int or not 0 <= label < NUM_CHOICES:
            raise ValueError(f"{where}: {kind}_label must be in 0..{NUM_CHOICES - 1}, got {shown(label)}")
        read = [_tokens(choice, objects, f"{where}: {kind}_choices") for choice in choices]
        for index, choice in enumerate(read):
            names = _Names(objects)
            yield VcrChoice(names.text(context), names.text(choice), index == label)
        context = [*question, *read[label]]


def _tokens(value: Any, objects: Sequence[str], where: str) -> _Tokens:
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


class _Names:
    """What the objects of an image are called in one row: an object keeps its name throughout."""

    def __init__(self, objects: Sequence[str]) -> None:
        self._objects, self._names, self._people = objects, dict[int, str](), 0

    def text(self, tokens: _Tokens) -> VcrText:
        """One name for each object of a tag; a name of several words is where its first one stands."""
        words: list[str] = []
        named: list[tuple[int, int]] = []
        for token in tokens:
            if isinstance(token, str):
                words += token.split()
                continue
            for number in token:
                name = self._name(number).split()
                named += [(len(words), number)] * bool(name)
                words += name
        return VcrText(" ".join(words), tuple(named))

    def _name(self, number: int) -> str:
        if number not in self._names:
            is_person = self._objects[number] == "person"
            self._names[number] = NAMES[self._people % len(NAMES)] if is_person else self._objects[number]
            self._people += is_person
        return self._names[number]
