"""Images of a source: of folders, patterns, archives and annotation files.

Folders and archives lie on this machine or at a URL of a Beam filesystem. An annotation or caption file gives the
images it names, with its captions and labels, in file order. An image that it names several times comes several times:
`ImageTable` makes it one. Notes are added once all images have been taken.

Archives are listed by threads, whose results and errors come in order. Threads may be any number ahead of what is
taken, up to a weight of waiting results; so memory is bounded.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from threading import Condition, Thread
from typing import Generic, TypeVar

from roibeam.extraction.photos.image_ref import IMAGE_EXTENSIONS, ImageRef
from roibeam.messages import plural, printable
from roibeam.pipelines.common.image_ids import image_id_of
from roibeam.pipelines.common.locations import ARCHIVE_EXTENSIONS, COMPRESSED_TARS, Member, list_members
from roibeam.pipelines.common.remote_files import is_url, is_url_pattern, list_url
from roibeam.pipelines.data.datasets import caption_lists, coco, image_list, karpathy, photo_folders, vcr, visual_genome
from roibeam.pipelines.data.datasets.photo_folders import TEXT_EXTENSIONS, SampleNotes, read_samples
from roibeam.pipelines.data.datasets.rows import EMPTY_CAPTION, BadRow, BadRows, read_json_lines

_T = TypeVar("_T")
_R = TypeVar("_R")
_TOGETHER = 256  # results that are handed over at once: a lock taken for each would cost more than the work
_PARTS = 64  # or fewer, once they weigh so much of what may wait


def map_ordered(
    tasks: Iterable[_T],
    work: Callable[[_T], Iterable[_R]],
    *,
    threads: int,
    weight: Callable[[_R], int],
    most_waiting: int,
) -> Iterator[tuple[_T, Iterator[_R]]]:
    """Each task with its results, in the order of the tasks; take the results of one before the next task.

    An error of a task is raised where its results break off, after all results of the tasks before it. Unfinished
    results of later tasks are then thrown away.

    Args:
        work: gives the results of a task, in a thread of its own; it must not use what other tasks use.
        threads: tasks that are worked on at once; 1 does all in the calling thread, when it is needed.
        weight: of one result, such as its bytes.
        most_waiting: weight of the results that wait to be taken, of all tasks together, beside what each thread is at.
    """
    if threads == 1:
        yield from ((task, iter(work(task))) for task in tasks)
        return
    ahead = _Ahead(work, weight, most_waiting)
    left, jobs = iter(tasks), deque[_Job[_T, _R]]()
    try:
        while True:
            for task in islice(left, threads - len(jobs)):
                jobs.append(_Job(task))
                # A daemon: where the taker of the results fails and keeps its error, no exit waits for these.
                Thread(target=ahead.do, args=(jobs[-1],), name="works ahead", daemon=True).start()
            if not jobs:
                return
            ahead.set_first(jobs[0])
            yield jobs[0].task, ahead.results(jobs[0])
            jobs.popleft()
    finally:
        ahead.stop()


class _Job(Generic[_T, _R]):
    def __init__(self, task: _T) -> None:
        self.task = task
        self.waiting: deque[tuple[list[_R], int]] = deque()  # results and their weight
        self.is_done = False
        self.error: BaseException | None = None


class _StoppedError(Exception):
    """The results are not taken any more."""


class _Ahead(Generic[_T, _R]):
    """State shared by the threads and the taker of their results."""

    def __init__(self, work: Callable[[_T], Iterable[_R]], weight: Callable[[_R], int], most_waiting: int) -> None:
        self._work, self._weight, self._most = work, weight, most_waiting
        self._changed = Condition()
        self._first: _Job[_T, _R] | None = None  # whose results are taken now
        self._waiting = 0
        self._is_stopped = False

    def set_first(self, job: _Job[_T, _R]) -> None:
        with self._changed:
            self._first = job
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def do(self, job: _Job[_T, _R]) -> None:
        """All of a job; in a thread."""
        some: list[_R] = []
        weight = 0
        try:
            for result in self._work(job.task):
                some.append(result)
                weight += self._weight(result)
                if len(some) == _TOGETHER or weight > self._most // _PARTS:
                    self._put(job, some, weight)
                    some, weight = [], 0
        except _StoppedError:
            return
        except BaseException as error:
            job.error = error  # raised by the one that takes the results, when it comes to this place
        if some:
            with suppress(_StoppedError):
                self._put(job, some, weight)
        with self._changed:
            job.is_done = True
            self._changed.notify_all()

    def _put(self, job: _Job[_T, _R], some: list[_R], weight: int) -> None:
        with self._changed:
            # The first one always goes on when nothing of it waits: all others may have to wait for it.
            while not self._is_stopped and self._waiting + weight > self._most:
                if job is self._first and not job.waiting:
                    break
                self._changed.wait()
            if self._is_stopped:
                raise _StoppedError
            self._waiting += weight
            job.waiting.append((some, weight))
            self._changed.notify_all()

    def results(self, job: _Job[_T, _R]) -> Iterator[_R]:
        while True:
            with self._changed:
                while not job.waiting and not job.is_done:
                    self._changed.wait()
                if not job.waiting:
                    break
                some, weight = job.waiting.popleft()
                self._waiting -= weight
                self._changed.notify_all()
            yield from some
        if job.error is not None:
            raise job.error


LISTING_THREADS = 10  # archives that are listed at once; boto has as many lines to a server
_MOST_LISTED_BYTES = 64 * 2**20  # of images that were listed ahead of the one that is planned
_NAMED = 10  # damaged archives
_STATS = "_stats.json"  # img2dataset writes one beside each of its shards


@dataclass(frozen=True)
class Contents:
    """Contents of a folder or pattern, as far as they decide how it is read: images, else archives, else lists.

    Attributes:
        listing: its files; where an image is among them, the rest is not filled.
        archives: absolute paths or URLs, sorted.
        lists: of .parquet files, likewise.
        compressed: a compressed tar, if there is one.
    """

    listing: photo_folders.Listing
    archives: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    compressed: str | None = None


class UrlListing(photo_folders.Listing):
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


def list_location(location: str) -> photo_folders.Listing:
    if is_url(location):
        return UrlListing(location)
    return photo_folders.list_folder(location) if os.path.isdir(location) else photo_folders.list_pattern(location)


def is_pattern(location: str) -> bool:
    return is_url_pattern(location) if is_url(location) else photo_folders.is_pattern(location)


def look_into(listing: photo_folders.Listing) -> Contents:
    """Goes through the files until an image is there."""
    archives, lists, compressed = [], [], None
    for path in listing.paths():
        name, where = path.lower(), f"{listing.root.rstrip('/')}/{path}"
        extension = os.path.splitext(name)[1]
        if extension in IMAGE_EXTENSIONS:
            return Contents(listing)
        if extension in ARCHIVE_EXTENSIONS:
            archives.append(where)
        elif extension == ".parquet":
            lists.append(where)
        elif name.endswith(COMPRESSED_TARS):
            compressed = where
    return Contents(listing, tuple(sorted(archives)), tuple(sorted(lists)), compressed)


def is_img2dataset_folder(location: str) -> bool:
    """Whether img2dataset wrote the folder, which may hold captions beside images."""
    if is_url(location) or not os.path.isdir(location):
        return False
    with os.scandir(location) as entries:
        return any(entry.name.endswith(_STATS) for entry in entries)


def folder_images(listing: photo_folders.Listing, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    yield from listing.images(id_rule=id_rule)
    notes += listing.notes()


def sample_images(listing: photo_folders.Listing, id_rule: str, notes: list[str]) -> Iterator[ImageRef]:
    """Images of a folder with the captions and labels beside them."""
    left_out = SampleNotes()
    yield from read_samples(_files(listing), left_out, id_rule=id_rule)
    notes += left_out.notes() + listing.link_notes((*IMAGE_EXTENSIONS, *TEXT_EXTENSIONS))


def _files(listing: photo_folders.Listing) -> Iterator[Member]:
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
    listed = map_ordered(
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
        notes.append(f"{len(bad):,} of {plural(len(archives), 'archive')} left out, damaged or cut short: {_some(bad)}")
    notes += left_out.notes()
    if kinds:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(kinds.items()))
        notes.append(f"{plural(kinds.total(), 'member')} of archives left out: {reasons}")


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
    names = ", ".join(map(repr, itertools.islice(archives, _NAMED)))
    return f"{names}, ..." if len(archives) > _NAMED else names


def _held_bytes(image: ImageRef) -> int:
    """Approximate size of an image in memory."""
    return 400 + len(image.image_id) + len(image.location) + sum(map(len, image.captions))


def refuse_compressed(location: str) -> None:
    """Raises ValueError for a compressed tar: its members cannot be read in place."""
    if location.lower().endswith(COMPRESSED_TARS):
        plain = location[: -len(next(each for each in COMPRESSED_TARS if location.lower().endswith(each)))]
        raise ValueError(
            f"{location!r}: members of a compressed tar cannot be read in place; unpack it to a folder, or decompress "
            f"it once, such as by gzip -dk, to {os.path.basename(plain)}.tar (photos are compressed already)"
        )


def json_lines_kind(path: str) -> str:
    """ "vcr" or "image-list", by the first line. Raises ValueError if it is neither, naming its columns."""
    for where, entry in read_json_lines(path):
        if "img_fn" in entry:
            return "vcr"
        if image_list.has_image_column(entry):
            return "image-list"
        raise ValueError(
            f"{where}: expected a VCR row with img_fn, or a list of images with one of "
            f"{', '.join(image_list.IMAGE_COLUMNS)}; got {', '.join(entry)[:300] or 'no column'}"
        )
    return "image-list"


def coco_images(path: str, root: str, id_rule: str, notes: list[str], _: str) -> Iterator[ImageRef]:
    """Images of a COCO file, with the captions of a captions file or the categories of an instances file."""
    found = coco.read_coco(path, id_rule=id_rule)
    notes += [note for bad in found.bad for note in bad.notes()]
    captions, labels = _by_image(found.captions), _by_image(found.labels)
    for image in found.images:
        # A file may repeat an entry; its captions and labels count once.
        texts, names = captions.pop(image.image_id, ()), labels.pop(image.image_id, ())
        location = os.path.join(root, image.file_name)
        yield ImageRef(image.image_id, location, captions=tuple(texts), labels=tuple(dict.fromkeys(names)))


def _by_image(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    texts = defaultdict(list)
    for image_id, text in rows:
        texts[image_id].append(text)
    return texts


def karpathy_images(path: str, root: str, id_rule: str, notes: list[str], _: str) -> Iterator[ImageRef]:
    """All splits, in the folders that the file names, or in the root where none of them is there.

    Only images of the training splits bring their captions: a store's captions are there to be trained on.
    """
    unused, bad = karpathy.bad_entries(path), karpathy.bad_entries(path)
    folders = {os.path.dirname(image.file_name) for image in karpathy.read_karpathy(path, id_rule=id_rule, bad=unused)}
    num_left_out = 0
    has_folders = any(_is_folder(os.path.join(root, folder)) for folder in folders)
    for image in karpathy.read_karpathy(path, id_rule=id_rule, bad=bad):
        below = image.file_name if has_folders else os.path.basename(image.file_name)
        is_for_training = image.split in karpathy.TRAINING_SPLITS
        captions = tuple(image.captions(bad)) if is_for_training else ()
        num_left_out += 0 if is_for_training else len(image.sentences)
        yield ImageRef(image.image_id, os.path.join(root, below), captions=captions)
    notes += [*karpathy.evaluation_note(num_left_out), *bad.notes()]


def captioned_images(
    path: str, root: str, id_rule: str, notes: list[str], caption_column: str, *, kind: str
) -> Iterator[ImageRef]:
    """Images of SBU's file, or of a list of images and captions."""
    bad = BadRows("entry" if kind in ("sbu", "caption-list") else "line")
    if kind == "caption-tsv":
        columns = caption_lists.columns_of(path, caption_column, root=root)
        rows = caption_lists.read_caption_tsv(path, id_rule=id_rule, columns=columns)
    else:
        rows = caption_lists.CAPTION_READERS[kind](path, id_rule=id_rule)
    for row in bad.passed(rows):
        yield ImageRef(row.image_id, os.path.join(root, row.path), captions=(row.caption,))
    notes += bad.notes()


