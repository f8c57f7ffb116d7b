"""The published families: names, recognition, what each becomes in a detector; the ResNet alone; anchors in files."""

import json
import logging
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_networks import TINY, with_counters
from torch import Tensor

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.state import CELL_ANCHORS, random_state, weights_digest
from roibeam.extraction.weights.families import family_names, name_tables, name_weights
from roibeam.extraction.weights.loading import load_weights, part_state

RPN, HEAD = "proposal_generator.rpn_head.", "roi_heads.box_predictor."
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    """A network in Hugging Face's names and layout, without anchors."""
    shapes = {name: tuple(tensor.shape) for name, tensor in Detector(TINY).state_dict().items()}
    return random_state(shapes, seed=5)


def loaded(path: Path, conventions: str = "hf") -> Detector:
    detector = Detector(TINY, CONVENTIONS[conventions])
    load_weights(str(path), detector)
    return detector


def as_milvlg(state: State) -> State:
    """What MILVLG's file would hold, by the rules of the reference turned round and written out once more."""
    old = dict(state)
    for name in ("cls_score.weight", "cls_score.bias", "cls_embedding.weight", "attr_score.weight", "attr_score.bias"):
        old[HEAD + name] = torch.cat([state[HEAD + name][-1:], state[HEAD + name][:-1]])
    for kind in ("weight", "bias"):
        deltas = state[f"{HEAD}bbox_pred.{kind}"].clone()
        for k, factor in enumerate((10, 10, 5, 5)):
            deltas[k::4] /= factor
        old[f"{HEAD}bbox_pred.{kind}"] = torch.cat([torch.randn_like(deltas[:4]), deltas])
        logits = state[f"{RPN}objectness_logits.{kind}"]
        old[f"{RPN}objectness_logits.{kind}"] = torch.cat([torch.zeros_like(logits), logits])
    renamed = {"cls_embedding": "cls_embed", "fc_attr": "attr_linear1", "attr_score": "attr_linear2"}
    for ours, theirs in renamed.items():
        old = {name.replace(f"{HEAD}{ours}.", f"{HEAD}{theirs}."): tensor for name, tensor in old.items()}
    return old


def to_ratio_major(state: State) -> State:
    """MILVLG's file with its anchors in Caffe's order: ratio * 4 + size instead of size * 3 + ratio."""
    order = [size * 3 + ratio for ratio in range(3) for size in range(4)]
    moved = dict(state)
    for kind in ("weight", "bias"):
        for name, rows in (
            (f"{RPN}objectness_logits.{kind}", [*order, *(12 + anchor for anchor in order)]),
            (f"{RPN}anchor_deltas.{kind}", [4 * anchor + k for anchor in order for k in range(4)]),
        ):
            moved[name] = state[name][rows]
    return moved


