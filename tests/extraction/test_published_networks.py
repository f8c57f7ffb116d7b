"""VinVL's, MILVLG's and the grid features' networks beside arrays of their official codes, with the weights, tolerances
and traps of goldens/{vinvl,milvlg_r152,grid}/README.md. The files of weights are made in their own names and read."""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS, SelectionPolicy
from roibeam.extraction.network.state import check_state
from roibeam.extraction.weights.families import family_names, name_weights
from roibeam.extraction.weights.loading import resnet_of

GOLDENS = Path(__file__).parents[1] / "goldens"
SHARE, PIXELS, PROBABILITY = 1e-4, 0.05, 5e-4


def norm_values(key: str, z: np.ndarray, is_last: bool, gain: float) -> np.ndarray:
    """Of a frozen norm; `is_last`: the norm of a block's last convolution."""
    small = np.arange(len(z)) % 16 == 0
    return {
        "running_var": np.exp(0.3 * z) * np.where(small, 1e-4, 1),
        "running_mean": 0.1 * z * np.where(small, 1e-2, 1),
        "weight": (gain if is_last else 1) * (1 + 0.1 * z) * np.where(small, 1e-2, 1),
        "bias": (0.05 if is_last else 0.2) * z,
    }[key.rpartition(".")[2]]


def centred(z: np.ndarray, gain: float) -> np.ndarray:
    """Rows of a linear layer, or filters of a convolution, without their means."""
    rows = z.reshape(len(z), -1)
    spread = gain / np.sqrt(rows.shape[1]) if z.ndim == 2 else gain * np.sqrt(2 / rows.shape[1])
    return (spread * (rows - rows.mean(axis=1, keepdims=True))).reshape(z.shape)


def vinvl_values(key: str, z: np.ndarray) -> np.ndarray:
    if ".bn" in key or ".downsample.1." in key:
        return norm_values(key, z, ".bn3." in key, 0.4)
    plain = {"rpn.head.cls_logits.weight": 1024**-0.5, "rpn.head.bbox_pred.weight": 0.12 * 1024**-0.5}
    plain |= {"attribute.predictor.cls_embedding.weight": 1.0, "attribute.predictor.fc_attr.weight": 1.4 * 2304**-0.5}
    if key in plain:
        return plain[key] * z
    if key.endswith("bias"):
        return (0.5 if "_score" in key else 0.05) * z
    if z.ndim == 2:
        return centred(z, 8 if "cls_score" in key else 3 if "attr_score" in key else 2.5)
    return centred(z, 1 / 60 if "stem" in key else 1.0)


def milvlg_values(key: str, z: np.ndarray, *, deep: bool) -> np.ndarray:
    if key.startswith("backbone.stem.norm."):
        pixels = {"running_mean": 115 + 8 * z, "running_var": 3600 * np.exp(0.3 * z), "weight": 1 + 0.1 * z}
        return pixels.get(key.rpartition(".")[2], 0.2 * z)
    if ".norm." in key or "res5_bn" in key:
        return norm_values(key, z, not deep and ".conv3.norm." in key, 0.55)
    if key.endswith("bias"):
        return (0.5 if "cls_score" in key or "attr_linear2" in key else 0.05) * z
    plain = {
        "objectness_logits": (1.5 if deep else 0.7) * 512**-0.5,
        "anchor_deltas": (0.2 if deep else 0.12) * 512**-0.5,
    }
    plain |= {"cls_embed": 1.0, "attr_linear1": 1.4 * 2304**-0.5}
    gains = {"cls_score": 11 if deep else 9, "attr_linear2": 4 if deep else 3, "bbox_pred": 0.5 if deep else 0.4}
    layer = key.split(".")[-2]
    if layer in plain:
        return plain[layer] * z
    return centred(
        z, gains.get(layer, 0.4 if deep and layer == "conv3" else 1 / 60 if not deep and "stem" in key else 1)
    )


