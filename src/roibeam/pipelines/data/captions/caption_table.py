"""Joined captions in memory as two columns of text: some 100 bytes for each caption, where Python objects take 400."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Self, overload

import numpy as np
import pyarrow as pa

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
        """Of all rows."""
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
        wanted = np.array([each not in dropped for each in self._ids], bool)
        return self._taken(self._rows_within(wanted))

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

    def _rows_within(self, wanted: np.ndarray) -> np.ndarray:
        """(n,) int64, the rows of records for which `wanted` (one bool for each) holds."""
        return np.flatnonzero(wanted[self._places])

    def _taken(self, rows: np.ndarray) -> Self:
        """Those rows alone."""
        return type(self)(self._ids, ((int(self._places[row]), self._captions[int(row)]) for row in rows))
