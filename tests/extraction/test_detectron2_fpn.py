"""detectron2's FPN networks as detectors: the features of their box heads are those that detectron2 itself computes.

Needs detectron2, as test_detectron2_adapter.py says; without it all tests skip.
"""

import json
import pickle

import numpy as np
import pytest
import torch
from small_fpn import WIDTH, fpn_yaml
from with_detectron2 import rows_of, surely_detected

from roibeam.extraction.adapters.detectron2_adapter import build_detectron2_detector
from roibeam.extraction.network.conventions import SELECTIONS, SelectionPolicy

EVERYTHING = SelectionPolicy(min_score=0.0, min_regions=0, max_regions=10_000)


def assert_near(got, want):
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize("layer, module", [("fc6", "fc_relu1"), ("fc7", "fc_relu2")])
def test_features_are_what_detectron2_has_in_that_layer(fpn, noise_image, layer, module):
    """Of the proposals, all at once, in detectron2's own inference; and its detections are among our regions."""
    detector = fpn if layer == "fc6" else type(fpn)(fpn.model, fpn.cfg, layer=layer)
    seen = []
    box_head = detector.model.roi_heads.box_head
    hook = box_head.get_submodule(module).register_forward_hook(lambda _, inputs, output: seen.append(output))
    sure = surely_detected(detector, noise_image)
    hook.remove()
    outputs = detector.head_outputs(noise_image)
    assert len(seen) == 1 and outputs.regions.features.shape == seen[0].shape and seen[0].shape[1] == WIDTH
    assert float(seen[0].std()) > 0
    assert_near(outputs.regions.features, seen[0])
    assert rows_of(sure, detector.postprocess(outputs, EVERYTHING))


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


# Files of forerunners.


def detectron_names(network):
    """The weights under Detectron's names, as e2e_mask_rcnn_R-101-FPN_2x has them; statistics are not in such files."""
    found = {}
    ends = {2: 2, 3: 3, 4: 5, 5: 2}  # last block of a stage of ResNet-50
    heads = {
        "proposal_generator.rpn_head.conv": "conv_rpn_fpn2",
        "proposal_generator.rpn_head.objectness_logits": "rpn_cls_logits_fpn2",
        "proposal_generator.rpn_head.anchor_deltas": "rpn_bbox_pred_fpn2",
        "roi_heads.box_head.fc1": "fc6", "roi_heads.box_head.fc2": "fc7",
        "roi_heads.box_predictor.cls_score": "cls_score", "roi_heads.box_predictor.bbox_pred": "bbox_pred",
        "roi_heads.mask_head.mask_fcn1": "_[mask]_fcn1", "roi_heads.mask_head.deconv": "conv5_mask",
        "roi_heads.mask_head.predictor": "mask_fcn_logits", "backbone.bottom_up.stem.conv1": "conv1",
        "backbone.bottom_up.stem.conv1.norm": "res_conv1_bn",
    }  # fmt: skip
    for stage, last in ends.items():
        lateral = "" if stage == 5 else "_lateral"
        heads[f"backbone.fpn_lateral{stage}"] = f"fpn_inner_res{stage}_{last}_sum{lateral}"
        heads[f"backbone.fpn_output{stage}"] = f"fpn_res{stage}_{last}_sum"
        for block in range(last + 1):
            for layer, branch in {"shortcut": "1", "conv1": "2a", "conv2": "2b", "conv3": "2c"}.items():
                ours = f"backbone.bottom_up.res{stage}.{block}.{layer}"
                heads[ours], heads[f"{ours}.norm"] = (
                    f"res{stage}_{block}_branch{branch}", f"res{stage}_{block}_branch{branch}_bn",
                )  # fmt: skip
    for name, tensor in network.state_dict().items():
        module, _, kind = name.rpartition(".")
        if kind.startswith("running_"):
            continue
        array = tensor.numpy()
        if module.endswith("cls_score"):
            array = np.concatenate([array[-1:], array[:-1]])  # background first
        elif module.endswith(("bbox_pred", "predictor")):
            array = np.concatenate([np.ones_like(array[: 4 if module.endswith("bbox_pred") else 1]), array])
        end = {"weight": "s" if module.endswith("norm") else "w", "bias": "b"}[kind]
        found[f"{heads[module]}_{end}"] = array
    return found


