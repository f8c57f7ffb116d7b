"""The images of folders, patterns and archives, on this machine or at a URL of a Beam filesystem."""

from __future__ import annotations

import functools
import itertools
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.extraction.photos.photo_file import IMAGE_EXTENSIONS
from roibeam.features.counted import counted
from roibeam.pipelines.common.files.archives import ARCHIVE_EXTENSIONS, COMPRESSED_TARS, Member, list_members
from roibeam.pipelines.common.files.remote_files import is_url, is_url_pattern, list_url
from roibeam.pipelines.common.ordered_ahead import in_order
from roibeam.pipelines.data.datasets import folder
from roibeam.pipelines.data.datasets.webdataset import TEXT_EXTENSIONS, SampleNotes, read_samples

LISTING_THREADS = 10  # archives that are listed at once; boto has as many lines to a server
_MOST_LISTED_BYTES = 64 * 2**20  # of images that were listed ahead of the one that is planned
_NAMED = 10  # damaged archives
_STATS = "_stats.json"  # img2dataset writes one beside each of its shards


@dataclass(frozen=True)
class Contents:
    """What a folder or pattern holds, as far as it decides how it is read: images, else archives, else lists.

    Attributes:
        listing: its files.
        has_images: whether there is an image; then the rest is not filled.
        archives: absolute paths or URLs, sorted.
        lists: of .parquet files, likewise.
        compressed: a compressed tar, if there is one.
    """

    listing: folder.Listing
    has_images: bool
    archives: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    compressed: str | None = None


class UrlListing(folder.Listing):
    """Files at a URL; hidden ones are left out as in a folder."""

    def __init__(self, location: str) -> None:
        before = location.partition("*")[0].partition("?")[0].partition("[")[0]
        # One photo is found as a pattern without a wildcard finds it.
        is_pattern = before != location or os.path.splitext(location)[1].lower() in IMAGE_EXTENSIONS
        super().__init__(before.rpartition("/")[0] if is_pattern else location.rstrip("/"))
        self._pattern = location if is_pattern else f"{self.root}/**"

    def paths(self) -> Iterator[str]:
        for url in list_url(self._pattern):
            below = url.removeprefix(self.root).lstrip("/")
            if not any(part.startswith(".") for part in below.split("/")) and not below.endswith("/"):
                yield below


def list_location(location: str) -> folder.Listing:
    """The files of a folder or pattern.

    Raises:
        ValueError: see `folder.list_folder`.
    """
    if is_url(location):
        return UrlListing(location)
    return folder.list_folder(location) if os.path.isdir(location) else folder.list_pattern(location)


def is_pattern(location: str) -> bool:
    return is_url_pattern(location) if is_url(location) else folder.is_pattern(location)


def look_into(listing: folder.Listing) -> Contents:
    """Goes through the files until an image is there."""
    archives, lists, compressed = [], [], None
    for path in listing.paths():
        name, where = path.lower(), f"{listing.root.rstrip('/')}/{path}"
        extension = os.path.splitext(name)[1]
        if extension in IMAGE_EXTENSIONS:
            return Contents(listing, True)
        if extension in ARCHIVE_EXTENSIONS:
            archives.append(where)
        elif extension == ".parquet":
            lists.append(where)
        elif name.endswith(COMPRESSED_TARS):
            compressed = where
    return Contents(listing, False, tuple(sorted(archives)), tuple(sorted(lists)), compressed)


def is_img2dataset_folder(location: str) -> bool:
    """Whether img2dataset wrote the folder, which may hold captions beside images."""
    if is_url(location) or not os.path.isdir(location):
        return False
    with os.scandir(location) as entries:
        return any(entry.name.endswith(_STATS) for entry in entries)


