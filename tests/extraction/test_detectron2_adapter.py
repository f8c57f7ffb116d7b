"""detectron2 networks as detectors, and the Visual Genome network in detectron2 against ours.

Needs detectron2: installed, or in the folders of ROIBEAM_DETECTRON2_PATH (a checkout, and a folder with what it
imports; see docs/detectors.md). Without it all but the first tests skip.
"""

import ast
import dataclasses
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_files import Hostile
from with_detectron2 import rows_of, surely_detected

import roibeam.extraction
from roibeam.extraction.adapters.detectron2_adapter import Detectron2Detector, build_detectron2_detector
from roibeam.extraction.adapters.detectron2_network import check_network, read_detectron2_config
from roibeam.extraction.adapters.detectron2_vg import register_vg_detector, vg_config
from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import SELECTIONS, SelectionPolicy
from roibeam.extraction.network.roi_heads import RegionOutputs
from roibeam.extraction.network.state import CELL_ANCHORS, is_weight
from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.record.region_record import RegionRecord

PHOTOS = ["input", "COCO_train2014_000000131486", "COCO_train2014_000000387267"]
CASES = [("small", name) for name in PHOTOS] + [pytest.param("full", "input", marks=pytest.mark.slow)]
EVERYTHING = SelectionPolicy(min_score=0.0, min_regions=0, max_regions=10_000)
HEADS = [field.name for field in dataclasses.fields(RegionOutputs)]


def test_nothing_imports_detectron2_before_it_is_asked_to():
    for path in Path(roibeam.extraction.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "detectron2" for name in names), path.name


def test_without_detectron2_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "detectron2", None)
    for call in (vg_config, register_vg_detector, lambda: build_detectron2_detector("some.yaml", weights="random:1")):
        with pytest.raises(ValueError, match=r"detectron2 cannot be imported .* checkout .*pip install") as error:
            call()
        assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def small_vg(detectron2):
    """Shared: read only."""
    torch.set_num_threads(1)
    return build_detectron2_detector(vg_config(CONFIGS["small"]), weights="random:1")


def assert_near(got, want):
    """|a - b| <= 1e-4 max|b| + 1e-3 |b|: goldens/detector/README.md, Tolerances."""
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))


def assert_same_proposals(got, want):
    assert len(got) == len(want)
    distance = np.abs(np.asarray(got)[None] - np.asarray(want)[:, None]).max(axis=2).min(axis=1)
    assert (distance <= 0.05).mean() >= 0.99


# The Visual Genome network.


@pytest.mark.parametrize("size, keys", [("small", "hf_frcnn_keys_small"), ("vg-r101-c4", "detectron2_keys")])
def test_vg_network_has_the_published_names_and_shapes(detectron2, golden_dir, size, keys):
    from detectron2.modeling import build_model

    register_vg_detector()
    register_vg_detector()  # a second time changes nothing
    cfg = vg_config(CONFIGS[size])
    cfg.MODEL.DEVICE = "cpu"
    want = json.loads((golden_dir / f"{keys}.json").read_text())
    got = {name: list(tensor.shape) for name, tensor in build_model(cfg).state_dict().items()}
    assert got == {name: shape for name, shape in want.items() if is_weight(name)}


def test_vg_config_says_what_the_golden_config_says(detectron2, golden_dir):
    """Everything that inference uses. (The golden's "BN" and "res5_dilation: 1" are not what its code does.)"""
    cfg, published = vg_config(), json.loads((golden_dir / "config_full.json").read_text())
    uses = {
        "input": ("min_size_test", "max_size_test"),
        "resnets": ("depth", "out_features", "num_groups", "width_per_group", "stem_out_channels", "stride_in_1x1"),
        "anchor_generator": ("sizes", "aspect_ratios", "offset"),
        "proposal_generator": ("min_size",),
        "rpn": ("in_features", "nms_thresh", "pre_nms_topk_test", "post_nms_topk_test", "bbox_reg_weights"),
        "roi_heads": ("in_features", "num_classes", "score_thresh_test"),
        "roi_box_head": ("cls_agnostic_bbox_reg", "bbox_reg_weights", "pooler_resolution"),
    }
    for section, names in uses.items():
        node = cfg.INPUT if section == "input" else cfg.MODEL[section.upper()]
        got = json.loads(json.dumps({name: node[name.upper()] for name in names}))
        assert got == {name: published[section][name] for name in names}, section
    assert ("BGR", published["model"]["pixel_mean"]) == (cfg.INPUT.FORMAT, cfg.MODEL.PIXEL_MEAN)
    assert published["roi_box_head"]["num_attrs"] == cfg.MODEL.ROI_BOX_HEAD.NUM_ATTRIBUTES


