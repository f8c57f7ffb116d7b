"""Folders of photos: plain folders and glob patterns, WebDataset's samples, and folders that the toy world drew.

Id rule: the path below the folder (of a pattern: below its longest part without wildcards; of several: below the
nearest folder that holds all), forward slashes, without the extension (`--id-rule with-extension` keeps it):
photos/a/b.jpg -> "a/b". For an archive of a folder that is the folder's id. Links to files are followed, and counted
where they lead out of the folder. Links to folders below the root are not followed: one that leads back up would give a
photo many ids.

Photos of an annotation file may be near it: COCO keeps train2014/ beside annotations/, others images/ beside the file.
A sample of WebDataset or img2dataset is the files of one path up to the first dot of the name: 000000012.jpg, .txt
(caption), .json (its "caption" where there is no .txt), .cls (label), .seg.png (mask, left out). A drawn folder has
one of toyworld.json, tasks.json, web.json, collection.json and download.json.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path

from roibeam.extraction.photos.image_ref import IMAGE_EXTENSIONS, UNREAD_EXTENSIONS, ImageRef
from roibeam.messages import plural
from roibeam.pipelines.common.image_ids import image_id_of, in_nfc
from roibeam.pipelines.common.locations import Member, location_exists, parse_location
from roibeam.pipelines.common.remote_files import is_url
from roibeam.pipelines.data.datasets.rows import EMPTY_CAPTION

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
        kind: as of `Source`.
    """
    below = [os.path.relpath(probe, own) for probe in probes]
    counts = {folder: sum(_is_there(folder, path, kind) for path in below) for folder in folders}
    most = max(counts.values(), default=0)
    return [folder for folder, count in counts.items() if count == most and most]


def _is_there(folder: str, path: str, kind: str) -> bool:
    inner = _SPLITS if kind == "karpathy" else ()
    return any(location_exists(os.path.join(folder, name, path)) for name in ("", *inner))


WORLD_NAME, WORLD_FORMAT = "toyworld.json", "roibeam-toyworld"
TASKS_NAME, TASKS_FORMAT = "tasks.json", "roibeam-toyworld-tasks"
WEB_NAME, WEB_FORMAT = "web.json", "roibeam-toyworld-web"
COLLECTION_NAME, DOWNLOAD_NAME = "collection.json", "download.json"
CONTACT_SHEET_NAME = "contact_sheet.jpg"
DRAWN_WORLD = "drawn_world"  # in these two, and in a store's configuration: whether all photos are of a toy world
_LEVELS = 6  # a photo lies up to four folders below such a file; a pattern or an archive a little deeper
_MAX_BYTES = 2**20


def world_of(place: str) -> Path | None:
    """The folder of a toy world, of its tasks or web, or of what was fetched from that web, that a file, folder or
    pattern lies in; None outside of one, and for URLs."""
    if is_url(place):
        return None
    path = Path(place).absolute()
    return next((folder for folder in (path, *path.parents)[:_LEVELS] if _is_drawn(folder)), None)


def are_toy_photos(locations: Iterable[str]) -> bool:
    """Whether all photos lie in such folders; False for none. Each folder is looked at once.

    Args:
        locations: of photos: absolute paths, URLs, or members of archives. Unusable names are left out.
    """
    places = ((location, parse_location(location)) for location in locations)
    files = (location if place is None else place.archive for location, place in places)
    folders = (os.path.dirname(file) for file in files if os.path.isabs(file) or is_url(file))
    known, is_any = cache(world_of), False
    for folder in folders:
        if known(folder) is None:
            return False
        is_any = True
    return is_any


def is_contact_sheet(path: str) -> bool:
    """Whether a file is a toy world's overview of its pictures, and so no picture of it."""
    if not path.endswith(CONTACT_SHEET_NAME):  # of millions of files none; taking a path apart takes longer
        return False
    folder, name = os.path.split(path)
    return name == CONTACT_SHEET_NAME and _read(Path(folder, WORLD_NAME)).get("format") == WORLD_FORMAT


def _is_drawn(folder: Path) -> bool:
    written = {WORLD_NAME: WORLD_FORMAT, TASKS_NAME: TASKS_FORMAT, WEB_NAME: WEB_FORMAT}
    if any(_read(folder / name).get("format") == expected for name, expected in written.items()):
        return True
    return any(_read(folder / name).get(DRAWN_WORLD) is True for name in (COLLECTION_NAME, DOWNLOAD_NAME))


def _read(file: Path) -> dict[str, object]:
    """A JSON object; empty for a file that is not there, or is another one of this name."""
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return {}
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_WILDCARDS = frozenset("*?[")


