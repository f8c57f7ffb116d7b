"""Feature file formats: interface of a reader and a writer, the formats by name, and the format of a file.

The module of a format, and with it h5py or lmdb, is imported when the format is looked at.
"""

import copy
import importlib
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

from roibeam.features.exchange.check_report import NO_REGIONS
from roibeam.features.exchange.entry_file import FeatureFile
from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.exchange.reading import Reading
from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import name_hint

_NUMBERED = re.compile(r"(?:.*[_/])?0*([0-9]+)", re.DOTALL)


class FeatureFormat(ABC):
    """A format: what `features/exchange/formats.py` lists.

    Attributes:
        name: for command lines and fingerprints, such as "lxmert-h5".
        title: for people: whose code writes and reads it.
        suffixes: of its files; () for a folder.
        layouts: names that `write` takes, its default first.
        why_suffix: why a file must have one of the suffixes; "" where it need not.
        is_file: whether a file is written, not a folder.
        goes_on: whether a stopped export can be gone on with.
        numbered: whether images are named by the number that ends their ids; other ids stay.
        takes_empty: whether it has a place for records without regions; else they are left out.
        repeats: whether an image may come twice.
        classes, attributes: names in id order that `write` uses, where files of the format have names; None for ids.
    """

    name: str
    title: str
    suffixes: tuple[str, ...] = ()
    layouts: tuple[str, ...]
    file: type[FeatureFile]
    why_suffix: str = ""
    is_file = goes_on = takes_empty = True
    numbered = repeats = False
    classes: Sequence[str] | None = None
    attributes: Sequence[str] | None = None

    @abstractmethod
    def looks_like(self, path: Path) -> bool:
        """Whether the file's own first bytes or keys say that it is this format; reads little, never raises."""

    def open(self, path: Path, reading: Reading | None = None) -> FeatureFile:
        """
        Args:
            reading: how its arrays are read; its `doubts` are there when the file is open.
        Raises:
            ValueError: naming the file, what was expected and what was found, when it is not this format.
        """
        return self.file(path, reading)

    def write(
        self, records: Iterable[RegionRecord], path: Path, *, layout: str | None = None,
        check: Callable[[Path, Counter[str]], None] = lambda _aside, _losses: None,
    ) -> dict[str, int]:  # fmt: skip
        """Writes records in their order to a new file or folder; aside first, so that a killed export leaves none;
        one to the same path goes on with what it left where the format can.

        Args:
            check: reads what was written before it gets its name; it is removed after a ValueError.
        Returns:
            what was left out because the format has no place for it: field -> records.
        Raises:
            ValueError: when `path` exists, or a record does not fit the format.
        """
        if layout and layout not in self.layouts:
            raise ValueError(f"layout {layout!r} of {self.name}: choose one of {', '.join(self.layouts)}")
        if self.why_suffix and path.suffix not in self.suffixes:
            raise ValueError(f"{path}: {self.why_suffix}; give a name that ends in {self.suffixes[0]}")
        losses: Counter[str] = Counter()
        with atomic_path(path, folder=not self.is_file, goes_on=self.goes_on) as aside:
            self._write(self._fitting(records, losses), aside, layout or self.layouts[0], losses)
            try:
                check(aside, losses)
            except ValueError as error:
                raise ValueError(str(error).replace(str(aside), str(path))) from None
        return {field: count for field, count in losses.items() if count}

    def name_of(self, image_id: str) -> str:
        """The id that an image has in the file: COCO_val2014_000000000042 is 42 in one that is `numbered`."""
        found = _NUMBERED.fullmatch(image_id) if self.numbered else None
        return found[1] if found else image_id

    def losses(self, record: RegionRecord, path: Path, layout: str | None) -> list[str]:
        """Fields of a record that its file cannot hold; writes one to a new `path` to find out."""
        found: Counter[str] = Counter()
        path.touch() if self.is_file else path.mkdir()
        self._write(self._fitting([record], found), path, layout or self.layouts[0], found)
        return sorted(name for name, count in found.items() if count)

    def _fitting(self, records: Iterable[RegionRecord], losses: Counter[str]) -> Iterator[RegionRecord]:
        names: set[str] = set()
        for record in records:
            if not record.num_regions and not self.takes_empty:
                losses[NO_REGIONS] += 1
                continue
            name = self.name_of(record.image_id)
            if name in names:
                again = f"another one becomes {name} already; export them apart" if self.numbered else "comes twice"
                raise ValueError(f"image id {record.image_id!r}: {again}")
            names |= set() if self.repeats else {name}
            losses["image id"] += name != record.image_id
            yield record if name == record.image_id else replace(record, image_id=name)

    @abstractmethod
    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        """Writes to an empty file or folder, or goes on with one; adds to `losses`: field -> records."""

    def with_names(self, classes: Sequence[str] | None, attributes: Sequence[str] | None) -> Self:
        """The same with names to write."""
        found = copy.copy(self)
        found.classes, found.attributes = classes, attributes
        return found


