"""Parquet, for Hugging Face's datasets, polars, DuckDB, Ray and pandas: a row for each image.

    image_id string; width, height int32
    boxes list<float[4]>, pixels; class_ids list<uint16>, classes list<string> (their names), class_scores list<float>
    attribute_ids, attributes, attribute_scores: the same for attributes; null where a record has none
    features list<T[D]>, image_feature list<T>: T is float16, float32, or uint16 with the bits of bfloat16
    class_distribution or top_k_...: see `exact_records`
    captions, labels: lists of strings

Columns that no record has are left out. The facts of the store are in the file's metadata under "roibeam". Files that
other tools wrote again are read too: lists in place of fixed-size lists, other integers and floats, no facts.

pyarrow makes as much room as a file says, which a few bytes can say (zstd, dictionaries, runs), and a damaged footer
can end its process. So a child of this one, with a limit of memory, reads one column of one row group at a time. A
request is a line of JSON; an answer is one byte ("." or "!"), eight of its length, and an Arrow stream, JSON or error.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lazy_loader
import numpy as np

from roibeam.features.annotations import Annotation
from roibeam.features.exchange.entry_file import usable_id
from roibeam.features.exchange.entry_record import EntryError
from roibeam.features.exchange.exact_records import ARRAYS, SIDES, TEXTS, ExactFile, ExactFormat
from roibeam.features.folders.durable_files import open_regular_file
from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import first_line

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_loader.load("pyarrow")

_GROUP_BYTES, _GROUP_ROWS = 2**25, 1000
_MAGIC, _MOST_FOOTER, _FACTS = b"PAR1", 2**24, b"roibeam"
# Bytes: of the child, beyond Python and pyarrow; of a column; of all columns of a row group.
_MOST_MEMORY, _MOST_ANSWERED, _MOST_HELD = 2**30, 2**29, 2**30
# Other pools reserve gigabytes of addresses, which the limit counts; the folder of the call may have a decoy of ours.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "PYTHONSAFEPATH": "1"}
_ADVICE = "copy it again, or write it with smaller row groups"
_TOO_LARGE = f"needs over {_MOST_MEMORY >> 30} GiB of memory to unpack; {_ADVICE}"
_MODULE = "roibeam.features.exchange.parquet_shards"


class ParquetShards(ExactFile):
    suffix = ".parquet"

    def _open(self) -> None:
        self._process = _Process()
        self._group = -1
        self._held: dict[str, _Column] = {}

    def _scan(self) -> None:
        facts: list[tuple[Path, bytes | None]] = []
        names: list[bytes] = []
        self._groups: list[tuple[Path, int, list[str]]] = []  # file, number in it, columns of the file
        self._starts = array("q")
        for path in self._paths:
            open_regular_file(path).close()
            try:
                told = self._process.describe(path)
                missing = {"image_id", "boxes", "features", *SIDES} - set(told["columns"])
                if missing:
                    raise ValueError(f"has no column {min(missing)!r}; `store export --format parquet` writes it")
                for group in range(len(told["rows"])):
                    self._starts.append(len(names))
                    self._groups.append((path, group, told["columns"]))
                    texts = _ids(self._process.column(path, group, "image_id"))
                    names += [b"" if each is None else each.encode("utf-8", "surrogatepass") for each in texts]
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            facts.append((path, None if told["facts"] is None else bytes.fromhex(told["facts"])))
        self._take_facts(facts)
        self._rows = self._take_ids(enumerate(names), usable_id)
        self._describe()

    def _read(self, entry: int, dtype: str) -> RegionRecord:
        row = self._rows[entry]
        number = bisect_right(self._starts, row) - 1
        if number != self._group:
            (path, group, columns), left = self._groups[number], _MOST_HELD
            self._group, self._held = -1, {}
            for name in (each for each in (*ARRAYS, *SIDES) if each in columns):
                column = self._process.column(path, group, name)
                left -= column.nbytes
                if left < 0:
                    raise EntryError("decode", "damaged", f"its row group unpacks to over 1 GiB; {_ADVICE}")
                self._held[name] = _Column(column, name)
            self._group = number
        values = {name: column.row(row - self._starts[number]) for name, column in self._held.items()}
        arrays = {name: array for name, array in values.items() if name in ARRAYS and array is not None}
        return self._record(entry, values, arrays, dtype)

    def annotations(self) -> Iterator[Annotation]:
        for path, group, columns in self._groups:
            names = [name for name in TEXTS if name in columns]
            if not names:
                continue
            ids, *columns = (self._process.column(path, group, name) for name in ("image_id", *names))
            for image_id, *row in zip(_ids(ids), *map(_texts, columns), strict=True):
                yield from self._annotations_of(str(image_id), dict(zip(names, row, strict=True)))

    def _place(self, entry: int) -> str:
        path, _, _ = self._groups[bisect_right(self._starts, self._rows[entry]) - 1]
        return f"{path}:{self._ids[entry].decode('utf-8')}"

    def _close(self) -> None:
        self._process.close()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _ids(column: pa.Array) -> list[Any]:
    """Texts, of integers too. ValueError for other types."""
    if pa.types.is_integer(column.type):
        column = column.dictionary_encode()
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.string()))
    if not pa.types.is_dictionary(column.type):
        raise ValueError(f"image_id holds {column.type}, expected strings or integers")
    return _texts(column)


def _texts(column: pa.Array) -> list[Any]:
    """Texts, or lists of them; equal ones are one object, so that a file of few bytes cannot become many."""
    if _is_list(column.type):
        offsets, inner = column.offsets.to_pylist(), _texts(column.values)
        return [inner[start:end] for start, end in pairwise(offsets)]
    if not pa.types.is_dictionary(column.type):
        return [None] * len(column)
    words = [each if isinstance(each, str) else None for each in column.dictionary.to_pylist()]
    return [None if place is None else words[place] for place in column.indices.to_pylist()]


class _Column:
    """Numbers of a row group, row by row: a number, a row of numbers, or rows of one width."""

    def __init__(self, column: pa.Array, name: str) -> None:
        self._name = name
        self._valid = None if column.null_count == 0 else column.is_valid().to_numpy(zero_copy_only=False)
        self._offsets: np.ndarray | None = None
        self._width = 0
        if _is_list(column.type):
            self._offsets, column = column.offsets.to_numpy(), column.values
        if pa.types.is_fixed_size_list(column.type):
            self._width = column.type.list_size
            self._check_nulls(column)
            column = column.values[column.offset * self._width : (column.offset + len(column)) * self._width]
        elif _is_list(column.type):
            offsets = column.offsets.to_numpy()
            widths = np.diff(offsets)
            if column.null_count or (widths != widths[:1]).any():
                raise EntryError("decode", "wrong shape", f"{name}: rows of different lengths")
            self._width = int(widths[0]) if len(widths) else 1
            column = column.values[int(offsets[0]) : int(offsets[-1])]
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise EntryError("decode", "wrong type", f"{name} holds {column.type}, expected numbers")
        self._check_nulls(column)
        data = column.buffers()[1]
        values = np.frombuffer(b"" if data is None else data, column.type.to_pandas_dtype())
        values = values[column.offset : column.offset + len(column)]
        self._values = values.reshape(-1, self._width) if self._width else values

    def _check_nulls(self, column: pa.Array) -> None:
        if column.null_count and (self._offsets is not None or self._valid is None):
            raise EntryError("decode", "missing values", f"{self._name} has nulls in its lists")

    def row(self, number: int) -> Any:
        """None where it is null."""
        if self._valid is not None and not self._valid[number]:
            return None
        if self._offsets is None:
            return self._values[number]
        return self._values[self._offsets[number] : self._offsets[number + 1]]


class ParquetFormat(ExactFormat):
    name = "parquet"
    title = "parquet with a row per image (Hugging Face datasets, polars, DuckDB, Ray, pandas)"
    suffixes = (".parquet",)
    file = ParquetShards
    goes_on = False

    def _begins(self, file: BufferedReader, path: Path) -> bool:
        begins = file.read(4) == _MAGIC
        file.seek(-8, os.SEEK_END)
        num_bytes, end = int.from_bytes(file.read(4), "little"), file.read(4)
        if end != _MAGIC:
            return begins  # it was cut, which `open` tells
        file.seek(-8 - min(num_bytes, _MOST_FOOTER), os.SEEK_END)
        footer = file.read(_MOST_FOOTER)
        return begins and all(name in footer for name in (b"image_id", b"boxes", b"features"))

    def _write(self, records: Iterable[RegionRecord], path: Path, layout: str, losses: Counter[str]) -> None:
        import pyarrow.parquet as pq

        writer: Any = None
        try:
            for batch in self.batches(records):
                if writer is None:
                    # Where few values differ; the bits of bfloat16 would take four bytes without.
                    schema = batch.schema
                    repeated = [_path(field) for field in schema if not pa.types.is_floating(_innermost(field.type)[0])]
                    writer = pq.ParquetWriter(
                        path, schema, use_dictionary=repeated, write_page_checksum=True, write_statistics=["image_id"]
                    )
                writer.write_batch(batch)
        finally:
            if writer is not None:
                writer.close()

    def batches(self, records: Iterable[RegionRecord]) -> Iterator[pa.RecordBatch]:
        """Arrow's batches of about 32 MiB, at most 1,000 images; they become row groups."""
        rows: list[dict[str, Any]] = []
        schema, num_bytes = None, 0
        for record in records:
            rows.append(self._words_of(record) | self._arrays_of(record))
            num_bytes += sum(each.nbytes for each in rows[-1].values() if isinstance(each, np.ndarray))
            schema = schema or self._schema(record, rows[0])
            if num_bytes >= _GROUP_BYTES or len(rows) >= _GROUP_ROWS:
                yield _batch(rows, schema)
                rows, num_bytes = [], 0
        if rows:
            yield _batch(rows, schema)

    def _schema(self, record: RegionRecord, row: Mapping[str, Any]) -> pa.Schema:
        """Columns by the first record; those of attributes are always there."""
        texts, ids, scores = pa.list_(pa.string()), pa.list_(pa.uint16()), pa.list_(pa.float32())
        kinds: dict[str, pa.DataType | None] = {
            "image_id": pa.string(), "width": pa.int32(), "height": pa.int32(), "boxes": None, "class_ids": None,
            "classes": texts if self.classes else None, "class_scores": None, "attribute_ids": ids,
            "attributes": texts if self.attributes else None, "attribute_scores": scores, **dict.fromkeys(ARRAYS),
            **(dict.fromkeys(TEXTS, texts) if self.texts else {}),
        }  # fmt: skip
        for name, values in row.items():
            if isinstance(values, np.ndarray):
                kind = pa.from_numpy_dtype(values.dtype)
                kinds[name] = pa.list_(pa.list_(kind, values.shape[1]) if values.ndim == 2 else kind)
        fields = [pa.field(name, kind) for name, kind in kinds.items() if kind is not None]
        return pa.schema(fields, metadata={_FACTS: self._facts_by(record)})


