"""Detectors trained on labelled photos: the same batches anywhere, resumed to the bit, from both kinds of files."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from labelled_world import COMPUTES, FEW
from safetensors.torch import load_file, save_file
from tiny_commands import ok, refused
from torch import nn
from toy_training import log_of

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.training.batch_losses import LOSSES, DetectorTraining, build_trainable_detector, initialise
from roibeam.extraction.weights.detector_choice import read_detector_folder
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.data.labelled_photos import open_labelled_photos, read_photo
from roibeam.pipelines.toyworld.write import write_world
from roibeam.pipelines.training.detector.settings import DetectorPhotoRules, DetectorSettings, Start
from roibeam.pipelines.training.detector.task import DetectorTask, build_start, train_detector
from roibeam.pipelines.training.train_config import TrainConfig
from roibeam.pipelines.training.train_step import blame

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = DetectorConfig(
    depth=26, base_channels=4, num_classes=24, num_attributes=19, anchor_sizes=(16, 32), rpn_hidden_channels=8,
    pooled_cells=7, proposals_before_nms=60, proposals_after_nms=20, short_edge=64, long_edge=96,
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A toy world of 40 pictures: 12 in Visual Genome's train, 8 in COCO's train."""
    folder = tmp_path_factory.mktemp("toy") / "world"
    write_world(folder, seed=5, num_images=40, workers=1)
    return folder


@pytest.fixture(scope="module")
def photos(world):
    return open_labelled_photos(str(world / "visual_genome" / "train.txt"))


def task_on(photos, *, seed=0, config=TINY, **rules):
    detector = build_trainable_detector(config, COMPUTES, norm=nn.BatchNorm2d)
    initialise(detector, torch.Generator().manual_seed(0))
    return DetectorTask(DetectorTraining(detector, sampling=FEW), photos, DetectorPhotoRules(**rules), seed=seed)


def taken(task, count, *, start=0, rank=0, num_ranks=1):
    stream = task.batches(start, rank=rank, num_ranks=num_ranks)
    return [next(stream) for _ in range(count)]


def photos_of(batches):
    """Each photo of some batches without its padding: id, pixels, boxes, seed."""
    return [
        (name, batch.photos.pixels[row, :, : hw[0], : hw[1]], batch.photos.objects[row].boxes, batch.photos.seeds[row])
        for batch in batches
        for row, (name, hw) in enumerate(zip(batch.image_ids, batch.photos.input_hw, strict=True))
    ]


def assert_same_photos(left, right):
    assert [row[0] for row in left] == [row[0] for row in right]
    for ours, theirs in zip(left, right, strict=True):
        assert torch.equal(ours[1], theirs[1]) and torch.equal(ours[2], theirs[2]) and ours[3] == theirs[3]


def settings(**changes):
    defaults = {"steps": 6, "learning_rate": 1e-2, "warmup_steps": 2, "schedule": "steps", "decay_steps": (4,)}
    return TrainConfig(**(defaults | {"optimizer": "sgd", "device": "cpu", "checkpoint_every": 2, "keep": 0} | changes))


def run(photos, folder, /, **options):
    ways = {name: options.pop(name) for name in ("resume", "stop_at_step") if name in options}
    defaults = {"config": TINY, "conventions": COMPUTES, "train": settings(), "sampling": FEW}
    return train_detector(photos, folder, DetectorSettings(**(defaults | options)), **ways)


def test_a_photo_that_spoils_a_step_is_named_alone(photos):
    """Its batch split photo by photo has the same losses, and the one with a NaN among its pixels is the one blamed."""
    task = task_on(photos, batch_size=3)
    batch = next(task.batches(0, rank=0, num_ranks=1))
    task.model.eval()
    with torch.no_grad():
        whole = task.losses(task.model, batch).losses
        parts = [task.losses(task.model, single).losses for single in task.one_by_one(batch)]
    for name, term in whole.items():
        torch.testing.assert_close(sum(part[name].total for part in parts), term.total, rtol=1e-4, atol=1e-5)
    batch.photos.pixels[1, :, 5, 5] = float("nan")
    said = blame(task, [batch], Accelerator(cpu=True))
    assert said.startswith(f"not finite by itself: {batch.image_ids[1]} (of 3 samples in the step)")


