"""Bottom-up-attention TSV: one image per line, arrays as base64 of raw little-endian C-order bytes.

    6   image_id image_w image_h num_boxes boxes features               peteanderson80/bottom-up-attention
    7   the same and cls_prob, BACKGROUND FIRST in each row             forks of it that keep the class scores
    10  img_id img_h img_w objects_id objects_conf attrs_id attrs_conf  airsplay/py-bottom-up-attention, LXMERT;
        num_boxes boxes features                                        height before width here

Most files have no header row; the number of columns tells these apart. A first line of such names (`_COLUMN_NAMES`) is
a header and gives their order. A line that cannot be used, torn or edited, becomes a `DeadLetter` with its number.
Written: "lxmert" for `load_obj_tsv` of airsplay/lxmert src/utils.py, "caffe" and "caffe-cls-prob" for tools/read_tsv.py
of peteanderson80's. No layout has a feature of the whole image; "caffe" no classes and attributes, "caffe-cls-prob" no
attributes, "lxmert" no distributions.
"""

import base64
import codecs
import os
import re
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roibeam.features.exchange.check_report import count_losses
from roibeam.features.exchange.entry_file import MAX_ENTRY_BYTES, MAX_NAMELESS_ENTRIES, FeatureFile, usable_id
from roibeam.features.exchange.entry_record import (
    EntryError,
    array_of_bytes,
    attributes_or_zeros,
    base64_bytes,
    float32_array,
    image_size,
    region_record,
    rows_of_classes,
    whole_number,
)
from roibeam.features.exchange.export_output import ContinuedFile
from roibeam.features.exchange.formats import FeatureFormat
from roibeam.features.exchange.reading import Reading
from roibeam.features.record.fingerprint import ABSENT
from roibeam.features.record.region_record import MAX_REGIONS, RegionRecord
from roibeam.features.shard.manifest import DeadLetter

MAX_LINE_BYTES = MAX_ENTRY_BYTES
MAX_LINES_WITHOUT_ID = MAX_NAMELESS_ENTRIES
_READ_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class TsvLayout:
    """One of the three layouts: its name, its columns in file order, and whether a header row names them."""

    name: str
    columns: tuple[str, ...]
    in_header: bool = False


_CAFFE = ("image_id", "width", "height", "num_boxes", "boxes", "features")
_LXMERT = (
    "image_id", "height", "width", "objects_id", "objects_conf", "attrs_id", "attrs_conf", "num_boxes", "boxes",
    "features",
)  # fmt: skip
LAYOUTS = {
    len(layout.columns): layout
    for layout in (
        TsvLayout("caffe", _CAFFE),
        TsvLayout("caffe-cls-prob", (*_CAFFE, "cls_prob")),
        TsvLayout("lxmert", _LXMERT),
    )
}
_COLUMN_NAMES = {name: name for name in (*_LXMERT, "cls_prob")} | {
    "img_id": "image_id", "image_w": "width", "img_w": "width", "image_width": "width",
    "image_h": "height", "img_h": "height", "image_height": "height", "num_box": "num_boxes",
    "objects_prob": "cls_prob",
}  # fmt: skip
_FEWEST_HEADER_NAMES = 3
_SPELLINGS = {"width": "image_w", "height": "image_h"}


