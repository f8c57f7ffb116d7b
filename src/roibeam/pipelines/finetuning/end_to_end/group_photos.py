"""Photos of groups on their way into batches: each is read, resized, mirrored and cut once for each group.

record and its boxes -> thread: photo read, resized, mirrored; outlines -> PhotoInput -> ImageBatch beside the VLBatch
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.photos.preprocessing import input_size
from roibeam.extraction.region_batch import place_boxes
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.features.counted import counted
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end import ImageBatch
from roibeam.model.end_to_end_choices import EndToEndChoices
from roibeam.pipelines.common.files.archives import parse_location
from roibeam.pipelines.common.files.remote_files import is_url
from roibeam.pipelines.data.batches.image_batch import PhotoInput, collate_inputs, prepare_input
from roibeam.pipelines.data.record_photos import PhotoPlace, RecordPhotos
from roibeam.pipelines.finetuning.end_to_end.encoder_request import TaskPhotos
from roibeam.pipelines.finetuning.rows import TaskGroup

# Path of a photo, its record, cells each way -> (K, cells, cells) float32, what each cell of each region counts.
Outlines = Callable[[str, RegionRecord, int], np.ndarray]


class ShownRegions(NamedTuple):
    """What is cut out of a photo.

    Attributes:
        record: of the photo.
        regions: (R,) int64, numbers of the record's regions that are shown.
        boxes: (R, 4) float32, x1 y1 x2 y2 in pixels of the photo as it is.
        masked: (R,) bool, what of them the model must not see.
    """

    record: RegionRecord
    regions: np.ndarray
    boxes: np.ndarray
    masked: np.ndarray


class GroupPhotos:
    """The photos of a run.

    Args:
        image_ids: of all groups, as in the store.
        folder: of the photos; None where the store says that they lie.
        encoder: that will read them.
        outlines: of the task's objects; None for a task without.
    Raises:
        ValueError: when a photo is missing, or nobody says where they lie.
    """

    def __init__(
        self,
        store: FeatureStore,
        image_ids: Iterable[str],
        folder: str | None,
        encoder: RegionEncoder,
        choices: EndToEndChoices,
        options: TaskPhotos,
        *,
        outlines: Outlines | None = None,
    ) -> None:
        ids = list(image_ids)
        self._store, self._photos = store, RecordPhotos(store, ids, folder)
        if missing := self._photos.missing():
            image_id, why = next(iter(missing.items()))
            raise ValueError(
                f"{counted(len(missing), 'image')} of {len(ids):,} without a photo, such as {image_id!r}: {why}; name "
                f"their folder with --photos"
            )
        # Looked up at once: processes that make batches ahead cannot share the table.
        self._locations = {image_id: self._photos.place(image_id, (0, 0)).location for image_id in ids}
        self._config, self._conventions, self._mask_cells = encoder.config, encoder.conventions, encoder.mask_cells
        self._choices, self._options = choices, options
        self._outlines = outlines if options.outlines else None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def flip(self) -> bool:
        """Whether every other photo of training is mirrored."""
        return self._options.flip

    @property
    def has_whole_image(self) -> bool:
        """Whether a feature of the whole image is made of each photo."""
        return self._choices.whole_image == "box"

    def likeness(self, image_ids: Iterable[str]) -> list[float] | None:
        """For each image its width by its height; None where photos come in any order."""
        if not self._options.aspect_buckets:
            return None
        metas = map(self._store.meta, image_ids)
        return [meta.width / meta.height for meta in metas]

    def largest_input(self) -> tuple[int, int]:
        """Height and width, pixels, of a padded network input that holds every photo of the run."""
        config, multiple = self._config, self._conventions.padding_multiple
        shapes = {(meta.height, meta.width) for meta in map(self._store.meta, self._locations)}
        edges = config.short_edge, config.long_edge
        inputs = np.array([input_size(shape, *edges, self._conventions)[0] for shape in shapes])
        if self._options.fixed_size:
            inputs = np.where(inputs[:, :1] <= inputs[:, 1:], edges, edges[::-1])
        height, width = (inputs + -inputs % multiple).max(axis=0)
        return int(height), int(width)

    def num_regions(self, group: TaskGroup) -> int:
        """Of its image with the most: those that the task gives, else those of the store."""
        if len(group.boxes):
            return max(len(boxes) for boxes in group.boxes)
        return max(self._store.meta(image).num_regions for image in group.images)

    def coming(self, shown: ShownRegions, *, mirrored: bool) -> Future[PhotoInput]:
        """A photo that a thread reads.

        Args:
            mirrored: whether the photo is mirrored left to right, and boxes and masks with it.
        """
        record = shown.record
        place = PhotoPlace(record.image_id, self._locations[record.image_id], (record.height, record.width))
        return self._threads().submit(self._cut, place, shown, mirrored)

    def collated(self, photos: Sequence[Future[PhotoInput]]) -> tuple[ImageBatch, Tensor]:
        """Photos padded to one batch, and (I, R, 4) boxes in pixels of the photos, or of their mirror images: clipped,
        zeros at padding.

        Raises:
            ValueError: naming a photo that cannot be read, or is not the one that its record was made of.
        """
        made = collate_inputs([photo.result() for photo in photos], self._choices)
        boxes, mask = made.regions["region_boxes"], made.regions["region_mask"]
        return made.images, boxes * mask[..., None]

    def in_input(self, groups: Sequence[TaskGroup], photos: Sequence[Future[PhotoInput]]) -> list[TaskGroup]:
        """Groups that choose among regions, with the right box and that of the whole image as the network sees them: in
        pixels of its input, mirrored where the photo is, clipped.

        Args:
            photos: of the groups, that of each one's only image.
        """
        found = []
        for group, photo in zip(groups, photos, strict=True):
            given = [box for box in (group.target, group.whole_image) if box is not None]
            seen = photo.result().photo
            right, *whole = place_boxes(
                torch.as_tensor(np.array(given, np.float32)), seen.input_hw, seen.scale_xy, self._conventions,
                flip=group.mirrored,
            ).numpy()  # fmt: skip
            found.append(replace(group, target=right, whole_image=whole[0] if whole else None))
        return found

    def _cut(self, place: PhotoPlace, asked: ShownRegions, mirrored: bool) -> PhotoInput:
        pixels, masks = self._photos.read(place), self._masks(place.location, asked)
        try:
            return prepare_input(
                pixels, asked.boxes, asked.masked, self._config, self._conventions, self._choices, flip=mirrored,
                fixed_size=self._options.fixed_size, outlines=masks,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"image {place.image_id!r}: {error}") from None

    def _masks(self, location: str, asked: ShownRegions) -> np.ndarray | None:
        if self._outlines is None:
            return None
        if parse_location(location) is not None or is_url(location):
            raise ValueError(
                f"{location}: outlines are read beside photos in a folder; unpack them, or show whole boxes with "
                f"--set photos.outlines=false"
            )
        return self._outlines(location, asked.record, self._mask_cells)[asked.regions]

    def _threads(self) -> ThreadPoolExecutor:
        """Of this process, from the first photo on."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._options.read_ahead, thread_name_prefix="photos")
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool
