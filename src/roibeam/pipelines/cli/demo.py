"""`roibeam demo`: the whole chain on a world that the project draws itself: photos -> region shards -> a trained model.

The toy detector, which comes with the project, has never seen these pictures; how well it does is printed, and can be
seen in the report. VL-BERT is trained on eight picture-caption pairs, always with the same words and regions masked,
until it knows them by heart, which a model that does not read its store, or trains wrongly, cannot do.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.data.captions.caption_files import read_captions
from roibeam.pipelines.extract.request import ExtractRequest, RequestedDetector, RequestedImages, RunOptions
from roibeam.pipelines.extract.store_report import REPORT_NAME, output_tree
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VLBertSampling
from roibeam.pipelines.toyworld.write import CONTACT_SHEET_NAME, write_world
from roibeam.pipelines.training.train_config import TrainConfig

if TYPE_CHECKING:
    from roibeam.pipelines.pretraining.run_setup import PretrainResult

log = logging.getLogger(__name__)
DETECTOR = "toy"
WORLD_SEED = 2026  # the toy detector was trained on seed 0
NUM_PICTURES = 200
NUM_PAIRS = 8
SHARD_SIZE = 16
TRAIN_STEPS = 300


def run_demo(out: Path, *, tell: Callable[[str], None] = log.info, command: str = "roibeam") -> None:
    """Writes OUT/world, OUT/store and OUT/pretraining; a second call continues or shows what is there.

    Args:
        tell: called with each text for the user, of one line or several.
        command: how the user calls `roibeam`, for the line with the next command.
    Raises:
        ValueError: if OUT holds other things.
    """

    def step(line: str) -> None:
        tell(f"\n{line}")

    world, store, run_dir = out / "world", out / "store", out / "pretraining"
    if out.exists() and not world.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no demo of roibeam; give a new folder")
    # Torch and Beam are imported only when the folder is right.
    from roibeam.pipelines.extract.beam_extraction import run_extract

    step(f"1. Drawing {NUM_PICTURES} pictures in the formats of COCO, Visual Genome and others into {world}")
    write_world(world, seed=WORLD_SEED, num_images=NUM_PICTURES, workers=2)
    coco, genome = world / "coco", world / "visual_genome"
    captions = coco / "annotations" / "captions_train2014.json"

    step(f"2. Extracting regions of its COCO photos into {store} (the toy detector)")
    summary = run_extract(
        ExtractRequest(
            RequestedImages((str(captions),), photos=str(coco / "train2014")),
            str(store),
            RequestedDetector(DETECTOR, device="cpu"),
            run=RunOptions(max_failures=0.0),
            shard_size=SHARD_SIZE,
        ),
        tell=log.debug,  # the lines printed here suffice
    )
    tell(f"   {summary.manifest.num_records:,} records, {summary.manifest.num_regions:,} regions")

    step("3. Verifying the store: every checksum and digest")
    problems = verify_store(store, deep=True)
    if problems:
        raise ValueError(f"{problems[0].file}: {problems[0].what}")
    tell("   clean")

    step("4. Judging the detector on the Visual Genome photos, which it has never seen")
    for line in _judge(genome / "train.txt"):
        tell(f"   {line}")

    step(f"5. Training a small VL-BERT on {NUM_PAIRS} picture-caption pairs until it knows them ({TRAIN_STEPS} steps)")
    result = _train(store, captions, run_dir)
    words, regions = result.evaluation["masked_words"], result.evaluation["masked_regions"]
    know_nothing = (math.log(result.vocab_size), math.log(result.num_classes + 1))
    for name, value, start in (("masked words", words, know_nothing[0]), ("masked regions", regions, know_nothing[1])):
        tell(f"   {name:<15} loss {value:.3f} (a model that knows nothing: {start:.3f})")
    for name in ("masked_word_accuracy", "masked_region_accuracy"):
        tell(f"   {name.replace('_', ' '):<23} {result.evaluation[name]:.3f}")

    tell("\n" + "\n".join(output_tree(LocalFolder(store))))
    tell(f"\nLook at the world:    {(world / CONTACT_SHEET_NAME).absolute()}")
    tell(f"Look at the regions:  {(store / REPORT_NAME).absolute()}")
    tell(f"Look at the training: {(run_dir / REPORT_NAME).absolute()}")
    photo = max((world / "coco" / "train2014").iterdir())
    probe = [command, "probe", str(run_dir), str(photo), "a [MASK] boat", "--detector", "toy"]
    tell(f"Ask the model:        {shlex.join(probe)}")
    tell(f"To undo all of this, delete the folder {out}")


def _judge(labels: Path) -> list[str]:
    from roibeam.extraction.weights.loading import build_detector
    from roibeam.pipelines.data.labelled_photos import open_labelled_photos
    from roibeam.pipelines.training.detector.evaluation import evaluate_detector
    from roibeam.pipelines.training.detector.report import report_lines

    photos = open_labelled_photos(str(labels))
    report = evaluate_detector(
        build_detector(DETECTOR),
        photos.images,
        photos.root,
        class_names=photos.class_names,
        attribute_names=photos.attribute_names,
    )
    return report_lines(report)


def _train(store: Path, captions: Path, run_dir: Path) -> PretrainResult:
    from roibeam.pipelines.data.captions.captioned_store import CaptionedStore
    from roibeam.pipelines.pretraining.pretrain_run import pretrain
    from roibeam.pipelines.pretraining.run_setup import RunSettings
    from roibeam.pipelines.pretraining.systems import ModelChoice

    rows, _ = read_captions(str(captions))
    by_picture = {row.name: row for row in reversed(rows)}  # the first caption of each
    with FeatureStore(store) as opened:
        return pretrain(
            [CaptionedStore(opened, list(by_picture.values())[-NUM_PAIRS:])],
            run_dir,
            RunSettings(
                TrainConfig(steps=TRAIN_STEPS, learning_rate=1e-3, warmup_steps=20, device="cpu"),
                data=DataConfig(batch_size=NUM_PAIRS, fixed_masks=True),
                sampling=VLBertSampling(word_probability=0.3, region_probability=0.3),
                resume=run_dir.exists(),
            ),
            ModelChoice(overrides={"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}),
        )
