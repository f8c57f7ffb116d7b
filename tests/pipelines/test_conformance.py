"""`python tests/conformance` on a detector's folder made for the test, with other salt, boxes, photos and sizes: every
array tampered with, hostile files, and what the command prints."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_cases import missed
from harness.checks import near, near_thinned, within
from harness.detector.selection import place_error
from harness.detector.ties import best_score_bounds
from harness.runner import CaseResult, run_conformance
from harness.tolerances import DETECTOR, Closeness
from reference_folder import (
    BATCH_ORDER,
    CONFIG,
    CONVENTION,
    PHOTOS,
    SET,
    config_file,
    write_reference_folder,
)
from small_files import write_json

from roibeam.extraction.network.conventions import CONVENTIONS

PHOTO = next(iter(PHOTOS))
CASE = f"{SET}_{PHOTO}"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: read only."""
    torch.set_num_threads(1)
    return write_reference_folder(tmp_path_factory.mktemp("tree") / "detector")


@pytest.fixture
def folder(reference: Path, tmp_path: Path) -> Path:
    """A copy of the reference folder, in a tree of its own."""
    return Path(shutil.copytree(reference, tmp_path / "tree" / "detector"))


def run(folder: Path, only: str | None = None) -> dict[str, CaseResult]:
    return {result.name: result for result in run_conformance(folder, only)}