@pytest.mark.parametrize("size, name", CASES)
def test_same_input_gives_our_maps_proposals_and_regions(golden_dir, photo, small_detector, small_vg, size, name):
    """One photo through our network and detectron2's, fed with the same input."""
    from detectron2.structures import ImageList

    ours, theirs = small_detector, small_vg
    if size == "full":
        # All there is of the true size but the number of proposals, each of which is more arithmetic of the same kind.
        config = dataclasses.replace(CONFIGS["vg-r101-c4"], proposals_after_nms=48)
        ours = build_detector(config, weights="random:1", conventions="hf")
        theirs = build_detectron2_detector(vg_config(config), weights="random:1")
    with np.load(golden_dir / f"{size}_{name}.npz") as golden:
        given = torch.from_numpy(golden["given_boxes"][0])
    with torch.inference_mode():
        made = ours.head_outputs(photo(name))
        source, rpn = made.network_input, theirs.model.proposal_generator
        maps = theirs.model.backbone(source.pixels)
        said = (maps["res4"], *(each[0] for each in rpn.rpn_head([maps["res4"]])))
        our_map = made.feature_map
        for got, want in zip(said, (our_map, *ours.proposal_generator.rpn_head(our_map)), strict=True):
            assert_near(got, want)
        (proposals,), _ = rpn(ImageList(source.pixels, [source.input_hw]), maps, None)
        assert_same_proposals(proposals.proposal_boxes.tensor, made.proposals.boxes)
        assert_near(proposals.objectness_logits, made.proposals.objectness)
        regions = theirs.describe_boxes([maps["res4"]], proposals.proposal_boxes.tensor)
        of_given, our_given = theirs.describe_boxes([maps["res4"]], given), ours.roi_heads(our_map, given)
    for head in HEADS:
        assert_near(getattr(of_given, head), getattr(our_given, head))
        assert_near(getattr(regions, head), getattr(made.regions, head))


@pytest.mark.parametrize("edges", [(800, 1333), (600, 1000)])
@pytest.mark.parametrize("name", PHOTOS)
def test_resize_is_that_of_detectron2(small_vg, golden_dir, photo, name, edges):
    cfg = small_vg.cfg.clone()
    cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST = edges
    pixels, _ = Detectron2Detector(small_vg.model, cfg).resize(photo(name))
    got = small_vg.model.preprocess_image([{"image": pixels}]).tensor[0]
    key = f"d2_{edges[0]}"
    with np.load(golden_dir / f"small_{name}.npz") as golden:
        assert list(got.shape) == golden[f"{key}_shape"].tolist()
        np.testing.assert_allclose(got.double().sum((1, 2)), golden[f"{key}_sum"], rtol=1e-6)
        np.testing.assert_allclose(got.double().abs().sum((1, 2)), golden[f"{key}_abs_sum"], rtol=1e-6)
        assert_near(got[:, 32:64, 48:80], golden[f"{key}_crop"])


@pytest.mark.parametrize("policy", ["butd-10-100", "hf-36"])
def test_end_to_end_it_gives_the_regions_of_our_conventions_d2(small_vg, photo, policy):
    ours = build_detector("small", weights="random:1", conventions="d2", selection=policy)
    theirs = Detectron2Detector(small_vg.model, small_vg.cfg, SELECTIONS[policy])
    image = photo(PHOTOS[0])
    (want,), (got,) = ours([image], whole_image=True), theirs([image], whole_image=True)
    assert len(got.boxes) >= 10
    for field in dataclasses.fields(got):
        value, wanted = getattr(got, field.name), getattr(want, field.name)
        assert value.dtype == wanted.dtype, field.name
        if value.dtype == np.float32:
            assert_near(value, wanted)
        else:
            np.testing.assert_array_equal(value, wanted, err_msg=field.name)


# Any C4 network.


