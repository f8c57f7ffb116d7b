"""Karpathy's splits: dataset_coco.json and dataset_flickr30k.json, images with captions and a split for each.

The same as a table is flickr_annotations_30k.csv of Hugging Face's hub (columns filename and raw, a JSON list of
captions), and as .jsonline files those of jiasenlu/vilbert_beta and e-bug/volta, for retrieval: {"id": 0, "img_path":
"1000092795.jpg", "sentences": ["...", ...]}.

Id rule: `filename`, or `img_path`, without its extension ("COCO_val2014_000000391895", "36979"), as that of COCO's own
files; `filepath` ("val2014", in COCO's file only) is the folder that the image lies in, no part of its id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.messages import plural, printable
from roibeam.pipelines.common.image_ids import image_id_of, path_below
from roibeam.pipelines.data.datasets.image_boxes import excerpt
from roibeam.pipelines.data.datasets.rows import (
    EMPTY_CAPTION,
    MAX_LINE_BYTES,
    BadRow,
    BadRows,
    MissingFileError,
    are_texts,
    find_file,
    read_json_lines,
    read_json_members,
)
from roibeam.pipelines.data.datasets.tables import read_csv_table

EXPECTED = 'a Karpathy split with a list "images" of files and sentences'
SPLITS = ("train", "restval", "val", "test")
_COLUMNS = {"filename", "raw"}
TRAINING_SPLITS = ("train", "restval")  # "restval": what was left of COCO's val2014; all codes train on it


@dataclass(frozen=True)
class KarpathySentence:
    """One caption: the file's number of it ("sentid"; of a COCO caption its id), its text, and its words as split."""

    sentence_id: int
    text: str
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class KarpathyImage:
    """One image.

    Attributes:
        image_id: by the id rule.
        file_name: path below the image root, its folder (`filepath`) included.
        number: the file's number of it ("imgid").
        coco_id: COCO's number of it; None in other sets.
        split: one of `SPLITS`.
        sentences: in file order; five, rarely more.
        place: in the list of images from 0, or its line in a table.
    """

    image_id: str
    file_name: str
    number: int
    coco_id: int | None
    split: str
    sentences: tuple[KarpathySentence, ...]
    place: int

    def captions(self, bad: BadRows) -> Iterator[str]:
        """The texts of its sentences; empty ones are counted."""
        for sentence in self.sentences:
            if sentence.text:
                yield sentence.text
            else:
                bad.add(BadRow(self.place, EMPTY_CAPTION))


def read_karpathy(path: str, *, id_rule: str = "no-extension", bad: BadRows | None = None) -> Iterator[KarpathyImage]:
    """Images in file order, one at a time in memory.

    Args:
        bad: of `bad_entries`, counts images and sentences that are not as Karpathy's files have them, which are left
            out then. A split of another name is one: it may be for training or not.
    Raises:
        ValueError: naming the file, and where `bad` is None the first such image or sentence.
    """
    is_table = has_columns(path)
    for place, entry in _table_entries(path) if is_table else _json_entries(path):
        try:
            if isinstance(entry, BadRow):
                raise ValueError(entry.reason)
            yield _image(_with_sentences(entry) if is_table else entry, place, id_rule, bad)
        except ValueError as error:
            if bad is None:
                where = f"line {place}" if is_table else f"images[{place}]"
                raise ValueError(f"{path!r}, {where}: {error}") from None
            bad.add(BadRow(place, str(error).partition(", got ")[0]))


def bad_entries(path: str) -> BadRows:
    """Counter of bad entries for `read_karpathy`."""
    return BadRows("line" if has_columns(path) else "images", "item")


def has_columns(path: str) -> bool:
    """Whether a file is a table with the columns of a split."""
    with open(path, "rb") as file:
        first = file.readline(MAX_LINE_BYTES).decode("utf-8-sig", "replace")
    names = {name.strip().strip('"').lower() for name in first.split(",")}
    return names >= _COLUMNS


def _json_entries(path: str) -> Iterator[tuple[int, Any]]:
    """The images of a file, each with its place."""
    has_images = False
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name != "images" or (index is None and entry != []):
            continue
        has_images = True
        if index is not None:
            yield index, entry
    if not has_images:
        raise ValueError(f"{path!r}: expected {EXPECTED}, got other json")


def _table_entries(path: str) -> Iterator[tuple[int, BadRow | dict[str, Any]]]:
    """The rows of a table, each with its line."""
    names, rows = read_csv_table(path)
    names = [name.lower() for name in names]
    for number, row in enumerate(rows):
        if isinstance(row, BadRow):
            yield row.line, row
        else:
            yield row[0], dict(zip(names, row[1], strict=True)) | {"imgid": number}


def _with_sentences(entry: dict[str, Any]) -> dict[str, Any]:
    """A row of a table in the form that a .json has; captions are cut into words at blanks."""
    try:
        captions = json.loads(entry["raw"])
    except (ValueError, RecursionError):
        captions = None
    if not isinstance(captions, list):
        raise ValueError(f"raw must be a json list of captions, got {excerpt(entry['raw'])}")
    if entry.get("cocoid", "").isdecimal():
        entry["cocoid"] = int(entry["cocoid"])
    sentences = [{"raw": text, "tokens": str(text).split(), "sentid": place} for place, text in enumerate(captions)]
    return {"split": "train", **entry, "sentences": sentences}


def evaluation_note(num_captions: int) -> list[str]:
    """Note on captions that were left out because they are not of `TRAINING_SPLITS`; empty for none."""
    if not num_captions:
        return []
    return [f"{plural(num_captions, 'caption')} of the splits val and test left out: evaluation data"]


