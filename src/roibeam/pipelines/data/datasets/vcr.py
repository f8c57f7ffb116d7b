"""VCR (visualcommonsense.com): {train,val,test}.jsonl beside vcr1images/<movie>/<name>.jpg and <name>.json.

Id rule: `img_fn` without its extension ("lsmdc_3005_.../3005_...@0"), which is also what the folder vcr1images gives.
An image's boxes are in the metadata beside it: x1 y1 x2 y2 score, in the order in which questions number the objects.

Texts name objects by number; for a model they become words. People become names that fit anyone, in the order in which
a text mentions them, as in rowanz/r2c and, after it, uclanlp/visualbert dataloaders/vcr_data_utils.py; other objects
become the names of their classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roibeam.pipelines.common.image_ids import image_id_of, is_utf8, path_below
from roibeam.pipelines.data.datasets.class_names import read_class_names
from roibeam.pipelines.data.datasets.image_boxes import ImageBoxes, excerpt, parse_boxes, parse_image_hw
from roibeam.pipelines.data.datasets.rows import (
    MAX_JSON_BYTES,
    BadRow,
    are_texts,
    parsed_rows,
    read_json_lines,
    read_json_rows,
    read_small_json,
)

IMAGES_FOLDER = "vcr1images"
NUM_CHOICES = 4
# Classes of COCO as VCR writes them, in COCO's order from 1 on.
OBJECT_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "trafficlight",
    "firehydrant", "stopsign", "parkingmeter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sportsball", "kite", "baseballbat", "baseballglove", "skateboard", "surfboard", "tennisracket", "bottle",
    "wineglass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hotdog", "pizza", "donut", "cake", "chair", "couch", "pottedplant", "bed", "diningtable", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cellphone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddybear", "hairdrier", "toothbrush",
)  # fmt: skip


@dataclass(frozen=True)
class VcrImage:
    """One image of a question.

    Attributes:
        image_id: by the id rule.
        file_name: path below the image folder.
        objects: names of what is in it ("person", "cup"), each once, in the order of the boxes.
    """

    image_id: str
    file_name: str
    objects: tuple[str, ...]


def read_vcr_images(path: str, *, id_rule: str = "no-extension") -> Iterator[VcrImage | BadRow]:
    """Images of the questions of an annotation file, in file order: an image comes once for each question."""

    def parse(_: int, row: dict[str, Any]) -> VcrImage:
        name, objects = row.get("img_fn"), row.get("objects", [])
        if not isinstance(name, str):
            raise ValueError("no img_fn")
        if not are_texts(objects):
            raise ValueError("objects is no list of names")
        try:
            below = path_below(name)
        except ValueError as error:
            raise ValueError(f"img_fn: {error}") from None
        return VcrImage(image_id_of(below, id_rule=id_rule), below, tuple(dict.fromkeys(objects)))

    return parsed_rows(read_json_rows(path), parse)


@dataclass(frozen=True)
class VcrLabels:
    """Right choices of a question; `answer` and `rationale` are None in a test file, which has no labels.

    Attributes:
        where: file and line, for errors.
        annot_id: such as "val-0", by which results name it.
        image: `img_fn`.
    """

    where: str
    annot_id: str
    image: str
    answer: int | None
    rationale: int | None


def read_vcr_labels(path: str) -> Iterator[VcrLabels]:
    """The labels of an annotation file in its order."""
    for where, row in read_json_lines(path):
        annotation, image = row.get("annot_id"), row.get("img_fn")
        if not isinstance(annotation, str) or not isinstance(image, str):
            raise ValueError(
                f"{where}: expected a VCR row with annot_id and img_fn, got {excerpt(annotation)} and {excerpt(image)}"
            )
        labels = [row.get(f"{kind}_label") for kind in ("answer", "rationale")]
        if not all(label is None or (type(label) is int and 0 <= label < NUM_CHOICES) for label in labels):
            raise ValueError(f"{where}: labels must be in 0..{NUM_CHOICES - 1}, got {excerpt(labels)}")
        yield VcrLabels(where, annotation, image, labels[0], labels[1])


def metadata_path(image_path: str) -> str:
    return image_id_of(image_path) + ".json"


@dataclass(frozen=True, eq=False)
class VcrMetadata:
    """Contents of the file beside an image, on its K objects.

    Attributes:
        boxes: (K, 5) float32, x1 y1 x2 y2 in pixels of the image, and a score.
        outlines: of each object polygons, (P, 2) float32 x y in the same pixels; an object may have none.
        names: of the objects, as questions have them; () where the file has none.
        image_hw: height and width of the image, None where the file has none.
    """

    boxes: np.ndarray
    outlines: tuple[tuple[np.ndarray, ...], ...]
    names: tuple[str, ...]
    image_hw: tuple[int, int] | None


def read_vcr_metadata(path: str) -> VcrMetadata:
    """A whole metadata file."""
    content = _metadata(path)
    boxes = parse_boxes(content["boxes"], repr(path), columns=5)
    names, outlines = content.get("names", []), content.get("segms", [])
    if not are_texts(names):
        raise ValueError(f"{path!r}: names must be a list of names, got {excerpt(names)}")
    if not isinstance(outlines, list) or len(outlines) != len(boxes) or (names and len(names) != len(boxes)):
        raise ValueError(f"{path!r}: expected names and segms for each of {len(boxes)} boxes")
    read = tuple(_outline(each, f"{path!r}, segms {number}") for number, each in enumerate(outlines))
    return VcrMetadata(boxes, read, tuple(names), parse_image_hw(content))


def read_vcr_boxes(path: str, name: str) -> ImageBoxes:
    """The boxes of one metadata file, their scores left out; `name` is passed on."""
    content = _metadata(path)
    boxes = parse_boxes(content["boxes"], repr(path), columns=5)
    return ImageBoxes(name, boxes[:, :4].copy(), parse_image_hw(content))


def object_classes(names: Sequence[str], where: str, known: Sequence[str] = OBJECT_CLASSES) -> np.ndarray:
    """(R,) int64, number of each name among the known classes, from 1 on. Raises ValueError naming a class that is not
    known."""
    numbers = {name: number for number, name in enumerate(known, start=1)}
    unknown = next((name for name in names if name not in numbers), None)
    if unknown is not None:
        those = "of COCO as VCR writes them, such as 'diningtable'" if known is OBJECT_CLASSES else "of those given"
        raise ValueError(
            f"{where}: object {unknown!r} is no class {those}; vcr.object_names takes a file of other names, one a "
            "line (a toy world's is object_names.txt in the folder of its VCR)"
        )
    return np.array([numbers[name] for name in names], np.int64)


def read_object_names(path: str) -> tuple[str, ...]:
    """Names of classes, one a line, see `read_class_names`. Raises ValueError for a file that cannot be read, without a
    name, or with one twice."""
    try:
        names = tuple(name.strip() for name in read_class_names(str(Path(path).expanduser()), skip_blank=True))
    except (OSError, ValueError) as error:
        raise ValueError(f"object_names {path!r}: cannot be read: {error}") from None
    if not names or len(set(names)) < len(names):
        raise ValueError(f"object_names {path!r}: expected different names of classes, one a line")
    return names


def _metadata(path: str) -> dict[str, Any]:
    content = read_small_json(  # outlines take most of it; real ones have under 1 MB
        path,
        too_long=f"{path!r}: over {MAX_JSON_BYTES} bytes; VCR metadata is smaller",
        no_json=f"{path!r}: not a json file",
    )
    if not isinstance(content, dict) or "boxes" not in content:
        raise ValueError(f'{path!r}: expected VCR metadata with "boxes", got other json')
    return content


def _outline(polygons: Any, where: str) -> tuple[np.ndarray, ...]:
    if not isinstance(polygons, list) or not all(isinstance(polygon, list) and polygon for polygon in polygons):
        raise ValueError(f"{where}: expected a list of polygons, got {excerpt(polygons)}")
    return tuple(
        parse_boxes(polygon, f"{where}, polygon {number}", columns=2) for number, polygon in enumerate(polygons)
    )


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
    """Words before a choice (the question; of a rationale its right answer too), the choice, whether it is right."""

    context: VcrText
    choice: VcrText
    is_right: bool


@dataclass(frozen=True)
class VcrQuestion:
    """Attributes:
    where: file and line, for errors.
    split: first part of its annot_id: train, val or test.
    image: path below the image folder.
    visible: numbers of the visible objects, see `named_objects`.
    choices: four answers, then four rationales.
    """

    where: str
    split: str
    image: str
    visible: tuple[int, ...]
    choices: tuple[VcrChoice, ...]


@dataclass(frozen=True)
class RawVcrQuestion:
    """A question as its file has it: objects by number.

    Attributes:
        where: file and line, for errors.
        annot_id: such as "val-0", by which results name it.
        image: path below the image folder.
        img_id: such as "val-12", another name of the image; "" where the file has none.
        objects: class names of the image's objects, in the order of its boxes.
        answers, rationales: four texts each.
        answer, rationale: number of the right one; None in a test file, which has no labels.
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


