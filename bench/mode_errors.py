"""How far the modes are from exact: `python bench/mode_errors.py --images PHOTOS`.

For each photo the proposals of exact are described by every mode, so that features can be compared row by row; and each
mode runs by itself, so that its detections can be compared as sets. Networks: the reduced one and, on --true-size
photos, the true one, both with the goldens' random weights; and the shipped toy detector, which is trained, on pictures
of its world. Writes a table to standard output; BENCHMARKS.md has its figures.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import torch
from store_rounds import table
from torchvision.ops import box_iou

from roibeam.extraction.detector import Detector
from roibeam.extraction.fast.modes import MODES
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.regions import Regions
from roibeam.extraction.weights.detector_choice import read_detector_folder
from roibeam.extraction.weights.loading import build_detector
from roibeam.pipelines.toyworld.rendering import draw_samples

SAME_BOX_IOU = 0.9


@dataclass
class Errors:
    """Of one mode on one network, over all photos.

    Attributes:
        cosines: of each feature with that of exact.
        relative: largest difference of a photo's features, of its largest value.
        gone: for each photo the share of exact's detections that the mode does not have: no region of the same class
            with an overlap of `SAME_BOX_IOU`.
        other_class: share of regions, of equal boxes, that get another class.
    """

    cosines: list[float] = field(default_factory=list)
    relative: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    other_class: list[float] = field(default_factory=list)

    def add(self, want: Regions, got: Regions, want_found: Regions, found: Regions) -> None:
        lengths = np.linalg.norm(want.features, axis=1) * np.linalg.norm(got.features, axis=1)
        self.cosines += ((want.features * got.features).sum(axis=1, dtype=np.float64) / lengths).tolist()
        self.relative.append(float(np.abs(want.features - got.features).max() / np.abs(want.features).max()))
        self.other_class.append(float((want.class_ids != got.class_ids).mean()))
        overlap = box_iou(torch.from_numpy(want_found.boxes), torch.from_numpy(found.boxes)).numpy()
        same = (overlap >= SAME_BOX_IOU) & (want_found.class_ids[:, None] == found.class_ids[None])
        self.gone.append(1 - float(same.any(axis=1).mean()))

    def row(self) -> tuple[str, ...]:
        return (
            str(len(self.relative)),
            f"{min(self.cosines):.6f}",
            f"{np.mean(self.cosines):.7f}",
            f"{max(self.relative):.1e}",
            f"{100 * np.mean(self.other_class):.2f} %",
            f"{100 * np.mean(self.gone):.1f} %",
        )


def compare(detectors: dict[str, Detector], photos: list[np.ndarray]) -> dict[str, Errors]:
    """Every mode against exact. Photos of "batched" share calls; the others go one by one."""
    exact = detectors["exact"]
    wanted = exact(photos)
    boxes: list[np.ndarray | None] = []
    for photo in photos:
        outputs = exact.head_outputs(photo)
        proposals = outputs.network_input.scale.to_photo(outputs.proposals.boxes).cpu().numpy()
        boxes.append(proposals)
    described = exact(photos, boxes=boxes)
    errors = {}
    for mode, detector in detectors.items():
        if mode == "exact":
            continue
        errors[mode] = Errors()
        results = zip(described, detector(photos, boxes=boxes), wanted, detector(photos), strict=True)
        for want, got, want_found, found in results:
            errors[mode].add(want, got, want_found, found)
    return errors


def read(paths: list[Path]) -> list[np.ndarray]:
    photos = []
    for path in paths:
        photo = cv2.imread(str(path))
        if photo is None:
            raise ValueError(f"{path}: not a photo")
        photos.append(photo)
    return photos


def toy_photos(count: int) -> list[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        draw_samples(Path(folder), count=count, seed=7)
        return read(sorted(Path(folder, "images").iterdir()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of .jpg photos")
    parser.add_argument("--true-size", type=int, default=2, help="photos for the true network [2]")
    parser.add_argument("--toy", type=int, default=40, help="pictures for the toy detector [40]")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--threads", type=int, default=2, help="of torch [2]")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    modes = [name for name, mode in MODES.items() if not mode.tf32 or torch.device(arguments.device).type == "cuda"]
    photos = read(sorted(arguments.images.glob("*.jpg")))
    toy = read_detector_folder("toy")
    cases = {
        "small, random weights, photos": ("small", "random:1", CONVENTIONS["hf"], photos),
        "toy, trained, pictures of its world": (toy.config, toy.weights, toy.conventions, toy_photos(arguments.toy)),
        "vg-r101-c4, random weights, photos": (
            "vg-r101-c4",
            "random:1",
            CONVENTIONS["hf"],
            photos[: arguments.true_size],
        ),
    }
    rows = []
    for name, (config, weights, conventions, images) in cases.items():
        if not images:
            continue
        detectors = {
            mode: build_detector(
                config, weights=weights, conventions=conventions, device=arguments.device, mode=mode, selection="hf-36"
            )
            for mode in modes
        }
        for mode, errors in compare(detectors, images).items():
            rows.append((mode, name, *errors.row()))
    head = ("mode", "network", "photos", "least cosine", "mean cosine", "largest error / max", "other class")
    print(table((*head, "detections gone"), rows))


if __name__ == "__main__":
    main()
