"""Visual Genome: objects as the bottom-up-attention detector was trained on them (data/genome), and questions.

    train.txt, val.txt, test.txt     lines "VG_100K_2/2415417.jpg xml/2415417.xml"; xmax is x + width
    objects_vocab.txt, attributes_vocab.txt    one line for each id: a name, then other spellings of it after commas
    image_data.json                  [{"image_id": 1, "url": ".../VG_100K_2/1.jpg", "coco_id": null, "flickr_id": null}]
    question_answers.json            [{"id": 1, "qas": [{"qa_id": 986, "image_id": 1, "question": ..., "answer": ...}]}]

Id rule: the image's path in the list without its extension ("VG_100K_2/2415417"); of a question's photo that COCO has
too, COCO's number with twelve digits ("000000000790"). Names are compared in lower case. As in the original, an object
or attribute that no vocabulary has is left out, and so are attributes after an object's sixteenth. Not as there, a box
without area is left out too, instead of taken for the whole image.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from roibeam.pipelines.common.image_ids import image_id_of, path_below
from roibeam.pipelines.data.datasets.class_names import read_class_names
from roibeam.pipelines.data.datasets.image_boxes import (
    NO_ATTRIBUTE,
    FileObjects,
    LabelledImage,
    excerpt,
    label_image,
    read_annotation_xml,
    typed_fields,
    xml_number,
    xml_text,
)
from roibeam.pipelines.data.datasets.rows import BadRow, parsed_rows, read_json_list, read_lines

IMAGE_DATA = "the list of images of Visual Genome's image_data.json"
_IMAGE_URL = re.compile(r"/(VG_100K(?:_2)?/[0-9]+\.[a-z]+)$", re.ASCII)
MAX_ATTRIBUTES = 16  # of one object, as lib/datasets/vg.py keeps


@dataclass(frozen=True)
class NameList:
    """A vocabulary file: names in id order, and the id of each spelling in lower case."""

    names: tuple[str, ...]
    ids: Mapping[str, int]


@dataclass(frozen=True)
class SplitRow:
    """One line of a split's list: its number (from 1), the image's id and path, and the path of its xml file."""

    line: int
    image_id: str
    file_name: str
    annotation: str


def read_names(path: str) -> NameList:
    """Reads a vocabulary, see `read_class_names`; the last line may lack its newline.

    Where two lines have one spelling, the later one has it, as in the original.
    """
    names: list[str] = []
    ids: dict[str, int] = {}
    for text in read_class_names(path):
        spellings = [spelling.strip() for spelling in text.split(",")]
        ids.update((spelling.lower(), len(names)) for spelling in spellings if spelling)
        names.append(spellings[0])
    return NameList(tuple(names), MappingProxyType(ids))


def read_split(path: str, *, id_rule: str = "no-extension") -> Iterator[SplitRow | BadRow]:
    """Rows of a split's list in its order; blank lines are passed over."""

    def parse(line: int, text: str) -> SplitRow | None:
        paths = text.split()
        if len(paths) not in (0, 2):
            raise ValueError("not two paths")
        if not paths:
            return None
        image, annotation = map(path_below, paths)
        return SplitRow(line, image_id_of(image, id_rule=id_rule), image, annotation)

    return parsed_rows(read_lines(path), parse)


def read_visual_genome(path: str, objects: NameList, attributes: NameList) -> Iterator[LabelledImage | BadRow]:
    """The labelled images of a split's list, in its order; an image without an object of the vocabulary has K = 0.

    An image without an xml file (the original writes none where no object is left) or with a damaged one is a bad row.

    Raises:
        ValueError: at the end, if the list names images and none of them has a readable xml file.
    """
    folder = os.path.dirname(os.path.abspath(path))
    num_read = num_bad = 0
    for row in read_split(path):
        outcome = row if isinstance(row, BadRow) else _outcome(folder, row, objects, attributes)
        num_read += isinstance(outcome, LabelledImage)
        num_bad += isinstance(outcome, BadRow)
        yield outcome
    if num_bad and not num_read:
        raise ValueError(
            f"{path!r}: none of its {num_bad} lines names an xml file that can be read below {folder!r}; the xml files "
            f"lie beside the list, as bottom-up attention has them in data/genome"
        )


def _outcome(folder: str, row: SplitRow, objects: NameList, attributes: NameList) -> LabelledImage | BadRow:
    path = os.path.join(folder, row.annotation)
    try:
        return read_annotation(path, row.image_id, row.file_name, objects, attributes)
    except (FileNotFoundError, NotADirectoryError):
        return BadRow(row.line, "no xml file")
    except ValueError:
        return BadRow(row.line, "damaged xml file")


def read_image_data(path: str, *, id_rule: str = "no-extension") -> Iterator[tuple[str, str] | BadRow]:
    """The images of visualgenome.org's image_data.json in its order: id, and path ("VG_100K_2/1.jpg") by their URL.
    Raises ValueError if it is no json list; at the end, if no entry has such a URL."""
    first_bad, is_usable = "", False
    for number, entry in enumerate(read_json_list(path, expected=IMAGE_DATA), start=1):
        url = entry.get("url") if isinstance(entry, dict) else None
        match = _IMAGE_URL.search(url) if isinstance(url, str) else None
        if match is None:
            expected = "expected a url that ends in VG_100K/<number>.jpg"
            first_bad = first_bad or f"{path!r}, entry {number - 1}: {expected}, got {excerpt(url)}"
            yield BadRow(number, "no url that ends in VG_100K/<number>.jpg")
            continue
        is_usable = True
        yield image_id_of(match[1], id_rule=id_rule), match[1]
    if first_bad and not is_usable:
        raise ValueError(first_bad)


