"""The numbers that data sets put into the names of their images, each where its spelling leaves no doubt.

A bare number ("42") is no more than that: COCO's image 42, Visual Genome's and Flickr's are three photos.
"""

from __future__ import annotations

import re

from pipelines.datasets.image_ids import short_name

_COCO = re.compile(r"(?:.*_)?(\d{12})", re.ASCII | re.DOTALL)
# A photo's number and its secret, as Flickr's own files are named: "4385058960_b0f291553e_z".
_FLICKR = re.compile(r"(\d{4,12})_[0-9a-f]{10}(?:_[a-z])?", re.ASCII)
_FOLDER_AND_ROW = re.compile(r"(?:.*/)?(\d{5})/(\d{8})", re.ASCII | re.DOTALL)
_SAMPLE_KEY = re.compile(r"(?:\d{8}|\d{9})", re.ASCII)
_VISUAL_GENOME = re.compile(r"(?:.*/)?VG_100K(?:_2)?/(\d{1,12})", re.ASCII | re.DOTALL)
_ROWS_PER_FOLDER = 1000  # of `roibeam download`


def coco_number(name: str) -> int | None:
    """COCO's number of an image, written as its files are: twelve digits, alone or behind "COCO_train2014_"."""
    match = _COCO.fullmatch(short_name(name))
    return int(match[1]) if match else None


def flickr_number(name: str) -> int | None:
    """Flickr's number of a photo, where the name has the photo's secret behind it."""
    match = _FLICKR.fullmatch(short_name(name))
    return int(match[1]) if match else None


def visual_genome_number(name: str) -> int | None:
    """Visual Genome's number of an image, below one of its two folders: "VG_100K_2/2415417.jpg"."""
    folder, slash, last = name.replace("\\", "/").rpartition("/")
    match = _VISUAL_GENOME.fullmatch(f"{folder}{slash}{short_name(last)}")
    return int(match[1]) if match else None


def plain_number(name: str) -> int | None:
    """The number that a name is, written as numbers are (no leading zeros), whosever it may be; at most 12 digits."""
    last = short_name(name)
    is_number = last.isascii() and last.isdecimal() and len(last) <= 12 and (last[0] != "0" or last == "0")
    return int(last) if is_number else None


def row_number(name: str) -> int | None:
    """The row, from 0, of the caption list that an image was downloaded from.

    "images/00012/00012345" of `roibeam download` is row 12,345. img2dataset's key "000120345" (shard 12, sample 345 of
    10,000) is row 120,345, and with 1,000 samples a shard, "00012345" row 12,345: wherever its shards have a power of
    ten of samples and the list was one file.
    """
    name = name.replace("\\", "/")
    folder, slash, last = name.rpartition("/")
    stem = short_name(last)
    match = _FOLDER_AND_ROW.fullmatch(f"{folder}{slash}{stem}")
    if match and int(match[2]) // _ROWS_PER_FOLDER == int(match[1]):
        return int(match[2])
    return int(stem) if _SAMPLE_KEY.fullmatch(stem) else None