def vcr_images(path: str, root: str, id_rule: str, notes: list[str], _: str) -> Iterator[ImageRef]:
    """Images of a VCR file, with the names of the objects that questions refer to as labels."""
    bad = BadRows("line")
    for image in bad.passed(vcr.read_vcr_images(path, id_rule=id_rule)):
        yield ImageRef(image.image_id, os.path.join(root, image.file_name), labels=image.objects)
    notes += bad.notes()


def sentence_images(folder: str, root: str, id_rule: str) -> Iterator[ImageRef]:
    """Flickr30k's photos with the captions of Flickr30k Entities."""
    for number, captions in caption_lists.read_sentence_folder(folder):
        name = f"{number}.jpg"
        yield ImageRef(image_id_of(name, id_rule=id_rule), os.path.join(root, name), captions=captions)


def genome_images(path: str, root: str, id_rule: str, notes: list[str], _: str) -> Iterator[ImageRef]:
    """All images of Visual Genome, without captions or labels: image_data.json has none."""
    bad = BadRows("entry")
    for image_id, below in bad.passed(visual_genome.read_image_data(path, id_rule=id_rule)):
        yield ImageRef(image_id, os.path.join(root, below))
    notes += bad.notes()


def genome_split_images(path: str, root: str, id_rule: str, notes: list[str], _: str) -> Iterator[ImageRef]:
    """The images of bottom-up attention's list, with the names of their objects where the xml files lie beside it."""
    bad, folder = BadRows("line"), os.path.dirname(path)
    has_labels = os.path.isdir(os.path.join(folder, "xml"))
    num_without = 0
    for row in bad.passed(visual_genome.read_split(path, id_rule=id_rule)):
        labels: tuple[str, ...] = ()
        if has_labels:
            try:
                labels = visual_genome.read_object_names(os.path.join(folder, row.annotation))
            except (FileNotFoundError, NotADirectoryError, ValueError):
                num_without += 1
        yield ImageRef(row.image_id, os.path.join(root, row.file_name), labels=labels)
    notes += bad.notes()
    if num_without:
        notes.append(f"{plural(num_without, 'image')} without labels: no xml file, or a damaged one")


