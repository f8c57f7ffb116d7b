"""Images of a group on their way into a batch: the regions a model sees, hidden ones, and photos.

Regions are those at the task's boxes, those that the task chooses, or the layout's. Some are hidden while a model
learns an auxiliary target. End to end, each photo is read, resized, mirrored and cut once for each group:

record and its boxes -> thread: photo read, resized, mirrored; outlines -> PhotoInput -> ImageBatch beside the VLBatch
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.photos.preprocessing import input_size
from roibeam.extraction.region_encoder import RegionEncoder, place_boxes
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import ImageBatch
from roibeam.pipelines.common.locations import parse_location
from roibeam.pipelines.common.remote_files import is_url
from roibeam.pipelines.data.batches.image_batch import PhotoInput, collate_inputs, prepare_input
from roibeam.pipelines.data.record_photos import PhotoLocation, RecordPhotos
from roibeam.pipelines.data.record_regions import check_whole_grid, regions_at_boxes, strongest_regions
from roibeam.pipelines.finetuning.rows import PartPieces, TaskGroup
from roibeam.pipelines.finetuning.run.finetune_request import PhotoRequest
from roibeam.pipelines.finetuning.run.task_data import BoxRecords, StorePair, bare_record, boxes_alone
from roibeam.pipelines.finetuning.systems.options import IN_FILE, LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import numbered
from roibeam.pipelines.finetuning.task import AuxiliaryTargets, DownstreamTask, JoinedImage


class RegionChoice:
    """
    Args:
        store: of all images, or their records by their names; None for texts alone.
        task: may choose regions; None leaves all to the options.
    """

    def __init__(
        self,
        store: FeatureStore | BoxRecords | StorePair | Mapping[str, RegionRecord] | None,
        task: DownstreamTask | None,
        options: LayoutOptions,
    ) -> None:
        self._store, self._task, self._options = store, task, options

    def of(self, group: TaskGroup, number: int, record: RegionRecord, *, from_photos: bool = False) -> ImageInput:
        """An image of a group with its input regions, boxes as they are in the photo.

        Args:
            from_photos: whether features are made of the photo, at whatever boxes the task gives.
        """
        given, whole = group.boxes[number] if len(group.boxes) else None, None
        joined = None if from_photos else self._joined(group, number, record)
        if joined is not None:
            record, named, num_boxes, whole = joined
            regions = np.arange(record.num_regions)
        elif given is None:
            regions, num_boxes = self._stored(group, number, record), record.num_regions
            named = dict(zip(regions.tolist(), range(len(regions)), strict=True))
        else:
            boxes = np.asarray(given, np.float32).reshape(-1, 4)
            if from_photos:  # cut to the photo
                limits = np.array([record.width, record.height] * 2, np.float32)
                record = bare_record(record, np.clip(boxes, 0, limits))
            regions = np.arange(record.num_regions) if from_photos else regions_at_boxes(record, boxes)
            named, num_boxes = {place: place for place in range(len(regions))}, len(regions)
        return ImageInput(
            record, regions, named, num_boxes, record.boxes[regions], whole=whole, mirrored=group.mirrored,
            swapped=group.swapped,
        )  # fmt: skip

    def check(self, groups: Iterable[TaskGroup]) -> None:
        """Checks the boxes of every image whose regions the task gives or joins, without reading features.

        Groups that are not open need no record. Raises ValueError naming the first group whose boxes a store lacks, or
        whose records in two stores are of photos of different sizes.
        """
        if self._store is None:
            return
        assert not isinstance(self._store, BoxRecords | Mapping), "only stores have boxes to check"
        if isinstance(self._store, FeatureStore):
            check_whole_grid(self._store, self._options.max_regions, "layout.max_regions")
        light = boxes_alone(self._store)
        choice = RegionChoice(light, self._task, self._options)
        seen = set[tuple[str, int]]()
        for group in groups:
            if not group.is_open:
                continue
            for number, image in enumerate(group.images):
                place = (image, id(group.boxes[number]) if len(group.boxes) else 0)
                if place in seen or not (len(group.boxes) or isinstance(light, StorePair)):
                    continue
                seen.add(place)
                try:
                    choice.of(group, number, light[image])
                except ValueError as error:
                    raise ValueError(f"{group.id}: {error}") from None

    def _joined(self, group: TaskGroup, number: int, record: RegionRecord) -> JoinedImage | None:
        if self._task is None or self._task.joined is None:
            return None
        assert isinstance(self._store, StorePair)
        return self._task.joined(group, number, record, self._store.annotated(group.images[number], record))

    def _stored(self, group: TaskGroup, number: int, record: RegionRecord) -> np.ndarray:
        if self._task is not None and self._task.regions is not None:
            return self._task.regions(group, number, record)
        most = self._options.max_regions
        if self._options.region_order == IN_FILE:
            return np.arange(min(record.num_regions, most or record.num_regions))
        return strongest_regions(record, most)


@dataclass(frozen=True, eq=False)
class ImageInput:
    """An image of a group.

    Attributes:
        regions: (R,) int64, numbers of the record's regions that are inputs, in their order.
        named: number of a box, as words name it -> its place among these; boxes that are no inputs are left out.
        num_boxes: number of boxes that words may name.
        boxes: (R, 4) float32, of these regions: those of a mirrored image are mirrored; before a photo is read they are
            those of the photo as it is.
        swapped: whether boxes that words name need not be there.
        whole: (D,) float32, feature of the whole image where it is of more than the record.
        hidden: (R,) bool, `regions` that are hidden from the model.
        classes: (R, C) float32, targets: 1 at the class of each predicted region; None without such targets.
        predicted: (R,) bool, regions whose class is predicted.
        mirrored: whether the image is mirrored.
        input_classes: (R,) int64, class of each region as an input; None for none.
    """

    record: RegionRecord
    regions: np.ndarray
    named: Mapping[int, int]
    num_boxes: int
    boxes: np.ndarray
    swapped: bool = False
    whole: np.ndarray | None = None
    hidden: np.ndarray | None = None
    classes: torch.Tensor | None = None
    predicted: np.ndarray | None = None
    mirrored: bool = False
    input_classes: np.ndarray | None = None


def joined_pieces(parts: Sequence[PartPieces]) -> PartPieces:
    """Concatenates parts; words keep apart."""
    return PartPieces(
        np.concatenate([part.ids for part in parts]),
        numbered([part.words for part in parts]),
        np.concatenate([part.tags for part in parts]),
    )


def auxiliary_targets(
    image: ImageInput, group: TaskGroup, beside: AuxiliaryTargets, generator: np.random.Generator
) -> ImageInput:
    """The image with its auxiliary targets: classes of its boxes, and the boxes that are hidden."""
    if beside.classes is None or not beside.class_names:
        return image
    classes = torch.zeros(len(image.regions), len(beside.class_names))
    known = np.zeros(len(image.regions), bool)
    for number, kind in enumerate(beside.classes(group)):
        if number in image.named:
            classes[image.named[number], int(kind)], known[image.named[number]] = 1.0, True
    if not beside.hidden_regions:
        return replace(image, classes=classes, predicted=known)
    hidden = known & (generator.random(len(known)) < beside.hidden_regions)
    return replace(image, classes=classes, predicted=hidden, hidden=hidden)


def with_input_classes(image: ImageInput, classes: np.ndarray) -> ImageInput:
    """The image with the class of each region as an input; 0 for a region that is no box of the task.

    Args:
        classes: of the boxes, by the number that words name them by.
    """
    input_classes = np.zeros(len(image.regions), np.int64)
    for number, place in image.named.items():
        if number < len(classes):
            input_classes[place] = classes[number]
    return replace(image, input_classes=input_classes)


def with_whole_region(image: ImageInput, feature: torch.Tensor | None) -> ImageInput:
    """The image with the whole of it as its first region, which no word names and whose class is 0.

    In the record it stands last, so that numbers of regions stay what they are.

    Args:
        feature: (D,) of the whole image; None for the mean of the input regions, zeros where there is none.
    """
    record, count = image.record, image.record.num_regions
    whole = np.array([[0, 0, record.width, record.height]], np.float32)
    if feature is None:
        own = record.features[image.regions].astype(np.float32)
        mean = own.sum(axis=0) / max(len(own), 1)
    else:
        mean = feature.numpy()
    more = replace(
        record,
        boxes=np.concatenate([record.boxes, whole]),
        features=np.concatenate([record.features, mean[None].astype(record.features.dtype)]),
        class_ids=np.append(record.class_ids, np.uint16(0)),
        class_scores=np.append(record.class_scores, np.float32(0)),
        attribute_ids=None,
        attribute_scores=None,
        class_distribution=None,
    )
    return replace(
        image,
        record=more,
        regions=np.concatenate([[count], image.regions]),
        named={number: place + 1 for number, place in image.named.items()},
        boxes=np.concatenate([whole, image.boxes]),
    )


def flags_of(given: Sequence[np.ndarray | None], nothing: np.ndarray) -> np.ndarray:
    """(R,) bool of several images' regions."""
    known = [each for each in given if each is not None]
    return np.concatenate(known) if len(known) == len(given) else nothing