class Listing(ABC):
    """Files of a source, found anew at each iteration, so that millions of them need no memory.

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
        """Paths of all files, below the root."""

    def images(self, *, id_rule: str = "no-extension") -> Iterator[ImageRef]:
        self.num_other_files, self.unread = 0, Counter()
        root = self.root.rstrip("/")
        for path in self.paths():
            # As os.path.splitext, in a third of its time.
            stem, _, ending = path.rpartition(".")
            extension = "." + ending.lower() if stem.rpartition("/")[2].strip(".") else ""
            if extension in UNREAD_EXTENSIONS:
                self.unread[extension] += 1
            elif extension not in IMAGE_EXTENSIONS:
                self.num_other_files += 1
            elif not is_contact_sheet(place := f"{root}/{path}"):
                yield ImageRef(stem if id_rule == "no-extension" else image_id_of(path, id_rule=id_rule), place)

    def notes(self) -> list[str]:
        """Notes on what was left out, once the images have been taken."""
        found = []
        if self.unread:
            photos, formats = plural(self.unread.total(), "photo"), ", ".join(sorted(self.unread))
            found.append(f"{photos} left out, whose format is not read ({formats}): convert to .jpg")
        if self.num_other_files:
            found.append(f"{plural(self.num_other_files, 'file')} without an image extension left out")
        if self.num_folder_links:
            links = plural(self.num_folder_links, "link to a folder", "links to folders")
            found.append(f"{links} not followed")
        return found + self.link_notes(IMAGE_EXTENSIONS)

    def link_notes(self, extensions: Iterable[str]) -> list[str]:
        """A line on the links that lead out of the folder, of files of these extensions; none for none."""
        count = sum(self.links_out[extension] for extension in extensions)
        links = plural(count, "link to a file", "links to files")
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
    """Folder of the file that a link leads to, with a slash at its end."""
    target = os.path.join(os.path.dirname(link), os.readlink(link))
    if os.path.islink(target):  # a rare case; others cost a tenth of this
        target = os.path.realpath(target)
    return os.path.join(real_path(os.path.dirname(target)), "")


class SeveralListing(Listing):
    """Files that were named one by one, and those of folders and patterns.

    Args:
        root: absolute path of a folder that holds all of them.
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
    """All files of several folders, patterns and files, which must be there."""
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
    """All files below `folder`, hidden files and folders left out. Raises ValueError if the folder does not exist, or,
    once its files are taken, a folder in it cannot be read."""
    if not os.path.isdir(folder):
        raise ValueError(f"no such folder: {folder!r}")
    return FolderListing(os.path.abspath(folder), ["**"])


def list_pattern(pattern: str) -> FolderListing:
    """All files that a glob pattern matches ("**" reaches into sub-folders), hidden ones only where it writes the dot.
    Raises ValueError if the pattern goes up again after a wildcard, or, once files are taken, a folder that it must
    look into cannot be read."""
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
    """`_files` with "**" alone, in the same order, with one look at each folder and no pattern."""
    folders = []
    for entry in _entries(os.path.join(root, below)):
        if entry.name.startswith("."):
            continue
        path = below + entry.name
        if entry.is_file(follow_symlinks=False):  # of millions nearly all
            yield path, False
        elif (kind := _kind(entry)) == "file":
            yield path, True
        elif kind == "folder":
            folders.append(path + "/")
        elif kind == "link to a folder":
            links.add(path)
    for folder in folders:
        yield from _all_files(root, folder, links)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=attrgetter("name"))
    except OSError as error:
        raise ValueError(
            f"cannot read the folder {folder!r}: {error.strerror}; make it readable, or name the folders beside it"
        ) from error


def _kind(entry: os.DirEntry[str]) -> str:
    if not entry.is_symlink():
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "pipe or device"
    if os.path.isdir(entry.path):
        return "link to a folder"
    # A link to nothing counts as a file: its photo is missing, and reading it is an error.
    return "file" if os.path.isfile(entry.path) or not os.path.exists(entry.path) else "pipe or device"


TEXT_EXTENSIONS = (".txt", ".json", ".cls")
_MAX_TEXT_BYTES = 2**20
_MASKS = (".seg", ".segm", ".segmentation", ".mask", ".masks", ".depth")  # before the image extension
_MAX_FILES = 64  # of a sample; names with dots of their own ("00.00.05.905.jpg") may look like one for a whole folder


