"""`python tests/conformance` on copies of the detector's small set: every array tampered with, other options, hostile
files, and what the command prints. What runs a photo needs those of ../shared."""

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from conformance_cases import GOLDENS, missed
from harness.checks import near, near_thinned, within
from harness.detector.selection import place_error
from harness.detector.ties import best_score_bounds
from harness.runner import CaseResult, run_conformance
from harness.tolerances import DETECTOR, Closeness
from small_files import write_json

DETECTOR_GOLDENS = GOLDENS / "detector"
PHOTOS = Path(__file__).resolve().parents[3] / "shared" / "goldens" / "detector"
SET = "small"
NAMES = ("input", "COCO_train2014_000000131486", "COCO_train2014_000000387267")
CASE = f"{SET}_{NAMES[0]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the small set, in a tree of its own; photos are noise."""
    torch.set_num_threads(1)
    copy = tmp_path / "tree" / "detector"
    copy.mkdir(parents=True)
    for path in (*DETECTOR_GOLDENS.glob(f"*{SET}*"), DETECTOR_GOLDENS / "case.json"):
        shutil.copy(path, copy)
    options = json.loads((copy / "case.json").read_text())
    write_json(copy / "case.json", options | {"sets": {SET: f"config_{SET}.json"}})
    for name in NAMES:
        cv2.imwrite(str(copy / f"{name}.png"), np.random.default_rng(0).integers(0, 256, (90, 130, 3), np.uint8))
    return copy


@pytest.fixture
def with_photos(folder: Path) -> Path:
    """The same with its own photos."""
    if not (PHOTOS / f"{NAMES[0]}.png").is_file():
        pytest.skip("needs the photos in ../shared/goldens/detector")
    for name in NAMES:
        shutil.copy(PHOTOS / f"{name}.png", folder)
    return folder


def write_config(folder: Path, section: str, **changes: object) -> None:
    """The set's options, some of a section's others; None takes one away."""
    config = json.loads((DETECTOR_GOLDENS / f"config_{SET}.json").read_text())
    changed = config[section] | changes
    config[section] = {name: value for name, value in changed.items() if value is not None}
    write_json(folder / f"config_{SET}.json", config)


def run(folder: Path, only: str | None = None) -> dict[str, CaseResult]:
    return {result.name: result for result in run_conformance(folder, only)}


def missed_of_case(folder: Path) -> dict[str, str]:
    return missed(run(folder, only=CASE)[f"detector/{CASE}"])


def change_arrays(path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


BOXES = ("det36_boxes", "det100_boxes", "ladder_boxes")
SCORES = ("det36_scores", "det100_scores", "ladder_scores")
CLASSES = ("det36_classes", "det100_classes", "ladder_classes")
COUNTS = ("proposal_count", "det36_count", "det100_count", "butd36_count", "butd100_count", "ladder_min")
# Inputs, marks of stable rows (they only leave rows out), and what is tampered with by itself.
APART = {
    "given_boxes", "given_stable", "det36_stable", "det100_stable", "proposal_boxes",
    *BOXES, *SCORES, *CLASSES, *COUNTS,
}  # fmt: skip


def tamper(array: np.ndarray) -> np.ndarray:
    """One number changed: a whole one by 1, another by a twentieth of the largest."""
    changed = array.copy()
    if array.dtype.kind in "iu":
        changed.reshape(-1)[0] += 1
    else:
        changed.reshape(-1)[np.abs(array).argmax()] *= 1.05
    return changed


@pytest.mark.parametrize("names", [None, BOXES, SCORES, CLASSES, COUNTS[1:-1]], ids=str)
def test_every_tampered_array_is_named(with_photos: Path, names: tuple[str, ...] | None) -> None:
    tampered: list[str] = []

    def change(arrays: dict[str, np.ndarray]) -> None:
        tampered.extend(names or set(arrays) - APART)
        arrays.update({name: tamper(arrays[name]) for name in tampered})

    change_arrays(with_photos / f"{CASE}.npz", change)
    assert tampered and set(tampered) - set(missed_of_case(with_photos)) == set()


@pytest.mark.slow
def test_every_tampered_array_of_the_end_to_end_case_is_named(with_photos: Path) -> None:
    for name in ("e2e_batch.npz", "config_full.json"):  # that of the true size
        shutil.copy(DETECTOR_GOLDENS / name, with_photos)
    shutil.copy(DETECTOR_GOLDENS / "case.json", with_photos)
    tampered: list[str] = []

    def change(arrays: dict[str, np.ndarray]) -> None:
        tampered.extend(name for name in arrays if name != "mvrc_ops" and not name.startswith("raw_boxes"))
        arrays.update({name: tamper(arrays[name]) for name in tampered})
        arrays["box_mask"] = ~arrays["box_mask"]

    change_arrays(with_photos / "e2e_batch.npz", change)
    assert set(missed(run(with_photos, only="e2e*")["detector/e2e_batch"])) == set(tampered)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "res4_sub": lambda v: v * np.nan, "given_stable": np.zeros_like, "proposal_logits": lambda v: v[::-1],
            "butd100_proposal_ids": lambda v: v[::-1], "butd36_proposal_ids": lambda v: v - 1000,
            "det36_proposal_ids": lambda v: v + 1000, "ladder_min": np.zeros_like,
        },
        {"given_boxes": lambda v: v * np.nan, "proposal_boxes": lambda v: v + 1},
        {"given_boxes": lambda v: v[0], "proposal_count": lambda v: v + 1, "res4_sub": lambda v: v[:, :3]},
        {"given_boxes": lambda v: np.repeat(v, 1000, axis=1), "det36_count": lambda v: v[[0, 0]]},
    ],
    ids=lambda changes: " ".join(changes),
)  # fmt: skip
def test_wrong_orders_shapes_and_numbers_are_misses(
    with_photos: Path, changes: dict[str, Callable[[np.ndarray], np.ndarray]]
) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays.update({name: wrong(arrays[name]) for name, wrong in changes.items()})

    change_arrays(with_photos / f"{CASE}.npz", change)
    assert set(changes) - set(missed_of_case(with_photos)) == set()