def _image(entry: Any, place: int, id_rule: str, bad: BadRows | None) -> KarpathyImage:
    name = _value(entry, "filename", str)
    folder = _value(entry, "filepath", str) if "filepath" in entry else ""
    try:
        image_id = image_id_of(path_below(name), id_rule=id_rule)
        below = path_below(os.path.join(folder, path_below(name)))
    except ValueError as error:
        raise ValueError(f"{error}, got {excerpt(os.path.join(folder, name))}") from None
    split = _value(entry, "split", str)
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {excerpt(split)}")
    sentences = []
    for number, each in enumerate(_value(entry, "sentences", list)):
        try:
            sentences.append(_sentence(each))
        except ValueError as error:
            if bad is None:
                raise ValueError(f"sentences[{number}]: {error}") from None
            bad.add(BadRow(place, f"caption: {error}".partition(", got ")[0]))
    return KarpathyImage(
        image_id,
        below,
        _value(entry, "imgid", int),
        _value(entry, "cocoid", int) if "cocoid" in entry else None,
        split,
        tuple(sentences),
        place,
    )


def _sentence(entry: Any) -> KarpathySentence:
    is_empty = isinstance(entry, dict) and "raw" in entry and entry["raw"] is None
    text = "" if is_empty else _value(entry, "raw", str).strip()
    tokens = _value(entry, "tokens", list)
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError(f"tokens must be a list of words, got {excerpt(tokens)}")
    if not are_texts([text, *tokens]):
        raise ValueError("the caption holds half a surrogate pair; write it as UTF-8")
    return KarpathySentence(_value(entry, "sentid", int), text, tuple(tokens))


def _value(entry: Any, key: str, kind: type) -> Any:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, got {excerpt(entry)}")
    if key not in entry:
        raise ValueError(f"lacks {key}")
    if type(entry[key]) is not kind:  # not isinstance: json's true is no number
        expected = {int: "a whole number", str: "text", list: "a list"}[kind]
        raise ValueError(f"{key} must be {expected}, got {excerpt(entry[key])}")
    return entry[key]


TRAIN = "all_data_final_train_2014.jsonline"
# Split -> names of files; the first that is there is read.
FILES = {
    "train": (TRAIN,),
    "val": ("all_data_final_val_set0_2014.jsonline", "all_data_final_val_2014.jsonline"),
    "test": ("all_data_final_test_set0_2014.jsonline", "all_data_final_test_2014.jsonline"),
}


def read_retrieval_lines(path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The id and the captions of each image, as many as there are, in file order."""
    for where, entry in read_json_lines(path):
        sentences: Any = entry.get("sentences")
        if not isinstance(entry.get("img_path"), str):
            raise ValueError(f"{where}: expected an object with img_path, the image's file, and sentences")
        if not are_texts(sentences):
            raise ValueError(f"{where}: sentences must be a list of captions")
        try:
            image_id = image_id_of(path_below(entry["img_path"]), id_rule="no-extension")
        except ValueError as error:
            raise ValueError(f"{where}: img_path: {error}") from None
        yield image_id, tuple(each.strip() for each in sentences)


KARPATHY = ("dataset_flickr30k.json", "dataset_coco.json", "dataset_flickr8k.json")
RETRIEVAL_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class CaptionedPicture:
    """An image by the name that the file has for it, with its captions in their order."""

    image: str
    captions: tuple[str, ...]

    def caption_id(self, number: int) -> str:
        """Caption id in Flickr30k's form."""
        return f"{self.image}#{number}"


def read_captioned(folder: Path, split: str, *, most_captions: int = 0) -> tuple[list[CaptionedPicture], Path]:
    """The pictures of a split in the order of their file, and the file. COCO's "restval" is trained on.

    Args:
        folder: with files of one data set, found by their names.
        most_captions: of an image, the first ones; 0 for all. fartashf/vsepp takes 5.
    """
    path = _file(folder, split)
    pictures = [
        CaptionedPicture(image, tuple(captions)[: most_captions or None]) for image, captions in _rows(path, split)
    ]
    if not pictures:
        raise ValueError(f"{str(path)!r}: no image of the split {split}")
    seen: set[str] = set()
    for picture in pictures:
        if not picture.captions or not all(picture.captions):
            raise ValueError(f"{str(path)!r}: the image {printable(picture.image, 80)} has an empty caption, or none")
        if picture.image in seen:
            raise ValueError(f"{str(path)!r}: the image {printable(picture.image, 80)} comes twice")
        seen.add(picture.image)
    return pictures, path


def _file(folder: Path, split: str) -> Path:
    found = []
    for names in (*((name,) for name in KARPATHY), FILES[split]):
        try:
            found.append(find_file(folder, *names))
        except MissingFileError:
            continue
    if not found:
        raise MissingFileError(
            f"--data {str(folder)!r} holds none of {', '.join((*KARPATHY, *FILES[split]))}, in itself or in a folder "
            f"of it"
        )
    if len(found) > 1:
        raise ValueError(f"--data {str(folder)!r} holds {found[0]} and {found[1]}; name a folder with one data set")
    return found[0]


def _rows(path: Path, split: str) -> Iterable[tuple[str, Sequence[str]]]:
    if path.suffix == ".json":
        splits = TRAINING_SPLITS if split == "train" else (split,)
        for image in read_karpathy(str(path)):
            if image.split in splits:
                yield image.image_id, [sentence.text for sentence in image.sentences]
    else:
        yield from read_retrieval_lines(str(path))
