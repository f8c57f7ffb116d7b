"""From what the user names on the command line to the images to extract."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from extraction.images import ImageRef
from features.counted import counted
from pipelines import annotated_images
from pipelines.annotated_images import json_kind
from pipelines.datasets import folder, vcr
from pipelines.image_table import ImageTable, check_utf8

PROBED_FILES = 50  # of an annotation file, to notice a wrong image folder before a run of failures


@dataclass(frozen=True)
class Source:
    """Images of one run.

    Attributes:
        kind: "folder", "pattern", "coco", "karpathy", "sbu", "caption-tsv" or "vcr".
        location: absolute path of the folder or annotation file, or the pattern.
        image_root: folder that the ids are relative to.
        id_rule: see `pipelines.datasets.image_ids`.
        images: unique ids, sorted by their UTF-8 bytes, with the captions and labels that the source has for them; on
            disk, to be gone through one by one.
        notes: one line for each thing left out or merged, for the user.
    """

    kind: str
    location: str
    image_root: str
    id_rule: str
    images: ImageTable
    notes: list[str]

    def with_images(self, images: Iterable[ImageRef]) -> Source:
        """The source with these of its images, or with more told of them; they are taken at once, one by one:

        source.with_images(replace(image, captions=captions_of(image)) for image in source.images)
        """
        return replace(self, images=ImageTable(images))


def open_source(location: str, *, image_root: str | None = None, id_rule: str = "no-extension") -> Source:
    """Lists the images of a folder, glob pattern, annotation or caption file (local images).

    A json file is COCO's, a Karpathy split or SBU's: its content tells. Images of all of its splits are listed.

    Args:
        location: what the user named.
        image_root: folder of the images of a file; None means the folder that the file lies in (of VCR annotations:
            vcr1images in it, if there is one). Of a Karpathy split, it holds the folders that the file names
            ("train2014"), or, where none of them is there, the images themselves.
        id_rule: "no-extension" or "with-extension".
    Raises:
        ValueError: one line: nothing there, no image in it, two files with one id, an id or path no store can hold.
    """
    notes: list[str] = []
    if os.path.isdir(location) or folder.is_pattern(location):
        if image_root is not None:
            raise ValueError(f"--image-root goes with an annotation file; {location!r} is a folder or pattern")
        is_pattern = not os.path.isdir(location)
        listing = (folder.list_pattern if is_pattern else folder.list_folder)(location, id_rule=id_rule)
        kind = "pattern" if is_pattern else "folder"
        where = os.path.abspath(location) if is_pattern else listing.root
        return _source(kind, where, listing.root, id_rule, listing.images, _listing_notes(listing))
    if not os.path.exists(location):
        raise ValueError(f"no such folder, file or pattern: {location!r}")
    extension = os.path.splitext(location)[1].lower()
    root = os.path.abspath(image_root if image_root is not None else os.path.dirname(location) or ".")
    if extension == ".jsonl" and image_root is None and os.path.isdir(os.path.join(root, vcr.IMAGES_FOLDER)):
        root = os.path.join(root, vcr.IMAGES_FOLDER)
    if not os.path.isdir(root):
        raise ValueError(f"no such image folder: {root!r} (--image-root)")
    location = os.path.abspath(location)
    if extension == ".json":
        kind = json_kind(location)
        if kind == "sbu":
            images = annotated_images.sbu_images(location, root, id_rule, notes)
        elif kind == "karpathy":
            images = annotated_images.karpathy_images(location, root, id_rule, notes)
        else:
            images = annotated_images.coco_images(location, root, id_rule)
        return _source(kind, location, root, id_rule, images, notes)
    if extension == ".tsv":
        images = annotated_images.tsv_images(location, root, id_rule, notes)
        return _source("caption-tsv", location, root, id_rule, images, notes)
    if extension == ".jsonl":
        images = annotated_images.vcr_images(location, root, id_rule)
        return _source("vcr", location, root, id_rule, images, notes)
    raise ValueError(
        f"{location!r}: expected a folder, a glob pattern, a .json of COCO, Karpathy or SBU, a caption .tsv or a VCR "
        f".jsonl"
    )


def check_images_are_there(source: Source) -> None:
    """Looks for 50 images of the source; raises ValueError when none exists: the image folder is a wrong one."""
    probes = source.images[:: max(1, len(source.images) // PROBED_FILES)]
    if not any(os.path.exists(image.location) for image in probes):
        raise ValueError(
            f"{source.location!r}: none of {len(probes)} images looked for is there (the first: "
            f"{probes[0].location!r}); give the folder that their paths start from with --image-root"
        )


def _listing_notes(listing: folder.FolderListing) -> list[str]:
    num_files, num_links = listing.num_other_files, listing.num_folder_links
    notes = []
    if num_files:
        notes.append(f"{counted(num_files, 'file')} without an image extension left out")
    if num_links:
        notes.append(f"{counted(num_links, 'link to a folder', 'links to folders')} not followed")
    return notes


def _source(kind: str, location: str, root: str, id_rule: str, images: Iterable[ImageRef], notes: list[str]) -> Source:
    """
    Args:
        notes: may grow while images are taken.
    """
    for path in (location, root):
        check_utf8(path)
    table = ImageTable(images)
    if not table:
        raise ValueError(f"no images in {location!r}" + "".join(f"; {note}" for note in notes))
    return Source(kind, location, root, id_rule, table, notes)
