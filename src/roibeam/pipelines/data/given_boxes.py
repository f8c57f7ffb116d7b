"""Boxes that the user gives for the images of a source, in place of those that the detector would propose.

An image that the file names without a box gives a record of no region; an image that it does not name is left out. Both
are what a training set made of annotations needs: every annotated image is there, and nothing else.

Besides files of data sets there are json lines for a user's own list, in pixels of the decoded photo:
{"image_id": "a/b", "boxes": [[x1, y1, x2, y2], ...], "height": 480, "width": 640}
`height` and `width` are optional; with them, a photo of another size becomes a failure. An id is the image's id in the
store, its file name, or a COCO number. Other fields are passed over.
"""

from __future__ import annotations

import codecs
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.exchange.butd_tsv import ButdTsv
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.manifest import DeadLetter
from roibeam.messages import plural
from roibeam.pipelines.data.datasets import coco, refer, vcr
from roibeam.pipelines.data.datasets.image_boxes import ImageBoxes, excerpt, parse_boxes, parse_image_hw
from roibeam.pipelines.data.datasets.known_files import refuse_others
from roibeam.pipelines.data.datasets.rows import BadRow, BadRows, read_json_rows
from roibeam.pipelines.data.image_table import ImageFinder
from roibeam.pipelines.data.source_kinds import Source


def read_box_lines(path: str) -> Iterator[ImageBoxes | BadRow]:
    """Rows in file order; `name` is the image_id, a number as its digits. A line that is no json object, or has an id
    or one box that is none, is a bad row. Raises ValueError, naming the first line, if all are bad."""
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
            # Without the value, which is another in each line: rows are counted by their reason.
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
        raise ValueError(f": image_id must be text or a whole number, got {excerpt(name)}")
    return ImageBoxes(str(name), parse_boxes(entry["boxes"], ""), parse_image_hw(entry))


@dataclass(frozen=True)
class _Row:
    """Boxes as bytes, little-endian float32: 16 for each, where tuples of Python numbers would take 200."""

    boxes: bytes
    image_hw: tuple[int, int] | None


class GivenBoxes:
    """Boxes by image id. Raises ValueError if two rows have different boxes for one image.

    Args:
        location: absolute path of the file or folder that they are from.
        rows: the id of each image in the source, and its boxes.
    """

    def __init__(self, location: str, rows: Iterable[tuple[str, ImageBoxes]]) -> None:
        self.location = location
        self._rows: dict[str, _Row] = {}
        for image_id, entry in rows:
            row = _Row(entry.boxes.astype("<f4").tobytes(), entry.image_hw)
            if self._rows.setdefault(image_id, row) != row:
                raise ValueError(
                    f"{location!r}: two entries with different boxes for the image {image_id!r} (the second is "
                    f"{entry.name!r}); name each image once, as its id or path in the source"
                )

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._rows

    def with_prefix(self, prefix: str) -> GivenBoxes:
        """The same boxes of images that are called PREFIX + id."""
        renamed = GivenBoxes(self.location, ())
        renamed._rows = {prefix + image_id: row for image_id, row in self._rows.items()}
        return renamed

    def attach(self, image: ImageRef) -> ImageRef:
        """The image with its boxes; their numbers are the shortest that are the same float32."""
        row = self._rows[image.image_id]
        boxes = np.frombuffer(row.boxes, "<f4").reshape(-1, 4).astype(str).astype(float)
        return replace(image, boxes=tuple((x1, y1, x2, y2) for x1, y1, x2, y2 in boxes.tolist()), boxes_hw=row.image_hw)

    def are_those_of(self, image: ImageRef) -> bool:
        """Whether the boxes of `image` are those given here for it."""
        boxes = None if image.boxes is None else np.array(image.boxes, "<f4").tobytes()
        return self._rows[image.image_id] == _Row(boxes or b"", image.boxes_hw) and boxes is not None