def test_photos_do_not_depend_on_batch_size_or_processes(photos):
    task = task_on(photos, batch_size=4, short_edges=(48, 64))
    alone = photos_of(taken(task, 6))
    assert_same_photos(alone, photos_of(taken(task_on(photos, batch_size=1, short_edges=(48, 64)), 24)))
    ranks = [taken(task_on(photos, batch_size=2, short_edges=(48, 64)), 6, rank=r, num_ranks=2) for r in (0, 1)]
    assert_same_photos(alone, photos_of([batch for pair in zip(*ranks, strict=True) for batch in pair]))
    assert_same_photos(alone[4:], photos_of(taken(task, 5, start=4)))


def test_an_epoch_shows_each_photo_once_and_the_next_one_otherwise(photos):
    task = task_on(photos, batch_size=4, short_edges=(48, 64))
    assert task.num_samples == 12
    names, pixels, _, seeds = zip(*photos_of(taken(task, 6)), strict=True)
    assert sorted(names[:12]) == sorted(names[12:]) == sorted(each.image_id for each in photos.images)
    assert names[:12] != names[12:]
    assert {min(each.shape[1:]) for each in pixels} == {48, 64}
    pairs = [(names.index(name), place) for place, name in enumerate(names[12:], 12)]
    assert any(pixels[a].shape == pixels[b].shape and not torch.equal(pixels[a], pixels[b]) for a, b in pairs)
    assert all(seeds[a] != seeds[b] for a, b in pairs)


def test_boxes_go_along_with_the_mirrored_photo(photos, tmp_path):
    """A white box drawn where the object's box is, is where the box is, mirrored or not."""
    whole = photos.images[0]
    image = replace(
        whole, file_name="one.png", boxes=whole.boxes[:1], class_ids=whole.class_ids[:1],
        attribute_ids=whole.attribute_ids[:1], ignored=np.array([False]),
    )  # fmt: skip
    canvas = np.zeros((*image.image_hw, 3), np.uint8)
    x1, y1, x2, y2 = image.boxes[0].round().astype(int)
    canvas[y1:y2, x1:x2] = 255
    cv2.imwrite(str(tmp_path / "one.png"), canvas)
    lefts = set()
    for number in range(8):
        task = task_on(replace(photos, images=(image,), root=str(tmp_path)), seed=number, batch_size=1)
        _, pixels, boxes, _ = photos_of(taken(task, 1))[0]
        rows, columns = np.nonzero(pixels[0].numpy() > float(pixels[0].min()) + 100)
        white = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(boxes[0].numpy(), white, atol=1.5)
        lefts.add(round(float(boxes[0, 0])))
    assert len(lefts) == 2


def test_photos_without_objects_are_not_trained_on(photos):
    blind = [replace(image, ignored=np.ones(len(image.ignored), bool)) for image in photos.images[:5]]
    assert task_on(replace(photos, images=(*blind, *photos.images[5:]))).num_samples == 7


def test_an_interrupted_run_ends_in_the_same_bits(photos, tmp_path):
    rules = DetectorPhotoRules(batch_size=2, short_edges=(48, 64))
    straight = run(photos, tmp_path / "straight", photos=rules)
    run(photos, tmp_path / "halves", photos=rules, stop_at_step=3)
    halves = run(photos, tmp_path / "halves", photos=rules, resume=True)
    assert log_of(tmp_path / "straight") == log_of(tmp_path / "halves")
    ours, theirs = (load_file(each.checkpoint / "model" / "model.safetensors") for each in (straight, halves))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    rates = [line["learning_rate"] for line in log_of(tmp_path / "straight")]
    np.testing.assert_allclose(rates, [5e-3, 1e-2, 1e-2, 1e-2, 1e-3, 1e-3])
    last = log_of(tmp_path / "straight")[-1]
    assert last["loss"] == pytest.approx(sum(last[name] for name in LOSSES))


def test_other_labels_are_another_run(photos, tmp_path):
    run(photos, tmp_path / "run", stop_at_step=2)
    fewer = replace(photos, images=photos.images[1:])
    with pytest.raises(ValueError, match=r"belongs to another configuration.*task\.labels"):
        run(fewer, tmp_path / "run", resume=True)


def test_a_checkpoint_is_a_detectors_folder(photos, tmp_path):
    folder = read_detector_folder(run(photos, tmp_path / "run").checkpoint / "model")
    assert (folder.config, folder.conventions) == (TINY, COMPUTES)
    assert folder.class_names == photos.class_names and folder.attribute_names == photos.attribute_names
    detector = build_detector(folder.config, weights=folder.weights, conventions=folder.conventions)
    assert not torch.equal(load_file(folder.weights)["backbone.stem.conv1.norm.running_var"], torch.ones(4))
    regions = detector([read_photo(photos.images[0], photos.root, "applied")])[0]
    assert len(regions.boxes) and regions.class_probabilities.shape[1] == 25
    assert regions.attribute_ids is not None and regions.attribute_ids.max() < 19


