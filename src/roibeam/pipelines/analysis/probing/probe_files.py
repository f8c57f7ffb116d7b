"""What a probe leaves: its picture, as SVG or PNG, and all numbers as JSON beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.folders.durable_files import json_bytes
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.analysis.answer_place import gone_if_it_fails
from roibeam.pipelines.analysis.probing.picture_shapes import png_of, svg_text
from roibeam.pipelines.analysis.probing.probe import ProbeResult
from roibeam.pipelines.analysis.probing.probe_picture import SCALE_SHARES, probe_shapes, shown_regions
from roibeam.pipelines.common.pages.banner import Banner
from roibeam.pipelines.data.region_names import Names


def write_probe_files(
    out: Path,
    result: ProbeResult,
    record: RegionRecord,
    names: Names,
    *,
    text: str,
    photo: np.ndarray | None,
    banner: Banner | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes the picture, and beside it the numbers that are returned.

    Args:
        out: an .svg or .png file.
        photo, banner: as of `probe_shapes`.
        notes: on the regions, for the numbers.
    """
    shapes, height = probe_shapes(result, record, names, text=text, photo=photo, banner=banner)
    numbers = {**probe_numbers(result, record, names, text=text, banner=banner), "notes": list(notes)}
    with gone_if_it_fails(out, out.with_suffix(".json")):
        if out.suffix == ".png":
            out.write_bytes(png_of(shapes, height))
        else:
            out.write_text(svg_text(shapes, height, f"Probe of {record.image_id}: {text}"), "utf-8")
        out.with_suffix(".json").write_bytes(json_bytes(numbers))
    return numbers


def probe_numbers(
    result: ProbeResult, record: RegionRecord, names: Names, *, text: str, banner: Banner | None = None
) -> dict[str, Any]:
    """All numbers of a probe, for machines. `regions` are those that were hidden, `seen` is what the detector found."""
    looks = result.attention
    return {
        "image_id": record.image_id,
        "text": text,
        "warning": None if banner is None else banner.line,
        "pieces": result.pieces,
        "words": [asdict(word) for word in result.words],
        "regions": [asdict(region) for region in result.regions],
        "regions_remark": result.regions_remark,
        "match": result.match,
        "attention": None
        if looks is None
        else {
            "weights": [[round(float(value), 6) for value in row] for row in looks.weights],
            "layer": looks.layer,
            "num_layers": looks.num_layers,
            "heads": looks.heads,
            "num_heads": looks.num_heads,
            "equal_share": round(looks.equal_share, 6),
            "scale": [0.0, round(SCALE_SHARES * looks.equal_share, 6)],
        },
        "seen": [
            {
                "box": [round(float(edge), 2) for edge in record.boxes[number]],
                "class": names.of_detector(int(record.class_ids[number])),
                "score": round(float(record.class_scores[number]), 4),
            }
            for number in range(record.num_regions)
        ],
        "drawn": shown_regions(result, record),
    }
