"""Published networks in stock detectron2: the Visual Genome network of bottom-up attention, and two FPN networks.

    register_vg_detector()
    model = detectron2.modeling.build_model(vg_config())

Stock detectron2 lacks three things of the Visual Genome network: a max-pool without padding in the stem, a res5 that
keeps the 14x14 cells and is dilated, and the attribute branch. Tensors carry the names of the published detectron2
files (airsplay/py-bottom-up-attention), which are also the names of `extraction.Detector`. The FPN networks are
VisualBERT's of NLVR2 and Pythia's, of Detectron (Caffe2) and a maskrcnn-benchmark: features of a box are those
networks', boxes are found with detectron2's arithmetic, whose sides have no pixel more. detectron2 is imported inside
functions only: this module imports without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.network.config import BLOCKS_PER_STAGE, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS

VG_BACKBONE = "build_vg_resnet_backbone"  # MODEL.BACKBONE.NAME
VG_ROI_HEADS = "VGRes5ROIHeads"  # MODEL.ROI_HEADS.NAME


def require_detectron2() -> str:
    """Version of the detectron2 that can be imported. Raises ValueError if there is none, with the remedy."""
    try:
        import detectron2
        import detectron2.modeling
    except ImportError as error:
        raise ValueError(
            f"detectron2 cannot be imported ({error}); put a checkout of github.com/facebookresearch/detectron2 on "
            f"PYTHONPATH and `pip install 'roibeam[detectron2]'` (see docs/detectors.md)"
        ) from None
    return str(detectron2.__version__)


def vg_config(config: DetectorConfig | None = None) -> Any:
    """detectron2's CfgNode of the network, with the conventions of the preset "d2" and, by default, published sizes.

    The thresholds of detectron2's own detections (`MODEL.ROI_HEADS.SCORE_THRESH_TEST`, `NMS_THRESH_TEST`) are 0.2 and
    0.6, as in the notebooks of airsplay/py-bottom-up-attention.
    """
    require_detectron2()
    from detectron2.config import get_cfg

    config, conventions = config or DetectorConfig(), CONVENTIONS["d2"]
    cfg = get_cfg()
    add_vg_keys(cfg)
    cfg.INPUT.FORMAT = conventions.channel_order.upper()
    cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST = config.short_edge, config.long_edge
    model, resnets, rpn = cfg.MODEL, cfg.MODEL.RESNETS, cfg.MODEL.RPN
    model.META_ARCHITECTURE = "GeneralizedRCNN"
    model.MASK_ON = False
    model.PIXEL_MEAN, model.PIXEL_STD = list(conventions.pixel_mean), list(conventions.pixel_std)
    model.BACKBONE.NAME = VG_BACKBONE
    resnets.DEPTH, resnets.NORM, resnets.OUT_FEATURES = config.depth, "FrozenBN", ["res4"]
    resnets.STEM_OUT_CHANNELS = resnets.WIDTH_PER_GROUP = config.base_channels
    resnets.RES2_OUT_CHANNELS = 4 * config.base_channels
    resnets.STRIDE_IN_1X1 = conventions.stride_conv == "1x1"
    resnets.RES5_DILATION = conventions.res5_dilation
    model.ANCHOR_GENERATOR.SIZES = [list(config.anchor_sizes)]
    model.ANCHOR_GENERATOR.ASPECT_RATIOS = [list(config.anchor_ratios)]
    model.ANCHOR_GENERATOR.OFFSET = conventions.anchor_offset
    model.PROPOSAL_GENERATOR.MIN_SIZE = conventions.min_proposal_side
    rpn.IN_FEATURES, rpn.CONV_DIMS = ["res4"], [config.rpn_hidden_channels]
    rpn.PRE_NMS_TOPK_TEST, rpn.POST_NMS_TOPK_TEST = config.proposals_before_nms, config.proposals_after_nms
    rpn.NMS_THRESH = config.proposal_nms_iou
    rpn.BBOX_REG_WEIGHTS = conventions.proposal_delta_weights
    model.ROI_HEADS.NAME, model.ROI_HEADS.IN_FEATURES = VG_ROI_HEADS, ["res4"]
    model.ROI_HEADS.NUM_CLASSES = config.num_classes
    model.ROI_HEADS.SCORE_THRESH_TEST, model.ROI_HEADS.NMS_THRESH_TEST = 0.2, 0.6
    model.ROI_BOX_HEAD.POOLER_TYPE, model.ROI_BOX_HEAD.POOLER_RESOLUTION = "ROIPool", config.pooled_cells
    model.ROI_BOX_HEAD.BBOX_REG_WEIGHTS = conventions.region_delta_weights
    model.ROI_BOX_HEAD.NUM_ATTRIBUTES = config.num_attributes
    return cfg


def add_vg_keys(cfg: Any) -> None:
    """Adds the one key that stock detectron2 lacks, if it is missing: MODEL.ROI_BOX_HEAD.NUM_ATTRIBUTES, attributes
    without "no attribute", 0 for a network that has no attribute branch."""
    if "NUM_ATTRIBUTES" not in cfg.MODEL.ROI_BOX_HEAD:
        cfg.MODEL.ROI_BOX_HEAD.NUM_ATTRIBUTES = 0


def register_vg_detector() -> None:
    """Registers `VG_BACKBONE` and `VG_ROI_HEADS` in detectron2; a second call changes nothing."""
    require_detectron2()
    from detectron2.modeling import BACKBONE_REGISTRY, ROI_HEADS_REGISTRY

    if VG_BACKBONE not in BACKBONE_REGISTRY:
        BACKBONE_REGISTRY.register(build_vg_resnet_backbone)
    if VG_ROI_HEADS not in ROI_HEADS_REGISTRY:
        ROI_HEADS_REGISTRY.register(_roi_heads_class())


def build_vg_resnet_backbone(cfg: Any, input_shape: Any) -> Any:
    """detectron2's ResNet with the stem's max-pool unpadded and its size rounded up."""
    from detectron2.modeling.backbone.resnet import BasicStem, build_resnet_backbone

    class UnpaddedPoolStem(BasicStem):
        def forward(self, pixels: Tensor) -> Tensor:
            x = functional.relu_(self.conv1(pixels))
            return functional.max_pool2d(x, kernel_size=3, stride=2, padding=0, ceil_mode=True)

    backbone = build_resnet_backbone(cfg, input_shape)
    resnets = cfg.MODEL.RESNETS
    backbone.stem = UnpaddedPoolStem(input_shape.channels, resnets.STEM_OUT_CHANNELS, resnets.NORM)
    return backbone.freeze(cfg.MODEL.BACKBONE.FREEZE_AT)


class AttributeBranch(nn.Module):
    """Attribute layers of the box predictor beside detectron2's two; their tensors lie in the predictor itself."""

    cls_embedding: nn.Embedding
    fc_attr: nn.Linear
    attr_score: nn.Linear

    def add_attribute_layers(self, width: int, num_classes: int, num_attributes: int) -> None:
        """`width` counts the numbers of a region feature; background and "no attribute" are not counted."""
        if num_attributes < 1:
            raise ValueError(
                f"MODEL.ROI_BOX_HEAD.NUM_ATTRIBUTES is {num_attributes}; {VG_ROI_HEADS} needs at least 1, "
                f"Res5ROIHeads is the head without attributes"
            )
        self.num_attributes = num_attributes
        self.cls_embedding = nn.Embedding(num_classes + 1, width // 8)
        self.fc_attr = nn.Linear(width + width // 8, width // 4)
        self.attr_score = nn.Linear(width // 4, num_attributes + 1)

    def attribute_logits(self, features: Tensor, class_logits: Tensor) -> Tensor:
        """(R, A + 1), "no attribute" last, beside the embedding of the best class, the background among them."""
        embedding = self.cls_embedding(class_logits.argmax(dim=1))
        return self.attr_score(functional.relu(self.fc_attr(torch.cat([features, embedding], dim=1))))


def _roi_heads_class() -> type:
    """The ROI heads for detectron2's registry, made here because their base classes exist in detectron2 only."""
    from detectron2.config import configurable
    from detectron2.layers import ShapeSpec
    from detectron2.modeling.backbone.resnet import BottleneckBlock, ResNet
    from detectron2.modeling.roi_heads.fast_rcnn import FastRCNNOutputLayers
    from detectron2.modeling.roi_heads.roi_heads import Res5ROIHeads

    class VGOutputLayers(FastRCNNOutputLayers, AttributeBranch):
        @configurable
        def __init__(self, input_shape: Any, *, num_attributes: int, **stock: Any) -> None:
            super().__init__(input_shape, **stock)
            self.add_attribute_layers(input_shape.channels, stock["num_classes"], num_attributes)

        @classmethod
        def from_config(cls, cfg: Any, input_shape: Any) -> dict[str, Any]:
            stock = super().from_config(cfg, input_shape)
            return {**stock, "num_attributes": cfg.MODEL.ROI_BOX_HEAD.NUM_ATTRIBUTES}

    class VGRes5ROIHeads(Res5ROIHeads):
        """ROI heads: in inference instances get `features` (n, D), `attr_classes` (n,) and `attr_scores` (n,), the
        softmax over the attributes without "no attribute". In training the attribute branch takes no part."""

        @classmethod
        def from_config(cls, cfg: Any, input_shape: Any) -> dict[str, Any]:
            parts = super().from_config(cfg, input_shape)
            channels = parts["res5"][-1].out_channels
            parts["box_predictor"] = VGOutputLayers(cfg, ShapeSpec(channels=channels, height=1, width=1))
            return parts

        @classmethod
        def _build_res5_block(cls, cfg: Any) -> tuple[nn.Module, int]:
            resnets = cfg.MODEL.RESNETS
            out_channels = 8 * resnets.RES2_OUT_CHANNELS
            count = BLOCKS_PER_STAGE[resnets.DEPTH][-1]
            blocks = ResNet.make_stage(
                BottleneckBlock,
                count,
                stride_per_block=[1] * count,  # stock C4 heads halve the cells here
                dilation=resnets.RES5_DILATION,
                in_channels=out_channels // 2,
                bottleneck_channels=8 * resnets.NUM_GROUPS * resnets.WIDTH_PER_GROUP,
                out_channels=out_channels,
                num_groups=resnets.NUM_GROUPS,
                norm=resnets.NORM,
                stride_in_1x1=resnets.STRIDE_IN_1X1,
            )
            return nn.Sequential(*blocks), out_channels

        def forward(self, images: Any, features: Any, proposals: Any, targets: Any = None) -> Any:
            if self.training:
                return super().forward(images, features, proposals, targets)
            maps = [features[name] for name in self.in_features]
            cells = self._shared_roi_transform(maps, [each.proposal_boxes for each in proposals])
            region_features = cells.mean(dim=[2, 3])
            predictions = self.box_predictor(region_features)
            detected, kept = self.box_predictor.inference(predictions, proposals)
            counts = [len(each) for each in proposals]
            of_images = zip(region_features.split(counts), predictions[0].split(counts), strict=True)
            for instances, keep, (rows, class_logits) in zip(detected, kept, of_images, strict=True):
                logits = self.box_predictor.attribute_logits(rows[keep], class_logits[keep])
                instances.features = rows[keep]
                instances.attr_scores, instances.attr_classes = logits[:, :-1].softmax(dim=1).max(dim=1)
            return self.forward_with_given_boxes(features, detected), {}

    return VGRes5ROIHeads


_LEVELS = ("p2", "p3", "p4", "p5", "p6")
_MEAN = (102.9801, 115.9465, 122.7717)  # B, G, R


def mask_rcnn_r101_fpn() -> Any:
    """e2e_mask_rcnn_R-101-FPN_2x of facebookresearch/Detectron, on COCO: features of 1,024 numbers."""
    cfg = _fpn_config(depth=101, width=256, num_classes=80, fc_dim=1024)
    cfg.MODEL.MASK_ON = True
    mask = cfg.MODEL.ROI_MASK_HEAD
    mask.NAME, mask.NUM_CONV, mask.POOLER_RESOLUTION = "MaskRCNNConvUpsampleHead", 4, 14
    mask.POOLER_TYPE, mask.POOLER_SAMPLING_RATIO = "ROIAlign", 2
    return cfg


def pythia_x152_fpn() -> Any:
    """e2e_faster_rcnn_X-152-32x8d-FPN_1x_MLP_2048_FPN_512 of Pythia, on Visual Genome: features of 2,048 numbers."""
    cfg = _fpn_config(depth=152, width=512, num_classes=1600, fc_dim=2048)
    resnets = cfg.MODEL.RESNETS
    resnets.NUM_GROUPS, resnets.WIDTH_PER_GROUP, resnets.STRIDE_IN_1X1 = 32, 8, False
    return cfg


PUBLISHED: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {"mask-rcnn-r101-fpn": mask_rcnn_r101_fpn, "pythia-x152-fpn": pythia_x152_fpn}
)


def _fpn_config(*, depth: int, width: int, num_classes: int, fc_dim: int) -> Any:
    require_detectron2()
    from detectron2.config import get_cfg

    cfg = get_cfg()
    cfg.INPUT.FORMAT, cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST = "BGR", 800, 1333
    model = cfg.MODEL
    model.META_ARCHITECTURE, model.BACKBONE.NAME = "GeneralizedRCNN", "build_resnet_fpn_backbone"
    model.PIXEL_MEAN, model.PIXEL_STD = list(_MEAN), [1.0, 1.0, 1.0]
    model.RESNETS.DEPTH, model.RESNETS.OUT_FEATURES = depth, ["res2", "res3", "res4", "res5"]
    model.FPN.IN_FEATURES, model.FPN.OUT_CHANNELS = ["res2", "res3", "res4", "res5"], width
    model.ANCHOR_GENERATOR.SIZES = [[32], [64], [128], [256], [512]]
    model.RPN.IN_FEATURES = list(_LEVELS)
    model.RPN.PRE_NMS_TOPK_TEST = model.RPN.POST_NMS_TOPK_TEST = 1000
    model.ROI_HEADS.NAME, model.ROI_HEADS.IN_FEATURES = "StandardROIHeads", list(_LEVELS[:-1])
    model.ROI_HEADS.NUM_CLASSES = num_classes
    box = model.ROI_BOX_HEAD
    box.NAME, box.NUM_FC, box.FC_DIM = "FastRCNNConvFCHead", 2, fc_dim
    box.POOLER_TYPE, box.POOLER_RESOLUTION, box.POOLER_SAMPLING_RATIO = "ROIAlign", 7, 2
    return cfg