def test_frozen_stages_and_norms_of_a_weight_file_stay(photos, tmp_path):
    start = Start(weights="random:1", frozen_stages=(1, 2))
    result = run(photos, tmp_path / "run", start=start, train=settings(clip_norm=1.0))
    before = build_start(TINY, COMPUTES, start, seed=0).state_dict()
    after = load_file(result.checkpoint / "model" / "model.safetensors")
    stays = [name for name in after if name.startswith(("backbone.stem", "backbone.res2")) or ".norm." in name]
    assert stays and all(torch.equal(before[name], after[name]) for name in stays)
    moved = [name for name in after if name not in stays and not name.endswith("cell_anchors.0")]
    assert all(not torch.equal(before[name], after[name]) for name in moved)


def test_a_resnet_of_another_detector_starts_a_new_one(photos, tmp_path):
    first = build_detector(replace(TINY, num_classes=3, num_attributes=2), weights="random:2", conventions=COMPUTES)
    path = tmp_path / "other.safetensors"
    save_file(dict(first.state_dict()), path)
    begun = build_start(TINY, COMPUTES, Start(resnet=str(path)), seed=0).state_dict()
    for name, tensor in first.state_dict().items():
        if name.startswith(("backbone.", "roi_heads.res5.")):
            assert torch.equal(begun[name], tensor)
    with pytest.raises(ValueError, match="misshapen"):
        build_start(TINY, COMPUTES, Start(weights=str(path)), seed=0)


def test_settings_that_do_not_go_together(photos, tmp_path):
    with pytest.raises(ValueError, match="from scratch must be trained"):
        Start(frozen_stages=(1,))
    with pytest.raises(ValueError, match="over the detector's long_edge"):
        run(photos, tmp_path / "run", photos=DetectorPhotoRules(short_edges=(9000,)))


@pytest.mark.slow
def test_it_learns(photos, tmp_path):
    """On two photos the classes come out right within some steps."""
    pair = replace(photos, images=photos.images[:2])
    result = run(
        pair, tmp_path / "run",
        config=replace(TINY, base_channels=8),
        sampling=replace(FEW, regions_per_image=32, region_positive_fraction=0.5),
        train=settings(steps=40, warmup_steps=5, decay_steps=(), learning_rate=2e-2, checkpoint_every=0),
        photos=DetectorPhotoRules(batch_size=2, flip=False),
    )  # fmt: skip
    first, last = log_of(tmp_path / "run")[0], result.last
    assert last["loss"] < 0.5 * first["loss"] and last["object_accuracy"] > 0.5 > first["object_accuracy"]


def test_coco_trains_a_detector_without_attributes(world, tmp_path):
    coco = world / "coco"
    labels = coco / "annotations" / "instances_train2014.json"
    photos = open_labelled_photos(str(labels), image_root=str(coco / "train2014"))
    assert len(photos.class_names) == 24 and photos.attribute_names == ()
    result = run(photos, tmp_path / "run", config=replace(TINY, num_attributes=0))
    assert result.last["attributes"] == 0 and result.last["attribute_accuracy"] is None
    folder = read_detector_folder(result.checkpoint / "model")
    assert not any("attr" in name or "embedding" in name for name in load_file(folder.weights))
    detector = build_detector(folder.config, weights=folder.weights, conventions=folder.conventions)
    regions = detector([read_photo(photos.images[0], photos.root, "applied")])[0]
    assert regions.attribute_ids is None and regions.attribute_scores is None


@pytest.fixture(scope="module")
def command_options(world):
    """Of a network of milliseconds; the labels first."""
    return [
        "--labels", world / "visual_genome" / "train.txt", "--detector", "toy", "--conventions", "vlbert-e2e",
        "--device", "cpu", "--steps", 4, "--warmup-steps", 1,
        "--set", "detector.base_channels=4", "--set", "detector.short_edge=64", "--set", "detector.long_edge=96",
        "--set", "detector.proposals_before_nms=60", "--set", "detector.proposals_after_nms=20",
        "--set", "sampling.proposals_before_nms=80", "--set", "sampling.proposals_after_nms=30",
    ]  # fmt: skip


