"""One feature for a whole photo from an image classifier: the global feature of ImageBERT's ablation.

ImageBERT (arXiv:2001.07966, section 5.3) tried DenseNet, ResNet and GoogLeNet features beside those of the regions,
since regions may miss part of the photo, and found that not all metrics improve; it names neither depth nor
preprocessing. Here it is the pooled last feature of one of torchvision's networks: G numbers of their own width and
scale, unrelated to the detector's features.

    feature = build_global_feature("densenet121=densenet121-a639ec97.pth")
    feature(cv2.imread("photo.jpg"))  # (1024,) float32
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.network.config import GLOBAL_NETWORKS
from roibeam.extraction.network.precision import plain_float32
from roibeam.extraction.network.state import check_state, is_weight, random_seed, renamed, weights_digest
from roibeam.extraction.photos.preprocessing import check_pixels
from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.sources import fetch_weights

INPUT_EDGE = 224  # pixels
_RGB_MEAN = (0.485, 0.456, 0.406)  # of pixels in 0..1; torchvision/transforms/_presets.py::ImageClassification
_RGB_STD = (0.229, 0.224, 0.225)

_HEADS = re.compile(r"(classifier|fc|aux1|aux2)\.")
# torchvision's DenseNet files still have names that its modules no longer may have, such as `denselayer1.norm.1.weight`
# for `denselayer1.norm1.weight` (torchvision/models/densenet.py::_load_state_dict).
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")


class GlobalFeature:
    """A whole photo -> one feature.

    The **whole** photo is resized to 224x224 (bilinear, antialiased, the ratio of its sides given up), scaled to 0..1
    and normalised with the means and deviations of torchvision's published weights, in R, G, B. Their own transform
    resizes the short edge to 256 and cuts out the middle 224x224, which leaves out 43 % of a 4:3 photo; a feature that
    is there for what regions miss must see all of it, and such networks are trained on crops stretched by up to 4:3.

    Each photo goes through the network by itself, in evaluation mode and plain float32: equal photos give equal bits on
    one machine.

    Args:
        network: (1, 3, 224, 224) float32 -> (1, G); that of the name, made by `build_global_feature`.
    """

    def __init__(self, name: str, network: nn.Module) -> None:
        self.name = name
        self.network = network.eval()

    @property
    def feature_dim(self) -> int:
        """G, numbers in a feature."""
        return GLOBAL_NETWORKS[self.name]

    def describe(self) -> dict[str, Any]:
        """Description in a store's fingerprint; plain JSON values. Hashes the weights: call it once for a run."""
        return {
            "network": self.name,
            "weights": weights_digest(self.network.state_dict()),
            "feature_dim": self.feature_dim,
            "transform": {
                "resize": "whole image, bilinear, antialiased",
                "input_hw": [INPUT_EDGE, INPUT_EDGE],
                "channel_order": "rgb",
                "mean": list(_RGB_MEAN),
                "std": list(_RGB_STD),
            },
        }

    @torch.inference_mode()
    def __call__(self, image: np.ndarray) -> np.ndarray:
        """(G,) float32 of one photo, (height, width, 3) uint8 in B, G, R order, of any size from 1x1."""
        check_pixels(image)
        device = next(self.network.parameters()).device
        with plain_float32(device):
            return self.network(_network_input(image, device))[0].cpu().numpy()


def build_global_feature(spec: str, *, device: str | torch.device = "cpu") -> GlobalFeature:
    """A global feature ready to run.

    Args:
        spec: `<network>=<weights>`: a key of `GLOBAL_NETWORKS`, and torchvision's state dict of that network as a file
            in any form that `fetch_weights` takes (its classifier and auxiliary heads may be there or not), or
            `random:<seed>` for tests.
    Raises:
        ValueError: for an unknown network, or a file that is not exactly that network's.
        OSError: if the file cannot be fetched.
    """
    name, equals, weights = spec.partition("=")
    if name not in GLOBAL_NETWORKS or not equals or not weights:
        raise ValueError(
            f"global feature {spec!r}: expected <network>=<weights file or random:seed> with a network of "
            f"{', '.join(GLOBAL_NETWORKS)}"
        )
    network = _headless_network(name)
    expected = {key: tensor for key, tensor in network.state_dict().items() if is_weight(key)}
    if (seed := random_seed(weights, named=f"global feature {spec}")) is not None:
        state = _random_state(expected, seed)
    else:
        state = _file_state(fetch_weights(weights), expected, spec)
    # Counters of batches are in a network's state, but are no weights and may be missing from a file.
    network.load_state_dict(state, strict=False)
    return GlobalFeature(name, network.to(device))


def _headless_network(name: str) -> nn.Module:
    # googlenet's published weights want their input in another range, which `transform_input` brings it into.
    options: dict[str, Any] = {}
    if name == "googlenet":
        options = {"aux_logits": False, "transform_input": True, "init_weights": False}
    build: Callable[..., nn.Module] = getattr(torchvision.models, name)
    with torch.random.fork_rng(devices=[]):  # building draws first weights from the caller's random numbers
        network = build(weights=None, **options)
    setattr(network, "classifier" if name.startswith("densenet") else "fc", nn.Identity())
    return network


def _file_state(path: Path, expected: Mapping[str, Tensor], spec: str) -> dict[str, Tensor]:
    source = f"global feature {spec}"
    headless = {name: value for name, value in read_tensors(path).items() if not _HEADS.match(name)}
    found = renamed(headless, lambda name: _OLD_DENSENET.sub(r"\1\2", name), source)
    try:
        return check_state(found, expected, source)
    except ValueError as error:
        # torchvision's following text advises on detectors.
        problem = str(error).partition("; it looks like")[0]
        network = spec.partition("=")[0]
        raise ValueError(f"{problem}; give torchvision's own state dict of {network}") from None


def _random_state(expected: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Convolutions that keep the variance, everything else as torchvision starts it; the same on every machine.

    torchvision's own start lets features of resnet152 grow past float16 and those of googlenet vanish while the
    normalisation has no statistics yet.
    """
    # The last layer of a residual block is added to its input, block after block, so it starts with less variance.
    last = "conv3" if "layer1.0.conv3.weight" in expected else "conv2"
    ends_residual_block = re.compile(rf"layer\d\.\d+\.{last}\.")
    state = dict(expected)
    for name, tensor in expected.items():
        if tensor.ndim == 4:
            z = np.random.default_rng([zlib.crc32(name.encode()), seed]).standard_normal(tuple(tensor.shape))
            variance = (0.2 if ends_residual_block.match(name) else 2.0) / math.prod(tensor.shape[1:])
            state[name] = torch.from_numpy((math.sqrt(variance) * z).astype(np.float32))
    return state


def _network_input(image: np.ndarray, device: torch.device) -> Tensor:
    """(height, width, 3) uint8 B, G, R -> (1, 3, 224, 224) float32 R, G, B, normalised."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).to(device).permute(2, 0, 1)[None].float()
    pixels = functional.interpolate(
        pixels, (INPUT_EDGE, INPUT_EDGE), mode="bilinear", align_corners=False, antialias=True
    )
    mean = torch.tensor(_RGB_MEAN, device=device).view(1, 3, 1, 1)
    std = torch.tensor(_RGB_STD, device=device).view(1, 3, 1, 1)
    return (pixels[:, [2, 1, 0]] / 255 - mean) / std
