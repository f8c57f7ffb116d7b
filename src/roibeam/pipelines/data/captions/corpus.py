"""A corpus: captions and the records of their images, by number. Samples are made from it.

Captions are in memory as two columns of text: some 100 bytes for each caption, where Python objects take 400.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, Self, overload

import numpy as np
import pyarrow as pa

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore

_AT_ONCE = 50_000
_SHARE = 4  # first number of a seed: keeps this random stream apart from those of order and masks


class TextColumn(Sequence[str]):
    """Texts, taken one by one."""

    def __init__(self, texts: Iterable[str]) -> None:
        remaining = iter(texts)
        chunks = []
        while rows := list(islice(remaining, _AT_ONCE)):
            chunks.append(pa.array(rows, pa.large_string()))
        self._texts = pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_string())

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(self._texts[index].to_pylist())
        return str(self._texts[index].as_py())


class CaptionTable(Sequence[tuple[str, str]]):
    """Rows of (record id, caption).

    Args:
        ids: of the records, in the store's order.
        rows: (place in `ids`, caption), in the order that the table shall have.
    """

    def __init__(self, ids: Sequence[str], rows: Iterable[tuple[int, str]]) -> None:
        self._ids = ids
        places = array("q")

        def captions() -> Iterator[str]:
            for place, caption in rows:
                places.append(place)
                yield caption

        self._captions = TextColumn(captions())
        self._places = np.array(places, np.int64)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, str]]: ...

    def __getitem__(self, index: int | slice) -> tuple[str, str] | list[tuple[str, str]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self.record_id(index), self.caption(index)

    @property
    def captions(self) -> Sequence[str]:
        return self._captions

    def record_id(self, row: int) -> str:
        return self._ids[int(self._places[row])]

    def caption(self, row: int) -> str:
        return self._captions[row]

    @property
    def places(self) -> np.ndarray:
        """(rows,) int64: the place of each row's record in the store's order. Read only."""
        places = self._places.view()
        places.flags.writeable = False
        return places

    def captioned_ids(self) -> list[str]:
        """The ids that have a caption, each once, in the store's order."""
        return [self._ids[int(place)] for place in np.unique(self._places)]

    def by_row(self, of_images: np.ndarray) -> np.ndarray:
        """(rows,), of each row's record.

        Args:
            of_images: a number for each of `captioned_ids`.
        """
        return of_images[np.unique(self._places, return_inverse=True)[1].reshape(-1)]

    def without(self, ids: Iterable[str]) -> Self:
        """The rows of other records."""
        dropped = set(ids)
        is_kept = np.array([each not in dropped for each in self._ids], bool)
        return self._taken(self._rows_within(is_kept))

    def share_of_images(self, share: float, seed: int) -> Self:
        """The rows of a random share of the captioned images, at least one of them.

        Images are taken in one order of that seed, so a smaller share lies inside a larger one.

        Args:
            share: in 0..1.
        """
        images = np.unique(self._places)
        order = np.random.default_rng([_SHARE, seed]).permutation(len(images))
        kept = np.zeros(len(self._ids), bool)
        kept[images[order[: max(1, round(share * len(images)))]]] = True
        return self._taken(np.flatnonzero(kept[self._places]))

    def _rows_within(self, is_kept: np.ndarray) -> np.ndarray:
        """(n,) int64, the rows of records for which `is_kept` (one bool for each) holds."""
        return np.flatnonzero(is_kept[self._places])

    def _taken(self, rows: np.ndarray) -> Self:
        return type(self)(self._ids, ((int(self._places[row]), self._captions[int(row)]) for row in rows))


Reader = Callable[[str], RegionRecord]


class RecordStore(Protocol):
    """Records by id: a store, or a dict."""

    def __getitem__(self, image_id: str, /) -> RegionRecord: ...


