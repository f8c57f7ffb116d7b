"""What all readers share: how a path becomes an image id, and that no row of a file leaves its image folder."""

from __future__ import annotations

import os

ID_RULES = ("no-extension", "with-extension")


def image_id_of(relative_path: str, *, id_rule: str = "no-extension") -> str:
    """Path below the image root, without "." and ".." parts -> image id.

    "no-extension" drops the file's last extension ("train2014/COCO_1.jpg" -> "train2014/COCO_1"; ".jpg" and "a." have
    none), so that captions that name the image join whatever format it was saved in; "with-extension" keeps the path as
    it is.

    Raises:
        ValueError: on an unknown rule.
    """
    if id_rule not in ID_RULES:
        raise ValueError(f"id rule {id_rule!r}: choose one of {', '.join(ID_RULES)}")
    if id_rule == "with-extension":
        return relative_path
    stem, extension = os.path.splitext(relative_path)
    return relative_path if extension == "." else stem


def path_below(name: str) -> str:
    """A file name taken from an annotation file -> the path below the image root, without "." and ".." parts.

    Raises:
        ValueError: if the name is absolute, climbs out of the root or names no file: annotation files come from
            strangers. The message is a short reason without the name, so that rows can be counted by it.
    """
    relative = os.path.normpath(name)
    if os.path.isabs(name) or relative == ".." or relative.startswith(".." + os.sep):
        raise ValueError("path leaves the image folder")
    if relative == "." or "\0" in name:
        raise ValueError("path names no file")
    if not is_utf8(name):
        raise ValueError("path is not valid UTF-8; rename the file")
    return relative


def short_name(image_id: str) -> str:
    """Last path component without extension: what the names of one image share where files disagree on its folder."""
    last = image_id.replace("\\", "/").rsplit("/", 1)[-1]
    stem, dot, _ = last.rpartition(".")
    return stem if dot and stem else last


def is_utf8(name: str) -> bool:
    """Whether a path can be written down: not if its bytes are no UTF-8, nor with half a surrogate pair from a json."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
