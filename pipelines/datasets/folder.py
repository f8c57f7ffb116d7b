"""A folder of photos, or a glob pattern.

Id rule: the path below the folder (for a pattern: below its longest part without wildcards), forward slashes, without
the extension (`--id-rule with-extension` keeps it): photos/a/b.jpg -> "a/b".
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass

from extraction.images import ImageRef
from pipelines.datasets.image_ids import image_id_of

IMAGE_EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .gif .webp .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .jp2".split()
)
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class FolderListing:
    """Images found, and how many files were left out because their name has no image extension."""

    root: str
    images: list[ImageRef]
    num_other_files: int


def is_pattern(location: str) -> bool:
    """Whether `location` is a glob pattern; an existing path with a wildcard in its name is a path."""
    return any(c in _WILDCARDS for c in location) and not os.path.exists(location)


def list_folder(folder: str, *, id_rule: str = "no-extension") -> FolderListing:
    """All images below `folder`, hidden files and folders left out; links to folders are not followed.

    Raises:
        ValueError: if the folder does not exist or cannot be read.
    """
    if not os.path.isdir(folder):
        raise ValueError(f"no such folder: {folder}")

    def stop(error: OSError) -> None:
        raise ValueError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    paths = []
    for parent, children, files in os.walk(folder, onerror=stop):
        children[:] = [name for name in children if not name.startswith(".")]
        paths += [os.path.join(parent, name) for name in files if not name.startswith(".")]
    return _listing(os.path.abspath(folder), [os.path.abspath(path) for path in paths], id_rule)


def list_pattern(pattern: str, *, id_rule: str = "no-extension") -> FolderListing:
    """All images that a glob pattern matches ("**" reaches into sub-folders)."""
    parts = pattern.split(os.sep)
    first_wild = next(i for i, part in enumerate(parts) if any(c in _WILDCARDS for c in part))
    root = os.path.abspath(os.sep.join(parts[:first_wild]) or (os.sep if pattern.startswith(os.sep) else "."))
    paths = [os.path.abspath(path) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    return _listing(root, paths, id_rule)


def _listing(root: str, paths: list[str], id_rule: str) -> FolderListing:
    chosen = [path for path in paths if os.path.splitext(path)[1].lower() in IMAGE_EXTENSIONS]
    images = [ImageRef(image_id_of(os.path.relpath(path, root), id_rule=id_rule), path) for path in chosen]
    return FolderListing(root, images, len(paths) - len(chosen))
