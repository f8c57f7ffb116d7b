"""Functions of a user's file as detector and backbone: `python:FILE.py:FUNCTION`.

    NAMES = ["cat", "dog"]                        # of a detector: its classes, in id order

    def detect(photo):                            # (height, width, 3) uint8, R, G, B
        return boxes, scores, names               # (R, 4) x1 y1 x2 y2 in pixels, (R,) 0..1, R of NAMES or rows of it
        return boxes, scores, names, vectors      # or with vectors of its own, (R, D)

    def describe(photo):                          # a backbone: of the whole photo a map (C, h, w), pooled by RoIAlign,
        return vector                             # or of a crop a vector (D,), a call for each box

Results are arrays, tensors or lists. The cells of a map divide the photo evenly. An argument `device` is given where a
function has one. One call on a black photo tells whether a backbone gives maps, and D; of a detector that finds nothing
on it, `WIDTH = 256` in the file tells D.

The file is one text, which travels to the workers with its digest; what it imports must be installed there, and files
beside it do not travel. What weights it reads is no part of the digest: let it compare them with a SHA-256. It runs
once in each process, and its functions are called with one photo at a time, a copy.
"""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from roibeam.extraction.adapters.any_detector import Detections, FeatureMap, arithmetic
from roibeam.extraction.weights.named_model import NamedModel
from roibeam.messages import first_line, name_hint, plural, printable

_loaded: dict[tuple[str, str], ModuleType] = {}  # by name and digest


def class_names(model: NamedModel) -> tuple[str, ...]:
    """The file's NAMES.

    Raises:
        ValueError: if it has none, or other things than different texts.
    """
    names = getattr(_module(model), "NAMES", None)
    if names is None:
        raise ValueError(f"{model.name}: the file names no classes; write NAMES = [...] into it, in the order of ids")
    fit = isinstance(names, list | tuple) and all(isinstance(name, str) and name.strip() for name in names)
    if not fit or not names or len(set(names)) < len(names):
        raise ValueError(f"{model.name}: NAMES must be a list of texts, a different one for each class")
    return tuple(names)


class _Function:
    """A function of the user's file."""

    def __init__(self, model: NamedModel, device: str, mode: str) -> None:
        self.model, self.module = model, _module(model)
        function = getattr(self.module, model.part, None)
        if not callable(function):
            there = [name for name, value in vars(self.module).items() if inspect.isfunction(value)]
            hint = name_hint(model.part, there) if there else "write it"
            self._wrong(f"the file has no function {model.part}; {hint}")
        takes_device = "device" in inspect.signature(function).parameters
        self._function = functools.partial(function, device=device) if takes_device else function
        self._arithmetic = functools.partial(arithmetic, torch.device(device), mode)

    def _wrong(self, text: str) -> NoReturn:
        raise ValueError(f"{self.model.name}: {text}")

    def describe(self, pool: str = "") -> dict[str, Any]:
        size = {"longest_side": self.model.longest_side} if self.model.longest_side else {}
        return {"name": f"python:{self.model.part}", "code": self.model.digest, **size}

    def _call(self, photo: np.ndarray) -> tuple[Any, tuple[float, float]]:
        """The function's result for a photo, and the pixels that it saw for one of the photo, x and y."""
        height, width = photo.shape[:2]
        seen = photo.copy()
        if self.model.longest_side:
            factor = self.model.longest_side / max(height, width)
            size = max(1, round(width * factor)), max(1, round(height * factor))
            seen = np.array(Image.fromarray(photo).resize(size, Image.Resampling.BILINEAR))
        scale = seen.shape[1] / width, seen.shape[0] / height
        try:
            return self._function(seen), scale
        except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (Exception, SystemExit) as error:
            kind = RuntimeError if isinstance(error, RuntimeError) else ValueError  # of memory only the first
            raise kind(f"{self.model.name}: {_what_failed(self.model, error)}") from error

    def _of_a_black_photo(self) -> Any:
        try:
            with self._arithmetic():
                return self._call(np.zeros((128, 128, 3), np.uint8))[0]
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"{error} (called with a black photo of 128 x 128 pixels)") from error

    def _numbers(self, value: Any, what: str) -> Tensor:
        """A copy of a result, float32 and finite, on its device."""
        try:
            if isinstance(value, list | tuple):
                value = [part.detach().float().cpu().numpy() if isinstance(part, Tensor) else part for part in value]
            is_tensor = isinstance(value, Tensor)
            found = value.detach().float().clone() if is_tensor else torch.from_numpy(np.array(value, np.float32))
        except (TypeError, ValueError) as error:
            self._wrong(f"{what} should be numbers; {first_line(error)}")
        if not found.isfinite().all():
            self._wrong(f"{what}: NaN or infinity among the numbers")
        return found


