"""What all readers share: how a path becomes an image id, which id a name means, and that no row leaves its folder."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable

# Only these are taken off a name: ids have dots of their own ("00.00.05.905-00.00.07.083@0" of VCR).
IMAGE_EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .webp .avif .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .jp2".split()
)
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
    """Last path component without its image extension ("train/00.07.083@0.JPG" -> "00.07.083@0", ".jpg" as it is)."""
    last = image_id.replace("\\", "/").rsplit("/", 1)[-1]
    stem, extension = os.path.splitext(last)
    return stem if extension.lower() in IMAGE_EXTENSIONS else last


class NameIndex:
    """Which ids a name may mean, where a file writes them with other folders in front, or with an extension.

    One path must end with the other, component by component: "x.jpg", "b/x" and "data/b/x.png" mean "b/x"; "a/x" does
    not, since files of one name in two folders are two images (movies of VCR, splits, scenes).

    Args:
        image_ids: what there is; one string is kept for each.
    """

    def __init__(self, image_ids: Iterable[str]) -> None:
        # Components last to first, so that in their order all paths of one ending stand together.
        entries = sorted((_backwards(image_id), image_id) for image_id in image_ids)
        self._paths = [path for path, _ in entries]
        self._ids = [image_id for _, image_id in entries]
        self._depth = max((path.count("/") for path in self._paths), default=0)

    def candidates(self, name: str) -> list[str]:
        """The ids that it may mean, at most two: none, the one, or enough to know that it is ambiguous."""
        path = _backwards(name)
        if not path:
            return []
        same = self._starting_with(path, whole=True)
        if same:
            return same
        found = self._starting_with(path)
        # The name has more folders than the id. Cut to what ids have: a name from a file may have any number.
        parts = path.split("/", self._depth + 1)[: min(path.count("/") - 1, self._depth)]
        for count in range(1, len(parts) + 1):
            found += self._starting_with("/".join(parts[:count]) + "/", whole=True)
        return found[:2]

    def _starting_with(self, start: str, *, whole: bool = False) -> list[str]:
        """The first two ids whose path begins so, or is just this."""
        first = bisect.bisect_left(self._paths, start)
        paths = self._paths[first : first + 2]
        matches = [path == start if whole else path.startswith(start) for path in paths]
        return self._ids[first : first + sum(matches)]


def _backwards(name: str) -> str:
    """ "a/b/x.jpg" -> "x/b/a/"; "" for a name of no component."""
    folders = name.replace("\\", "/").split("/")[:-1]
    parts = [*folders, short_name(name)]
    return "".join(part + "/" for part in reversed(parts) if part not in ("", "."))


def is_utf8(name: str) -> bool:
    """Whether a path can be written down: not if its bytes are no UTF-8, nor with half a surrogate pair from a json."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
