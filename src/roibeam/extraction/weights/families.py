"""Families of published weight files, recognised by names and shapes, and the layouts of their head weights.

    hf                 `pytorch_model.bin`, flat dict with `num_batches_tracked`, our names; HF_LAYOUT
    detectron2         `.pkl` of airsplay/py-bottom-up-attention, {"model": name -> array}, our names; HF_LAYOUT
    milvlg, milvlg-d2  `.pth` of MILVLG/bottom-up-attention.pytorch, modes "caffe" (CAFFE_LAYOUT) and "d2" (D2_LAYOUT)
    milvlg-old-d2      the same, "d2" of its first year; HF_LAYOUT
    milvlg-r152        the same, a pre-activation network; CAFFE_LAYOUT
    grid               `.pth` of facebookresearch/grid-feats-vqa; its heads are of another kind, and left out
    vinvl              `vinvl_vg_x152c4.pth` of microsoft/scene_graph_benchmark; VINVL_LAYOUT
    vlbert             `resnet101-pt-vgbua-0000.model`, torchvision's names: backbone and res5 alone
    resnet             the same of other layers or for classes of photos: `resnet50-*.pth`, timm's
    vlbert-checkpoint  jackroos/VL-BERT trained end to end; the same under `image_feature_extractor.`
    own                `model.safetensors` of a detector's folder, our names; layout of its config.json
    caffe              `.caffemodel` of peteanderson80/bottom-up-attention, Caffe's layers; CAFFE_LAYOUT

Files of other networks (torchvision, timm, transformers, detectron2, r2c) are named; all but a ResNet are refused.

A layout is order and scale of the rows: where background stands, how box deltas are scaled, whether objectness is one
number or a pair, in which order the anchors come. One table of rules turns one layout into another; they follow from
airsplay/py-bottom-up-attention, MILVLG/bottom-up-attention.pytorch (bua/caffe/modeling) and
peteanderson80/bottom-up-attention (lib/rpn, test.prototxt).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from roibeam.extraction.network.config import BLOCKS_PER_STAGE
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.state import CELL_ANCHORS, NO_SHARE, renamed
from roibeam.messages import printable

RPN = "proposal_generator.rpn_head."
PREDICTOR = "roi_heads.box_predictor."


@dataclass(frozen=True)
class HeadLayout:
    """Meaning of the rows of the head weights. The fields are those of `Conventions`; the defaults are Hugging Face's
    and detectron2's.

    Attributes:
        background: "first" or "last" row of cls_score and cls_embedding.
        no_attribute: "first" or "last" row of attr_score, or "none".
        region_delta_weights: divisors of bbox_pred's dx dy dw dh.
        region_deltas: bbox_pred has rows for the "foreground" classes or "with-background", four for each class.
        objectness: one "logit" for each anchor, or "pair-softmax": background of all anchors, then foreground.
        anchor_order: "size-major" or "ratio-major"; of objectness, of anchor_deltas in groups of four, of cell_anchors.
    """

    background: str = "last"
    no_attribute: str = "last"
    region_delta_weights: tuple[float, ...] = (10.0, 10.0, 5.0, 5.0)
    region_deltas: str = "foreground"
    objectness: str = "logit"
    anchor_order: str = "size-major"

    @classmethod
    def of(cls, conventions: Conventions) -> HeadLayout:
        """The layout of the weights in a detector of these conventions."""
        found = cls(**{field.name: getattr(conventions, field.name) for field in fields(cls)})
        return replace(found, objectness="logit") if found.objectness == "sigmoid" else found


HF_LAYOUT = HeadLayout()
CAFFE_LAYOUT = HeadLayout("first", "first", (1.0, 1.0, 1.0, 1.0), "with-background", "pair-softmax", "ratio-major")
D2_LAYOUT = replace(HF_LAYOUT, no_attribute="none")
VINVL_LAYOUT = replace(CAFFE_LAYOUT, region_delta_weights=HF_LAYOUT.region_delta_weights, objectness="logit")


def relayout(
    state: Mapping[str, Tensor], source: HeadLayout, target: HeadLayout, *, num_sizes: int, num_ratios: int
) -> dict[str, Tensor]:
    """The same network in another layout.

    Exact, except that box deltas are multiplied by the ratio of the delta weights: one rounding of float32, so there
    and back may differ by one unit in the last place. A pair becomes foreground minus background, on which alone the
    softmax depends; a logit becomes the pair (0, logit). Box deltas of the background class, which nothing uses, are
    dropped, or are zero if there were none. A row of "no attribute" is dropped, or always gives the logit `NO_SHARE`.

    Args:
        state: weights in Hugging Face names and in `source` layout; names without a rule pass through, so a part of
            a network will do. Shapes must be those of the layout (see `check_state`).
        num_sizes, num_ratios: anchors at a cell are their product.
    Returns:
        the state in `target` layout, float32 where a rule applied; tensors may be shared with `state`.
    """
    grid = (num_sizes, num_ratios)
    return {
        name: _RULES[name](value, source, target, grid) if name in _RULES else value for name, value in state.items()
    }


def relayout_words(source: HeadLayout, target: HeadLayout) -> list[str]:
    """Steps of `relayout` between two layouts, for people; empty if there are none."""
    words = {
        "background": "background row moved",
        "no_attribute": "no-attribute row "
        + ("dropped" if target.no_attribute == "none" else "added" if source.no_attribute == "none" else "moved"),
        "region_delta_weights": "box deltas scaled",
        "region_deltas": "background box deltas "
        + ("dropped" if target.region_deltas == "foreground" else "added as zeros"),
        "objectness": "objectness " + ("pairs joined" if target.objectness == "logit" else "logits split into pairs"),
        "anchor_order": "anchors reordered",
    }
    return [text for name, text in words.items() if getattr(source, name) != getattr(target, name)]


def _move_row(value: Tensor, source: str, target: str) -> Tensor:
    """Rows with the special one (background, "no attribute") moved between first and last."""
    if source == target:
        return value
    return value.roll(1 if target == "first" else -1, dims=0)


def _class_rows(value: Tensor, source: HeadLayout, target: HeadLayout, _grid: tuple[int, int]) -> Tensor:
    return _move_row(value, source.background, target.background)


def _attribute_rows(value: Tensor, source: HeadLayout, target: HeadLayout, _grid: tuple[int, int]) -> Tensor:
    place = source.no_attribute
    if place == "none" != target.no_attribute:
        value, place = torch.cat([value, torch.full_like(value[:1], NO_SHARE if value.dim() == 1 else 0.0)]), "last"
    if target.no_attribute == "none" != place:
        return value[1:] if place == "first" else value[:-1]
    return _move_row(value, place, target.no_attribute)


def _region_deltas(value: Tensor, source: HeadLayout, target: HeadLayout, _grid: tuple[int, int]) -> Tensor:
    groups = value.reshape(-1, 4, *value.shape[1:])
    if source.region_delta_weights != target.region_delta_weights:
        weights = zip(target.region_delta_weights, source.region_delta_weights, strict=True)
        factors = torch.tensor([new / old for new, old in weights], dtype=torch.float32, device=value.device)
        groups = groups.float() * factors.view(1, 4, *(1 for _ in value.shape[1:]))
    if source.region_deltas == "with-background":
        if target.region_deltas == "with-background":
            groups = _move_row(groups, source.background, target.background)
        else:
            groups = groups[1:] if source.background == "first" else groups[:-1]
    elif target.region_deltas == "with-background":
        background = torch.zeros_like(groups[:1])
        groups = torch.cat([background, groups] if target.background == "first" else [groups, background])
    return groups.reshape(-1, *value.shape[1:])


def _objectness(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    if source.objectness != target.objectness:
        if target.objectness == "logit":
            background, foreground = value.float().chunk(2)
            value = foreground - background
        else:
            value = torch.cat([torch.zeros_like(value), value])
    # A pair is two runs over the anchors, one after the other.
    runs = value.reshape(2, -1, *value.shape[1:]) if target.objectness == "pair-softmax" else value[None]
    return torch.cat([_reorder(run, source, target, grid) for run in runs])


def _anchor_groups(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    groups = value.reshape(grid[0] * grid[1], -1, *value.shape[1:])
    return _reorder(groups, source, target, grid).reshape(value.shape)


def _reorder(value: Tensor, source: HeadLayout, target: HeadLayout, grid: tuple[int, int]) -> Tensor:
    """Rows, one for each anchor, in the target's order."""
    if source.anchor_order == target.anchor_order:
        return value
    outer, inner = grid if source.anchor_order == "size-major" else grid[::-1]
    return value.reshape(outer, inner, *value.shape[1:]).transpose(0, 1).reshape(value.shape)


