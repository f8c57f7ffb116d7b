"""MILVLG's networks of its d2 mode beside detectron2 itself, which computes them there: one file of random weights, in
their names, loads into both. The numbers of detectron2 that no config of theirs sets are its own defaults.

detectron2 has no attributes: MILVLG's layers for them, and its steps from the photo to the boxes, are written out here
once more, after bua/d2/modeling/roi_heads.py and utils/extract_d2features.py of commit 4dbce869.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS
from roibeam.extraction.network.resnet import NormedConv
from roibeam.extraction.network.roi_heads import pool_regions
from roibeam.extraction.network.state import CELL_ANCHORS, is_weight, random_state
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.training.batch_losses import build_trainable_detector
from roibeam.extraction.weights.detector_choice import PRESETS
from roibeam.extraction.weights.families import family_names
from roibeam.extraction.weights.loading import build_detector

NETWORKS = [name for name in PRESETS if name.startswith("milvlg-d2-")]
ATTRIBUTES = "roi_heads.attribute_predictor."
PHOTO = Path(__file__).parents[1] / "goldens" / "milvlg_r152" / "r152_small.npz"
SEED = 8
# Largest error as a share of the largest value; pixels; probability: tests/goldens/milvlg_r152/README.md.
VALUES, HEADS, PIXELS, PROBABILITY = 1e-4, 3e-4, 0.05, 5e-4


def reduced(name: str) -> DetectorConfig:
    config = replace(
        CONFIGS[name], base_channels=8, num_classes=20, num_attributes=12, rpn_hidden_channels=128,
        proposals_before_nms=900, proposals_after_nms=80, short_edge=160, long_edge=267,
    )  # fmt: skip
    return replace(config, groups=4, width_per_group=8) if config.groups > 1 else config


def official_model(name: str, config: DetectorConfig) -> Any:
    """configs/d2/base-d2.yaml and the file of the network, then these sizes."""
    from detectron2.config import get_cfg
    from detectron2.modeling import build_model

    cfg = get_cfg()
    model, resnets = cfg.MODEL, cfg.MODEL.RESNETS
    model.META_ARCHITECTURE, model.ROI_HEADS.NAME = "GeneralizedRCNN", "Res5ROIHeads"
    model.DEVICE = str(torch.get_default_device())
    resnets.DEPTH = int(name.removeprefix("milvlg-d2-")[1:])
    model.RPN.PRE_NMS_TOPK_TEST, model.RPN.POST_NMS_TOPK_TEST, model.ROI_HEADS.NUM_CLASSES = 6000, 1000, 1600
    model.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO = 2
    if resnets.DEPTH == 152:
        resnets.STRIDE_IN_1X1, resnets.NUM_GROUPS, resnets.WIDTH_PER_GROUP = False, 32, 8
        model.ROI_BOX_HEAD.POOLER_RESOLUTION = 7
    if config != CONFIGS[name]:
        resnets.STEM_OUT_CHANNELS, resnets.RES2_OUT_CHANNELS = config.base_channels, 4 * config.base_channels
        resnets.NUM_GROUPS, resnets.WIDTH_PER_GROUP = config.groups, config.width_per_group or config.base_channels
        model.RPN.PRE_NMS_TOPK_TEST = config.proposals_before_nms
        model.RPN.POST_NMS_TOPK_TEST = config.proposals_after_nms
        model.ROI_HEADS.NUM_CLASSES = config.num_classes
    return build_model(cfg).eval()


def official_weights(name: str, config: DetectorConfig, photo: np.ndarray, seed: int) -> dict[str, Tensor]:
    """Random ones, in the names of MILVLG's file. The norms have the statistics of the photo: else, after 50 blocks,
    all cells of a map are alike, and proposals tie. In one of 16 channels they are so small that an epsilon shows."""
    conventions = CONVENTIONS[PRESETS[name].conventions]
    net = build_trainable_detector(config, conventions, norm=lambda channels, _: nn.BatchNorm2d(channels, momentum=1.0))
    state = {key: value for key, value in net.state_dict().items() if is_weight(key)}
    drawn = random_state({key: tuple(value.shape) for key, value in state.items()}, seed)
    for key in drawn:
        if key.endswith("conv3.norm.weight"):  # else a rounding grows a thousandfold on its way
            drawn[key] *= 6 / config.depth
    net.load_state_dict(drawn, strict=False)
    pixels = preprocess(photo, config, conventions).pixels
    with torch.no_grad():
        feature_map = net.train().backbone(pixels)
        corners = 100 * torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
        boxes = torch.cat([corners, corners + torch.tensor([30.0, 40.0])], dim=1)
        net.roi_heads.res5(pool_regions(feature_map, [boxes], conventions, cells=config.pooled_cells))
        for module in net.modules():
            if isinstance(module, NormedConv):
                module.weight[::16] *= 0.01
                module.norm.running_var.clamp_(min=0.1 * float(module.norm.running_var.mean()))
                module.norm.running_mean[::16] *= 0.01
                module.norm.running_var[::16] *= 1e-4
    return {family_names("milvlg-d2")[key]: value.clone() for key, value in state.items()}


@pytest.mark.parametrize("name", NETWORKS)
def test_true_sizes_are_those_of_detectron2_under_its_names(name: str, detectron2: None) -> None:
    config = CONFIGS[name]
    with torch.device("meta"):
        theirs = {key: tuple(value.shape) for key, value in official_model(name, config).state_dict().items()}
        ours = Detector(config, CONVENTIONS[PRESETS[name].conventions]).state_dict()
    width = 2048 + 256
    theirs |= {
        f"{ATTRIBUTES}obj_embed.weight": (1601, 256),
        f"{ATTRIBUTES}fc.0.weight": (512, width),
        f"{ATTRIBUTES}fc.0.bias": (512,),
        f"{ATTRIBUTES}attr_score.weight": (400, 512),
        f"{ATTRIBUTES}attr_score.bias": (400,),
    }
    names = family_names("milvlg-d2")
    assert {names[key]: tuple(value.shape) for key, value in ours.items()} == theirs
    assert (config.short_edge, config.long_edge, config.proposals_before_nms) == (600, 1000, 6000)


class Official(NamedTuple):
    """What MILVLG's script has of a photo; boxes of the kept regions in photo pixels, all else of the proposals."""

    pixels: Tensor
    feature_map: Tensor
    proposals: Tensor
    features: Tensor
    class_logits: Tensor
    attributes: Tensor
    rows: Tensor
    boxes: Tensor
    classes: Tensor
    scores: Tensor


