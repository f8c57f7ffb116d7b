"""What a run through the region encoder has beside captions and store: photos, an encoder, what it hides of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.region_encoder import RegionEncoder, started_encoder
from roibeam.extraction.training.heads import DetectorHeads
from roibeam.features.counted import counted
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.end_to_end import EndToEndModel
from roibeam.model.end_to_end_choices import EndToEndChoices
from roibeam.pipelines.data.captions.caption_table import CaptionTable
from roibeam.pipelines.data.record_photos import PhotoError, RecordPhotos
from roibeam.pipelines.pretraining.end_to_end.detector_change import DetectorChange
from roibeam.pipelines.pretraining.end_to_end.detector_part import DetectorPart
from roibeam.pipelines.pretraining.end_to_end.labelled_photos import LabelledStream
from roibeam.pipelines.pretraining.end_to_end.settings import PhotoRules
from roibeam.pipelines.training.model_files.encoder_settings import EncoderOptions
from roibeam.pipelines.training.model_files.joint_checkpoint import region_encoder_of
from roibeam.pipelines.training.model_files.joint_detector import JointDetector

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EndToEnd:
    """An end-to-end run's own settings.

    Attributes:
        config, conventions: sizes of the encoder, edges that photos are resized to among them, and how it computes.
        weights: what it starts from, see `load_encoder_weights`.
        images: folder of the photos; None takes the locations that the store recorded.
        choices: what is hidden and how.
        start: encoder of the run that this one goes on from, in place of `weights`.
        detector: what is done with the rest of the detector; None for nothing.
    """

    config: DetectorConfig
    conventions: Conventions
    weights: str
    images: str | None = None
    choices: EndToEndChoices = field(default_factory=EndToEndChoices)
    photos: PhotoRules = field(default_factory=PhotoRules)
    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    start: RegionEncoder | None = None
    detector: DetectorPart | None = None

    def check_width(self, record: RegionRecord) -> None:
        """Raises ValueError when the encoder's features are not as wide as the store's.

        Rules and targets are made for features of the store's width.
        """
        width = record.features.shape[1]
        if width != self.config.feature_dim:
            raise ValueError(
                f"the region encoder makes features of width {self.config.feature_dim}, those of record "
                f"{record.image_id!r} have {width}; name the detector that the store was extracted with (--detector)"
            )

    def find_photos(self, store: FeatureStore, rows: CaptionTable) -> tuple[RecordPhotos, CaptionTable, dict[str, str]]:
        """The photos of captioned images, the captions that have one, and why the others have none.

        Raises:
            ValueError: when one is missing and none may be, or all are.
        """
        ids = rows.captioned_ids()
        photos = RecordPhotos(store, ids, self.images)
        missing = photos.missing()
        if missing:
            image_id, why = next(iter(missing.items()))
            told = f"{counted(len(missing), 'captioned image')} of {len(ids):,} without a photo, such as {image_id!r}"
            if len(missing) == len(ids):
                raise ValueError(f"{told}: {why}; name their folder with --photos")
            if not self.photos.skip_broken:
                raise ValueError(
                    f"{told}: {why}; name their folder with --photos, or leave them out with --skip-missing-photos"
                )
            logger.warning("%s: %s; left out", told, why)
            rows = rows.without(missing)
        return photos, rows, missing

    def broken_photos(self, store: FeatureStore, photos: RecordPhotos, image_ids: Iterable[str]) -> dict[str, str]:
        """Which photos cannot be used, each with why; all of them are read.

        Raises:
            PhotoError: for the first one, where none may be left out.
        """
        found = {}
        for image_id in image_ids:
            meta = store.meta(image_id)
            try:
                photos.read(photos.place(image_id, (meta.height, meta.width)))
            except PhotoError as error:
                if not self.photos.skip_broken:
                    raise PhotoError(f"{error}; mend it, or leave such out with --skip-missing-photos") from None
                found[image_id] = str(error)
        return found

    def build_encoder(self) -> RegionEncoder:
        """
        Raises:
            ValueError: when weights or options do not fit; OSError: when weights cannot be fetched.
        """
        config = self.config if self.detector is None else self.detector.sized(self.config)
        return started_encoder(config, self.conventions, self.start or self.weights, **self.encoder.of_network())

    def build_joint(self, model: nn.Module, *, seed: int) -> tuple[EndToEndModel, DetectorHeads | None]:
        """The model with its encoder, and the heads of the detector, where they are trained or judged.

        Raises:
            ValueError: as `build_encoder`, or when detector, weights and labels do not fit; OSError likewise.
        """
        encoder, part = self.build_encoder(), self.detector
        if part is None:
            return EndToEndModel(model, encoder, self.choices), None
        classes, attributes = part.names(encoder.config)
        heads = part.heads(encoder.config, encoder.conventions, self.weights, seed=seed)
        if part.labelled is None:
            return EndToEndModel(model, encoder, self.choices), heads
        joint = JointDetector(
            model,
            encoder,
            self.choices,
            heads,
            class_names=classes,
            attribute_names=attributes,
            sampling=part.sampling,
            loss_rules=part.loss_rules,
            weights=part.weights,
        )
        return joint, heads

    def labelled_stream(self, *, seed: int) -> LabelledStream | None:
        """The photos that the detector is trained on; None where it is not."""
        part = self.detector
        return None if part is None else part.stream(part.sized(self.config), self.conventions, seed=seed)

    def detector_change(
        self, run_dir: Path, joint: EndToEndModel, heads: DetectorHeads, *, device: str
    ) -> DetectorChange | None:
        """Judges the detector before and after; None where it is not asked for."""
        judged = None if self.detector is None else self.detector.judged
        if judged is None:
            return None
        return DetectorChange(run_dir, judged, heads, region_encoder_of(joint), device=torch.device(device))

    def described(self) -> dict[str, Any]:
        """What a resumed run must have alike, beside what the model's own config says."""
        of_detector = {} if self.detector is None else self.detector.described()
        return {"photos": asdict(self.photos), **self.encoder.described(), **of_detector}

    def recorded(self, missing: Mapping[str, str]) -> dict[str, Any]:
        """Facts that may differ on resume."""
        labelled = None if self.detector is None else self.detector.labelled
        return {
            "labelled_photos": None if labelled is None else labelled.root,
            "images": self.images,
            "encoder_weights": self.weights,
            "recompute": self.encoder.recompute,
            "missing_photos": len(missing),
        }


def row_sizes(store: FeatureStore, rows: CaptionTable) -> np.ndarray:
    """(N, 3) int64, of each caption's photo height and width in pixels, and its number of regions."""
    found = (store.meta(image_id) for image_id in rows.captioned_ids())
    sizes = np.array([(each.height, each.width, each.num_regions) for each in found], np.int64)
    _, which = np.unique(rows.places, return_inverse=True)
    return sizes[which.reshape(-1)]
