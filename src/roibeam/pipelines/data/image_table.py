"""The images of a source in the order of their ids, in a temporary file: millions of them take no memory.

The file is a `ScratchDatabase`, gone with the table. One process uses it; a table is never sent to a worker.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.record.region_record import check_image_id
from roibeam.pipelines.common.files.image_ids import forms_of, in_nfc, is_utf8
from roibeam.pipelines.common.files.scratch_database import ScratchDatabase
from roibeam.pipelines.common.files.unusable_names import with_usable_name

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
        """What these images are to those that are planned.

        Args:
            planned: shard and image, in any order, taken one by one.
        """
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
        new: images that are not planned.
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
    """The error that two locations have one id."""
    more = f" ({num_doubled:,} ids are of two images)" if num_doubled > 1 else ""
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
