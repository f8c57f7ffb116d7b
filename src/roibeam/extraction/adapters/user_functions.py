"""Functions of a user's file as detector and backbone: `python:FILE.py:FUNCTION`.

    NAMES = ["cat", "dog"]                        # of a detector: its classes, in id order

    def detect(photo):                            # (height, width, 3) uint8, R, G, B
        return boxes, scores, names               # (R, 4) x1 y1 x2 y2 in pixels, (R,) 0..1, R of NAMES
        return boxes, scores, names, vectors      # or with vectors of its own, (R, D)

    def describe(photo):                          # a backbone: of the whole photo a map (C, h, w), pooled by RoIAlign,
        return vector                             # or of a crop a vector (D,), a call for each box

The file is one text, which travels to the workers with its digest; what it imports must be installed there. It runs
once in each process, and its functions are called with one photo at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.adapters.any_detector import Detections, FeatureMap
from roibeam.extraction.adapters.named_model import NamedModel

_loaded: dict[tuple[str, str], ModuleType] = {}  # by name and digest


def _function(model: NamedModel, name: str) -> Any:
    """A name of the user's file, which runs here once in a process."""
    key = (model.target, model.digest)
    if key not in _loaded:
        module = ModuleType(f"roibeam_user_{model.digest[:16]}")
        module.__file__ = str(Path(model.target).absolute())  # weights may lie beside it
        sys.modules[module.__name__] = module  # dataclasses and pickles look there
        try:
            exec(compile(model.code, model.target, "exec"), module.__dict__)
        except Exception as error:
            sys.modules.pop(module.__name__)
            raise ValueError(f"{model.name}: the file does not run: {type(error).__name__}: {error}") from error
        _loaded[key] = module
    return getattr(_loaded[key], name, None)