class TsvFile(FeatureFile):
    """One TSV, opened: a pass over it notes where the lines of each image are (about 120 bytes of memory per line).

    Records are then read by image id, or all of them in key order, so that a store written from them needs no sorting
    and no more memory than a shard.

    Args:
        path: an uncompressed file (it is read by position).
    Attributes:
        kind: what it is, for errors.
        num_lines, num_blank: lines in all, and how many of them hold no image: blank ones, and header rows.
    Raises:
        ValueError: when the file has no usable line among its first 100, or over 10,000 lines without an image id.
    """

    kind: str
    _key_column = 0
    _width_known = False

    def _open(self) -> None:
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"{self.path}: is no regular file; give a {self.kind}")
        self._file = open(self.path, "rb", buffering=_READ_BUFFER_BYTES)

    def _close(self) -> None:
        self._file.close()

    def _index(self) -> None:
        """Notes id and position of each line, reading none of it twice."""
        self.num_lines = self.num_blank = 0
        self._offsets, self._numbers = array("q"), array("q")
        self._torn_line: int | None = None
        keys: list[bytes] = []
        offset, header = 0, b""
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            start = offset
            too_long = len(line) > MAX_LINE_BYTES and not line.endswith(b"\n")
            length = len(line) + (self._skip_line() if too_long else 0)
            offset = start + length
            self.num_lines += 1
            if not too_long and line.isspace():
                self.num_blank += 1
                continue
            if start == 0 and line.startswith(codecs.BOM_UTF8):
                line = line.removeprefix(codecs.BOM_UTF8)
            if start == 0 and not too_long and self._is_header(line):
                header = line
            if header and line == header:  # also where headed files were put together
                self.num_blank += 1
                continue
            try:
                if too_long:
                    detail = f"has {length:,} bytes, a line has at most {MAX_LINE_BYTES:,}; are line ends missing?"
                    raise EntryError("read", "line too long", detail)
                if not line.endswith(b"\n"):
                    self._torn_line = len(keys)
                keys.append(line_key(line, self._key_column))
                self._offsets.append(start)
                self._numbers.append(self.num_lines)
            except EntryError as error:
                if not too_long and not line.endswith(b"\n"):
                    error = EntryError("read", "torn line", f"the file ends inside this line ({error})")
                name = line[:60].partition(b"\t")[0].decode("ascii", "backslashreplace").strip().encode()
                self._note(name or b"line %d" % self.num_lines, error)
        self._set_ids(keys)

    def _is_header(self, line: bytes) -> bool:
        """Whether the first line names columns."""
        return False

    def _skip_line(self) -> int:
        """Reads to the end of the line, keeping none of it; returns how many bytes that were."""
        skipped = 0
        while part := self._file.readline(_READ_BUFFER_BYTES):
            skipped += len(part)
            if part.endswith(b"\n"):
                break
        return skipped

    def _note(self, name: bytes, error: EntryError, place: str | None = None) -> None:
        if len(self.letters) >= MAX_LINES_WITHOUT_ID:
            raise ValueError(
                f"{self.path}: over {MAX_LINES_WITHOUT_ID:,} lines without a usable image id (the last one is line "
                f"{self.num_lines}: {error}); this is no {self.kind}{self._other_format()}"
            )
        super()._note(name, error, place)

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        if not self._width_known and entry == self._torn_line:
            # Cut in its last array, a line can still look whole, with features of another width.
            raise EntryError("read", "torn line", "the file ends inside this line: its line end is missing")
        data = self._bytes_of(entry)
        try:
            if line_key(data, self._key_column) != self._ids[entry]:
                raise EntryError("read", "changed", "the file was changed while it was read; run the command again")
            return self._parse(data, dtype)
        except EntryError as error:
            if entry == self._torn_line:
                detail = f"the file ends inside this line, its writer was killed or the copy stopped ({error})"
                raise EntryError("read", "torn line", detail) from None
            raise

    @abstractmethod
    def _parse(self, line: bytes, dtype: str) -> RegionRecord:
        """The record of a line; the first one with regions settles what the others must be."""

    def _bytes_of(self, line: int) -> bytes:
        self._file.seek(self._offsets[line])
        data = self._file.readline(MAX_LINE_BYTES + 1)
        return data.removeprefix(codecs.BOM_UTF8) if self._offsets[line] == 0 else data

    def _place(self, entry: int) -> str:
        return f"{self.path}:{self._numbers[entry]}"

    def _place_of(self, name: bytes) -> str:
        return f"{self.path}:{self.num_lines}"

    def _other_format(self) -> str:
        self._file.seek(0)
        head = self._file.read(4)
        if head[:2] == b"\x1f\x8b" or head[:2] == b"PK" or head[:3] == b"BZh":
            return "; it is a compressed file: unpack it first"
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return "; it is UTF-16 text: convert it to UTF-8 first"
        return ""