# lib/rpn/generate_anchors.py of py-faster-rcnn with scales 4 8 16 32: x1 y1 x2 y2, the last pixel inside.
CAFFE_ANCHORS = torch.tensor(
    [
        [-38, -16, 53, 31], [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
        [-24, -24, 39, 39], [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
        [-14, -36, 29, 51], [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
    ],
    dtype=torch.float32,
)  # fmt: skip


@pytest.mark.parametrize(
    "keys, family, naming",
    [("hf_frcnn_keys", "hf", "ours"), ("hf_frcnn_keys_small", "hf", "ours"), ("detectron2_keys", "detectron2", "ours"),
     ("resnet101_vgbua_keys", "vlbert", "vlbert")],
)  # fmt: skip
def test_published_key_lists_are_known_whole(golden_dir: Path, keys: str, family: str, naming: str) -> None:
    shapes: dict[str, list[int]] = json.loads((golden_dir / f"{keys}.json").read_text())
    published = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    named = name_weights(published, "weights x")
    weights = [name for name in shapes if not name.endswith("num_batches_tracked")]
    assert named.family.name == family and len(named.tensors) == len(weights)
    table, back = name_tables()[naming], family_names(naming)
    assert [back[table[name]] for name in weights] == weights
    for name in weights:
        assert list(named.tensors[table[name]].shape) == shapes[name]  # type: ignore[attr-defined]
    # All families of one ResNet-101 have the same ResNet.
    other = json.loads((golden_dir / "hf_frcnn_keys.json").read_text())
    if "small" not in keys:
        resnet = [name for name in table.values() if name.startswith(("backbone.", "roi_heads.res5."))]
        assert sum(back[name] in shapes for name in resnet) == sum(name in other for name in resnet) == 520


@pytest.mark.parametrize(
    "caffe, ours",
    [
        ("conv1.weight", "backbone.stem.conv1.weight"),
        ("bn_conv1.running_var", "backbone.stem.conv1.norm.running_var"),
        ("scale_conv1.bias", "backbone.stem.conv1.norm.bias"),
        ("res2a_branch1.weight", "backbone.res2.0.shortcut.weight"),
        ("bn2a_branch1.running_mean", "backbone.res2.0.shortcut.norm.running_mean"),
        ("res2c_branch2b.weight", "backbone.res2.2.conv2.weight"),
        ("scale3b3_branch2c.weight", "backbone.res3.3.conv3.norm.weight"),
        ("res4b22_branch2a.weight", "backbone.res4.22.conv1.weight"),
        ("bn5c_branch2c.running_var", "roi_heads.res5.2.conv3.norm.running_var"),
        ("rpn_conv/3x3.bias", f"{RPN}conv.bias"),
        ("rpn_cls_score.weight", f"{RPN}objectness_logits.weight"),
        ("rpn_bbox_pred.weight", f"{RPN}anchor_deltas.weight"),
        ("cls_embedding.weight", f"{HEAD}cls_embedding.weight"),
        ("fc_attr.bias", f"{HEAD}fc_attr.bias"),
    ],
)
def test_names_of_caffe_layers(caffe: str, ours: str) -> None:
    assert name_tables()["caffe"][caffe] == ours


def test_tables_are_one_to_one_but_for_caffe(state: State) -> None:
    for naming, table in name_tables().items():
        back = family_names(naming)
        assert all(table[theirs] == ours for ours, theirs in back.items())
        assert naming == "caffe" or len(back) == len(table)


def save_hf(state: State, path: Path) -> None:
    torch.save(with_counters({**state, CELL_ANCHORS: cell_anchors(TINY, CONVENTIONS["hf"])}), path)


def save_detectron2(state: State, path: Path) -> None:
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "x", "matching_heuristics": True}, protocol=2))


def save_milvlg(state: State, path: Path) -> None:
    content = {**to_ratio_major(as_milvlg(state)), CELL_ANCHORS: CAFFE_ANCHORS}
    torch.save({"model": with_counters(content), "iteration": 5}, path)


WRITERS: dict[str, Callable[[State, Path], None]] = {
    "a.bin": save_hf,
    "a.pkl": save_detectron2,
    "a.safetensors": save_file,
    "a.pth": save_milvlg,
    "ddp.pth": lambda state, path: torch.save({f"module.{name}": value for name, value in state.items()}, path),
    "norms.pth": lambda state, path: torch.save(
        {re.sub(r"(\.norm)\.(weight|bias)$", lambda m: m[1] + {"weight": ".gamma", "bias": ".beta"}[m[2]], name): value
         for name, value in state.items()}, path),
}  # fmt: skip


@pytest.mark.parametrize("file", WRITERS)
def test_every_family_loads_into_both_layouts(tmp_path: Path, state: State, file: str, caplog: Any) -> None:
    path = tmp_path / file
    WRITERS[file](state, path)
    with caplog.at_level(logging.DEBUG):
        found = loaded(path).state_dict()
    assert any(f"weights {path}: " in record.getMessage() for record in caplog.records)
    for name, tensor in state.items():
        if "bbox_pred" in name:  # MILVLG's are a tenth of ours: one rounding there and one back
            torch.testing.assert_close(found[name], tensor, rtol=2**-22, atol=0)
        else:
            assert torch.equal(found[name], tensor), name
    rows = loaded(path, "caffe").state_dict()[f"{HEAD}cls_score.bias"]
    assert torch.equal(rows.roll(-1), state[f"{HEAD}cls_score.bias"])


def test_a_file_in_its_own_conventions_is_taken_as_it_is(tmp_path: Path, state: State) -> None:
    save_milvlg(state, tmp_path / "a.pth")
    content = torch.load(tmp_path / "a.pth")["model"]
    detector = loaded(tmp_path / "a.pth", "milvlg")
    found = detector.state_dict()
    for name in ("cls_score.weight", "bbox_pred.bias"):
        assert torch.equal(found[HEAD + name], content[HEAD + name])
    assert torch.equal(found[f"{HEAD}attr_score.bias"], content[f"{HEAD}attr_linear2.bias"])
    assert torch.equal(found[f"{RPN}objectness_logits.weight"], content[f"{RPN}objectness_logits.weight"])
    assert torch.equal(detector.proposal_generator.cell_anchors, CAFFE_ANCHORS)  # type: ignore[arg-type]