_Rule = Callable[[Tensor, HeadLayout, HeadLayout, tuple[int, int]], Tensor]
# The one table of value rules for tensors that depend on the layout. Every other one is the same in all files.
_RULES: dict[str, _Rule] = {
    f"{RPN}objectness_logits.weight": _objectness,
    f"{RPN}objectness_logits.bias": _objectness,
    f"{RPN}anchor_deltas.weight": _anchor_groups,
    f"{RPN}anchor_deltas.bias": _anchor_groups,
    CELL_ANCHORS: _anchor_groups,
    f"{PREDICTOR}cls_score.weight": _class_rows,
    f"{PREDICTOR}cls_score.bias": _class_rows,
    f"{PREDICTOR}cls_embedding.weight": _class_rows,
    f"{PREDICTOR}bbox_pred.weight": _region_deltas,
    f"{PREDICTOR}bbox_pred.bias": _region_deltas,
    f"{PREDICTOR}attr_score.weight": _attribute_rows,
    f"{PREDICTOR}attr_score.bias": _attribute_rows,
}


CLASSES_OF_IMAGES = "fc."  # of a ResNet that classifies photos

# Prefixes that a file of the network has, all of them, -> title of the network. The first that fits counts.
_NETWORKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("backbone.body.stem.", "backbone.fpn."), "a network of maskrcnn-benchmark with a feature pyramid (Pythia's)"),
    (("backbone.fpn.", "roi_heads.keypoint_head."), "torchvision's Keypoint R-CNN with a feature pyramid"),
    (("backbone.fpn.", "roi_heads.mask_head."), "torchvision's Mask R-CNN with a feature pyramid"),
    (("backbone.fpn.", "roi_heads."), "torchvision's Faster R-CNN with a feature pyramid"),
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
    """Title of the network, for people; None for a detector of this family, or its ResNet, or an unknown one."""
    if (layers := _layers(_HUGGING_FACE, weights)) is not None:
        return f"ResNet-{layers} as Hugging Face names it"
    for beginnings, title in _NETWORKS:
        if all(any(name.startswith(beginning) for name in weights) for beginning in beginnings):
            inside = _layers(_TORCHVISION, [each.removeprefix(_INSIDE) for each in weights if each.startswith(_INSIDE)])
            return title if inside is None else f"{title}, on a ResNet-{inside}"
    return None


def resnet_title(weights: Mapping[str, object]) -> str:
    """Title of a file whose ResNet has torchvision's names, for people."""
    layers = _layers(_TORCHVISION, weights)
    kind = f"{_kind(weights)}-{layers}"
    classes = weights.get(f"{CLASSES_OF_IMAGES}weight")
    if isinstance(classes, Tensor) and classes.dim() == 2:
        return f"{kind} of torchvision or timm, for {len(classes):,} classes of photos"
    if kind == "ResNet-101":
        return "VL-BERT resnet101-pt-vgbua, or another ResNet-101 alone in torchvision's names"
    return f"{kind} alone in torchvision's names"


def _kind(weights: Mapping[str, object]) -> str:
    """Kind by the 3x3 convolution of the first block: in a plain ResNet it has as many inputs as outputs."""
    middle = weights.get("layer1.0.conv2.weight")
    if not isinstance(middle, Tensor) or middle.dim() != 4 or "layer1.0.conv3.weight" not in weights:
        return "ResNet"
    made, read = middle.shape[:2]
    stem = weights.get("conv1.weight")
    is_wide = isinstance(stem, Tensor) and stem.dim() == 4 and made > stem.shape[0]
    return "ResNeXt" if read < made else "Wide ResNet" if is_wide else "ResNet"


