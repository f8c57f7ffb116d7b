"""Two published FPN networks as detectron2 configs: VisualBERT's of NLVR2, and Pythia's.

Their codes are Detectron (Caffe2) and a maskrcnn-benchmark; features of a box are those networks', boxes are found with
detectron2's arithmetic, whose sides have no pixel more. detectron2 is imported inside functions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from roibeam.extraction.detectron2.vg import require_detectron2

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
