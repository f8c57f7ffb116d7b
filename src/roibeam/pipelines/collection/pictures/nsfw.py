"""Porn and racy pictures: NudeNet's small detector of body parts, whose weights ship in its wheel (320n.onnx, 12 MB).

The paper used a classifier of its own, not described. OpenNSFW's wheel would be another; it wants a Pillow of 2021.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

# Classes of NudeNet 3.4; a picture's score is that of its surest part.
NSFW_CLASSES = frozenset(
    {"FEMALE_BREAST_EXPOSED", "FEMALE_GENITALIA_EXPOSED", "MALE_GENITALIA_EXPOSED", "ANUS_EXPOSED", "BUTTOCKS_EXPOSED"}
)
RACY_CLASSES = frozenset(
    {"FEMALE_BREAST_COVERED", "FEMALE_GENITALIA_COVERED", "BUTTOCKS_COVERED", "ANUS_COVERED", "BELLY_EXPOSED"}
)


@cache
def _detector() -> Any:
    import onnxruntime
    from nudenet import NudeDetector

    onnxruntime.set_default_logger_severity(3)
    return NudeDetector()


def nsfw_scores(pixels_bgr: np.ndarray) -> tuple[float, float]:
    """(nsfw, racy), 0..1 each; (H, W, 3) uint8 in."""
    found = _detector().detect(pixels_bgr)
    nsfw = max((each["score"] for each in found if each["class"] in NSFW_CLASSES), default=0.0)
    racy = max((each["score"] for each in found if each["class"] in RACY_CLASSES), default=0.0)
    return round(float(nsfw), 4), round(float(racy), 4)
