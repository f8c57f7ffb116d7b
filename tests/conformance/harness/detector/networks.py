"""The families "vinvl", "milvlg_r152" and "grid": networks beside arrays of their official codes, with the weights,
tolerances and traps of their READMEs. Files of weights are made in their own names, and read.

A case is a photo, `<photo>.npz`, with the files `<photo>_<rule>.npz` of what its official code keeps.
"""

from __future__ import annotations

import base64
import functools
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.case_files import Arrays, read_case_json
from harness.checks import Case, Check, Family, OpenFolder, apart, equal, near, within
from harness.tolerances import Closeness
from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import to_record
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS, SelectionPolicy
from roibeam.extraction.network.state import check_state
from roibeam.extraction.weights.families import family_names, name_weights
from roibeam.extraction.weights.loading import resnet_of
from roibeam.features.exchange.oscar_tsv import FORMAT
from roibeam.features.record.region_record import RegionRecord

VALUES, HEADS, EXACT = Closeness(1e-4, 0.0), Closeness(3e-4, 0.0), Closeness(1e-6, 0.0)
PIXELS, PROBABILITY = 0.05, 5e-4


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
        return norm_values(key, z, ".conv3.norm." in key, {"R-50": 0.5, "X-101": 0.4, "X-152": 0.35}[net])
    return centred(z, 1 / 60 if "stem" in key and net != "X-101" else 1.0)


def built(
    folder: Path, sizes: str, naming: str, salt: int, values: Callable[..., np.ndarray], sums: str, **changes: Any
) -> tuple[Detector, Check]:
    """The network with the weights of a file in a family's own names, and what the sums of these weights say."""
    config, conventions = replace(CONFIGS[sizes], **changes), CONVENTIONS[sizes if sizes in CONVENTIONS else naming]
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in Detector(config, conventions).state_dict().items()}
    known, theirs, drawn, worst = read_case_json(folder / sums), family_names(naming), {}, 0.0
    known = known.get("tensors", known)
    for name, shape in shapes.items():
        key = theirs[name]
        z = np.random.default_rng([zlib.crc32(key.encode()), salt]).standard_normal(shape)
        drawn[key] = torch.from_numpy(values(key, z).astype(np.float32))
        total, size = known[key].values() if isinstance(known[key], dict) else known[key]
        worst = max(worst, abs(drawn[key].double().sum().item() - total) / size)
    named = name_weights(drawn, "weights")
    found = resnet_of(named)[0] if config.grid else named.tensors
    detector = Detector(config, conventions)
    detector.load_state_dict(check_state(found, detector.state_dict(), "weights"))
    return detector, within("weights", worst, 1e-9, "of a sum of absolute values")


