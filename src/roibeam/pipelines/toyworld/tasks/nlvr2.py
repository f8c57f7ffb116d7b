"""NLVR2 about drawn pictures: {train,dev,test1}.json, and images/ with the pictures under the names of NLVR2.

Each statement about two pictures has four pairs, two true and two false, which the official consistency joins to one
group; so nothing can be guessed from a statement. A false pair is hard where possible: the same pictures the other way
round, or a picture that has the thing with another attribute. NLVR2 names a picture after its pair, so one picture of
the world has many names here: images/ links them, left_url and right_url give them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from roibeam.pipelines.data.datasets.rows import read_json_lines
from roibeam.pipelines.toyworld.captions import NUMBERS
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.tasks.scene_queries import (
    INVERSE,
    NLVR2_SPLITS,
    Description,
    SceneQueries,
    Task,
    shuffled,
)
from roibeam.pipelines.toyworld.world_files import write_text

PAIRS, TRIES = 4, 60
_NUMBERS = {0: "no", 1: "one"} | NUMBERS
Pair = tuple[int, int]  # places of the left and the right picture


@dataclass(frozen=True)
class Statement:
    """`pairs` has (left and right picture, whether the text is true of them), in an order drawn by lot."""

    text: str
    pairs: tuple[tuple[Pair, bool], ...]


@dataclass
class PicturePool:
    """Pictures that are joined to pairs; a picture is named by its place here."""

    pictures: Sequence[SceneQueries]
    _counts: dict[Description, list[int | None]] = field(default_factory=dict)

    def counts(self, description: Description) -> list[int | None]:
        """Counts of a description in each picture; None where a thing is not clear, so that the count is disputable."""
        if description not in self._counts:
            self._counts[description] = [_count(known, description) for known in self.pictures]
        return self._counts[description]

    def has_link(self, first: str, phrase: str, second: str) -> list[bool | None]:
        """Whether a thing of the first category stands so to one of the second; None where that is disputable."""
        return [_has_link(known, first, phrase, second) for known in self.pictures]

    @cached_property
    def linked(self) -> list[tuple[str, str, str]]:
        """Relations of categories in any picture, of the clear things alone."""
        return [
            (first.category, phrase, second.category)
            for known in self.pictures
            for first, phrase, second in known.clear_links(INVERSE)
        ]


def _count(known: SceneQueries, description: Description) -> int | None:
    found = known.meant(description)
    return len(found) if all(map(known.is_clear, found)) else None


def _has_link(known: SceneQueries, first: str, phrase: str, second: str) -> bool | None:
    ones, others = known.meant(Description(first)), known.meant(Description(second))
    pairs = [(one, other) for one in ones for other in others if one is not other]
    if any(known.holds(one, phrase, other) and known.is_clear(one) and known.is_clear(other) for one, other in pairs):
        return True
    argued = any(one.ignored or other.ignored or known.could_hold(one, phrase, other) for one, other in pairs)
    return None if argued else False


def make_statements(pool: PicturePool, count: int, stream: IntegerStream) -> Iterator[Statement]:
    """Yields at most `count` different statements: some pools give fewer."""
    texts: set[str] = set()
    for _ in range(count):
        for _ in range(TRIES):
            found = _make(pool, stream)
            if found is not None and found.text not in texts:
                texts.add(found.text)
                yield found
                break


def _make(pool: PicturePool, stream: IntegerStream) -> Statement | None:
    if stream.percent(30):
        return _compared(pool, stream)
    if stream.percent(25):
        return _counted(pool, stream)
    return _depicted(pool, stream)


def _depicted(pool: PicturePool, stream: IntegerStream) -> Statement | None:
    """Makes a statement on both, one or the left picture: a thing, or the relation of two things."""
    if pool.linked and stream.percent(35):
        first, phrase, second = stream.pick(pool.linked)
        words = f"{Description(first).indefinite} {phrase} {Description(second).indefinite}"
        shows = pool.has_link(first, phrase, second)
        near: list[int] = []
    else:
        known = stream.pick(pool.pictures)
        thing = stream.pick(known.clear)
        wanted = Description(thing.category, (stream.pick(thing.attributes),) * stream.percent(60))
        words, shows = wanted.indefinite, [None if one is None else one > 0 for one in pool.counts(wanted)]
        near = [place for place, number in enumerate(pool.counts(Description(thing.category))) if number]
    with_it = [place for place, is_there in enumerate(shows) if is_there]
    without = [place for place, is_there in enumerate(shows) if is_there is False]
    hard = [place for place in near if shows[place] is False]

    def lacks() -> int:
        return stream.pick(hard if hard and stream.percent(60) else without)

    if len(with_it) < 2 or len(without) < 2:
        return None
    form, true, false = stream.pick(_FORMS)

    def pair(has_it: tuple[bool, bool]) -> Pair:
        left, right = (stream.pick(with_it) if one else lacks() for one in has_it)
        return left, right

    return _with_pairs(form.format(words), lambda: pair(stream.pick(true)), lambda: pair(stream.pick(false)), stream)


# A text, and which of the left and the right picture have the thing where it is true, and where it is false.
_BOTH, _LEFT, _RIGHT, _NEITHER = (True, True), (True, False), (False, True), (False, False)
_FORMS: tuple[tuple[str, tuple[tuple[bool, bool], ...], tuple[tuple[bool, bool], ...]], ...] = (
    ("Both images show {}.", (_BOTH,), (_LEFT, _RIGHT)),
    ("Only one of the images shows {}.", (_LEFT, _RIGHT), (_BOTH, _NEITHER)),
    ("At least one of the images shows {}.", (_LEFT, _RIGHT, _BOTH), (_NEITHER,)),
    ("The left image shows {}.", (_LEFT, _BOTH), (_RIGHT,)),
    ("The right image shows {}.", (_RIGHT, _BOTH), (_LEFT,)),
    ("Only the left image shows {}.", (_LEFT,), (_RIGHT, _BOTH)),
)


def _compared(pool: PicturePool, stream: IntegerStream) -> Statement | None:
    """Compares the counts of two pictures; the false pairs are the true ones the other way round, or have as many."""
    wanted = _several(pool, stream)
    places = [(number, place) for place, number in enumerate(pool.counts(wanted)) if number is not None]
    if len({number for number, _ in places}) < 2:
        return None
    more, fewer = ("left", "right") if stream.percent(50) else ("right", "left")

    def pair(is_true: bool) -> Pair | None:
        (count, one), (other_count, other) = stream.pick(places), stream.pick(places)
        left_less_right = (count - other_count) * (1 if more == "left" else -1)
        if is_true:
            return (one, other) if left_less_right > 0 else (other, one) if left_less_right < 0 else None
        if left_less_right == 0:
            return (one, other) if stream.percent(20) else None
        return (one, other) if left_less_right < 0 else (other, one)

    text = f"The {more} image shows more {wanted.plural} than the {fewer} image."
    return _with_pairs(text, lambda: pair(True), lambda: pair(False), stream)


def _counted(pool: PicturePool, stream: IntegerStream) -> Statement | None:
    """Counts things in both pictures together; the false pairs have one more or less."""
    things = _several(pool, stream)
    places = [(number, place) for place, number in enumerate(pool.counts(things)) if number is not None]
    if len(places) < PAIRS:
        return None
    total = stream.pick(places)[0] + stream.pick(places)[0]
    if total not in range(1, len(_NUMBERS)):
        return None

    def pair(is_true: bool) -> Pair | None:
        (count, one), (other_count, other) = stream.pick(places), stream.pick(places)
        wanted = 0 if is_true else 1
        return (one, other) if abs(count + other_count - total) == wanted else None

    words, verb = (things.words, "is") if total == 1 else (things.plural, "are")
    text = f"There {verb} {_NUMBERS[total]} {words} in the two images together."
    return _with_pairs(text, lambda: pair(True), lambda: pair(False), stream)


def _several(pool: PicturePool, stream: IntegerStream) -> Description:
    thing = stream.pick(stream.pick(pool.pictures).clear)
    return Description(thing.category) if stream.percent(50) else Description("", (thing.colour,))


def _with_pairs(
    text: str, true: Callable[[], Pair | None], false: Callable[[], Pair | None], stream: IntegerStream
) -> Statement | None:
    """Adds two true and two false pairs of two pictures each; None where they are not found."""
    found: dict[Pair, bool] = {}
    for make, is_true in ((true, True), (false, False)):
        for _ in range(TRIES):
            pair = make()
            if pair is not None and pair[0] != pair[1]:
                found.setdefault(pair, is_true)
            if sum(each is is_true for each in found.values()) == PAIRS // 2:
                break
        else:
            return None
    return Statement(text[0].upper() + text[1:], tuple(shuffled(found.items(), stream)))


_PURPOSE = 8
IMAGES_FOLDER = "images"
# Pictures are taken together in this number, and one statement is made for every two.
POOL = 60
_PICTURES_PER_STATEMENT = 2
_TRAIN_FOLDERS = 100
_URL = "http://toyworld.invalid/"


@dataclass(frozen=True)
class _Set:
    number: int
    pictures: tuple[Picture, ...]
    statement: Statement


class Nlvr2Task(Task):
    name, splits = "nlvr2", NLVR2_SPLITS

    def __init__(self) -> None:
        self._waiting: dict[str, list[Picture]] = {split: [] for split in NLVR2_SPLITS}
        self._sets: dict[str, list[_Set]] = {split: [] for split in NLVR2_SPLITS}

    def add_to(self, split: str, picture: Picture) -> None:
        self._waiting[split].append(picture)
        if len(self._waiting[split]) == POOL:
            self._make(split)

    def _make(self, split: str) -> None:
        """Makes statements about the pictures added since the last call."""
        pictures, self._waiting[split] = tuple(self._waiting[split]), []
        if len(pictures) < PAIRS:
            return
        stream = IntegerStream(pictures[0].scene.seed, _PURPOSE, pictures[0].scene.index)
        pool = PicturePool([SceneQueries(picture) for picture in pictures])
        made = self._sets[split]
        for statement in make_statements(pool, len(pictures) // _PICTURES_PER_STATEMENT, stream):
            made.append(_Set(len(made), pictures, statement))

    def close(self) -> None:
        """Makes the last statements, after the last picture."""
        for split in NLVR2_SPLITS:
            self._make(split)

    def rows(self) -> dict[str, int]:
        return {split: PAIRS * len(sets) for split, sets in self._sets.items()}

    def links(self) -> Iterator[tuple[Picture, str]]:
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
        """Writes the results of a reader with the scene graphs, and of one without pictures. A statement is as often
        false as true, so that one word for all rows is as good as any."""
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
    """Yields (path below the task's folder, path of the picture below the world's) of all names in statements."""
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
    """Path as in the official folders: the training pictures lie in a hundred of them."""
    folder = f"train/{number % _TRAIN_FOLDERS}" if split == "train" else split
    return f"{IMAGES_FOLDER}/{folder}/{split}-{number}-{place}-img{side}.png"
