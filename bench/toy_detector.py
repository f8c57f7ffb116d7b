"""Makes the detector that ships with the project: `make toy-detector`, at most 2 hours on 2 cores.

Draws a world, trains on its Visual Genome photos, judges the result on worlds of other seeds, and writes
extraction/toy_detector/ with its model card. All else is kept in build/toy-detector/; a killed run goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from roibeam.extraction.network.state import is_weight, weights_digest
from roibeam.extraction.weights.detector_choice import CONFIG_NAME, SHIPPED, WEIGHTS_NAME, read_detector_folder
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.data.labelled_photos import open_labelled_photos
from roibeam.pipelines.toyworld.write import write_world
from roibeam.pipelines.training.detector.evaluation import evaluate_detector
from roibeam.pipelines.training.detector.report import DetectionReport
from roibeam.pipelines.training.run_folder.files import latest_checkpoint

BIN = Path(sys.executable).parent
PROCESSES = 2
TRAIN_SEED, TRAIN_IMAGES = 0, 24_000
UNSEEN_SEEDS, UNSEEN_IMAGES = (1, 2), 1000
STEPS = 8000
OPTIONS = [
    "--detector", "toy", "--conventions", "vlbert-e2e", "--set", "conventions.res5_dilation=1",
    "--steps", str(STEPS), "--warmup-steps", "200", "--set", "train.schedule=linear",
    "--batch-size", "4", "--learning-rate", "0.003", "--device", "cpu",
    "--set", "train.optimizer=adamw", "--set", "train.weight_decay=0.05",
    "--set", "sampling.regions_per_image=24", "--set", "sampling.region_positive_fraction=0.5",
    "--set", "sampling.proposals_before_nms=1000", "--set", "sampling.proposals_after_nms=200",
    "--set", "sampling.anchors_per_image=128", "--set", "train.checkpoint_every=200",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/toy-detector"), help="folder of worlds and run")
    build = parser.parse_args().build
    write_world(build / "world", seed=TRAIN_SEED, num_images=TRAIN_IMAGES, workers=PROCESSES)
    command = train(build)
    folder = SHIPPED["toy"]
    ship(build / "run", folder)
    reports = [judge(build, folder, seed) for seed in UNSEEN_SEEDS]
    seconds = training_seconds(build / "run")
    (folder / "README.md").write_text(card(folder, command, seconds, reports), encoding="utf-8")
    print(f"{folder}: {(folder / WEIGHTS_NAME).stat().st_size:,} bytes, trained in {seconds / 60:.0f} min")
    for seed, report in zip(UNSEEN_SEEDS, reports, strict=True):
        print(f"  world {seed}: mAP@0.5 {report.objects.mean:.4f}")


def train(build: Path) -> str:
    """Trains, or goes on, or finds it done; returns the command for people."""
    labels = build / "world" / "visual_genome" / "train.txt"
    words = ["detector", "train", str(build / "run"), "--labels", str(labels), *OPTIONS]
    newest = latest_checkpoint(build / "run")
    if newest is None or newest.name != f"step-{STEPS:08d}":
        launcher = [BIN / "torchrun", "--no-python", "--nproc-per-node", str(PROCESSES), BIN / "roibeam", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        subprocess.run([*launcher, *(["--resume"] if newest is not None else [])], check=True, env=environment)
    return " ".join(["torchrun --no-python --nproc-per-node", str(PROCESSES), "roibeam", *words])


def ship(run: Path, folder: Path) -> None:
    """The newest checkpoint, its matrices in half precision, without what only training needs."""
    newest = latest_checkpoint(run)
    assert newest is not None
    weights = load_file(newest / "model" / WEIGHTS_NAME)
    folder.mkdir(exist_ok=True)
    # Norms stay in float32: the stem's variances, of pixels up to 255, are more than float16 holds.
    shipped = {name: value.half() if value.ndim > 1 else value for name, value in weights.items() if is_weight(name)}
    save_file(shipped, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    (folder / WEIGHTS_NAME).chmod(0o644)
    (folder / CONFIG_NAME).write_bytes((newest / "model" / CONFIG_NAME).read_bytes())


def judge(build: Path, folder: Path, seed: int) -> DetectionReport:
    """On the photos for Visual Genome's train of a world of another seed."""
    world = build / f"unseen-{seed}"
    write_world(world, seed=seed, num_images=UNSEEN_IMAGES, workers=PROCESSES)
    photos = open_labelled_photos(str(world / "visual_genome" / "train.txt"))
    known = read_detector_folder(folder)
    return evaluate_detector(
        build_detector(known.config, weights=known.weights, conventions=known.conventions),
        photos.images,
        photos.root,
        class_names=photos.class_names,
        attribute_names=photos.attribute_names,
    )