class ButdTsv(TsvFile):
    """See `TsvFile`.

    Attributes:
        columns: the layout of the file; lines with another number of columns are dead letters.
        widths: values per row of "features" (D) and "cls_prob" (C + 1), from the first usable line; a line of other
            widths is a dead letter.
    """

    kind = "bottom-up-attention TSV"
    columns: TsvLayout
    _header: TsvLayout | None = None

    def _scan(self) -> None:
        self._index()
        self.widths: dict[str, int] = {}
        record = self._first_record(
            "a bottom-up-attention TSV (6, 7 or 10 columns with tabs between them, arrays in base64)"
            + self._other_format()
        )
        self.layout = self.columns.name
        columns = self.columns.columns
        self.details |= {
            "columns": columns,
            "classes": next((name for name in ("objects_id", "cls_prob") if name in columns), ABSENT),
            "attributes": "attrs_id" if "attrs_id" in columns else ABSENT,
        }
        if "cls_prob" in self.widths:
            self.details |= self._reading.details(record)

    def _is_header(self, line: bytes) -> bool:
        self._header = header_layout(line, str(self.path))
        if self._header is not None:
            self._key_column = self._header.columns.index("image_id")
        return self._header is not None

    def _look_around(self, first: RegionRecord, others: Sequence[int]) -> None:
        records, swapped = [first], 0
        for line in others:
            try:
                records.append(self._read(line, "float32"))
            except EntryError as error:  # becomes a dead letter when its turn comes
                swapped += error.reason == "height and width swapped"
        self._reading.settle()
        if swapped and not self.columns.in_header and not any(map(_fits_only_as_it_is, records)):
            names = " ".join(_SPELLINGS.get(name, name) for name in self.columns.columns[:3])
            self._reading.doubts.append(
                f"its columns are read as {names} ..., but the boxes of {swapped} of the {len(others) + 1} lines that "
                f"were looked at fit only when height and width are swapped, and no line's fit only as they are; put a "
                f"first line in front that names all columns in their order, with tabs between them"
            )

    def _layout_of(self, data: bytes) -> TsvLayout:
        if self._header is not None:
            return self._header
        columns = data.count(b"\t") + 1
        if columns not in LAYOUTS:
            raise EntryError("read", "wrong columns", f"has {columns} columns, the layouts have 6, 7 or 10")
        return LAYOUTS[columns]

    def _parse(self, line: bytes, dtype: str) -> RegionRecord:
        columns = self.columns if self._width_known else self._layout_of(line)
        record = parse_line(line, columns, self._reading, widths=self.widths, dtype=dtype)
        if not self._width_known and record.num_regions:
            self.columns, self.widths = columns, {"features": record.features.shape[1]}
            self._width_known = True
            if isinstance(record.class_distribution, np.ndarray):
                self.widths["cls_prob"] = self._reading.num_columns(record.class_distribution)
        return record


def read_butd_tsv(path: str | os.PathLike[str]) -> Iterator[RegionRecord]:
    """The records of a file in key order, float32 features, equal repeats left out; for those who need every line.
    Raises ValueError at the first line that cannot be used, naming file, line and what is wrong."""
    with ButdTsv(path) as tsv:
        for outcome in tsv.outcomes():
            if isinstance(outcome, DeadLetter):
                raise ValueError(f"{outcome.location}: {outcome.detail}; mend or remove this line")
            if isinstance(outcome, RegionRecord):
                yield outcome


def header_layout(line: bytes, path: str) -> TsvLayout | None:
    """The layout that a header row names; None for a line of values. Raises ValueError when some names are not known,
    come twice or are missing."""
    cells = [cell.strip(b" \"'#\r\n").lower().decode("ascii", "replace") for cell in line[:2000].split(b"\t")]
    known = [_COLUMN_NAMES[cell] for cell in cells if cell in _COLUMN_NAMES]
    if len(known) < _FEWEST_HEADER_NAMES:
        return None
    needed = [*_CAFFE]
    for kind in ("objects", "attrs"):
        if f"{kind}_id" in known or f"{kind}_conf" in known:
            needed += ["objects_id", "objects_conf", f"{kind}_id", f"{kind}_conf"]
    wrong = [f"{cell!r} is no column that is known" for cell in cells if cell not in _COLUMN_NAMES]
    wrong += [f"{name!r} comes twice" for name in dict.fromkeys(known) if known.count(name) > 1]
    wrong += [f"{_SPELLINGS.get(name, name)!r} is missing" for name in needed if name not in known]
    if wrong:
        raise ValueError(
            f"{path}: line 1 is a header, and {wrong[0]}; columns are image_id, image_w, image_h, num_boxes, boxes, "
            f"features, and, where the file has them, cls_prob, objects_id, objects_conf, attrs_id, attrs_conf"
        )
    name = "lxmert" if "objects_id" in known else "caffe-cls-prob" if "cls_prob" in known else "caffe"
    return TsvLayout(name, tuple(known), in_header=True)


