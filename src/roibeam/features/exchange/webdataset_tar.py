"""WebDataset: tar files that webdataset and Hugging Face's datasets stream, two members for each image.

    __roibeam__/facts.json     the facts of the store; webdataset passes it over
    <key>.json                 image_id, width, height, classes, attributes (names of each region), captions, labels
    <key>.npz                  the arrays of `exact_records`, stored without compression

The key is the image id with "%2E" for a dot and "%25" for "%", since webdataset ends a key at the first dot of a file
name. (webdataset/webdataset src/webdataset/tariterators.py: base_plus_ext, tar_file_iterator.) Headers are those of
POSIX ustar, with long names as GNU's tar or pax has them. Python's tarfile holds each header, and a long name of any
size, in memory: the headers are read here, and nothing is extracted, so no name leads out of a folder.
"""

import json
import os
import re
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.annotations import Annotation
from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES, usable_id
from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.exchange.exact_records import ARRAYS, MOST_FACTS, ExactFile, ExactFormat, json_object
from roibeam.features.exchange.export_output import ContinuedFile
from roibeam.features.exchange.npy_files import npz_bytes, npz_values
from roibeam.features.folders.durable_files import open_regular_file
from roibeam.features.record.region_record import RegionRecord

_FACTS = b"__roibeam__/facts"
_BLOCK = 512
_MOST_JSON, _MOST_HEADER = 2**20, 2**16  # bytes


class WebDatasetTar(ExactFile):
    suffix = ".tar"

    def _open(self) -> None:
        self._opened = [open_regular_file(path) for path in self._paths]

    def _scan(self) -> None:
        facts: list[tuple[Path, bytes | None]] = []
        names: list[bytes] = []
        places = array("q")  # of each sample: file, start and size of its .json, those of its .npz
        for number, (path, file) in enumerate(zip(self._paths, self._opened, strict=True)):
            facts.append((path, None))
            for key, found in _samples(members(file.fileno(), path)):
                if key == _FACTS:
                    start, size = found.get(b"json", (0, 0))
                    facts[-1] = path, os.pread(file.fileno(), min(size, MOST_FACTS + 1), start)
                elif b"json" in found and b"npz" in found:
                    names.append(key)
                    places.extend((number, *found[b"json"], *found[b"npz"]))
                else:
                    self._note(key, EntryError("read", "missing member", "has not both a .json and a .npz"))
        self._take_facts(facts)
        self._places = places
        self._samples = self._take_ids(enumerate(names), _id_of)
        self._describe()

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        told = self._told(self._samples[entry])
        image_id = self._ids[entry].decode("utf-8")
        if str(told.get("image_id", image_id)) != image_id:
            raise EntryError("read", "bad image id", f"its .json is of {str(told['image_id'])[:80]!r}")
        arrays = npz_values(self._member(self._samples[entry], 1), ARRAYS)
        if any(not isinstance(array, np.ndarray) for array in arrays.values()):
            raise EntryError("decode", "wrong type", "its .npz holds something else than arrays")
        return self._record(entry, told, arrays, dtype)

    def _told(self, sample: int) -> dict[str, Any]:
        data = self._member(sample, 0)
        told = json_object(data, _MOST_JSON)
        if told is None:
            raise EntryError("decode", "bad json", f"its .json of {len(data):,} bytes is no object")
        return told

    def _member(self, sample: int, number: int) -> bytes:
        file, *both = self._places[5 * sample : 5 * sample + 5]
        start, size = both[2 * number : 2 * number + 2]
        if size > MAX_ENTRY_BYTES:
            raise EntryError("read", "entry too large", f"has {size:,} bytes, a member at most {MAX_ENTRY_BYTES:,}")
        return os.pread(self._opened[file].fileno(), size, start)

    def annotations(self) -> Iterator[Annotation]:
        for entry in range(len(self._ids)):
            with suppress(EntryError):  # a dead letter
                yield from self._annotations_of(self._ids[entry].decode("utf-8"), self._told(self._samples[entry]))

    def _close(self) -> None:
        for file in self._opened:
            file.close()


