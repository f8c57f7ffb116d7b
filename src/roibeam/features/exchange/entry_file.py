"""Feature file as a list of entries with image ids, once for all containers; and a folder with a file per image.

A container finds its entries when it is opened and reads one of them on demand; the order by image id, repeated images
and dead letters are the same for all of them and are here. In a folder an image's id is its file's path below the
folder without the suffix, with "/" between folders.
"""

from __future__ import annotations

import bisect
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from roibeam.features.annotations import Annotation
from roibeam.features.exchange.entry_record import EntryError, far_edges, region_record, without_classes
from roibeam.features.exchange.export_output import ContinuedFolder
from roibeam.features.exchange.reading import Reading, spread_out
from roibeam.features.record.fingerprint import ABSENT, Fingerprint
from roibeam.features.record.region_record import RegionRecord, check_image_id, record_digest
from roibeam.features.shard.manifest import DeadLetter
from roibeam.features.shard.writer import Repeat
from roibeam.messages import printable

# 100 regions of 2048 values with 1601 class probabilities take 2 MB; a larger entry is never held in memory.
MAX_ENTRY_BYTES = 64 * 2**20
# A file of other content must not fill the memory with complaints.
MAX_NAMELESS_ENTRIES = 10_000
_SNIFFED_ENTRIES = 100
Sides = tuple[int, int] | None


