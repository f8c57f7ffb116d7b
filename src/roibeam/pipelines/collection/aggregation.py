"""Aggregation of the pairs of all pages to one pair for an image, as in the paper; the numbers are roibeam's.

1. evaluation images go; 2. pictures that are one photo become one image, which keeps its best text; 3. a text that more
than `max_images_per_text` images kept goes, with all its pairs.

Pairs lie in a table on disk. Memory holds some 30 bytes of each picture, and no text.
"""

import json
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from roibeam.pipelines.collection.pairs import FetchedPicture, Pair, Reason, TextSource, pair_from_json, pair_id
from roibeam.pipelines.collection.same_images import groups_of_same
from roibeam.pipelines.collection.thresholds import AggregationThresholds
from roibeam.pipelines.common.scratch_database import ScratchDatabase

_ORDER = {source: place for place, source in enumerate(TextSource)}
_NO_WORDS = re.compile(r"[^\w\s]|_")
_TABLES = (
    "CREATE TABLE pairs (url TEXT, score REAL, source INTEGER, normal TEXT, text TEXT, page TEXT, pair TEXT)",
    # `image` is the number of the first picture of the same photo; `why` is the evidence for an evaluation image.
    "CREATE TABLE pictures (number INTEGER PRIMARY KEY, url TEXT, pixels INTEGER, sha256 TEXT, id TEXT, why TEXT, "
    "image INTEGER)",
)
# The best text of an image, and of each of its pictures: by score; without a judge by the source of the text, then by
# the number of pages that agree on it (roibeam's rule).
_BEST = """CREATE TABLE best_of_{what} AS SELECT {what}, row, normal FROM (
    SELECT *, ROW_NUMBER() OVER (
        PARTITION BY {what} ORDER BY score DESC, source, agree DESC, text, page, url
    ) AS place FROM (
        SELECT pairs.rowid AS row, pictures.{what} AS {what}, score, source, normal, text, page, pairs.url AS url,
            COUNT(*) OVER (PARTITION BY pictures.{what}, normal) AS agree
        FROM pairs JOIN pictures ON pictures.url = pairs.url WHERE pictures.{what} IS NOT NULL
    )
) WHERE place = 1"""
# An image is represented by its largest picture; the choice among equal ones does not depend on their order.
_IMAGES = """CREATE TABLE images AS SELECT largest.image AS image, largest.number AS picture, largest.id AS id, row,
    pages, COUNT(*) OVER (PARTITION BY normal) AS users
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY image ORDER BY pixels DESC, sha256, url) AS place
    FROM pictures WHERE why IS NULL
) AS largest
JOIN best_of_image ON best_of_image.image = largest.image
JOIN (
    SELECT image, COUNT(DISTINCT page) AS pages FROM pairs JOIN pictures ON pictures.url = pairs.url GROUP BY image
) AS seen ON seen.image = largest.image
WHERE place = 1"""
_CHOSEN = """SELECT best.pair, largest.pair, pages, users FROM images
JOIN pairs AS best ON best.rowid = images.row
JOIN best_of_number ON best_of_number.number = images.picture
JOIN pairs AS largest ON largest.rowid = best_of_number.row """
_LOST = """SELECT pair, pictures.why, other.url FROM pictures
JOIN best_of_number ON best_of_number.number = pictures.number
JOIN pairs ON pairs.rowid = best_of_number.row
LEFT JOIN images ON images.image = pictures.image
LEFT JOIN pictures AS other ON other.number = images.picture """


@dataclass(frozen=True)
class DroppedPair:
    """A pair that aggregation drops; `detail` is for people."""

    pair: Pair
    reason: Reason
    detail: str


