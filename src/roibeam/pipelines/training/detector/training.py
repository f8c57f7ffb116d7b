"""A training run of a detector: labelled photos in, a run folder with the detector's folder out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
import torchvision
from torch import nn

from roibeam.extraction.choice.detector_folder import is_detector_folder, read_detector_folder
from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.resnet import FrozenBatchNorm
from roibeam.extraction.training.batch_losses import DetectorTraining, build_trainable_detector, initialise
from roibeam.extraction.training.heads import heads_of
from roibeam.extraction.weights.loading import load_weights, part_state
from roibeam.extraction.weights.other_classes import load_folder
from roibeam.features.counted import counted
from roibeam.pipelines.data.image_identity import reported_by_name
from roibeam.pipelines.data.photos import LabelledPhotos
from roibeam.pipelines.training.detector.settings import DetectorSettings, Start
from roibeam.pipelines.training.detector.task import DetectorTask, JudgedDetectorTask
from roibeam.pipelines.training.loop import train
from roibeam.pipelines.training.run_folder.folder import Resume, check_run_folder
from roibeam.pipelines.training.run_in_work import TrainResult

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
        judged: on these the detector is judged while it is trained, every `TrainConfig.evaluate_every` steps.
        resume, stop_at_step: as of `train`.
    Raises:
        ValueError: whatever does not fit, saying what to do; for photos that cannot be read, while training.
    """
    start, seed = settings.start, settings.train.seed
    check_run_folder(Path(run_dir), resume=resume)
    training = DetectorTraining(
        build_start(
            settings.config, settings.conventions, start, seed=seed, names=(photos.class_names, photos.attribute_names)
        ),
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
        f"{task.num_samples:,}", counted(len(photos.images), "photo"),
        counted(len(photos.class_names), "class", "classes"), counted(len(photos.attribute_names), "attribute"),
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
    """The detector as it is before the first step.

    Args:
        names: of its classes and attributes; those of a detector's folder are compared with them.
    """
    from_scratch = start.weights is None and start.resnet is None
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
        own = _named(detector, _RESNET)
        detector.load_state_dict({**detector.state_dict(), **part_state(start.resnet, own)})
    return detector


def _load_folder(place: str, detector: Detector, classes: tuple[str, ...], attributes: tuple[str, ...]) -> None:
    """Takes the weights of a detector's folder, and tells what starts anew because its classes are others."""
    folder = read_detector_folder(place)
    same_classes, same_attributes = folder.class_names == classes, folder.attribute_names == attributes
    anew = load_folder(folder, detector, same_classes=same_classes, same_attributes=same_attributes)
    if not anew:
        logger.info("starting from %s, no layer anew", place)
        return
    changes = [
        f"{counted(len(ours), *words)} in place of its {len(theirs)}"
        for is_same, ours, theirs, words in (
            (same_classes, classes, folder.class_names, ("class", "classes")),
            (same_attributes, attributes, folder.attribute_names, ("attribute",)),
        )
        if not is_same
    ]
    logger.info("starting from %s with %s; these layers start anew: %s", place, ", ".join(changes), ", ".join(anew))


def _named(detector: Detector, prefixes: Collection[str]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in detector.state_dict().items() if name.startswith(tuple(prefixes))}
