"""A detector's folder judged on labelled photos, with word of how long it will take."""

from __future__ import annotations

from roibeam.extraction.choice.detector_folder import read_detector_folder
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.common.console.progress import PHOTOS, Progress, waiting
from roibeam.pipelines.data.photos import LabelledPhotos, check_same_names
from roibeam.pipelines.training.detector.evaluation import evaluate_detector
from roibeam.pipelines.training.detector.report import DetectionReport


def evaluate_folder(
    detector: str,
    photos: LabelledPhotos,
    *,
    device: str = "cpu",
    nms_iou: float = 0.3,
    conventions: Conventions | None = None,
) -> DetectionReport:
    """
    Args:
        detector: as of `read_detector_folder`.
        device: cpu, cuda or cuda:<n>.
        nms_iou: as of `evaluate_detector`.
        conventions: None means those of the folder.
    Raises:
        ValueError: when it is no detector's folder, or knows other classes or attributes than the labels.
    """
    folder = read_detector_folder(detector)
    check_same_names(photos, folder.class_names, folder.attribute_names, detector)
    with waiting("loading the detector"):
        model = build_detector(
            folder.config, weights=folder.weights, conventions=conventions or folder.conventions, device=device
        )
    with Progress("judging", len(photos.images), PHOTOS) as progress:
        return evaluate_detector(
            model,
            photos.images,
            photos.root,
            class_names=photos.class_names,
            attribute_names=photos.attribute_names,
            nms_iou=nms_iou,
            progress=progress.to,
        )
