"""Tables of a source's images on disk: all in the order of their ids, and the image that a name in a file means.

Millions of them take no memory: a table is a `ScratchDatabase`, gone with it. One process uses it; it is never sent to
a worker. `ImageFinder` has the one rule by which captions, boxes and photos are joined: by id, by path, or by the
numbers that data sets put into names, each where its spelling leaves no doubt. A bare number ("42") is no more than
that: COCO's image 42, Visual Genome's and Flickr's are three photos.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.record.region_record import check_image_id
from roibeam.pipelines.common.image_ids import (
    backwards,
    forms_of,
    image_id_of,
    in_nfc,
    is_utf8,
    short_name,
    with_usable_name,
)
from roibeam.pipelines.common.locations import parse_location
from roibeam.pipelines.common.scratch_database import ScratchDatabase

_COCO = re.compile(r"(?:.*_)?(\d{12})", re.ASCII | re.DOTALL)
# A photo's number and its secret, as Flickr's own files are named: "4385058960_b0f291553e_z".
_FLICKR = re.compile(r"(\d{4,12})_[0-9a-f]{10}(?:_[a-z])?", re.ASCII)
_GENOME_FOLDERS = ("VG_100K", "VG_100K_2")
_KEY_DIGITS = (8, 9)  # eight of `roibeam download` too


class ImageNumbers(NamedTuple):
    """Numbers in an image's name, each None where it has none.

    Attributes:
        plain: the number that the name is, written as numbers are (no leading zeros, at most 12 digits), whosever it
            may be.
        coco: COCO's, written as its files are: twelve digits, alone or behind "COCO_train2014_".
        flickr: Flickr's, where the name has the photo's secret behind it.
        visual_genome: Visual Genome's, below one of its two folders: "VG_100K_2/2415417.jpg". Then there is no plain.
        row: from 0, of the caption list that the image was downloaded from. "images/00012/00012345" of `roibeam
            download` is row 12,345. img2dataset's key "000120345" (shard 12, sample 345 of 10,000) is row 120,345, and
            with 1,000 samples a shard, "00012345" row 12,345: wherever its shards have a power of ten of samples and
            the list was one file.
    """

    plain: int | None = None
    coco: int | None = None
    flickr: int | None = None
    visual_genome: int | None = None
    row: int | None = None


_NONE = ImageNumbers()


def image_numbers(name: str) -> ImageNumbers:
    stem = short_name(name)
    if not stem.isascii() or not (stem.isdecimal() or "_" in stem):
        return _NONE  # most names
    coco, flickr = _COCO.fullmatch(stem), _FLICKR.fullmatch(stem)
    plain = visual_genome = row = None
    if stem.isdecimal() and len(stem) <= 12:
        folder = name.replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
        if folder in _GENOME_FOLDERS:
            visual_genome = int(stem)
        else:
            plain = int(stem) if stem[0] != "0" or stem == "0" else None
            row = int(stem) if len(stem) in _KEY_DIGITS else None
    return ImageNumbers(plain, int(coco[1]) if coco else None, int(flickr[1]) if flickr else None, visual_genome, row)


BY_ID, BY_PATH, BY_COCO, BY_FLICKR, BY_FORM, BY_ROW = (
    "id", "path", "COCO number", "Flickr number", "Unicode form", "row",
)  # fmt: skip
RULES = (BY_ID, BY_PATH, BY_COCO, BY_FLICKR, BY_FORM, BY_ROW)

_OF_PATH = "SELECT place, id FROM images WHERE path = ?"  # few: equal but for their image extension


class Found(NamedTuple):
    """An image, where it stands among those that were given, and the rule of `RULES` that led to it."""

    image_id: str
    place: int
    rule: str


class Ambiguous(NamedTuple):
    """Two of the images that a name may mean."""

    image_ids: tuple[str, ...]


class ImageFinder:
    """Looks up images by name. The first rule that leads to any image counts; where it leads to several, none is meant.

    1. id: the name is the image's id; as it is written, else without its image extension.
    2. path: one path without image extension ends with the other, component by component: "x.jpg", "b/x" and
       "data/b/x.png" mean "b/x"; "a/x" does not, since files of one name in two folders are two images (movies of VCR,
       splits, scenes).
    3. COCO number: "COCO_train2014_000000000042", "000000000042" and "42" are one, if a side has the twelve digits.
    4. Flickr number: "4385058960" and "4385058960_b0f291553e" are one, if a side has the secret.
    5. Unicode form: by these rules the name and the ids in NFC, where any of them is not.

    The ids are in a scratch database: memory does not grow with them.
    """

    def __init__(self, image_ids: Iterable[str]) -> None:
        self._depth = 0  # most folders that an id has
        self.num_images = 0
        self._is_nfc = True  # all ids
        self._finder_in_nfc: ImageFinder | None = None
        self._table = ScratchDatabase(
            "CREATE TABLE images (place INTEGER PRIMARY KEY, id TEXT, path TEXT, plain INTEGER, coco INTEGER, "
            "flickr INTEGER, row INTEGER)"
        )
        self._table.add("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?)", self._entries(image_ids))
        self._table.rows("CREATE INDEX by_path ON images (path)")
        for column in ("plain", "coco", "flickr", "row"):
            self._table.rows(f"CREATE INDEX by_{column} ON images ({column}) WHERE {column} IS NOT NULL")

    def _entries(self, image_ids: Iterable[str]) -> Iterator[tuple[object, ...]]:
        for place, image_id in enumerate(image_ids):
            path = backwards(image_id)
            self._depth = max(self._depth, path.count("/"))
            self.num_images += 1
            if not image_id.isascii():
                self._is_nfc = self._is_nfc and image_id == in_nfc(image_id)
            numbers = image_numbers(image_id)
            yield place, image_id, path, numbers.plain, numbers.coco, numbers.flickr, numbers.row

    def find(self, name: str) -> str | None:
        """The id that a name means; None where it means none, or may mean several."""
        found = self.look_up(name)
        return found.image_id if isinstance(found, Found) else None

    def look_up(self, name: str) -> Found | Ambiguous | None:
        if not is_utf8(name):
            return None
        return self._as_written(name) or self._in_nfc(name)

    def _as_written(self, name: str) -> Found | Ambiguous | None:
        """Finds a name by all rules but the last."""
        path = backwards(name)
        if not path:
            return None
        same, stem = {path: self._table.rows(_OF_PATH, (path,))}, image_id_of(name)
        if len(same[path]) == 1 and same[path][0][1] in (name, stem):  # most names
            return _one_of(same[path], BY_ID)
        if stem != image_id_of(stem):  # "a.png.jpg" is the file of the image "a.png"
            same[backwards(stem)] = self._table.rows(_OF_PATH, (backwards(stem),))
        for called in (name, stem):
            found = _one_of([row for rows in same.values() for row in rows if row[1] == called], BY_ID)
            if found is not None:
                return found
        for path, rows in same.items():
            found = _one_of(rows or self._by_path(path), BY_PATH)
            if found is not None:
                return found
        numbers = image_numbers(name)
        return _one_of(self._by_number("coco", numbers.coco, numbers.plain), BY_COCO) or _one_of(
            self._by_number("flickr", numbers.flickr, numbers.plain), BY_FLICKR
        )

    def _in_nfc(self, name: str) -> Found | Ambiguous | None:
        """The last rule, of names that no other knows; where all are in NFC there is nothing to do."""
        if self._is_nfc:
            normal = in_nfc(name)
            found = None if normal == name else self._as_written(normal)
        else:
            if self._finder_in_nfc is None:
                ids = self._table.stream("SELECT id FROM images ORDER BY place")
                self._finder_in_nfc = ImageFinder(in_nfc(image_id) for (image_id,) in ids)
            found = self._finder_in_nfc._as_written(in_nfc(name))
        if not isinstance(found, Found):
            return found
        return Found(self.id_at(found.place), found.place, BY_FORM)

    def look_up_row(self, row: int) -> Found | Ambiguous | None:
        """The image that was downloaded for a row of a caption list, from 0; see `ImageNumbers`."""
        return _one_of(self._table.rows("SELECT place, id FROM images WHERE row = ? LIMIT 2", (row,)), BY_ROW)

    def id_at(self, place: int) -> str:
        ((image_id,),) = self._table.rows("SELECT id FROM images WHERE place = ?", (place,))
        return str(image_id)

    def _by_path(self, path: str) -> list[tuple[int, str]]:
        """At most two images whose path has another number of folders: two are enough to know that it is ambiguous."""
        # "x/b/" starts "x/b/a/"; "0" is the character behind "/".
        found = self._table.rows(
            "SELECT place, id FROM images WHERE path > ? AND path < ? LIMIT 2", (path, path[:-1] + "0")
        )
        # The name has more folders than the id. Cut to what ids have: a name from a file may have any number.
        parts = path.split("/", self._depth + 1)[: min(path.count("/") - 1, self._depth)]
        for count in range(1, len(parts) + 1):
            found += self._table.rows(_OF_PATH, ("/".join(parts[:count]) + "/",))
        return found[:2]

    def _by_number(self, column: str, spelled: int | None, plain: int | None) -> list[tuple[int, str]]:
        """Images with the number, where either side spells it as its data set does."""
        found: list[tuple[int, str]] = []
        if spelled is not None or plain is not None:
            number = plain if spelled is None else spelled
            found = self._table.rows(f"SELECT place, id FROM images WHERE {column} = ? LIMIT 2", (number,))
        if spelled is not None and not found:
            found = self._table.rows("SELECT place, id FROM images WHERE plain = ? LIMIT 2", (spelled,))
        return found


def _one_of(rows: list[tuple[int, str]], rule: str) -> Found | Ambiguous | None:
    if len(rows) > 1:
        return Ambiguous(tuple(image_id for _, image_id in rows))
    return Found(rows[0][1], rows[0][0], rule) if rows else None


_Row = tuple[str, str, str | None, str | None]  # id, location, captions and labels as json
_COLUMNS = "id, location, captions, labels"
_TYPES = "(id TEXT, location TEXT, captions TEXT, labels TEXT)"
_INSERT = "INSERT INTO images VALUES (?, ?, ?, ?)"
_text_json = json.JSONEncoder(ensure_ascii=False).encode  # of a text alone it is ten times as quick as of a list
_parsed = json.JSONDecoder().raw_decode  # json.loads also looks for white space around: half of its time here


class ImageTable(Sequence[ImageRef]):
    """Images of unique ids, sorted by the UTF-8 bytes of these; given boxes are not kept.

    Rows of one id and one location are one image: their captions add up in the order given, and so do their labels,
    each once. A name that is not UTF-8 and an id that is too long become those of `with_usable_name`.

    Args:
        images: in any order, taken one by one.
    Raises:
        ValueError: when an id is empty, two images have one id, or two ids are equal in NFC.
        OSError: when the temporary file has no room.
    """

    def __init__(self, images: Iterable[ImageRef]) -> None:
        self._database = ScratchDatabase()
        self._is_sorted = self._is_nfc = True
        self._database.rows(f"CREATE TABLE images {_TYPES}")
        self._database.add(_INSERT, self._checked_rows(images))
        if not self._is_sorted:
            self._replace(f"INSERT INTO images SELECT {_COLUMNS} FROM replaced ORDER BY id, rowid")
            same = (
                "SELECT 1 FROM images one JOIN images next ON next.rowid = one.rowid + 1 WHERE one.id = next.id LIMIT 1"
            )
            if self._database.rows(same):
                self._replace()
        if not self._is_nfc:
            self._refuse_forms()
        ((count,),) = self._database.rows("SELECT coalesce(max(rowid), 0) FROM images")
        self._num_rows = int(count)

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[ImageRef]:
        return map(_image, self._database.stream(f"SELECT {_COLUMNS} FROM images ORDER BY rowid"))

    @overload
    def __getitem__(self, index: int) -> ImageRef: ...

    @overload
    def __getitem__(self, index: slice) -> list[ImageRef]: ...

    def __getitem__(self, index: int | slice) -> ImageRef | list[ImageRef]:
        places = range(self._num_rows)[index]
        if isinstance(places, int):
            return self._between(places, places + 1)[0]
        if places.step == 1:
            return self._between(places.start, places.stop)
        return [self[place] for place in places]

    def compared_with(self, planned: Iterable[tuple[int, ImageRef]]) -> ComparedImages:
        self._database.rows("DROP TABLE IF EXISTS planned")
        self._database.rows(f"CREATE TABLE planned {_TYPES[:-1]}, shard INTEGER, PRIMARY KEY (id)) WITHOUT ROWID")
        self._database.add(
            "INSERT OR IGNORE INTO planned VALUES (?, ?, ?, ?, ?)", ((*_row(image), shard) for shard, image in planned)
        )
        self._database.rows("DROP TABLE IF EXISTS renamed")
        self._database.rows("CREATE TABLE renamed (id TEXT PRIMARY KEY, planned TEXT) WITHOUT ROWID")
        others = f"SELECT {_COLUMNS} FROM images WHERE id NOT IN (SELECT id FROM planned)"
        new = ImageTable(map(_image, self._database.stream(f"{others} ORDER BY rowid")))
        ((num_planned,),) = self._database.rows("SELECT count(*) FROM planned")
        num_gone = num_planned - (len(self) - len(new))
        if num_gone and len(new):
            self._database.add("INSERT INTO renamed VALUES (?, ?)", self._renamed(new))
            self._database.rows("DELETE FROM renamed WHERE planned IN (SELECT id FROM images)")
            ((num_renamed,),) = self._database.rows("SELECT count(*) FROM renamed")
            if num_renamed:
                others += " AND id NOT IN (SELECT id FROM renamed)"
                new = ImageTable(map(_image, self._database.stream(f"{others} ORDER BY rowid")))
                num_gone -= num_renamed
        return ComparedImages(new, num_gone, self._database)

    def _renamed(self, new: ImageTable) -> Iterator[tuple[str, str]]:
        """Ids that are planned in another form, or without what was once taken for an extension ("scene.1" as "scene"),
        with the planned ones. Few images have a name that may be such a one."""
        for image in new:
            image_id = image.image_id
            stem, extension = os.path.splitext(image_id)
            for planned in (*forms_of(image_id)[1:], *((stem,) if extension else ())):
                found = self._database.rows("SELECT location FROM planned WHERE id = ?", (planned,))
                if found and (planned != stem or found[0][0] == image.location):
                    yield image_id, planned
                    break

    def _between(self, start: int, stop: int) -> list[ImageRef]:
        # Rows are numbered from 1 in the order in which they were put in.
        where = "WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
        return list(map(_image, self._database.stream(f"SELECT {_COLUMNS} FROM images {where}", (start, stop))))

    def _replace(self, statement: str | None = None) -> None:
        """The table written anew: by one statement, which is quicker, or with rows of one image made one."""
        self._database.rows("ALTER TABLE images RENAME TO replaced")
        self._database.rows(f"CREATE TABLE images {_TYPES}")
        if statement is not None:
            self._database.rows(statement)
        else:
            rows = self._database.stream(f"SELECT {_COLUMNS} FROM replaced ORDER BY rowid")
            self._database.add(_INSERT, _merged(rows))
        self._database.rows("DROP TABLE replaced")

    def _checked_rows(self, images: Iterable[ImageRef]) -> Iterator[_Row]:
        last = ""
        for image in map(with_usable_name, images):
            image_id = image.image_id
            if not (image_id and image_id.isascii()):  # usable names are short enough
                try:
                    check_image_id(image_id)
                except ValueError as error:
                    raise ValueError(f"{error} ({image.location[:200]!r}); rename the file or move it up") from None
            # Code points are in the order of their UTF-8 bytes.
            self._is_sorted = self._is_sorted and image_id > last
            last = image_id
            if not image_id.isascii():
                self._is_nfc = self._is_nfc and image_id == in_nfc(image_id)
            yield _row(image)

    def _refuse_forms(self) -> None:
        """Raises ValueError for two images of names that look alike: captions and boxes would meet either."""
        forms = ScratchDatabase("CREATE TABLE forms (form TEXT, id TEXT)")
        ids = (image_id for (image_id,) in self._database.stream("SELECT id FROM images"))
        forms.add("INSERT INTO forms VALUES (?, ?)", ((in_nfc(each), each) for each in ids if not each.isascii()))
        same = forms.rows("SELECT min(id), max(id) FROM forms GROUP BY form HAVING count(*) > 1 ORDER BY form")
        if same:
            places = [
                self._database.rows("SELECT location FROM images WHERE id = ?", (each,))[0][0] for each in same[0]
            ]
            more = f" ({len(same):,} such pairs)" if len(same) > 1 else ""
            raise ValueError(
                f"two images differ only in the Unicode form of their ids, {same[0][0]!a} and "
                f"{same[0][1]!a}{more}: {places[0]!r} and {places[1]!r}; rename one, or remove it where both are "
                f"one photo"
            )


@dataclass(frozen=True)
class ComparedImages:
    """The images of a table beside planned ones; good until the table is compared again.

    Attributes:
        num_gone: planned ones that the table does not have, under no other id either.
    """

    new: ImageTable
    num_gone: int
    _database: ScratchDatabase

    def gone(self) -> Iterator[str]:
        """The ids of planned images that the table does not have."""
        for (image_id,) in self._database.stream(
            "SELECT id FROM planned WHERE id NOT IN (SELECT id FROM images) AND id NOT IN (SELECT planned FROM renamed)"
        ):
            yield image_id

    def renamed(self) -> list[tuple[str, str]]:
        """The ids of images that are planned under others, made by earlier rules or of another Unicode form, and these.
        They are neither new nor gone."""
        return self._database.rows("SELECT id, planned FROM renamed ORDER BY id")

    def changed(self) -> Iterator[tuple[int, ImageRef]]:
        """Shard and image, as the table has it, of those that were planned with another location, captions or labels;
        shard by shard."""
        names = _COLUMNS.replace(", ", ", images.")
        other = " OR ".join(f"images.{name} IS NOT planned.{name}" for name in _COLUMNS.split(", ")[1:])
        for *row, shard in self._database.stream(
            f"SELECT images.{names}, shard FROM images JOIN planned ON planned.id = images.id WHERE {other} "
            f"ORDER BY shard, images.rowid"
        ):
            yield shard, _image(row)


def check_utf8(path: str) -> None:
    """Raises ValueError for a path that cannot be written down: plan, manifest and dead letters are UTF-8 text."""
    if not is_utf8(path):
        raise ValueError(f"the name {path!r} is not valid UTF-8; rename the file or the folder that it lies in")


def _merged(rows: Iterator[_Row]) -> Iterator[_Row]:
    """Sorted rows with those of one image made one."""
    doubled, num_doubled = None, 0
    for image_id, group in itertools.groupby(rows, key=lambda row: row[0]):
        same = list(group)
        location = same[0][1]
        for row in same[1:]:
            if row[1] != location:
                num_doubled += 1
                doubled = doubled or (image_id, location, row[1])
                break
        if len(same) == 1:
            yield same[0]
            continue
        images = list(map(_image, same))
        captions = [caption for image in images for caption in image.captions]
        labels = list(dict.fromkeys(label for image in images for label in image.labels))
        yield image_id, location, _texts_json(captions), _texts_json(labels)
    if doubled is not None:
        raise _two_images(*doubled, num_doubled)


def _two_images(image_id: str, one: str, other: str, num_doubled: int) -> ValueError:
    more = f" ({num_doubled:,} ids are of two images)" if num_doubled > 1 else ""
    archives = [place.archive for place in map(parse_location, (one, other)) if place is not None]
    if len(set(archives)) == 2:
        names = [os.path.basename(os.path.splitext(archive)[0]) for archive in archives]
        name = names[0] if names[0] != names[1] else os.path.basename(os.path.dirname(archives[0]))
        return ValueError(
            f"two archives have the key {image_id!r}: {archives[0]!r} and {archives[1]!r}{more}; extract each into a "
            f"store of its own, with --id-prefix {shlex.quote(name)}/ and so on, and merge these with `roibeam store "
            f"copy` (docs/cluster.md, Tars on Slurm)"
        )
    extensions = [os.path.splitext(location.partition("::")[0])[1] for location in (one, other)]
    cure = (
        "rename one, or keep the extensions with --id-rule with-extension"
        if extensions[0] != extensions[1]
        else "rename one, or extract their sources into stores of their own, each with its own --id-prefix, and merge "
        "these with `roibeam store copy`"
    )
    return ValueError(f"two images have the id {image_id!r}: {one!r} and {other!r}{more}; {cure}")


def _row(image: ImageRef) -> _Row:
    return image.image_id, image.location, _texts_json(image.captions), _texts_json(image.labels)


def _texts_json(texts: Sequence[str]) -> str | None:
    return f"[{', '.join(map(_text_json, texts))}]" if texts else None


def _image(row: Sequence[Any]) -> ImageRef:
    image_id, location, captions, labels = row
    if captions is None and labels is None:
        return ImageRef(image_id, location)
    return ImageRef(
        image_id,
        location,
        captions=() if captions is None else tuple(_parsed(captions)[0]),
        labels=() if labels is None else tuple(_parsed(labels)[0]),
    )
