"""End-to-end runs with labelled photos: resumed to the bit, the detector judged before and after, what does not fit."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from labelled_world import ATTRIBUTES, CLASSES, COMPUTES, DETECTOR, FEW, write_instances, write_labelled
from photo_store import PhotoStore
from safetensors.torch import load_file
from test_end_to_end_run import TRAIN, assert_same, log, run
from tiny_commands import TINY_ENCODER, TINY_JOINT, Cli, ok, one_line

from roibeam.extraction.training.batch_losses import LOSSES
from roibeam.extraction.weights.loading import build_detector
from roibeam.model.common.fields import EndToEndChoices
from roibeam.pipelines.data.labelled_photos import LabelledPhotos
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.pretraining.end_to_end_encoder import DetectorPart, EndToEnd, JudgedPhotos
from roibeam.pipelines.pretraining.requested_settings import LabelledRules, PhotoRules
from roibeam.pipelines.pretraining.run_setup import PretrainResult
from roibeam.pipelines.training.detector.evaluation import evaluate_detector
from roibeam.pipelines.training.model_files.encoder_settings import LossWeights
from roibeam.pipelines.training.model_files.joint_checkpoint import (
    DETECTION_PREFIX,
    JointDetector,
    load_joint,
    region_encoder_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")

RULES = LabelledRules(photos_per_caption=0.5, short_edges=(32, 48))


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> LabelledPhotos:
    return write_labelled(tmp_path_factory.mktemp("labels") / "photos")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> JudgedPhotos:
    return JudgedPhotos(write_labelled(tmp_path_factory.mktemp("judged") / "photos", first=10), 4)


def through(part: DetectorPart | None) -> EndToEnd:
    choices, photos = EndToEndChoices(whole_image="box"), PhotoRules(short_edges=(32, 48))
    return EndToEnd(DETECTOR, COMPUTES, "random:1", choices=choices, photos=photos, detector=part)


def weights_of(done: PretrainResult, part: str) -> dict[str, torch.Tensor]:
    state = load_file(done.training.checkpoint / "model" / "model.safetensors")
    return {name: tensor for name, tensor in state.items() if name.startswith(part)}


@pytest.fixture(scope="module")
def whole(
    made: PhotoStore, labels: LabelledPhotos, judged: JudgedPhotos, tmp_path_factory: pytest.TempPathFactory
) -> PretrainResult:
    torch.set_num_threads(1)
    part = DetectorPart(labels, judged, RULES, sampling=FEW)
    return run(made, tmp_path_factory.mktemp("runs") / "whole", end_to_end=through(part))


def test_every_loss_stands_in_the_log_and_adds_up(whole: PretrainResult) -> None:
    for line in log(whole):
        parts = ["masked_words", "masked_regions", *(DETECTION_PREFIX + name for name in LOSSES)]
        assert line["loss"] == pytest.approx(sum(line[name] for name in parts), rel=1e-5)
        assert 0 <= line["detection_object_accuracy"] <= 1


def test_a_resumed_run_goes_on_in_the_same_bits(
    made: PhotoStore, labels: LabelledPhotos, judged: JudgedPhotos, whole: PretrainResult, tmp_path: Path
) -> None:
    """Three photos come with each two steps of four captions, so it stops in the middle of an epoch of both."""
    end_to_end = through(DetectorPart(labels, judged, RULES, sampling=FEW))
    run(made, tmp_path / "parts", end_to_end=end_to_end, stop_at_step=1)
    before = (tmp_path / "parts" / "detector.json").read_bytes()
    run(made, tmp_path / "parts", end_to_end=end_to_end, stop_at_step=3, resume=True)
    done = run(made, tmp_path / "parts", end_to_end=end_to_end, resume=True)
    assert_same(done, whole)
    assert done.detector == whole.detector and json.loads(before)["before"] == done.detector["before"]


def test_the_detector_trains_its_heads_and_the_encoder(made: PhotoStore, whole: PretrainResult, tmp_path: Path) -> None:
    without = run(made, tmp_path / "without", end_to_end=through(None))
    ours, theirs = weights_of(whole, "region_encoder."), weights_of(without, "region_encoder.")
    different = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    assert any("res3" in name for name in different) and any("res5" in name for name in different)
    assert not any(part in name for name in different for part in (".norm.", "backbone.stem", "backbone.res2"))
    assert weights_of(whole, "detection.") and not weights_of(without, "detection.")


def test_weights_of_zero_are_a_run_without_labels(made: PhotoStore, labels: LabelledPhotos, tmp_path: Path) -> None:
    part = DetectorPart(labels, None, RULES, LossWeights(**dict.fromkeys(LOSSES, 0.0)), FEW)
    train = dataclasses.replace(TRAIN, clip_norm=0.0)  # a norm over more numbers is rounded otherwise
    ours = run(made, tmp_path / "zero", train=train, end_to_end=through(part))
    theirs = run(made, tmp_path / "none", train=train, end_to_end=through(None))
    for part in ("model.", "region_encoder."):
        left, right = weights_of(ours, part), weights_of(theirs, part)
        assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert ours.evaluation == theirs.evaluation
    assert [line["loss"] for line in log(ours)] == [line["loss"] for line in log(theirs)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rules": dataclasses.replace(RULES, photos_per_caption=0.25)}, "labelled.photos_per_caption: 0.5 -> 0.25"),
        ({"weights": LossWeights(classes=2.0)}, "task.detection.classes: 1.0 -> 2.0"),
        ({"sampling": dataclasses.replace(FEW, regions_per_image=9)}, "detection_sampling.regions_per_image: 8 -> 9"),
        (None, "task.labels: .* -> None"),
    ],
)
def test_another_run_is_not_resumed(
    made: PhotoStore, labels: LabelledPhotos, whole: PretrainResult, changes: dict[str, Any] | None, words: str
) -> None:
    part = None
    if changes is not None:
        part = DetectorPart(**({"labelled": labels, "rules": RULES, "sampling": FEW} | changes))
    with pytest.raises(ValueError, match=words):
        run(made, whole.run_dir, end_to_end=through(part), resume=True)


# --- judged before and after ---


def figures(detector: Any, judged: JudgedPhotos) -> dict[str, Any]:
    """By the code that judges detectors alone."""
    report = evaluate_detector(
        detector, judged.photos.images, judged.photos.root, class_names=CLASSES, attribute_names=ATTRIBUTES,
        max_images=judged.most,
    )  # fmt: skip
    return json.loads(json.dumps(report.as_json()))


def test_the_detector_is_judged_with_first_and_last_weights(whole: PretrainResult, judged: JudgedPhotos) -> None:
    found = json.loads((whole.run_dir / "detector.json").read_text())
    assert found == whole.detector and found["photos"] == 4 and found["labels"] == judged.photos.digest
    first = build_detector(DETECTOR, weights="random:1", conventions=COMPUTES)
    assert found["before"] == figures(first, judged)
    joint = load_joint(whole.training.checkpoint / "model")
    assert isinstance(joint, JointDetector)
    last = joint.detection.detector(region_encoder_of(joint))
    assert found["after"] == figures(last, judged) != found["before"]
    page = (whole.run_dir / "report.html").read_text()
    assert "judged on 4 held-out photos" in page and '<th scope="row">mAP@0.5</th>' in page


def test_untrained_heads_are_judged_around_the_encoder(made: PhotoStore, judged: JudgedPhotos, tmp_path: Path) -> None:
    """Without labels, too: then the heads stay as the weights have them, and the encoder moves away from them."""
    done = run(made, tmp_path / "run", end_to_end=through(DetectorPart(None, judged)))
    assert done.detector is not None and not weights_of(done, "detection.")
    joint = load_joint(done.training.checkpoint / "model")
    first = build_detector(DETECTOR, weights="random:1", conventions=COMPUTES)
    assert done.detector["before"] == figures(first, judged)
    kept = [name for name in first.state_dict() if "res5" not in name and "backbone" not in name]
    state = {name: first.state_dict()[name] for name in kept}
    first.load_state_dict({**region_encoder_of(joint).state_dict(), **state})
    assert done.detector["after"] == figures(first, judged)


# --- what does not fit ---


def test_photos_that_are_trained_on_are_not_judged(labels: LabelledPhotos) -> None:
    with pytest.raises(ValueError, match=r"5 photos of --judge-labels are trained on, such as labelled-0: mAP on them"):
        DetectorPart(labels, JudgedPhotos(labels))


def test_new_heads_have_the_classes_of_the_labels(labels: LabelledPhotos) -> None:
    new = DetectorPart(labels, rules=LabelledRules(heads="new"))
    wide = dataclasses.replace(DETECTOR, num_classes=20, num_attributes=9)
    assert new.sized(wide) == DETECTOR and new.names(DETECTOR) == (CLASSES, ATTRIBUTES)
    with pytest.raises(ValueError, match="the labels have 3 classes and 9 attributes, the detector 20 and 9; --set l"):
        DetectorPart(dataclasses.replace(labels, attribute_names=()), rules=LabelledRules()).names(wide)
    with pytest.raises(ValueError, match="heads that are drawn need photos to learn from; name --labels"):
        DetectorPart(None, rules=LabelledRules(heads="new"))


def test_names_must_mean_the_same(labels: LabelledPhotos) -> None:
    other = Vocabulary(("box", "ball", "cup"), ATTRIBUTES)
    with pytest.raises(ValueError, match="number 0 is 'ball', of the detector 'box'; ids must mean the same in both"):
        DetectorPart(labels, vocabulary=other).names(DETECTOR)
    without = dataclasses.replace(labels, attribute_names=())  # as COCO's
    assert DetectorPart(without).names(DETECTOR)[1] == ("attribute 0", "attribute 1")


def test_what_the_labels_lack_is_told(labels: LabelledPhotos) -> None:
    judged = dataclasses.replace(labels, images=labels.images[:1], left_out={"box without area": 1200})
    part = DetectorPart(dataclasses.replace(labels, images=labels.images[1:]), JudgedPhotos(judged))
    assert part.notes() == ["left out of --judge-labels: 1,200 x box without area"]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_instances(write_labelled(tmp_path / "train"), tmp_path / "train" / "labels.json")
    write_instances(write_labelled(tmp_path / "val", first=10), tmp_path / "val" / "labels.json")
    return tmp_path


def test_a_run_by_the_command_line(roibeam: Cli, made: PhotoStore, world: Path) -> None:
    """COCO's labels and new heads; then a second stage goes on from the first, heads and all."""
    options = ("--store", made.path, "--captions", made.captions, *TINY_JOINT, "--device", "cpu")
    labels = ("--labels", world / "train" / "labels.json", "--judge-labels", world / "val" / "labels.json")
    new = ("labelled.heads=new", "detection.classes=0.5", "detection_sampling.regions_per_image=8")
    more = ("--max-judge-images", 2, *(word for each in new for word in ("--set", each)))
    done = ok(roibeam("pretrain", world / "run", *options, *TINY_ENCODER, *labels, *more))
    assert "the detector on 2 held-out photos, before and after" in done.out and "  mAP@0.5   " in done.out
    config = json.loads((world / "run" / "config.json").read_text())["task"]
    assert config["model"]["detection"] == {"class_names": list(CLASSES), "attribute_names": []}
    assert config["detection"]["classes"] == 0.5 and config["detection_sampling"]["regions_per_image"] == 8
    again = ("--end-to-end", "--from-run", world / "run", *labels)
    done = ok(roibeam("pretrain", world / "second", *options[:4], "--steps", 1, "--batch-size", 4, "--threads", 1,
                   "--device", "cpu", *again, "--json"))  # fmt: skip
    first, second = (json.loads((world / name / "detector.json").read_text()) for name in ("run", "second"))
    assert first["photos"] == 2 and second["photos"] == 5 and json.loads(done.out)["detector"] == second
    begun = load_joint(world / "second" / "checkpoints" / "step-00000001" / "model")
    assert isinstance(begun, JointDetector) and begun.class_names == CLASSES
    # Its detector by itself is judged the same.
    assert roibeam("convert", world / "second", world / "detector", "--to", "detector").code == 0
    judged = ok(roibeam("detector", "evaluate", world / "detector", "--labels", labels[3], "--threads", 1, "--json"))
    report = json.loads(judged.out)
    assert {name: report[name] for name in second["after"]} == second["after"]
    refused = one_line(roibeam("pretrain", world / "third", *options, *again[1:3]))
    assert "was trained end to end: its encoder goes on with it, --end-to-end" in refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--labels {labels}", "--labels is for --end-to-end"),
        ("--labels-photos {tmp}", "--labels-photos is for --labels; name the labels"),
        ("--max-judge-images 3", "--max-judge-images is for --judge-labels"),
        ("--set detection.classes=2", "no section 'detection'"),
        ("--labels {labels}", "the labels have 3 classes and 12 attributes, the detector 20 and 12"),
        ("--labels {labels} --set detection.classes=-1", "the weight classes is -1"),
        ("--labels {labels} --set detection.boxes=1", "no field 'boxes'; choose one of"),
        ("--labels {labels} --judge-labels {labels}", "5 photos of --judge-labels are trained"),
        ("--labels {tmp}/none.json", "none.json"),
        ("--labels {labels} --labels-photos {tmp}", "--labels-photos names the folder of the photos"),
        (
            "--judge-labels {labels} --judge-photos {tmp} --max-judge-images 2",
            "2 of the 2 photos of {labels} are not in {tmp}: ",
        ),
    ],
)
def test_user_errors_are_one_clear_line(roibeam: Cli, made: PhotoStore, world: Path, options: str, words: str) -> None:
    places = {"tmp": world, "labels": world / "train" / "labels.json"}
    given = ["--store", made.path, "--captions", made.captions, *TINY_JOINT]
    given += [] if words.endswith("--end-to-end") else TINY_ENCODER
    refused = one_line(roibeam("pretrain", world / "run", *given, *(each.format(**places) for each in options.split())))
    assert words.format(**places) in refused
    assert not (world / "run" / "log.jsonl").exists()


def test_labelled_photos_that_are_held_out(roibeam: Cli, made: PhotoStore, world: Path) -> None:
    (world / "ids.txt").write_text("labelled-1\nlabelled-3\n")
    options = ("--store", made.path, "--captions", made.captions, *TINY_JOINT, *TINY_ENCODER)
    options += ("--labels", world / "train" / "labels.json", "--set", "labelled.heads=new", "--device", "cpu")
    options += ("--held-out", f"list={world / 'ids.txt'}")
    refused = one_line(roibeam("pretrain", world / "run", *options))
    assert "2 images of 5 must not be trained on" in refused and "the labelled photos of" in refused
    ok(roibeam("pretrain", world / "run", *options, "--drop-held-out"))