def give_boxes(source: Source, location: str) -> tuple[Source, GivenBoxes]:
    """Reads the boxes for a source: COCO instances or MAttNet's detections .json, box .jsonl, bottom-up-attention
    .tsv, or VCR's image folder.

    Which image an entry belongs to: `ImageFinder`.

    Returns:
        The source with only those images that the file names, and notes on what was left out; the boxes.
    """
    if not os.path.exists(location):
        raise ValueError(f"no such file or folder of boxes: {location!r}")
    location = os.path.abspath(location)
    notes: list[str] = []
    finder = ImageFinder(image.image_id for image in source.images)
    strangers: list[str] = []  # the first one only; the rest are counted
    num_strangers = 0

    def known_rows() -> Iterator[tuple[str, ImageBoxes]]:
        nonlocal num_strangers
        for entry in _entries(source, location, notes):
            image_id = finder.find(entry.name)
            if image_id is not None:
                yield image_id, entry
                continue
            num_strangers += 1
            strangers[:] = strangers or [entry.name]

    boxes = GivenBoxes(location, known_rows())
    if not boxes:
        strange = f"{plural(num_strangers, 'image')}, such as {strangers[0]!r}" if strangers else "no image"
        raise ValueError(
            f"{location!r}: no boxes for any image of {source.location!r}: it names {strange}; the source has "
            f"{source.images[0].image_id!r}; give the boxes of these images, or name them by these ids"
        )
    named = source.with_images(image for image in source.images if image.image_id in boxes)
    if len(named.images) < len(source.images):
        left_out = plural(len(source.images) - len(named.images), "image")
        notes.append(f"{left_out} left out: {location} does not name them")
    if num_strangers:
        are = f"1 entry of {location} names" if num_strangers == 1 else f"{num_strangers:,} entries of {location} name"
        notes.append(f"{are} no image of the source, such as {strangers[0]!r}")
    return replace(named, notes=[*source.notes, *notes]), boxes


def _entries(source: Source, location: str, notes: list[str]) -> Iterator[ImageBoxes]:
    """Entries of the file in its order; fills `notes` once it has been read."""
    refuse_others(location, ("coco", "mattnet", "box-lines", "features"))
    if os.path.isdir(location):
        yield from _vcr_entries(source, location, notes)
        return
    extension = os.path.splitext(location)[1].lower()
    if extension == ".json" and _is_list(location):
        bad = BadRows("entry")
        yield from refer.read_detected_boxes(location, bad)
        notes += [f"{location}: {note}" for note in bad.notes()]
    elif extension == ".json":
        found = coco.read_coco_boxes(location, id_rule="with-extension")
        notes += [f"{location}: {note}" for each in found.bad for note in each.notes()]
        if found.num_crowd:
            notes.append(f"{found.num_crowd:,} boxes of {location} are of crowds (iscrowd); they are in")
        yield from found.images
    elif extension == ".jsonl":
        bad = BadRows("line")
        yield from bad.passed(read_box_lines(location))
        notes += [f"{location}: {note}" for note in bad.notes()]
    elif extension == ".tsv":
        yield from _tsv_entries(location, notes)
    else:
        raise ValueError(
            f"{location!r}: expected boxes as COCO instances .json, MAttNet's detections .json, json lines .jsonl, "
            f"bottom-up-attention .tsv, or VCR's image folder"
        )


def _is_list(location: str) -> bool:
    """Whether a json file begins as a list."""
    with open(location, "rb") as file:
        return file.read(1024).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _tsv_entries(location: str, notes: list[str]) -> Iterator[ImageBoxes]:
    bad: Counter[str] = Counter()
    with ButdTsv(location) as tsv:
        for outcome in tsv.outcomes():
            if isinstance(outcome, RegionRecord):
                yield ImageBoxes(outcome.image_id, outcome.boxes, (outcome.height, outcome.width))
            elif isinstance(outcome, DeadLetter):
                bad[outcome.reason] += 1
    if bad:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in bad.most_common())
        notes.append(f"{plural(bad.total(), 'line')} of {location} left out: {reasons}")


def _vcr_entries(source: Source, folder: str, notes: list[str]) -> Iterator[ImageBoxes]:
    """The metadata of the source's images that have any; what cannot be used is left out as a whole, since questions
    name objects by their numbers."""
    bad: list[str] = []
    found = 0
    for image in source.images:
        below = os.path.relpath(image.location, source.image_root)
        path = os.path.join(folder, vcr.metadata_path(below))
        if os.path.isfile(path):
            try:
                yield vcr.read_vcr_boxes(path, image.image_id)
                found += 1
            except ValueError as error:
                bad.append(str(error))
    if bad and not found:
        raise ValueError(f"{bad[0]}; {plural(len(bad), 'file')} of {folder!r}, and none can be used")
    if bad:
        notes.append(
            f"{plural(len(bad), 'metadata file')} of {folder} left out: {'; '.join(bad[:3])}{'; ...' * (len(bad) > 3)}"
        )
