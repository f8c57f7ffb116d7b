"""A detector's folder judged on labelled photos, with word of how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable

from roibeam.extraction.choice.detector_folder import read_detector_folder
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.detector.evaluation import evaluate_detector
from roibeam.pipelines.detector.photos import LabelledPhotos, check_same_names
from roibeam.pipelines.detector.report import DetectionReport

_TELL_SECONDS = 10.0


def evaluate_folder(
    detector: str,
    photos: LabelledPhotos,
    *,
    device: str = "cpu",
    nms_iou: float = 0.3,
    max_images: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> DetectionReport:
    """
    Args:
        detector: as of `read_detector_folder`.
        device: cpu, cuda or cuda:<n>.
        nms_iou, max_images: as of `evaluate_detector`.
        tell: called every ten seconds with a line on the progress.
    Raises:
        ValueError: when it is no detector's folder, or knows other classes or attributes than the labels.
    """
    folder = read_detector_folder(detector)
    check_same_names(photos, folder.class_names, folder.attribute_names, detector)
    model = build_detector(folder.config, weights=folder.weights, conventions=folder.conventions, device=device)
    total = len(photos.images) if max_images is None else min(max_images, len(photos.images))
    started = last = time.monotonic()

    def progress(done: int) -> None:
        nonlocal last
        if time.monotonic() - last > _TELL_SECONDS:
            last = time.monotonic()
            left = (last - started) / done * (total - done)
            tell(f"judging: {done:,} of {total:,} photos, {left:.0f} s left")

    return evaluate_detector(
        model,
        photos.images,
        photos.root,
        class_names=photos.class_names,
        attribute_names=photos.attribute_names,
        nms_iou=nms_iou,
        max_images=max_images,
        progress=progress,
    )
