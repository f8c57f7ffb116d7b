"""A detector that was trained here is itself a start, in any conventions and for other classes."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from labelled_world import ATTRIBUTES, CLASSES, COMPUTES, DETECTOR, write_instances, write_labelled
from safetensors.torch import save_file
from tiny_commands import Cli, ok

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.state import CELL_ANCHORS
from roibeam.extraction.training.batch_losses import DetectorTraining, build_trainable_detector
from roibeam.extraction.weights.detector_choice import describe_detector, read_detector_folder
from roibeam.extraction.weights.loading import build_detector, convert_weights, part_state
from roibeam.pipelines.common.statistics.verdict import Figure
from roibeam.pipelines.training.detector.settings import DetectorPhotoRules, Start
from roibeam.pipelines.training.detector.task import JudgedDetectorTask, build_start
from roibeam.pipelines.training.detector.train_request import _settings, _sizes
from roibeam.pipelines.training.requests import DetectorTrainRequest

pytestmark = pytest.mark.usefixtures("one_thread")
CAFFE = CONVENTIONS["caffe"]
HEAD = "roi_heads.box_predictor."


@pytest.fixture(scope="module")
def caffe_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Detector]:
    """A detector's folder as a training with --conventions caffe leaves it, and that detector."""
    return written(tmp_path_factory.mktemp("caffe") / "model", DETECTOR, "caffe")


def written(folder: Path, config: DetectorConfig, conventions: str) -> tuple[Path, Detector]:
    detector = build_detector(config, weights="random:3", conventions=conventions)
    folder.mkdir()
    save_file({name: value.contiguous() for name, value in detector.state_dict().items()}, folder / "model.safetensors")
    names = (CLASSES[: config.num_classes], ATTRIBUTES[: config.num_attributes])
    described = describe_detector(config, CONVENTIONS[conventions], *names)
    (folder / "config.json").write_text(json.dumps(described))
    return folder, detector


def test_a_detector_larger_than_its_weights_is_not_built(tmp_path: Path) -> None:
    folder, _ = written(tmp_path / "model", DETECTOR, "hf")
    described = json.loads((folder / "config.json").read_text())
    for name, value in {"base_channels": 512, "rpn_hidden_channels": 16000, "long_edge": 20_000}.items():
        change = {**described, "detector": {**described["detector"], name: value}}
        (folder / "config.json").write_text(json.dumps(change))
        with pytest.raises(ValueError, match=rf"{folder}.*: .*{name}"):
            build_detector(folder)


def test_a_start_whose_anchors_the_conventions_do_not_compute_is_refused(tmp_path: Path) -> None:
    """The folder that a training writes would state other anchors than it learned with."""
    _, detector = written(tmp_path / "model", DETECTOR, "hf")
    others = cell_anchors(DETECTOR, CONVENTIONS["milvlg"])
    assert not torch.equal(others, cell_anchors(DETECTOR, CONVENTIONS["hf"]))
    weights = {name: value.contiguous() for name, value in detector.state_dict().items()}
    save_file({**weights, CELL_ANCHORS: others}, tmp_path / "own.safetensors")
    start = Start(weights=str(tmp_path / "own.safetensors"), resnet=None, frozen_stages=())
    with pytest.raises(ValueError, match=r"anchors of its own.*choose the conventions of that file"):
        build_start(DETECTOR, CONVENTIONS["hf"], start, seed=0)


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0)


def test_a_file_of_caffe_is_read_by_the_config_beside_it(caffe_folder: tuple[Path, Detector], tmp_path: Path) -> None:
    """Its names are Hugging Face's, its rows Caffe's: without the config nothing tells where background is."""
    folder, detector = caffe_folder
    weights = str(folder / "model.safetensors")
    known = read_detector_folder(folder)
    again = build_detector(known.config, weights=known.weights, conventions=known.conventions)
    assert_equal(again.state_dict(), detector.state_dict())
    assert isinstance(again.proposal_generator.cell_anchors, torch.Tensor)
    torch.testing.assert_close(again.proposal_generator.cell_anchors, detector.proposal_generator.cell_anchors)
    resnet = {name: value for name, value in detector.state_dict().items() if name.startswith("backbone.")}
    res5 = {name: value for name, value in detector.state_dict().items() if name.startswith("roi_heads.res5.")}
    assert_equal(part_state(weights, {**resnet, **res5}), {**resnet, **res5})
    hf = build_detector(DETECTOR, weights=weights, conventions="hf")
    torch.testing.assert_close(  # background goes from the first row to the last
        hf.state_dict()[f"{HEAD}cls_score.bias"], detector.state_dict()[f"{HEAD}cls_score.bias"].roll(-1)
    )
    convert_weights(weights, tmp_path / "hf.safetensors", to="safetensors", config=DETECTOR)
    converted = build_detector(DETECTOR, weights=str(tmp_path / "hf.safetensors"), conventions="hf")
    assert_equal(converted.state_dict(), hf.state_dict())
    # A converted file in the place of the written one is told by its shapes, as before.
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "hf.safetensors").rename(tmp_path / "model.safetensors")
    again = build_detector(DETECTOR, weights=str(tmp_path / "model.safetensors"), conventions="hf")
    assert_equal(again.state_dict(), hf.state_dict())