def test_the_d2_mode_of_milvlg_is_told_by_its_shapes(tmp_path: Path, state: State, caplog: Any) -> None:
    renamed = {name.replace("cls_embedding", "cls_embed").replace("fc_attr", "attr_linear1"): value
               for name, value in state.items()}  # fmt: skip
    renamed = {name.replace("attr_score", "attr_linear2"): value for name, value in renamed.items()}
    torch.save({"model": renamed}, tmp_path / "a.pth")
    with caplog.at_level(logging.INFO):
        found = loaded(tmp_path / "a.pth").state_dict()
    assert "d2 mode; 5 names changed" in caplog.text
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_the_newer_d2_mode_of_milvlg_loads_into_other_conventions(tmp_path: Path, state: State, caplog: Any) -> None:
    """Whose pixels are not those that the file names beside its weights."""
    own = {**state, f"{HEAD}attr_score.weight": state[f"{HEAD}attr_score.weight"][:-1]}
    own[f"{HEAD}attr_score.bias"] = state[f"{HEAD}attr_score.bias"][:-1]
    for ours, theirs in {"cls_embedding": "obj_embed", "fc_attr": "fc.0", "attr_score": "attr_score"}.items():
        layer = f"roi_heads.attribute_predictor.{theirs}."
        own = {name.replace(f"{HEAD}{ours}.", layer): value for name, value in own.items()}
    pixels = {"pixel_mean": torch.tensor([103.53, 116.28, 123.675]).view(3, 1, 1), "pixel_std": torch.ones(3, 1, 1)}
    torch.save({"model": {**own, **pixels}}, tmp_path / "a.pth")
    with caplog.at_level(logging.INFO):
        found = loaded(tmp_path / "a.pth", "caffe").state_dict()
    assert "its pixel_mean is not that of the conventions, [102.98, 115.95, 122.77]" in caplog.text
    assert "no-attribute row added" in caplog.text and "pixel_std is" not in caplog.text
    assert found[f"{HEAD}attr_score.bias"][0] == -10_000
    assert torch.equal(found[f"{HEAD}attr_score.weight"][1:], own["roi_heads.attribute_predictor.attr_score.weight"])
    resnet = {name: value for name, value in state.items() if name.startswith(("backbone.", "roi_heads.res5."))}
    assert part_state(str(tmp_path / "a.pth"), resnet).keys() == resnet.keys()


@pytest.mark.parametrize("part", ["bbox_pred", "objectness_logits", "both"])
def test_names_and_shapes_that_contradict_each_other_are_refused(tmp_path: Path, state: State, part: str) -> None:
    caffe, mixed = as_milvlg(state), dict(state)
    for name in mixed:
        if part in name or (part == "both" and ("bbox_pred" in name or "objectness" in name)):
            mixed[name] = caffe[name]
    torch.save(mixed, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="the place of its background row is unknown") as error:
        loaded(tmp_path / "a.pth")
    assert "\n" not in str(error.value)


def test_frozen_norms_without_statistics_get_mean_0_and_variance_1(tmp_path: Path, state: State, caplog: Any) -> None:
    plain = {name: value for name, value in state.items() if ".running_" not in name}
    save_detectron2(plain, tmp_path / "a.pkl")
    with caplog.at_level(logging.INFO):
        found = loaded(tmp_path / "a.pkl").state_dict()
    assert "mean 0, variance 1" in caplog.text
    assert all((value == name.endswith("var")).all() for name, value in found.items() if ".running_" in name)
    # Some without others is damage.
    plain["backbone.stem.conv1.norm.running_var"] = state["backbone.stem.conv1.norm.running_var"]
    save_detectron2(plain, tmp_path / "b.pkl")
    with pytest.raises(ValueError, match=r"missing: backbone\.stem\.conv1\.norm\.running_mean"):
        loaded(tmp_path / "b.pkl")


def test_misfits_of_a_converted_file_are_listed(tmp_path: Path, state: State) -> None:
    content = as_milvlg(state)
    content["extra.weight"] = content.pop(f"{HEAD}cls_embed.weight")
    content[f"{RPN}conv.bias"] = torch.zeros(5)
    content[f"{HEAD}attr_linear2.bias"] = torch.full_like(content[f"{HEAD}attr_linear2.bias"], torch.inf)
    torch.save({"model": content}, tmp_path / "a.pth")
    with pytest.raises(ValueError) as error:
        loaded(tmp_path / "a.pth")
    missing = f"1 missing: {HEAD}cls_embedding.weight (4, 32)"
    for words in (missing, "1 extra: extra.weight", "1 misshapen", "1 non-finite"):
        assert words in str(error.value)


