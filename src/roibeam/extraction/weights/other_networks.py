"""What a weight file is that is no detector of this family, told from its names and shapes: so that it is called what
it is, whether it is taken (a ResNet alone) or refused.

Sources: torchvision/models/resnet.py and models/detection; huggingface/pytorch-image-models timm/models/resnet.py;
transformers models/resnet; detectron2 modeling; rowanz/r2c utils/detector.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from torch import Tensor

CLASSES_OF_IMAGES = "fc."  # of a ResNet that classifies photos

# Beginnings of names that a file of the network has, all of them, -> what it is. The first that fits counts.
_NETWORKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("backbone.body.stem.",), "a network of maskrcnn-benchmark (VinVL's, Pythia's)"),
    (("backbone.body.", "roi_heads.keypoint_head."), "torchvision's Keypoint R-CNN with a feature pyramid"),
    (("backbone.body.", "roi_heads.mask_head."), "torchvision's Mask R-CNN with a feature pyramid"),
    (("backbone.body.", "roi_heads."), "torchvision's Faster R-CNN with a feature pyramid"),
    (("backbone.body.", "head.classification_head."), "torchvision's RetinaNet or FCOS"),
    (("backbone.features.", "head."), "torchvision's SSD"),
    (("backbone.bottom_up.",), "a network of detectron2 with a feature pyramid"),
    (("backbone.layer1.", "classifier."), "torchvision's segmentation network (FCN, DeepLab)"),
    (("backbone.0.body.", "transformer."), "DETR"),
    (("model.backbone.",), "DETR as Hugging Face names it"),
    (("stem.conv1.", "res2."), "a ResNet in detectron2's names, without its detector"),
    (("conv1_w", "res2_0_branch"), "a network of Caffe2's Detectron"),
    (("detector.backbone.", "detector.after_roi_align."), "a whole model of R2C, or VisualBERT on VCR"),
    (("visual.layer1.", "visual.attnpool."), "CLIP's ResNet"),
    (("conv1.0.", "layer1."), "timm's ResNet with a deep stem"),
    (("layer1.0.se.",), "timm's ResNet with squeeze and excitation"),
    (("stem.", "stages.0.blocks."), "a network of timm's, of another kind than a ResNet with batch norms"),
    (("embeddings.patch_embeddings.",), "a vision transformer"),
    (("vit.embeddings.",), "a vision transformer"),
    (("bert.embeddings.",), "a model of words or of words and regions, no detector"),
)
_HUGGING_FACE = re.compile(r"(?:resnet\.)?encoder\.stages\.(\d+)\.layers\.(\d+)\.layer\.(\d)\.")
_TORCHVISION = re.compile(r"layer([1-4])\.(\d+)\.conv(\d)\.weight$")
_INSIDE = "backbone.body."  # of torchvision's detectors, the ResNet


def other_network(weights: Mapping[str, object]) -> str | None:
    """What the network is, for people; None for a detector of this family, or its ResNet, or what nobody knows.

    Args:
        weights: name -> value; of a value its shape is looked at, no more.
    """
    if (layers := _layers(_HUGGING_FACE, weights)) is not None:
        return f"ResNet-{layers} as Hugging Face names it"
    for beginnings, title in _NETWORKS:
        if all(any(name.startswith(beginning) for name in weights) for beginning in beginnings):
            inside = _layers(_TORCHVISION, [each.removeprefix(_INSIDE) for each in weights if each.startswith(_INSIDE)])
            return title if inside is None else f"{title}, on a ResNet-{inside}"
    return None


def resnet_title(weights: Mapping[str, object]) -> str:
    """What a file is whose ResNet has torchvision's names, for people."""
    layers = _layers(_TORCHVISION, weights)
    kind = f"{_kind(weights)}-{layers}"
    classes = weights.get(f"{CLASSES_OF_IMAGES}weight")
    if isinstance(classes, Tensor) and classes.dim() == 2:
        return f"{kind} of torchvision or timm, for {len(classes):,} classes of photos"
    if kind == "ResNet-101":
        return "VL-BERT resnet101-pt-vgbua, or another ResNet-101 alone in torchvision's names"
    return f"{kind} alone in torchvision's names"


def _kind(weights: Mapping[str, object]) -> str:
    """By the 3x3 convolution of the first block: of a plain ResNet it reads as many channels as it makes."""
    middle = weights.get("layer1.0.conv2.weight")
    if not isinstance(middle, Tensor) or middle.dim() != 4 or "layer1.0.conv3.weight" not in weights:
        return "ResNet"
    made, read = middle.shape[:2]
    stem = weights.get("conv1.weight")
    is_wide = isinstance(stem, Tensor) and stem.dim() == 4 and made > stem.shape[0]
    return "ResNeXt" if read < made else "Wide ResNet" if is_wide else "ResNet"


def _layers(pattern: re.Pattern[str], names: Iterable[str]) -> int | None:
    """Layers as ResNets are called by: the convolutions of all blocks, the stem, the classes. None for no blocks.

    Args:
        pattern: of a convolution inside a block: stage, block, number.
    """
    found = {match.groups() for name in names if (match := pattern.match(name))}
    if not found:
        return None
    blocks = Counter((stage, block) for stage, block, _ in found)
    return 2 + sum(blocks.values())