def stock_yaml(folder, *lines):
    """A reduced R50-C4 as detectron2 has it: ROIAlignV2, a res5 that halves, no attributes; one config over another."""
    (folder / "base.yaml").write_text(
        "MODEL:\n"
        "  META_ARCHITECTURE: GeneralizedRCNN\n"
        "  RESNETS: {DEPTH: 50, STEM_OUT_CHANNELS: 8, WIDTH_PER_GROUP: 8, RES2_OUT_CHANNELS: 32}\n"
        "  RPN: {PRE_NMS_TOPK_TEST: 500, POST_NMS_TOPK_TEST: 50}\n"
        "  ROI_HEADS: {NAME: Res5ROIHeads, NUM_CLASSES: 5, SCORE_THRESH_TEST: 0.5}\n"
        "  ROI_BOX_HEAD: {POOLER_TYPE: ROIAlignV2, POOLER_RESOLUTION: 14}\n"
        "INPUT: {MIN_SIZE_TEST: 96, MAX_SIZE_TEST: 160}\n"
        "VERSION: 2\n"
    )
    config = folder / "config.yaml"
    config.write_text("\n".join(("_BASE_: base.yaml", *lines, "")))
    return config


@pytest.fixture(scope="module")
def stock(detectron2, tmp_path_factory):
    """Shared: read only."""
    torch.set_num_threads(1)
    return build_detectron2_detector(stock_yaml(tmp_path_factory.mktemp("stock")), weights="random:1")


STOCK_KINDS = {
    "rgb": ["INPUT: {FORMAT: RGB}"],
    "class-agnostic": ["MODEL: {ROI_BOX_HEAD: {CLS_AGNOSTIC_BBOX_REG: true}}"],
    "batch-norm": ["MODEL: {RESNETS: {NORM: BN}}"],
    "vg": None,
}


@pytest.mark.parametrize("kind", STOCK_KINDS)
def test_regions_hold_what_detectron2_itself_detects(small_vg, tmp_path, noise_image, kind):
    detector = small_vg
    if kind != "vg":
        detector = build_detectron2_detector(stock_yaml(tmp_path, *STOCK_KINDS[kind]), weights="random:1")
    sure = surely_detected(detector, noise_image)
    outputs = detector.head_outputs(noise_image)
    regions = detector.postprocess(outputs, EVERYTHING)
    assert len(regions.boxes) == len(outputs.proposals.boxes)
    rows = rows_of(sure, regions)
    if kind == "vg":
        np.testing.assert_array_equal(regions.attribute_ids[rows], sure.attr_classes)
        assert_near(regions.attribute_scores[rows], sure.attr_scores)
        assert_near(regions.features[rows], sure.features)


@pytest.fixture(scope="module", params=["stock", "small_vg", "fpn"])
def network(request):
    """Shared: read only."""
    return request.getfixturevalue(request.param)


def test_engine_runs_it_unchanged(network, photo_file):
    photo = ImageRef("a", str(photo_file("input")))
    with_boxes = dataclasses.replace(photo, boxes=((0.0, 0.0, 50.0, 60.0), (20.0, 10.0, 640.0, 480.0)))
    record, given = extract_regions([photo, with_boxes], network)
    assert isinstance(given, RegionRecord) and given.boxes.tolist() == [list(box) for box in with_boxes.boxes]
    assert isinstance(record, RegionRecord)
    assert record.features.shape == (len(record.boxes), network.feature_dim) and len(record.boxes) >= 10
    assert np.asarray(record.class_distribution).shape == (len(record.boxes), network.num_classes + 1)
    assert (record.attribute_ids is not None) is (network.num_attributes > 0)


def test_given_boxes_and_whole_image(network, noise_image):
    height, width = noise_image.shape[:2]
    corner = np.random.default_rng(0).uniform(0, 90, (37, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + np.geomspace(4, 90, 37)[:, None]], axis=1).astype(np.float32)
    boxes[0] = [0, 0, width, height]
    (many,) = network([noise_image], boxes=[boxes], whole_image=True)
    np.testing.assert_array_equal(many.boxes, np.minimum(boxes, [width, height, width, height]))
    np.testing.assert_array_equal(many.image_feature, many.features[0])
    _, (few,) = network([noise_image]), network([noise_image], boxes=[boxes[5:8]])
    np.testing.assert_array_equal(few.features, many.features[5:8])  # whatever else is there, bit for bit
    (none,) = network([noise_image], boxes=[np.empty((0, 4), np.float32)])
    assert none.features.shape == (0, network.feature_dim)
    assert none.class_probabilities.shape == (0, network.num_classes + 1)
    proposed, given = network([noise_image, noise_image], boxes=[None, boxes[:2]])
    assert len(proposed.boxes) >= 10 and len(given.boxes) == 2


