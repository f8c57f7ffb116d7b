"""Image to be read: its reference and boxes, its file's name and bytes, and the failure that takes a record's place.

No torch: sources and stores read files without a detector.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

import numpy as np

from roibeam.messages import check_lists, short_repr

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class ImageRef:
    """One image to extract.

    Attributes:
        image_id: key of its record; the source that made it documents the rule.
        location: location of its bytes: a local path, a URL, or a member of an archive
            (`pipelines/common/locations.py`).
        boxes: x1 y1 x2 y2 of the regions to describe, in pixels of the decoded photo, kept in number and order; None
            means that the detector proposes and selects.
        boxes_hw: height and width of the image that the boxes were drawn on, if their file has them; a photo of
            another size becomes a failure, since its boxes would cut out other things.
        captions: the source's captions of the image, in its order; they travel with it and change no feature.
        labels: its labels as the source writes them ("dog", "n01440764", "7"), likewise.
    """

    image_id: str
    location: str
    boxes: tuple[Box, ...] | None = None
    boxes_hw: tuple[int, int] | None = None
    captions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if not isinstance(self.image_id, str) or not isinstance(self.location, str):
            raise ValueError(
                f"an ImageRef is an id and a location, both texts; got {self.image_id!r:.80} and {self.location!r:.80}"
            )
        if type(self.captions) is not tuple or type(self.labels) is not tuple:  # of millions, hardly one
            check_lists(self, "captions", "labels")


@dataclass(frozen=True)
class Failure:
    """One image that gave no record: data, not a crash.

    Attributes:
        image_id, location: as in the `ImageRef`.
        stage: "read", "decode", "detect" or "record".
        reason: short word for counting ("not found", "truncated", "too many pixels", ...).
        detail: one line for a person.
    """

    image_id: str
    location: str
    stage: str
    reason: str
    detail: str


# Extensions of photos in a folder or an archive.
IMAGE_EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .webp .avif .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .jp2".split()
)
# Extensions of photos in formats that nothing here reads.
UNREAD_EXTENSIONS = frozenset(".heic .heif .jxl .dng .cr2 .cr3 .nef .arw .orf .rw2 .raf".split())
# Extensions that no folder is searched for, but lists name such files, and some are read: .mpo is a JPEG.
_OTHER_EXTENSIONS = frozenset(
    ".apng .mpo .jif .jfi .j2k .j2c .jpf .jpx .pam .pfm .ras .hdr .exr .svg .ico .psd .tga".split()
)
# Only these are removed from a name: ids have dots of their own ("00.00.05.905-00.00.07.083@0" of VCR).
_CUT_OFF = IMAGE_EXTENSIONS | UNREAD_EXTENSIONS | _OTHER_EXTENSIONS

MAX_FILE_BYTES = 512 * 2**20


class PhotoReadError(OSError):
    """A photo that cannot be read, with a reason of its own for counting.

    Attributes:
        reason: as in `Failure`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def without_image_extension(path: str) -> str:
    """ "a/b.JPG" -> "a/b"; "scene.1", ".jpg" and "a." are whole names."""
    stem, dot, extension = path.rpartition(".")
    is_image = dot + extension.lower() in _CUT_OFF and stem.rpartition("/")[2].strip(".")
    return stem if is_image else path


def read_local_file(location: str) -> bytes:
    """Reads one local file; refuses files that no image of the default pixel limit can be (over 512 MiB)."""
    # Without blocking: a pipe or device named .jpg would otherwise block until another process writes into it.
    with open(os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise OSError(f"larger than {MAX_FILE_BYTES} bytes")
        return file.read(status.st_size)  # read() reserves memory for its argument


def photo_slack(image_hw: tuple[int, int]) -> np.ndarray:
    """(2,) pixels by which boxes may reach past a photo's height and width: a hundredth of the side and one pixel."""
    return np.array(image_hw) * 0.01 + 1


def lie_inside(boxes: np.ndarray, image_hw: tuple[int, int]) -> np.ndarray:
    """(K,) bool: whether boxes (K, 4) lie inside a photo, but for `photo_slack`; False where a number is NaN."""
    slack_xy = photo_slack(image_hw)[::-1]
    limit = np.array(image_hw)[::-1] + slack_xy
    is_inside = (boxes >= np.tile(-slack_xy, 2)).all(axis=1) & (boxes <= np.tile(limit, 2)).all(axis=1)
    return np.asarray(is_inside)


def box_problem(
    boxes: np.ndarray, image_hw: tuple[int, int], boxes_hw: tuple[int, int] | None
) -> tuple[str, str] | None:
    """Reason why these boxes are not regions of this photo: a word for counting and a line for a person, or None.

    Annotations reach past the edge by a rounding error, and published codes clip them silently. Here a box may do so by
    one pixel and a hundredth of the side; beyond that the photo is another one, or has been resized, and features of
    clipped boxes would be silently wrong.

    Args:
        boxes: (K, 4) float32; image_hw: of the decoded photo.
        boxes_hw: of the image that the boxes were drawn on, if known.
    """
    height, width = image_hw
    if boxes_hw is not None and bool((np.abs(np.subtract(boxes_hw, image_hw)) > photo_slack(image_hw)).any()):
        drawn_on, found = f"{boxes_hw[1]}x{boxes_hw[0]}", f"{width}x{height}"
        return "boxes of another image size", (
            f"the boxes are of an image of {drawn_on} pixels (width x height), this one has {found}: "
            f"another photo, resized, or turned by its EXIF tag"
        )
    # Written so that NaN fails every test.
    is_box = np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] >= boxes[:, :2]).all(axis=1)
    in_shares = len(boxes) > 0 and min(height, width) > 1 and 0 < float(boxes.max()) <= 1
    is_pixels = np.full(len(boxes), not in_shares)
    is_inside = lie_inside(boxes, image_hw)
    for is_good, reason, what in (
        (is_box, "not a box", "expected finite x1 y1 x2 y2 with x2 >= x1 and y2 >= y1; x, y, width, height perhaps?"),
        (is_pixels, "boxes in shares", f"all lie in 0..1; expected pixels of a photo of {width}x{height}"),
        (is_inside, "box outside the photo", f"the photo has {width}x{height} pixels; is it another or a resized one?"),
    ):
        if not is_good.all():
            first = int(np.argmin(is_good))
            numbers = " ".join(f"{edge:g}" for edge in boxes[first].tolist())
            return reason, f"box {first} of {len(boxes)} (from 0) is {numbers}; {what}"
    return None
