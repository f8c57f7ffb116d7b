"""`roibeam look`: one photo, a detector, and the picture of its regions."""

from dataclasses import dataclass
from pathlib import Path

from roibeam.extraction.photos.image_ref import without_image_extension
from roibeam.features.record.region_drawing import looking_scale
from roibeam.pipelines.common.compute import DeviceChoice
from roibeam.pipelines.common.console.command_files import FILE, NamedFiles
from roibeam.pipelines.common.plot import check_picture_path, write_picture
from roibeam.pipelines.extract.one_photo import RecordView, detect_photo, view_of
from roibeam.pipelines.extract.request import DetectorOptions
from roibeam.pipelines.extract.requested_detector import need_detector

LOOKED_AT = 10  # regions


@dataclass(frozen=True)
class Looked:
    """Attributes:
    view: the record, and its best regions in words.
    picture: the file written.
    note: why the names mean nothing; "" where they do.
    device: where the detector computed.
    """

    view: RecordView
    picture: Path
    note: str
    device: DeviceChoice


def look_at_photo(photo: Path, out: Path | None, detector: DetectorOptions, *, num_regions: int = LOOKED_AT) -> Looked:
    """Finds the regions of a photo and draws the best of them.

    Args:
        out: .png file; None for NAME.regions.png in the current folder. An older picture of this command is replaced.
        num_regions: to draw and to list, at most.
    """
    picture = Path(f"{without_image_extension(photo.name)}.regions.png") if out is None else out
    named = NamedFiles()
    named.need("PHOTO", photo, FILE)
    need_detector(named, detector)
    named.look(lambda: check_picture_path(picture))
    named.check()
    found = detect_photo(photo, detector)
    record, names = found.record, found.vocabulary
    drawn = record.draw(
        found.pixels,
        classes=names.classes,
        attributes=names.attributes,
        max_regions=num_regions,
        scale=looking_scale((record.height, record.width)),
    )
    write_picture(picture, drawn)
    view = view_of(record, names.classes, names.attributes, has_classes=found.has_classes, num_regions=num_regions)
    return Looked(view, picture, found.note, found.device)
