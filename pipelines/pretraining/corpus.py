"""Captions and the records of their images, by number: what samples are made from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Protocol, Self

import numpy as np

from features.record import RegionRecord
from features.store import FeatureStore
from pipelines.caption_table import CaptionTable


class RecordStore(Protocol):
    """What is read from a store; a dict of records will do."""

    def __getitem__(self, image_id: str, /) -> RegionRecord: ...


class Corpus:
    """Rows of a caption table with their records. An image may have several rows.

    Args:
        store: gives the record of every id in `rows`.
        rows: captions, joined to the store.

    Raises:
        ValueError: when there is no row.
    """

    def __init__(self, store: RecordStore, rows: CaptionTable) -> None:
        if not len(rows):
            raise ValueError("pre-training needs at least one caption with a record")
        self._rows = rows
        # Samples take a part of a record, so they read views of it where there are such.
        self._read = partial(store.get, copy=False) if isinstance(store, FeatureStore) else store.__getitem__
        self._reword: Callable[[str], str] | None = None
        places = rows.places
        # Rows by image, so that those of one image, and those of all others, are ranges of numbers.
        self._by_image = np.argsort(places, kind="stable")
        ordered = places[self._by_image]
        self._first = np.searchsorted(ordered, places, side="left")
        self._end = np.searchsorted(ordered, places, side="right")

    def __len__(self) -> int:
        return len(self._rows)

    def reworded(self, reword: Callable[[str], str]) -> Self:
        """The same rows with every caption as `reword` gives it: what samples of mirrored photos are made from."""
        view = copy.copy(self)
        view._reword = reword
        return view

    def caption(self, row: int) -> str:
        caption = self._rows[row][1]
        return caption if self._reword is None else self._reword(caption)

    def record_id(self, row: int) -> str:
        return self._rows[row][0]

    def record(self, row: int) -> RegionRecord:
        return self._read(self.record_id(row))

    def rows_of_image(self, row: int) -> np.ndarray:
        """(n,) int64, the rows with the image of `row`, itself among them."""
        return self._by_image[self._first[row] : self._end[row]]

    def count_single_captions(self) -> int:
        """Rows that are the only one of their image."""
        return int((self._end - self._first == 1).sum())

    def draw_row_of_another_image(self, row: int, random: np.random.Generator) -> int:
        """A row whose image is not that of `row`, each of them as likely.

        Raises:
            ValueError: when all captions are of one image.
        """
        first, end = int(self._first[row]), int(self._end[row])
        others = len(self) - (end - first)
        if not others:
            raise ValueError(
                f"all captions are of the image {self.record_id(row)!r}; mismatched pairs need a second image"
            )
        drawn = int(random.integers(others))
        return int(self._by_image[drawn if drawn < first else drawn + end - first])