def parse_line(
    line: bytes, layout: TsvLayout, reading: Reading, *, widths: Mapping[str, int], dtype: str = "float32"
) -> RegionRecord:
    """One line, with or without its line end, as a record.

    Without classes in the file, class ids and scores are 0; with `cls_prob` the class is the best foreground class, and
    the record's class distribution is the whole row with background moved from the first place to the last. Attributes
    that are 0 with confidence 0 in every region (how the COCO script of py-bottom-up-attention writes none) are None.

    Args:
        widths: values per row that "features" and "cls_prob" must have; one that is not named is what the bytes give.
        dtype: key of `FEATURE_DTYPES`.
    Raises:
        EntryError: saying which column is wrong, what was expected and what came.
    """
    expected, got = len(layout.columns), line.count(b"\t") + 1  # counted first: a line may be 64 MiB of tabs
    if got != expected:
        glued = " (two lines in one: a writer was killed in it and started again)" if got == 2 * expected - 1 else ""
        raise EntryError("read", "wrong columns", f"has {got} columns, the lines of this file have {expected}{glued}")
    # The line end, \n or \r\n, goes where blanks around a field go.
    column = dict(zip(layout.columns, line.split(b"\t"), strict=True))
    image_id = line_key(line, layout.columns.index("image_id")).decode("utf-8")
    text = {name: column[name].strip().decode("latin1") for name in ("height", "width", "num_boxes")}
    height, width = image_size(text.get, ("height", "width"))
    num_regions = whole_number(text["num_boxes"], "num_boxes", 0, MAX_REGIONS)
    boxes = float32_array(_array(column, "boxes", num_regions, 4), "boxes", rows=num_regions, columns=4)
    data = base64_bytes(column["features"].strip(), "features")
    reading.watch(data, reading.dtype_name)
    features = reading.plain(_rows(data, "features", reading.dtype, num_regions, widths.get("features")))
    classes = None
    if "cls_prob" in column:
        data = base64_bytes(column["cls_prob"].strip(), "cls_prob")
        dtype_of_rows = reading.row_dtype(data, num_regions)
        rows = _rows(data, "cls_prob", dtype_of_rows, num_regions, widths.get("cls_prob"))
        classes = reading.classes(rows.astype(np.float32), "cls_prob")
    of_classes, of_attributes = (kind if f"{kind}_id" in column else None for kind in ("objects", "attrs"))
    # Copied, as a view of the text is read-only.
    classes = reading.stated_classes(
        lambda name: _array(column, name, num_regions)[:, 0].copy(), num_regions, of_classes, of_attributes, classes
    )
    return region_record(image_id, height, width, boxes, features, classes, dtype=dtype)


def line_key(line: bytes, column: int = 0) -> bytes:
    """The image id as it stands in the line."""
    end = line.find(b"\t")
    if end < 0:
        raise EntryError("read", "wrong columns", "has no tab, so no columns")
    key = (line[:end] if column == 0 else (line.split(b"\t", column + 1)[column : column + 1] or [b""])[0]).strip()
    if key.startswith(b"b'") and key.endswith(b"'") and len(key) > 3:  # bytes that Python 3 wrote as text
        key = key[2:-1]
    return usable_id(key, "; convert the file (iconv -f latin1 -t utf-8)")


def _array(column: dict[str, bytes], name: str, num_regions: int, columns: int = 1) -> np.ndarray:
    """(K, columns) from base64; how many bytes there are tells the type of the numbers."""
    data = base64_bytes(column[name].strip(), name)
    kind = "<i8" if name.endswith("_id") else "<f4"
    if num_regions and len(data) % (num_regions * columns) == 0:
        array = array_of_bytes(data, name, kind, num_regions * columns)
        return _rows(data, name, array.dtype, num_regions, columns)
    return _rows(data, name, np.dtype(kind), num_regions, columns)


