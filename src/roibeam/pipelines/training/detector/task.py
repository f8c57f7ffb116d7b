"""Detector training as a task of the loop: labelled photos -> batches -> losses of `DetectorTraining`; and its runs.

The batches define the order of photos, and each one's mirroring, size and seed. A run reads labelled photos and writes
a run folder with the detector's folder in it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import nn

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.resnet import FrozenBatchNorm
from roibeam.extraction.photos.preprocessing import input_size
from roibeam.extraction.training.batch import (
    DetectionBatch,
    PhotoObjects,
    TrainingPhoto,
    collate_training_photos,
    prepare_training_photo,
)
from roibeam.extraction.training.batch_losses import (
    LOSSES,
    DetectionLosses,
    DetectorTraining,
    build_trainable_detector,
    heads_of,
    initialise,
)
from roibeam.extraction.training.targets import Objects
from roibeam.extraction.weights.detector_choice import describe_detector, is_detector_folder, read_detector_folder
from roibeam.extraction.weights.loading import load_folder, load_weights, part_state
from roibeam.messages import plural
from roibeam.model.common.losses import PreTrainingOutput, SumCount
from roibeam.pipelines.common.statistics.verdict import Judged
from roibeam.pipelines.data.image_identity import reported_by_name
from roibeam.pipelines.data.labelled_photos import LabelledPhotos, read_photo
from roibeam.pipelines.training.detector.evaluation import evaluate_photos
from roibeam.pipelines.training.detector.settings import BEST_BY, DetectorPhotoRules, DetectorSettings, Start
from roibeam.pipelines.training.hooks import TrainResult
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.parameter_groups import ParameterGroup, matrices_decay
from roibeam.pipelines.training.run_folder.folder import check_run_folder
from roibeam.pipelines.training.sample_order import SampleOrder
from roibeam.pipelines.training.train_config import Resume

_ORDER, _PHOTO = 3, 4  # first number of a seed: keeps the random streams of one run apart


@dataclass(frozen=True, eq=False)
class NamedBatch:
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
        flip: whether every other photo, by chance, is mirrored left to right.
        short_edges: pixels; each photo is resized to one of these, by chance. () means the detector's own short edge.
            The detector's limit of the long edge holds for all.
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
        self.num_photos = len(self._images)  # of one epoch
        self._root = photos.root
        shapes = [image.image_hw or (1, 1) for image in self._images]
        self._order = SampleOrder(len(shapes), (_ORDER, seed), [width / height for height, width in shapes])

    def places(self, start: int, *, batch_size: int, rank: int, num_ranks: int) -> Iterator[list[tuple[int, int]]]:
        """See `SampleOrder.batches`."""
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
        prepared = collate_training_photos([each.photo.result() for each in coming], [each.seed for each in coming])
        return NamedBatch(prepared, tuple(each.image_id for each in coming))

    def blank(self, count: int) -> NamedBatch:
        """Blank photos of the largest network input that any photo has, with an object each."""
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


def summed(found: DetectionLosses) -> PreTrainingOutput:
    """Losses and metrics of a batch as sums and counts: each loss is averaged over the photos."""
    return PreTrainingOutput(
        {name: SumCount(row.sum(), torch.tensor(len(row), device=row.device)) for name, row in found.losses.items()},
        {name: SumCount(*pair) for name, pair in found.metrics.items()},
    )


class DetectorTask:
    """A `TrainTask` on `LabelledBatches`; the detector to train has as many classes and attributes as `photos` has
    names."""

    def __init__(
        self, training: DetectorTraining, photos: LabelledPhotos, rules: DetectorPhotoRules, *, seed: int
    ) -> None:
        self.model, self.batch_size, self._rules = training, rules.batch_size, rules
        self._description = describe_detector(
            training.config, training.conventions, photos.class_names, photos.attribute_names
        )
        self._photos = LabelledBatches(
            photos, training.config, training.conventions, flip=rules.flip, short_edges=rules.short_edges, seed=seed
        )
        self.num_samples = self._photos.num_photos

    def batches(self, start_sample: int, *, rank: int, num_ranks: int) -> Iterator[NamedBatch]:
        places = self._photos.places(start_sample, batch_size=self.batch_size, rank=rank, num_ranks=num_ranks)
        waiting: deque[list[ComingPhoto]] = deque()
        with ThreadPoolExecutor(self._rules.read_ahead, thread_name_prefix="photos") as pool:
            while True:
                while len(waiting) < 2:
                    waiting.append([self._photos.coming(pool, epoch, place) for epoch, place in next(places)])
                yield self._photos.collate(waiting.popleft())

    def counts(self, batch: NamedBatch) -> dict[str, int]:
        return dict.fromkeys(LOSSES, len(batch.photos))

    def losses(self, model: nn.Module, batch: NamedBatch) -> PreTrainingOutput:
        return summed(model(batch.photos))

    def parameter_groups(self) -> list[ParameterGroup]:
        return matrices_decay(self.model)

    def sample_ids(self, batch: NamedBatch) -> Sequence[str]:
        return batch.image_ids

    def one_by_one(self, batch: NamedBatch) -> Iterator[NamedBatch]:
        return batch.one_by_one()

    def model_config(self) -> dict[str, Any]:
        """Config that makes the weights' folder a detector's folder, see `extraction/weights/detector_choice.py`."""
        return self._description


class JudgedDetectorTask(DetectorTask):
    """A `DetectorTask` whose detector is evaluated, at each evaluation, on other photos with the same names."""

    def __init__(
        self,
        training: DetectorTraining,
        photos: LabelledPhotos,
        rules: DetectorPhotoRules,
        judged: LabelledPhotos,
        *,
        seed: int,
    ) -> None:
        super().__init__(training, photos, rules, seed=seed)
        self._judged = judged

    def evaluate(self) -> Judged:
        """See `roibeam detector evaluate`: `BEST_BY`, COCO's AP, and metrics of the kept regions."""
        training, judged = self.model, self._judged
        detector = Detector(
            training.config,
            training.conventions,
            backbone=training.backbone,
            proposal_generator=training.proposal_generator,
            roi_heads=training.roi_heads,
        )
        report = evaluate_photos(detector.eval(), judged)
        # Boxes to be found have no level of chance: attributes alone stand beside chance.
        values = {
            BEST_BY: report.objects.mean,
            "coco_precision": report.coco.ap,
            "object_recall": report.region_recall.recall,
        }
        attributes = [report.attribute_accuracy.figure] if judged.attribute_names else []
        mean, *others = Judged.of(values).figures
        return Judged(
            [dataclasses.replace(mean, low=report.objects.low, high=report.objects.high), *others, *attributes]
        )


