"""What all readers share: how a path becomes an image id, and that no row of a file leaves its image folder."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

ID_RULES = ("no-extension", "with-extension")


def image_id_of(relative_path: str, *, id_rule: str = "no-extension") -> str:
    """Path below the image root, with forward slashes -> image id.

    "no-extension" drops the file's last extension ("train2014/COCO_1.jpg" -> "train2014/COCO_1"), so that captions that
    name the image join whatever format it was saved in; "with-extension" keeps the path as it is.

    Raises:
        ValueError: on an unknown rule.
    """
    if id_rule not in ID_RULES:
        raise ValueError(f"id rule {id_rule!r}: choose one of {', '.join(ID_RULES)}")
    path = PurePosixPath(relative_path.replace(os.sep, "/"))
    return str(path) if id_rule == "with-extension" else str(path.with_suffix(""))


def path_below(root: str, name: str) -> str:
    """Joins a file name taken from an annotation file to its image root; returns the path relative to `root`.

    Raises:
        ValueError: if the name is absolute or climbs out of the root: annotation files come from strangers.
    """
    relative = os.path.normpath(name)
    if not name or os.path.isabs(name) or relative == ".." or relative.startswith(".." + os.sep) or "\0" in name:
        raise ValueError(f"path {name!r} leaves the image folder {root}")
    return relative