def _rows(data: bytes, name: str, dtype: np.dtype, rows: int, columns: int | None) -> np.ndarray:
    """(rows, columns); columns of None are what the bytes give. With no rows it becomes 1."""
    if columns is None:
        columns = len(data) // (rows * dtype.itemsize) if rows else 1
    if len(data) != rows * columns * dtype.itemsize or columns < 1:
        expected = f"{rows} x {columns} x {dtype.itemsize}" if columns else f"a multiple of {rows * dtype.itemsize}"
        raise EntryError(
            "decode", "wrong byte count", f"{name} has {len(data):,} bytes, {rows} boxes need {expected} "
            f"(num_boxes, dtype or feature width is another)",
        )  # fmt: skip
    return np.frombuffer(data, dtype).reshape(rows, columns)


def _fits_only_as_it_is(record: RegionRecord) -> bool:
    """Whether the boxes would reach out of an image of swapped height and width."""
    far_x, far_y = record.boxes[:, 2:].max(axis=0, initial=0).tolist()
    return bool(far_x > record.height + 1 or far_y > record.width + 1)


_LAYOUTS = {layout.name: layout for layout in LAYOUTS.values()}
_SNIFFED_BYTES = 4096
_NUMBER = re.compile(rb" *[0-9]+(?:\.0*)? *")


class ButdTsvFormat(FeatureFormat):
    name = "butd-tsv"
    title = "bottom-up-attention TSV of 6, 7 (cls_prob) or 10 (LXMERT) columns"
    suffixes = (".tsv",)
    layouts = ("lxmert", "caffe", "caffe-cls-prob")
    file = ButdTsv
    repeats = True

    def looks_like(self, path: Path) -> bool:
        """Whether the first line begins with an id and two numbers, or names columns, or the name says so: a TSV has no
        signature, and its first line may be torn."""
        if not path.is_file():
            return False
        try:
            with open(path, "rb") as file:
                line = file.read(_SNIFFED_BYTES).partition(b"\n")[0].removeprefix(codecs.BOM_UTF8)
        except OSError:
            return False
        cells = line.split(b"\t", 3)
        if path.suffix in self.suffixes or (len(cells) == 4 and all(map(_NUMBER.fullmatch, cells[1:3]))):
            return True
        try:
            return header_layout(line, str(path)) is not None
        except ValueError:
            return True

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        with ContinuedFile(path) as file:
            for number, record in enumerate(records):
                line = _line(record, _LAYOUTS[layout], losses)
                # Readers take one mark off a file's first bytes: an id that begins with one needs another before it.
                is_marked = not number and line.startswith(codecs.BOM_UTF8)
                file.write(codecs.BOM_UTF8 + line if is_marked else line)


def check_key(image_id: str) -> None:
    """Raises ValueError for an image id that cannot stand in a line of a TSV."""
    if any(character in image_id for character in "\t\n\r") or image_id != image_id.strip():
        raise ValueError(f"image id {image_id!r} holds a tab, a line end or outer blanks, which a TSV cannot")


def _line(record: RegionRecord, layout: TsvLayout, losses: Counter[str]) -> bytes:
    check_key(record.image_id)
    ids, scores = attributes_or_zeros(record)
    values: dict[str, object] = {
        "image_id": record.image_id,
        "height": record.height,
        "width": record.width,
        "num_boxes": record.num_regions,
        "boxes": record.boxes.astype("<f4"),
        "features": record.features.astype("<f4"),
        "objects_id": record.class_ids.astype("<i8"),
        "objects_conf": record.class_scores.astype("<f4"),
        "attrs_id": ids.astype("<i8"),
        "attrs_conf": scores.astype("<f4"),
    }
    rows = rows_of_classes(record) if "cls_prob" in layout.columns else None
    count_losses(losses, record, rows, held=("classes", "attributes") if "objects_id" in layout.columns else ())
    if "cls_prob" in layout.columns:
        if rows is None:
            raise ValueError(
                f"record {record.image_id!r} has no class distribution, which the layout {layout.name!r} is made of; "
                f"choose the layout 'lxmert' or 'caffe'"
            )
        values["cls_prob"] = rows.astype("<f4")
    cells = (
        base64.b64encode(value.tobytes()) if isinstance(value, np.ndarray) else str(value).encode()
        for value in (values[name] for name in layout.columns)
    )
    return b"\t".join(cells) + b"\n"


FORMAT = ButdTsvFormat()
