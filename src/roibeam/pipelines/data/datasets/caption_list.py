"""Captions as people write them down themselves: a JSON list of objects, each with an image and its caption."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roibeam.pipelines.data.datasets.json_pieces import read_json_list
from roibeam.pipelines.data.datasets.rows import BadRow, CaptionRow, caption_row, caption_text

# Of several the first that an entry has: the list "annotations" of a COCO file has an "id" of the caption, too.
IMAGE_KEYS = ("image", "image_id", "id")
EXPECTED = f'a list of {{"image_id": ..., "caption": ...}}; for "image_id" also {", ".join(IMAGE_KEYS[::2])}'


def read_caption_list(path: str, *, id_rule: str = "no-extension") -> Iterator[CaptionRow | BadRow]:
    """Rows in file order, numbered from 1; "caption" may be a list of texts, each of which is a row of that number.

    Raises:
        ValueError: if the file is no JSON list.
    """
    for number, entry in enumerate(read_json_list(path, expected=EXPECTED), start=1):
        name, captions = _name(entry), entry.get("caption") if isinstance(entry, dict) else None
        for caption in captions if isinstance(captions, list) else [captions]:
            if name is None:
                yield BadRow(number, f"none of {', '.join(IMAGE_KEYS)}")
                continue
            try:
                text = caption_text(caption)
            except ValueError as error:
                yield BadRow(number, str(error))
            else:
                yield caption_row(number, text, name, id_rule=id_rule)


def _name(entry: Any) -> str | None:
    """A path or an id, perhaps a number."""
    values = [entry.get(key) for key in IMAGE_KEYS] if isinstance(entry, dict) else []
    found = next((each for each in values if type(each) in (str, int) and each != ""), None)
    return None if found is None else str(found)
