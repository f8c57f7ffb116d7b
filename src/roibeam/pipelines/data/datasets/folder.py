"""A folder of photos, a glob pattern, or several of these and of photos together.

Id rule: the path below the folder (for a pattern: below its longest part without wildcards), forward slashes, without
the extension (`--id-rule with-extension` keeps it): photos/a/b.jpg -> "a/b". For a photo: below its folder. For several
folders, patterns and photos: below the nearest folder that holds all of them.

The contact sheet of a toy world is no photo of it, and is left out.

Links to files are followed, and counted where they lead out of the folder. Links to folders below the root are not
followed, in a folder as in a pattern: one that leads back up would give every photo many ids. They are counted, and
each may be named as a source itself.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.extraction.photos.photo_file import IMAGE_EXTENSIONS, UNREAD_EXTENSIONS
from roibeam.features.counted import counted
from roibeam.pipelines.common.files.image_ids import image_id_of
from roibeam.pipelines.data.datasets.drawn_world import is_contact_sheet

_WILDCARDS = frozenset("*?[")


class Listing(ABC):
    """The files of a source, found anew each time one asks, so that millions of them need no memory.

    Attributes:
        root: absolute path or URL that their paths are below.
        num_other_files: whose name has no image extension; counted while `images` are taken.
        unread: photos of a format that is not read, by extension; counted as those.
        num_folder_links: not followed; counted while `paths` are.
        links_out: links to files that lie outside of the folder, by extension; counted likewise.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.num_other_files = 0
        self.unread: Counter[str] = Counter()
        self.num_folder_links = 0
        self.links_out: Counter[str] = Counter()

    @abstractmethod
    def paths(self) -> Iterator[str]:
        """Of all files, below the root."""

    def images(self, *, id_rule: str = "no-extension") -> Iterator[ImageRef]:
        self.num_other_files, self.unread = 0, Counter()
        root = self.root.rstrip("/")
        for path in self.paths():
            place, extension = f"{root}/{path}", os.path.splitext(path)[1].lower()
            if extension in UNREAD_EXTENSIONS:
                self.unread[extension] += 1
            elif extension not in IMAGE_EXTENSIONS:
                self.num_other_files += 1
            elif not is_contact_sheet(place):
                yield ImageRef(image_id_of(path, id_rule=id_rule), place)

    def notes(self) -> list[str]:
        """What was left out, once the images have been taken."""
        found = []
        if self.unread:
            photos, formats = counted(self.unread.total(), "photo"), ", ".join(sorted(self.unread))
            found.append(f"{photos} left out, whose format is not read ({formats}): convert to .jpg")
        if self.num_other_files:
            found.append(f"{counted(self.num_other_files, 'file')} without an image extension left out")
        if self.num_folder_links:
            links = counted(self.num_folder_links, "link to a folder", "links to folders")
            found.append(f"{links} not followed")
        return found + self.link_notes(IMAGE_EXTENSIONS)

    def link_notes(self, extensions: Iterable[str]) -> list[str]:
        """A line on the links that lead out of the folder, of files of these extensions; none for none."""
        count = sum(self.links_out[extension] for extension in extensions)
        links = counted(count, "link to a file", "links to files")
        return [f"{links} outside of the folder followed"] if count else []


class FolderListing(Listing):
    """Files of this machine.

    Args:
        root: absolute path of a folder.
        parts: the pattern below it, folder by folder.
    """

    def __init__(self, root: str, parts: list[str]) -> None:
        super().__init__(root)
        self._parts = parts

    def paths(self) -> Iterator[str]:
        links: set[str] = set()
        self.links_out = Counter()
        real_path = functools.lru_cache(maxsize=1000)(os.path.realpath)
        real_root = os.path.join(os.path.realpath(self.root), "")
        found = _files(self.root, "", self._parts, links) if os.path.isdir(self.root) else iter(())
        # Only a pattern that goes into sub-folders twice can find a file twice.
        for path, is_link in found if self._parts.count("**") < 2 else dict.fromkeys(found):
            if is_link and not _real_folder(os.path.join(self.root, path), real_path).startswith(real_root):
                self.links_out[os.path.splitext(path)[1].lower()] += 1
            yield path
        self.num_folder_links = len(links)


def _real_folder(link: str, real_path: Callable[[str], str]) -> str:
    """Where the file that a link to a file leads to lies, with a slash at its end."""
    target = os.path.join(os.path.dirname(link), os.readlink(link))
    if os.path.islink(target):  # a rare case; others cost a tenth of this
        target = os.path.realpath(target)
    return os.path.join(real_path(os.path.dirname(target)), "")


