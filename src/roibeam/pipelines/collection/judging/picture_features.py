"""What the judge of pictures is asked with: statistics of the file and, if trained so, of the regions."""

from __future__ import annotations

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.collection.judging.picture_statistics import NAMES as STATISTICS_NAMES
from roibeam.pipelines.collection.judging.picture_statistics import picture_statistics

NAMES = STATISTICS_NAMES
REGION_NAMES = ("regions", "sure regions", "best score", "mean of five scores", "pooled feature")
NAMES_WITH_REGIONS = (*NAMES, *REGION_NAMES)


def picture_features(data: bytes, record: RegionRecord | None, pooled: np.ndarray | None) -> np.ndarray:
    """(21,) or (26,) float64: statistics of the file, and with `pooled` of its regions.

    Raises:
        ValueError: for a file that cannot be decoded, or regions whose features have another width.
    """
    statistics = picture_statistics(data)
    if pooled is None:
        return statistics
    value = float(pooled_feature(record, len(pooled) - 1) @ pooled[:-1] + pooled[-1])
    return np.append(statistics, [*region_facts(record), value])


def region_facts(record: RegionRecord | None) -> tuple[float, float, float, float]:
    """Regions, sure ones, best score, mean of the five best."""
    if record is None or not record.num_regions:
        return 0.0, 0.0, 0.0, 0.0
    best = np.sort(record.class_scores)[::-1]
    return float(len(best)), float((best >= 0.5).sum()), float(best[0]), float(best[:5].mean())


def pooled_feature(record: RegionRecord | None, width: int) -> np.ndarray:
    """(width,) float64: the mean of all regions; zeros without any.

    Raises:
        ValueError: if the features have another width.
    """
    if record is None or not record.num_regions:
        return np.zeros(width)
    if record.features.shape[1] != width:
        raise ValueError(f"features of width {record.features.shape[1]}, the model was trained on {width}")
    return record.features.astype(np.float64).mean(axis=0)
