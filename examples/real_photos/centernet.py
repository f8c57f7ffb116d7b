"""A real detector of COCO's 80 classes, 4 MB: CenterNet (arXiv:1904.07850) on MobileNetV3.

    roibeam extract photos store --detector python:examples/real_photos/centernet.py:detect --backbone ...

`make real-models` fetches the weights. They come as a graph of TensorFlow.js; what follows computes it in PyTorch.
"""

import base64
import functools
import hashlib
import json
import math
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

NAMES = [
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
    "photo", "cell",  # of `detect_and_cells`
]  # fmt: skip
WIDTH = 0  # no vectors of its own
FILES = {  # the text of this file is what a store's record knows of it: so it names the weights too
    "centernet.json": "bfb942eaacc5becf738d536663bc4580a0ae9e560722306e6d4dd7fe4a09de05",
    "centernet.bin": "1b635a15009071f506f9f2b3519b31c072c534888989f30d269ffd44734ef7ef",
}
SIDE, STRIDE, MOST = 512, 4, 100  # pixels that the network sees, pixels a cell of its maps, boxes


def detect(photo, device="cpu"):
    """The 100 highest peaks of the maps of centres. Boxes of one thing may overlap."""
    height, width = photo.shape[:2]
    seen = np.array(Image.fromarray(photo).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    values = {"tower_0/images": torch.from_numpy(seen).to(device).permute(2, 0, 1)[None].float()}
    with torch.inference_mode():
        scores = compute("tower_0/keypoints", values, device)[0]  # (80, 128, 128)
        sides = compute("tower_0/wh", values, device)[0]  # (4, 128, 128): from the centre to left, top, right, bottom
    is_peak = scores == functional.max_pool2d(scores[None], 3, stride=1, padding=1)[0]
    best, at = (scores * is_peak).flatten().topk(MOST)
    classes, rows, columns = torch.unravel_index(at, scores.shape)
    centres = torch.stack([columns, rows], dim=1) * STRIDE
    sides = sides[:, rows, columns].T
    boxes = torch.cat([centres - sides[:, :2], centres + sides[:, 2:]], dim=1).clamp(0, SIDE)
    real = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    boxes = boxes[real].cpu() * torch.tensor([width, height, width, height]) / SIDE
    return boxes, best[real], [NAMES[row] for row in classes[real].tolist()]


def detect_and_cells(photo, device="cpu"):
    """The whole photo and the 16 cells of a grid, with a score of 1, and what `detect` finds."""
    height, width = photo.shape[:2]
    boxes, scores, names = detect(photo, device)
    cells = [
        [x, y, x + width / 4, y + height / 4]
        for y in (height / 4 * i for i in range(4))
        for x in (width / 4 * i for i in range(4))
    ]
    fixed = torch.tensor([[0, 0, width, height], *cells])
    return torch.cat([fixed, boxes]), torch.cat([torch.ones(17), scores.cpu()]), ["photo", *["cell"] * 16, *names]


def compute(name, values, device):
    """The value of a node of the graph; those computed before are in `values`."""
    if name not in values:
        nodes, constants = graph(device)
        if name in constants:
            return constants[name]
        inputs = [compute(each, values, device) for each in nodes[name]["input"]]
        values[name] = OPERATIONS[nodes[name]["op"]](nodes[name].get("attr", {}), *inputs)
    return values[name]


def convolution(attributes, x, weight, bias=None, *, order=(3, 2, 0, 1)):
    """TensorFlow's: of what SAME adds to a side, the larger half is at the end."""
    weight = weight.permute(order)
    stride = int(attributes["strides"]["list"]["i"][1])
    if base64.b64decode(attributes["padding"]["s"]) == b"SAME":
        more = max(weight.shape[2] - stride, 0)
        x = functional.pad(x, (more // 2, more - more // 2) * 2)
    x = functional.conv2d(x, weight, bias, stride, groups=x.shape[1] // weight.shape[1])
    fused = [base64.b64decode(each) for each in attributes.get("fused_ops", {}).get("list", {}).get("s", [])]
    return x.relu() if b"Relu" in fused else x


def twice_as_large(_, x, size):
    """Bilinear, without half pixels: every second row and column is the old one, those between are means."""
    for dim in (2, 3):
        rows = x.movedim(dim, 0)
        after = torch.cat([rows[1:], rows[-1:]])
        x = torch.stack([rows, (rows + after) / 2], dim=1).flatten(0, 1).movedim(0, dim)
    assert list(x.shape[2:]) == size.tolist()
    return x


OPERATIONS = {
    "Conv2D": convolution,
    "_FusedConv2D": convolution,
    "DepthwiseConv2dNative": functools.partial(convolution, order=(2, 3, 0, 1)),
    "FusedDepthwiseConv2dNative": functools.partial(convolution, order=(2, 3, 0, 1)),
    "Add": lambda _, x, y: x + y,
    "Mul": lambda _, x, y: x * y,
    "Relu": lambda _, x: x.relu(),
    "Relu6": lambda _, x: x.clamp(0, 6),
    "Sigmoid": lambda _, x: x.sigmoid(),
    "Identity": lambda _, x: x,
    "Mean": lambda _, x, axes: x.mean(dim=(2, 3), keepdim=True),
    "ConcatV2": lambda _, x, y, axis: torch.cat([x, y], dim=1),
    "ResizeBilinear": twice_as_large,
}


@functools.cache
def graph(device):
    """Nodes by name, and constants by name."""
    folder = os.environ.get("ROIBEAM_REAL_MODELS") or Path(__file__).resolve().parents[2] / "build" / "real-models"
    texts = {}
    for name, sha256 in FILES.items():
        texts[name] = Path(folder, name).read_bytes()
        if hashlib.sha256(texts[name]).hexdigest() != sha256:
            raise ValueError(f"{folder}/{name} is another file than the one this was written for")
    model, at, constants = json.loads(texts["centernet.json"]), 0, {}
    for each in model["weightsManifest"][0]["weights"]:
        stored = np.dtype(np.float16 if "quantization" in each else np.int32)
        count = math.prod(each["shape"])
        values = np.frombuffer(texts["centernet.bin"], stored, count, at).reshape(each["shape"])
        at += count * stored.itemsize
        values = values.astype(np.float32 if stored == np.float16 else np.int64)
        constants[each["name"]] = torch.from_numpy(values).to(device)
    return {node["name"]: node for node in model["modelTopology"]["node"]}, constants