class FunctionDetector(_Function):
    """A `DetectionModel` of a user's function."""

    has_distribution = describes_boxes = False

    def __init__(self, model: NamedModel, device: str, mode: str) -> None:
        super().__init__(model, device, mode)
        named = model.class_names
        own = class_names(model) if named is None or hasattr(self.module, "NAMES") else named
        if named is not None and len(named) != len(own):
            expected = plural(len(own), "class name")
            self._wrong(f"expected {expected}, one for each of the file's NAMES; got {len(named)}")
        self.num_classes, self._ids = len(own), {name: row for row, name in enumerate(own)}
        width = getattr(self.module, "WIDTH", None)
        if width is None:
            vectors = self._parts(self._of_a_black_photo())[3]
            width = 0 if vectors is None else (*self._numbers(vectors, "vectors").shape, -1)[1]
        if not isinstance(width, int) or width < 0:
            self._wrong("the width of its vectors is unknown before a photo; write it into the file, as WIDTH = 256")
        self.feature_dim: int = width

    def _parts(self, found: Any) -> Sequence[Any]:
        if not isinstance(found, list | tuple) or len(found) not in (3, 4):
            got = plural(len(found), "thing") if isinstance(found, list | tuple) else type(found).__name__
            self._wrong(f"expected boxes, scores, names and perhaps vectors; got {got}")
        return (*found, None)[:4]

    def __call__(self, photo: np.ndarray) -> Detections:
        result, scale = self._call(photo)
        boxes, scores, names, vectors = self._parts(result)
        names = names.tolist() if isinstance(names, np.ndarray | Tensor) else names
        if not isinstance(names, list | tuple):
            self._wrong(f"expected a list of names, one for each box; got {type(names).__name__}")
        count = len(names)
        boxes, scores = self._array(boxes, (count, 4), "boxes"), self._array(scores, (count,), "scores")
        if count and not 0 <= scores.min() <= scores.max() <= 1:
            self._wrong(f"scores go from {scores.min():g} to {scores.max():g}; expected 0..1")
        self._check(boxes, photo.shape[1] * scale[0], photo.shape[0] * scale[1])
        ids = torch.tensor([self._id(name) for name in names], dtype=torch.int64)
        if (vectors is None) == bool(self.feature_dim):
            self._wrong("vectors come with each photo or with none; WIDTH = 256 in the file tells their width")
        own = None if vectors is None else self._array(vectors, (count, self.feature_dim), "vectors")
        return Detections(boxes / torch.tensor(scale * 2), scores, ids, own)

    def _array(self, value: Any, shape: tuple[int, ...], what: str) -> Tensor:
        found = self._numbers(value, what).cpu()
        if not found.numel() and not shape[0]:
            return torch.zeros(shape)
        if found.shape != shape:
            got = tuple(found.shape)
            self._wrong(f"{what} have the shape {got}; expected {shape} beside {plural(shape[0], 'name')}")
        return found

    def _check(self, boxes: Tensor, width: float, height: float) -> None:
        if len(boxes) and boxes.max() <= 1 < min(width, height) / 8:
            self._wrong("boxes seem to go from 0 to 1; multiply them by the photo's width and height")
        for box in boxes.tolist():
            if box[2] < box[0] or box[3] < box[1]:
                self._wrong(f"the box {box} ends before it begins; expected x1, y1, x2, y2 (no width and height)")
            if box[0] >= width or box[1] >= height or box[2] <= 0 or box[3] <= 0:
                self._wrong(f"the box {box} lies outside the photo of {width:g} x {height:g} pixels")

    def _id(self, name: Any) -> int:
        name = name.item() if isinstance(name, Tensor | np.generic) else name
        if isinstance(name, int | float) and name in range(self.num_classes):
            return int(name)
        if not isinstance(name, str) or name not in self._ids:
            hint = name_hint(name, self._ids) if isinstance(name, str) else f"it has {self.num_classes}"
            self._wrong(f"{printable(repr(name))} is none of the file's NAMES; {hint}")
        return self._ids[name]