@dataclass
class SampleNotes:
    """Counts of what was left out while samples are read."""

    other_files: int = 0
    bad_texts: Counter[str] = field(default_factory=Counter)
    lone_texts: int = 0
    masks: int = 0

    def add(self, other: SampleNotes) -> None:
        self.other_files += other.other_files
        self.bad_texts += other.bad_texts
        self.lone_texts += other.lone_texts
        self.masks += other.masks

    def notes(self) -> list[str]:
        found = []
        if self.other_files:
            found.append(f"{plural(self.other_files, 'file')} without an image extension left out")
        if self.bad_texts:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.bad_texts.items()))
            found.append(
                f"{plural(self.bad_texts.total(), 'caption or label', 'captions or labels')} left out: {reasons}"
            )
        if self.lone_texts:
            found.append(
                f"{plural(self.lone_texts, 'caption or label', 'captions or labels')} left out: no image of that name "
                f"is beside"
            )
        if self.masks:
            found.append(f"{plural(self.masks, 'mask')} beside photos left out ({', '.join(_MASKS)} in the name)")
        return found


def read_samples(members: Iterable[Member], notes: SampleNotes, *, id_rule: str) -> Iterator[ImageRef]:
    """Images of an archive or folder in its order, with their captions and labels; one sample is in memory."""
    sample = _Sample(notes, id_rule)
    for member in members:
        key = _sample_key(member.path)
        if key != sample.key or sample.num_files >= _MAX_FILES:
            yield from sample.images()
            sample = _Sample(notes, id_rule, key)
        sample.add(member)
    yield from sample.images()


def _sample_key(path: str) -> str:
    folder, name = os.path.split(path)
    return in_nfc(os.path.join(folder, name.partition(".")[0]))


def _stem(path: str) -> str:
    return in_nfc(os.path.splitext(path)[0])


class _Sample:
    def __init__(self, notes: SampleNotes, id_rule: str, key: str | None = None) -> None:
        self.key, self.num_files = key, 0
        self._notes, self._id_rule = notes, id_rule
        self._images: list[Member] = []
        self._texts: dict[str, dict[str, tuple[str, ...]]] = {}  # by path without extension, then by extension

    def add(self, member: Member) -> None:
        self.num_files += 1
        extension = os.path.splitext(member.path)[1].lower()
        if extension in IMAGE_EXTENSIONS:
            self._images.append(member)
        elif extension not in TEXT_EXTENSIONS:
            self._notes.other_files += 1
        else:
            try:
                self._texts.setdefault(_stem(member.path), {})[extension] = _texts(
                    member.read(_MAX_TEXT_BYTES + 1), extension
                )
            except ValueError as error:
                self._notes.bad_texts[str(error)] += 1

    def images(self) -> Iterator[ImageRef]:
        stems = [_stem(image.path) for image in self._images]
        if len(stems) > 1:
            self._leave_out_masks(set(stems))
            stems = [_stem(image.path) for image in self._images]
        for stem, texts in self._texts.items():
            if stem not in stems and (stem != self.key or not stems):
                self._notes.lone_texts += sum(map(any, texts.values()))
        shared = {} if self.key in stems else self._texts.get(self.key or "", {})
        for image, stem in zip(self._images, stems, strict=True):
            own = self._texts.get(stem, {})
            found = [texts.get(extension, ()) for texts in (own, shared) for extension in (".txt", ".json")]
            captions = next((each for each in found if any(each)), next(filter(None, found), ()))
            if empty := captions.count(""):
                self._notes.bad_texts[EMPTY_CAPTION] += empty
            yield ImageRef(
                image_id_of(image.path, id_rule=self._id_rule),
                image.location,
                captions=tuple(filter(None, captions)),
                labels=own.get(".cls") or shared.get(".cls") or (),
            )

    def _leave_out_masks(self, stems: set[str]) -> None:
        """Leaves out images that are called masks and lie beside a photo."""
        masks = {stem for stem in stems if os.path.splitext(stem)[1].lower() in _MASKS}
        photos = stems - masks
        masks = {mask for mask in masks if (of := os.path.splitext(mask)[0]) in photos or (of == self.key and photos)}
        kept = [image for image in self._images if _stem(image.path) not in masks]
        self._notes.masks += len(self._images) - len(kept)
        self._images = kept


def _texts(data: bytes, extension: str) -> tuple[str, ...]:
    """The captions or the label in a file; none where it has none, "" for a caption that is empty."""
    if len(data) > _MAX_TEXT_BYTES:
        raise ValueError(f"longer than {_MAX_TEXT_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
        if extension != ".json":
            return (text.strip(),) if text.strip() or extension == ".txt" else ()
        content = json.loads(text)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except (ValueError, RecursionError):
        raise ValueError("not json") from None
    caption = content.get("caption") if isinstance(content, dict) else None
    captions = caption if isinstance(caption, list) else [caption]
    found = [each.strip() for each in captions if isinstance(each, str)]
    if any("\ud800" <= letter <= "\udfff" for each in found for letter in each):
        raise ValueError("not UTF-8")
    return tuple(found)
