"""What end-to-end training does to the detector that the encoder is of: judged with the first weights and the last.

RUN/detector.json    digest and number of the photos, the reports `before` and `after`
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.extraction.training.heads import DetectorHeads
from roibeam.features.counted import counted
from roibeam.pipelines.common.console.progress import PHOTOS, Progress
from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.data.photos import LabelledPhotos
from roibeam.pipelines.training.detector.evaluation import evaluate_detector
from roibeam.pipelines.training.run_folder.checkpoint_sums import check_run_file, write_run_json
from roibeam.pipelines.training.run_folder.detector_figures import DETECTOR_NAME

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class JudgedPhotos:
    """Held-out photos with labelled objects.

    Attributes:
        most: no more than the first so many are taken; None for all.
    """

    photos: LabelledPhotos
    most: int | None = None

    @property
    def count(self) -> int:
        return len(self.photos.images[: self.most])


class DetectorChange:
    """Judges one detector twice.

    Args:
        run_dir: of the run; the file is written there.
        heads, encoder: the detector's parts, which are judged as they are at the time.
        device: where they are judged, and stay.
    """

    def __init__(
        self, run_dir: Path, judged: JudgedPhotos, heads: DetectorHeads, encoder: RegionEncoder, *, device: torch.device
    ) -> None:
        self._path, self._judged, self._device = run_dir / DETECTOR_NAME, judged, device
        self._heads, self._encoder = heads, encoder

    def before(self) -> None:
        """Judges the first weights; what a run that goes on has judged already is kept."""
        asked = {"labels": self._judged.photos.digest, "photos": self._judged.count}
        if self._path.is_file():
            check_run_file(self._path, "remove it, and the detector is judged anew")
            found = read_json_object(self._path)
            if {name: found.get(name) for name in asked} == asked:
                return
        write_run_json(self._path, {**asked, "before": self._report("before training")})

    def after(self) -> Mapping[str, Any]:
        """Judges the last weights, and gives what the file holds."""
        found = {**read_json_object(self._path), "after": self._report("after training")}
        write_run_json(self._path, found)
        return found

    def _report(self, when: str) -> dict[str, Any]:
        detector = self._heads.to(self._device).detector(self._encoder.to(self._device))
        photos = self._judged.photos
        logger.info("judging the detector %s on %s", when, counted(self._judged.count, "photo"))
        with Progress(f"judging {when}", self._judged.count, PHOTOS) as progress:
            report = evaluate_detector(
                detector,
                photos.images,
                photos.root,
                class_names=photos.class_names,
                attribute_names=photos.attribute_names,
                max_images=self._judged.most,
                progress=progress.to,
            )
        return report.as_json()