def _layers(pattern: re.Pattern[str], names: Iterable[str]) -> int | None:
    """Number of layers in a ResNet's name: the convolutions of all blocks (stage, block, number), stem and classes;
    None for no blocks."""
    found = {match.groups() for name in names if (match := pattern.match(name))}
    if not found:
        return None
    blocks = Counter((stage, block) for stage, block, _ in found)
    return 2 + sum(blocks.values())


DATA_PARALLEL_PREFIX = "module."
VLBERT_PREFIX = "image_feature_extractor."
COUNTER = "num_batches_tracked"
NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")
_MAX_BLOCKS = 36  # res4 of a ResNet-152


@dataclass(frozen=True)
class Family:
    """One kind of published file.

    Attributes:
        name: see the table on top of this file.
        layout: of the head weights; None if the file has no heads.
    """

    name: str
    title: str
    naming: str
    layout: HeadLayout | None


FAMILIES = {
    family.name: family
    for family in (
        Family("hf", "Hugging Face frcnn-vg-finetuned", "ours", HF_LAYOUT),
        Family("detectron2", "Hugging Face or detectron2 names", "ours", HF_LAYOUT),
        Family("milvlg", "MILVLG bottom-up-attention.pytorch, caffe mode", "milvlg", CAFFE_LAYOUT),
        Family("milvlg-d2", "MILVLG bottom-up-attention.pytorch, d2 mode", "milvlg-d2", D2_LAYOUT),
        Family("milvlg-old-d2", "MILVLG bottom-up-attention.pytorch, old d2 mode", "milvlg", HF_LAYOUT),
        Family("vlbert", "VL-BERT resnet101-pt-vgbua", "vlbert", None),
        Family("vlbert-checkpoint", "VL-BERT end-to-end checkpoint", "vlbert-checkpoint", None),
        Family("caffe", "Caffe bottom-up-attention", "caffe", CAFFE_LAYOUT),
        Family("milvlg-r152", "MILVLG bottom-up-attention.pytorch, caffe mode, R152", "milvlg-r152", CAFFE_LAYOUT),
        Family("grid", "grid-feats-vqa, res5 in the backbone", "grid", None),
        Family("vinvl", "VinVL vinvl_vg_x152c4", "vinvl", VINVL_LAYOUT),
    )
}


@dataclass(frozen=True)
class NamedWeights:
    """The weights of a file in Hugging Face names.

    Attributes:
        tensors: name -> value as in the file, in the family's layout; names that the family does not know stay
            unchanged. Without counters of batches.
        changes: steps taken, for people.
    """

    source: str
    family: Family
    tensors: dict[str, object]
    changes: tuple[str, ...]


