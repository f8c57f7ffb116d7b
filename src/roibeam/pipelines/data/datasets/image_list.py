"""Lists of images in .parquet, .csv (with a header), .jsonl or .txt, as people and other tools write them.

A .txt has one image path a line. The others have columns, known by their names in any letter case; the first that is
there counts, and unknown ones are passed over:

    image       image_path, image, path, file_name, filename, filepath, file, location, img_path, img
    id          image_id
    captions    caption, captions, text, sentence, sentences; a text or a list of texts
    labels      label, labels, category, class, cls; a text, a number or a list of these

Id rule: the image_id of the row, else the path below the image root without its extension. A row with another caption
for the same image adds it.

A path may be below the image root or, absolute or a URL, begin with it. What lies elsewhere is a bad row: lists come
from strangers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from roibeam.messages import name_hint
from roibeam.pipelines.common.image_ids import MAX_PATH_LETTERS, image_id_of, in_nfc, is_utf8, path_below
from roibeam.pipelines.data.datasets.rows import NOT_UTF8, BadRow, is_web_url, parsed_rows, read_json_rows, read_lines
from roibeam.pipelines.data.datasets.tables import URL_NAMES, open_parquet, read_csv_table, refuse_same_names

IMAGE_COLUMNS = (
    "image_path", "image", "path", "file_name", "filename", "filepath", "file", "location", "img_path", "img",
)  # fmt: skip
ID_COLUMNS = ("image_id",)
CAPTION_COLUMNS = ("caption", "captions", "text", "sentence", "sentences")
LABEL_COLUMNS = ("label", "labels", "category", "class", "cls")
_BYTES_COLUMNS = ("jpg", "jpeg", "png", "webp", "bytes")  # where img2dataset's parquet output has the images themselves
_BATCH_ROWS = 256  # few: equal texts take no room in the file, but each its own here
_MAX_PATH_BYTES = 4 * MAX_PATH_LETTERS


@dataclass(frozen=True)
class ListRow:
    """One usable row: its line in a text file, else its number (both from 1), image path below the image root, image
    id, captions, labels, how many empty captions it has beside, and columns that are not read where none has captions.
    """

    line: int
    path: str
    image_id: str
    captions: tuple[str, ...]
    labels: tuple[str, ...]
    empty_captions: int = 0
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Columns:
    """The names that a file has for what is taken from it, None for what it lacks; and the names of all others."""

    image: str
    image_id: str | None
    captions: str | None
    labels: str | None
    unread: tuple[str, ...] = ()

    def names(self) -> list[str]:
        return [name for name in (self.image, self.image_id, self.captions, self.labels) if name is not None]


def has_image_column(names: Iterable[str]) -> bool:
    return _first(IMAGE_COLUMNS, list(names)) is not None


def read_image_list(
    path: str, root: str, *, id_rule: str = "no-extension", caption_column: str = ""
) -> Iterator[ListRow | BadRow]:
    """Rows in file order; a few thousand are in memory.

    Args:
        root: absolute path or URL of the folder that images are below.
        caption_column: name of the column of captions; "" for one of the usual names.
    Raises:
        ValueError: if the file is no such list, or has no column for the image; the error names those that it has.
    """
    extension = os.path.splitext(path)[1].lower()

    def parse(line: int, found: tuple[_Columns, dict[str, Any]]) -> ListRow:
        try:
            return _row(line, *found, root, id_rule)
        except ValueError:
            if extension == ".csv" and not is_utf8("".join(found[1].values())):
                raise ValueError(NOT_UTF8) from None
            raise

    return parsed_rows(_READERS[extension](path, caption_column), parse)


def _row(line: int, columns: _Columns, entry: dict[str, Any], root: str, id_rule: str) -> ListRow:
    """Raises ValueError with a short reason, so that rows can be counted by it."""
    name = entry.get(columns.image)
    if not isinstance(name, str) or not name.strip():
        raise ValueError("no image path")
    below = path_below(_without_root(name.strip(), root))
    image_id = entry.get(columns.image_id) if columns.image_id else None
    if image_id is None or image_id == "":
        image_id = image_id_of(below, id_rule=id_rule)
    elif type(image_id) not in (str, int):
        raise ValueError("image_id is neither text nor a whole number")
    elif isinstance(image_id, str) and len(image_id) > MAX_PATH_LETTERS:
        raise ValueError(f"image_id longer than {MAX_PATH_LETTERS} characters")
    captions = _texts(entry.get(columns.captions) if columns.captions else None, "caption")
    labels = _texts(entry.get(columns.labels) if columns.labels else None, "label")
    if empty := captions.count(""):
        captions = tuple(filter(None, captions))
    unread = columns.unread if columns.captions is None else ()
    return ListRow(line, below, str(image_id), captions, labels, empty, unread)


def _without_root(name: str, root: str) -> str:
    if name.startswith(root.rstrip("/") + "/"):
        return name.removeprefix(root.rstrip("/")).lstrip("/") or name
    if not name.isascii() and (normal := in_nfc(name)).startswith(in_nfc(root).rstrip("/") + "/"):
        return normal.removeprefix(in_nfc(root).rstrip("/")).lstrip("/") or name
    if is_web_url(name):
        raise ValueError("URL: download it and give the local path")
    if "://" in name:
        raise ValueError("URL outside the image folder: give the one that it begins with as --photos")
    if os.path.isabs(name):
        raise ValueError("path outside the image folder: give the one that it begins with as --photos")
    return name


def _texts(value: Any, what: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    found = []
    for each in values:
        if each is None or each != each:  # a table of numbers has NaN for what it lacks
            continue
        if type(each) not in (str, int, float, bool) or (what == "caption" and not isinstance(each, str)):
            raise ValueError(f"{what} is no text")
        text = str(each).strip()
        if not is_utf8(text):
            raise ValueError(f"{what} is not valid UTF-8")
        if text or what == "caption":
            found.append(text)
    return tuple(found)


def _columns(names: list[str], where: str, caption_column: str) -> _Columns:
    image = _first(IMAGE_COLUMNS, names)
    if image is None:
        has_url = _first(URL_NAMES, names) is not None
        raise ValueError(
            f"{where}: no column for the image; expected one called {', '.join(IMAGE_COLUMNS[:-1])} or "
            f"{IMAGE_COLUMNS[-1]}, got {', '.join(names)[:300] or 'none'}"
            + "; `roibeam download` fetches the photos of a table of URLs"
            * has_url
        )
    captions = _first((caption_column.lower(),) if caption_column else CAPTION_COLUMNS, names)
    if caption_column and captions is None:
        raise ValueError(
            f"{where}: --caption-column {caption_column!r}: no such column; {name_hint(caption_column, names)}"
        )
    found = image, _first(ID_COLUMNS, names), captions, _first(LABEL_COLUMNS, names)
    return _Columns(*found, tuple(name for name in names if name not in found))


def _first(candidates: tuple[str, ...], names: list[str]) -> str | None:
    by_lower_case = {name.strip().lower(): name for name in reversed(names)}
    return next((by_lower_case[name] for name in candidates if name in by_lower_case), None)


_Entries = Iterator[tuple[int, tuple[_Columns, dict[str, Any]]] | BadRow]


def _text_rows(path: str, caption_column: str) -> _Entries:
    """Rows of a list without columns; blank lines are passed over."""
    if caption_column:
        raise ValueError(f"{path!r}: --caption-column {caption_column!r}: a .txt has a path a line and no columns")
    columns = _Columns(IMAGE_COLUMNS[0], None, None, None)
    for row in read_lines(path):
        if isinstance(row, BadRow):
            yield row
        elif row[1].strip():
            yield row[0], (columns, {columns.image: row[1]})


def _parquet_rows(path: str, caption_column: str) -> _Entries:
    line = 0
    with open_parquet(path, "not a parquet file, or damaged") as file:
        schema = file.schema_arrow
        _refuse_bytes(path, schema)
        refuse_same_names(path, schema.names)
        columns = _columns(schema.names, repr(path), caption_column)
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns.names(), use_threads=False):
            _refuse_long(path, batch, columns, line)
            for entry in batch.to_pylist():
                line += 1
                yield line, (columns, entry)


def _refuse_long(path: str, batch: pa.RecordBatch, columns: _Columns, rows_before: int) -> None:
    """A few kilobytes of parquet hold millions of equal, long texts: to go over them all would take hours."""
    for name in (columns.image, columns.image_id):
        texts = None if name is None else batch.column(name)
        if isinstance(texts, pa.DictionaryArray):
            texts = texts.dictionary
        if texts is not None and (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            longest = pc.max(pc.binary_length(texts)).as_py() or 0
            if longest > _MAX_PATH_BYTES:
                raise ValueError(
                    f"{path!r}: its column {name!r} has a text of {longest:,} bytes in rows {rows_before + 1:,} to "
                    f"{rows_before + batch.num_rows:,}; paths and ids have at most {_MAX_PATH_BYTES:,}"
                )


def _refuse_bytes(path: str, schema: pa.Schema) -> None:
    for field in schema:
        kind, name = field.type, field.name.lower()
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if (name in IMAGE_COLUMNS and not is_text) or (name in _BYTES_COLUMNS and pa.types.is_binary(kind)):
            raise ValueError(
                f"{path!r}: its column {field.name!r} holds {str(kind)[:80]}, not paths; images inside parquet files "
                f"are not read: write them as files or in tars (img2dataset: --output_format files or webdataset)"
            )


def _csv_rows(path: str, caption_column: str) -> _Entries:
    names, rows = read_csv_table(path)
    columns = _columns(names, repr(path), caption_column)
    for row in rows:
        yield row if isinstance(row, BadRow) else (row[0], (columns, dict(zip(names, row[1], strict=True))))


def _json_rows(path: str, caption_column: str) -> _Entries:
    known: dict[tuple[str, ...], _Columns] = {}
    given = [caption_column] if caption_column else []
    is_there = not given
    for row in read_json_rows(path):
        if isinstance(row, BadRow):
            yield row
            continue
        line, entry = row
        names = tuple(entry)  # rows may lack what they have nothing for
        if names not in known:
            is_there = is_there or _first((caption_column.lower(),), list(names)) is not None
            known = {names: _columns([*names, *given], f"{path!r}, line {line}", caption_column)}
        yield line, (known[names], entry)
    if not is_there:
        raise ValueError(f"{path!r}: --caption-column {caption_column!r}: no row has such a column")


_READERS = {".parquet": _parquet_rows, ".csv": _csv_rows, ".jsonl": _json_rows, ".txt": _text_rows}
