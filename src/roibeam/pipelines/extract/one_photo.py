"""Regions of one photo, detected now or read from a store, for commands that look at a photo.

A stored record is displayed with names, captions, labels and statistics of its best regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.extraction.photos.image_ref import without_image_extension
from roibeam.extraction.weights.detector_choice import ChosenDetector
from roibeam.features.record.fingerprint import has_classes as store_has_classes
from roibeam.features.record.notebook import regions_html
from roibeam.features.record.region_drawing import PhotoLike, looking_scale, strongest
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import near_names, on_a_line, plural, printable, short_repr
from roibeam.pipelines.common.compute import DeviceChoice, check_device, choose_device
from roibeam.pipelines.common.image_ids import forms_of
from roibeam.pipelines.common.locations import SourceGoneError
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.common.plot import check_picture_path, write_picture
from roibeam.pipelines.data.captions.caption_files import annotation_of
from roibeam.pipelines.data.datasets.photo_folders import world_of
from roibeam.pipelines.data.feature_settings import choice_words
from roibeam.pipelines.data.record_photos import RecordPhotos, has_photo_locations
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.extract.request import DetectorOptions
from roibeam.pipelines.extract.requested_detector import (
    chosen_detector,
    detector_names,
    detector_parts,
    is_of_others,
    opened_backbone,
    other_detector,
)
from roibeam.pipelines.extract.shard.detector_spec import DetectorSpec
from roibeam.pipelines.extract.store_page import warning_of


@dataclass(frozen=True, eq=False)
class DetectedPhoto:
    """Attributes:
    record: the regions; its id is the name of the file without its suffix.
    vocabulary: what the detector calls its classes and attributes.
    pixels: of the photo, (height, width, 3) uint8, B, G, R, turned as the record was.
    banner: why boxes and names mean nothing; None where they may mean something.
    detector: which detector looked, in a line.
    device: where it computed.
    has_classes: whether it has any; else class ids and scores only fill their place.
    small_boxes: how many boxes share their vector, in a line; "" for none.
    """

    record: RegionRecord
    vocabulary: Vocabulary
    pixels: np.ndarray
    banner: Banner | None
    detector: str
    device: DeviceChoice
    has_classes: bool = True
    small_boxes: str = ""

    __repr__ = short_repr

    @property
    def note(self) -> str:
        """The banner, else `small_boxes`, as a line; "" for neither."""
        return self.small_boxes if self.banner is None else self.banner.line

    def _repr_html_(self) -> str:
        classes, attributes = self.vocabulary.classes, self.vocabulary.attributes
        return regions_html(
            repr(self.record), self.record, classes=classes, attributes=attributes, photo=self.pixels, note=self.note
        )


def requested_parts(given: DetectorOptions) -> tuple[ChosenDetector, dict[str, Any], Vocabulary]:
    """The detector, its sections as the settings change them, and its names. Without torch. Raises ValueError for a
    detector that is not known or does not fit together."""
    check_device(given.device)
    chosen = chosen_detector(given)
    parts = detector_parts(chosen, given)
    return chosen, parts, detector_names(chosen, given, parts["detector"])


def photo_detector(given: DetectorOptions) -> tuple[DetectorSpec, Vocabulary, str]:
    """The detector for one photo, its names, and a line about it; as `requested_parts`."""
    backbone = opened_backbone(given)
    if is_of_others(given, with_boxes=False):
        check_device(given.device)
        spec, names = other_detector(given, None, "exact", with_boxes=False)
        words = f"detector {given.detector}"
    else:
        chosen, parts, names = requested_parts(given)
        words = choice_words(chosen, given.detector, given.set, with_boxes=False)
        spec = DetectorSpec(parts["detector"], parts["selection"], chosen.weights, conventions=parts["conventions"])
    words += "" if backbone is None else f", vectors by {backbone.name}"
    return replace(spec, backbone=backbone), names, words


def detect_photo(photo: Path, given: DetectorOptions) -> DetectedPhoto:
    """Builds the detector, and finds the regions of one photo. Raises ValueError for a detector that is not known or
    does not fit together, and a photo that cannot be used."""
    spec, names, words = photo_detector(given)
    try:
        pixels = decode_image(photo.read_bytes(), exif_orientation=spec.conventions.exif_orientation)
    except DecodeError as error:
        raise ValueError(
            f"{printable(str(photo), 200)}: {error.reason} (decode): {printable(str(error), 200)}"
        ) from None
    # Torch comes now, when nothing is wrong with names and photo.
    from roibeam.extraction.engine.region_iterator import extract_regions
    from roibeam.extraction.photos.image_ref import Failure, ImageRef
    from roibeam.pipelines.extract.shard.shard_job import built_detector

    device = choose_device(given.device)
    built = built_detector(spec, device.name)
    (outcome,) = extract_regions([ImageRef(without_image_extension(photo.name), str(photo))], built)
    if isinstance(outcome, Failure):
        where, detail = printable(str(photo), 200), printable(outcome.detail, 200)
        raise ValueError(f"{where}: {outcome.reason} ({outcome.stage}): {detail}")
    drawn = world_of(str(photo)) is not None
    warning = warning_of(spec.weights, names.classes, drawn=drawn)
    small = _small_boxes(outcome, built)
    return DetectedPhoto(outcome, names, pixels, warning, words, device, built.num_classes > 0, small)


def _small_boxes(record: RegionRecord, detector: Any) -> str:
    """A line on boxes inside one cell of a backbone's map; "" without any."""
    cell = getattr(getattr(detector, "backbone", None), "cell", None)
    sides = record.boxes[:, 2:] - record.boxes[:, :2]
    if cell is None or not (count := int((sides < cell).all(axis=1).sum())):
        return ""
    return (
        f"{plural(count, 'box is', 'boxes are')} smaller than one cell of the backbone's map, {cell[0]:.0f} x "
        f"{cell[1]:.0f} pixels: near ones share a vector; --set backbone.longest_side=N makes cells smaller, --pool "
        f"crop looks at each box"
    )


