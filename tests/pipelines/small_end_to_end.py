"""Pre-training of every system through a region encoder of milliseconds, beside a detector's training too; for tests of
the loop in any process."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import end_to_end_examples as examples
import torch
from labelled_world import ATTRIBUTES, CLASSES, COMPUTES, DETECTOR, FEW, labelled_batches
from objectives import TEXT_ONLY, SomeUnmasked
from photo_store import CAPTIONS, NUM_CLASSES, PhotoStore
from small_pretraining import in_floats_of, settings, train_small

from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.region_encoder import RegionEncoder, load_encoder_weights
from roibeam.extraction.training.batch_losses import load_heads
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end import EndToEndModel
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.labelled_photos import LabelledPhotos
from roibeam.pipelines.data.record_photos import RecordPhotos
from roibeam.pipelines.pretraining.end_to_end_encoder import LabelledStream, row_sizes
from roibeam.pipelines.pretraining.end_to_end_task import EndToEndBatch, EndToEndTask, TaskPhotos
from roibeam.pipelines.pretraining.requested_settings import PhotoRules
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.model_files.encoder_settings import LossWeights
from roibeam.pipelines.training.model_files.joint_checkpoint import JointDetector
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.task import WorstBatch


@dataclasses.dataclass(frozen=True)
class Case:
    system: str
    make: Callable[..., Any]  # its model
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    without_image: frozenset[int] = frozenset()  # rows that lose their image
    detector: bool = False  # the detector that the encoder is of is trained on labelled photos too
    group: int = 1  # rows whose whole groups a batch must hold


_PIXELS = {"masked_appearance": "pixels"}
_CONTRASTIVE = {"region_loss": "contrastive", "num_negatives": 4, "negative_rows": 2, **examples.REGRESSION}
CASES: Mapping[str, Case] = {
    "vlbert": Case("vlbert", examples.vlbert),
    "vlbert-without-image": Case("vlbert", examples.vlbert, {"with_text_only": True}, without_image=TEXT_ONLY),
    "vlbert-detector": Case("vlbert", examples.vlbert, detector=True),
    "vilbert": Case("vilbert", examples.vilbert, _PIXELS),
    "vilbert-contrastive": Case("vilbert", examples.vilbert, _CONTRASTIVE, group=2),
    "vilbert-single-stream": Case("vilbert-single-stream", examples.single_stream),
    "visualbert": Case("visualbert", examples.visualbert),
    "imagebert": Case("imagebert", examples.imagebert, _PIXELS),
    "interbert": Case("interbert", examples.interbert, _PIXELS),
    "interbert-detector": Case("interbert", examples.interbert, _PIXELS, detector=True),
}
_LEARNING_RATE = 1e-5  # see `KINKS` in rank_deviations.py
# Of a step of four captions three photos come with the last three: the first of four processes has none.
_PHOTOS_PER_CAPTION = 0.75
_WEIGHTS = LossWeights(objectness=0.5, proposal_boxes=2.0, classes=1.5, region_boxes=0.25, attributes=3.0)
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
        labelled = batch.labelled
        if labelled is not None:
            labelled = dataclasses.replace(labelled, photos=in_floats_of(labelled.photos, dtype))
        return EndToEndBatch(in_floats_of(batch.rows, dtype), in_floats_of(batch.images, dtype), labelled)


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
    labelled: LabelledPhotos | None = None  # for a case with a detector
    # Of the encoder's conventions. Its `long_edge` makes inputs alike, and with them what the padding of a batch does
    # to its features, however many photos the batch has.
    padding_multiple: int = 1
    fixed_masks: bool = False
    seed: int = 0  # of the task's draws

    def __call__(self) -> None:
        config = settings(
            steps=self.steps, accumulation=self.accumulation, learning_rate=_LEARNING_RATE,
            checkpoint_every=self.checkpoint_every, keep=0,
        )  # fmt: skip
        torch.manual_seed(0)
        train_small(self.task(), config, self.folder, batch_size=self.batch_size)

    def task(self) -> EndToEndTask:
        case = CASES[self.case]
        system, tokenizer = SYSTEMS[case.system], load_tokenizer("captions", CAPTIONS * 2)
        names = [name for name in case.make().config.to_dict() if name.endswith("_dropout")]
        model = case.make(**{**case.fields, **dict.fromkeys(names, 0.0), "vocab_size": tokenizer.vocab_size})
        joint, labelled = self._joint(examples.awake(model), system.whole_image), None
        if case.detector:
            assert self.labelled is not None
            batches = labelled_batches(self.labelled, conventions=self._conventions)
            labelled = LabelledStream(batches, _PHOTOS_PER_CAPTION)
        store = FeatureStore(self.made.path)
        rows = CaptionTable(list(store.ids()), self.made.rows())
        chosen = {"max_pieces": examples.POSITIONS} if hasattr(system.sampling, "max_pieces") else {}
        often = {name: value for name, value in _OFTEN.items() if hasattr(system.sampling, name)}
        sampling = system.sampling(**chosen, **often)
        photos = RecordPhotos(store, rows.captioned_ids(), None)
        return _Task(
            joint.double() if self.double else joint,
            Corpus(store, rows),
            SomeUnmasked(
                system.sampler(sampling, tokenizer, model.config, num_classes=NUM_CLASSES), case.without_image
            ),
            TaskPhotos(photos, row_sizes(store, rows), PhotoRules(short_edges=(32, 48)), labelled),
            DataConfig(batch_size=self.batch_size, fixed_masks=self.fixed_masks),
            pad_id=tokenizer.pad_id,
            seed=self.seed,
        )

    @property
    def _conventions(self) -> Conventions:
        return dataclasses.replace(COMPUTES, padding_multiple=self.padding_multiple)

    def _joint(self, model: Any, whole_image: str) -> EndToEndModel:
        choices = examples.RELEASE if whole_image == "box" else examples.BLANK
        conventions = self._conventions
        if not CASES[self.case].detector:
            return EndToEndModel(model, examples.encoder(conventions=conventions), choices)
        encoder = RegionEncoder(DETECTOR, conventions, frozen_stages=(1, 2))
        load_encoder_weights("random:1", encoder)
        heads = load_heads("random:1", DETECTOR, conventions)
        names = {"class_names": CLASSES, "attribute_names": ATTRIBUTES}
        return JointDetector(model, encoder, choices, heads, **names, sampling=FEW, weights=_WEIGHTS)
