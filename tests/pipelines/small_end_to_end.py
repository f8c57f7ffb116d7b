"""Pre-training of every system through a region encoder of milliseconds, for tests of the loop in any process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import end_to_end_examples as examples
import torch
from photo_store import CAPTIONS, NUM_CLASSES, PhotoStore
from small_pretraining import in_floats_of, settings

from features.store import FeatureStore
from model.end_to_end import EndToEndModel
from pipelines.caption_table import CaptionTable
from pipelines.pretraining.corpus import Corpus
from pipelines.pretraining.end_to_end import row_sizes
from pipelines.pretraining.end_to_end_task import EndToEndBatch, EndToEndTask, PhotoRules
from pipelines.pretraining.record_photos import RecordPhotos
from pipelines.pretraining.systems import SYSTEMS
from pipelines.pretraining.task import DataConfig
from pipelines.rehearsal import WorstBatch
from pipelines.tokenizer import load_tokenizer
from pipelines.training import train

_CONTRASTIVE = {"region_loss": "contrastive", "num_negatives": 4, "negative_rows": 2, **examples.REGRESSION}
# Name -> (system, its model, fields).
CASES: Mapping[str, tuple[str, Callable[..., Any], Mapping[str, Any]]] = {
    "vlbert": ("vlbert", examples.vlbert, {}),
    "vilbert": ("vilbert", examples.vilbert, {"masked_appearance": "pixels"}),
    "vilbert-contrastive": ("vilbert", examples.vilbert, _CONTRASTIVE),
    "vilbert-single-stream": ("vilbert-single-stream", examples.single_stream, {}),
    "visualbert": ("visualbert", examples.visualbert, {}),
    "imagebert": ("imagebert", examples.imagebert, {"masked_appearance": "pixels"}),
    "interbert": ("interbert", examples.interbert, {"masked_appearance": "pixels"}),
}
_OFTEN = {"word_probability": 0.3, "region_probability": 0.3}


class _Task(EndToEndTask):
    """In the float type of its model."""

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[EndToEndBatch]:
        return map(self._in_its_floats, super().batches(start_sample, rank=rank, num_ranks=num_ranks))

    def worst_batch(self) -> WorstBatch:
        worst = super().worst_batch()
        return dataclasses.replace(worst, batch=self._in_its_floats(worst.batch))

    def _in_its_floats(self, batch: EndToEndBatch) -> EndToEndBatch:
        dtype = next(self.model.parameters()).dtype
        return EndToEndBatch(in_floats_of(batch.rows, dtype), in_floats_of(batch.images, dtype))


@dataclasses.dataclass(frozen=True)
class EndToEndTraining:
    """A run, to be called in a process of its own, without dropout."""

    made: PhotoStore
    folder: Path
    case: str
    batch_size: int
    accumulation: int
    steps: int
    double: bool
    checkpoint_every: int = 1000

    def __call__(self) -> None:
        config = settings(
            steps=self.steps, accumulation=self.accumulation, checkpoint_every=self.checkpoint_every, keep=0
        )
        torch.manual_seed(0)
        description = {"kind": "small", "data": {"batch_size": self.batch_size}}
        train(self.task(), config, self.folder, description=description, resume="auto")

    def task(self) -> EndToEndTask:
        system_name, make, fields = CASES[self.case]
        system, tokenizer = SYSTEMS[system_name], load_tokenizer("captions", CAPTIONS * 2)
        names = [name for name in make().config.to_dict() if name.endswith("_dropout")]
        model = make(**{**fields, **dict.fromkeys(names, 0.0), "vocab_size": tokenizer.vocab_size})
        choices = examples.RELEASE if system.whole_image == "box" else examples.BLANK
        joint = EndToEndModel(examples.awake(model), examples.encoder(), choices)
        store = FeatureStore(self.made.path)
        rows = CaptionTable(list(store.ids()), self.made.rows())
        chosen = {"max_pieces": examples.POSITIONS} if hasattr(system.sampling, "max_pieces") else {}
        often = {name: value for name, value in _OFTEN.items() if hasattr(system.sampling, name)}
        sampling = system.sampling(**chosen, **often)
        return _Task(
            joint.double() if self.double else joint,
            Corpus(store, rows),
            system.sampler(sampling, tokenizer, model.config, num_classes=NUM_CLASSES),
            RecordPhotos(store, rows.captioned_ids(), None),
            DataConfig(batch_size=self.batch_size),
            PhotoRules(short_edges=(32, 48)),
            row_sizes=row_sizes(store, rows),
            pad_id=tokenizer.pad_id,
            seed=0,
        )
