"""Lines of the three bottom-up-attention layouts, written independently of the reader."""

import base64
from typing import Any

import numpy as np
from store_examples import numbers

NUM_CLASSES = 6


def encoded(array: np.ndarray, dtype: str) -> bytes:
    return base64.b64encode(np.ascontiguousarray(array, np.dtype(dtype)).tobytes())


def fields(image_id: str = "image", num_regions: int = 3, feature_dim: int = 8, *, seed: int = 0) -> dict[str, Any]:
    """Values of one image of 640x480 pixels; `cls_prob` has background first."""
    corners = numbers(seed, num_regions, 2) * 100
    probabilities = numbers(seed + 1, num_regions, NUM_CLASSES + 1) + 0.01
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return {
        "image_id": image_id,
        "width": 640,
        "height": 480,
        "num_boxes": num_regions,
        "boxes": np.concatenate([corners, corners + 50 + numbers(seed + 2, num_regions, 2) * 100], axis=1),
        "features": numbers(seed + 3, num_regions, feature_dim) * 4,
        "cls_prob": probabilities,
        "objects_id": (numbers(seed + 4, num_regions) * 1600).astype(int),
        "objects_conf": numbers(seed + 5, num_regions),
        "attrs_id": (numbers(seed + 6, num_regions) * 400).astype(int),
        "attrs_conf": numbers(seed + 7, num_regions),
    }


CAFFE = ("image_id", "width", "height", "num_boxes", "boxes", "features")
CLS_PROB = (*CAFFE, "cls_prob")
LXMERT = ("image_id", "height", "width", "objects_id", "objects_conf", "attrs_id", "attrs_conf", "num_boxes")
LXMERT = (*LXMERT, "boxes", "features")


def line(columns: tuple[str, ...], values: dict[str, Any], *, end: bytes = b"\n") -> bytes:
    """One line; arrays become base64, bytes stay as they are."""
    cells = []
    for name in columns:
        value = values[name]
        if isinstance(value, np.ndarray):
            cells.append(encoded(value, "<i8" if name in ("objects_id", "attrs_id") else "<f4"))
        else:
            cells.append(value if isinstance(value, bytes) else str(value).encode())
    return b"\t".join(cells) + end
