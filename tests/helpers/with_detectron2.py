"""detectron2 made importable for the tests beside it: installed, in folders that are named, or as fetched."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from detectron2_source import source_folder

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
