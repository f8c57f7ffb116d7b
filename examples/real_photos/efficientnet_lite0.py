"""A real backbone, 19 MB: EfficientNet-Lite0, trained on ImageNet.

    roibeam extract photos store --detector ... --backbone python:examples/real_photos/efficientnet_lite0.py:describe

`make real-models` fetches the weights.
"""

import functools
import hashlib
import io
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

FILE, SHA256 = (
    "efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",  # so this text names the weights too
)
# Of each block: the stride of its convolution. The other sizes are those of its weights.
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
LONGEST, CELL = 512, 32  # pixels that the network sees, and of them in a cell of its map


def describe(photo, device="cpu"):
    """(1280, h, w): the last map before the mean over the photo."""
    factor = LONGEST / max(photo.shape[:2])
    height, width = (max(1, round(side * factor / CELL)) * CELL for side in photo.shape[:2])
    seen = np.array(Image.fromarray(photo).resize((width, height), Image.Resampling.BICUBIC))
    x = (torch.from_numpy(seen).to(device).permute(2, 0, 1)[None].float() - 127) / 128
    with torch.inference_mode():
        return features(x, weights(device))[0]


def features(x, state):
    x = layer(x, state, "_conv_stem", "_bn0", stride=2)
    for number, stride in enumerate(STRIDES):
        block = f"_blocks.{number}."
        y = layer(x, state, f"{block}_expand_conv", f"{block}_bn0") if number else x  # the first has none
        y = layer(y, state, f"{block}_depthwise_conv", f"{block}_bn1", stride=stride)
        y = layer(y, state, f"{block}_project_conv", f"{block}_bn2", last=False)
        x = x + y if x.shape == y.shape else y
    return layer(x, state, "_conv_head", "_bn1")


def layer(x, state, convolution, norm, *, stride=1, last=True):
    weight = state[f"{convolution}.weight"]
    more = max(weight.shape[2] - stride, 0)  # TensorFlow's SAME: the larger half is at the end
    x = functional.pad(x, (more // 2, more - more // 2) * 2)
    x = functional.conv2d(x, weight, None, stride, groups=x.shape[1] // weight.shape[1])
    mean, variance, scale, shift = (
        state[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
    )
    x = functional.batch_norm(x, mean, variance, scale, shift, eps=1e-3)
    return x.clamp(0, 6) if last else x


@functools.cache
def weights(device):
    folder = os.environ.get("ROIBEAM_REAL_MODELS") or Path(__file__).resolve().parents[2] / "build" / "real-models"
    data = Path(folder, FILE).read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise ValueError(f"{folder}/{FILE} is another file than the one this was written for")
    return torch.load(io.BytesIO(data), map_location=device, weights_only=True)