def training_seconds(run: Path) -> float:
    """Time in the loop, over all pieces of the run: the clock in the log begins anew with each."""
    clock = [json.loads(line)["seconds"] for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return sum(now for now, then in zip(clock, [*clock[1:], 0.0], strict=True) if then < now)


def card(folder: Path, command: str, seconds: float, reports: list[DetectionReport]) -> str:
    known = read_detector_folder(folder)
    digest = weights_digest(load_file(folder / WEIGHTS_NAME))
    rows = [
        ("photos, objects (ignored)", [f"{r.num_images:,}, {r.num_objects:,} ({r.num_ignored})" for r in reports]),
        ("mAP@0.5, Visual Genome's way", [_share(r.objects.mean) for r in reports]),
        ("  weighted by objects", [_share(r.objects.weighted_mean) for r in reports]),
        ("COCO AP", [_share(r.coco.ap) for r in reports]),
        ("COCO AP50", [_share(r.coco.ap50) for r in reports]),
        ("attribute accuracy, found boxes", [_share(r.attribute_accuracy.matched_boxes) for r in reports]),
        ("attribute accuracy, true boxes", [_share(r.attribute_accuracy.given_boxes) for r in reports]),
        ("recall of the selection butd-10-100", [_share(r.region_recall.recall) for r in reports]),
        ("calibration error (ECE)", [_share(r.calibration.expected_error) for r in reports]),
        ("worst class", [_worst(r) for r in reports]),
    ]
    table = [f"| | {' | '.join(f'world {seed}' for seed in UNSEEN_SEEDS)} |", "|---" * (1 + len(reports)) + "|"]
    table += [f"| {name.strip()} | {' | '.join(values)} |" for name, values in rows]
    config, weights = known.config, (folder / WEIGHTS_NAME).stat().st_size
    return f"""---
license: apache-2.0
library_name: roibeam
tags: [object-detection, region-features, toy]
---

# The toy detector

Faster R-CNN ResNet-{config.depth}-C4 with an attribute head: {config.num_classes} classes, {config.num_attributes}
attributes, features of {config.feature_dim} numbers. It knows the toy world (docs/detectors.md) and nothing else: its
regions of photographs mean nothing. It makes the first run mean something where nothing can be downloaded.

    roibeam extract photos/ store/ --detector toy
    roibeam detector evaluate toy --labels toy/visual_genome/test.txt

Weights: {weights:,} bytes, matrices as float16, digest `{digest}`.

## Training

`make toy-detector`, which runs

    roibeam toyworld world --seed {TRAIN_SEED} --num-images {TRAIN_IMAGES}
    {command}

From scratch, on the photos that the world has for Visual Genome's train. {seconds / 60:.0f} minutes in the training
loop on {PROCESSES} cores ({_processor()}), {date.today().isoformat()}, torch {torch.__version__.partition("+")[0]}.

## Measured

On the photos for Visual Genome's train of worlds of other seeds
(`roibeam toyworld --seed 1 --num-images {UNSEEN_IMAGES}`), with the shipped weights:

{chr(10).join(table)}
"""


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _worst(report: DetectionReport) -> str:
    worst = report.objects.worst(1)[0]
    return f"{worst.name} {_share(worst.average_precision)}"


def _processor() -> str:
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


if __name__ == "__main__":
    main()