def name_weights(found: Mapping[str, object], source: str, *, written: HeadLayout | None = None) -> NamedWeights:
    """Recognises the family of a file and gives its tensors Hugging Face names.

    Args:
        written: layout of the heads by the config beside a roibeam file; shapes do not determine all of it.
    Raises:
        ValueError: if the file is of no known family, or its names and shapes fit different ones.
    """
    changes: list[str] = []
    weights = _without_prefixes(found, changes)
    weights = {name: value for name, value in weights.items() if not name.endswith(COUNTER)}
    weights = _without_twins(weights, changes, source)
    weights = _renamed_norms(weights, changes, source)
    if (other := other_network(weights)) is not None:
        raise ValueError(f"{source}: {other}, another network than any that is read here; {_read_files()}")
    tables = name_tables()
    known = {naming: sum(name in names for name in weights) for naming, names in tables.items()}
    # Most names win; a name that the winner does not know is "extra" in `check_state`. If two know the same names,
    # the file lacks all that distinguishes them, so it lacks tensors, or it is a part that both name alike.
    naming = max(known, key=lambda naming: known[naming])
    if not known[naming]:
        raise ValueError(f"{source}: {_no_family(weights)}")
    names = tables[naming]
    if naming == "vlbert-checkpoint":
        others = [name for name in weights if not name.startswith(("backbone.", "roi_head_feature_extractor."))]
        if others:
            changes.append(f"{len(others)} weights beside the ResNet left out")
        weights = {name: value for name, value in weights.items() if name not in set(others)}
    tensors = renamed(weights, lambda name: names.get(name, name), source)
    if count := sum(names.get(name, name) != name for name in weights):
        changes.append(f"{count} names changed")
    if written is not None and naming == "ours" and _has_shapes_of(written, tensors):
        family = Family("own", "roibeam's own detector", "ours", written)
    elif naming == "vlbert":
        family = _resnet_alone(weights)
    else:
        family = _family(naming, found, tensors, source)
    _add_missing_statistics(tensors, changes)
    return NamedWeights(source, family, tensors, tuple(changes))


def family_names(naming: str) -> dict[str, str]:
    """Hugging Face name -> name in a family's files, for writing."""
    names: dict[str, str] = {}
    for own, hf in name_tables()[naming].items():
        names.setdefault(hf, own)
    return names


@functools.cache
def name_tables() -> dict[str, dict[str, str]]:
    """Naming -> name in the file -> Hugging Face name: the one table of names, spelled out."""
    tables: dict[str, dict[str, str]] = {
        naming: {}
        for naming in (
            "ours", "milvlg", "milvlg-d2", "vlbert", "vlbert-checkpoint", "caffe", "grid", "milvlg-r152", "vinvl",
        )
    }  # fmt: skip
    for hf, torchvision, caffe in [*_resnet_names(), *_head_names()]:
        tables["ours"][hf] = hf
        tables["milvlg"][_milvlg_name(hf)] = tables["milvlg-d2"][_milvlg_d2_name(hf)] = hf
        tables["vinvl"][_vinvl_name(hf, torchvision)] = hf
        for layer in caffe:
            tables["caffe"][layer] = hf
        if torchvision:
            in_encoder = torchvision.replace("layer4.", "roi_head_feature_extractor.")
            tables["vlbert"][torchvision] = hf
            tables["vlbert-checkpoint"][in_encoder if in_encoder != torchvision else f"backbone.{torchvision}"] = hf
    for hf in tables["ours"]:
        if not hf.startswith(PREDICTOR):
            tables["grid"][hf.replace("roi_heads.res5.", "backbone.res5.")] = hf
    tables["milvlg-r152"] = _milvlg_r152_names(tables["milvlg"])
    tables["vinvl"]["rpn.anchor_generator.cell_anchors.0"] = CELL_ANCHORS
    for naming in ("ours", "milvlg", "milvlg-d2", "milvlg-r152", "caffe"):
        tables[naming][CELL_ANCHORS] = CELL_ANCHORS
    return tables