def read_raw_vcr(path: str) -> Iterator[RawVcrQuestion]:
    """The questions of an annotation file in its order, those of a test file too."""
    for where, row in read_json_lines(path):
        yield _raw_question(row, where)


def read_vcr_questions(path: str) -> Iterator[VcrQuestion]:
    """The questions of an annotation file in its order; those of a test file, which has no labels, without choices."""
    for raw in read_raw_vcr(path):
        choices = () if raw.answer is None else tuple(_choices(raw))
        yield VcrQuestion(raw.where, raw.annot_id.partition("-")[0], raw.image, named_objects(raw), choices)


def named_objects(raw: RawVcrQuestion) -> tuple[int, ...]:
    """Numbers of the objects that question, answers or rationales name, in their order; "everyone" names all people.

    All people where nothing is named (rowanz/r2c dataloaders/vcr.py). The same for all choices, so that they give no
    hint of which is right.
    """
    people = {number for number, kind in enumerate(raw.objects) if kind == PERSON}
    found: set[int] = set()
    for text in (raw.question, *raw.answers, *raw.rationales):
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
    """Names for the objects of a text that have none yet: people's in turn, others by their class.

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
            f"{where}: expected a VCR row with img_fn and annot_id, got {excerpt(name)} and {excerpt(annotation)}"
        )
    try:
        return annotation, path_below(name)
    except ValueError as error:
        raise ValueError(f"{where}: img_fn {name!r}: {error}") from None


def _raw_question(row: dict[str, Any], where: str) -> RawVcrQuestion:
    annotation, image = _named(row, where)
    objects: Any = row.get("objects")
    if not are_texts(objects):
        raise ValueError(f"{where}: objects must be a list of names, got {excerpt(objects)}")
    question = _tokens(row.get("question"), objects, f"{where}: question")
    texts: list[tuple[VcrTokens, ...]] = []
    labels: list[int | None] = []
    for kind in ("answer", "rationale"):
        choices, label = row.get(f"{kind}_choices"), row.get(f"{kind}_label")
        if not isinstance(choices, list) or len(choices) != NUM_CHOICES:
            raise ValueError(f"{where}: {kind}_choices must be a list of {NUM_CHOICES}, got {excerpt(choices)}")
        if not (label is None and "answer_label" not in row) and (
            type(label) is not int or not 0 <= label < NUM_CHOICES
        ):
            raise ValueError(f"{where}: {kind}_label must be in 0..{NUM_CHOICES - 1}, got {excerpt(label)}")
        texts.append(tuple(_tokens(choice, objects, f"{where}: {kind}_choices") for choice in choices))
        labels.append(label)
    img_id = row.get("img_id", "")
    if not isinstance(img_id, str):
        raise ValueError(f"{where}: img_id must be a name, got {excerpt(img_id)}")
    return RawVcrQuestion(
        where, annotation, image, img_id, tuple(objects), question, texts[0], texts[1], labels[0], labels[1]
    )


def _choices(raw: RawVcrQuestion) -> Iterator[VcrChoice]:
    context = list(raw.question)
    for choices, label in ((raw.answers, raw.answer), (raw.rationales, raw.rationale)):
        assert label is not None
        known = names_by_mention(context, raw.objects)
        for index, choice in enumerate(choices):
            names = names_by_mention(choice, raw.objects, known)
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
                    f"{where}: expected words and lists of object numbers below {len(objects)}, got {excerpt(token)}"
                )
        return value
    raise ValueError(f"{where} must be a list of words and object numbers, got {excerpt(value)}")


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