def folder_images(listing: folder.Listing, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    yield from listing.images(id_rule=id_rule)
    notes += listing.notes()


def sample_images(listing: folder.Listing, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    """Images of a folder with the captions and labels beside them."""
    left_out = SampleNotes()
    yield from read_samples(_files(listing), left_out, id_rule=id_rule)
    notes += left_out.notes() + listing.link_notes((*IMAGE_EXTENSIONS, *TEXT_EXTENSIONS))


def _files(listing: folder.Listing) -> Iterator[Member]:
    for path in listing.paths():
        location = os.path.join(listing.root, path)
        # img2dataset's own files about its shards are no samples.
        if not path.endswith((_STATS, ".parquet")):
            yield Member(path, location, functools.partial(_head, location))


def _head(path: str, most: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(most)


@dataclass(frozen=True)
class _ArchiveTask:
    """An archive that a thread lists, and what it leaves out."""

    archive: str
    left_out: SampleNotes = field(default_factory=SampleNotes)
    kinds: Counter[str] = field(default_factory=Counter)

    def images(self, id_rule: str) -> Iterator[ImageRef]:
        refuse_compressed(self.archive)
        return read_samples(list_members(self.archive, self.kinds), self.left_out, id_rule=id_rule)


def archive_images(
    archives: Sequence[str], id_rule: str, notes: list[str], *, skip_bad: bool = False, threads: int = LISTING_THREADS
) -> Iterator[ImageRef]:
    """Images of tar and zip archives with the captions and labels beside them; several archives are read at once.

    Args:
        skip_bad: leave out damaged archives, with a note; the images of one archive are in memory then.
        threads: change nothing but the time.
    Raises:
        ValueError: once all archives were gone through, naming those that are damaged.
    """
    left_out, kinds, bad = SampleNotes(), Counter[str](), dict[str, ValueError]()
    listed = in_order(
        map(_ArchiveTask, archives), lambda task: task.images(id_rule), threads=threads, weight=_held_bytes,
        most_waiting=_MOST_LISTED_BYTES,
    )  # fmt: skip
    for task, images in listed:
        try:
            yield from list(images) if skip_bad else images
        except ValueError as error:
            bad[task.archive] = error
            continue
        left_out.add(task.left_out)
        kinds += task.kinds
    if bad and not skip_bad:
        raise _bad_archives(bad, len(archives))
    if bad:
        notes.append(
            f"{len(bad):,} of {counted(len(archives), 'archive')} left out, damaged or cut short: {_some(bad)}"
        )
    notes += left_out.notes()
    if kinds:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(kinds.items()))
        notes.append(f"{counted(kinds.total(), 'member')} of archives left out: {reasons}")


def _bad_archives(bad: Mapping[str, ValueError], total: int) -> ValueError:
    first = next(iter(bad.values()))
    if total == 1:
        return first
    if len(bad) == 1:
        return ValueError(f"{first}, or leave it out with --skip-bad-archives")
    return ValueError(
        f"{len(bad):,} of {total:,} archives are damaged or cut short: {_some(bad)}; fetch them again, or leave them "
        f"out with --skip-bad-archives (of the first: {first})"
    )


def _some(archives: Collection[str]) -> str:
    shown = ", ".join(map(repr, itertools.islice(archives, _NAMED)))
    return f"{shown}, ..." if len(archives) > _NAMED else shown


def _held_bytes(image: ImageRef) -> int:
    """About what an image takes in memory."""
    return 400 + len(image.image_id) + len(image.location) + sum(map(len, image.captions))


def refuse_compressed(location: str) -> None:
    """Raises ValueError for a compressed tar: its members cannot be read in place."""
    if location.lower().endswith(COMPRESSED_TARS):
        plain = location[: -len(next(each for each in COMPRESSED_TARS if location.lower().endswith(each)))]
        raise ValueError(
            f"{location!r}: members of a compressed tar cannot be read in place; unpack it to a folder, or decompress "
            f"it once, such as by gzip -dk, to {os.path.basename(plain)}.tar (photos are compressed already)"
        )