def _resnet_names() -> Iterator[tuple[str, str, list[str]]]:
    """Rows of the table: Hugging Face, torchvision, Caffe (more than one where networks of two depths differ)."""
    yield "backbone.stem.conv1.weight", "conv1.weight", ["conv1.weight"]
    for tensor in NORM_TENSORS:
        yield f"backbone.stem.conv1.norm.{tensor}", f"bn1.{tensor}", [f"{_caffe_norm(tensor)}_conv1.{tensor}"]
    for stage in (2, 3, 4, 5):
        part = "roi_heads.res5" if stage == 5 else f"backbone.res{stage}"
        for block in range(_MAX_BLOCKS):
            hf, torchvision = f"{part}.{block}", f"layer{stage - 1}.{block}"
            # res2a res2b res2c, but res4a res4b1 ... res4b22; a ResNet-50 has letters everywhere.
            letters = [chr(ord("a") + block)] * (block < 6) + [f"b{block}"] * (block > 0)
            for conv in ("conv1", "conv2", "conv3", "shortcut"):
                branch = {"conv1": "2a", "conv2": "2b", "conv3": "2c", "shortcut": "1"}[conv]
                norm = f"bn{conv[-1]}" if conv != "shortcut" else "downsample.1"
                weight = conv if conv != "shortcut" else "downsample.0"
                yield (
                    f"{hf}.{conv}.weight",
                    f"{torchvision}.{weight}.weight",
                    [f"res{stage}{letter}_branch{branch}.weight" for letter in letters],
                )
                for tensor in NORM_TENSORS:
                    yield (
                        f"{hf}.{conv}.norm.{tensor}",
                        f"{torchvision}.{norm}.{tensor}",
                        [f"{_caffe_norm(tensor)}{stage}{letter}_branch{branch}.{tensor}" for letter in letters],
                    )


def _head_names() -> Iterator[tuple[str, str, list[str]]]:
    for hf, caffe in (
        (f"{RPN}conv", "rpn_conv/3x3"),
        (f"{RPN}objectness_logits", "rpn_cls_score"),
        (f"{RPN}anchor_deltas", "rpn_bbox_pred"),
        *((f"{PREDICTOR}{name}", name) for name in ("cls_score", "bbox_pred", "fc_attr", "attr_score")),
    ):
        for tensor in ("weight", "bias"):
            yield f"{hf}.{tensor}", "", [f"{caffe}.{tensor}"]
    yield f"{PREDICTOR}cls_embedding.weight", "", ["cls_embedding.weight"]


def _caffe_norm(tensor: str) -> str:
    return "bn" if tensor.startswith("running_") else "scale"


def _milvlg_name(hf: str) -> str:
    for own, name in (("cls_embed", "cls_embedding"), ("attr_linear1", "fc_attr"), ("attr_linear2", "attr_score")):
        if hf.startswith(f"{PREDICTOR}{name}."):
            return hf.replace(name, own)
    return hf


def _milvlg_d2_name(hf: str) -> str:
    for own, name in (("obj_embed", "cls_embedding"), ("fc.0", "fc_attr"), ("attr_score", "attr_score")):
        if hf.startswith(f"{PREDICTOR}{name}."):
            return hf.replace(f"{PREDICTOR}{name}", f"roi_heads.attribute_predictor.{own}")
    return hf


# Names of the pre-activation network within a block, ours: a norm is named after the convolution that it follows.
_PRE_ACTIVATION = {"norm": "activate.norm", "conv2.norm": "conv1.norm", "conv3.norm": "conv2.norm"}


def _milvlg_r152_names(milvlg: Mapping[str, str]) -> dict[str, str]:
    """MILVLG's names of its pre-activation network -> ours. There the norm of res4's result belongs to res5."""
    blocks = BLOCKS_PER_STAGE[152]
    names = {name: hf for name, hf in milvlg.items() if ".norm." not in name or ".stem." in name}
    for tensor in NORM_TENSORS:
        names[f"backbone.stem.norm.{tensor}"] = f"backbone.stem.norm.{tensor}"
        for stage, count in enumerate(blocks, start=2):
            part = "roi_heads.res5" if stage == 5 else f"backbone.res{stage}"
            for block in range(count):
                for theirs, own in _PRE_ACTIVATION.items():
                    names[f"{part}.{block}.{theirs}.{tensor}"] = f"{part}.{block}.{own}.{tensor}"
        names[f"roi_heads.res5.0.norm.{tensor}"] = f"backbone.res4.{blocks[2]}.norm.{tensor}"
        names[f"roi_heads.res5_bn.{tensor}"] = f"roi_heads.res5.{blocks[3]}.norm.{tensor}"
    return names