@pytest.mark.parametrize("beside", [None, "{", '{"model_type": "vlbert"}'])
def test_without_that_config_it_is_refused_as_before(
    caffe_folder: tuple[Path, Detector], tmp_path: Path, beside: str | None
) -> None:
    (tmp_path / "model.safetensors").write_bytes((caffe_folder[0] / "model.safetensors").read_bytes())
    if beside is not None:
        (tmp_path / "config.json").write_text(beside)
    with pytest.raises(ValueError, match="the place of its background row is unknown"):
        build_detector(DETECTOR, weights=str(tmp_path / "model.safetensors"), conventions="caffe")


@pytest.mark.parametrize(
    ("classes", "attributes", "anew"),
    [
        (CLASSES, ATTRIBUTES, set()),
        (("dog", "cat"), ATTRIBUTES, {"cls_score", "bbox_pred", "cls_embedding"}),
        (("cup", "box", "ball"), ATTRIBUTES, {"cls_score", "bbox_pred", "cls_embedding"}),  # as many, in another order
        (CLASSES, ("big",), {"attr_score"}),
        (("dog", "cat"), (), {"cls_score", "bbox_pred"}),  # and no attribute head
    ],
)
def test_other_classes_take_all_but_the_layers_that_know_them(
    caffe_folder: tuple[Path, Detector], caplog: pytest.LogCaptureFixture, classes: tuple[str, ...],
    attributes: tuple[str, ...], anew: set[str],
) -> None:  # fmt: skip
    folder, first = caffe_folder
    config = replace(DETECTOR, num_classes=len(classes), num_attributes=len(attributes))
    with caplog.at_level("INFO"):
        begun = build_start(config, CAFFE, Start(str(folder)), seed=0, names=(classes, attributes)).state_dict()
    before = first.state_dict()
    stayed = {name for name in begun if name not in before or not torch.equal(begun[name], before[name])}
    assert {name.removeprefix(HEAD).rpartition(".")[0] for name in stayed} == anew
    told = [line for line in caplog.messages if line.startswith("starting from")]
    assert len(told) == 1 and all(layer in told[0] for layer in anew)
    assert ("start anew" in told[0]) == bool(anew)


def test_attributes_that_the_folder_has_not_start_anew(tmp_path: Path) -> None:
    folder, _ = written(tmp_path / "model", replace(DETECTOR, num_attributes=0), "hf")
    start = build_start(DETECTOR, CONVENTIONS["hf"], Start(str(folder)), seed=0, names=(CLASSES, ATTRIBUTES))
    weight = start.state_dict()[f"{HEAD}attr_score.weight"]
    assert float(weight.std()) == pytest.approx(0.01, rel=0.2)


def test_the_folder_brings_sizes_and_conventions(caffe_folder: tuple[Path, Detector]) -> None:
    request = DetectorTrainRequest(labels="x", weights=str(caffe_folder[0]))
    assert _sizes(request) == DETECTOR
    settings = _settings(request, DETECTOR)
    assert settings.conventions == CAFFE and settings.start.frozen_stages == (1, 2)
    assert _settings(replace(request, conventions="hf"), DETECTOR).conventions == CONVENTIONS["hf"]


def test_fine_tuning_from_a_folder(roibeam: Any, caffe_folder: tuple[Path, Detector], tmp_path: Path) -> None:
    """From the command line, and what stands in the way of the two options that name sizes."""
    photos = write_labelled(tmp_path / "photos")
    labels = write_instances(photos, tmp_path / "photos" / "instances.json")
    folder = str(caffe_folder[0])
    options = ["--labels", labels, "--device", "cpu", "--steps", 1, "--batch-size", 1]
    for given, words in (
        (["--detector", folder], f"give --weights {folder}"),
        (["--detector", "toy", "--weights", folder], "leave --detector out"),
        (["--weights", str(tmp_path)], "config.json is missing"),
        (["--resnet", folder], "is a folder; name a file"),
    ):
        failed = roibeam("detector", "train", tmp_path / "run", *options, *given)
        assert failed.code == 1 and words in failed.err
    done = ok(roibeam("detector", "train", tmp_path / "run", *options, "--weights", folder, "--json"))
    assert "0 attributes in place of its 2; these layers start anew" not in done.err
    trained = read_detector_folder(json.loads(done.out)["detector"])
    assert trained.conventions == CAFFE and trained.class_names == CLASSES and trained.config.num_attributes == 0
    again = build_detector(trained.config, weights=trained.weights, conventions=trained.conventions)
    assert again.num_classes == len(CLASSES)