@pytest.mark.parametrize("shape", [(1, 1), (4, 2000), (700, 3)])
def test_odd_photos_give_regions(network, shape):
    (regions,) = network([np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)])
    assert len(regions.boxes) and np.isfinite(regions.features).all()
    assert (regions.boxes[:, 2:] <= [shape[1], shape[0]]).all() and (regions.boxes >= 0).all()


def test_other_images_and_boxes_are_refused(stock, noise_image):
    """By the checks of our own detector."""
    with pytest.raises(ValueError, match=r"got \(120, 160, 3\) float32"):
        stock([noise_image.astype(np.float32)])
    with pytest.raises(ValueError, match="given box 1 is"):
        stock([noise_image], boxes=[np.array([[0, 0, 1, 1], [3, 0, 1, 1.0]])])


def test_description_names_everything_that_features_depend_on(stock, small_vg, tmp_path):
    described = stock.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["conventions"]["name"].startswith("detectron2:")
    assert (described["feature_dim"], described["num_classes"], described["num_attributes"]) == (256, 5, 0)
    assert described["config"]["MODEL"]["ROI_BOX_HEAD"]["POOLER_TYPE"] == "ROIAlignV2"  # of the base file

    def differs(*lines, weights="random:1", selection="butd-10-100"):
        other = build_detectron2_detector(stock_yaml(tmp_path, *lines), weights=weights, selection=selection).describe()
        return {key for key in described if described[key] != other[key]}

    # Another place to run, another path of the weights, training settings: the same features.
    assert differs("MODEL: {DEVICE: cuda, WEIGHTS: /somewhere/else.pkl}", "SOLVER: {BASE_LR: 0.5}") == set()
    assert differs("INPUT: {MIN_SIZE_TEST: 100}") == {"config"}
    assert differs(weights="random:2") == {"weights"}
    assert differs(selection="butd-36") == {"selection"}
    ours = build_detector("small", weights="random:1").describe()
    assert small_vg.describe()["weights"] == ours["weights"]  # one digest, whatever network they are loaded into


# Files.


SCORE_BIAS = "roi_heads.box_predictor.cls_score.bias"


def weights_of(detector):
    return {name: tensor.clone() for name, tensor in detector.model.state_dict().items()}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".pkl"])
def test_weight_files_load(stock, tmp_path, suffix):
    tensors, path = weights_of(stock), tmp_path / f"model_final{suffix}"
    # What older detectron2 files hold beside the weights.
    tensors["pixel_mean"] = stock.model.pixel_mean.clone()
    tensors[CELL_ANCHORS] = next(iter(stock.model.proposal_generator.anchor_generator.cell_anchors)).clone()
    if suffix == ".safetensors":
        save_file(tensors, path)
    elif suffix == ".pth":
        torch.save({"model": tensors, "iteration": 3}, path)
    else:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        path.write_bytes(pickle.dumps({"model": arrays, "__author__": "a zoo", "matching_heuristics": False}))
    loaded = build_detectron2_detector(stock.cfg, weights=str(path))
    assert loaded.describe() == stock.describe()


def test_one_published_file_loads_into_both_networks(small_vg, tmp_path):
    """As the files of airsplay/py-bottom-up-attention: detectron2's names, arrays in a pickle."""
    arrays, path = {name: tensor.numpy() for name, tensor in weights_of(small_vg).items()}, tmp_path / "vg.pkl"
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "somebody"}))
    ours = build_detector("small", weights=str(path), conventions="d2").describe()
    theirs = build_detectron2_detector(vg_config(CONFIGS["small"]), weights=str(path)).describe()
    assert theirs == small_vg.describe() and theirs["weights"] == ours["weights"]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: t.pop(SCORE_BIAS), f"1 missing: {SCORE_BIAS}"),
        (lambda t: t.update({"roi_heads.mask_head.x": torch.zeros(2)}), "1 extra: roi_heads.mask_head.x"),
        (lambda t: t.update({"pixel_mean": torch.zeros(3, 1, 1)}), "pixel_mean has 0.0000 where the config gives 123"),
        (lambda t: t.update({CELL_ANCHORS: torch.zeros(15, 4)}), r"cell_anchors.0 has 0.0000 where the config gives"),
        (lambda t: t.update({CELL_ANCHORS: torch.zeros(12, 4)}), r"cell_anchors.0 \(12, 4\), where .* \(15, 4\)"),
        (lambda t: t[SCORE_BIAS].fill_(torch.nan), "1 non-finite"),
    ],
)
def test_weights_that_are_not_the_networks_are_refused(stock, tmp_path, change, words):
    tensors, path = weights_of(stock), tmp_path / "model.pth"
    change(tensors)
    torch.save(tensors, path)
    with pytest.raises(ValueError, match=words):
        build_detectron2_detector(stock.cfg, weights=str(path))


