"""One record of a store as people look at it: its best regions with their names, captions, labels, statistics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.features.record.imported import has_classes
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.extract.annotations import annotation_of
from roibeam.short_repr import short_repr


@dataclass(frozen=True, eq=False)
class RecordView:
    """Attributes:
    record: the whole record.
    regions: of the best ones, by falling score, "box" (pixels), "class", "score", and "attribute" and
        "attribute_score" where the store has attributes; class and score are None where it has no classes.
    statistics: mean, std and max of the features; nothing for a record without regions.
    captions, labels: of the image.
    """

    record: RegionRecord
    regions: list[dict[str, Any]]
    statistics: dict[str, float]
    captions: tuple[str, ...]
    labels: tuple[str, ...]

    __repr__ = short_repr

    def to_json(self) -> dict[str, Any]:
        record = self.record
        return {
            "image_id": record.image_id, "height": record.height, "width": record.width,
            "num_regions": record.num_regions, "feature_dim": record.features.shape[1],
            "feature_dtype": record.feature_dtype, "features": self.statistics, "regions": self.regions,
            "captions": list(self.captions), "labels": list(self.labels),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """For the terminal."""
        record = self.record
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in self.statistics.items())
        lines = [
            f"{printable(record.image_id, 200)}  {record.width}x{record.height} pixels  "
            f"{counted(record.num_regions, 'region')}",
            *(f"caption {printable(caption, 400)}" for caption in self.captions),
        ]
        if self.labels:
            lines.append(f"labels {', '.join(printable(label, 80) for label in self.labels)}")
        lines.append(f"features {record.features.shape[1]} x {record.feature_dtype}: {numbers}")
        lines.append(f"{'score':>6}  {'x1':>7} {'y1':>7} {'x2':>7} {'y2':>7}  class, attribute (score)")
        return [*lines, *map(_region_line, self.regions)]


def view_record(store: Path, image_id: str | None = None, *, num_regions: int = 10) -> RecordView:
    """
    Args:
        image_id: None for the first one of the store.
        num_regions: at most so many regions.
    Raises:
        ValueError: when the store has no such image, or none at all.
    """
    with FeatureStore(store) as opened:
        if image_id is None:
            image_id = next(iter(opened.ids()), None)
            if image_id is None:
                raise ValueError(f"{store} holds no record")
        if image_id not in opened:
            raise ValueError(f"no image {image_id!r} in {store}; `roibeam store info` tells how many there are")
        record = opened[image_id]
        classes, attributes = opened.manifest.classes, opened.manifest.attributes
        classified = has_classes(opened.fingerprint)
        annotation = annotation_of(opened, image_id)
    rows: list[dict[str, Any]] = []
    for i in np.argsort(-record.class_scores, kind="stable")[:num_regions]:
        row: dict[str, Any] = {
            "box": [round(float(edge), 1) for edge in record.boxes[i]],
            "class": _name(classes, int(record.class_ids[i])) if classified else None,
            "score": round(float(record.class_scores[i]), 4) if classified else None,
        }
        if record.attribute_ids is not None and record.attribute_scores is not None:
            row["attribute"] = _name(attributes, int(record.attribute_ids[i]))
            row["attribute_score"] = round(float(record.attribute_scores[i]), 4)
        rows.append(row)
    values = record.features.astype(np.float32)
    statistics = (
        {"mean": float(values.mean()), "std": float(values.std()), "max": float(values.max())} if values.size else {}
    )
    captions, labels = (annotation.captions, annotation.labels) if annotation is not None else ((), ())
    return RecordView(record, rows, statistics, tuple(captions), tuple(labels))


def _region_line(row: dict[str, Any]) -> str:
    edges = " ".join(f"{edge:7.1f}" for edge in row["box"])
    attribute = f", {row['attribute']} ({row['attribute_score']:.2f})" if "attribute" in row else ""
    score = f"{'-':>6}" if row["score"] is None else f"{row['score']:6.3f}"
    return f"{score}  {edges}  {row['class'] or '-'}{attribute}"


def _name(names: tuple[str, ...] | None, number: int) -> str:
    return names[number] if names is not None and number < len(names) else f"#{number}"