@torch.inference_mode()
def official_regions(model: Any, weights: dict[str, Tensor], photo: np.ndarray, edges: tuple[int, int]) -> Official:
    scale = edges[0] / min(photo.shape[:2])
    if np.round(scale * max(photo.shape[:2])) > edges[1]:
        scale = edges[1] / max(photo.shape[:2])
    resized = cv2.resize(photo.astype(np.float32), None, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    images = model.preprocess_image([{"image": torch.from_numpy(resized).permute(2, 0, 1)}])
    maps = model.backbone(images.tensor)
    proposals, _ = model.proposal_generator(images, maps, None)
    boxes, heads = proposals[0].proposal_boxes, model.roi_heads
    features = heads._shared_roi_transform([maps["res4"]], [boxes]).mean(dim=(2, 3))
    predictions = heads.box_predictor(features)
    (found,), (rows,) = heads.box_predictor.inference(predictions, proposals)
    layers = {key.removeprefix(ATTRIBUTES): value for key, value in weights.items() if key.startswith(ATTRIBUTES)}
    embedded = layers["obj_embed.weight"][predictions[0].argmax(dim=1)]  # background among them
    hidden = functional.linear(torch.cat([features, embedded], dim=1), layers["fc.0.weight"], layers["fc.0.bias"])
    logits = functional.linear(hidden.relu(), layers["attr_score.weight"], layers["attr_score.bias"])
    return Official(
        images.tensor, maps["res4"], boxes.tensor, features, predictions[0], logits.softmax(dim=1), rows,
        found.pred_boxes.tensor / scale, found.pred_classes, found.scores,
    )  # fmt: skip


def assert_near(got: Tensor, want: Tensor, share: float = VALUES) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=share * float(want.abs().max()))