def test_one_weight_under_two_names_is_refused(tmp_path: Path, state: State) -> None:
    twice = {**{f"res2a_branch1.{name}": value for name, value in {"weight": torch.ones(1)}.items()},
             "res2b_branch2a.weight": torch.ones(1), "res2b1_branch2a.weight": torch.ones(1)}  # fmt: skip
    torch.save(twice, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="same weight under two names"):
        loaded(tmp_path / "a.pth")
    gamma = {"backbone.stem.conv1.norm.gamma": torch.ones(8)}
    torch.save({**state, **gamma}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match=r"two names, backbone.stem.conv1.norm.weight and .*gamma; keep one of them"):
        loaded(tmp_path / "b.pth")
    torch.save({**state, 1: torch.ones(1), "1": torch.ones(1)}, tmp_path / "c.pth")
    with pytest.raises(ValueError, match="two names, 1 and 1; keep one of them"):
        loaded(tmp_path / "c.pth")


# Anchors.


def test_anchors_of_the_file_win_and_are_announced(tmp_path: Path, state: State, caplog: Any) -> None:
    save_milvlg(state, tmp_path / "a.pth")
    detector = loaded(tmp_path / "a.pth", "hf")
    message = "its anchors (rounded sides, centre at 0.5 strides, ratio-major) are used, not those of the conventions"
    assert message in caplog.text
    # Ours in size-major order, and the far edge is the first pixel outside.
    expected = CAFFE_ANCHORS.view(3, 4, 4).transpose(0, 1).reshape(12, 4) + torch.tensor([0, 0, 1, 1])
    assert torch.equal(detector.proposal_generator.cell_anchors, expected)  # type: ignore[arg-type]
    # The next file brings none: computed ones again, without a word.
    caplog.clear()
    save_detectron2(state, tmp_path / "b.pkl")
    load_weights(str(tmp_path / "b.pkl"), detector)
    assert torch.equal(detector.proposal_generator.cell_anchors, cell_anchors(TINY, CONVENTIONS["hf"]))  # type: ignore[arg-type]
    assert "are used" not in caplog.text


def test_anchors_tell_their_order(tmp_path: Path, state: State) -> None:
    size_major = {**as_milvlg(state), CELL_ANCHORS: cell_anchors(TINY, CONVENTIONS["hf"])}
    torch.save({"model": size_major}, tmp_path / "a.pth")
    found = loaded(tmp_path / "a.pth").state_dict()
    assert torch.equal(found[f"{RPN}anchor_deltas.weight"], state[f"{RPN}anchor_deltas.weight"])


def test_a_milvlg_file_without_anchors_is_warned_about(tmp_path: Path, state: State, caplog: Any) -> None:
    torch.save({"model": to_ratio_major(as_milvlg(state))}, tmp_path / "a.pth")
    found = loaded(tmp_path / "a.pth", "milvlg")  # they are computed
    assert "has no cell_anchors" in caplog.text
    assert torch.equal(found.proposal_generator.cell_anchors, CAFFE_ANCHORS)  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", [torch.zeros(12, 4), torch.full((12, 4), torch.nan), CAFFE_ANCHORS + 0.5])
def test_anchors_of_no_convention_are_refused(tmp_path: Path, state: State, broken: Tensor) -> None:
    torch.save({**state, CELL_ANCHORS: broken}, tmp_path / "a.bin")
    with pytest.raises(ValueError, match=r"anchor \d+ is .*, and no published convention fits"):
        loaded(tmp_path / "a.bin")


# The ResNet alone.


def resnet(state: State) -> State:
    return {name: value for name, value in state.items() if name.startswith(("backbone.", "roi_heads.res5."))}


def as_torchvision(state: State) -> State:
    back = family_names("vlbert")
    return {back[name]: value for name, value in resnet(state).items()}


def as_encoder(state: State) -> State:
    back = family_names("vlbert-checkpoint")
    inside = {back[name]: value for name, value in resnet(state).items()}
    inside["obj_downsample.1.weight"] = torch.zeros(2)
    outside = {"vlbert.pooler.dense.bias": torch.zeros(3)}
    return {**{f"module.image_feature_extractor.{k}": v for k, v in inside.items()},
            **{f"module.{k}": v for k, v in outside.items()}}  # fmt: skip


@pytest.mark.parametrize(
    "file, content",
    [("a.model", as_torchvision), ("b.model", lambda state: {"state_dict": as_encoder(state)}),
     ("a.bin", lambda state: state), ("a.pth", lambda state: {"model": as_milvlg(state)})],
)  # fmt: skip
def test_the_resnet_of_every_family(tmp_path: Path, state: State, file: str, content: Any, caplog: Any) -> None:
    torch.save(content(state), tmp_path / file)
    with caplog.at_level(logging.INFO):
        found = part_state(str(tmp_path / file), resnet(state))
    assert list(found) == list(resnet(state))
    assert all(torch.equal(found[name], state[name]) for name in found)
    assert f"weights {tmp_path / file}: " in caplog.text


