"""What a detector finds in one photo, without a store: for commands that look at a photo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.extraction.choice.detector_choice import ChosenDetector, choose_detector
from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.extraction.photos.photo_file import without_image_extension
from roibeam.features.printable import printable
from roibeam.features.record.drawing.notebook import regions_html
from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.common.device_choice import DeviceChoice, check_device, choose_device
from roibeam.pipelines.common.overrides import apply_overrides
from roibeam.pipelines.common.pages.banner import Banner
from roibeam.pipelines.data.datasets.drawn_world import world_of
from roibeam.pipelines.data.preset_names import choice_words
from roibeam.pipelines.data.vocabulary import Vocabulary, load_vocabulary
from roibeam.pipelines.extract.report.region_meaning import warning_of
from roibeam.pipelines.extract.request import RequestedDetector
from roibeam.short_repr import short_repr


@dataclass(frozen=True, eq=False)
class DetectedPhoto:
    """Attributes:
    record: the regions; its id is the name of the file without its suffix.
    vocabulary: what the detector calls its classes and attributes.
    pixels: of the photo, (height, width, 3) uint8, B, G, R, turned as the record was.
    banner: why boxes and names mean nothing; None where they may mean something.
    detector: which detector looked, in a line.
    device: where it computed.
    """

    record: RegionRecord
    vocabulary: Vocabulary
    pixels: np.ndarray
    banner: Banner | None
    detector: str
    device: DeviceChoice

    __repr__ = short_repr

    @property
    def note(self) -> str:
        """The banner as a line; "" for none."""
        return "" if self.banner is None else self.banner.line

    def _repr_html_(self) -> str:
        classes, attributes = self.vocabulary.classes, self.vocabulary.attributes
        return regions_html(
            repr(self.record), self.record, classes=classes, attributes=attributes, photo=self.pixels, note=self.note
        )


def requested_parts(asked: RequestedDetector) -> tuple[ChosenDetector, dict[str, Any], Vocabulary]:
    """The detector, its sections as the settings change them, and its names. Without torch.

    Raises:
        ValueError: for a detector that is not known or does not fit together.
    """
    check_device(asked.device)
    chosen = choose_detector(
        asked.detector, preset=asked.preset, conventions=asked.conventions, selection=asked.selection,
        weights=asked.weights,
    )  # fmt: skip
    parts: dict[str, Any] = {
        "detector": chosen.config,
        "conventions": chosen.conventions,
        "selection": chosen.selection,
    }
    parts = apply_overrides(parts, asked.settings)
    names = Vocabulary(chosen.class_names, chosen.attribute_names)
    if asked.vocabulary is not None:
        sizes = parts["detector"]
        names = load_vocabulary(
            asked.vocabulary, num_classes=sizes.num_classes, num_attributes=sizes.num_attributes or None
        )
    return chosen, parts, names


def detect_photo(photo: Path, asked: RequestedDetector) -> DetectedPhoto:
    """Builds the detector, and finds the regions of one photo.

    Raises:
        ValueError: for a detector that is not known or does not fit together, and a photo that cannot be used.
    """
    chosen, parts, names = requested_parts(asked)
    try:
        pixels = decode_image(photo.read_bytes(), exif_orientation=parts["conventions"].exif_orientation)
    except DecodeError as error:
        raise ValueError(
            f"{printable(str(photo), 200)}: {error.reason} (decode): {printable(str(error), 200)}"
        ) from None
    # Torch comes now, when nothing is wrong with names and photo.
    from roibeam.extraction.engine.region_iterator import extract_regions
    from roibeam.extraction.photos.image_ref import Failure, ImageRef
    from roibeam.extraction.weights.loading import build_detector

    device = choose_device(asked.device, threads=asked.threads)
    built = build_detector(
        parts["detector"], weights=chosen.weights, selection=parts["selection"], conventions=parts["conventions"],
        mode=asked.mode, device=device.name,
    )  # fmt: skip
    (outcome,) = extract_regions([ImageRef(without_image_extension(photo.name), str(photo))], built)
    if isinstance(outcome, Failure):
        where, detail = printable(str(photo), 200), printable(outcome.detail, 200)
        raise ValueError(f"{where}: {outcome.reason} ({outcome.stage}): {detail}")
    words = choice_words(chosen, asked.detector, asked.settings, with_boxes=False)
    drawn = world_of(str(photo)) is not None
    warning = warning_of(chosen.weights, names.classes, drawn=drawn)
    return DetectedPhoto(outcome, names, pixels, warning, words, device)
