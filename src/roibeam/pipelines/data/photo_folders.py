"""Where the photos of an annotation file are, when they are not beside it: in the layouts that data sets come in.

COCO keeps annotations/ beside train2014/, others keep images/ beside the file. A folder counts only when photos that
the file names are there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from roibeam.pipelines.common.files.locations import location_exists

_SPLITS = (
    *(f"{split}{year}" for year in (2014, 2017) for split in ("train", "val", "test")),
    "test2015",
    "unlabeled2017",
)
_FLICKR = ("flickr30k-images", "flickr30k_images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset")  # all are used
_NAMES = ("images", *_FLICKR, *_SPLITS, "VG_100K", "VG_100K_2")


def folders_to_try(file: str, kind: str) -> list[str]:
    """Folders near an annotation file that may hold its photos, the file's own left out; those that are there.

    Args:
        file: absolute path.
        kind: as of `Source`. A Karpathy split names photos by folder, so that the folder above is meant.
    """
    own = os.path.dirname(file)
    above = os.path.dirname(own)
    names = ("images", *_FLICKR) if kind == "karpathy" else (*_NAMES, *(f"images/{name}" for name in _SPLITS))
    found = [os.path.join(own, name) for name in names] + [above] + [os.path.join(above, name) for name in names]
    kept: list[str] = []
    for folder in filter(os.path.isdir, found):
        if not any(os.path.samefile(folder, other) for other in kept):  # "images" and "Images" may be one
            kept.append(folder)
    return kept


def folders_that_hold(probes: Iterable[str], own: str, folders: Iterable[str], kind: str) -> list[str]:
    """The folder in which most of some photos are, or the folders, where there are several such; none of them, none.

    Args:
        probes: absolute paths that the photos would have in `own`.
        own: the folder that they were looked for in.
        folders: to look into.
        kind: as of `Source`.
    """
    below = [os.path.relpath(probe, own) for probe in probes]
    counts = {folder: sum(_is_there(folder, path, kind) for path in below) for folder in folders}
    most = max(counts.values(), default=0)
    return [folder for folder, count in counts.items() if count == most and most]


def _is_there(folder: str, path: str, kind: str) -> bool:
    inner = _SPLITS if kind == "karpathy" else ()
    return any(location_exists(os.path.join(folder, name, path)) for name in ("", *inner))
