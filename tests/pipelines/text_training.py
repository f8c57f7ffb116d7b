"""Small runs on text alone."""

from pathlib import Path
from typing import Any

from captioned_records import CAPTIONS, TINY

from roibeam.pipelines.pretraining.pretrain_run import pretrain_on_text
from roibeam.pipelines.pretraining.run_setup import PretrainResult, RunSettings
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, VLBertSampling
from roibeam.pipelines.pretraining.systems import ModelChoice
from roibeam.pipelines.training.train_config import TrainConfig

LINES = [f"{first} and {second}" for first in CAPTIONS for second in CAPTIONS[:3]]
SMALL = {"coordinate_embedding_size": 64, "region_dropout": 0.0, "region_feature_size": 48, "num_region_labels": 21}
SHORT = VLBertSampling(min_text_words=10, max_text_pieces=24, word_probability=0.3)


def run_on_text(
    books: Path, folder: Path, *, batch_size: int = 8, fixed_masks: bool = False, steps: int = 12, **changes: Any
) -> PretrainResult:
    train = {"steps": steps, "learning_rate": 3e-3, "warmup_steps": 2, "device": "cpu"} | changes.pop("train", {})
    data = DataConfig(batch_size=batch_size, fixed_masks=fixed_masks, workers=changes.pop("workers", 0))
    overrides = TINY | SMALL | {"hidden_dropout": 0.0, "attention_dropout": 0.0} | changes.pop("model", {})
    choice = ModelChoice(overrides=overrides, tokenizer_spec=changes.pop("tokenizer_spec", "captions"))
    settings = RunSettings(TrainConfig(**train), data=data, sampling=SHORT, **changes)
    return pretrain_on_text([books], folder, settings, choice)