def read_object_names(path: str) -> tuple[str, ...]:
    """The names of the objects in an xml file, each once, in lower case and in file order; of no vocabulary."""
    names = (xml_text(entry, "name").lower() for entry in read_annotation_xml(path, "Visual Genome").iterfind("object"))
    return tuple(dict.fromkeys(name for name in names if name))


def read_annotation(path: str, image_id: str, file_name: str, objects: NameList, attributes: NameList) -> LabelledImage:
    """One image's xml file; `image_id` and `file_name` are passed on."""
    found = read_annotation_xml(path, "Visual Genome")
    boxes: list[tuple[float, ...]] = []
    rows: list[tuple[int, int, bool]] = []
    attribute_ids = np.full((len(found.findall("object")), MAX_ATTRIBUTES), NO_ATTRIBUTE, np.int64)
    left_out: list[str] = []
    for entry in found.iterfind("object"):
        class_id = objects.ids.get(xml_text(entry, "name").lower())
        box = tuple(xml_number(entry, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax"))
        if class_id is None or None in box:
            left_out.append("object not in the vocabulary" if class_id is None else "object without a box")
            continue
        names = [(each.text or "").strip().lower() for each in entry.iterfind("attribute")]
        known = list(dict.fromkeys(attributes.ids[name] for name in names if name in attributes.ids))
        left_out += ["attribute not in the vocabulary"] * sum(name not in attributes.ids for name in names)
        left_out += [f"attribute after the {MAX_ATTRIBUTES}th"] * len(known[MAX_ATTRIBUTES:])
        attribute_ids[len(rows), : len(known)] = known[:MAX_ATTRIBUTES]
        boxes.append(box)  # type: ignore[arg-type]
        number = xml_number(entry, "object_id")
        rows.append((class_id, int(number) if number is not None else -1, xml_text(entry, "difficult") == "1"))
    width, height = (xml_number(found, f"size/{edge}") for edge in ("width", "height"))
    has_size = width is not None and height is not None and width >= 1 and height >= 1
    table = np.array(rows, np.int64).reshape(-1, 3)
    return label_image(
        image_id,
        file_name,
        (int(height), int(width)) if has_size else None,  # type: ignore[arg-type]
        FileObjects(
            boxes=np.array(boxes, np.float64).reshape(-1, 4),
            class_ids=table[:, 0],
            attribute_ids=attribute_ids[: len(rows)],
            annotation_ids=table[:, 1],
            areas=np.full(len(rows), np.nan),
            crowds=np.zeros(len(rows), bool),
            ignored=table[:, 2] == 1,
        ),
        left_out=left_out,
    )


QUESTIONS = "Visual Genome's question_answers.json, a list of photos with their questions"
PHOTOS = "Visual Genome's image_data.json, a list of photos"
_URL = re.compile(r"/(VG_100K(?:_2)?/[0-9]+)\.[a-z]+$", re.ASCII)


class GenomeQuestion(NamedTuple):
    """Attributes:
    where: file and entry, for errors.
    number: its qa_id.
    image: what its photo is called.
    coco: COCO's number of the photo; None where COCO has it not.
    question, answer: as written.
    """

    where: str
    number: int
    image: str
    coco: int | None
    question: str
    answer: str


def read_genome_questions(questions: str, photos: str) -> Iterator[GenomeQuestion]:
    """The questions in the order of their file."""
    known = dict(_photos(photos))
    for index, entry in enumerate(read_json_list(questions, expected=QUESTIONS)):
        pairs = entry.get("qas") if isinstance(entry, dict) else None
        if not isinstance(pairs, list):
            raise ValueError(f"{questions!r}, entry {index}: expected a photo with its qas, got {excerpt(entry)}")
        for place, each in enumerate(pairs):
            where = f"{questions!r}, entry {index}, qas[{place}]"
            number, photo = typed_fields(each, f"{where}: expected", qa_id=int, image_id=int)
            if photo not in known:
                raise ValueError(f"{where}: photo {photo} is not in {photos!r}; are both of one release?")
            texts = typed_fields(each, f"{where}: expected", question=str, answer=str)
            yield GenomeQuestion(where, number, *known[photo], *texts)


def _photos(path: str) -> Iterator[tuple[int, tuple[str, int | None]]]:
    for index, entry in enumerate(read_json_list(path, expected=PHOTOS)):
        where = f"{path!r}, entry {index}"
        number, url = typed_fields(entry, f"{where}: expected", image_id=int, url=str)
        coco, found = entry.get("coco_id"), _URL.search(url)
        if found is None or not (coco is None or type(coco) is int):
            raise ValueError(f"{where}: expected a url of VG_100K or VG_100K_2 and a coco_id, got {excerpt(entry)}")
        yield number, (found[1] if coco is None else f"{coco:012d}", coco)
