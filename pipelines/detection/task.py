"""Detector training as a task of the one loop: labelled photos -> batches -> the losses of `DetectorTraining`."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from extraction.detection_batch import (
    DetectionBatch,
    PhotoObjects,
    TrainingPhoto,
    collate_training_photos,
    prepare_training_photo,
)
from extraction.detector_folder import describe_detector
from extraction.detector_training import LOSSES, DetectorTraining
from model.losses import SumCount
from pipelines.detection.photos import LabelledPhotos, read_photo
from pipelines.parameter_groups import ParameterGroup
from pipelines.sample_order import SampleOrder

_ORDER, _PHOTO = 3, 4  # first number of a seed: keeps the random streams of one run apart


@dataclass(frozen=True)
class PhotoRules:
    """How photos become batches.

    Attributes:
        batch_size: photos per micro-batch and process.
        flip: whether every other photo, by chance, is mirrored left to right.
        short_edges: pixels; each photo is resized to one of these, by chance (multi-scale training). () means the
            detector's own short edge. The detector's limit of the long edge holds for all.
        read_ahead: threads that read and resize the next batch's photos while one is trained on.
    """

    batch_size: int = 2
    flip: bool = True
    short_edges: tuple[int, ...] = ()
    read_ahead: int = 2

    def __post_init__(self) -> None:
        for name in ("batch_size", "read_ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not all(isinstance(edge, int) and edge >= 16 for edge in self.short_edges):
            raise ValueError(f"short_edges must be pixels, 16 or more, got {list(self.short_edges)}")


@dataclass(frozen=True, eq=False)
class NamedBatch:
    """A batch and the ids of its photos."""

    photos: DetectionBatch
    image_ids: tuple[str, ...]

    def to(self, device: torch.device | str) -> NamedBatch:
        """The same batch with its photos on `device`."""
        return NamedBatch(self.photos.to(device), self.image_ids)


@dataclass(frozen=True, eq=False)
class DetectionOutput:
    """A `LossOutput`: sums over the photos of a batch, and what was hit."""

    losses: Mapping[str, SumCount]
    metrics: Mapping[str, SumCount]


class DetectorTask:
    """A `TrainTask`. Photos without an object are left out, as in the originals: nothing could be sampled around them.

    Photos of nearly the same shape come together, so that batches need little padding (detectron2 keeps upright and
    broad photos apart). Order, mirroring, size and the sample of regions of a photo follow from the seed, the epoch and
    its place alone, so they are the same for any number of processes and after a resume.

    Args:
        training: what is trained; its detector has as many classes and attributes as `photos` has names.
        seed: of everything random.
    Raises:
        ValueError: when detector and photos do not fit each other.
    """

    def __init__(self, training: DetectorTraining, photos: LabelledPhotos, rules: PhotoRules, *, seed: int) -> None:
        self._training, self._rules, self._seed = training, rules, seed
        self._config, self._conventions = training.config, training.conventions
        self._description = describe_detector(
            training.config, training.conventions, photos.class_names, photos.attribute_names
        )
        self._images = [image for image in photos.images if (~image.ignored).any()]
        self._root = photos.root
        shapes = [image.image_hw or (1, 1) for image in self._images]
        self._order = SampleOrder(len(shapes), (_ORDER, seed), [width / height for height, width in shapes])
        if too_long := [edge for edge in rules.short_edges if edge > self._config.long_edge]:
            raise ValueError(f"short_edges {too_long} are over the detector's long_edge {self._config.long_edge}")

    @property
    def model(self) -> DetectorTraining:
        return self._training

    @property
    def batch_size(self) -> int:
        return self._rules.batch_size

    @property
    def num_samples(self) -> int:
        return len(self._images)

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[NamedBatch]:
        places = self._order.batches(start_sample, batch_size=self.batch_size, rank=rank, num_ranks=num_ranks)
        waiting: deque[list[tuple[str, int, Future[TrainingPhoto]]]] = deque()
        with ThreadPoolExecutor(self._rules.read_ahead, thread_name_prefix="photos") as pool:
            while True:
                while len(waiting) < 2:
                    waiting.append([self._submit(pool, epoch, place) for epoch, place in next(places)])
                batch = waiting.popleft()
                prepared = collate_training_photos(
                    [each.result() for *_, each in batch], [seed for _, seed, _ in batch]
                )
                yield NamedBatch(prepared, tuple(image_id for image_id, *_ in batch))

    def counts(self, batch: NamedBatch) -> dict[str, int]:
        return dict.fromkeys(LOSSES, len(batch.photos))

    def losses(self, model: nn.Module, batch: NamedBatch) -> DetectionOutput:
        output = model(batch.photos)
        count = torch.tensor(len(batch.photos), device=batch.photos.pixels.device)
        return DetectionOutput(
            {name: SumCount(values.sum(), count) for name, values in output.losses.items()},
            {name: SumCount(*pair) for name, pair in output.metrics.items()},
        )

    def parameter_groups(self) -> list[ParameterGroup]:
        """Weights decay; biases and norms do not (detectron2's WEIGHT_DECAY_NORM 0, and Caffe's decay_mult 0 of
        biases)."""
        trained = [each for each in self._training.parameters() if each.requires_grad]
        return [
            {"params": [each for each in trained if each.ndim > 1]},
            {"params": [each for each in trained if each.ndim == 1], "weight_decay": 0.0},
        ]

    def sample_ids(self, batch: NamedBatch) -> Sequence[str]:
        return batch.image_ids

    def one_by_one(self, batch: NamedBatch) -> Iterator[NamedBatch]:
        for index, image_id in enumerate(batch.image_ids):
            yield NamedBatch(batch.photos.photo(index), (image_id,))

    def model_config(self) -> dict[str, Any]:
        """Makes the folder of the weights a detector's folder, see `extraction/detector_folder.py`."""
        return self._description

    def _submit(self, pool: ThreadPoolExecutor, epoch: int, place: int) -> tuple[str, int, Future[TrainingPhoto]]:
        generator = np.random.default_rng([_PHOTO, self._seed, epoch, place])
        edge = int(generator.choice(self._rules.short_edges or (self._config.short_edge,)))
        flip = bool(generator.random() < 0.5) and self._rules.flip
        seed = int(generator.integers(2**62))
        return self._images[place].image_id, seed, pool.submit(self._prepare, place, edge, flip)

    def _prepare(self, place: int, short_edge: int, flip: bool) -> TrainingPhoto:
        image = self._images[place]
        pixels = read_photo(image, self._root, self._conventions.exif_orientation)
        config = dataclasses.replace(self._config, short_edge=short_edge)
        objects = PhotoObjects(image.boxes, image.class_ids, image.attribute_ids, image.ignored)
        try:
            return prepare_training_photo(pixels, objects, config, self._conventions, flip=flip)
        except ValueError as error:
            raise ValueError(f"{image.image_id}: {error}") from None