def bgr(photo: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(photo[:, :, ::-1])


def compare_network(
    detector: Detector, arrays: Arrays, *, steps: tuple[int, int, int, int]
) -> tuple[list[Check], HeadOutputs, np.ndarray]:
    """Checks up to the logits, the outputs, and for each of our proposals the official row.

    Args:
        steps: at which the arrays keep channels of the map, its cells, cells of the proposal network, and features.
    """
    channels, cells, rpn_cells, features = steps
    out = detector.head_outputs(bgr(arrays.take("photo", None, None, 3)))
    pixels, maps = out.network_input.pixels[0], out.feature_map
    with torch.no_grad():
        logits, deltas = detector.proposal_generator.rpn_head(maps)  # type: ignore[operator]
    wanted = arrays.take_finite("proposal_boxes", None, 4)
    distance = np.abs(out.proposals.boxes.numpy()[:, None] - wanted[None]).max(axis=2)
    ours, theirs = distance.argmin(axis=0), distance.argmin(axis=1)
    worst = max(distance.min(axis=0).max(), distance.min(axis=1).max())
    described, scores = out.regions.features[ours], out.regions.class_logits[ours].roll(1, dims=1)
    step = -(-scores.shape[1] // arrays.take("proposal_logits_sub", len(ours), None).shape[1])
    compared = {
        "input_sum": (pixels.double().sum((1, 2)), EXACT),
        "input_crop": (pixels[:, 32:64, 48:80], EXACT),
        "c4_sub": (maps[:, ::channels, ::cells, ::cells], VALUES),
        "c4_channel_mean": (maps.mean((2, 3)), VALUES),
        "rpn_logits_sub": (logits[:, :, ::rpn_cells, ::rpn_cells], VALUES),
        "rpn_deltas_sub": (deltas[:, :, ::rpn_cells, ::rpn_cells], VALUES),
        "proposal_features_sub": (described[:, ::features], HEADS),
        "proposal_logits_sub": (scores[:, ::step], HEADS),
    }
    checks = [near(name, found, arrays.take(name), closeness) for name, (found, closeness) in compared.items()]
    objectness = out.proposals.objectness[ours]
    checks += [
        equal("proposals", np.array(len(theirs)), np.array(len(ours))),
        within("proposal_boxes", worst, PIXELS, "pixels"),
        apart("proposal_objectness", objectness, arrays.take("proposal_objectness"), PROBABILITY),
    ]
    return checks, out, theirs


RULES = {
    (1, True): SELECTIONS["vinvl"],
    (1, False): SELECTIONS["vinvl-demo"],
    (0, False): SELECTIONS["vinvl-rule-0"],
    (0, True): replace(SELECTIONS["vinvl-rule-0"], kept_box="proposal", nms_boxes="proposal"),
    (2, True): SELECTIONS["vinvl-rule-2"],
}
NAMES = (("object", 4, 1595), ("attribute", 3, 525))  # by index in the official file, background is 0
SIZES = {
    "INPUT.MIN_SIZE_TEST": "short_edge",
    "INPUT.MAX_SIZE_TEST": "long_edge",
    "MODEL.RPN.POST_NMS_TOP_N_TEST": "proposals_after_nms",
}
LIMITS = {"MODEL.ROI_HEADS.SCORE_THRESH": "min_score", "MODEL.ROI_HEADS.DETECTIONS_PER_IMG": "max_regions"}


def vinvl_policy(case: dict[str, Any]) -> SelectionPolicy:
    changes = {LIMITS[key]: value for key, value in case.items() if key in LIMITS}
    return replace(RULES[case["MODEL.ROI_HEADS.NMS_FILTER"], case["TEST.IGNORE_BOX_REGRESSION"]], **changes)


def vinvl_checks(folder: Path, name: str, plan: dict[str, Any]) -> Iterator[Check]:
    """Every proposal of `full` counts: an NMS with the last pixel shows in one of 300."""
    photo = plan["photos"][name]
    changes = {SIZES[key]: value for key, value in photo["options"].items()}
    detector, sums = built(folder, "vinvl-x152-c4", "vinvl", plan["salt"], vinvl_values, "weight_sums.json", **changes)
    yield sums
    steps = (16, 1, 1, 8) if name == "small" else (32, 2, 4, 32)
    checks, out, theirs = compare_network(detector, Arrays(folder / f"{name}.npz"), steps=steps)
    yield from checks
    for case, settings in photo["cases"].items():
        want, got = Arrays(folder / f"{name}_{case}.npz"), detector.postprocess(out, vinvl_policy(settings))
        pairs = np.stack([theirs[got.proposal_ids], got.class_ids + 1], axis=1)
        wanted = np.stack([want.take("proposal_ids"), want.take("labels")], axis=1)
        at = [np.flatnonzero((pairs == pair).all(axis=1)) for pair in wanted]
        yield equal(f"{case}: pairs", np.unique(pairs, axis=0), np.unique(wanted, axis=0))
        if any(len(each) != 1 for each in at) or len(pairs) != len(wanted):
            return
        rows = np.concatenate(at)
        yield apart(f"{case}: scores", got.class_scores[rows], want.take("scores"), PROBABILITY)
        yield apart(f"{case}: boxes", got.boxes[rows], want.take("boxes_photo"), PIXELS)
        best = want.take("attr_scores")[:, 0]  # where it is 0, the label is what their sort left
        assert got.attribute_ids is not None and got.attribute_scores is not None
        attributes, labels = got.attribute_ids[rows] + 1, want.take("attr_labels")[:, 0]
        yield equal(f"{case}: attributes", attributes[best > 0], labels[best > 0])
        yield apart(f"{case}: attribute scores", got.attribute_scores[rows], best, PROBABILITY, best > 0)
        if case == photo.get("tsv", [""])[0]:
            height, width = Arrays(folder / f"{name}.npz").take("photo").shape[:2]
            record = to_record(photo["tsv"][1], height, width, got, ExtractOptions(feature_dtype="float32"))
            yield from tsv_checks(record, rows, folder / f"{name}_{case}_predictions.tsv")


def tsv_checks(record: RegionRecord, rows: np.ndarray, official: Path) -> Iterator[Check]:
    """What `store export --format oscar-tsv --layout predictions` writes, beside the official writer's line."""
    names = [[f"{what}{number:0{digits}}" for number in range(1, count)] for what, digits, count in NAMES]
    with tempfile.TemporaryDirectory() as scratch:
        FORMAT.with_names(*names).write([record], Path(scratch) / "out", layout="predictions")
        lines = [path.read_text("ascii").split("\t") for path in (Path(scratch) / "out/predictions.tsv", official)]
    (key, ours), (wanted_key, theirs) = lines
    got, want = json.loads(ours), json.loads(theirs)
    mine, wanted = [got["objects"][row] for row in rows], want["objects"]
    same = key == wanted_key and [*got] == [*want] and all([*each] == [*mine[0]] for each in [*mine, *wanted])
    yield within("tsv: fields", float(not same), 0, "as the official writer's")
    named = [each["class"] == other["class"] for each, other in zip(mine, wanted, strict=True)]
    yield within("tsv: class", float(not all(named)), 0, "the same names")
    for field, most in (("rect", PIXELS), ("conf", PROBABILITY)):
        left, right = (np.array([each[field] for each in found]) for found in (mine, wanted))
        yield apart(f"tsv: {field}", left, right, most)
    left, right = (
        np.stack([np.frombuffer(base64.b64decode(each["feature"]), "<f4") for each in found])
        for found in (mine, wanted)
    )
    yield near("tsv: feature", left, right, HEADS)
    kept = [place for place, each in enumerate(wanted) if each["attr_scores"][0] > 0]
    best = [[found[place]["attributes"][0] for place in kept] for found in (mine, wanted)]
    yield within("tsv: attributes", float(best[0] != best[1] or not kept), 0, "the same best names")


def milvlg_checks(folder: Path, name: str, plan: dict[str, Any]) -> Iterator[Check]:
    photo, deep = plan["photos"][name], name.startswith("r152")
    naming, sizes = ("milvlg-r152", "vg-r152-c4-600") if deep else ("milvlg", "vg-r101-c4-600")
    detector, sums = built(
        folder, sizes, naming, plan["salt"], functools.partial(milvlg_values, deep=deep),
        f"weight_sums_{photo['net']}.json", short_edge=photo["scale"][0], long_edge=photo["scale"][1],
        proposals_after_nms=photo["options"].get("MODEL.RPN.POST_NMS_TOPK_TEST", 300),
    )  # fmt: skip
    yield sums
    arrays = Arrays(folder / f"{name}.npz")
    steps = (16, 1, 1, 8) if name.endswith("small") else (32, 2, 4, 32)
    checks, out, theirs = compare_network(detector, arrays, steps=steps)
    yield from checks
    twins = arrays.take("proposal_twin")  # which of two equal regions is kept is free
    for case, settings in photo["cases"].items():
        limits: dict[str, Any] = {"MIN_BOXES": 100 if deep else 10, "MAX_BOXES": 100, "CONF_THRESH": 0.2}
        limits |= {key.rpartition(".")[2]: value for key, value in settings.items()}
        least, most, score = limits.values()
        policy = replace(SELECTIONS["milvlg-100"], min_regions=least, max_regions=most, min_score=score)
        want, got = Arrays(folder / f"{name}_{case}.npz"), detector.postprocess(out, policy)
        kept, wanted = twins[theirs[got.proposal_ids]], twins[want.take("proposal_ids")]
        yield equal(f"{case}: proposals", np.sort(kept), np.sort(wanted))
        if set(kept) != set(wanted):
            return
        rows = [kept.tolist().index(row) for row in wanted]
        assert got.attribute_ids is not None
        yield equal(f"{case}: classes", got.class_ids[rows], want.take("objects_id"))
        yield equal(f"{case}: attributes", got.attribute_ids[rows], want.take("attrs_id"))
        yield apart(f"{case}: scores", got.class_scores[rows], want.take("objects_conf"), PROBABILITY)
    if "given" in photo:
        want = Arrays(folder / f"{name}_given.npz")
        (got,) = detector([bgr(arrays.take("photo"))], boxes=[want.take("given_boxes_photo")])
        yield near("given: features", got.features[:, ::2], want.take("features"), VALUES)


def grid_checks(folder: Path, name: str, plan: dict[str, Any]) -> Iterator[Check]:
    net, _, photo = name.partition("_")
    kind, sizes = net.rpartition("-")[0], f"grid-{net[0].lower()}{net.split('-')[1]}"
    changes = {SIZES[key]: value for key, value in plan["photos"][photo]["options"].items()}
    detector, sums = built(
        folder, sizes, "ours" if net.endswith("updn") else "grid", plan["salt"],
        functools.partial(grid_values, net=kind), f"weight_sums_{net}.json", **changes,
    )  # fmt: skip
    yield sums
    arrays, pixels = Arrays(folder / f"{name}.npz"), Arrays(folder / f"photo_{photo}.npz").take("photo")
    (got,) = detector([bgr(pixels)], whole_image=True)
    _, width, rows, columns = arrays.take("grid_shape", 4)
    grid = got.features.T.reshape(1, width, rows, columns)
    yield near("grid_sub", grid[:, :: 8 if photo == "small" else 32], arrays.take("grid_sub"), VALUES)
    yield near("grid_first_rows", grid[0, :, 0, :3], arrays.take("grid_first_rows"), VALUES)
    yield near("grid_channel_mean", grid.mean((2, 3)), arrays.take("grid_channel_mean"), VALUES)
    assert got.image_feature is not None
    yield near("grid_channel_mean: whole photo", got.image_feature[None], arrays.take("grid_channel_mean"), VALUES)
    yield near("cells", got.boxes[-1, 2:], np.array(pixels.shape[1::-1]), EXACT)
    detector.config = replace(detector.config, grid="7x5")
    (bins,) = detector([bgr(pixels)])
    pooled = nn.functional.adaptive_avg_pool2d(torch.from_numpy(grid), (7, 5))[0].flatten(1).t()
    yield near("7 x 5 bins", bins.features, pooled.numpy(), VALUES)


def _family(name: str, sums: str, checks: Callable[..., Iterator[Check]]) -> Family:
    """The family of a folder; `sums` tells it apart."""

    def open_folder(folder: Path) -> OpenFolder:
        plan = read_case_json(folder / "config.json")["plan"]
        names = (
            [f"{net}_{photo}" for net in plan["nets"] for photo in plan["photos"]] if "nets" in plan else plan["photos"]
        )
        cases = [
            Case(f"{each}.npz", functools.partial(checks, folder, each, plan))
            for each in names
            if (folder / f"{each}.npz").is_file()
        ]
        others = {path.name for path in folder.iterdir()} - {case.file for case in cases}
        return OpenFolder(tuple(cases), frozenset(others))

    return Family(name, lambda folder: (folder / sums).is_file(), open_folder)


NETWORK_FAMILIES = (
    _family("vinvl", "weight_sums.json", vinvl_checks),
    _family("milvlg_r152", "weight_sums_r152.json", milvlg_checks),
    _family("grid", "weight_sums_R-50-grid.json", grid_checks),
)
