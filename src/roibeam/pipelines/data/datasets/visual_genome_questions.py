"""Questions of Visual Genome (visualgenome.org): question_answers.json, with the numbers of photos in image_data.json.

    question_answers.json   [{"id": 1, "qas": [{"qa_id": 986769, "image_id": 1, "question": ..., "answer": "Green."}]}]
    image_data.json         [{"image_id": 1, "url": ".../VG_100K_2/1.jpg", "coco_id": null, "flickr_id": null}]

Id rule: COCO's number of a photo that COCO has too, spelled with twelve digits ("000000000790"), else the photo's path
without its extension ("VG_100K_2/1").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from roibeam.pipelines.common.files.image_ids import is_utf8
from roibeam.pipelines.data.datasets.image_boxes import shown
from roibeam.pipelines.data.datasets.json_pieces import read_json_list

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
    """The questions in the order of their file.

    Raises:
        ValueError: naming the entry that is not as Visual Genome writes it, or whose photo is not known.
    """
    known = dict(_photos(photos))
    for index, entry in enumerate(read_json_list(questions, expected=QUESTIONS)):
        asked = entry.get("qas") if isinstance(entry, dict) else None
        if not isinstance(asked, list):
            raise ValueError(f"{questions!r}, entry {index}: expected a photo with its qas, got {shown(entry)}")
        for place, each in enumerate(asked):
            where = f"{questions!r}, entry {index}, qas[{place}]"
            number, photo = _of_kind(each, "qa_id", int, where), _of_kind(each, "image_id", int, where)
            if photo not in known:
                raise ValueError(f"{where}: photo {photo} is not in {photos!r}; are both of one release?")
            image, coco = known[photo]
            text = (_of_kind(each, "question", str, where), _of_kind(each, "answer", str, where))
            yield GenomeQuestion(where, number, image, coco, *text)


def _photos(path: str) -> Iterator[tuple[int, tuple[str, int | None]]]:
    for index, entry in enumerate(read_json_list(path, expected=PHOTOS)):
        where = f"{path!r}, entry {index}"
        number, url = _of_kind(entry, "image_id", int, where), _of_kind(entry, "url", str, where)
        coco, found = entry.get("coco_id"), _URL.search(url)
        if found is None or not (coco is None or type(coco) is int):
            raise ValueError(f"{where}: expected a url of VG_100K or VG_100K_2 and a coco_id, got {shown(entry)}")
        yield number, (found[1] if coco is None else f"{coco:012d}", coco)


def _of_kind(entry: Any, name: str, kind: type, where: str) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if type(value) is not kind or (isinstance(value, str) and not is_utf8(value)):
        raise ValueError(f"{where}: expected {name}, of type {kind.__name__}, got {shown(value)}")
    return value