class Aggregated:
    """Result of `aggregate`, read anew from the table each time.

    Attributes:
        num_kept: pairs, one for each image.
        num_dropped: by reason, one for each picture (of one address) that kept no pair.
    """

    def __init__(self, table: ScratchDatabase, limits: AggregationThresholds) -> None:
        self._table, self._limit = table, limits.max_images_per_text
        ((num_evaluation, num_pictures),) = table.rows("SELECT COUNT(why), COUNT(*) FROM pictures")
        ((num_images, num_shared),) = table.rows("SELECT COUNT(*), TOTAL(users > ?) FROM images", (self._limit,))
        self.num_kept = num_images - int(num_shared)
        self.num_dropped = Counter({
            Reason.EVALUATION_IMAGE: num_evaluation,
            Reason.SAME_IMAGE: num_pictures - num_evaluation - num_images,
            Reason.SHARED_TEXT: int(num_shared),
        })  # fmt: skip

    def kept(self) -> Iterator[Pair]:
        for row in self._table.stream(_CHOSEN + "WHERE users <= ? ORDER BY images.id", (self._limit,)):
            yield _chosen(*row)

    def dropped(self) -> Iterator[DroppedPair]:
        """Yields the dropped pairs by reason, then by address of the picture."""
        for pair, why, _ in self._table.stream(_LOST + "WHERE pictures.why IS NOT NULL ORDER BY pictures.url"):
            yield DroppedPair(pair_from_json(json.loads(pair)), Reason.EVALUATION_IMAGE, why)
        for pair, _, other in self._table.stream(
            _LOST + "WHERE pictures.why IS NULL AND pictures.number <> images.picture ORDER BY pictures.url"
        ):
            yield DroppedPair(pair_from_json(json.loads(pair)), Reason.SAME_IMAGE, f"one image with {other}"[:300])
        for row in self._table.stream(_CHOSEN + "WHERE users > ? ORDER BY largest.url", (self._limit,)):
            yield DroppedPair(_chosen(*row), Reason.SHARED_TEXT, f"the text of {row[3]:,} images")


def aggregate(
    pairs: Iterable[Pair], limits: AggregationThresholds, evaluation: Callable[[FetchedPicture], str | None]
) -> Aggregated:
    """Aggregates pairs to one for each image. Raises OSError if there is no room for the table, see `ScratchDatabase`.

    Args:
        pairs: all that passed the steps before, in any order; the result does not depend on it.
        evaluation: why a picture is an evaluation image, or None.
    """
    table = ScratchDatabase(*_TABLES)
    table.add("INSERT INTO pairs VALUES (?, ?, ?, ?, ?, ?, ?)", map(_row, pairs))
    table.rows("CREATE INDEX pairs_by_url ON pairs (url)")
    phashes, digests = array("Q"), array("Q")

    def pictures() -> Iterator[tuple[object, ...]]:
        # Any row of an address: all have the same picture.
        for number, (pair,) in enumerate(table.stream("SELECT pair FROM pairs GROUP BY url ORDER BY url")):
            picture = pair_from_json(json.loads(pair)).picture
            phashes.append(int(picture.phash, 16))
            digests.extend((int(picture.sha256[-32:-16], 16), int(picture.sha256[-16:], 16)))  # 128 bits are enough
            pixels, name = picture.width * picture.height, pair_id(picture.sha256)
            yield number, picture.url, pixels, picture.sha256, name, evaluation(picture), None

    table.add("INSERT INTO pictures VALUES (?, ?, ?, ?, ?, ?, ?)", pictures())
    numbers = table.stream("SELECT number FROM pictures WHERE why IS NULL ORDER BY number")
    chosen = np.fromiter((number for (number,) in numbers), np.int64)
    leaders = groups_of_same(
        np.array(phashes, np.uint64)[chosen],
        np.array(digests, np.uint64).reshape(-1, 2)[chosen],
        max_bits=limits.max_phash_bits,
    )
    images = ((int(chosen[leader]), int(number)) for leader, number in zip(leaders, chosen, strict=True))
    table.add("UPDATE pictures SET image = ? WHERE number = ?", images)
    table.rows("CREATE INDEX pictures_by_url ON pictures (url)")
    for statement in (
        _BEST.format(what="number"), _BEST.format(what="image"), _IMAGES,
        "CREATE UNIQUE INDEX best_by_number ON best_of_number (number)", "CREATE INDEX by_image ON images (image)",
    ):  # fmt: skip
        table.rows(statement)
    return Aggregated(table, limits)


def normalised(text: str) -> str:
    """Normalises a text for comparison: no case, no punctuation, single blanks."""
    return " ".join(_NO_WORDS.sub(" ", unicodedata.normalize("NFKC", text).casefold()).split())


def _row(pair: Pair) -> tuple[object, ...]:
    text, source = pair.text.text, _ORDER[pair.text.source]
    return pair.picture.url, pair.score or 0.0, source, normalised(text), text, pair.page_url, json.dumps(asdict(pair))


def _chosen(best: str, largest: str, num_pages: int, _: int) -> Pair:
    """Returns the best text of an image with its largest picture."""
    picture = pair_from_json(json.loads(largest)).picture
    pair = pair_from_json(json.loads(best))
    return replace(pair, picture=picture, pair_id=pair_id(picture.sha256), num_pages=num_pages)
