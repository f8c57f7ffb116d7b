"""A reduced Mask R-CNN R50-FPN as a detectron2 config: features of 24 numbers, five classes."""

from pathlib import Path

WIDTH = 24
FPN = """
MODEL:
  META_ARCHITECTURE: GeneralizedRCNN
  MASK_ON: true
  PIXEL_STD: [1.0, 1.0, 1.0]
  BACKBONE: {NAME: build_resnet_fpn_backbone}
  RESNETS:
    {DEPTH: 50, STEM_OUT_CHANNELS: 8, WIDTH_PER_GROUP: 8, RES2_OUT_CHANNELS: 32, OUT_FEATURES: [res2, res3, res4, res5]}
  FPN: {IN_FEATURES: [res2, res3, res4, res5], OUT_CHANNELS: 16}
  ANCHOR_GENERATOR: {SIZES: [[8], [16], [32], [64], [128]], ASPECT_RATIOS: [[0.5, 1.0, 2.0]]}
  RPN: {IN_FEATURES: [p2, p3, p4, p5, p6], PRE_NMS_TOPK_TEST: 200, POST_NMS_TOPK_TEST: 60}
  ROI_HEADS: {NAME: StandardROIHeads, IN_FEATURES: [p2, p3, p4, p5], NUM_CLASSES: 5, SCORE_THRESH_TEST: 0.3}
  ROI_BOX_HEAD: {NAME: FastRCNNConvFCHead, NUM_FC: 2, FC_DIM: 24, POOLER_RESOLUTION: 7, POOLER_TYPE: ROIAlign}
  ROI_MASK_HEAD: {NAME: MaskRCNNConvUpsampleHead, NUM_CONV: 1, CONV_DIM: 8, POOLER_RESOLUTION: 14}
INPUT: {MIN_SIZE_TEST: 96, MAX_SIZE_TEST: 160}
VERSION: 2
"""


def fpn_yaml(folder: Path, *changes: tuple[str, str]) -> Path:
    """Written there; `changes` are (old, new) texts."""
    text = FPN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    config = folder / "fpn.yaml"
    config.write_text(text)
    return config
