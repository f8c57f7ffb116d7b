"""The reduced detector with the goldens' weights, and the goldens themselves."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from roibeam.extraction.detector import Detector
from roibeam.extraction.weights.loading import build_detector

DETECTRON2_PATH_VARIABLE = "ROIBEAM_DETECTRON2_PATH"
GOLDENS = Path(__file__).resolve().parents[3] / "shared" / "goldens" / "detector"


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    if not GOLDENS.is_dir():
        pytest.skip(f"goldens not found in {GOLDENS}")
    return GOLDENS


@pytest.fixture(scope="session")
def photo(golden_dir: Path) -> Callable[[str], np.ndarray]:
    """Name of a golden photo -> (height, width, 3) uint8 B, G, R."""

    def read(name: str) -> np.ndarray:
        image = cv2.imread(str(golden_dir / f"{name}.png"))
        assert image is not None
        return image

    return read


@pytest.fixture(scope="session")
def small_detector() -> Detector:
    """Shared by all tests: read only."""
    torch.set_num_threads(1)  # the network is so small that threads waiting for each other cost more than they give
    return build_detector("small", weights="random:1")


@pytest.fixture
def noise_image() -> np.ndarray:
    """(120, 160, 3) uint8, smooth enough to give different regions different features."""
    coarse = np.random.default_rng(0).integers(0, 256, (15, 20, 3), np.uint8)
    return np.asarray(cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC))


@pytest.fixture(scope="module")
def detectron2() -> Iterator[None]:
    """Stands for detectron2 being importable; its own modules are imported where they are used."""
    before = list(sys.path)
    # Last, so that what this environment has itself (numpy, Pillow) wins.
    sys.path.extend(entry for entry in os.environ.get(DETECTRON2_PATH_VARIABLE, "").split(os.pathsep) if entry)
    try:
        importlib.import_module("detectron2.modeling")
    except ImportError as error:
        sys.path[:] = before
        pytest.skip(f"needs detectron2, installed or in the folders of {DETECTRON2_PATH_VARIABLE}: {error}")
    yield
    sys.path[:] = before
