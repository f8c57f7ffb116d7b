"""Labelled photos as the batches that a detector is trained on: which comes when, mirrored, resized, with its seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.photos.preprocessing import input_size
from roibeam.extraction.training.batch import (
    DetectionBatch,
    PhotoObjects,
    TrainingPhoto,
    collate_training_photos,
    prepare_training_photo,
)
from roibeam.extraction.training.targets import Objects
from roibeam.pipelines.data.photos import LabelledPhotos, read_photo
from roibeam.pipelines.training.sample_order import SampleOrder

_ORDER, _PHOTO = 3, 4  # first number of a seed: keeps the random streams of one run apart


@dataclass(frozen=True, eq=False)
class NamedBatch:
    """A batch and the ids of its photos."""

    photos: DetectionBatch
    image_ids: tuple[str, ...]

    def to(self, device: torch.device | str) -> NamedBatch:
        """The same batch with its photos on `device`."""
        return NamedBatch(self.photos.to(device), self.image_ids)

    def one_by_one(self) -> Iterator[NamedBatch]:
        """Batches of one photo each, with the padding it has here."""
        for index, image_id in enumerate(self.image_ids):
            yield NamedBatch(self.photos.photo(index), (image_id,))


@dataclass(frozen=True, eq=False)
class ComingPhoto:
    """A photo on its way into a batch."""

    image_id: str
    seed: int
    photo: Future[TrainingPhoto]


class LabelledBatches:
    """An endless sequence of labelled photos, by number.

    Photos without an object are left out, as in the originals: nothing could be sampled around them. Photos of nearly
    the same shape come together, so that batches need little padding (detectron2 keeps upright and broad photos
    apart). Order, mirroring, size and the sample of regions of a photo follow from the seed, the epoch and its place
    alone, so they are the same for any number of processes and after a resume.

    Args:
        config, conventions: of the detector.
        flip: whether every other photo, by chance, is mirrored left to right.
        short_edges: pixels; each photo is resized to one of these, by chance. () means the detector's own short edge.
            The detector's limit of the long edge holds for all.
    Raises:
        ValueError: for short edges over the long edge.
    """

    def __init__(
        self,
        photos: LabelledPhotos,
        config: DetectorConfig,
        conventions: Conventions,
        *,
        flip: bool,
        short_edges: Sequence[int],
        seed: int,
    ) -> None:
        if too_long := [edge for edge in short_edges if edge > config.long_edge]:
            raise ValueError(f"short_edges {too_long} are over the detector's long_edge {config.long_edge}")
        self._config, self._conventions, self._seed = config, conventions, seed
        self._flip, self._short_edges = flip, tuple(short_edges) or (config.short_edge,)
        self._images = [image for image in photos.images if (~image.ignored).any()]
        self._root = photos.root
        shapes = [image.image_hw or (1, 1) for image in self._images]
        self._order = SampleOrder(len(shapes), (_ORDER, seed), [width / height for height, width in shapes])

    @property
    def num_photos(self) -> int:
        """In one epoch."""
        return len(self._images)

    def places(self, start: int, *, batch_size: int, rank: int, num_ranks: int) -> Iterator[list[tuple[int, int]]]:
        """As `SampleOrder.batches`."""
        return self._order.batches(start, batch_size=batch_size, rank=rank, num_ranks=num_ranks)

    def coming(self, pool: ThreadPoolExecutor, epoch: int, place: int) -> ComingPhoto:
        """The photo of a place in an epoch, which `pool` reads and prepares."""
        generator = np.random.default_rng([_PHOTO, self._seed, epoch, place])
        edge = int(generator.choice(self._short_edges))
        flip = bool(generator.random() < 0.5) and self._flip
        seed = int(generator.integers(2**62))
        return ComingPhoto(self._images[place].image_id, seed, pool.submit(self._prepare, place, edge, flip))

    @staticmethod
    def collate(coming: Sequence[ComingPhoto]) -> NamedBatch:
        """
        Raises:
            ValueError: for a photo that cannot be read or does not fit its labels, naming it.
        """
        prepared = collate_training_photos([each.photo.result() for each in coming], [each.seed for each in coming])
        return NamedBatch(prepared, tuple(each.image_id for each in coming))

    def blank(self, count: int) -> NamedBatch:
        """So many blank photos of the largest network input that any photo has, with an object each."""
        config, conventions = self._config, self._conventions
        shapes = {image.image_hw or (1, 1) for image in self._images}
        sizes = [input_size(each, max(self._short_edges), config.long_edge, conventions) for each in sorted(shapes)]
        (height, width), factor = max(sizes, key=lambda size: size[0][0] * size[0][1])
        whole = Objects(
            torch.tensor([[0.0, 0.0, width - 1.0, height - 1.0]]),
            torch.zeros(1, dtype=torch.long),
            torch.zeros(1, 0, dtype=torch.long),
            torch.zeros(1, dtype=torch.bool),
        )
        photo = TrainingPhoto(torch.zeros(3, height, width), (height, width), factor, whole)
        return NamedBatch(collate_training_photos([photo] * count, range(count)), ("blank",) * count)

    def _prepare(self, place: int, short_edge: int, flip: bool) -> TrainingPhoto:
        image = self._images[place]
        pixels = read_photo(image, self._root, self._conventions.exif_orientation)
        config = dataclasses.replace(self._config, short_edge=short_edge)
        objects = PhotoObjects(image.boxes, image.class_ids, image.attribute_ids, image.ignored)
        try:
            return prepare_training_photo(pixels, objects, config, self._conventions, flip=flip)
        except ValueError as error:
            raise ValueError(f"{image.image_id}: {error}") from None