def change_arrays(path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


def test_a_folder_of_other_sizes_passes_and_every_array_is_compared(reference: Path, conformance: Any) -> None:
    done = conformance(reference.parent)
    assert done.code == 0, done.out
    assert "all within tolerance" in done.out
    for name in (*PHOTOS, "batch"):
        with np.load(reference / f"{SET}_{name}.npz") as arrays:
            rows = [line.split() for line in done.out.splitlines() if line.startswith(f"detector/{SET}_{name} ")]
            # What is fed in has no row of its own; whatever is wrong with it shows in what is computed from it.
            assert set(arrays) - {row[1] for row in rows} == {"given_boxes"}
    cases = [f"{name}_{SET}" for name in ("weight_sums", "hf_frcnn_keys", "detectron2_keys")]
    for name in (*cases, "resnet101_vgbua_keys", "e2e_batch"):
        assert f"detector/{name}: " in done.out


def test_one_family_folder_of_another_name_is_recognised(reference: Path, tmp_path: Path) -> None:
    other = shutil.copytree(reference, tmp_path / "altered")
    results = run(Path(other), only=f"weight_sums_{SET}")
    assert list(results) == [f"detector/weight_sums_{SET}"]
    assert results[f"detector/weight_sums_{SET}"].passed


BOXES = ("det6_boxes", "det15_boxes", "ladder_boxes")
SCORES = ("det6_scores", "det15_scores", "ladder_scores")
CLASSES = ("det6_classes", "det15_classes", "ladder_classes")
COUNTS = ("proposal_count", "det6_count", "det15_count", "butd12_count", "butd18_count", "ladder_min")
# Inputs, marks of stable rows (they only leave rows out), and what is tampered with by itself.
APART = {
    "given_boxes",
    "given_stable",
    "det6_stable",
    "det15_stable",
    "proposal_boxes",
    *BOXES,
    *SCORES,
    *CLASSES,
    *COUNTS,
}


def tamper(array: np.ndarray) -> np.ndarray:
    """One number changed: a whole one by 1, another by a twentieth of the largest."""
    changed = array.copy()
    if array.dtype.kind in "iu":
        changed.reshape(-1)[0] += 1
    else:
        changed.reshape(-1)[np.abs(array).argmax()] *= 1.05
    return changed


@pytest.mark.parametrize("names", [None, BOXES, SCORES, CLASSES, COUNTS[1:-1]], ids=str)
def test_every_tampered_array_is_named(folder: Path, names: tuple[str, ...] | None) -> None:
    tampered: list[str] = []

    def change(arrays: dict[str, np.ndarray]) -> None:
        tampered.extend(names or set(arrays) - APART)
        arrays.update({name: tamper(arrays[name]) for name in tampered})

    change_arrays(folder / f"{CASE}.npz", change)
    result = run(folder, only=CASE)[f"detector/{CASE}"]
    assert not result.passed
    assert set(tampered) - set(missed(result)) == set()


def test_every_tampered_array_of_the_end_to_end_case_is_named(folder: Path) -> None:
    tampered: list[str] = []

    def change(arrays: dict[str, np.ndarray]) -> None:
        tampered.extend(name for name in arrays if name != "mvrc_ops" and not name.startswith("raw_boxes"))
        arrays.update({name: tamper(arrays[name]) for name in tampered})
        arrays["box_mask"] = ~arrays["box_mask"]

    change_arrays(folder / "e2e_batch.npz", change)
    misses = missed(run(folder, only="e2e*")["detector/e2e_batch"])
    assert set(misses) == set(tampered)


def test_masks_and_boxes_of_the_end_to_end_case_are_used(reference: Path, folder: Path) -> None:
    change_arrays(folder / "e2e_batch.npz", lambda arrays: arrays["mvrc_ops"].fill(0))
    assert {"input_sum", "c4_sub", "obj_reps_raw"} <= set(missed(run(folder, only="e2e*")["detector/e2e_batch"]))
    shutil.copy(reference / "e2e_batch.npz", folder)
    change_arrays(folder / "e2e_batch.npz", lambda arrays: arrays.update(raw_boxes_1=arrays["raw_boxes_1"] + 5))
    assert {"boxes", "coord_embed", "obj_reps"} <= set(missed(run(folder, only="e2e*")["detector/e2e_batch"]))


@pytest.mark.parametrize(
    "changes",
    [
        {
            "res4_sub": lambda v: v * np.nan,
            "given_stable": np.zeros_like,
            "proposal_logits": lambda v: v[::-1],
            "butd18_proposal_ids": lambda v: v[::-1],
            "butd12_proposal_ids": lambda v: v - 1000,
            "det6_proposal_ids": lambda v: v + 1000,
            "ladder_min": np.zeros_like,
        },
        {"given_boxes": lambda v: v * np.nan, "proposal_boxes": lambda v: v + 1},
        {"given_boxes": lambda v: v[0], "proposal_count": lambda v: v + 1, "res4_sub": lambda v: v[:, :3]},
        {"given_boxes": lambda v: np.repeat(v, 1000, axis=1), "det6_count": lambda v: v[[0, 0]]},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_wrong_orders_shapes_and_numbers_are_misses(
    folder: Path, changes: dict[str, Callable[[np.ndarray], np.ndarray]]
) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays.update({name: wrong(arrays[name]) for name, wrong in changes.items()})

    change_arrays(folder / f"{CASE}.npz", change)
    assert set(changes) - set(missed(run(folder, only=CASE)[f"detector/{CASE}"])) == set()


def test_other_given_boxes_give_other_features(folder: Path) -> None:
    change_arrays(folder / f"{CASE}.npz", lambda arrays: arrays.update(given_boxes=arrays["given_boxes"] + 9))
    assert "given_features" in missed(run(folder, only=CASE)[f"detector/{CASE}"])


def test_absent_and_unknown_arrays_are_misses_and_the_rest_is_compared(folder: Path) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        for name in ("res4_sub", "proposal_box_deltas", "butdmin_proposal_ids", "det6_count"):
            del arrays[name]
        arrays["surprise"] = np.zeros(3)

    change_arrays(folder / f"{CASE}.npz", change)
    result = run(folder, only=CASE)[f"detector/{CASE}"]
    misses = missed(result)
    for name in ("res4_sub", "proposal_box_deltas", "butdmin_proposal_ids"):
        assert f"{name!r} is not in {CASE}.npz" in misses[name]
    for name in ("surprise", "res4_channel_mean", "det6_boxes"):  # the latter two have nothing to be compared by
        assert "unknown array" in misses[name]
    assert len(result.checks) > 60


def test_batch_order_salt_and_weights_matter(folder: Path) -> None:
    options = json.loads((folder / "case.json").read_text())
    write_json(folder / "case.json", options | {"batch_order": list(reversed(BATCH_ORDER))})
    assert "input_sizes_hw" in missed(run(folder, only=f"{SET}_batch")[f"detector/{SET}_batch"])
    write_json(folder / "case.json", options | {"salt": 8})
    result = run(folder, only=f"weight_sums_{SET}")[f"detector/weight_sums_{SET}"]
    assert set(missed(result)) == {"sum", "abs_sum"}


def test_a_folder_may_ask_for_closer_values_never_for_looser_ones(folder: Path) -> None:
    options = json.loads((folder / "case.json").read_text())
    change_arrays(folder / f"{CASE}.npz", lambda arrays: arrays.update(res4_sub=arrays["res4_sub"] * 1.01))
    write_json(folder / "case.json", options | {"tolerance": {"max_rel": 0.5, "rtol": 0.5}})
    assert set(missed(run(folder, only=CASE)[f"detector/{CASE}"])) == {"res4_sub"}


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("roi_box_head", "pooler_resolution", 7, "pooler_resolution is 7, not computed here; expected 14"),
        ("roi_box_head", "cls_agnostic_bbox_reg", True, "not computed here; expected False"),
        ("resnets", "depth", 152, "depth is 152"),
        ("resnets", "res2_out_channels", 256, "res2_out_channels is 256, not computed here; expected 16"),
        ("rpn", "nms_thresh", "high", "expected a number"),
        ("rpn", "post_nms_topk_test", 20.5, "whole number"),
        ("input", "max_size_test", 10**6, "a whole number in 1..8192"),
        ("rpn", "straddle", 1, "rpn.straddle: options that no check here knows"),
        ("anchor_generator", "sizes", [[16], [48]], "one list of numbers in a list"),
    ],
)
def test_what_our_detector_cannot_express_fails_the_case(
    folder: Path, section: str, key: str, value: object, words: str
) -> None:
    config = config_file()
    config[section][key] = value
    write_json(folder / f"config_{SET}.json", config)
    result = run(folder, only=CASE)[f"detector/{CASE}"]
    assert not result.passed
    assert words in next(iter(missed(result).values()))


def test_an_absent_option_fails_the_case(folder: Path) -> None:
    config = config_file()
    del config["rpn"]["nms_thresh"]
    write_json(folder / f"config_{SET}.json", config)
    assert "rpn.nms_thresh is absent" in next(iter(missed(run(folder, only=CASE)[f"detector/{CASE}"]).values()))


@pytest.mark.parametrize(
    "conventions",
    [
        {"stem_pool": "pad-1-floor"},
        {"res5_stride": 2, "res5_dilation": 1},
        {"region_delta_weights": (1.0, 1.0, 1.0, 1.0)},
    ],
    ids=str,
)
def test_options_reach_the_detector(folder: Path, conventions: dict[str, Any]) -> None:
    """Each of them changes what is computed, so the arrays of the unchanged config miss."""
    write_json(folder / f"config_{SET}.json", config_file(CONFIG, replace(CONVENTIONS["hf"], **conventions)))
    assert not run(folder, only=CASE)[f"detector/{CASE}"].passed


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def pickled(path: Path) -> None:
    np.savez(path, res4_sub=np.array([{"a": 1}], dtype=object))


def plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"res4_sub": 1}))


