"""From what a file calls an image to the image: the one rule by which captions, boxes and photos are joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from roibeam.pipelines.common.files.image_ids import backwards, image_id_of, in_nfc, is_utf8
from roibeam.pipelines.common.files.scratch_database import ScratchDatabase
from roibeam.pipelines.data.numbers_in_names import image_numbers

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

    Args:
        image_ids: what there is, in any order.
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
        """By all rules but the last."""
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
        """At most two that matter of those with another number of folders: none, the one, or enough to know that it is
        ambiguous."""
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