def test_a_resnet_is_strict_too(tmp_path: Path, state: State) -> None:
    content = as_torchvision(state)
    content["full.weight"] = content.pop("layer4.2.conv3.weight")
    content["fc.weight"] = torch.zeros(1000, 2048)  # torchvision's classes of images, which are left out
    content["layer1.3.conv1.weight"] = torch.zeros(1)
    torch.save(content, tmp_path / "a.model")
    with pytest.raises(ValueError) as error:
        part_state(str(tmp_path / "a.model"), resnet(state))
    assert "1 missing: roi_heads.res5.2.conv3.weight" in str(error.value)
    for words in ("2 extra: ", "full.weight", "backbone.res2.3.conv1.weight"):
        assert words in str(error.value)
    torch.save(as_torchvision(state), tmp_path / "b.model")
    with pytest.raises(ValueError, match="has no proposal network and no heads; hand over a whole detector"):
        loaded(tmp_path / "b.model")


def test_random_weights_of_a_resnet_are_those_of_the_detector(state: State) -> None:
    found = part_state("random:5", resnet(state))
    assert all(torch.equal(found[name], state[name]) for name in found)


def test_a_checkpoint_of_vl_bert_as_its_code_names_it(golden_dir: Path, tmp_path: Path) -> None:
    with np.load(golden_dir.parent / "vlbert" / "pretrain_e2e_narrow.npz") as golden:
        checkpoint = {name[6:]: torch.from_numpy(golden[name]) for name in golden.files if name.startswith("param/")}
    named = name_weights(checkpoint, "weights x")
    assert named.family.name == "vlbert-checkpoint"
    inside = [name for name in checkpoint if re.match(r"image_feature_extractor\.(backbone|roi_head_)", name)]
    assert len(named.tensors) == len(inside) == len(resnet(named.tensors))
    theirs = checkpoint["image_feature_extractor.roi_head_feature_extractor.0.downsample.1.running_mean"]
    assert named.tensors["roi_heads.res5.0.shortcut.norm.running_mean"] is theirs


@pytest.mark.slow
def test_true_sizes_through_every_family(golden_dir: Path, tmp_path: Path) -> None:
    """The published shapes, from Hugging Face to MILVLG and detectron2 and back, by `roibeam convert`'s function."""
    from roibeam.extraction.weights.loading import convert_weights

    config = DetectorConfig()
    shapes = json.loads((golden_dir / "hf_frcnn_keys.json").read_text())
    state = random_state({n: tuple(s) for n, s in shapes.items() if s and n != CELL_ANCHORS}, seed=1)
    torch.save(with_counters({**state, CELL_ANCHORS: cell_anchors(config, CONVENTIONS["hf"])}), tmp_path / "a.bin")
    digests = set()
    for source, target, to in (("a.bin", "a.pkl", "detectron2"), ("a.pkl", "a.safetensors", "safetensors"),
                               ("a.safetensors", "b.bin", "hf")):  # fmt: skip
        done = convert_weights(str(tmp_path / source), tmp_path / target, to=to, config=config)
        digests |= {done.digest_before, done.digest_after}
    assert digests == {weights_digest(state)}
    again = torch.load(tmp_path / "b.bin")
    assert {name: list(value.shape) for name, value in again.items()} == shapes
    done = convert_weights(str(tmp_path / "a.pkl"), tmp_path / "a.pth", to="milvlg", config=config)
    assert 0 < done.largest_change < 2**-22
    milvlg = torch.load(tmp_path / "a.pth")["model"]
    assert milvlg[f"{HEAD}bbox_pred.weight"].shape == (6404, 2048)
    assert milvlg[f"{RPN}objectness_logits.weight"].shape == (24, 512, 1, 1)
    done = convert_weights(str(tmp_path / "a.pth"), tmp_path / "a.model", to="vlbert", config=config)
    vgbua = json.loads((golden_dir / "resnet101_vgbua_keys.json").read_text())
    assert {name: list(value.shape) for name, value in torch.load(tmp_path / "a.model").items()} == vgbua
    replace_config = replace(config, num_classes=1601)
    with pytest.raises(ValueError, match="misshapen"):
        convert_weights(str(tmp_path / "a.pth"), tmp_path / "c.pkl", to="detectron2", config=replace_config)