# The photo whole; with a long edge that rounds to its limit; with one that ends in a half.
@pytest.mark.parametrize("crop", [(180, 241), (137, 229), (64, 97)])
@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_are_those_of_detectron2(name: str, crop: tuple[int, int], detectron2: None, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    config, conventions = reduced(name), CONVENTIONS[PRESETS[name].conventions]
    height, width = crop
    with np.load(PHOTO) as arrays:
        photo = np.ascontiguousarray(arrays["photo"][:height, :width, ::-1])
    weights, model = official_weights(name, config, photo, SEED), official_model(name, config)
    model.load_state_dict({key: value for key, value in weights.items() if not key.startswith(ATTRIBUTES)})
    anchors = next(iter(model.proposal_generator.anchor_generator.cell_anchors))
    older = {CELL_ANCHORS: anchors, "pixel_mean": model.pixel_mean, "pixel_std": model.pixel_std}
    beside = older if crop == (180, 241) else {}
    torch.save({"model": {**weights, **beside}, "iteration": 1}, tmp_path / "bua-d2.pth")
    ours = build_detector(config, weights=str(tmp_path / "bua-d2.pth"), conventions=conventions)
    out = ours.head_outputs(photo)
    head = model.proposal_generator.rpn_head
    with torch.inference_mode():
        ranked, theirs_ranked = ours.network().rpn(out.feature_map), head([out.feature_map])
    for got, (want,) in zip(ranked, theirs_ranked, strict=True):
        assert_near(got, want)
    # A rounding decides between anchors of nearly equal objectness, so both rank the same numbers.
    head.forward = lambda maps: tuple([each] for each in ranked)
    for selection, threshold, iou in (("milvlg-d2", 0.05, 0.5), ("milvlg-d2-100", 0.0, 0.3)):
        predictor = model.roi_heads.box_predictor
        predictor.test_score_thresh, predictor.test_nms_thresh = threshold, iou
        want = official_regions(model, weights, photo, (config.short_edge, config.long_edge))
        assert_near(out.network_input.pixels, want.pixels)
        assert_near(out.feature_map, want.feature_map)
        distance = (out.proposals.boxes[:, None] - want.proposals[None]).abs().amax(dim=2)
        assert len(out.proposals.boxes) == len(want.proposals) == 80
        assert distance.amin(dim=0).max() <= PIXELS and distance.amin(dim=1).max() <= PIXELS
        theirs = distance.argmin(dim=1)  # of each of our proposals
        assert_near(out.regions.features, want.features[theirs], HEADS)
        assert_near(out.regions.class_logits, want.class_logits[theirs], HEADS)
        got = ours.postprocess(out, SELECTIONS[selection])
        pairs = list(zip(theirs[got.proposal_ids].tolist(), got.class_ids.tolist(), strict=True))
        wanted = list(zip(want.rows.tolist(), want.classes.tolist(), strict=True))
        assert sorted(pairs) == sorted(wanted) and len(set(pairs)) == len(pairs) > 20
        assert len({row for row, _ in pairs}) < len(pairs)  # a proposal gives a region for several classes
        inside = want.boxes.minimum(
            torch.tensor([width, height, width, height])
        )  # theirs may reach over a rounded edge
        at = [pairs.index(pair) for pair in wanted]
        best = want.attributes[want.rows].max(dim=1)
        assert got.attribute_ids is not None and got.attribute_scores is not None
        for mine, their, most in (
            (got.boxes, inside, PIXELS),
            (got.class_scores, want.scores, PROBABILITY),
            (got.attribute_scores, best.values, PROBABILITY),
        ):
            np.testing.assert_allclose(mine[at], their.numpy(), rtol=0, atol=most)
        np.testing.assert_array_equal(got.attribute_ids[at], best.indices.numpy())
        assert_near(torch.from_numpy(got.features[at]), want.features[want.rows], HEADS)
        assert (np.diff(got.class_scores) <= 0).all()