class SeveralListing(Listing):
    """Files that were named one by one, and those of folders and patterns.

    Args:
        root: absolute path of a folder that holds all of them.
        listings: of the folders and patterns.
        files: absolute paths.
    """

    def __init__(self, root: str, listings: Sequence[Listing], files: Sequence[str]) -> None:
        super().__init__(root)
        self._listings, self._files = listings, files

    def paths(self) -> Iterator[str]:
        for file in self._files:
            yield os.path.relpath(file, self.root)
        for listing in self._listings:
            before = os.path.relpath(listing.root, self.root)
            for path in listing.paths():
                yield path if before == os.curdir else f"{before}/{path}"
        self.num_folder_links = sum(listing.num_folder_links for listing in self._listings)
        self.links_out = sum((listing.links_out for listing in self._listings), Counter[str]())


def list_together(locations: Iterable[str]) -> SeveralListing:
    """All files of several folders, patterns and files, which must be there.

    Raises:
        ValueError: see `list_folder` and `list_pattern`.
    """
    files, listings = [], list[Listing]()
    for location in locations:
        if os.path.isdir(location):
            listings.append(list_folder(location))
        elif is_pattern(location):
            listings.append(list_pattern(location))
        else:
            files.append(os.path.abspath(location))
    holders = {os.path.dirname(file) for file in files} | {listing.root for listing in listings}
    return SeveralListing(os.path.commonpath(holders), listings, files)


def is_pattern(location: str) -> bool:
    """Whether `location` is a glob pattern; an existing path with a wildcard in its name is a path."""
    return any(c in _WILDCARDS for c in location) and not os.path.exists(location)


def list_folder(folder: str) -> FolderListing:
    """All files below `folder`, hidden files and folders left out.

    Raises:
        ValueError: if the folder does not exist, or, once its files are taken, a folder in it cannot be read.
    """
    if not os.path.isdir(folder):
        raise ValueError(f"no such folder: {folder!r}")
    return FolderListing(os.path.abspath(folder), ["**"])


def list_pattern(pattern: str) -> FolderListing:
    """All files that a glob pattern matches ("**" reaches into sub-folders), hidden ones only where it writes the dot.

    Raises:
        ValueError: if the pattern goes up again after a wildcard, or, once files are taken, a folder that it must look
            into cannot be read.
    """
    parts = pattern.split(os.sep)
    first_wild = next(i for i, part in enumerate(parts) if any(c in _WILDCARDS for c in part))
    wild = [part for part in parts[first_wild:-1] if part not in ("", ".")] + parts[-1:]
    if ".." in wild:
        raise ValueError(f'{pattern!r}: ".." after a wildcard; write the pattern without it')
    root = os.path.abspath(os.sep.join(parts[:first_wild]) or (os.sep if pattern.startswith(os.sep) else "."))
    return FolderListing(root, wild)


def _files(root: str, below: str, parts: list[str], links: set[str]) -> Iterator[tuple[str, bool]]:
    """Files that the pattern `parts` matches in the folder root/below, as paths below root, and whether they are links;
    one may come twice.

    Not glob.glob: its "**" follows links, so that two links up in one folder keep it busy for ever.
    """
    part, rest = parts[0], parts[1:]
    if part == "**" and not rest:
        yield from _all_files(root, below, links)
        return
    if part == "**":
        yield from _files(root, below, rest or ["*"], links)  # it also stands for no folder at all
    matches = re.compile(fnmatch.translate(part)).match
    for entry in _entries(os.path.join(root, below)):
        if not matches(entry.name) or (entry.name.startswith(".") and not part.startswith(".")):
            continue
        path, kind = below + entry.name, _kind(entry)
        parts_inside = parts if part == "**" else rest
        if kind == "file" and not parts_inside:
            yield path, entry.is_symlink()
        elif kind == "folder" and parts_inside:
            yield from _files(root, path + "/", parts_inside, links)
        elif kind == "link to a folder" and parts_inside:
            links.add(path)


def _all_files(root: str, below: str, links: set[str]) -> Iterator[tuple[str, bool]]:
    """As `_files` with "**" alone, in the same order, with one look at each folder and no pattern."""
    folders = []
    for entry in _entries(os.path.join(root, below)):
        if entry.name.startswith("."):
            continue
        path, kind = below + entry.name, _kind(entry)
        if kind == "file":
            yield path, entry.is_symlink()
        elif kind == "folder":
            folders.append(path + "/")
        elif kind == "link to a folder":
            links.add(path)
    for folder in folders:
        yield from _all_files(root, folder, links)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise ValueError(
            f"cannot read the folder {folder!r}: {error.strerror}; make it readable, or name the folders beside it"
        ) from error


def _kind(entry: os.DirEntry[str]) -> str:
    if not entry.is_symlink():
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "pipe or device"
    if os.path.isdir(entry.path):
        return "link to a folder"
    # A link to nothing counts as a file: its photo is missing, and reading it will say so.
    return "file" if os.path.isfile(entry.path) or not os.path.exists(entry.path) else "pipe or device"
