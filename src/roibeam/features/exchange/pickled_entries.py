"""LMDB files of a pickled dict per image, with a pickled list of the images under `keys`: ViLBERT's and MMF's."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from roibeam.features.exchange.aside import written_aside
from roibeam.features.exchange.entry_file import EntryFile, usable_id
from roibeam.features.exchange.entry_record import EntryError, described
from roibeam.features.exchange.export_losses import NO_REGIONS
from roibeam.features.exchange.lmdb_entries import LmdbEntries, first_values
from roibeam.features.exchange.lmdb_output import LmdbOutput
from roibeam.features.exchange.old_numpy import plain_pickle
from roibeam.features.exchange.reading import Reading
from roibeam.features.printable import printable
from roibeam.features.record.imported import ABSENT
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.safe_pickle.read import UnsafePickleError, loads_pickle

KEY_LIST = "keys"
_FIRST_ENTRIES = 3
_UNREAD = "not read"


class PickledEntries(EntryFile):
    """One such file, opened; formats add how a dict becomes a record.

    An id that the key list names and the file does not hold is in `letters`. One that the list does not name is an
    entry like any other: the consumers' code does not see it, but its values are there.

    Attributes:
        key_list: for `details`: "keys"; `ABSENT` when there is none (its writer was killed: their code cannot read such
            a file); "not read" when it is over 64 MiB.
    """

    def __init__(self, path: Path, reading: Reading | None = None) -> None:
        super().__init__(path, reading)
        self._entries = LmdbEntries(path)
        try:
            # Values are found by their position in the file: the keys stay there, `_numbers` says which are images.
            self.key_list = self._read_key_list()
            ids: list[bytes] = []
            self._numbers = array("q")
            self._ids_agree: bool | None = None
            for number, key in enumerate(self._entries.keys):
                if key == KEY_LIST.encode():
                    continue
                try:
                    ids.append(usable_id(key))
                    self._numbers.append(number)
                except EntryError as error:
                    self._note(key.decode("utf-8", "backslashreplace"), self._named(key), error)
            self._set_ids(ids)
        except BaseException:
            self._entries.close()
            raise

    @abstractmethod
    def _record(self, image_id: str, item: dict[str, Any], dtype: str) -> RegionRecord:
        """The record of a dict; EntryError when it gives none."""

    def _item(self, entry: int) -> dict[str, Any]:
        return item_in(self._entries.value(self._numbers[entry]))

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        return self._record(self._ids[entry].decode("utf-8"), self._item(entry), dtype)

    def _check_id(self, image_id: str, stated: Any) -> None:
        """Refuses a dict of another image, in a file whose first dict names the image as its key does (some do not)."""
        text = stated.decode("utf-8", "replace") if isinstance(stated, bytes) else stated
        agree = isinstance(text, (str, int)) and str(text) == image_id
        if self._ids_agree and not agree:
            raise EntryError(
                "record", "another image id", f"its value says it is of {printable(described(stated))}; is it damaged?"
            )
        if self._ids_agree is None:
            self._ids_agree = agree

    def _place(self, entry: int) -> str:
        return self._named(self._ids[entry])

    def _named(self, key: bytes) -> str:
        return f"{self.path}:{printable(key.decode('utf-8', 'backslashreplace'), 600)}"

    def _close(self) -> None:
        self._entries.close()

    def _read_key_list(self) -> str:
        number = self._entries.find(KEY_LIST.encode())
        if number is None:
            return ABSENT
        try:
            names = loads_pickle(self._entries.value(number), source=f"{self.path}:{KEY_LIST}")
        except EntryError:
            return _UNREAD
        except UnsafePickleError as error:
            raise ValueError(str(error)) from None
        if not isinstance(names, list):
            raise ValueError(f"{self.path}:{KEY_LIST}: must be a list of image ids, got {described(names)}")
        for name in names:
            key = name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
            if not isinstance(key, bytes):
                raise ValueError(f"{self.path}:{KEY_LIST}: must be a list of image ids, {described(name)} is in it")
            if self._entries.find(key) is None:
                key = key[:600]
                missing = EntryError("read", "missing", f"the list {KEY_LIST!r} names it, the file has no such entry")
                self._note(key.decode("utf-8", "backslashreplace"), self._named(key), missing)
        return KEY_LIST


def item_in(value: bytes) -> dict[str, Any]:
    """The dict in the value of an entry; EntryError when it is no pickle of one."""
    try:
        item = loads_pickle(value, source="its value")
    except UnsafePickleError as error:
        raise EntryError("decode", "bad pickle", str(error)) from None
    if not isinstance(item, dict):
        raise EntryError("decode", "wrong type", f"its value must be a pickled dict, got {described(item)}")
    return item


def field_names(item: dict[str, Any]) -> str:
    """The first names in a dict, for an error."""
    return printable(", ".join(str(name)[:40] for name in list(item)[:12]))


def first_item(path: Path) -> dict[str, Any]:
    """A dict from among the first entries of an LMDB, to know the format by; {} when there is none. Never raises."""
    for key, value in first_values(path, _FIRST_ENTRIES).items():
        if key != KEY_LIST.encode():
            try:
                return item_in(value)
            except EntryError:
                continue
    return {}


def write_pickled_entries(
    records: Iterable[RegionRecord], path: Path, item: Callable[[RegionRecord, Counter[str]], dict[str, Any]]
) -> dict[str, int]:
    """Writes `item(record, losses)` under each record's image id, and the list of the ids.

    Records without regions are left out: the consumers divide by the number of regions.
    """
    losses: Counter[str] = Counter()
    names: list[bytes] = []
    with written_aside(path, folder=True, goes_on=True) as aside, LmdbOutput(aside) as output:
        for record in records:
            if record.image_id == KEY_LIST:
                raise ValueError(f"image id {KEY_LIST!r} is where this format keeps its list of ids; rename the image")
            if not record.num_regions:
                losses[NO_REGIONS] += 1
                continue
            key = record.image_id.encode("utf-8")
            output.put(key, plain_pickle(item(record, losses)))
            names.append(key)
        output.put(KEY_LIST.encode(), plain_pickle(names))
    return dict(losses)
