"""detectron2 made importable for the tests beside it: installed, in folders that are named, or as fetched; and what it
detects by itself."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detectron2_source import source_folder

from roibeam.extraction.adapters.detectron2_adapter import Detectron2Detector
from roibeam.extraction.regions import Regions

PATH_VARIABLE = "ROIBEAM_DETECTRON2_PATH"
REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def detectron2_importable() -> Iterator[None]:
    """Skips the test where it is not; its modules are imported where they are used."""
    before = list(sys.path)
    # Last, so that what this environment has itself (numpy, Pillow) wins; what somebody names before what was fetched.
    sys.path.extend(entry for entry in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if entry)
    sys.path.append(str(source_folder(REPOSITORY / "build" / "detectron2")))
    try:
        importlib.import_module("detectron2.modeling")
    except ImportError as error:
        sys.path[:] = before
        pytest.skip(
            f"needs detectron2: installed, in the folders of {PATH_VARIABLE}, or fetched by `make detectron2-source`: "
            f"{error}"
        )
    yield
    sys.path[:] = before


def surely_detected(detector: Detectron2Detector, image: np.ndarray) -> Any:
    """What detectron2's own inference, as its DefaultPredictor has it, finds in a B, G, R photo with a score above a
    half: then it is its proposal's best class, which is what our regions keep."""
    from detectron2.data.transforms import ResizeShortestEdge

    test_input = detector.cfg.INPUT
    flipped = image[:, :, ::-1] if test_input.FORMAT == "RGB" else image
    resize = ResizeShortestEdge([test_input.MIN_SIZE_TEST] * 2, test_input.MAX_SIZE_TEST).get_transform(flipped)
    pixels = torch.as_tensor(resize.apply_image(flipped).astype("float32").transpose(2, 0, 1))
    height, width = image.shape[:2]
    with torch.no_grad():
        detected = detector.model([{"image": pixels, "height": height, "width": width}])[0]["instances"]
    sure = detected[detected.scores > 0.5]
    assert len(sure) >= 3
    return sure


def rows_of(sure: Any, regions: Regions) -> list[int]:
    """Of each of these detections its row among our regions."""
    rows = []
    for box, score, class_id in zip(sure.pred_boxes.tensor, sure.scores, sure.pred_classes, strict=True):
        near = np.abs(regions.regressed_boxes - box.numpy()).max(axis=1) <= 1e-2
        near &= (np.abs(regions.class_scores - float(score)) <= 1e-4) & (regions.class_ids == int(class_id))
        assert near.any()
        rows.append(int(np.argmax(near)))
    return rows