def test_absent_and_unknown_arrays_are_misses_and_the_rest_is_compared(with_photos: Path) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        for name in ("res4_sub", "proposal_box_deltas", "butdmin_proposal_ids", "det36_count"):
            del arrays[name]
        arrays["surprise"] = np.zeros(3)

    change_arrays(with_photos / f"{CASE}.npz", change)
    result = run(with_photos, only=CASE)[f"detector/{CASE}"]
    misses = missed(result)
    for name in ("res4_sub", "proposal_box_deltas", "butdmin_proposal_ids"):
        assert f"{name!r} is not in {CASE}.npz" in misses[name]
    for name in ("surprise", "res4_channel_mean", "det36_boxes"):  # the latter two have nothing to be compared by
        assert "unknown array" in misses[name]
    assert len(result.checks) > 60


def test_batch_order_salt_and_weights_matter(with_photos: Path) -> None:
    folder = with_photos
    options = json.loads((folder / "case.json").read_text())
    write_json(folder / "case.json", options | {"batch_order": [NAMES[0], *NAMES[:0:-1]]})
    assert "raw_sizes_hw" in missed(run(folder, only=f"{SET}_batch")[f"detector/{SET}_batch"])
    write_json(folder / "case.json", options | {"salt": 8})
    assert set(missed(run(folder, only=f"weight_sums_{SET}")[f"detector/weight_sums_{SET}"])) == {"sum", "abs_sum"}


def test_a_folder_may_ask_for_closer_values_never_for_looser_ones(with_photos: Path) -> None:
    options = json.loads((with_photos / "case.json").read_text())
    change_arrays(with_photos / f"{CASE}.npz", lambda arrays: arrays.update(res4_sub=arrays["res4_sub"] * 1.01))
    write_json(with_photos / "case.json", options | {"tolerance": {"max_rel": 0.5, "rtol": 0.5}})
    assert set(missed_of_case(with_photos)) == {"res4_sub"}


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("roi_box_head", "pooler_resolution", 7, "pooler_resolution is 7, not computed here; expected 14"),
        ("roi_box_head", "cls_agnostic_bbox_reg", True, "not computed here; expected False"),
        ("resnets", "depth", 153, "depth is 153"),
        ("resnets", "res2_out_channels", 256, "res2_out_channels is 256, not computed here; expected 64"),
        ("rpn", "nms_thresh", "high", "expected a number"),
        ("rpn", "post_nms_topk_test", 20.5, "whole number"),
        ("input", "max_size_test", 10**6, "a whole number in 1..8192"),
        ("rpn", "straddle", 1, "rpn.straddle: options that no check here knows"),
        ("anchor_generator", "sizes", [[16], [48]], "one list of numbers in a list"),
        ("rpn", "nms_thresh", None, "rpn.nms_thresh is absent"),
    ],
)
def test_what_our_detector_cannot_express_fails_the_case(
    folder: Path, section: str, key: str, value: object, words: str
) -> None:
    write_config(folder, section, **{key: value})
    assert words in next(iter(missed_of_case(folder).values()))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "max_pool", False),
        ("roi_box_head", "res5halve", True),
        ("rpn", "bbox_reg_weights", [2.0, 1.0, 1.0, 1.0]),
    ],
)
def test_options_reach_the_detector(with_photos: Path, section: str, key: str, value: object) -> None:
    """Each of them changes what is computed, so the arrays of the unchanged config miss."""
    write_config(with_photos, section, **{key: value})
    assert missed_of_case(with_photos)


