"""A detector judged on other photos while it is trained: the numbers of `detector evaluate`, and the best one kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from labelled_world import COMPUTES, DETECTOR, write_instances, write_labelled

from roibeam.extraction.training.batch_losses import DetectorTraining, build_trainable_detector
from roibeam.pipelines.common.statistics.verdict import Figure
from roibeam.pipelines.training.detector.settings import DetectorPhotoRules
from roibeam.pipelines.training.detector.task import JudgedDetectorTask

pytestmark = pytest.mark.usefixtures("one_thread")


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
    judged = roibeam(
        "detector", "train", tmp_path / "run", *options, "--steps", 2, "--val-labels", val,
        "--set", "train.evaluate_every=2", "--json",
    )  # fmt: skip
    assert judged.code == 0, judged.err
    facts = json.loads(judged.out)
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
    report = SimpleNamespace(
        objects=SimpleNamespace(mean=0.1, weighted_mean=0.2),
        coco=SimpleNamespace(ap=0.3, ap50=0.6),
        region_recall=SimpleNamespace(recall=0.4),
        attribute_accuracy=SimpleNamespace(
            given_boxes=0.5,
            matched_boxes=0.7,
            figure=Figure("attribute_accuracy", 0.5, None, None, 0.25, None, 4),
        ),
    )
    monkeypatch.setattr("roibeam.pipelines.training.detector.task.evaluate_photos", lambda *given, **named: report)
    photos = write_labelled(tmp_path / "photos")
    training = DetectorTraining(build_trainable_detector(DETECTOR, COMPUTES))
    task = JudgedDetectorTask(training, photos, DetectorPhotoRules(), photos, seed=0)
    expected = {"average_precision": 0.1, "coco_precision": 0.3, "object_recall": 0.4, "attribute_accuracy": 0.5}
    assert task.evaluate() == expected


def test_photos_that_are_trained_on_or_of_other_classes_are_refused(
    roibeam: Any, options: list[Any], tmp_path: Path
) -> None:
    def line(*given: object) -> str:
        failed = roibeam("detector", "train", tmp_path / "run", *options, "--steps", 1, *given)
        assert failed.code == 1 and not (tmp_path / "run").exists()
        return str(failed.err)

    assert "--labels too has 5 photos of it, such as 'labelled-0.png'" in line("--val-labels", options[1])
    assert "give that too" in line("--val-photos", str(tmp_path))
    val = write_instances(write_labelled(tmp_path / "val", first=7), tmp_path / "val" / "instances.json")
    content = json.loads(val.read_text())
    content["categories"][0]["name"] = "dog"
    val.write_text(json.dumps(content))
    assert "number 0 is 'dog'" in line("--val-labels", str(val))
    content["categories"][0]["name"] = "ball"
    val.write_text(json.dumps(content))
    (tmp_path / "val" / "labelled-7.png").unlink()
    assert "--val-photos names the folder of the photos" in line("--val-labels", str(val))
