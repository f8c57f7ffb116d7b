"""From what the user names on the command line to the images to extract."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from extraction.images import ImageRef
from features.counted import counted
from features.record import check_image_id
from pipelines.datasets import coco, conceptual_captions, folder, karpathy, sbu, vcr
from pipelines.datasets.image_ids import is_utf8
from pipelines.datasets.json_members import read_json_members
from pipelines.datasets.rows import BadRow, CaptionRow

PROBED_FILES = 50  # of an annotation file, to notice a wrong image folder before a run of failures


@dataclass(frozen=True)
class Source:
    """Images of one run.

    Attributes:
        kind: "folder", "pattern", "coco", "karpathy", "sbu", "caption-tsv" or "vcr".
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

    def with_images(self, images: Iterable[ImageRef]) -> Source:
        """The same source with other images, in their order."""
        return replace(self, images=list(images))


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
            return _caption_source(kind, location, root, id_rule, list(sbu.read_sbu(location, id_rule=id_rule)))
        if kind == "karpathy":
            paths = _karpathy_paths(location, root, id_rule)
        else:
            paths = [(row.image_id, row.file_name) for row in coco.read_coco(location, id_rule=id_rule).images]
        refs = [ImageRef(image_id, os.path.join(root, below)) for image_id, below in paths]
        return _source(kind, location, root, id_rule, list(dict.fromkeys(refs)), [])
    if extension == ".tsv":
        rows = list(conceptual_captions.read_caption_tsv(location, id_rule=id_rule))
        return _caption_source("caption-tsv", location, root, id_rule, rows)
    if extension == ".jsonl":
        rows_of_vcr = vcr.read_vcr_images(location, id_rule=id_rule)
        refs = [ImageRef(row.image_id, os.path.join(root, row.file_name)) for row in rows_of_vcr]
        return _source("vcr", location, root, id_rule, refs, [])
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


def json_kind(path: str) -> str:
    """ "coco", "karpathy" or "sbu", by the first member that tells; what tells nothing is read as COCO's."""
    expected = coco.EXPECTED + ", a Karpathy split or an SBU file"
    for name, _, entry in read_json_members(path, expected=expected):
        if name in ("image_urls", "captions", "user_ids"):
            return "sbu"
        if name == "images" and isinstance(entry, dict):
            return "karpathy" if "sentences" in entry else "coco"
        if name == "annotations":
            break
    return "coco"


def _karpathy_paths(location: str, root: str, id_rule: str) -> list[tuple[str, str]]:
    """Ids, and paths with the folders that the file names, or without where none of them is there."""
    paths = [(image.image_id, image.file_name) for image in karpathy.read_karpathy(location, id_rule=id_rule)]
    if any(os.path.isdir(os.path.join(root, below)) for below in {os.path.dirname(below) for _, below in paths}):
        return paths
    return [(image_id, os.path.basename(below)) for image_id, below in paths]


def _listing_notes(listing: folder.FolderListing) -> list[str]:
    num_files, num_links = listing.num_other_files, listing.num_folder_links
    notes = []
    if num_files:
        notes.append(f"{counted(num_files, 'file')} without an image extension left out")
    if num_links:
        notes.append(f"{counted(num_links, 'link to a folder', 'links to folders')} not followed")
    return notes


def bad_row_notes(rows: Iterable[CaptionRow | BadRow], unit: str) -> list[str]:
    """
    Args:
        unit: what a row is to whoever looks for it, "line" or "entry".
    """
    bad = [row for row in rows if isinstance(row, BadRow)]
    if not bad:
        return []
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(Counter(row.reason for row in bad).items()))
    lines = ", ".join(str(row.line) for row in bad[:10]) + (", ..." if len(bad) > 10 else "")
    rows_left_out = "row left out" if len(bad) == 1 else "rows left out"
    units = unit if len(bad) == 1 else {"line": "lines", "entry": "entries"}[unit]
    return [f"{len(bad)} {rows_left_out}: {reasons} ({units} {lines})"]


def _caption_source(kind: str, location: str, root: str, id_rule: str, rows: list[CaptionRow | BadRow]) -> Source:
    good = [row for row in rows if isinstance(row, CaptionRow)]
    refs = dict.fromkeys(ImageRef(row.image_id, os.path.join(root, row.path)) for row in good)  # one with five captions
    notes = bad_row_notes(rows, "entry" if kind == "sbu" else "line")
    return _source(kind, location, root, id_rule, list(refs), notes)


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