def claims_too_much(path: Path) -> None:
    """A header that asks for 8 TB."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("res4_sub.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "not an .npz file, or damaged"),
        (lambda path: np.savez(path, res4_sub=np.array([{"a": 1}], dtype=object)), "never pickled objects"),
        (lambda path: path.write_bytes(pickle.dumps({"res4_sub": 1})), "not an .npz file"),
        (claims_too_much, "claims shape (1000000000000,)"),
        (lambda path: path.write_bytes(b""), "not an .npz file"),
    ],
)
def test_damaged_and_hostile_files_are_one_line(folder: Path, conformance: Any, damage: Any, words: str) -> None:
    damage(folder / f"{CASE}.npz")
    done = conformance(folder, "--only", CASE)
    assert done.code == 1 and words in done.out and "Traceback" not in done.out + done.err


def test_a_missing_photo_and_names_that_leave_the_folder_fail(folder: Path) -> None:
    (folder / f"{NAMES[0]}.png").unlink()
    assert "No such file" in str(missed_of_case(folder))
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
    assert conformance(folder.parent, "--only", f"weight_sums_{SET}").code == 0
    done = conformance(folder.parent, "--only", "lxmert")
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("lxmert/pretrain")]
    assert line.startswith("lxmert/pretrain: UNKNOWN CASE: no family 'lxmert'") and "inf" not in line


def test_json_and_only(folder: Path, conformance: Any) -> None:
    done = conformance(folder.parent, "--json", "--only", f"detector/*keys_{SET}")
    report = json.loads(done.out)
    assert done.code == 0 and report["passed"] is True
    assert [case["case"] for case in report["cases"]] == [f"detector/hf_frcnn_keys_{SET}"]
    assert {"array", "error", "tolerance", "rule", "passed", "note"} == set(report["cases"][0]["checks"][0])


def test_nothing_to_do_is_an_error(folder: Path, tmp_path: Path, conformance: Any) -> None:
    done = conformance(folder, "--only", "nothing*")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "matches --only 'nothing*'" in done.err
    (folder / "nothing").mkdir()
    assert "holds no case" in conformance(folder / "nothing").err
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
    assert misses["shapes"].startswith("backbone.stem.conv1.weight (17, 3, 7, 7), ours (16, 3, 7, 7)")
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


def test_box_weights_of_a_config_do_not_scale_the_drawn_weights(with_photos: Path) -> None:
    """The recipe draws what the port's file holds, whatever its config says of the box deltas."""
    write_config(with_photos, "roi_box_head", bbox_reg_weights=[8.0, 8.0, 4.0, 4.0])
    assert run(with_photos, only=f"weight_sums_{SET}")[f"detector/weight_sums_{SET}"].passed
    misses = missed_of_case(with_photos)
    assert "det36_boxes" in misses and not {"proposal_box_deltas", "given_box_deltas"} & set(misses)


def test_thinned_arrays_find_their_step() -> None:
    ours = np.arange(256.0).reshape(1, 256)
    for step in (1, 4, 16, 64):
        assert near_thinned("a", ours, ours[:, ::step], DETECTOR.values).passed
    assert "at no step" in near_thinned("a", ours, ours[:, :100], DETECTOR.values).note


@pytest.fixture
def bare_clone(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> Path:
    """A clone whose tests/goldens holds the small set without its photos, which lie in `photos`."""
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
    photo_cases = {f"detector/{SET}_{name}" for name in (*NAMES, "batch")}
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
    assert "not run" not in done.out and f"detector/{CASE}  given_features" in done.out
    # One of several photos that is not there was lost: that is a miss.
    (shared / "detector" / f"{NAMES[0]}.png").unlink()
    done = conformance("--only", f"*{CASE}")
    assert done.code == 1 and "not run" not in done.out and "No such file" in done.out


def test_without_a_clone_one_line_says_where_the_arrays_are(bare_clone: Path, conformance: Any) -> None:
    shutil.rmtree(bare_clone / "tests")
    done = conformance()
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "tests/goldens of roibeam's repository" in done.err
