"""The numbers that data sets put into the names of their images, each where its spelling leaves no doubt.

A bare number ("42") is no more than that: COCO's image 42, Visual Genome's and Flickr's are three photos.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from roibeam.pipelines.common.files.image_ids import short_name

_COCO = re.compile(r"(?:.*_)?(\d{12})", re.ASCII | re.DOTALL)
# A photo's number and its secret, as Flickr's own files are named: "4385058960_b0f291553e_z".
_FLICKR = re.compile(r"(\d{4,12})_[0-9a-f]{10}(?:_[a-z])?", re.ASCII)
_GENOME_FOLDERS = ("VG_100K", "VG_100K_2")
_KEY_DIGITS = (8, 9)  # eight of `roibeam download` too


class ImageNumbers(NamedTuple):
    """What an image's name says, each None where it does not.

    Attributes:
        plain: the number that the name is, written as numbers are (no leading zeros, at most 12 digits), whosever it
            may be.
        coco: COCO's, written as its files are: twelve digits, alone or behind "COCO_train2014_".
        flickr: Flickr's, where the name has the photo's secret behind it.
        visual_genome: Visual Genome's, below one of its two folders: "VG_100K_2/2415417.jpg". Then there is no plain.
        row: from 0, of the caption list that the image was downloaded from. "images/00012/00012345" of `roibeam
            download` is row 12,345. img2dataset's key "000120345" (shard 12, sample 345 of 10,000) is row 120,345, and
            with 1,000 samples a shard, "00012345" row 12,345: wherever its shards have a power of ten of samples and
            the list was one file.
    """

    plain: int | None = None
    coco: int | None = None
    flickr: int | None = None
    visual_genome: int | None = None
    row: int | None = None


_NONE = ImageNumbers()


def image_numbers(name: str) -> ImageNumbers:
    stem = short_name(name)
    if not stem.isascii() or not (stem.isdecimal() or "_" in stem):
        return _NONE  # most names
    coco, flickr = _COCO.fullmatch(stem), _FLICKR.fullmatch(stem)
    plain = visual_genome = row = None
    if stem.isdecimal() and len(stem) <= 12:
        folder = name.replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
        if folder in _GENOME_FOLDERS:
            visual_genome = int(stem)
        else:
            plain = int(stem) if stem[0] != "0" or stem == "0" else None
            row = int(stem) if len(stem) in _KEY_DIGITS else None
    return ImageNumbers(plain, int(coco[1]) if coco else None, int(flickr[1]) if flickr else None, visual_genome, row)