def test_a_file_of_detectron_loads(fpn, tmp_path):
    """A pickle of Python 2's time with "blobs"; what trained it left momenta there."""
    twin = build_detectron2_detector(fpn.cfg, weights="random:1")
    for module in twin.model.modules():
        if hasattr(module, "running_var"):
            module.running_mean.zero_()
            module.running_var.fill_(1)
    blobs = detectron_names(twin.model)
    blobs["fc6_w_momentum"] = np.zeros_like(blobs["fc6_w"])
    path = tmp_path / "model_final.pkl"
    path.write_bytes(pickle.dumps({"blobs": blobs, "cfg": "TRAIN: {}"}, protocol=2))
    assert build_detectron2_detector(fpn.cfg, weights=str(path)).describe() == twin.describe()
    del blobs["fc7_b"]
    path.write_bytes(pickle.dumps({"blobs": blobs}, protocol=2))
    with pytest.raises(ValueError, match=r"1 missing: roi_heads\.box_head\.fc2\.bias"):
        build_detectron2_detector(fpn.cfg, weights=str(path))


def benchmark_names(network):
    """The weights under the names of maskrcnn-benchmark, which has no epsilon in its normalisations."""
    found = {}
    for name, tensor in network.state_dict().items():
        if "mask_head" in name:
            continue
        if name.endswith("norm.running_var"):
            tensor = tensor + 1e-5
        if "cls_score" in name:
            tensor = torch.cat([tensor[-1:], tensor[:-1]])
        if "bbox_pred" in name:
            tensor = torch.cat([torch.ones_like(tensor[:4]), tensor])
        name = name.replace("stem.conv1.norm", "stem.bn1")
        for stage in (2, 3, 4, 5):
            name = name.replace(f"fpn_lateral{stage}", f"fpn.fpn_inner{stage - 1}")
            name = name.replace(f"fpn_output{stage}", f"fpn.fpn_layer{stage - 1}")
            name = name.replace(f"bottom_up.res{stage}", f"bottom_up.layer{stage - 1}")
        for number in (1, 2, 3):
            name = name.replace(f"conv{number}.norm", f"bn{number}")
        for old, new in {
            "shortcut.norm": "downsample.1", "shortcut.weight": "downsample.0.weight", "bottom_up": "body",
            "proposal_generator.rpn_head.conv": "rpn.head.conv",
            "proposal_generator.rpn_head.objectness_logits": "rpn.head.cls_logits",
            "proposal_generator.rpn_head.anchor_deltas": "rpn.head.bbox_pred",
            "roi_heads.box_head.fc1": "roi_heads.box.feature_extractor.fc6",
            "roi_heads.box_head.fc2": "roi_heads.box.feature_extractor.fc7", "box_predictor": "box.predictor",
        }.items():  # fmt: skip
            name = name.replace(old, new)
        found[f"module.{name}"] = tensor
    return found


def test_a_file_of_maskrcnn_benchmark_loads(detectron2, tmp_path, noise_image):
    config = fpn_yaml(tmp_path, ("MASK_ON: true", "MASK_ON: false"))
    wanted = build_detectron2_detector(config, weights="random:3")
    tensors = benchmark_names(wanted.model)
    tensors["module.rpn.anchor_generator.cell_anchors.0"] = torch.zeros(3, 4)
    tensors["module.roi_heads.box.predictor.attr_score.weight"] = torch.zeros(3, 4)
    path = tmp_path / "detectron_model.pth"
    torch.save({"model": tensors, "iteration": 7}, path)
    got = build_detectron2_detector(config, weights=str(path))
    boxes = [np.array([[0, 0, 50, 60], [20, 10, 160, 120]], np.float32)]
    (ours,), (theirs,) = got([noise_image], boxes=boxes), wanted([noise_image], boxes=boxes)
    assert_near(ours.features, theirs.features)
    assert_near(ours.class_probabilities, theirs.class_probabilities)


@pytest.mark.slow
@pytest.mark.parametrize("name, width, classes", [("mask-rcnn-r101-fpn", 1024, 80), ("pythia-x152-fpn", 2048, 1600)])
def test_the_published_networks_have_the_published_widths(detectron2, name, width, classes):
    detector = build_detectron2_detector(name, weights="random:1")
    assert (detector.feature_dim, detector.num_classes) == (width, classes)
    detector.cfg.INPUT.MIN_SIZE_TEST, detector.cfg.INPUT.MAX_SIZE_TEST = 96, 160  # no width depends on them
    image = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    (regions,) = detector([image], boxes=[np.array([[0, 0, 50, 60]], np.float32)])
    assert regions.features.shape == (1, width) and np.isfinite(regions.features).all()