# Path of a photo, its record, cells each way -> (K, cells, cells) float32, what each cell of each region counts.
Outlines = Callable[[str, RegionRecord, int], np.ndarray]


class GroupPhotos:
    """The photos of a run. Raises ValueError when a photo is missing, or the place of photos is unknown.

    Args:
        image_ids: of all groups, as in the store.
        folder: of the photos; None for the places that the store records.
        outlines: of the task's objects; None for a task without.
    """

    def __init__(
        self,
        store: FeatureStore,
        image_ids: Iterable[str],
        folder: str | None,
        encoder: RegionEncoder,
        choices: EndToEndChoices,
        options: PhotoRequest,
        *,
        outlines: Outlines | None = None,
    ) -> None:
        ids = list(image_ids)
        self._store, self._photos = store, RecordPhotos.of_all(store, ids, folder)
        # Looked up at once: processes that make batches ahead cannot share the table.
        self._locations = {image_id: self._photos.place(image_id, (0, 0)).location for image_id in ids}
        self._config, self._conventions, self._mask_cells = encoder.config, encoder.conventions, encoder.mask_cells
        self._choices, self._options = choices, options
        self._outlines = outlines if options.outlines else None
        self.flip = options.flip  # whether every other photo of training is mirrored
        self.has_whole_image = choices.whole_image == "box"  # whether a feature of it is made of each photo
        self._pool: ThreadPoolExecutor | None = None

    def likeness(self, image_ids: Iterable[str]) -> list[float] | None:
        """Width divided by height of each image; None where photos come in any order."""
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
        """Regions of the group's image with the most: those that the task gives, else those of the store."""
        if len(group.boxes):
            return max(len(boxes) for boxes in group.boxes)
        return max(self._store.meta(image).num_regions for image in group.images)

    def coming(self, image: ImageInput) -> Future[PhotoInput]:
        """Starts reading a photo in a thread, whose regions are cut out."""
        record = image.record
        place = PhotoLocation(record.image_id, self._locations[record.image_id], (record.height, record.width))
        if self._pool is None:  # a process starts its threads with the first photo
            self._pool = ThreadPoolExecutor(self._options.read_ahead, thread_name_prefix="photos")
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool.submit(self._cut, place, image)

    def collated(self, photos: Sequence[Future[PhotoInput]]) -> tuple[ImageBatch, Tensor]:
        """Pads photos to one batch; also (I, R, 4) boxes in pixels of the photos, or of their mirror images: clipped,
        zeros at padding. Raises ValueError naming a photo that cannot be read, or is not the one that its record was
        made of.
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

    def _cut(self, place: PhotoLocation, image: ImageInput) -> PhotoInput:
        pixels, masks = self._photos.read(place), self._masks(place.location, image)
        hidden = flags_of([image.hidden], np.zeros(len(image.boxes), bool))
        try:
            return prepare_input(
                pixels, image.boxes, hidden, self._config, self._conventions, self._choices, flip=image.mirrored,
                fixed_size=self._options.fixed_size, outlines=masks,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"image {place.image_id!r}: {error}") from None

    def _masks(self, location: str, image: ImageInput) -> np.ndarray | None:
        if self._outlines is None:
            return None
        if parse_location(location) is not None or is_url(location):
            raise ValueError(
                f"{location}: outlines are read beside photos in a folder; unpack them, or take whole boxes with "
                f"--set photos.outlines=false"
            )
        return self._outlines(location, image.record, self._mask_cells)[image.regions]