def claims_too_much(path: Path) -> None:
    """A header that asks for 8 TB."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("res4_sub.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, "not an .npz file, or damaged"),
        (pickled, "never pickled objects"),
        (plain_pickle, "not an .npz file"),
        (claims_too_much, "claims shape (1000000000000,)"),
        (lambda path: path.write_bytes(b""), "not an .npz file"),
    ],
)
def test_damaged_and_hostile_files_are_one_line(folder: Path, conformance: Any, damage: Any, words: str) -> None:
    damage(folder / f"{CASE}.npz")
    done = conformance(folder, "--only", CASE)
    assert done.code == 1
    assert words in done.out
    assert "Traceback" not in done.out + done.err


def test_a_missing_photo_and_names_that_leave_the_folder_fail(folder: Path) -> None:
    (folder / f"{PHOTO}.png").unlink()
    assert "No such file" in str(missed(run(folder, only=CASE)[f"detector/{CASE}"]))
    options = json.loads((folder / "case.json").read_text())
    write_json(folder / "case.json", options | {"photos": ["../secret"]})
    results = run(folder.parent)
    assert not any(result.passed for result in results.values())
    assert "'../secret' is no plain file name" in str([missed(result) for result in results.values()])


def test_unknown_files_and_families_fail_unless_left_out(folder: Path, conformance: Any) -> None:
    (folder / f"{SET}_dog.npz").write_bytes(b"?")
    (folder.parent / "lxmert").mkdir()
    (folder.parent / "lxmert" / "pretrain.npz").write_bytes(b"?")
    results = run(folder.parent, only="*dog") | run(folder.parent, only="lxmert")
    assert "no case of family 'detector'" in missed(results[f"detector/{SET}_dog"])[f"{SET}_dog.npz"]
    assert "no family 'lxmert'" in missed(results["lxmert/pretrain"])["pretrain.npz"]
    done = conformance(folder.parent, "--only", f"weight_sums_{SET}")
    assert done.code == 0, done.out
    done = conformance(folder.parent, "--only", "lxmert")
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("lxmert/pretrain")]
    assert line.startswith("lxmert/pretrain: UNKNOWN CASE: no family 'lxmert'") and "inf" not in line


def test_json_and_only(reference: Path, conformance: Any) -> None:
    done = conformance(reference.parent, "--json", "--only", f"detector/*keys_{SET}")
    assert done.code == 0
    report = json.loads(done.out)
    assert report["passed"] is True
    assert [case["case"] for case in report["cases"]] == [
        f"detector/hf_frcnn_keys_{SET}",
        f"detector/detectron2_keys_{SET}",
    ]
    assert {"array", "error", "tolerance", "rule", "passed", "note"} == set(report["cases"][0]["checks"][0])


def test_nothing_to_do_is_an_error(reference: Path, tmp_path: Path, conformance: Any) -> None:
    done = conformance(reference, "--only", "nothing*")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "matches --only 'nothing*'" in done.err
    assert "holds no case" in conformance(tmp_path).err
    assert "no such file or folder: DIR" in conformance(tmp_path / "absent").err


def test_wrong_names_and_shapes_in_a_key_list_are_named(folder: Path) -> None:
    path = folder / f"hf_frcnn_keys_{SET}.json"
    shapes = json.loads(path.read_text())
    shapes["backbone.stem.conv1.weight"][0] += 1
    shapes["backbone.res2.9.conv9.weight"] = [1]
    del shapes["roi_heads.box_predictor.cls_score.bias"], shapes["backbone.stem.conv1.norm.num_batches_tracked"]
    write_json(path, shapes)
    misses = missed(run(folder, only=path.stem)[f"detector/{path.stem}"])
    assert "cls_score.bias" in misses["names"] and "conv9" in misses["names"]
    assert misses["shapes"].startswith("backbone.stem.conv1.weight (5, 3, 7, 7), ours (4, 3, 7, 7)")
    assert "num_batches_tracked" in misses


def test_near_needs_every_element_and_no_nan() -> None:
    closeness = Closeness(max_rel=1e-4, rtol=1e-3)
    want = np.array([100.0, 1.0])
    assert near("a", np.array([100.01, 1.011]), want, closeness).passed  # each by 1e-4 of 100 and 1e-3 of itself
    assert not near("a", np.array([100.0, 1.0111]), want, closeness).passed
    assert not near("a", np.array([np.nan, 1.0]), want, closeness).passed
    assert not near("a", want, np.array([np.nan, 1.0]), closeness).passed
    assert "shape (2,) where ours is (3,)" in near("a", np.zeros(3), want, closeness).note
    assert not within("a", float("nan"), 1.0, "").passed


def test_ties_bound_scores_and_orders() -> None:
    """Two equal boxes with equal scores: NMS keeps either, and the third box is apart."""
    boxes = np.array([[0, 0, 9, 9], [0, 0, 9, 9], [50, 50, 59, 59]], np.float32)
    tied = best_score_bounds(boxes, np.array([[0.9], [0.9], [0.5]]), iou=0.3, noise=1e-5, floor=1e-4)
    np.testing.assert_allclose(tied.low, [0, 0, 0.5])
    np.testing.assert_allclose(tied.high, [0.9, 0.9, 0.5])
    apart = best_score_bounds(boxes, np.array([[0.9], [0.8], [0.5]]), iou=0.3, noise=1e-5, floor=1e-4)
    np.testing.assert_allclose(apart.low, [0.9, 0, 0.5])
    np.testing.assert_allclose(apart.high, [0.9, 1e-4, 0.5])
    for ids in ([1, 2], [0, 2]):  # by proposal: whichever of the two NMS keeps
        assert place_error(tied, np.array(ids), 0.2) == 0
    assert place_error(apart, np.array([1, 2]), 0.2) > 0.1
    assert place_error(apart, np.array([2, 0]), 0.95) == pytest.approx(0.4)  # by score, in the wrong order
    assert place_error(apart, np.array([0, 0]), 0.2) == np.inf


def test_box_weights_of_a_config_do_not_scale_the_drawn_weights(folder: Path) -> None:
    """The recipe draws what the port's file holds, whatever its config says of the box deltas."""
    write_json(
        folder / f"config_{SET}.json", config_file(CONFIG, replace(CONVENTION, region_delta_weights=(8, 8, 4, 4)))
    )
    results = run(folder, only=f"weight_sums_{SET}") | run(folder, only=CASE)
    assert results[f"detector/weight_sums_{SET}"].passed
    misses = missed(results[f"detector/{CASE}"])
    assert "det6_boxes" in misses and not {"proposal_box_deltas", "given_box_deltas"} & set(misses)


def test_thinned_arrays_find_their_step() -> None:
    ours = np.arange(256.0).reshape(1, 256)
    for step in (1, 4, 16, 64):
        assert near_thinned("a", ours, ours[:, ::step], DETECTOR.values).passed
    assert "at no step" in near_thinned("a", ours, ours[:, :100], DETECTOR.values).note


@pytest.fixture
def bare_clone(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> Path:
    """A clone whose tests/goldens holds the small reference folder without its photos, which lie in `photos`."""
    from harness import places

    clone = tmp_path / "elsewhere" / "clone"
    shutil.copytree(folder.parent, clone / "tests" / "goldens")
    (clone / "tests" / "goldens" / "README.md").write_text("what these are")
    photos = tmp_path / "photos"
    photos.mkdir()
    for png in (clone / "tests" / "goldens" / "detector").glob("*.png"):
        png.rename(photos / png.name)
    monkeypatch.setattr(places, "CLONE", clone)
    return clone


def test_without_photos_their_cases_are_not_run_and_the_rest_is(bare_clone: Path, conformance: Any) -> None:
    done = conformance()
    lines = done.out.splitlines()
    photo_cases = {f"detector/{SET}_{name}" for name in (*PHOTOS, "batch")} | {"detector/e2e_batch"}
    assert {line.partition(": ")[0] for line in lines if line.endswith(": not run: photo missing")} == photo_cases
    assert done.code == 0 and f"detector/weight_sums_{SET}: " in done.out
    assert lines[-1].startswith(f"{bare_clone / 'tests' / 'goldens'}: ")
    assert lines[-1].endswith(f"all within tolerance; {len(photo_cases)} not run")
    told = json.loads(conformance("--json").out)
    assert told["passed"] and {case["case"] for case in told["cases"] if case["not_run"]} == photo_cases
    assert not any(case["passed"] for case in told["cases"] if case["not_run"])
    sums = bare_clone / "tests" / "goldens" / "detector" / f"weight_sums_{SET}.json"
    write_json(sums, {name: [0.0, 0.0] for name in json.loads(sums.read_text())})
    done = conformance()
    assert done.code == 1 and "MISS" in done.out.splitlines()[-1]


def test_photos_beside_the_clone_are_found(bare_clone: Path, conformance: Any) -> None:
    shared = bare_clone.parent / "shared" / "goldens"
    shared.mkdir(parents=True)
    (bare_clone.parents[1] / "photos").rename(shared / "detector")
    done = conformance("--only", f"*{CASE}")
    assert done.code == 0 and "not run" not in done.out, done.out
    # One of several photos that is not there was lost: that is a miss.
    (shared / "detector" / f"{PHOTO}.png").unlink()
    done = conformance("--only", f"*{CASE}")
    assert done.code == 1 and "not run" not in done.out


def test_without_a_clone_one_line_says_where_the_arrays_are(bare_clone: Path, conformance: Any) -> None:
    shutil.rmtree(bare_clone / "tests")
    done = conformance()
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "tests/goldens of roibeam's repository" in done.err