def _vinvl_name(hf: str, torchvision: str) -> str:
    if torchvision:
        is_stem = not torchvision.startswith("layer")
        inside = f"stem.{torchvision}" if is_stem else torchvision
        head = "roi_heads.box.feature_extractor.head."
        return f"{head}{inside}" if inside.startswith("layer4.") else f"backbone.body.{inside}"
    for own, name in (("rpn.head.cls_logits", "objectness_logits"), ("rpn.head.bbox_pred", "anchor_deltas")):
        if hf.startswith(f"{RPN}{name}."):
            return hf.replace(f"{RPN}{name}", own)
    is_box = hf.startswith((f"{PREDICTOR}cls_score", f"{PREDICTOR}bbox_pred"))
    return hf.replace(RPN, "rpn.head.").replace(
        PREDICTOR, "roi_heads.box.predictor." if is_box else "attribute.predictor."
    )


def _without_prefixes(found: Mapping[str, object], changes: list[str]) -> dict[str, object]:
    weights = dict(found)
    while weights and all(name.startswith(DATA_PARALLEL_PREFIX) for name in weights):
        weights = {name.removeprefix(DATA_PARALLEL_PREFIX): value for name, value in weights.items()}
        changes.append(f"prefix {DATA_PARALLEL_PREFIX} removed")
    inner = {name: value for name, value in weights.items() if name.startswith(VLBERT_PREFIX)}
    if not inner:
        return weights
    changes.append(f"prefix {VLBERT_PREFIX} removed")
    if len(inner) < len(weights):
        changes.append(f"{len(weights) - len(inner)} weights outside it left out")
    return {name.removeprefix(VLBERT_PREFIX): value for name, value in inner.items()}


_TWIN, _FIRST = "attribute.feature_extractor.", "roi_heads.box.feature_extractor."  # VinVL's last stage, twice


def _without_twins(weights: dict[str, object], changes: list[str], source: str) -> dict[str, object]:
    """Without the second copy of a last stage that two heads share; raises ValueError where the two differ."""
    twins = [name for name in weights if name.startswith(_TWIN)]
    for name in twins:
        value, first = weights[name], weights.get(first_name := name.replace(_TWIN, _FIRST))
        if not (isinstance(value, Tensor) and isinstance(first, Tensor) and torch.equal(value, first)):
            raise ValueError(f"{source}: {printable(name, 90)} is not equal to {printable(first_name, 90)}, its copy")
    if twins:
        changes.append(f"{len(twins)} copies left out")
    return {name: value for name, value in weights.items() if not name.startswith(_TWIN)}


def _renamed_norms(weights: dict[str, object], changes: list[str], source: str) -> dict[str, object]:
    """`X.gamma` and `X.beta` of old TensorFlow-style checkpoints, which the Hugging Face loader renames too."""
    old = [name for name in weights if name.endswith((".gamma", ".beta"))]
    if not old:
        return weights
    changes.append(f"{len(old)} gamma and beta renamed")
    endings = {".gamma": ".weight", ".beta": ".bias"}
    return renamed(
        weights,
        lambda name: next((name.removesuffix(e) + endings[e] for e in endings if name.endswith(e)), name),
        source,
    )


