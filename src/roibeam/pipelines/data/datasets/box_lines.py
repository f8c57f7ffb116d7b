"""Boxes as json lines, for those who make their own list:

{"image_id": "a/b", "boxes": [[x1, y1, x2, y2], ...], "height": 480, "width": 640}

Pixels of the decoded photo. `height` and `width` are optional; where they are given, a photo of another size becomes a
failure. An id is the image's id in the store, its file name, or a COCO number. Other fields are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roibeam.pipelines.data.datasets.image_boxes import ImageBoxes, parse_boxes, parse_image_hw, shown
from roibeam.pipelines.data.datasets.json_pieces import read_json_rows
from roibeam.pipelines.data.datasets.rows import BadRow


def read_box_lines(path: str) -> Iterator[ImageBoxes | BadRow]:
    """Rows in file order; `name` is the image_id, a number as its digits. A line that is no json object, or
    has an id or one box that is none, is a bad row.

    Raises:
        ValueError: naming the first line, if all are bad.
    """
    first_bad, is_usable = "", False
    for found in read_json_rows(path):
        if isinstance(found, BadRow):
            first_bad = first_bad or f"{path!r}, line {found.line}: {found.reason}"
            yield found
            continue
        line, entry = found
        try:
            row = _row(entry)
        except ValueError as error:
            first_bad = first_bad or f"{path!r}, line {line}{error}"
            # What it has instead is another in each line; rows are counted by their reason.
            yield BadRow(line, str(error).partition(", got ")[0].lstrip(" :,").partition(";")[0])
            continue
        is_usable = True
        yield row
    if first_bad and not is_usable:
        raise ValueError(first_bad)


def _row(entry: dict[str, Any]) -> ImageBoxes:
    for key in ("image_id", "boxes"):
        if key not in entry:
            hint = "; for VCR give the folder vcr1images" if "metadata_fn" in entry else ""
            raise ValueError(f' lacks {key}; expected {{"image_id": ..., "boxes": [[x1, y1, x2, y2]]}}{hint}')
    name = entry["image_id"]
    if type(name) not in (str, int):
        raise ValueError(f": image_id must be text or a whole number, got {shown(name)}")
    return ImageBoxes(str(name), parse_boxes(entry["boxes"], ""), parse_image_hw(entry))
