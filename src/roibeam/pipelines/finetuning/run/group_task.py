"""Downstream task on the training loop: a `TrainTask` whose samples are groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roibeam.model.common.losses import PreTrainingOutput, SumCount
from roibeam.model.end_to_end import EndToEndModel, ImageBatch
from roibeam.model.inputs import VLBatch
from roibeam.model.task_heads import REGION_CLASSES, WORDS
from roibeam.pipelines.common.statistics.verdict import Judged
from roibeam.pipelines.data.batches.batch_workers import batches_ahead
from roibeam.pipelines.data.batches.sample import SharedRows, in_float32
from roibeam.pipelines.finetuning.metrics.measure import Measure, figures_of
from roibeam.pipelines.finetuning.rows import LABEL, PHRASE, REGION, TaskGroup
from roibeam.pipelines.finetuning.run.finetune_settings import FinetuneData
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches, TaskBatch
from roibeam.pipelines.finetuning.run.losses import TaskLoss, group_scores, real_scores, scored_boxes
from roibeam.pipelines.finetuning.run.network import TaskNetwork
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.task import NO_PREDICTION, DownstreamTask, DrawGroup, Prediction, logged_name
from roibeam.pipelines.training.model_files.joint_checkpoint import region_encoder_of
from roibeam.pipelines.training.parameter_groups import ParameterGroup, matrices_decay, with_scaled_part
from roibeam.pipelines.training.processes import shared_out
from roibeam.pipelines.training.sample_order import SampleOrder
from roibeam.pipelines.training.task import AlternatingTask, WorstBatch

# First number of a seed, which keeps the random streams apart from those of pre-training:
_ORDER, _MIRRORED, _HIDDEN, _DRAWN = 3, 4, 5, 6  # order, mirroring, hidden words and regions, draws of a task
_LOSS = "task"


class GroupTask:
    """A `TrainTask`. A group is never split, neither over micro-batches nor over processes.

    Args:
        validation: groups of evaluations, of the validation split; none for no evaluations.
        seed: of order, mirroring and hiding; several numbers for one of several problems.
    """

    def __init__(
        self,
        network: TaskNetwork,
        batches: GroupBatches,
        task: DownstreamTask,
        output: OutputSpec,
        loss: TaskLoss,
        train: Sequence[TaskGroup],
        validation: Sequence[TaskGroup],
        data: FinetuneData,
        *,
        seed: int | tuple[int, ...],
    ) -> None:
        self.model, self._config = network.module, network.described
        self.batch_size, self.num_samples = data.batch_size, len(train)
        self._batches, self._task = batches, task
        self._output, self._loss, self._train, self._data = output, loss, train, data
        beside = task.beside
        self._beside: Any = None if beside is None else _reading_features(network.module)  # as `AuxiliaryTaskModel`
        self._weights = {} if beside is None else {REGION_CLASSES: beside.region_weight, WORDS: beside.word_weight}
        self._validation = validation[: data.validation_groups or None]
        self._chances: dict[str, float | None] = {}  # by measure; the same in each evaluation
        photos = batches.photos
        self._mirrors = task.mirrors if photos is None else photos.flip
        likeness = None if photos is None else photos.likeness(group.images[0] for group in train)
        self._seed = seed if isinstance(seed, tuple) else (seed,)
        self._order = SampleOrder(len(train), (_ORDER, *self._seed), likeness)

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[TaskBatch]:
        def places() -> Iterator[list[tuple[int, int]]]:
            return self._order.batches(start_sample, batch_size=self.batch_size, rank=rank, num_ranks=num_ranks)

        def batch(chosen: Sequence[tuple[int, int]]) -> TaskBatch:
            return self._batches.batch([self._epoch_group(epoch, place) for epoch, place in chosen])

        if not self._data.workers:
            return map(batch, places()) if self._batches.photos is None else self._while_photos_are_read(places())
        return batches_ahead(places, batch, workers=self._data.workers)

    def _while_photos_are_read(self, places: Iterator[list[tuple[int, int]]]) -> Iterator[TaskBatch]:
        """Batches whose photos threads read while the previous one is trained on."""
        waiting: deque[tuple[list[TaskGroup], SharedRows]] = deque()
        for chosen in places:
            groups = [self._epoch_group(epoch, place) for epoch, place in chosen]
            waiting.append((groups, self._batches.rows(groups)))
            if len(waiting) > 1:
                yield self._batches.finished(*waiting.popleft())

    def _epoch_group(self, epoch: int, place: int) -> TaskGroup:
        """A group as it is trained on; whether it is mirrored depends on seed, epoch and group alone."""
        group, mirrored = self._train[place], self._task.mirrored if self._mirrors else None
        if self._task.drawn is not None:
            group = self._task.drawn(group, np.random.default_rng((_DRAWN, *self._seed, epoch, place)))
        if self._task.beside is not None:
            group = replace(group, draws=(_HIDDEN, *self._seed, epoch, place))
        if mirrored is None or np.random.default_rng((_MIRRORED, *self._seed, epoch, place)).random() < 0.5:
            return group
        return mirrored(group)

    def counts(self, batch: TaskBatch) -> Mapping[str, int]:
        assert batch.targets is not None
        counts = {_LOSS: self._loss.count(batch.targets, self._real(batch))}
        return counts | self._beside.loss_counts(batch.inputs) if self._beside is not None else counts

    def losses(self, model: nn.Module, batch: TaskBatch) -> PreTrainingOutput:
        assert batch.targets is not None
        losses: dict[str, SumCount] = {}
        metrics: dict[str, SumCount] = {}
        if self._beside is None:
            scores = scores_of(model, batch, self._output.form)
        else:
            inputs, *images = batch.model_inputs
            outputs = model(in_float32(inputs), *images, beside=True)
            scores = group_scores(self._output.form, outputs.scores, batch.group_sizes)
            for name, term in outputs.losses.items():
                losses[name] = SumCount(term.total * self._weights[name], term.count, term.epsilon)
            metrics = dict(outputs.metrics)
        losses[_LOSS] = self._loss.term(scores, batch.targets, self._real(batch))
        return PreTrainingOutput(losses, {**metrics, self._loss.metric: self._loss.right(scores, batch.targets)})

    def parameter_groups(self) -> list[ParameterGroup]:
        return matrices_decay(self.model)

    def sample_ids(self, batch: TaskBatch) -> Sequence[str]:
        return batch.ids

    def model_config(self) -> Mapping[str, Any]:
        return self._config

    def evaluate(self) -> Judged:
        """The task's own measures on the validation groups, 0..1, without dropout, each beside chance. All processes
        share the work."""
        if not self._validation:
            return Judged([])
        kept = self._task.kept

        def judged_parts(groups: Sequence[TaskGroup]) -> Iterable[Any]:
            predictions = predicted(self.model, self._batches, groups, self._output.form, self.batch_size)
            return predictions if kept is None else kept.of(predictions)

        judge: Callable[..., Mapping[str, Measure]] = self._task.judge if kept is None else kept.judge
        measures = judge(self._validation, shared_out(self._validation, self.batch_size, judged_parts))
        figures = figures_of(measures, self._chances)
        return Judged(replace(figure, name=logged_name(figure.name)) for figure in figures)

    def _real(self, batch: TaskBatch) -> Tensor:
        return real_scores(self._output, batch.inputs, batch.group_sizes)


class PhotoTask(GroupTask):
    """A `GroupTask` from photos: the largest batch is tried before the first step (`WorstBatch`).

    Args:
        given, named: of `GroupTask`.
        encoder_scale: the encoder's rate as a share of the run's.
    """

    def __init__(self, *given: Any, encoder_scale: float = 1.0, **named: Any) -> None:
        super().__init__(*given, **named)
        self._encoder_scale = encoder_scale

    def parameter_groups(self) -> list[ParameterGroup]:
        """Groups of `GroupTask`; parameters of the encoder have a rate of their own."""
        joint: Any = self.model
        encoder = region_encoder_of(joint).parameters()
        return with_scaled_part(super().parameter_groups(), encoder, self._encoder_scale)

    def first_photos(self) -> tuple[VLBatch, ImageBatch, list[str], list[Tensor]]:
        """The first batch for `EncoderChange.before`: rows, photos, and for each image the id of a row with it and its
        boxes in the unmirrored photo."""
        places = next(self._order.batches(0, batch_size=self.batch_size, rank=0, num_ranks=1))
        batch = self._batches.batch([self._epoch_group(epoch, place) for epoch, place in places])
        rows, images = batch.model_inputs  # type: ignore[misc]
        of_rows = list(range(rows.batch_size)) if rows.row_images is None else rows.row_images.tolist()
        boxes, mask = batch.inputs.region_boxes, batch.inputs.region_mask
        names = [rows.sample_ids[of_rows.index(image)] for image in range(len(mask))]
        return rows, images, names, [own[real] for own, real in zip(boxes, mask, strict=True)]

    def worst_batch(self) -> WorstBatch:
        """A batch as large as any: blank photos in an input that holds them all, with the rows and regions of the group
        with the most regions, auxiliary targets included."""
        photos = self._batches.photos
        assert photos is not None
        most = max(range(len(self._train)), key=lambda place: photos.num_regions(self._train[place]))
        batch = self._batches.batch([self._epoch_group(0, most)] * self.batch_size)
        assert batch.images is not None
        height, width = photos.largest_input()
        count, regions = batch.images.blanked_regions.shape
        blank = batch.images.pixels.new_zeros(count, 3, height, width)
        return WorstBatch(
            replace(batch, images=replace(batch.images, pixels=blank)),
            f"{count} photos of {width} x {height} pixels with {regions} regions each",
            "encoder.recompute=true, train.activation_checkpointing=true, encoder.region_chunk=64, a smaller "
            "detector.short_edge",
        )


def drawn_once(groups: Sequence[TaskGroup], draw: DrawGroup) -> list[TaskGroup]:
    """Groups of evaluations with their drawn rows: the same in every run."""
    return [draw(group, np.random.default_rng((_DRAWN, place))) for place, group in enumerate(groups)]


class TurnsTask(AlternatingTask):
    """Several problems of one task, which one model learns in turn, judged together.

    Args:
        tasks: by the name of the problem; the first one has the validation groups of all.
        updates, loss_scales: of `AlternatingTask`.
    """

    def __init__(self, tasks: Mapping[str, GroupTask], updates: str, loss_scales: Mapping[str, float]) -> None:
        super().__init__(tasks, loss_scales=loss_scales, updates=updates)
        self._judged = next(iter(tasks.values()))

    def first_photos(self) -> tuple[VLBatch, ImageBatch, list[str], list[Tensor]]:
        """`PhotoTask.first_photos` of the first problem."""
        assert isinstance(self._judged, PhotoTask)
        return self._judged.first_photos()

    def evaluate(self) -> Judged:
        """`GroupTask.evaluate` of all problems."""
        return self._judged.evaluate()


def _reading_features(model: nn.Module) -> nn.Module:
    """The part of a model from photos that reads features; any other as it is."""
    return model.model if isinstance(model, EndToEndModel) else model


def scores_of(model: nn.Module, batch: TaskBatch, form: str) -> Tensor:
    """(G, N), see `group_scores`."""
    inputs, *images = batch.model_inputs
    if not images:  # a blind model from photos
        model = _reading_features(model)
    return group_scores(form, model(in_float32(inputs), *images), batch.group_sizes)


def predicted(
    model: nn.Module, batches: GroupBatches, groups: Sequence[TaskGroup], form: str, batch_size: int
) -> Iterator[Prediction]:
    """Predictions of groups, in their order, in batches of `batch_size` groups; without dropout.

    A group that is not open has a prediction without scores.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(groups), batch_size):
            chosen = groups[start : start + batch_size]
            predictions = _predict_batch(model, batches, [group for group in chosen if group.is_open], form, device)
            for group in chosen:
                yield next(predictions) if group.is_open else NO_PREDICTION
    model.train(was_training)


def _predict_batch(
    model: nn.Module, batches: GroupBatches, groups: Sequence[TaskGroup], form: str, device: torch.device
) -> Iterator[Prediction]:
    if not groups:
        return
    batch = batches.batch(groups)
    scores = scores_of(model, batch.to(device), form).float().cpu().numpy()
    if form in (REGION, PHRASE):
        boxes, real = scored_boxes(groups, batch.inputs)
        for row, kept in enumerate(real.sum(dim=1).tolist()):
            of_row = scores[row] if form == REGION else scores[row, : len(groups[row].rows[0].phrases)]
            yield Prediction(of_row[..., :kept], boxes[row, :kept].numpy())
        return
    for row, rows in enumerate(batch.group_sizes):
        yield Prediction(scores[row] if form == LABEL else scores[row, :rows])
