"""NLVR2: {train,dev,test1}.json, and images/ with the pictures under the names that statements give them.

A set has one statement and four pairs, which the official consistency joins to one group. NLVR2 names a picture after
its pair, so that one picture of the world has many names here: images/ links them, left_url and right_url tell which.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.pipelines.data.datasets.json_pieces import read_json_lines
from roibeam.pipelines.toyworld.files import write_text
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.tasks.known_picture import KnownPicture
from roibeam.pipelines.toyworld.tasks.statements import PAIRS, PicturePool, Statement, make_statements
from roibeam.pipelines.toyworld.tasks.task_splits import NLVR2_SPLITS, place_name

_PURPOSE = 8
IMAGES_FOLDER = "images"
# Pictures are taken together in this number, and one statement is made for every two.
POOL = 60
_PICTURES_PER_STATEMENT = 2
_TRAIN_FOLDERS = 100
_URL = "http://toyworld.invalid/"
_SPLIT_OF = {place: split for split, places in NLVR2_SPLITS.items() for place in places}


@dataclass(frozen=True)
class _Set:
    number: int
    pictures: tuple[Picture, ...]
    statement: Statement


class Nlvr2Task:
    """Takes the world's pictures in their order, then writes."""

    name = "nlvr2"

    def __init__(self) -> None:
        self._waiting: dict[str, list[Picture]] = {split: [] for split in NLVR2_SPLITS}
        self._sets: dict[str, list[_Set]] = {split: [] for split in NLVR2_SPLITS}

    def add(self, picture: Picture) -> None:
        split = _SPLIT_OF.get(place_name(picture))
        if split is None:
            return
        self._waiting[split].append(picture)
        if len(self._waiting[split]) == POOL:
            self._make(split)

    def _make(self, split: str) -> None:
        """Statements about the pictures that have come since the last ones."""
        pictures, self._waiting[split] = tuple(self._waiting[split]), []
        if len(pictures) < PAIRS:
            return
        stream = IntegerStream(pictures[0].scene.seed, _PURPOSE, pictures[0].scene.index)
        pool = PicturePool([KnownPicture(picture) for picture in pictures])
        made = self._sets[split]
        for statement in make_statements(pool, len(pictures) // _PICTURES_PER_STATEMENT, stream):
            made.append(_Set(len(made), pictures, statement))

    def close(self) -> None:
        """After the last picture."""
        for split in NLVR2_SPLITS:
            self._make(split)

    def rows(self) -> dict[str, int]:
        return {split: PAIRS * len(sets) for split, sets in self._sets.items()}

    def links(self) -> Iterator[tuple[Picture, str]]:
        """Pictures, and where they belong below the folder of the task."""
        for split, sets in self._sets.items():
            for each in sets:
                for place, (pair, _) in enumerate(each.statement.pairs):
                    for side, picture in enumerate(pair):
                        yield each.pictures[picture], _image_file(split, each.number, place, side)

    def write(self, folder: Path) -> None:
        for split, sets in self._sets.items():
            rows = [_row(split, each, place) for each in sets for place in range(PAIRS)]
            write_text(folder / f"{split}.json", "".join(f"{json.dumps(row)}\n" for row in rows))

    def write_results(self, folder: Path) -> None:
        """Of who knows the scene graphs, and of who knows no picture. A statement is as often false as true, so that
        one word for all rows is as good as any."""
        for split in ("dev", "test1"):
            right, guessed = list[str](), list[str]()
            for each in self._sets[split]:
                for place, (_, is_true) in enumerate(each.statement.pairs):
                    identifier = _identifier(split, each.number, place)
                    right.append(f"{identifier},{is_true}\n")
                    guessed.append(f"{identifier},True\n")
            write_text(folder / "perfect" / f"nlvr2_{split}.csv", "".join(right))
            write_text(folder / "blind" / f"nlvr2_{split}.csv", "".join(guessed))


def read_names(folder: Path) -> Iterator[tuple[str, str]]:
    """(path below the task's folder, path of the picture below the world's) of all names that statements give.

    Raises:
        ValueError: for a file that is not as this task writes it.
    """
    for split in NLVR2_SPLITS:
        for where, row in read_json_lines(str(folder / f"{split}.json")):
            fields = str(row.get("identifier")).split("-")
            urls = [str(row.get(f"{side}_url")) for side in ("left", "right")]
            if len(fields) != 4 or not all(url.startswith(_URL) for url in urls):
                raise ValueError(f"{where}: no statement about pictures of a toy world; write the tasks anew")
            for side, url in enumerate(urls):
                yield _image_file(split, int(fields[1]), int(fields[2]), side), url.removeprefix(_URL)


def _row(split: str, each: _Set, place: int) -> dict[str, Any]:
    (left, right), is_true = each.statement.pairs[place]
    urls = [
        f"{_URL}{picture.place.dataset}/{picture.file_name}" for picture in (each.pictures[left], each.pictures[right])
    ]
    row = {
        "sentence": each.statement.text,
        "label": str(is_true),
        "identifier": _identifier(split, each.number, place),
        "left_url": urls[0],
        "right_url": urls[1],
    }
    return row | ({"directory": each.number % _TRAIN_FOLDERS} if split == "train" else {})


def _identifier(split: str, number: int, place: int) -> str:
    return f"{split}-{number}-{place}-0"


def _image_file(split: str, number: int, place: int, side: int) -> str:
    """As the official folders have it: the training pictures lie in a hundred of them."""
    folder = f"train/{number % _TRAIN_FOLDERS}" if split == "train" else split
    return f"{IMAGES_FOLDER}/{folder}/{split}-{number}-{place}-img{side}.png"
