"""One fetched file -> a `Picture`, or why it is none to keep."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from roibeam.extraction.photos.decode import DecodeError, decode_image
from roibeam.features.printable import printable
from roibeam.pipelines.collection.pair import Picture
from roibeam.pipelines.collection.pictures.nsfw import nsfw_scores
from roibeam.pipelines.collection.pictures.perceptual_hash import perceptual_hash
from roibeam.pipelines.collection.reasons import Reason
from roibeam.pipelines.collection.thresholds import PictureThresholds


@dataclass(frozen=True)
class FetchedFile:
    """A file as the download left it: absolute path, the SHA-256 and size that its journal tells."""

    url: str
    path: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class DroppedPicture:
    """Why a picture is not kept; `detail` is for people."""

    url: str
    reason: Reason
    detail: str


def look_at(
    file: FetchedFile, limits: PictureThresholds, *, is_nsfw_checked: bool, max_pixels: int
) -> Picture | DroppedPicture:
    """
    Args:
        is_nsfw_checked: whether to look for porn and racy pictures; else the scores are None.
        max_pixels: a picture of more is not decoded.
    """
    try:
        data = Path(file.path).read_bytes()
        if hashlib.sha256(data).hexdigest() != file.sha256:
            return DroppedPicture(file.url, Reason.UNDECODABLE, "has other bytes than were fetched; run again")
        pixels = decode_image(data, max_pixels=max_pixels)
    except (DecodeError, OSError) as error:
        return DroppedPicture(file.url, Reason.UNDECODABLE, printable(str(error), 200))
    height, width = pixels.shape[:2]
    if min(height, width) <= limits.larger_than_px:
        return DroppedPicture(file.url, Reason.TOO_SMALL, f"{width} x {height}")
    nsfw, racy = nsfw_scores(pixels) if is_nsfw_checked else (None, None)
    if nsfw is not None and racy is not None and limits.is_unfit(nsfw, racy):
        return DroppedPicture(file.url, Reason.NSFW, f"nsfw {nsfw:.2f}, racy {racy:.2f}")
    phash = perceptual_hash(pixels)
    return Picture(file.url, file.path, file.sha256, phash, width, height, file.num_bytes, nsfw, racy)
