"""Karpathy's splits: dataset_coco.json and dataset_flickr30k.json, images with their captions and a split for each.

Id rule: `filename` without its extension ("COCO_val2014_000000391895", "36979"), as that of COCO's own files;
`filepath` ("val2014", in COCO's file only) is the folder that the image lies in, no part of its id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from roibeam.features.counted import counted
from roibeam.pipelines.foundation.files.image_ids import image_id_of, is_utf8, path_below
from roibeam.pipelines.sources.datasets.image_boxes import shown
from roibeam.pipelines.sources.datasets.json_pieces import read_json_members
from roibeam.pipelines.sources.datasets.rows import EMPTY_CAPTION, BadRow, BadRows

EXPECTED = 'a Karpathy split with a list "images" of files and sentences'
SPLITS = ("train", "restval", "val", "test")
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
    """

    image_id: str
    file_name: str
    number: int
    coco_id: int | None
    split: str
    sentences: tuple[KarpathySentence, ...]

    def captions(self, index: int, empty: BadRows) -> Iterator[str]:
        """The texts of its sentences; empty ones are counted.

        Args:
            index: its place in the file.
        """
        for sentence in self.sentences:
            if sentence.text:
                yield sentence.text
            else:
                empty.add(BadRow(index, EMPTY_CAPTION))


def read_karpathy(path: str, *, id_rule: str = "no-extension") -> Iterator[KarpathyImage]:
    """Images in file order, one at a time in memory.

    Raises:
        ValueError: naming the file and the entry that is not as Karpathy's files have it. A split of another name is
            one: nobody could tell whether it may be trained on.
    """
    has_images = False
    for name, index, entry in read_json_members(path, expected=EXPECTED):
        if name != "images" or (index is None and entry != []):
            continue
        has_images = True
        if index is not None:
            yield _image(entry, f"{path!r}, images[{index}]", id_rule)
    if not has_images:
        raise ValueError(f"{path!r}: expected {EXPECTED}, got other json")


def evaluation_note(num_captions: int) -> list[str]:
    """What to tell of captions that were left out because they are not of `TRAINING_SPLITS`; nothing of none."""
    if not num_captions:
        return []
    return [f"{counted(num_captions, 'caption')} of the splits val and test left out: evaluation data"]


def _image(entry: Any, where: str, id_rule: str) -> KarpathyImage:
    name = _value(entry, "filename", str, where)
    folder = _value(entry, "filepath", str, where) if "filepath" in entry else ""
    try:
        image_id = image_id_of(path_below(name), id_rule=id_rule)
        below = path_below(os.path.join(folder, path_below(name)))
    except ValueError as error:
        raise ValueError(f"{where}: {shown(os.path.join(folder, name))}: {error}") from None
    split = _value(entry, "split", str, where)
    if split not in SPLITS:
        raise ValueError(f"{where}: split must be one of {', '.join(SPLITS)}, got {shown(split)}")
    sentences = _value(entry, "sentences", list, where)
    return KarpathyImage(
        image_id,
        below,
        _value(entry, "imgid", int, where),
        _value(entry, "cocoid", int, where) if "cocoid" in entry else None,
        split,
        tuple(_sentence(each, f"{where}, sentences[{place}]") for place, each in enumerate(sentences)),
    )


def _sentence(entry: Any, where: str) -> KarpathySentence:
    raw = entry.get("raw", "") if isinstance(entry, dict) else None
    text = (
        "" if isinstance(entry, dict) and "raw" in entry and raw is None else _value(entry, "raw", str, where).strip()
    )
    tokens = _value(entry, "tokens", list, where)
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError(f"{where}: tokens must be a list of words, got {shown(tokens)}")
    if not all(is_utf8(each) for each in (text, *tokens)):
        raise ValueError(f"{where}: the caption holds half a surrogate pair; write it as UTF-8")
    return KarpathySentence(_value(entry, "sentid", int, where), text, tuple(tokens))


def _value(entry: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected an object, got {shown(entry)}")
    if key not in entry:
        raise ValueError(f"{where} lacks {key}")
    if type(entry[key]) is not kind:  # not isinstance: json's true is no number
        expected = {int: "a whole number", str: "text", list: "a list"}[kind]
        raise ValueError(f"{where}: {key} must be {expected}, got {shown(entry[key])}")
    return entry[key]