BLANK = Path("none")  # in place of a photo
_CURE = f"name the photo with --photo FILE, or draw on a blank page with --photo {BLANK}"
_LOOKED_AT = 2000  # ids among which near ones are looked for


@dataclass(frozen=True, eq=False)
class RecordView:
    """Attributes:
    record: the whole record.
    regions: of the best ones, by falling score, "region" (its number in the record), "box" (pixels), "class", "score",
        and "attribute" and "attribute_score" where the store has attributes; class and score are None without classes.
    statistics: mean, std and max of the features; nothing for a record without regions.
    captions, labels: of the image.
    """

    record: RegionRecord
    regions: list[dict[str, Any]]
    statistics: dict[str, float]
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def is_whole(self) -> bool:
        """Whether all regions are listed."""
        return len(self.regions) == self.record.num_regions

    def to_json(self) -> dict[str, Any]:
        record = self.record
        return {
            "image_id": record.image_id, "height": record.height, "width": record.width,
            "num_regions": record.num_regions, "feature_dim": record.features.shape[1],
            "feature_dtype": record.feature_dtype, "features": self.statistics, "regions": self.regions,
            "captions": list(self.captions), "labels": list(self.labels),
        }  # fmt: skip

    def lines(self) -> list[str]:
        record = self.record
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in self.statistics.items())
        lines = [
            f"{printable(record.image_id, 200)}  {record.width}x{record.height} pixels  "
            f"{plural(record.num_regions, 'region')}",
            *(f"caption {printable(caption, 400)}" for caption in self.captions),
        ]
        if self.labels:
            lines.append(f"labels {', '.join(printable(label, 80) for label in self.labels)}")
        lines.append(f"features {record.features.shape[1]} x {record.feature_dtype}: {numbers}")
        lines.append(f"{'region':>6} {'score':>6}  {'x1':>7} {'y1':>7} {'x2':>7} {'y2':>7}  class, attribute (score)")
        return [*lines, *(on_a_line(_region_line(row)) for row in self.regions)]