def test_a_hostile_pickle_is_refused_and_runs_nothing(stock, tmp_path):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps({"model": Hostile(tmp_path / "ran")}))
    with pytest.raises(ValueError, match=r"model\.pkl"):
        build_detectron2_detector(stock.cfg, weights=str(path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text, words",
    [
        ("MODEL: !!python/object/apply:os.mkdir [{folder}/ran]", "could not determine a constructor"),
        ("MODEL: &a {{DEPTH: 1}}\nINPUT: *a", "uses YAML aliases"),
        ("_BASE_: https://127.0.0.1/base.yaml", "is not a file here"),
        ("_BASE_: other.yaml", "other.yaml is not a file here"),
        ("_BASE_: config.yaml", "_BASE_ names itself"),
        ("MODEL: {{RESNETS: {{DEPHT: 50}}}}", "Non-existent config key: MODEL.RESNETS.DEPHT"),
        ("MODEL: {{RESNETS: {{DEPTH: fifty}}}}", "Type mismatch"),
        ("VERSION: 1", "config version 1; this detectron2 has 2"),
        ("MODEL: [", "while parsing"),
        ("MODEL: {{ROI_BOX_HEAD: {{NUM_FC: 1000}}}}", "MODEL.ROI_BOX_HEAD.NUM_FC is 1,000; at most 100"),
        ("MODEL: {{ANCHOR_GENERATOR: {{SIZES: [[" + "32, " * 101 + "]]}}}}", "GENERATOR.SIZES has 101 entries"),
        ("INPUT: {{MAX_SIZE_TEST: 100000}}", "INPUT.MAX_SIZE_TEST is 100,000; at most 16,384"),
        ("MODEL: " + "[" * 60_000, "nests more than 50 values in one another"),
        ("MODEL: " + "1" * 2**16, "config.yaml has over 65,536 bytes"),
        ('VERSION: "\\e[2J"', r"config version \\x1b\[2J; this"),
    ],
)
def test_configs_are_plain_local_yaml(detectron2, tmp_path, text, words):
    path = tmp_path / "config.yaml"
    path.write_text(text.format(folder=tmp_path))
    with pytest.raises(ValueError, match=words) as error:
        read_detectron2_config(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "lines, words",
    [
        (["MODEL: {META_ARCHITECTURE: ProposalNetwork}"], "gives a ProposalNetwork; .* GeneralizedRCNN"),
        (["MODEL: {META_ARCHITECTURE: NoSuchNet}"], "cannot build .* No object named 'NoSuchNet'"),
        (["MODEL: {ROI_HEADS: {NAME: CascadeROIHeads}}"], "the adapter takes|cannot build"),
        (["MODEL: {PROPOSAL_GENERATOR: {NAME: PrecomputedProposals}}"], "PROPOSAL_GENERATOR.NAME gives a NoneType"),
        # The release 0.6 has no such option.
        (["MODEL: {ROI_BOX_HEAD: {USE_SIGMOID_CE: true}}"], r"sigmoid|config key: MODEL\.ROI_BOX_HEAD\.USE_SIGMOID_CE"),
        (["MODEL: {ROI_HEADS: {NAME: VGRes5ROIHeads}}"], "NUM_ATTRIBUTES is 0"),
        (["INPUT: {FORMAT: L}"], "INPUT.FORMAT is 'L'"),
        (["MODEL: {ROI_HEADS: {NUM_CLASSES: 900000}}"], r"cannot build .*it has 1,\d+,\d+,\d+ weights; .* at most 1,"),
    ],
)
def test_networks_of_another_kind_are_refused(detectron2, tmp_path, lines, words):
    with pytest.raises(ValueError, match=words):
        build_detectron2_detector(stock_yaml(tmp_path, *lines), weights="random:1")


def test_class_scores_by_sigmoid_are_refused(detectron2, tmp_path):
    detector = build_detectron2_detector(stock_yaml(tmp_path), weights="random:1")
    check_network(detector.model, detector.cfg)
    detector.model.roi_heads.box_predictor.use_sigmoid_ce = True
    with pytest.raises(ValueError, match="class scores by sigmoid"):
        check_network(detector.model, detector.cfg)