class FeatureFile(ABC):
    """One file or folder, opened: a context manager.

    Opening it finds the entries without holding their arrays: memory grows by about 100 bytes for an entry. Whatever
    the file holds, nothing in it is executed, and no entry takes more memory than about three times the larger of its
    own bytes and its record's (deflated ones up to seven times).

    Attributes:
        layout: its name among those that the format has.
        details: plain JSON values for the fingerprint: at least "classes" and "attributes" (where they come from, or
            `ABSENT`), "feature_dim", and "boxes" (the form they have in the file: "pixels", "normalised", ...); where
            the file has class probabilities "background" ("first", "last" or `ABSENT`: its place in each row) and
            "num_classes" (foreground classes); where the file has no image sizes "image_size": `ABSENT` if boxes are
            shares, and records have 1 x 1, or `FAR_EDGES` if boxes are pixels, see `far_edges`.
        letters: entries that `ids` cannot name: without a usable image id, or named by the file and not in it.
        names: of classes and of attributes in id order, in a file that has names in place of ids; else None.
        before_name: between the file and what it calls an entry, in a location.
        fingerprint, dtype: of the store that was exported and of its features, where the file has them.
    """

    layout: str = ""
    _dim: int | None = None  # of a feature, set by the first entry
    _columns: int | None = None  # of a row of class probabilities
    before_name = ":"
    takes_empty = False  # whether the arrays of an image without regions tell the width of features
    details: dict[str, Any]
    names: tuple[tuple[str, ...] | None, tuple[str, ...] | None] = (None, None)
    fingerprint: Fingerprint | None = None
    dtype: str | None = None

    def __init__(self, path: str | os.PathLike[str], reading: Reading | None = None) -> None:
        self.path = Path(path)
        self._reading = reading or Reading()
        self.letters: list[DeadLetter] = []
        self._ids: Sequence[bytes] = ()
        self._order: Sequence[int] = ()
        self._open()
        try:
            self._scan()
        except BaseException:
            self._close()
            raise

    @abstractmethod
    def _open(self) -> None:
        """Opens the file."""

    @abstractmethod
    def _scan(self) -> None:
        """Finds the entries, and what kind of entries they are."""

    @abstractmethod
    def _read(self, entry: int, dtype: str) -> RegionRecord:
        """The record of an entry; EntryError when it gives none."""

    def _place_of(self, name: bytes) -> str:
        """Location of what the file calls so, for a dead letter."""
        return f"{self.path}{self.before_name}{printable(name.decode('utf-8', 'backslashreplace'), 600)}"

    def _place(self, entry: int) -> str:
        return self._place_of(self._ids[entry])

    @abstractmethod
    def _close(self) -> None: ...

    def annotations(self) -> Iterator[Annotation]:
        """Captions and labels of the images that have any, in the order of the file; most formats have none."""
        yield from ()

    def use_names(  # noqa: B027 (most files have ids)
        self, classes: Sequence[str] | None, attributes: Sequence[str] | None
    ) -> None:
        """Makes ids count these names, in a file that has `names`; ValueError, naming one, when it has others too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def __contains__(self, image_id: object) -> bool:
        return isinstance(image_id, str) and next(self._entries_of(_key(image_id)), None) is not None

    @property
    def num_entries(self) -> int:
        """Entries of the file, unusable ones too."""
        return len(self._ids) + len(self.letters)

    def ids(self) -> Iterator[str]:
        """Every image id once, in key order (of the UTF-8 bytes), also of images none of whose entries can be used."""
        previous: bytes | None = None
        for entry in self._order:
            if self._ids[entry] != previous:
                previous = self._ids[entry]
                yield previous.decode("utf-8")

    def outcomes(self, dtype: str = "float32") -> Iterator[RegionRecord | DeadLetter | Repeat]:
        """Every entry: first `letters`, then image by image in key order.

        The first usable entry of an image is its record; later ones are `Repeat` when they hold the same, and dead
        letters ("another record of this image") when they do not.

        Args:
            dtype: of the features, key of `FEATURE_DTYPES`; a value that it cannot hold makes a dead letter.
        """
        yield from self.letters
        for image_id in self.ids():
            yield from self.outcomes_of(image_id, dtype)

    def outcomes_of(self, image_id: str, dtype: str = "float32") -> Iterator[RegionRecord | DeadLetter | Repeat]:
        """The entries of one image, as `outcomes` gives them; none when the file does not name it."""
        entries = list(self._entries_of(_key(image_id)))
        found: bytes | None = None
        for entry in entries:
            try:
                record = self._read(entry, dtype)
                digest = record_digest(record) if len(entries) > 1 else b""
                if found is None:
                    found = digest
                    yield record
                elif digest == found:
                    yield Repeat(image_id, self._place(entry))
                else:
                    detail = "differs from an earlier entry of this image, which is the one used; which is meant?"
                    raise EntryError("record", "another record of this image", detail)
            except EntryError as error:
                yield DeadLetter(image_id, self._place(entry), error.stage, error.reason, str(error))

    def _take_ids(self, names: Iterable[tuple[int, bytes]], id_of: Callable[[bytes], bytes]) -> array[int]:
        """Takes the entries that have a usable image id, and notes the others.

        Args:
            names: of the entries with their numbers, in the order of the file.
            id_of: the image id of a name; EntryError where it has none.
        Returns:
            The numbers of those that are taken.
        """
        ids: list[bytes] = []
        numbers = array("q")
        for number, name in names:
            try:
                ids.append(id_of(name))
                numbers.append(number)
            except EntryError as error:
                self._note(name, error)
        self._set_ids(ids)
        return numbers

    def _set_ids(self, ids: Sequence[bytes]) -> None:
        """The image ids of the entries, in the order of the file; checked before by `usable_id`."""
        self._ids = ids
        in_order = all(left <= right for left, right in pairwise(ids))
        # Stable: entries of one image stay in the file's order.
        self._order = range(len(ids)) if in_order else array("q", sorted(range(len(ids)), key=ids.__getitem__))

    def _first_record(self, expected: str) -> RegionRecord:
        """The first record with regions of the first 100 entries, to know the file by; settles the reading and
        fills `details` but for what is in few formats. Raises ValueError when there is none."""
        letter = self.letters[0] if self.letters else None
        first_error = f"{letter.location}: {letter.detail}" if letter else "holds no entry, there is nothing in it"
        found = None
        for entry in range(min(len(self._ids), _SNIFFED_ENTRIES)):
            try:
                record = self._read(entry, "float32")
                found = record if self.takes_empty else None
                if record.num_regions:
                    found = record
                    break
                raise EntryError("record", "no boxes", "has no boxes, so no feature width")
            except EntryError as error:
                if entry == 0 and not self.letters:
                    first_error = f"{self._place(entry)}: {error}"
        if found is None:
            self._reading.settle()
            self._reading.check(self.path)  # a better error than "no entry can be used"
            raise ValueError(
                f"{self.path}: none of its first {_SNIFFED_ENTRIES} entries is one of {expected}: {first_error}"
            )
        self._look_around(found, spread_out(len(self._ids), but=entry))
        self._dim = found.features.shape[1]
        if isinstance(found.class_distribution, np.ndarray):
            self._columns = self._reading.num_columns(found.class_distribution)
        self.details = {"classes": ABSENT, "attributes": ABSENT, "feature_dim": self._dim, "boxes": "pixels"}
        return found

    def _made(
        self, entry: int, sides: Sides, boxes: Any, features: Any, classes: Any, dtype: str, whole: Any = None
    ) -> RegionRecord:
        """The `region_record` of an entry; without height and width its photo ends where its boxes do."""
        classes = classes or without_classes(len(features))
        image_id, sides = self._ids[entry].decode(), sides or far_edges(boxes)
        return region_record(image_id, *sides, boxes, features, classes, dtype=dtype, image_feature=whole)

    def _look_around(self, first: RegionRecord, others: Sequence[int]) -> None:
        """Reads a few entries of the whole file besides the first, so that doubts do not rest on one image."""
        for other in others:
            with suppress(EntryError):  # becomes a dead letter when its turn comes
                self._read(other, "float32")
        self._reading.settle()

    def _note(self, name: bytes, error: EntryError, place: str | None = None) -> None:
        """A dead letter of an entry that `ids` cannot name."""
        if len(self.letters) >= MAX_NAMELESS_ENTRIES:
            raise ValueError(
                f"{self.path}: over {MAX_NAMELESS_ENTRIES:,} entries that are missing or have no usable image id (the "
                f"last one: {error}); is it another format, or was its writer killed?"
            )
        text, place = printable(name.decode("utf-8", "backslashreplace")), place or self._place_of(name)
        self.letters.append(DeadLetter(text, place, error.stage, error.reason, str(error)))

    def _entries_of(self, key: bytes) -> Iterator[int]:
        at = bisect.bisect_left(self._order, key, key=self._ids.__getitem__)
        while at < len(self._order) and self._ids[self._order[at]] == key:
            yield self._order[at]
            at += 1


def usable_id(name: bytes, advice: str = "") -> bytes:
    """`name`, when it can be an image id of a store; EntryError otherwise, with `advice` where it is not UTF-8."""
    try:
        check_image_id(name.decode("utf-8"))
    except UnicodeDecodeError:
        raise EntryError("read", "bad image id", f"image id {name[:60]!r} is not UTF-8{advice}") from None
    except ValueError as error:
        raise EntryError("read", "bad image id", str(error)) from None
    return name


def _key(image_id: str) -> bytes:
    return image_id.encode("utf-8", "surrogatepass")  # an id with half a surrogate pair is absent, not an error


_LONGEST_NAME = 255  # bytes; what ext4, XFS and NTFS take
_LOOKED_AT = 1000


class ImageFolder(FeatureFile):
    """A folder, opened; formats add how a file is read. Links in it are followed to files inside it only; other links
    are dead letters.

    Attributes:
        suffix: of the files of images, such as ".npz"; other files are ignored.
        companion: ending of files that belong to another one, such as "_info.npy"; None for none.
    """

    suffix: str
    companion: str | None = None

    def _open(self) -> None:
        if not self.path.is_dir():
            raise ValueError(f"{self.path}: is no folder; give the folder with the {self.suffix} files")
        self._root = os.path.realpath(self.path)

    def _scan(self) -> None:
        self._take_ids(enumerate(sorted(self._files())), self._id_of)

    def _id_of(self, name: bytes) -> bytes:
        path = self.path / os.fsdecode(name)
        if path.is_symlink():
            self.check_inside(path)
        return usable_id(name.removesuffix(os.fsencode(self.suffix)))

    def file_of(self, entry: int) -> Path:
        return self.path / os.fsdecode(self._ids[entry] + os.fsencode(self.suffix))

    def check_inside(self, path: Path) -> None:
        """EntryError when a file, links followed, lies outside the folder."""
        if os.path.commonpath([self._root, os.path.realpath(path)]) != self._root:
            raise EntryError("read", "link out of the folder", "is a link to a file outside the folder; not followed")

    def _place(self, entry: int) -> str:
        return str(self.file_of(entry))

    def _place_of(self, name: bytes) -> str:
        return f"{self.path}/{name.decode('utf-8', 'backslashreplace')}"

    def _files(self) -> Iterator[bytes]:
        """Paths below the folder of the files of images; links to folders are not followed."""
        base, ending = os.fsencode(self.path), os.fsencode(self.suffix)
        other = os.fsencode(self.companion) if self.companion else None
        for folder, _, names in os.walk(base, onerror=self._unreadable):
            for name in names:
                if name.endswith(ending) and not (other and name.endswith(other)):
                    yield os.path.relpath(os.path.join(folder, name), base)

    def _unreadable(self, error: OSError) -> None:
        where = error.filename or b"?"
        what = EntryError("read", "unreadable", f"folder cannot be read: {error.strerror}")
        self._note(where, what, os.fsdecode(where))

    def _close(self) -> None:
        """Files are opened and closed one by one."""


def first_file(path: Path, suffix: str, *, companion: str | None = None) -> Path | None:
    """Some file of an image in a folder; None when there is none among its first thousand files or `path` is none."""
    if not path.is_dir():
        return None
    looked = 0
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in names:
            looked += 1
            if name.endswith(suffix) and not (companion and name.endswith(companion)):
                return Path(folder) / name
            if looked >= _LOOKED_AT:
                return None
    return None


def write_file(output: ContinuedFolder, image_id: str, suffix: str, data: bytes) -> None:
    """Writes the file of an image; its folder is made. Raises ValueError when the id cannot be a path below the
    output's folder."""
    parts = image_id.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"image id {image_id!r} cannot be the path of a file; export to a format with keys, or rename")
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in [*parts[:-1], parts[-1] + suffix]):
        raise ValueError(f"image id {image_id!r}: a file name has at most {_LONGEST_NAME} bytes, {suffix} included")
    path = output.folder.joinpath(*parts[:-1], parts[-1] + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    if output.is_taken(path):
        raise ValueError(f"image id {image_id!r}: there is a file {path.name} already; do ids differ in case only?")
    output.write(path, data)
