"""Sources: the images to extract, from a location that the user names."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from roibeam.extraction.photos.image_ref import IMAGE_EXTENSIONS, ImageRef
from roibeam.messages import plural
from roibeam.pipelines.common.locations import ARCHIVE_EXTENSIONS, location_exists
from roibeam.pipelines.common.remote_files import is_url, local_copy, parent_url
from roibeam.pipelines.data import source_images
from roibeam.pipelines.data.datasets import caption_lists, photo_folders, vcr
from roibeam.pipelines.data.datasets.known_files import BY_EXTENSION, describe_file, json_kind, kind_of, refuse_others
from roibeam.pipelines.data.datasets.photo_folders import folders_that_hold, folders_to_try
from roibeam.pipelines.data.datasets.rows import is_web_url
from roibeam.pipelines.data.image_table import ImageTable, check_utf8

PROBED_FILES = 50  # of an annotation file, to notice a wrong image folder before a run of failures


@dataclass(frozen=True)
class Source:
    """Images of one run.

    Attributes:
        kind: what was found: "folder" (also of one photo, or several sources), "pattern", "tar", "zip", "archives",
            "img2dataset", "coco", "karpathy", "sbu", "caption-tsv", "caption-list", "flickr30k", "visual-genome",
            "visual-genome-split", "vcr" or "image-list".
        location: absolute path or URL of the folder or file, or the pattern; of several sources, the nearest folder
            that holds them all.
        image_root: folder, or URL of one, that the ids are relative to; of archives, the one that they lie in.
        id_rule: see `roibeam.pipelines.common.image_ids`.
        images: unique ids, sorted by their UTF-8 bytes, with the captions and labels that the source has for them; on
            disk, to be gone through one by one.
        notes: one line for each thing left out or merged, for the user.
        id_prefix: put before the ids that the source gives.
        num_archives: of a folder or pattern of archives, those of all parts.
        part: of what the images are a part, in words: "2/8 of 64 archives"; "" where they are all.
    """

    kind: str
    location: str
    image_root: str
    id_rule: str
    images: ImageTable
    notes: list[str]
    id_prefix: str = ""
    num_archives: int = 0
    part: str = ""

    def with_images(self, images: Iterable[ImageRef]) -> Source:
        """The source with these of its images, or with more captions or labels; they are taken at once, one by one:

        source.with_images(replace(image, captions=captions_of(image)) for image in source.images)
        """
        return replace(self, images=ImageTable(images))


def open_source(
    location: str,
    *,
    image_root: str | None = None,
    id_rule: str = "no-extension",
    skip_bad_archives: bool = False,
    caption_column: str = "",
) -> Source:
    """Lists the images of a folder, glob pattern, archive, annotation file or list, with their captions and labels.

    Files may lie at URLs of Beam's filesystems; docs/extract.md lists what each kind of file gives. A .json, .jsonl
    or .txt is known by its content. Images of all splits are listed.

    Args:
        image_root: folder of the images of a file, a path or URL; None means the folder that the file lies in (of VCR
            annotations vcr1images in it, if there is one; of Flickr30k's Sentences, flickr30k-images beside it), or,
            where it holds no photo of the file, a folder near it that does (`photo_folders`). For a Karpathy split it
            holds the folders that the file names ("train2014"), or, where none of them is there, the images themselves.
        id_rule: "no-extension" or "with-extension".
        skip_bad_archives: of a folder or pattern of archives, leave out damaged ones, with a note.
        caption_column: of a list with columns, the name of the one with captions; of a caption .tsv, 1 or 2. "" to find
            it.
    Raises:
        ValueError: one line: nothing there, no image in it, two files with one id, an id or path no store can hold, or
            a URL whose driver is missing.
    """
    return _open_one(location, _Options(image_root, id_rule, skip_bad_archives, caption_column))


def _open_one(location: str, options: _Options) -> Source:
    source, caption_column = _open_source(location, options), options.caption_column
    if caption_column and source.kind not in ("caption-tsv", "image-list"):
        raise ValueError(
            f"--caption-column {caption_column} is for a list with columns or a caption .tsv; leave it out for "
            f"{location!r}"
        )
    return source


class _Options(NamedTuple):
    """Options of `open_sources`."""

    image_root: str | None
    id_rule: str
    skip_bad_archives: bool
    caption_column: str
    part: tuple[int, int] = (1, 1)


def _open_source(location: str, options: _Options) -> Source:
    id_rule = options.id_rule
    if is_web_url(location):
        raise ValueError(f"{location!r}: images of the web are fetched by `roibeam download`; give its folder here")
    if not is_url(location) and not os.path.exists(location) and not photo_folders.is_pattern(location):
        raise ValueError(f"no such folder, file or pattern: {location!r}")
    where = location if is_url(location) else os.path.abspath(location)
    source_images.refuse_compressed(where)
    if not is_url(location) and os.path.isdir(location) and caption_lists.is_sentence_folder(location):
        root = _image_root(options.image_root, os.path.join(os.path.dirname(where), "flickr30k-images"))
        return _source("flickr30k", where, root, id_rule, source_images.sentence_images(where, root, id_rule), [])
    extension = os.path.splitext(location)[1].lower()
    is_file = os.path.isfile(location) if not is_url(location) else extension in _FILE_EXTENSIONS
    if is_file and extension in IMAGE_EXTENSIONS:
        return _open_together((location,), options._replace(caption_column=""))
    if not is_file or source_images.is_pattern(location):
        if glob.glob(os.path.join(glob.escape(location), "part-*.lmdb")):
            raise ValueError(f"{location!r} is a store of features; name the photos that it was made of, or others")
        kind = "pattern" if source_images.is_pattern(location) else "folder"
        listing = source_images.list_location(location)
        return _open_listing(listing, (kind, where), (location,), options)
    if extension in ARCHIVE_EXTENSIONS:
        _refuse_root(location, options.image_root)
        notes: list[str] = []
        images = source_images.archive_images([where], id_rule, notes)
        return _source(extension.removeprefix("."), where, _parent(where), id_rule, images, notes)
    return _open_file(where, extension, options)


def open_sources(
    locations: Sequence[str],
    *,
    image_root: str | None = None,
    id_rule: str = "no-extension",
    skip_bad_archives: bool = False,
    caption_column: str = "",
    part: tuple[int, int] = (1, 1),
) -> Source:
    """Lists the images of several photos, folders and patterns together, as a shell makes them of photos/*.jpg.

    An image's id is its path below the nearest folder that holds all that is named: for photos/*.jpg it is what the
    folder photos gives. One location is opened as by `open_source`. Several may also be archives or .parquet lists.
    Raises ValueError or OSError as `open_source`; ValueError for a URL or an annotation file among several.

    Args:
        part: number of the part that is wanted, from 1, and of all parts. Where there are as many archives as parts,
            each N-th is taken, and no other opened; else all images come, for `one_part`.
    """
    options = _Options(image_root, id_rule, skip_bad_archives, caption_column, part)
    return _open_one(locations[0], options) if len(locations) == 1 else _open_several(locations, options)


def one_part(source: Source, part: tuple[int, int]) -> Source:
    """Each N-th image in the order of ids, unless the source is a part already."""
    number, parts = part
    if source.part or parts == 1:
        return source
    what = f"{number}/{parts} of {plural(len(source.images), 'image')}"
    if len(source.images) < parts:
        raise ValueError(f"--part {what} in {source.location!r}: there are fewer images than parts; make fewer parts")
    taken = itertools.islice(source.images, number - 1, None, parts)
    return replace(source.with_images(taken), part=what)


def _open_several(locations: Sequence[str], options: _Options) -> Source:
    for location in locations:
        if is_url(location) or is_web_url(location):
            raise ValueError(f"{location!r}: of URLs, name one folder, or one pattern in quotes")
        if not os.path.exists(location) and not photo_folders.is_pattern(location):
            raise ValueError(
                f"no such folder, file or pattern: {location!r} (of several arguments, the last one is the store)"
            )
    source = _open_together(locations, options)
    if options.caption_column and source.kind != "image-list":
        raise ValueError(
            f"--caption-column {options.caption_column} is for lists with columns; leave it out for these sources"
        )
    return source


def with_prefix(source: Source, prefix: str) -> Source:
    renamed = source.with_images(replace(image, image_id=prefix + image.image_id) for image in source.images)
    return replace(renamed, id_prefix=prefix)


def _open_together(locations: Sequence[str], options: _Options) -> Source:
    listing = photo_folders.list_together(locations)
    return _open_listing(listing, ("folder", listing.root), locations, options)


def _open_listing(
    listing: photo_folders.Listing, found: tuple[str, str], locations: Sequence[str], options: _Options
) -> Source:
    """A folder, a pattern or several of images, archives or lists."""
    (kind, where), id_rule = found, options.id_rule
    contents, notes = source_images.look_into(listing), list[str]()
    if contents.lists and not contents.archives:
        root = _image_root(options.image_root, listing.root)
        images = _chained(contents.lists, root, id_rule, notes, options.caption_column)
        return _source("image-list", where, root, id_rule, images, notes)
    _refuse_root(locations[0], options.image_root)
    if archives := contents.archives:
        number, parts = options.part
        notes += listing.link_notes(ARCHIVE_EXTENSIONS)
        own = archives[number - 1 :: parts] if len(archives) >= parts else archives
        images = source_images.archive_images(own, id_rule, notes, skip_bad=options.skip_bad_archives)
        source = _source("archives", where, listing.root, id_rule, images, notes)
        what = f"{number}/{parts} of {plural(len(archives), 'archive')}" if own != archives else ""
        return replace(source, num_archives=len(archives), part=what)
    if any(map(source_images.is_img2dataset_folder, locations)):
        kind, images = "img2dataset", source_images.sample_images(listing, id_rule, notes)
    else:
        if contents.compressed is not None:
            source_images.refuse_compressed(contents.compressed)
        images = source_images.folder_images(listing, id_rule, notes)
    return _source(kind, where, listing.root, id_rule, images, notes)


def _open_file(where: str, extension: str, options: _Options) -> Source:
    """An annotation file or list."""
    image_root, id_rule, _, caption_column, _ = options
    root = _image_root(image_root, _parent(where))
    notes: list[str] = []
    with local_copy(where) as path:
        try:
            kind = _kind_of(path, extension)
            if kind == "vcr" and image_root is None and not is_url(root):
                inner = os.path.join(root, vcr.IMAGES_FOLDER)
                root = inner if os.path.isdir(inner) else root
            images = _images_of(kind, path, root, id_rule, notes, caption_column)
            source = _source(kind, where, root, id_rule, images, notes)
            folders = [] if image_root is not None else _other_roots(source)
            if len(folders) == 1:
                notes = []
                images = _images_of(kind, path, folders[0], id_rule, notes, caption_column)
                source = _source(kind, where, folders[0], id_rule, images, notes)
            return source
        except ValueError as error:
            raise ValueError(str(error).replace(path, where)) from None


_KINDS = {
    ".tsv": "caption-tsv", ".csv": "image-list", ".parquet": "image-list", ".txt": "image-list", ".token": "flickr30k",
}  # fmt: skip
_KNOWN_SOURCES = (
    "coco", "karpathy", "sbu", "caption-list", "flickr30k", "visual-genome", "visual-genome-split", "vcr",
    *BY_EXTENSION,
)  # fmt: skip
_FILE_EXTENSIONS = frozenset((".json", ".jsonl", *_KINDS, *ARCHIVE_EXTENSIONS))


def _kind_of(path: str, extension: str) -> str:
    """A kind of `Source`: what the file is by its content, else what its extension stands for."""
    refuse_others(path, _KNOWN_SOURCES)
    if extension == ".jsonl":
        return source_images.json_lines_kind(path)
    if extension == ".json":
        return json_kind(path)
    kind = kind_of(path)
    return _KINDS.get(extension, "") if kind in BY_EXTENSION else kind


def _images_of(
    kind: str, path: str, root: str, id_rule: str, notes: list[str], caption_column: str
) -> Iterator[ImageRef]:
    if kind not in source_images.READERS:
        raise ValueError(
            f"{path!r}: expected a folder, a glob pattern, a .tar or .zip, a .json of COCO, Karpathy, SBU or Visual "
            f"Genome or of images and captions, a caption .tsv, a list of Flickr8k or Flickr30k, Visual Genome's .txt, "
            f"a VCR .jsonl, or a list as .parquet, .csv, .jsonl or .txt"
        )
    return source_images.READERS[kind](path, root, id_rule, notes, caption_column)


def _chained(
    lists: Iterable[str], root: str, id_rule: str, notes: list[str], caption_column: str
) -> Iterator[ImageRef]:
    for each in lists:
        with local_copy(each) as path:
            yield from source_images.list_images(path, root, id_rule, notes, caption_column)


def _image_root(given: str | None, otherwise: str) -> str:
    root = otherwise if given is None else given if is_url(given) else os.path.abspath(given)
    if is_web_url(root):
        raise ValueError(f"{root!r}: images of the web are fetched by `roibeam download`; give its folder")
    if not is_url(root) and not os.path.isdir(root):
        raise ValueError(f"no such image folder: {root!r} (--photos)")
    return root


def _refuse_root(location: str, image_root: str | None) -> None:
    if image_root is not None:
        what = "an archive" if os.path.splitext(location)[1].lower() in ARCHIVE_EXTENSIONS else "a folder or pattern"
        raise ValueError(f"--photos goes with an annotation file; {location!r} is {what}")


def _parent(where: str) -> str:
    return parent_url(where) if is_url(where) else os.path.dirname(where)


def check_images_are_there(source: Source) -> None:
    """Looks for 50 images of the source; raises ValueError when none exists: the image folder is a wrong one."""
    probes = _probes(source)
    if any(map(location_exists, probes)):
        return
    several = _other_roots(source)
    if len(several) > 1:
        raise ValueError(
            f"{source.location!r}: its images are in {' and in '.join(map(repr, several))}; choose one with --photos"
        )
    name = os.path.relpath(probes[0], source.image_root)
    if source.kind == "image-list" and os.path.splitext(name)[1].lower() not in IMAGE_EXTENSIONS:
        raise ValueError(
            f"{source.location!r}: its first line, {name!r}, is no path of a photo; SOURCE is photos or a list of "
            "them, and a file of captions goes to --captions"
        )
    looked = [] if is_url(source.location) else folders_to_try(source.location, source.kind)
    also = f"; looked also in {', '.join(map(repr, looked))}" if looked else ""
    raise ValueError(
        f"{source.location!r}: none of {len(probes)} images looked for is there (the first: {probes[0]!r}){also}; give "
        f"the folder that their paths start from with --photos"
    )


def _probes(source: Source) -> list[str]:
    images = source.images[:: max(1, len(source.images) // PROBED_FILES)]
    return [image.location for image in images]


def _other_roots(source: Source) -> list[str]:
    """Other folders with the images of an annotation file, if none is where the file has it."""
    if is_url(source.location) or is_url(source.image_root):
        return []
    probes = _probes(source)
    if any(map(location_exists, probes)):
        return []
    own, folders = source.image_root, folders_to_try(source.location, source.kind)
    return folders_that_hold(probes, own, folders, source.kind)


def _source(kind: str, location: str, root: str, id_rule: str, images: Iterable[ImageRef], notes: list[str]) -> Source:
    """A source; `notes` may grow while images are taken."""
    for path in (location, root):
        check_utf8(path)
    table = ImageTable(images)
    if not table:
        looked = (
            "no file fits this pattern" if photo_folders.is_pattern(location) else "is it the right folder or file?"
        )
        if os.path.isdir(location) and not os.listdir(location):
            looked = "the folder is empty; expected photos (.jpg, .png, ...), archives or lists in it"
        other = describe_file(location, but=set(_KNOWN_SOURCES) - {"url-list"})
        raise ValueError(f"no images in {location!r}; {'; '.join(filter(None, [*notes, other])) or looked}")
    return Source(kind, location, root, id_rule, table, notes)