def members(descriptor: int, path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and size of the plain files in a tar; ValueError where a header is damaged or the file is cut."""
    size, at, long_name = os.fstat(descriptor).st_size, 0, b""
    while at + _BLOCK <= size:
        header = os.pread(descriptor, _BLOCK, at)
        if not header.strip(b"\0"):
            return
        try:
            kind, length = header[156:157], int(header[124:136].strip(b" \0") or b"0", 8)
            is_whole = int(header[148:156].strip(b" \0"), 8) == sum(header) - sum(header[148:156]) + 8 * 32
        except ValueError:
            is_whole = False
        start = at + _BLOCK
        if not is_whole or length < 0 or start + length > size:
            raise ValueError(f"{path}: is no whole tar file: at byte {at:,}; copy it again")
        if kind in (b"L", b"x") and length > _MOST_HEADER:
            raise ValueError(f"{path}: at byte {at:,}: a header of {length:,} bytes, expected at most {_MOST_HEADER:,}")
        if kind == b"L":
            long_name = os.pread(descriptor, length, start).rstrip(b"\0")
        elif kind == b"x":
            told = re.search(rb"(?:^|\n)\d+ path=(.*)\n", os.pread(descriptor, length, start))
            long_name = told[1] if told else long_name
        else:
            prefix = header[345:500].rstrip(b"\0") if header[257:263] == b"ustar\0" else b""
            name = long_name or b"/".join(filter(None, (prefix, header[:100].rstrip(b"\0"))))
            if kind in (b"0", b"\0"):
                yield name.removeprefix(b"./"), start, length
            long_name = b""
        at = start + -(-length // _BLOCK) * _BLOCK
    raise ValueError(f"{path}: is no whole tar file: it has no end; copy it again")


def _samples(files: Iterable[tuple[bytes, int, int]]) -> Iterator[tuple[bytes, dict[bytes, tuple[int, int]]]]:
    """Key, and start and size by ending, of files that follow each other; an ending that comes again begins anew."""
    key, found = b"", dict[bytes, tuple[int, int]]()
    for name, start, size in files:
        own = _key(name)
        ending = name[len(own) + 1 :]
        if found and (own != key or ending in found):
            yield key, found
            found = {}
        key, found[ending] = own, (start, size)
    if found:
        yield key, found


def _key(name: bytes) -> bytes:
    """Name of a sample in webdataset."""
    folder, slash, file = name.rpartition(b"/")
    return folder + slash + file.partition(b".")[0]


def _id_of(key: bytes) -> bytes:
    return usable_id(key.replace(b"%2E", b".").replace(b"%25", b"%"))


def _name_of(image_id: str) -> str:
    """ValueError for an id that would be another sample's, or none that webdataset reads."""
    key = image_id.replace("%", "%25").replace(".", "%2E")
    if key.startswith("__") or key.startswith("/") or key.endswith("/") or "\0" in key:
        raise ValueError(f"image id {image_id!r} cannot be a key of WebDataset; export to parquet, or rename it")
    return key


class WebDatasetFormat(ExactFormat):
    name = "webdataset"
    title = "tar with a .json and a .npz per image (webdataset, Hugging Face datasets)"
    suffixes = (".tar",)
    file = WebDatasetTar

    def _begins(self, file: BufferedReader, path: Path) -> bool:
        name, _, _ = next(members(file.fileno(), path), (b"", 0, 0))
        return name.endswith((b".json", b".npz"))

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        with ContinuedFile(path) as output:
            for number, record in enumerate(records):
                if not number:
                    output.write(_tar_member("__roibeam__/facts.json", self._facts_by(record)))
                told = self._words_of(record).items()
                data = json.dumps({name: value for name, value in told if value not in (None, [])})
                key, arrays = _name_of(record.image_id), self._arrays_of(record)
                output.write(_tar_member(f"{key}.json", data.encode("ascii")))
                output.write(_tar_member(f"{key}.npz", npz_bytes(arrays, compressed=False)))
            output.write(bytes(2 * _BLOCK))


def _tar_member(name: str, data: bytes) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict") + data + bytes(-len(data) % _BLOCK)


FORMAT = WebDatasetFormat()