def grid_values(key: str, z: np.ndarray, *, net: str) -> np.ndarray:
    if ".norm." in key:
        return norm_values(key, z, ".conv3.norm." in key, {"R": 0.5, "X-101": 0.4, "X-152": 0.35}[net])
    return centred(z, 1 / 60 if "stem" in key and net != "X-101" else 1.0)


def built(
    folder: str, sizes: str, naming: str, salt: int, values: Callable[..., np.ndarray], sums: str, **changes: Any
) -> Detector:
    """The network with the weights of a file in a family's own names."""
    config, conventions = replace(CONFIGS[sizes], **changes), CONVENTIONS[naming if naming in CONVENTIONS else sizes]
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in Detector(config, conventions).state_dict().items()}
    known, theirs, drawn = json.loads((GOLDENS / folder / sums).read_text()), family_names(naming), {}
    known = known.get("tensors", known)
    for name, shape in shapes.items():
        key = theirs[name]
        z = np.random.default_rng([zlib.crc32(key.encode()), salt]).standard_normal(shape)
        drawn[key] = torch.from_numpy(values(key, z).astype(np.float32))
        total = known[key]["sum"] if isinstance(known[key], dict) else known[key][0]
        assert drawn[key].double().sum().item() == pytest.approx(total, rel=1e-6, abs=1e-6), key
    found = resnet_of(name_weights(drawn, "a file"))[0] if config.grid else name_weights(drawn, "a file").tensors
    detector = Detector(config, conventions)
    detector.load_state_dict(check_state(found, detector.state_dict(), "a file"))
    return detector


def near(got: np.ndarray, arrays: dict[str, np.ndarray], name: str, share: float = SHARE) -> None:
    want = arrays[name]
    assert got.shape == want.shape, name
    assert np.abs(got - want).max() <= share * np.abs(want).max(), name


def arrays_of(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDENS / f"{name}.npz") as file:
        return dict(file)