@pytest.mark.parametrize(("steps", "warmup", "expected"), [(9000, None, 1000), (6, None, 2), (6, 4, 4), (600, 0, 0)])
def test_the_warm_up_that_was_asked_for_is_taken(steps: int, warmup: int | None, expected: int) -> None:
    """Guards against `--warmup-steps 5` of 6 steps becoming 2 without a word; a default may be cut."""
    request = DetectorTrainRequest(labels="x", steps=steps, warmup_steps=warmup)
    assert _settings(request, DETECTOR).train.warmup_steps == expected


def test_a_warm_up_past_the_first_fall_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--warmup-steps 5: of 6 steps the learning rate first falls after 4"):
        _settings(DetectorTrainRequest(labels="x", steps=6, warmup_steps=5), DETECTOR)


# --- judged on other photos while it is trained ---


@pytest.fixture
def options(tmp_path: Path) -> list[Any]:
    """A small detector on five photos."""
    labels = write_instances(write_labelled(tmp_path / "train"), tmp_path / "train" / "instances.json")
    return [
        "--labels", labels, "--detector", "toy", "--device", "cpu", "--batch-size", 1, "--learning-rate", 0.01,
        "--set", "detector.base_channels=4", "--set", "detector.short_edge=48", "--set", "detector.long_edge=64",
        "--set", "detector.proposals_before_nms=60", "--set", "detector.proposals_after_nms=20",
    ]  # fmt: skip


def test_evaluations_are_those_of_the_command(roibeam: Any, options: list[Any], tmp_path: Path) -> None:
    """Guards the numbers: those of the last checkpoint, judged afterwards, and that judging changes no training."""
    val = write_instances(write_labelled(tmp_path / "val", first=7), tmp_path / "val" / "instances.json")
    judged = ("--val-labels", val, "--set", "train.evaluate_every=2")
    done = ok(roibeam("detector", "train", tmp_path / "run", *options, "--steps", 2, *judged, "--json"))
    facts = json.loads(done.out)
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2]
    assert set(facts["evaluation"]) == {"average_precision", "coco_precision", "object_recall"}
    assert facts["best"] is not None
    after = roibeam("detector", "evaluate", facts["detector"], "--labels", val, "--json")
    report = json.loads(after.out)
    assert facts["evaluation"]["average_precision"] == report["objects"]["mean"]
    assert facts["evaluation"]["object_recall"] == pytest.approx(report["region_recall"]["recall"])
    assert "mAP@0.5" in (tmp_path / "run" / "report.html").read_text()
    alone = roibeam("detector", "train", tmp_path / "alone", *options, "--steps", 2, "--json")
    assert json.loads(alone.out)["last"]["loss"] == facts["last"]["loss"]


def test_what_is_taken_of_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each name has its own number: those of the network above are nearly all zero."""
    figure = Figure("attribute_accuracy", 0.5, None, None, 0.25, None, 4)
    report = SimpleNamespace(
        objects=SimpleNamespace(mean=0.1, weighted_mean=0.2, low=0.0, high=0.2),
        coco=SimpleNamespace(ap=0.3, ap50=0.6),
        region_recall=SimpleNamespace(recall=0.4),
        attribute_accuracy=SimpleNamespace(given_boxes=0.5, matched_boxes=0.7, figure=figure),
    )
    monkeypatch.setattr("roibeam.pipelines.training.detector.task.evaluate_photos", lambda *given, **named: report)
    photos = write_labelled(tmp_path / "photos")
    training = DetectorTraining(build_trainable_detector(DETECTOR, COMPUTES))
    task = JudgedDetectorTask(training, photos, DetectorPhotoRules(), photos, seed=0)
    expected = {"average_precision": 0.1, "coco_precision": 0.3, "object_recall": 0.4, "attribute_accuracy": 0.5}
    assert task.evaluate() == expected


def test_photos_that_are_trained_on_are_refused(roibeam: Cli, options: list[Any], tmp_path: Path) -> None:
    """And labels of other classes, and photos that are not there."""

    def line(*given: object) -> str:
        failed = roibeam("detector", "train", tmp_path / "run", *options, "--steps", 1, *given)
        assert failed.code == 1 and not (tmp_path / "run").exists()
        return str(failed.err)

    assert "--labels too has 5 photos of it, such as 'labelled-0.png'" in line("--val-labels", options[1])
    assert "give that too" in line("--val-photos", str(tmp_path))
    val = write_instances(write_labelled(tmp_path / "val", first=7), tmp_path / "val" / "instances.json")
    before = val.read_text()
    val.write_text(before.replace('"ball"', '"dog"'))
    assert "number 0 is 'dog'" in line("--val-labels", str(val))
    val.write_text(before)
    (tmp_path / "val" / "labelled-7.png").unlink()
    assert "--val-photos names the folder of the photos" in line("--val-labels", str(val))