def _innermost(kind: pa.DataType) -> tuple[pa.DataType, int]:
    """Innermost type of nested lists, and its depth."""
    depth = 0
    while pa.types.is_nested(kind):
        kind, depth = kind.value_type, depth + 1
    return kind, depth


def _path(field: pa.Field) -> str:
    """Name of a column as parquet has it."""
    return ".".join([field.name, *["list.element"] * _innermost(field.type)[1]])


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """ValueError for a record with arrays that the first one lacks, or of another width."""
    extra = next(
        ((row["image_id"], name) for row in rows for name in row.keys() & set(ARRAYS) - set(schema.names)), None
    )
    if extra:
        raise ValueError(f"record {extra[0]!r}: has {extra[1]}, which the first record lacks; a file has one kind")
    columns = [_array([row.get(field.name) for row in rows], field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    kind = field.type
    if field.name not in ARRAYS:
        return pa.array(values, kind)
    width, dtype = getattr(kind.value_type, "list_size", 0), np.dtype(_innermost(kind)[0].to_pandas_dtype())
    filled = [np.zeros((0, width) if width else 0, dtype) if each is None else each for each in values]
    try:
        joined = np.concatenate(filled)
    except ValueError:
        joined = None
    if joined is None or joined.dtype != dtype or joined.shape[1:] != ((width,) if width else ()):
        raise ValueError(f"{field.name}: records differ in width or dtype; a file has one kind of records")
    inner = pa.array(joined.reshape(-1))
    inner = pa.FixedSizeListArray.from_arrays(inner, width) if width else inner
    offsets = pa.array(np.cumsum([0, *map(len, filled)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, inner, mask=pa.array([each is None for each in values]))


class _Process:
    """Reads files; begun at the first request, and again after one that ended it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def describe(self, path: Path) -> dict[str, Any]:
        """{"columns": names, "rows": of each row group, "facts": hexadecimal or None}; EntryError for no whole file."""
        return dict(json.loads(self._asked({"path": os.path.abspath(path)})))

    def column(self, path: Path, group: int, name: str) -> pa.Array:
        """A column of a row group; its texts as indices of those that differ. EntryError when it is damaged, or too
        large."""
        data = self._asked({"path": os.path.abspath(path), "group": group, "column": name})
        with pa.ipc.open_stream(data) as stream:
            return stream.read_all().column(0).combine_chunks()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def _asked(self, request: dict[str, Any]) -> bytes:
        if self._child is None:
            paths = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
            self._child = subprocess.Popen(
                [sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths.rstrip(os.pathsep)},
            )  # fmt: skip
        requests, answers = self._child.stdin, self._child.stdout
        assert requests is not None and answers is not None
        try:
            requests.write(json.dumps(request).encode("ascii") + b"\n")
            requests.flush()
            head = answers.read(9)
            data = answers.read(int.from_bytes(head[1:], "little")) if len(head) == 9 else b""
        except BrokenPipeError:
            head, data = b"", b""
        if len(head) < 9 or len(data) < int.from_bytes(head[1:], "little"):
            self.close()
            raise EntryError("decode", "damaged", f"is damaged, or {_TOO_LARGE}")
        if head[:1] == b"!":
            raise EntryError("decode", "damaged", data.decode("utf-8", "replace"))
        return data


def _answer(request: dict[str, Any]) -> bytes:
    import pyarrow.parquet as pq

    path, limits = request["path"], {"thrift_string_size_limit": 2**25, "thrift_container_size_limit": 2**20}
    with pq.ParquetFile(path, **limits) as file:
        columns = [file.schema.column(number) for number in range(len(file.schema))]
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        if "group" not in request:
            rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            facts = (file.schema_arrow.metadata or {}).get(_FACTS)
            told = {"columns": file.schema_arrow.names, "rows": rows, "facts": None if facts is None else facts.hex()}
            return json.dumps(told).encode("ascii")
    with pq.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True, **limits) as file:
        table = file.read_row_group(request["group"], columns=[request["column"]], use_threads=False)
    if table.nbytes > _MOST_ANSWERED:
        raise MemoryError
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema.remove_metadata()) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue())


def _main() -> None:
    pa.set_cpu_count(1)
    with open("/proc/self/statm", encoding="ascii") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + _MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin.buffer:
        try:
            mark, data = b".", _answer(json.loads(line))
        except MemoryError:
            mark, data = b"!", _TOO_LARGE.encode("ascii")
        except (pa.ArrowException, OSError, ValueError, OverflowError, TypeError) as error:
            mark, data = b"!", f"is damaged: {first_line(error)}; {_ADVICE}".encode("utf-8", "replace")
        sys.stdout.buffer.write(mark + len(data).to_bytes(8, "little") + data)
        sys.stdout.buffer.flush()


FORMAT = ParquetFormat()

if __name__ == "__main__":
    _main()