def bgr(photo: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(photo[:, :, ::-1])


def thinned(name: str, small: int, full: int) -> int:
    return small if name.endswith("small") else full


def compare_network(detector: Detector, arrays: dict[str, np.ndarray], name: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """Up to the logits; returns the outputs, and for each of our proposals and of theirs the other's row."""
    out = detector.head_outputs(bgr(arrays["photo"]))
    near(out.network_input.pixels[0].double().sum((1, 2)).numpy(), arrays, "input_sum", 1e-6)
    near(out.network_input.pixels[0, :, 32:64, 48:80].numpy(), arrays, "input_crop", 1e-6)
    maps, step = out.feature_map.numpy(), thinned(name, 1, 2)
    near(maps[:, :: thinned(name, 16, 32), ::step, ::step], arrays, "c4_sub")
    near(maps.mean((2, 3)), arrays, "c4_channel_mean")
    step = thinned(name, 1, 4)
    with torch.no_grad():
        logits, deltas = (
            each.numpy()[:, :, ::step, ::step] for each in detector.proposal_generator.rpn_head(out.feature_map)
        )
    near(logits, arrays, "rpn_logits_sub")
    near(deltas, arrays, "rpn_deltas_sub")
    apart = np.abs(out.proposals.boxes.numpy()[:, None] - arrays["proposal_boxes"][None]).max(axis=2)
    assert apart.shape[0] == apart.shape[1] and apart.min(axis=0).max() < PIXELS and apart.min(axis=1).max() < PIXELS
    ours, theirs = apart.argmin(axis=0), apart.argmin(axis=1)
    assert np.abs(out.proposals.objectness.numpy()[ours] - arrays["proposal_objectness"]).max() < PROBABILITY
    step = thinned(name, 8, 32)
    near(out.regions.features.numpy()[ours][:, ::step], arrays, "proposal_features_sub", 3 * SHARE)
    step *= 2 if arrays["proposal_logits_sub"].shape[1] in (101, 51) and "cell_anchors" in arrays else 1
    background_first = np.roll(out.regions.class_logits.numpy()[ours], 1, axis=1)
    near(background_first[:, ::step], arrays, "proposal_logits_sub", 3 * SHARE)
    return out, ours, theirs


RULES = {
    ("1", "ignored"): SELECTIONS["vinvl"],
    ("1", "regressed"): SELECTIONS["vinvl-demo"],
    ("0", "regressed"): SELECTIONS["vinvl-rule-0"],
    ("0", "ignored"): replace(SELECTIONS["vinvl-rule-0"], kept_box="proposal", nms_boxes="proposal"),
    ("2", "ignored"): SELECTIONS["vinvl-rule-2"],
}


def vinvl_policy(case: dict[str, Any]) -> SelectionPolicy:
    rule, ignored = str(case["MODEL.ROI_HEADS.NMS_FILTER"]), case["TEST.IGNORE_BOX_REGRESSION"]
    names = {"MODEL.ROI_HEADS.SCORE_THRESH": "min_score", "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": "max_regions"}
    changes = {names[key]: value for key, value in case.items() if key in names}
    return replace(RULES[rule, "ignored" if ignored else "regressed"], **changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "full"])
def test_vinvl_is_microsofts_code(name: str) -> None:
    """Every proposal of `full`: an NMS that counts the last pixel shows in one of 300."""
    plan = json.loads((GOLDENS / "vinvl" / "config.json").read_text())["plan"]["photos"][name]
    options = {"short_edge": "INPUT.MIN_SIZE_TEST", "long_edge": "INPUT.MAX_SIZE_TEST"}
    options |= {"proposals_after_nms": "MODEL.RPN.POST_NMS_TOP_N_TEST"}
    changes = {field: plan["options"][key] for field, key in options.items() if key in plan["options"]}
    detector = built("vinvl", "vinvl-x152-c4", "vinvl", 152, vinvl_values, "weight_sums.json", **changes)
    out, _, theirs = compare_network(detector, arrays_of(f"vinvl/{name}"), name)
    for case, settings in plan["cases"].items():
        want, got = arrays_of(f"vinvl/{name}_{case}"), detector.postprocess(out, vinvl_policy(settings))
        pairs = list(zip(theirs[got.proposal_ids].tolist(), (got.class_ids + 1).tolist(), strict=True))
        wanted = list(zip(want["proposal_ids"].tolist(), want["labels"].tolist(), strict=True))
        assert set(pairs) == set(wanted) and len(pairs) == len(wanted), case
        at = [pairs.index(pair) for pair in wanted]
        assert np.abs(got.class_scores[at] - want["scores"]).max() < PROBABILITY, case
        assert np.abs(got.boxes[at] - want["boxes_photo"]).max() < PIXELS, case
        has = want["attr_scores"][:, 0] > 0
        assert (got.attribute_ids[at] + 1 == want["attr_labels"][:, 0])[has].all(), case
        assert np.abs(got.attribute_scores[at] - want["attr_scores"][:, 0])[has].max() < PROBABILITY, case


@pytest.mark.slow
@pytest.mark.parametrize("name", ["r101_small", "r152_small", "r152_full"])
def test_milvlg_is_its_own_code(name: str) -> None:
    deep, (short, _) = name.startswith("r152"), (plan := _milvlg_plan(name))["scale"]
    naming, sizes = ("milvlg-r152", "vg-r152-c4-600") if deep else ("milvlg", "vg-r101-c4-600")
    proposals = plan["options"].get("MODEL.RPN.POST_NMS_TOPK_TEST", 300)
    detector = built(
        "milvlg_r152", sizes, naming, 2152, lambda key, z: milvlg_values(key, z, deep=deep),
        f"weight_sums_{name[:4]}.json", short_edge=short, long_edge=plan["scale"][1], proposals_after_nms=proposals,
    )  # fmt: skip
    arrays = arrays_of(f"milvlg_r152/{name}")
    out, _, theirs = compare_network(detector, arrays, name)
    usual = {"MIN_BOXES": 100 if deep else 10, "MAX_BOXES": 100, "CONF_THRESH": 0.2}
    for case, settings in plan["cases"].items():
        low, high, score = {**usual, **{key.rpartition(".")[2]: value for key, value in settings.items()}}.values()
        policy = replace(SELECTIONS["milvlg-100"], min_regions=low, max_regions=high, min_score=score)
        want, got = arrays_of(f"milvlg_r152/{name}_{case}"), detector.postprocess(out, policy)
        twins = arrays["proposal_twin"]
        kept, wanted = twins[theirs[got.proposal_ids]].tolist(), twins[want["proposal_ids"]].tolist()
        assert set(kept) == set(wanted) and len(kept) == len(wanted), case
        at = [kept.index(row) for row in wanted]
        assert (got.class_ids[at] == want["objects_id"]).all() and (got.attribute_ids[at] == want["attrs_id"]).all(), (
            case
        )
        assert np.abs(got.class_scores[at] - want["objects_conf"]).max() < PROBABILITY, case
    if "given" in plan:
        want = arrays_of(f"milvlg_r152/{name}_given")
        (got,) = detector([bgr(arrays["photo"])], boxes=[want["given_boxes_photo"]])
        near(got.features[:, ::2], want, "features")


def _milvlg_plan(name: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((GOLDENS / "milvlg_r152" / "config.json").read_text())["plan"]["photos"][name]
    return plan


@pytest.mark.parametrize(
    ("net", "photo"),
    [
        ("R-50-grid", "small"),
        *(
            pytest.param(net, photo, marks=pytest.mark.slow)
            for net, photo in [
                ("R-50-updn", "small"),
                ("X-101-grid", "small"),
                ("X-152-grid", "full"),
                ("R-50-grid", "full"),
            ]
        ),
    ],
)
def test_grid_features_are_those_of_the_published_script(net: str, photo: str) -> None:
    sizes = f"grid-{net[0].lower()}{net[2:].partition('-')[0]}"
    changes = {"short_edge": 190, "long_edge": 250} if photo == "small" else {}
    kind = "R" if net.startswith("R") else net[:5]
    naming = "ours" if net.endswith("updn") else "grid"
    detector = built(
        "grid", sizes, naming, 732, lambda key, z: grid_values(key, z, net=kind), f"weight_sums_{net}.json", **changes
    )
    arrays, pixels = arrays_of(f"grid/{net}_{photo}"), arrays_of(f"grid/photo_{photo}")["photo"]
    (got,) = detector([bgr(pixels)], whole_image=True)
    _, width, rows, columns = arrays["grid_shape"]
    grid = got.features.T.reshape(1, width, rows, columns)
    near(grid[:, :: 8 if photo == "small" else 32], arrays, "grid_sub")
    near(grid[0, :, 0, :3], arrays, "grid_first_rows")
    near(grid.mean((2, 3)), arrays, "grid_channel_mean")
    np.testing.assert_allclose(got.image_feature, grid[0].mean((1, 2)), rtol=1e-4, atol=1e-5)
    height, wide = pixels.shape[:2]
    np.testing.assert_allclose(got.boxes[0], [0, 0, wide / columns, height / rows], rtol=1e-6)
    np.testing.assert_allclose(got.boxes[-1][2:], [wide, height], rtol=1e-6)
    pooled = Detector(replace(detector.config, grid="7x5"), detector.conventions)
    pooled.load_state_dict(detector.state_dict())
    (bins,) = pooled([bgr(pixels)])
    want = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(grid), (7, 5))[0].flatten(1).t().numpy()
    np.testing.assert_allclose(bins.features, want, rtol=1e-3, atol=1e-4)