class FunctionBackbone(_Function):
    """A `VisionNetwork` of a user's function."""

    def __init__(self, model: NamedModel, device: str, mode: str) -> None:
        super().__init__(model, device, mode)
        shape = tuple(self._numbers(self._of_a_black_photo(), "its result").shape)
        if len(shape) not in (1, 3) or 0 in shape:
            self._wrong(f"its result has the shape {shape}; expected a map (C, h, w) or a vector (D,)")
        self.feature_dim, self._dimensions = shape[0], len(shape)
        self.pools: tuple[str, ...] = ("roi", "crop") if len(shape) == 3 else ("crop",)

    def _result(self, photo: np.ndarray) -> Tensor:
        found = self._numbers(self._call(photo)[0], "its result")
        if found.ndim != self._dimensions or found.shape[0] != self.feature_dim or not found.numel():
            expected, got = (self.feature_dim, "h", "w")[: self._dimensions], tuple(found.shape)
            self._wrong(f"its result has the shape {got}; of a black photo it began {expected}")
        return found

    def feature_map(self, photo: np.ndarray) -> FeatureMap:
        values = self._result(photo)[None]
        return FeatureMap(values, (values.shape[3] / photo.shape[1], values.shape[2] / photo.shape[0]))

    def crop_vectors(self, crops: Sequence[np.ndarray]) -> Tensor:
        found = {name: self._result(crop) for name, crop in {id(crop): crop for crop in crops}.items()}
        found = {name: value.flatten(1).mean(1) if value.ndim == 3 else value for name, value in found.items()}
        return torch.stack([found[id(crop)] for crop in crops])


load_detector, load_backbone = FunctionDetector, FunctionBackbone


def _module(model: NamedModel) -> ModuleType:
    """The user's file, which runs here once in a process."""
    key = (model.target, model.digest)
    if key not in _loaded:
        module = ModuleType(f"roibeam_user_{model.digest[:16]}")
        module.__file__ = str(Path(model.target).absolute())  # weights may lie beside it
        module.__dict__["print"] = functools.partial(print, file=sys.stderr)  # stdout is the command's
        sys.modules[module.__name__] = module  # dataclasses and pickles look there
        try:
            exec(compile(model.code, model.target, "exec"), module.__dict__)
        except (Exception, SystemExit) as error:
            sys.modules.pop(module.__name__)
            raise ValueError(f"{model.name}: {_what_failed(model, error)}") from error
        _loaded[key] = module
    return _loaded[key]


def _what_failed(model: NamedModel, error: BaseException) -> str:
    """An error of the user's file with its line there."""
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == model.target]
    if isinstance(error, SyntaxError) and error.filename == model.target:
        lines = [error.lineno]
    text = f"{f'line {lines[-1]}: ' if lines else ''}{type(error).__name__}: {first_line(error)}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        beside = (Path(model.target).parent / f"{error.name.partition('.')[0]}.py").exists()
        travels = "a file beside this one does not travel: put its code into this one"
        return f"{text}; {travels if beside else 'install it, and on workers too'}"
    return text
