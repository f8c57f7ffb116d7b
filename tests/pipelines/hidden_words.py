"""Small runs whose held-out captions are like those that they train on: counting words finds a part of theirs.

A module of its own, so that other processes can import it.
"""

from pathlib import Path
from typing import Any

from captioned_records import CAPTIONS, TINY, captioned, make_store, pretrain_with

from roibeam.pipelines.pretraining.run_setup import PretrainResult
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.pretraining.task import DataConfig
from roibeam.pipelines.training.train_config import TrainConfig

ASKED = [(f"image-{number}", caption) for number, caption in enumerate(CAPTIONS) if number % 4 == 1]
ALL_ROWS = [(f"image-{number}", caption) for number, caption in enumerate(CAPTIONS)]
# As the captions that are asked about, in part: what counting finds is neither nothing nor everything.
NEAR = [(f"image-{number}", CAPTIONS[1 if number % 2 else 5].replace("tree", "roof")) for number in (0, 2, 3, 4)]


def run(folder: Path, *, system: str = "vlbert", asked: Any = ASKED, **changes: Any) -> PretrainResult:
    store = make_store()
    settings: dict[str, Any] = {
        "system": SYSTEMS[system],
        "train_config": TrainConfig(steps=2, learning_rate=1e-3, device="cpu"),
        "data": DataConfig(batch_size=4),
        "model_overrides": TINY,
        "validation": None if asked is None else captioned(store, asked),
    }
    return pretrain_with([captioned(store, [*ALL_ROWS, *NEAR])], folder, **settings | changes)