@pytest.mark.slow
def test_two_processes_are_two_micro_batches(tmp_path, command_options):
    tools, options = Path(sys.executable).parent, ("--weights", "random:1", "--batch-size", 1, "--learning-rate", 0.001)
    train = (tools / "roibeam", "detector", "train")
    common = (*command_options, *options)
    launched = (tools / "torchrun", "--no-python", "--standalone", "--nproc-per-node", 2, *train)
    for command in (
        (*train, tmp_path / "alone", *common, "--set", "train.accumulation=2"),
        (*launched, tmp_path / "pair", *common),
    ):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    runs = (log_of(tmp_path / name) for name in ("alone", "pair"))
    for ours, theirs in zip(*runs, strict=True):
        assert ours["samples"] == theirs["samples"]
        for name in (*LOSSES, "loss", "gradient_norm", "proposal_recall"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-7, err_msg=name)


def test_train_evaluate_extract(roibeam, world, tmp_path, command_options):
    out = tmp_path / "run"
    assert "  steps      4 of" in ok(roibeam("detector", "train", out, *command_options, "--dry-run")).out
    assert not out.exists()
    facts = json.loads(ok(roibeam("detector", "train", out, *command_options, "--json")).out)
    assert facts["step"] == 4
    page = (out / "report.html").read_text()
    assert "24 classes, 19 attributes" in page.partition("</header>")[0]
    # Of each step: its number, rate, norm, loss, its five parts, three metrics.
    assert len(re.findall("<th[ >]", page.partition("<h2>Steps")[2].partition("</thead>")[0])) == 12
    evaluate = ("detector", "evaluate", facts["detector"], "--labels", world / "visual_genome" / "val.txt")
    assert json.loads(ok(roibeam(*evaluate, "--json")).out)["num_images"] == 1
    assert "mAP@0.5" in ok(roibeam(*evaluate)).out
    store = tmp_path / "store"
    ok(roibeam("extract", world / "visual_genome" / "VG_100K", store, "--detector", out))
    assert read_detector_folder(out) == read_detector_folder(facts["detector"])  # the newest checkpoint
    info = roibeam("store", "info", store)
    assert "24" in info.out and "19" in info.out
    assert "already holds a run" in refused(roibeam("detector", "train", out, *command_options, "--no-resume"))
    apart = refused(roibeam("detector", "train", tmp_path / "new", *command_options, "--photos", tmp_path))
    assert "--photos names the folder of the photos" in apart
    same = roibeam("detector", "train", out, *command_options, "--json")
    assert json.loads(same.out)["last"] == facts["last"]  # nothing was left to do
    assert facts["started_from"] == "new weights" and ">new weights<" in page


def test_what_it_started_from_is_on_page_terminal_and_in_json(roibeam, tmp_path, command_options):
    """A folder of a detector, a file, a ResNet: as it was named, with the run that it is of."""
    first, second = tmp_path / "first", tmp_path / "second"
    ok(roibeam("detector", "train", first, *command_options))
    folder = first / "checkpoints" / "step-00000004" / "model"
    labels, sizes, once = command_options[:2], command_options[6:], ("--steps", 1, "--warmup-steps", 0)
    assert read_detector_folder(folder.parent) == read_detector_folder(folder)  # a checkpoint stands for its detector
    done = ok(roibeam("detector", "train", second, *labels, *sizes, *once, "--weights", folder))
    told = f"{folder} (step 4 of the run {first})"
    assert f"started from {told}" in done.out and told in (second / "report.html").read_text()
    third = (tmp_path / "third", *command_options, *once, "--resnet", f"{folder}/model.safetensors")
    facts = json.loads(roibeam("detector", "train", *third, "--json").out)
    assert facts["started_from"].startswith(f"the ResNet of {folder}/model.safetensors (step 4 of the run")


def test_a_photo_of_another_size_is_refused(photos, tmp_path):
    image = photos.images[0]
    path = tmp_path / image.file_name
    path.parent.mkdir(parents=True)
    cv2.imwrite(str(path), np.zeros((50, 60, 3), np.uint8))
    with pytest.raises(ValueError, match=r"60x50 pixels, its labels were made for"):
        read_photo(image, str(tmp_path), "applied")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "newer roibeam"),
        ({"class_names": ["one"]}, "1 class and 19 attribute names"),
        ({"class_names": "cat"}, "must be a list of names"),
        ({"detector": {"depth": 26}}, "missing or unknown"),
        ({"conventions": None}, "must have the fields of Conventions"),
    ],
)
def test_folders_that_are_no_detectors(photos, tmp_path, change, message):
    task = task_on(photos)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        read_detector_folder(folder)
    (folder / "config.json").write_text(json.dumps({**task.model_config(), **change}))
    with pytest.raises(ValueError, match=message):
        read_detector_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not json"):
        read_detector_folder(folder)