def view_record(store: Path, image_id: str | None = None, *, num_regions: int = 10) -> RecordView:
    """A stored record with its best regions; `image_id` None is the first one of the store."""
    with FeatureStore(store) as opened:
        if image_id is None:
            image_id = next(iter(opened.ids()), None)
            if image_id is None:
                raise ValueError(f"{store} holds no record")
        stored = next((each for each in forms_of(image_id) if each in opened), None)
        if stored is None:
            raise ValueError(not_there(opened, image_id))
        image_id = stored
        record = opened.get(image_id, check=True)  # it is displayed as true
        classes, attributes = opened.manifest.classes, opened.manifest.attributes
        classified = store_has_classes(opened.fingerprint)
        annotation = annotation_of(opened, image_id)
    captions, labels = (annotation.captions, annotation.labels) if annotation is not None else ((), ())
    view = view_of(record, classes, attributes, has_classes=classified, num_regions=num_regions)
    return replace(view, captions=tuple(captions), labels=tuple(labels))


def not_there(store: FeatureStore, image_id: str) -> str:
    ids = list(islice(store.ids(), _LOOKED_AT))
    near = near_names(image_id, ids)
    hint = f"the first is {ids[0]!r}" if ids else "it is empty"
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    return f"no image {image_id!r} in {store.path}; {hint}; `roibeam store ids {store.path}` lists all {len(store):,}"


def view_of(
    record: RegionRecord,
    classes: Sequence[str] | None,
    attributes: Sequence[str] | None,
    *,
    has_classes: bool = True,
    num_regions: int = 10,
) -> RecordView:
    """A record by itself.

    Args:
        classes, attributes: names by id; None for bare ids.
        has_classes: False where class ids and scores only fill their place.
    """
    rows: list[dict[str, Any]] = []
    for i in strongest(record.class_scores, num_regions):
        row: dict[str, Any] = {
            "region": int(i),
            "box": [round(float(edge), 1) for edge in record.boxes[i]],
            "class": _name(classes, int(record.class_ids[i])) if has_classes else None,
            "score": round(float(record.class_scores[i]), 4) if has_classes else None,
        }
        if record.attribute_ids is not None and record.attribute_scores is not None:
            row["attribute"] = _name(attributes, int(record.attribute_ids[i]))
            row["attribute_score"] = round(float(record.attribute_scores[i]), 4)
        rows.append(row)
    values = record.features.astype(np.float32)
    statistics = (
        {"mean": float(values.mean()), "std": float(values.std()), "max": float(values.max())} if values.size else {}
    )
    return RecordView(record, rows, statistics)


def draw_stored(store: Path, image_id: str, out: Path, photo: Path | None, *, num_regions: int = 10) -> None:
    """Draws the best regions of a record on its photo.

    Args:
        out: .png file, as of `write_picture`.
        photo: None for the place that the store recorded; `BLANK` draws on a grey page.
    """
    check_picture_path(out)
    with FeatureStore(store) as opened:
        meta = opened.meta(image_id)
        image_hw = (meta.height, meta.width)
        given: PhotoLike | None = photo
        if photo == BLANK:
            given = None
        elif photo is None:
            given = _planned_photo(opened, image_id, image_hw)
        picture = opened.draw(image_id, given, max_regions=num_regions, scale=looking_scale(image_hw))
    write_picture(out, picture)


def _planned_photo(store: FeatureStore, image_id: str, image_hw: tuple[int, int]) -> np.ndarray:
    if not has_photo_locations(store):
        raise ValueError(f"{store.path} does not record where its photos are; {_CURE}")
    photos = RecordPhotos(store, [image_id])
    try:
        return photos.read(photos.place(image_id, image_hw))
    except (ValueError, SourceGoneError) as error:
        raise ValueError(f"{error}; {_CURE}") from None


def _region_line(row: dict[str, Any]) -> str:
    edges = " ".join(f"{edge:7.1f}" for edge in row["box"])
    attribute = f", {row['attribute']} ({row['attribute_score']:.2f})" if "attribute" in row else ""
    score = f"{'-':>6}" if row["score"] is None else f"{row['score']:6.3f}"
    return f"{row['region']:>6} {score}  {edges}  {row['class'] or '-'}{attribute}"


def _name(names: Sequence[str] | None, number: int) -> str:
    return names[number] if names is not None and number < len(names) else f"#{number}"
