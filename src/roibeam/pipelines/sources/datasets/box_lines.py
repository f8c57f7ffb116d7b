"""Boxes as json lines, for those who make their own list:

{"image_id": "a/b", "boxes": [[x1, y1, x2, y2], ...], "height": 480, "width": 640}

Pixels of the decoded photo. `height` and `width` are optional; where they are given, a photo of another size becomes a
failure. An id is the image's id in the store, its file name, or a COCO number. Other fields are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator

from roibeam.pipelines.sources.datasets.image_boxes import ImageBoxes, parse_boxes, parse_image_hw, shown
from roibeam.pipelines.sources.datasets.json_pieces import read_json_lines


def read_box_lines(path: str) -> Iterator[ImageBoxes]:
    """Rows in file order; `name` is the image_id, a number as its digits.

    Raises:
        ValueError: naming the line that lacks an id or boxes, or holds something else there.
    """
    for where, entry in read_json_lines(path):
        for key in ("image_id", "boxes"):
            if key not in entry:
                hint = "; for VCR give the folder vcr1images" if "metadata_fn" in entry else ""
                raise ValueError(
                    f'{where} lacks {key}; expected {{"image_id": ..., "boxes": [[x1, y1, x2, y2]]}}{hint}'
                )
        name = entry["image_id"]
        if type(name) not in (str, int):
            raise ValueError(f"{where}: image_id must be text or a whole number, got {shown(name)}")
        yield ImageBoxes(str(name), parse_boxes(entry["boxes"], where), parse_image_hw(entry))