def _family(naming: str, found: Mapping[str, object], weights: Mapping[str, object], source: str) -> Family:
    """The family among those of one naming, by the shapes of the heads if they differ."""
    if naming not in ("ours", "milvlg"):
        return FAMILIES[naming]
    caffe_like = _caffe_like_heads(weights)
    if len(set(caffe_like.values())) > 1:
        shapes = ", ".join(f"{name} as in {'Caffe' if caffe else 'detectron2'}" for name, caffe in caffe_like.items())
        raise ValueError(
            f"{source}: its heads are of two kinds ({shapes}), so the place of its background row is unknown; "
            f"hand over the file as it was published"
        )
    is_caffe_like = next(iter(caffe_like.values()), naming == "milvlg")
    if naming == "milvlg":
        return FAMILIES["milvlg" if is_caffe_like else "milvlg-old-d2"]
    if is_caffe_like:
        raise ValueError(
            f"{source}: has Hugging Face's names, but its heads have the shapes of Caffe's ({', '.join(caffe_like)}), "
            f"so the place of its background row is unknown; give the file as published"
        )
    return FAMILIES["hf" if any(name.endswith(COUNTER) for name in found) else "detectron2"]


def _resnet_alone(weights: Mapping[str, object]) -> Family:
    """VL-BERT's family, or that of ResNets of other layers and of those that classify photos."""
    title = resnet_title(weights)
    name = "vlbert" if title.startswith(FAMILIES["vlbert"].title) else "resnet"
    return replace(FAMILIES["vlbert"], name=name, title=title)


def _caffe_like_heads(weights: Mapping[str, object]) -> dict[str, bool]:
    """Whether heads are as wide as Caffe's: objectness in pairs, box deltas for background. Empty without heads."""

    def rows(name: str) -> int:
        value = weights.get(name)
        return value.shape[0] if isinstance(value, Tensor) and value.dim() else 0

    found = {}
    objectness, anchor_deltas = rows(f"{RPN}objectness_logits.bias"), rows(f"{RPN}anchor_deltas.bias")
    if objectness and anchor_deltas in (2 * objectness, 4 * objectness):
        found["objectness_logits"] = anchor_deltas == 2 * objectness
    box_deltas, classes = rows(f"{PREDICTOR}bbox_pred.bias"), rows(f"{PREDICTOR}cls_score.bias")
    if classes > 1 and box_deltas in (4 * classes, 4 * (classes - 1)):
        found["bbox_pred"] = box_deltas == 4 * classes
    return found


def _has_shapes_of(layout: HeadLayout, weights: Mapping[str, object]) -> bool:
    """Whether the heads are as wide as in a layout: a converted file may have replaced the written one."""
    expected = {
        "objectness_logits": layout.objectness == "pair-softmax",
        "bbox_pred": layout.region_deltas == "with-background",
    }
    return all(expected[name] == is_caffe_like for name, is_caffe_like in _caffe_like_heads(weights).items())


def _add_missing_statistics(weights: dict[str, object], changes: list[str]) -> None:
    """Adds mean 0 and variance 1 if a file has none at all: Caffe2's frozen norms keep them in weight and bias."""
    if any(name.endswith((".running_mean", ".running_var")) for name in weights):
        return
    norms = [name.removesuffix(".weight") for name in weights if name.endswith(".norm.weight")]
    for norm in norms:
        weight = weights[f"{norm}.weight"]
        if isinstance(weight, Tensor):
            # Expanded, so that an unchecked shape takes no memory.
            weights[f"{norm}.running_mean"] = torch.zeros(()).expand(weight.shape)
            weights[f"{norm}.running_var"] = torch.ones(()).expand(weight.shape)
    if norms:
        changes.append("running statistics added: mean 0, variance 1")


def _no_family(weights: Mapping[str, object]) -> str:
    if not weights:
        return "holds no weights; hand over a checkpoint that holds tensors"
    first = ", ".join(printable(name, 60) for name in list(weights)[:3])
    return f"{len(weights)} weights of no known family ({first}, ...); {_read_files()}"


def _read_files() -> str:
    return f"read are the files of {', '.join(family.title for family in FAMILIES.values())}, torchvision's ResNets"
