"""Pre-training through the region encoder as a task of the training loop, with the rules of any system.

sample of the system's rules -> its photo: read, resized, mirrored, blanked -> VLBatch and ImageBatch -> EndToEndModel
labelled photos, in a run that has some ----------------------------------> DetectionBatch ---------> JointDetector
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.photos.preprocessing import input_size
from roibeam.model.common.losses import PreTrainingOutput
from roibeam.model.end_to_end import EndToEndModel, ImageBatch
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.pretraining import PreTrainingModel
from roibeam.pipelines.analysis.evaluation.measures import HiddenWords
from roibeam.pipelines.common.compute import OF_THIS_PROCESS
from roibeam.pipelines.common.statistics.verdict import Judged
from roibeam.pipelines.data.batches.image_batch import PhotoInput, collate_inputs, prepare_input
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.record_photos import PhotoError, PhotoLocation, RecordPhotos
from roibeam.pipelines.data.record_regions import swap_left_right
from roibeam.pipelines.pretraining.end_to_end_encoder import LabelledStream
from roibeam.pipelines.pretraining.requested_settings import PhotoRules
from roibeam.pipelines.pretraining.samples.sampler import Sampler
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.task import EVALUATION_EPOCH, Evaluates, PretrainTask, evaluate
from roibeam.pipelines.training.detector.task import ComingPhoto, LabelledBatches, NamedBatch
from roibeam.pipelines.training.model_files.joint_checkpoint import JointDetector, describe_joint, region_encoder_of
from roibeam.pipelines.training.parameter_groups import ParameterGroup, matrices_decay, with_scaled_part
from roibeam.pipelines.training.sample_order import SampleOrder
from roibeam.pipelines.training.task import WorstBatch

logger = logging.getLogger(__name__)

_ORDER, _PHOTO = 5, 6  # first number of a seed: keeps the random streams of one run apart
_Waiting = tuple[PretrainSample, Future[PhotoInput] | None]  # a row and its photo on its way; None for text alone
_DRAWS = 32  # of a row's sample: almost surely one of them has the row's own image
# Batches looked through for the largest, at most so many samples of so many epochs: groups are drawn anew in each.
_MOST_SAMPLES, _MOST_EPOCHS = 1_000_000, 64
_LEAST_INPUT = 32  # pixels each way of the input of a batch without photos


@dataclass(frozen=True, eq=False)
class EndToEndBatch:
    """The two halves of a batch, rows in the same order, and the labelled photos beside them.

    Attributes:
        rows: text, regions, masks, and targets from the store. Its `region_features` are the stored ones where the
            model regresses them, else (B, R, 0).
        images: input of the region encoder.
        labelled: photos to train the detector on; None if none falls into this batch.
    """

    rows: VLBatch
    images: ImageBatch
    labelled: NamedBatch | None = None

    def to(self, device: torch.device | str) -> EndToEndBatch:
        """The same batch with every tensor on `device`."""
        labelled = None if self.labelled is None else self.labelled.to(device)
        return EndToEndBatch(self.rows.to(device), self.images.to(device), labelled)


@dataclass(frozen=True, eq=False)
class TaskPhotos:
    """The photos of a task, and how batches are made of them.

    Attributes:
        row_sizes: (N, 3) int, height and width of each row's photo in pixels, and its number of regions.
        labelled: photos to train the detector on; the model is then a `JointDetector`.
        encoder_scale: learning rate of the encoder, as a factor of the run's.
    """

    of_images: RecordPhotos
    row_sizes: np.ndarray
    rules: PhotoRules
    labelled: LabelledStream | None = None
    encoder_scale: float = 1.0


class EndToEndTask:
    """The objectives of a model on captions and photos, trained with its region encoder: a `TrainTask`.

    Samples, masks and targets are those of a `PretrainTask` on stored features; mirroring and scale also follow from
    the seed, the epoch and the row.
    """

    def __init__(
        self,
        joint: EndToEndModel,
        corpus: Corpus,
        sampler: Sampler,
        photos: TaskPhotos,
        config: DataConfig,
        *,
        pad_id: int,
        seed: int,
        lines: Sequence[str] | None = None,
        validation: Evaluates | None = None,
    ) -> None:
        if config.workers:
            raise ValueError(
                f"DataConfig: workers is {config.workers}; end to end, photos.read_ahead threads work ahead"
            )
        if config.max_tokens:
            raise ValueError(
                f"DataConfig: max_tokens is {config.max_tokens}; end to end photos fill the memory, not tokens: use "
                f"batch_size and encoder.region_chunk"
            )
        self.model, self._validation = joint, validation
        self.batch_size, self.num_samples = config.batch_size, len(corpus)
        self._corpus, self._mirrored = corpus, corpus.reworded(swap_left_right)
        self._photos, self._rules, self._labelled = photos.of_images, photos.rules, photos.labelled
        self._row_sizes, self._seed = photos.row_sizes, seed
        self._draws_images = sampler.draws_images
        of_rows: dict[str, Any] = {"pad_id": pad_id, "seed": seed, "lines": lines}
        self._stored = self._unfixed = PretrainTask(joint.model, corpus, sampler, config, **of_rows)
        if config.fixed_masks:
            self._unfixed = PretrainTask(joint.model, corpus, sampler, replace(config, fixed_masks=False), **of_rows)
        self._encoder, self._encoder_scale = region_encoder_of(joint), photos.encoder_scale
        likeness = self._row_sizes[:, 1] / self._row_sizes[:, 0] if self._rules.aspect_buckets else None
        self._order = SampleOrder(len(corpus), (_ORDER, seed), likeness)
        self.skipped: dict[str, str] = {}  # by image id why this process could not use it
        self.hidden_words: HiddenWords | None = None  # as of `RowsTask`
        long_edge = self._encoder.config.long_edge
        if too_long := [edge for edge in self._rules.short_edges if edge > long_edge]:
            raise ValueError(f"PhotoRules: short_edges {too_long} are over the encoder's long_edge {long_edge}")

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[EndToEndBatch]:
        where = {"batch_size": self.batch_size, "rank": rank, "num_ranks": num_ranks}
        places = self._order.batches(start_sample, **where)
        beside = repeat([]) if self._labelled is None else self._labelled.beside(start_sample, **where)
        waiting: deque[tuple[list[_Waiting], list[ComingPhoto]]] = deque()
        with ThreadPoolExecutor(self._rules.read_ahead, thread_name_prefix="photos") as pool:
            while True:
                while len(waiting) < 2:
                    rows = [each for epoch, row in next(places) for each in self._drawn(pool, epoch, row)]
                    waiting.append((rows, [self._coming(pool, *each) for each in next(beside)]))
                rows, labelled = waiting.popleft()
                yield replace(self._collate(rows), labelled=LabelledBatches.collate(labelled) if labelled else None)

    def counts(self, batch: EndToEndBatch) -> Mapping[str, int]:
        counts = self._stored.counts(batch.rows)
        return counts if batch.labelled is None else {**counts, **JointDetector.loss_counts(batch.labelled.photos)}

    def losses(self, model: nn.Module, batch: EndToEndBatch | NamedBatch) -> PreTrainingOutput:
        """`batch` may be labelled photos alone, with the unwrapped model."""
        if isinstance(batch, NamedBatch):
            return cast(JointDetector, model).detect(batch.photos)
        if batch.labelled is None:
            return cast(PreTrainingOutput, model(batch.rows, batch.images))
        return cast(PreTrainingOutput, model(batch.rows, batch.images, labelled=batch.labelled.photos))

    def parameter_groups(self) -> list[ParameterGroup]:
        """One group, as in VL-BERT's release, apart from the encoder's scale; detector heads as in detector
        training."""
        joint, heads = self.model, getattr(self.model, "detection", None)
        of_heads = set() if heads is None else set(heads.parameters())
        trained = [each for each in joint.parameters() if each.requires_grad and each not in of_heads]
        groups = with_scaled_part([{"params": trained}], self._encoder.parameters(), self._encoder_scale)
        return [*groups, *([] if heads is None else matrices_decay(heads))]

    def sample_ids(self, batch: EndToEndBatch) -> Sequence[str]:
        labelled = () if batch.labelled is None else batch.labelled.image_ids
        return [*self._stored.sample_ids(batch.rows), *(f"labelled photo {image_id}" for image_id in labelled)]

    def one_by_one(self, batch: EndToEndBatch) -> Iterator[EndToEndBatch | NamedBatch]:
        photo = 0
        for row in range(batch.rows.batch_size):
            alone = batch.rows.text_only is not None and bool(batch.rows.text_only[row])
            yield EndToEndBatch(batch.rows.row(row), batch.images.part(photo, photo if alone else photo + 1))
            photo += not alone
        if batch.labelled is not None:
            yield from batch.labelled.one_by_one()

    def encoded(self, batch: EndToEndBatch) -> tuple[VLBatch, VLOutput]:
        """See `HasEvaluationBatches`."""
        rows = self.model.with_features(batch.rows, batch.images)
        return rows, cast(PreTrainingModel, self.model.model).encode(rows)

    def evaluate(self) -> Judged:
        """See `evaluate`: at each of the loop's evaluations."""
        return evaluate(self) if self._validation is None else self._validation.evaluate()

    def model_config(self) -> dict[str, Any]:
        """Config that makes the weights' folder a joint checkpoint, see `load_joint`."""
        return describe_joint(self.model)

    def evaluation_batches(self, max_samples: int) -> Iterator[EndToEndBatch]:
        """The first `max_samples` captions, in order, with masks that training does not draw, on photos as they are."""
        last = min(max_samples, self.num_samples)
        with ThreadPoolExecutor(self._rules.read_ahead, thread_name_prefix="photos") as pool:
            for start in range(0, last, self.batch_size):
                rows = range(start, min(start + self.batch_size, last))
                samples = [sample for row in rows for sample in self._stored.samples(EVALUATION_EPOCH, row)]
                yield self._collate([self._submit(pool, sample, self._encoder.config, False) for sample in samples])

    def worst_batch(self) -> WorstBatch:
        """The largest batch: the largest network input of the first epochs (of the first million samples, or of 64
        epochs), or one that holds every photo if rows may have other images than their captions'. Every row has the
        regions and the words of the photo with the most regions; pixels are blank."""
        height, width = self._largest_input()
        row = int(self._row_sizes[:, 2].argmax())
        drawn = (self._unfixed.samples(epoch, row) for epoch in range(_DRAWS if self._draws_images else 1))
        samples = max(drawn, key=lambda each: max(len(sample.boxes) for sample in each))
        rows = self._without_stored_features(self._stored.collate(samples * self.batch_size))
        with_photo = _rows_with_photo(rows)
        boxes, hidden = rows.region_boxes[with_photo], rows.masked_regions[with_photo]
        scale_xy = torch.tensor([width, height]) / rows.image_hw[with_photo].flip(-1)
        whole = torch.tensor([[0.0, 0.0, width - 1.0, height - 1.0]]).expand(len(boxes), 4)
        choices = self.model.choices
        images = ImageBatch(
            pixels=torch.zeros(len(boxes), 3, height, width),
            boxes=boxes * scale_xy.repeat(1, 2)[:, None],
            blanked_regions=hidden if choices.masked_pixels == "blank" else torch.zeros_like(hidden),
            whole_image_boxes=whole if choices.whole_image == "box" else None,
        )
        what = f"{len(boxes)} photos of {width} x {height} pixels with {boxes.shape[1]} regions each"
        remedies = (
            "encoder.recompute=true, train.activation_checkpointing=true, encoder.region_chunk=64, a smaller "
            "detector.short_edge"
        )
        labelled = None
        if self._labelled is not None:
            remedies += ", a smaller labelled.photos_per_caption"
            labelled = self._labelled.photos.blank(self._labelled.most(self.batch_size))
            height, width = labelled.photos.input_hw[0]
            what += f" and {len(labelled.photos)} labelled ones of {width} x {height}"
        return WorstBatch(EndToEndBatch(rows, images, labelled), what, remedies)

    def _largest_input(self) -> tuple[int, int]:
        """Height and width, pixels, of the largest padded network input."""
        shapes, which = np.unique(self._row_sizes[:, :2], axis=0, return_inverse=True)
        config, conventions = self._encoder.config, self._encoder.conventions
        edge = max(self._rules.short_edges, default=config.short_edge)
        inputs = np.array(
            [input_size((int(h), int(w)), edge, config.long_edge, conventions)[0] for h, w in shapes], np.int64
        )
        if self._rules.fixed_size:
            edges = config.short_edge, config.long_edge
            inputs = np.where(inputs[:, :1] <= inputs[:, 1:], edges, edges[::-1])
        inputs += -inputs % conventions.padding_multiple
        if self._draws_images:
            return int(inputs[:, 0].max()), int(inputs[:, 1].max())
        of_rows, size = inputs[which.reshape(-1)], self.batch_size
        samples = max(min(_MOST_SAMPLES, _MOST_EPOCHS * self.num_samples), self.num_samples)
        num_batches = -(-samples // size)
        of_batches = of_rows[self._order.places(num_batches * size)].reshape(num_batches, size, 2).max(axis=1)
        height, width = of_batches[of_batches.prod(axis=1).argmax()]
        return int(height), int(width)

    def _drawn(self, pool: ThreadPoolExecutor, epoch: int, row: int) -> list[_Waiting]:
        """The rows of a caption in a batch, its photo mirrored and resized at random."""
        random, config = np.random.default_rng([_PHOTO, self._seed, epoch, row]), self._encoder.config
        short_edge, flip = self._rules.draw(random, config.short_edge)
        mirrored = flip and self._rules.swap_left_right
        edges = replace(config, short_edge=short_edge)
        samples = self._stored.samples(epoch, row, self._mirrored if mirrored else None)
        return [self._submit(pool, sample, edges, flip) for sample in samples]

    def _coming(self, pool: ThreadPoolExecutor, epoch: int, place: int) -> ComingPhoto:
        assert self._labelled is not None
        return self._labelled.photos.coming(pool, epoch, place)

    def _submit(self, pool: ThreadPoolExecutor, sample: PretrainSample, config: DetectorConfig, flip: bool) -> _Waiting:
        if sample.text_only:
            return sample, None
        try:
            place = self._photos.place(sample.sample_id, (sample.height, sample.width))
        except PhotoError as error:
            failed: Future[PhotoInput] = Future()
            failed.set_exception(error)
            return sample, failed
        return sample, pool.submit(self._prepare, place, sample, config, flip)

    def _prepare(self, place: PhotoLocation, sample: PretrainSample, config: DetectorConfig, flip: bool) -> PhotoInput:
        pixels = self._photos.read(place)
        outlines = None if sample.outlines is None else sample.outlines(self._encoder.mask_cells)
        try:
            return prepare_input(
                pixels, sample.boxes, sample.masked, config, self._encoder.conventions, self.model.choices, flip=flip,
                fixed_size=self._rules.fixed_size, outlines=outlines,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"image {sample.sample_id!r}: {error}") from None

    def _collate(self, waiting: Sequence[_Waiting]) -> EndToEndBatch:
        samples, photos, why = [], [], ""
        for sample, future in waiting:
            try:
                photo = None if future is None else future.result()
            except PhotoError as error:
                if not self._rules.skip_broken:
                    raise ValueError(f"{error}; mend it, or leave such samples out (--skip-missing-photos)") from None
                why = str(error)
                if sample.sample_id not in self.skipped:
                    self.skipped[sample.sample_id] = why
                    logger.warning("sample left out: %s", why, extra=OF_THIS_PROCESS)
                continue
            samples.append(sample)
            photos += [] if photo is None else [photo]
        if not samples:
            raise ValueError(f"none of the {len(waiting)} photos of a batch can be used, the last because {why}")
        rows = self._without_stored_features(self._stored.collate(samples))
        if not photos:  # a batch of text alone
            count = rows.region_mask.shape[1]
            images = ImageBatch(
                pixels=torch.zeros(0, 3, _LEAST_INPUT, _LEAST_INPUT),
                boxes=torch.zeros(0, count, 4),
                blanked_regions=torch.zeros(0, count, dtype=torch.bool),
                whole_image_boxes=torch.zeros(0, 4) if self.model.choices.whole_image == "box" else None,
            )
            return EndToEndBatch(rows, images)
        made = collate_inputs(photos, self.model.choices)
        # Boxes as they are in the photos: clipped to them, and mirrored with them.
        boxes = torch.zeros_like(rows.region_boxes)
        boxes[_rows_with_photo(rows)] = made.regions["region_boxes"]
        return EndToEndBatch(replace(rows, region_boxes=boxes * rows.region_mask[..., None]), made.images)

    def _without_stored_features(self, rows: VLBatch) -> VLBatch:
        """The rows without stored features, unless the model regresses them: features come from the encoder."""
        features = rows.region_features if self.model.regresses_features else rows.region_features[..., :0]
        return replace(rows, region_features=features, whole_image_features=None)


def _rows_with_photo(rows: VLBatch) -> slice | torch.Tensor:
    return slice(None) if rows.text_only is None else ~rows.text_only
