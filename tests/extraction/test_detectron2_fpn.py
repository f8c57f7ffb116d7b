"""detectron2's FPN networks as detectors: the features of their box heads are those that detectron2 itself computes.

Needs detectron2, as test_detectron2_adapter.py says; without it all tests skip.
"""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch

from roibeam.extraction.detectron2.adapter import build_detectron2_detector
from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.network.selection_policy import SELECTIONS, SelectionPolicy
from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.record.region_record import RegionRecord

EVERYTHING = SelectionPolicy(min_score=0.0, min_regions=0, max_regions=10_000)
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


def fpn_yaml(folder, *changes):
    """A reduced Mask R-CNN R50-FPN; `changes` are (old, new) texts."""
    text = FPN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    config = folder / "fpn.yaml"
    config.write_text(text)
    return config


@pytest.fixture(scope="module")
def fpn(detectron2, tmp_path_factory):
    """Shared: read only."""
    torch.set_num_threads(1)
    return build_detectron2_detector(fpn_yaml(tmp_path_factory.mktemp("fpn")), weights="random:1")


def assert_near(got, want):
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize("layer, module", [("fc6", "fc_relu1"), ("fc7", "fc_relu2")])
def test_features_are_what_detectron2_has_in_that_layer(fpn, noise_image, layer, module):
    """Of the proposals, all at once, in detectron2's own inference; and its detections are among our regions."""
    from detectron2.data.transforms import ResizeShortestEdge

    detector = fpn if layer == "fc6" else type(fpn)(fpn.model, fpn.cfg, layer=layer)
    seen = []
    hook = detector.model.roi_heads.box_head.get_submodule(module).register_forward_hook(
        lambda _, inputs, output: seen.append(output)
    )
    resize = ResizeShortestEdge([96] * 2, 160).get_transform(noise_image)
    pixels = torch.as_tensor(resize.apply_image(noise_image).astype("float32").transpose(2, 0, 1))
    height, width = noise_image.shape[:2]
    with torch.no_grad():
        detected = detector.model([{"image": pixels, "height": height, "width": width}])[0]["instances"]
    hook.remove()
    outputs = detector.head_outputs(noise_image)
    assert len(seen) == 1 and outputs.regions.features.shape == seen[0].shape and seen[0].shape[1] == WIDTH
    assert float(seen[0].std()) > 0
    assert_near(outputs.regions.features, seen[0])
    regions = detector.postprocess(outputs, EVERYTHING)
    sure = detected[detected.scores > 0.5]  # then it is its proposal's best class, which is what our regions keep
    assert len(sure) >= 3
    for box, score, class_id in zip(sure.pred_boxes.tensor, sure.scores, sure.pred_classes, strict=True):
        near = np.abs(regions.regressed_boxes - box.numpy()).max(axis=1) <= 1e-2
        near &= (np.abs(regions.class_scores - float(score)) <= 1e-4) & (regions.class_ids == int(class_id))
        assert near.any()


def test_engine_and_given_boxes(fpn, photo_file, noise_image):
    photo = ImageRef("a", str(photo_file("input")))
    (record,) = extract_regions([photo], fpn)
    assert isinstance(record, RegionRecord)
    assert record.features.shape == (len(record.boxes), WIDTH) and len(record.boxes) >= 10
    height, width = noise_image.shape[:2]
    corner = np.random.default_rng(0).uniform(0, 90, (37, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + np.geomspace(4, 90, 37)[:, None]], axis=1).astype(np.float32)
    boxes[0] = [0, 0, width, height]
    (many,) = fpn([noise_image], boxes=[boxes], whole_image=True)
    np.testing.assert_array_equal(many.image_feature, many.features[0])
    (few,) = fpn([noise_image], boxes=[boxes[5:8]])
    np.testing.assert_array_equal(few.features, many.features[5:8])  # whatever else is there, bit for bit
    (none,) = fpn([noise_image], boxes=[np.empty((0, 4), np.float32)])
    assert none.features.shape == (0, WIDTH) and none.class_probabilities.shape == (0, 6)


@pytest.mark.parametrize("shape", [(1, 1), (4, 2000), (700, 3)])
def test_odd_photos_give_regions(fpn, shape):
    (regions,) = fpn([np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)])
    assert len(regions.boxes) and np.isfinite(regions.features).all()
    assert (regions.boxes[:, 2:] <= [shape[1], shape[0]]).all() and (regions.boxes >= 0).all()


def test_the_layer_is_part_of_what_features_mean(fpn):
    other = type(fpn)(fpn.model, fpn.cfg, fpn.selection, layer="fc7")
    described, others = fpn.describe(), other.describe()
    assert json.loads(json.dumps(described)) == described
    assert {key for key in described if described[key] != others[key]} == {"conventions"}
    assert (described["conventions"]["region_feature"], others["conventions"]["region_feature"]) == ("fc6", "fc7")
    assert described["feature_dim"] == fpn.feature_dim == WIDTH


def test_regions_of_visualberts_statements(fpn, noise_image):
    """The best 144 of 150 proposals, where there are so many: here all of them, best first."""
    selection = SELECTIONS["visualbert-nlvr2"]
    (regions,) = type(fpn)(fpn.model, fpn.cfg, selection)([noise_image])
    assert (selection.min_regions, selection.max_regions) == (144, 144)
    assert 10 <= len(regions.boxes) <= 60
    np.testing.assert_array_equal(regions.boxes, regions.proposal_boxes)


def test_a_zoo_file_loads_with_its_anchors_of_all_levels(fpn, tmp_path):
    network = fpn.model
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    for level, anchors in enumerate(network.proposal_generator.anchor_generator.cell_anchors):
        arrays[f"proposal_generator.anchor_generator.cell_anchors.{level}"] = anchors.numpy()
    path = tmp_path / "model_final.pkl"
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "Detectron2 Model Zoo"}))
    assert build_detectron2_detector(fpn.cfg, weights=str(path)).describe() == fpn.describe()
    arrays["proposal_generator.anchor_generator.cell_anchors.3"][0, 0] += 1
    path.write_bytes(pickle.dumps({"model": arrays}))
    with pytest.raises(ValueError, match=r"cell_anchors\.3 has .* where the config gives"):
        build_detectron2_detector(fpn.cfg, weights=str(path))


@pytest.mark.parametrize(
    "changes, layer, words",
    [
        ([], "fc8", "layer 'fc8': the box head of this network has fc6, fc7"),
        ([("NUM_FC: 2", "NUM_FC: 1")], "fc7", "layer 'fc7': the box head of this network has fc6"),
        ([("NUM_FC: 2", "NUM_CONV: 1, NUM_FC: 0")], None, "layer 'fc6': the box head of this network has none"),
        ([("StandardROIHeads", "CascadeROIHeads"), ("NUM_FC", "CLS_AGNOSTIC_BBOX_REG: true, NUM_FC")], None,
         "MODEL.ROI_BOX_HEAD.NAME gives a ModuleList; the adapter takes FastRCNNConvFCHead"),
    ],
)  # fmt: skip
def test_heads_and_layers_of_another_kind_are_refused(detectron2, tmp_path, changes, layer, words):
    with pytest.raises(ValueError, match=words):
        build_detectron2_detector(fpn_yaml(tmp_path, *changes), weights="random:1", layer=layer)
