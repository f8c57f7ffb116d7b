"""The bottom-up-attention TSV as a format: recognised, opened, and written in each of its three layouts.

Who reads what is written: "lxmert" `load_obj_tsv` of airsplay/lxmert src/utils.py (also e-bug/volta
features_extraction/tsv_to_h5.py), "caffe" and "caffe-cls-prob" the readers of peteanderson80/bottom-up-attention
tools/read_tsv.py by its columns. A TSV has no place for a feature of the whole image; "caffe" has none for classes and
attributes, "caffe-cls-prob" none for attributes, "lxmert" none for class distributions.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from roibeam.features.exchange.aside import written_aside
from roibeam.features.exchange.butd_tsv import LAYOUTS, ButdTsv, TsvLayout, header_layout
from roibeam.features.exchange.continued import ContinuedFile
from roibeam.features.exchange.entry_record import rows_of_classes
from roibeam.features.exchange.export_losses import count_losses
from roibeam.features.exchange.reading import Reading
from roibeam.features.record.region_record import RegionRecord

_LAYOUTS = {layout.name: layout for layout in LAYOUTS.values()}
_DEFAULT_LAYOUT = "lxmert"
_SNIFFED_BYTES = 4096
_NUMBER = re.compile(rb" *[0-9]+(?:\.0*)? *")


class ButdTsvFormat:
    """See `FeatureFormat`."""

    name = "butd-tsv"
    title = "bottom-up-attention TSV of 6, 7 (cls_prob) or 10 (LXMERT) columns"
    suffixes = (".tsv",)
    layouts = ("lxmert", "caffe", "caffe-cls-prob")

    def looks_like(self, path: Path) -> bool:
        """Whether the first line begins with an id and two numbers, or names columns, or the name says so: a TSV has no
        signature, and its first line may be torn."""
        if not path.is_file():
            return False
        try:
            with open(path, "rb") as file:
                line = file.read(_SNIFFED_BYTES).partition(b"\n")[0].removeprefix(b"\xef\xbb\xbf")
        except OSError:
            return False
        cells = line.split(b"\t", 3)
        if path.suffix in self.suffixes or (len(cells) == 4 and all(map(_NUMBER.fullmatch, cells[1:3]))):
            return True
        try:
            return header_layout(line, str(path)) is not None
        except ValueError:
            return True

    def open(self, path: Path, reading: Reading | None = None) -> ButdTsv:
        return ButdTsv(path, reading)

    def write(self, records: Iterable[RegionRecord], path: Path, *, layout: str | None = None) -> dict[str, int]:
        """See `FeatureFormat`; layout "lxmert" by default. Features are float32, lossless from float16 and bfloat16."""
        columns = self._columns(layout)
        losses: Counter[str] = Counter()
        with written_aside(path, goes_on=True) as aside, ContinuedFile(aside) as file:
            for number, record in enumerate(records):
                line = _line(record, columns, losses)
                # Readers take one mark off a file's first bytes: an id that begins with one needs another before it.
                is_marked = not number and line.startswith(codecs.BOM_UTF8)
                file.write(codecs.BOM_UTF8 + line if is_marked else line)
        return dict(losses)

    def _columns(self, layout: str | None) -> TsvLayout:
        name = layout or _DEFAULT_LAYOUT
        if name not in _LAYOUTS:
            raise ValueError(f"layout {name!r} of {self.name}: choose one of {', '.join(_LAYOUTS)}")
        return _LAYOUTS[name]


def _line(record: RegionRecord, layout: TsvLayout, losses: Counter[str]) -> bytes:
    if any(character in record.image_id for character in "\t\n\r") or record.image_id != record.image_id.strip():
        raise ValueError(f"image id {record.image_id!r} holds a tab, a line end or outer blanks, which a TSV cannot")
    ids, scores = record.attribute_ids, record.attribute_scores
    none = np.zeros(record.num_regions, np.int64)
    values: dict[str, object] = {
        "image_id": record.image_id,
        "height": record.height,
        "width": record.width,
        "num_boxes": record.num_regions,
        "boxes": record.boxes.astype("<f4"),
        "features": record.features.astype("<f4"),
        "objects_id": record.class_ids.astype("<i8"),
        "objects_conf": record.class_scores.astype("<f4"),
        "attrs_id": (none if ids is None else ids).astype("<i8"),
        "attrs_conf": (none if scores is None else scores).astype("<f4"),
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
