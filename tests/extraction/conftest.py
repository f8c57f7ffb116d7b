"""The reduced detector with the goldens' weights, and the goldens themselves."""

from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from small_fpn import fpn_yaml
from small_networks import NARROW
from with_detectron2 import detectron2_importable

from roibeam.extraction.adapters.detectron2_adapter import Detectron2Detector, build_detectron2_detector
from roibeam.extraction.detector import Detector
from roibeam.extraction.weights.loading import build_detector

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDENS = REPOSITORY / "tests" / "goldens" / "detector"
GOLDEN_PHOTOS = REPOSITORY.parent / "shared" / "goldens" / "detector"


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return GOLDENS


@pytest.fixture(scope="session")
def photo_file() -> Callable[[str], Path]:
    """Name of a golden photo -> its file; photos are other people's and not part of a clone."""

    def find(name: str) -> Path:
        path = GOLDEN_PHOTOS / f"{name}.png"
        if not path.is_file():
            pytest.skip(f"needs the photo {name}.png in ../shared/goldens/detector")
        return path

    return find


@pytest.fixture(scope="session")
def photo(photo_file: Callable[[str], Path]) -> Callable[[str], np.ndarray]:
    """Name of a golden photo -> (height, width, 3) uint8 B, G, R."""

    def read(name: str) -> np.ndarray:
        image = cv2.imread(str(photo_file(name)))
        assert image is not None
        return image

    return read


@pytest.fixture(scope="session")
def small_detector() -> Detector:
    """Shared by all tests: read only."""
    torch.set_num_threads(1)  # the network is so small that threads waiting for each other cost more than they give
    return build_detector("small", weights="random:1")


@pytest.fixture(scope="session")
def narrow_detector() -> Detector:
    """A quarter of the width, for what no number of the goldens is asked of. Shared by all tests: read only."""
    torch.set_num_threads(1)
    return build_detector(NARROW, weights="random:1")


@pytest.fixture
def noise_image() -> np.ndarray:
    """(120, 160, 3) uint8, smooth enough to give different regions different features."""
    coarse = np.random.default_rng(0).integers(0, 256, (15, 20, 3), np.uint8)
    return np.asarray(cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC))


@pytest.fixture(scope="module")
def detectron2() -> Iterator[None]:
    """Stands for detectron2 being importable."""
    with detectron2_importable():
        yield


@pytest.fixture(scope="module")
def fpn(detectron2: None, tmp_path_factory: pytest.TempPathFactory) -> Detectron2Detector:
    """Shared: read only."""
    torch.set_num_threads(1)
    return build_detectron2_detector(fpn_yaml(tmp_path_factory.mktemp("fpn")), weights="random:1")