logger = logging.getLogger(__name__)

_RESNET = ("backbone.", "roi_heads.res5.")


def train_detector(
    photos: LabelledPhotos,
    run_dir: Path,
    settings: DetectorSettings,
    *,
    judged: LabelledPhotos | None = None,
    resume: Resume = False,
    stop_at_step: int | None = None,
) -> TrainResult:
    """Trains a detector; the folder `model` of each checkpoint is a detector's folder (`read_detector_folder`).

    Args:
        judged: photos to evaluate the detector on while it is trained, every `TrainConfig.evaluate_every` steps.
    """
    start, seed = settings.start, settings.train.seed
    check_run_folder(Path(run_dir), resume=resume)
    names = photos.class_names, photos.attribute_names
    training = DetectorTraining(
        build_start(settings.config, settings.conventions, start, seed=seed, names=names),
        sampling=settings.sampling,
        loss_rules=settings.losses,
        frozen_stages=start.frozen_stages,
    )
    training.to(memory_format=torch.channels_last)  # a third less time on a CPU
    if judged is None:
        task = DetectorTask(training, photos, settings.photos, seed=seed)
    else:
        task = JudgedDetectorTask(training, photos, settings.photos, judged, seed=seed)
    logger.info(
        "%s of %s have objects: %s, %s",
        f"{task.num_samples:,}", plural(len(photos.images), "photo"),
        plural(len(photos.class_names), "class", "classes"), plural(len(photos.attribute_names), "attribute"),
    )  # fmt: skip
    for note in photos.notes():
        logger.info("note: %s", note)
    described = ("start", "photos", "sampling", "losses")
    reported = reported_by_name(image.image_id for image in photos.images)
    if reported is not None:
        logger.warning("%s", reported)
    return train(
        task,
        settings.train,
        run_dir,
        description={
            **{name: dataclasses.asdict(getattr(settings, name)) for name in described},
            "model": task.model_config(),
            "labels": photos.digest,
        },
        recorded={
            "root": photos.root,
            "photos": len(photos.images),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            **photos.facts(),
            **({} if judged is None else {"judged_photos": len(judged.images), "judged_labels": judged.path}),
        },
        resume=resume,
        stop_at_step=stop_at_step,
    )


def build_start(
    config: DetectorConfig,
    conventions: Conventions,
    start: Start,
    *,
    seed: int,
    names: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Detector:
    """The detector before the first step; `names` of its classes and attributes are compared with those of a folder."""
    from_scratch = start.weights is None and start.resnet is None
    if from_scratch:
        logger.info("starting from new weights; --weights (toy, a run, a file) starts from trained ones")
    norm = nn.BatchNorm2d if from_scratch else FrozenBatchNorm
    detector = build_trainable_detector(config, conventions, norm=norm)
    if start.weights is not None and not is_detector_folder(start.weights):
        load_weights(start.weights, detector)
        heads_of(detector).check_anchors()  # the folder that is written states those of the conventions
        return detector
    initialise(detector, torch.Generator().manual_seed(seed))
    if start.weights is not None:
        _load_folder(start.weights, detector, *map(tuple, names))
        return detector
    if start.resnet is not None:
        own = {name: tensor for name, tensor in detector.state_dict().items() if name.startswith(_RESNET)}
        detector.load_state_dict({**detector.state_dict(), **part_state(start.resnet, own)})
    return detector


def _load_folder(place: str, detector: Detector, classes: tuple[str, ...], attributes: tuple[str, ...]) -> None:
    """Takes the weights of a detector's folder, and logs the layers that start anew because its classes differ."""
    folder = read_detector_folder(place)
    same_classes, same_attributes = folder.class_names == classes, folder.attribute_names == attributes
    anew = load_folder(folder, detector, same_classes=same_classes, same_attributes=same_attributes)
    if not anew:
        logger.info("starting from %s, no layer anew", place)
        return
    changes = [
        f"{plural(len(new), *words)} in place of its {len(old)}"
        for is_same, new, old, words in (
            (same_classes, classes, folder.class_names, ("class", "classes")),
            (same_attributes, attributes, folder.attribute_names, ("attribute",)),
        )
        if not is_same
    ]
    logger.info("starting from %s with %s; these layers start anew: %s", place, ", ".join(changes), ", ".join(anew))