class Corpus:
    """Rows of a caption table with their records. An image may have several rows.

    Several sources stand one behind the other: the rows of the first, then those of the second. Whatever is drawn for
    a row is drawn among the rows of its own source, since a partner from another data set would be known by its style.

    Args:
        store: gives the record of every id in `rows`.
        rows: captions, joined to the store.
        others: more sources. Ids are those of each store: the same id in two of them is two images.

    Raises:
        ValueError: when a source has no row.
    """

    def __init__(self, store: RecordStore, rows: CaptionTable, *others: tuple[RecordStore, CaptionTable]) -> None:
        self._sources = [(reader(each), table) for each, table in ((store, rows), *others)]
        if not all(len(table) for _, table in self._sources):
            raise ValueError("pre-training needs at least one caption with a record")
        self._reword: Callable[[str], str] | None = None
        self._ends = np.cumsum([len(table) for _, table in self._sources])
        # Rows by image, so that those of one image, and those of all others, are ranges of numbers.
        by_image, first, end = [], [], []
        for (_, table), start in zip(self._sources, self._ends - self.sizes, strict=True):
            places = table.places
            order = np.argsort(places, kind="stable")
            ordered = places[order]
            by_image.append(order + start)
            first.append(np.searchsorted(ordered, places, side="left") + start)
            end.append(np.searchsorted(ordered, places, side="right") + start)
        self._by_image, self._first, self._end = map(np.concatenate, (by_image, first, end))

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(table) for _, table in self._sources)

    def reworded(self, reword: Callable[[str], str]) -> Self:
        """The same rows with every caption as `reword` gives it: what samples of mirrored photos are made from."""
        view = copy.copy(self)
        view._reword = reword
        return view

    def caption(self, row: int) -> str:
        _, table, place = self._find(row)
        caption = table.caption(place)
        return caption if self._reword is None else self._reword(caption)

    def record_id(self, row: int) -> str:
        _, table, place = self._find(row)
        return table.record_id(place)

    def record(self, row: int) -> RegionRecord:
        read, table, place = self._find(row)
        return read(table.record_id(place))

    def first_rows(self, count: int) -> list[int]:
        """At most `count` rows: the first of each source, the second of each, and so on."""
        starts = self._ends - self.sizes
        rounds = range(min(count, max(self.sizes)))
        rows = [
            int(start) + place
            for place in rounds
            for start, size in zip(starts, self.sizes, strict=True)
            if place < size
        ]
        return rows[:count]

    def rows_of_image(self, row: int) -> np.ndarray:
        """(n,) int64, the rows with the image of `row`, itself among them."""
        return self._by_image[self._first[row] : self._end[row]]

    def count_single_captions(self) -> int:
        """Rows that are the only one of their image."""
        return int((self._end - self._first == 1).sum())

    def draw_row_of_another_image(self, row: int, random: np.random.Generator) -> int:
        """A row of the same source whose image is not that of `row`, each of them as likely. Raises ValueError when all
        captions are of one image."""
        first, end = int(self._first[row]), int(self._end[row])
        _, table, place = self._find(row)
        others = len(table) - (end - first)
        if not others:
            raise ValueError(
                f"all captions are of the image {self.record_id(row)!r}; mismatched pairs need a second image: give "
                f"captions of more images, or a larger data.share where that is set"
            )
        drawn = row - place + int(random.integers(others))
        return int(self._by_image[drawn if drawn < first else drawn + end - first])

    def _find(self, row: int) -> tuple[Reader, CaptionTable, int]:
        """The row's source, and its number there."""
        if row < self._ends[0]:
            return *self._sources[0], row
        source = int(np.searchsorted(self._ends, row, side="right"))
        return *self._sources[source], row - int(self._ends[source - 1])


def reader(store: RecordStore) -> Reader:
    """Reader of records for samples: they take a part of one, so views of it will do. Each record is compared with its
    checksums, so nothing damaged is trained on or evaluated; or one in `checked_one_in` of the store."""
    return CheckedViews(store) if isinstance(store, FeatureStore) else store.__getitem__


class CheckedViews:
    """Reads of a store, one in `store.checked_one_in` of which compares the record with its checksums.

    Which ones is counted, not drawn from ids: in another epoch's order they are other records.
    """

    def __init__(self, store: FeatureStore) -> None:
        self._store, self._reads = store, 0

    def __call__(self, image_id: str) -> RegionRecord:
        is_checked = self._reads % self._store.checked_one_in == 0
        self._reads += 1
        return self._store.get(image_id, copy=False, check=is_checked)