# Name -> module with `FORMAT`, or what stands after a colon, in the order in which files are matched: those with slow
# imports come last.
FORMATS: dict[str, str] = {
    "oscar-tsv": "roibeam.features.exchange.oscar_tsv",
    "butd-tsv": "roibeam.features.exchange.butd_tsv",
    "captioning-folders": "roibeam.features.exchange.captioning:FOLDERS",
    "milvlg-npz": "roibeam.features.exchange.milvlg_npz",
    "mmf-npy": "roibeam.features.exchange.mmf_npy",
    "vlbert-zip": "roibeam.features.exchange.vlbert_zip",
    "vilbert-lmdb": "roibeam.features.exchange.vilbert_lmdb",
    "mmf-lmdb": "roibeam.features.exchange.mmf_lmdb",
    "uniter-lmdb": "roibeam.features.exchange.uniter_lmdb",
    "array-h5": "roibeam.features.exchange.array_h5",
    "captioning-h5": "roibeam.features.exchange.captioning:H5",
    "lxmert-h5": "roibeam.features.exchange.lxmert_h5",
    "webdataset": "roibeam.features.exchange.webdataset_tar",
    "parquet": "roibeam.features.exchange.parquet_shards",
}


def format_named(name: str) -> FeatureFormat:
    """The format of this name; ValueError naming those that are known under this name, such as "lxmert" or "volta", or
    all."""
    if name not in FORMATS:
        known = _known_as(name)
        hint = f"give {'; or '.join(known)}" if known else name_hint(name, FORMATS)
        raise ValueError(f"no feature file format is called {name!r}; {hint}")
    module, _, attribute = FORMATS[name].partition(":")
    return cast(FeatureFormat, getattr(importlib.import_module(module), attribute or "FORMAT"))


def _known_as(name: str) -> list[str]:
    """Formats that have a layout of this name, or whose title has it as a word."""
    found = []
    for each in map(format_named, FORMATS):
        layout = f" with layout {name.lower()}" if name.lower() in each.layouts else ""
        if layout or name.lower() in re.findall(r"[\w.-]+", each.title.lower()):
            found.append(f"{each.name}{layout}: {each.title}")
    return found


def recognise(path: str | os.PathLike[str]) -> FeatureFormat | None:
    """The format whose signature a file or folder bears, whatever its name; None for another file. Raises
    FileNotFoundError when there is nothing at `path`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder; give a store or a feature file")
    return next((found for found in map(format_named, FORMATS) if found.looks_like(path)), None)


def format_of(path: str | os.PathLike[str], name: str | None = None) -> FeatureFormat:
    """The format called `name`, or the one that the file bears; FileNotFoundError or ValueError saying which formats
    there are, when it is none of them."""
    if name is not None:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path}: no such file or folder; give a feature file")
        return format_named(name)
    found = recognise(path)
    if found is None:
        raise ValueError(
            f"{path}: is no feature file that roibeam knows ({', '.join(FORMATS)}); name the file or folder itself, or "
            "give its format with --format"
        )
    return found