def list_images(path: str, root: str, id_rule: str, notes: list[str], caption_column: str) -> Iterator[ImageRef]:
    """Images of a .parquet, .csv, .jsonl or .txt."""
    bad, empty = BadRows("line"), BadRows("line", "caption")
    unread: tuple[str, ...] = ()
    for row in bad.passed(image_list.read_image_list(path, root, id_rule=id_rule, caption_column=caption_column)):
        if row.empty_captions:
            empty.add(BadRow(row.line, EMPTY_CAPTION), row.empty_captions)
        unread = unread or row.unread
        yield ImageRef(row.image_id, os.path.join(root, row.path), captions=row.captions, labels=row.labels)
    notes += [*bad.notes(), *empty.notes()]
    if unread:
        notes.append(
            f"{path}: no column of captions among {printable(', '.join(unread), 200)}; --caption-column names one, or "
            f"call it caption"
        )


# Kind of a file -> its images, by its path, the folder of the photos, the id rule, the notes and the caption column.
READERS: Mapping[str, Callable[[str, str, str, list[str], str], Iterator[ImageRef]]] = {
    "coco": coco_images,
    "karpathy": karpathy_images,
    **{
        kind: functools.partial(captioned_images, kind=kind) for kind in ("caption-tsv", *caption_lists.CAPTION_READERS)
    },
    "visual-genome": genome_images,
    "visual-genome-split": genome_split_images,
    "vcr": vcr_images,
    "image-list": list_images,
}


def _is_folder(location: str) -> bool:
    return bool(list_url(f"{location.rstrip('/')}/**", limit=1)) if is_url(location) else os.path.isdir(location)
