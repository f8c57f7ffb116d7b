"""From what the user names on the command line to the images to extract and the captions to train on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from extraction.images import ImageRef
from features.record import check_image_id
from pipelines.datasets import coco, conceptual_captions, folder, vcr
from pipelines.datasets.image_ids import is_utf8

PROBED_FILES = 50  # of an annotation file, to notice a wrong image folder before a run of failures


@dataclass(frozen=True)
class Source:
    """Images of one run.

    Attributes:
        kind: "folder", "pattern", "coco", "caption-tsv" or "vcr".
        location: absolute path of the folder or annotation file, or the pattern.
        image_root: folder that the ids are relative to.
        id_rule: see `pipelines.datasets.image_ids`.
        images: unique ids, sorted by their UTF-8 bytes.
        notes: one line for each thing left out or merged, for the user.
    """

    kind: str
    location: str
    image_root: str
    id_rule: str
    images: list[ImageRef]
    notes: list[str]


def open_source(location: str, *, image_root: str | None = None, id_rule: str = "no-extension") -> Source:
    """Lists the images of a folder, glob pattern, COCO json, caption TSV (local paths) or VCR annotations.

    Args:
        location: what the user named.
        image_root: folder of the images of a file; None means the folder that the file lies in (of VCR annotations:
            vcr1images in it, if there is one).
        id_rule: "no-extension" or "with-extension".
    Raises:
        ValueError: one line: nothing there, no image in it, two files with one id, an id or path no store can hold.
    """
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
        entries = coco.read_coco(location, id_rule=id_rule).images
        refs = [ImageRef(entry.image_id, os.path.join(root, entry.file_name)) for entry in entries]
        return _source("coco", location, root, id_rule, list(dict.fromkeys(refs)), [])
    if extension == ".tsv":
        rows = list(conceptual_captions.read_caption_tsv(location, id_rule=id_rule))
        good = [row for row in rows if isinstance(row, conceptual_captions.CaptionRow)]
        refs = list(dict.fromkeys(ImageRef(row.image_id, os.path.join(root, row.path)) for row in good))
        return _source("caption-tsv", location, root, id_rule, refs, _bad_row_notes(rows))
    if extension == ".jsonl":
        rows_of_vcr = vcr.read_vcr_images(location, id_rule=id_rule)
        refs = [ImageRef(row.image_id, os.path.join(root, row.file_name)) for row in rows_of_vcr]
        return _source("vcr", location, root, id_rule, refs, [])
    raise ValueError(f"{location!r}: expected a folder, a glob pattern, a COCO .json, a caption .tsv or a VCR .jsonl")


def check_images_are_there(source: Source) -> None:
    """Looks for 50 images of the source; raises ValueError when none exists: the image folder is a wrong one."""
    probes = source.images[:: max(1, len(source.images) // PROBED_FILES)]
    if not any(os.path.exists(image.location) for image in probes):
        raise ValueError(
            f"{source.location!r}: none of {len(probes)} images looked for is there (the first: "
            f"{probes[0].location!r}); give the folder that their paths start from with --image-root"
        )


def read_captions(location: str, *, id_rule: str = "no-extension") -> tuple[list[tuple[str, str]], list[str]]:
    """Captions of a COCO json or caption TSV.

    Returns:
        (image_id, caption) in file order, and notes on rows left out.
    Raises:
        ValueError: if the file is missing, of another kind, or holds no caption.
    """
    if not os.path.isfile(location):
        raise ValueError(f"no such caption file: {location!r}")
    extension = os.path.splitext(location)[1].lower()
    notes: list[str] = []
    if extension == ".json":
        captions = coco.read_coco(location, id_rule=id_rule).captions
    elif extension == ".tsv":
        rows = list(conceptual_captions.read_caption_tsv(location, id_rule=id_rule))
        captions = [(row.image_id, row.caption) for row in rows if isinstance(row, conceptual_captions.CaptionRow)]
        notes = _bad_row_notes(rows)
    else:
        raise ValueError(f"{location!r}: expected a COCO captions .json or a caption .tsv")
    if not captions:
        raise ValueError(f"{location!r}: no captions in it (an instances file has boxes only; give the captions file)")
    return captions, notes


def _listing_notes(listing: folder.FolderListing) -> list[str]:
    num_files, num_links = listing.num_other_files, listing.num_folder_links
    notes = []
    if num_files:
        notes.append(f"{num_files} {'file' if num_files == 1 else 'files'} without an image extension left out")
    if num_links:
        notes.append(f"{num_links} {'link to a folder' if num_links == 1 else 'links to folders'} not followed")
    return notes


def _bad_row_notes(rows: Iterable[object]) -> list[str]:
    bad = [row for row in rows if isinstance(row, conceptual_captions.BadRow)]
    if not bad:
        return []
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(Counter(row.reason for row in bad).items()))
    lines = ", ".join(str(row.line) for row in bad[:10]) + (", ..." if len(bad) > 10 else "")
    rows_left_out, lines = ("row left out", f"line {lines}") if len(bad) == 1 else ("rows left out", f"lines {lines}")
    return [f"{len(bad)} {rows_left_out}: {reasons} ({lines})"]


def _source(kind: str, location: str, root: str, id_rule: str, images: list[ImageRef], notes: list[str]) -> Source:
    if not images:
        raise ValueError(f"no images in {location!r}" + "".join(f"; {note}" for note in notes))
    for path in (location, root):
        _check_utf8(path)
    seen: dict[str, str] = {}
    for image in images:
        _check_utf8(image.location)
        try:
            check_image_id(image.image_id)
        except ValueError as error:
            raise ValueError(f"{error} ({image.location[:200]!r}); rename the file or move it up") from None
        if image.image_id in seen:
            raise ValueError(
                f"two images have the id {image.image_id!r}: {seen[image.image_id]!r} and {image.location!r}; "
                f"rename one, or keep the extensions with --id-rule with-extension"
            )
        seen[image.image_id] = image.location
    images.sort(key=lambda image: image.image_id.encode("utf-8"))
    return Source(kind, location, root, id_rule, images, notes)


def _check_utf8(path: str) -> None:
    # Plan, manifest and dead letters are UTF-8 text: a path that is not could be read, but not written down.
    if not is_utf8(path):
        raise ValueError(f"the name {path!r} is not valid UTF-8; rename the file or the folder that it lies in")
