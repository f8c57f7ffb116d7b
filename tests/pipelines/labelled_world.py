"""Photos of noise with labelled objects, a detector of milliseconds for them, and COCO's file of them."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from end_to_end_examples import ENCODER
from labelled_examples import coco_annotations, labelled

from roibeam.extraction.network.conventions import CONVENTIONS, Conventions
from roibeam.extraction.training.rules import SamplingRules
from roibeam.pipelines.data.labelled_photos import LabelledPhotos
from roibeam.pipelines.training.detector.task import LabelledBatches

CLASSES, ATTRIBUTES = ("ball", "box", "cup"), ("red", "blue")
DETECTOR = replace(
    ENCODER, num_classes=len(CLASSES), num_attributes=len(ATTRIBUTES), anchor_sizes=(16, 32), rpn_hidden_channels=8,
    proposals_before_nms=60, proposals_after_nms=20,
)  # fmt: skip
FEW = SamplingRules(anchors_per_image=32, regions_per_image=8, proposals_before_nms=80, proposals_after_nms=30)
COMPUTES = CONVENTIONS["vlbert-e2e"]
_HEIGHTS_WIDTHS = [(48, 64), (60, 50), (40, 72), (64, 48), (50, 50)]


def write_labelled(folder: Path, *, first: int = 0) -> LabelledPhotos:
    """Five photos of two or three objects each, a bright patch for each; the first object has no known attribute."""
    folder.mkdir(parents=True)
    images = []
    for number, (height, width) in enumerate(_HEIGHTS_WIDTHS, first):
        random = np.random.default_rng(number)
        pixels = random.integers(0, 120, (height, width, 3), dtype=np.uint8)
        count = 2 + number % 2
        corners = (random.uniform(0, 0.5, (count, 2)) * [width, height]).round()
        boxes = np.concatenate([corners, corners + random.integers(12, 24, (count, 2))], axis=1)
        class_ids = random.integers(0, len(CLASSES), count)
        for (x1, y1, x2, y2), class_id in zip(boxes.astype(int), class_ids, strict=True):
            pixels[y1:y2, x1:x2, class_id] = 250
        cv2.imwrite(str(folder / f"labelled-{number}.png"), pixels)
        attributes = ((), *((int(each) % 2,) for each in class_ids[1:]))
        name = f"labelled-{number}.png"
        images.append(labelled(boxes, class_ids, attributes, file_name=name, image_hw=(height, width)))
    return LabelledPhotos(tuple(images), str(folder), CLASSES, ATTRIBUTES, {})


def write_instances(photos: LabelledPhotos, path: Path) -> Path:
    """COCO's instances of these photos, which know no attributes."""
    images = [
        {"id": number, "file_name": image.file_name, "height": image.image_hw[0], "width": image.image_hw[1]}
        for number, image in enumerate(photos.images)
        if image.image_hw is not None
    ]
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(photos.class_names)]
    annotations = coco_annotations(photos.images)
    path.write_text(json.dumps({"images": images, "categories": categories, "annotations": annotations}))
    return path


def labelled_batches(photos: LabelledPhotos, *, conventions: Conventions = COMPUTES, seed: int = 0) -> LabelledBatches:
    return LabelledBatches(photos, DETECTOR, conventions, flip=True, short_edges=(32, 48), seed=seed)
