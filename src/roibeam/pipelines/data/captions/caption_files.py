"""Caption files as rows of (which image, caption): COCO, Karpathy and SBU .json, lists of one's own as .json or tables,
.tsv with local paths or URLs, and the lists of Flickr8k and Flickr30k."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from roibeam.pipelines.data.datasets import (
    caption_list,
    coco,
    conceptual_captions,
    flickr30k,
    image_list,
    karpathy,
    sbu,
)
from roibeam.pipelines.data.datasets.known_files import BY_EXTENSION, json_kind, kind_of, refuse_others
from roibeam.pipelines.data.datasets.rows import EMPTY_CAPTION, BadRow, BadRows, CaptionRow, UrlRow

_KINDS = frozenset(("coco", "karpathy", "sbu", "caption-list", "flickr30k", *BY_EXTENSION))
_BY_EXTENSION = {
    ".tsv": "tsv", ".csv": "image-list", ".jsonl": "image-list", ".parquet": "image-list", ".token": "flickr30k",
}  # fmt: skip
# `ImageFinder` takes a name as it stands first, and cuts its extension where no image is called so.
_AS_WRITTEN = "with-extension"


class Caption(NamedTuple):
    """One caption.

    Attributes:
        text: the caption.
        name: what the file calls its image; None where that is a URL, which is no image's name.
        row: of the list that images are downloaded from, from 0: what `roibeam download` and img2dataset name them by.
            None in files of other kinds.
    """

    text: str
    name: str | None
    row: int | None = None


class CaptionFile:
    """Reads one caption file. Of a Karpathy split only train and restval: the rest is what results are reported on.

    A .tsv is read row by row; the lists of a .json are in memory while it is read.

    Args:
        location: the file.
        split: of a Karpathy split, one of its splits in place of train and restval: for evaluation.
        caption_column: of a .tsv, see `conceptual_captions.columns_of`; "" to find it.
    Raises:
        ValueError: if the file is missing or of another kind, or has no such split.
    """

    def __init__(self, location: str, *, split: str | None = None, caption_column: str = "") -> None:
        if not os.path.isfile(location):
            raise ValueError(f"no such caption file: {location!r}")
        self.location = os.path.abspath(location)
        refuse_others(location, _KINDS)
        extension = os.path.splitext(location)[1].lower()
        kind = json_kind(location) if extension == ".json" else kind_of(location)
        self.kind = _BY_EXTENSION.get(extension, "") if kind in BY_EXTENSION else kind
        if not self.kind:
            raise ValueError(
                f"{location!r}: expected a captions .json of COCO, Karpathy or SBU, or {caption_list.EXPECTED}; a "
                f"caption .tsv, a line each: the caption, a tab, the photo; a table of photos and captions as .csv, "
                f".jsonl or .parquet; or a list of Flickr8k or Flickr30k"
            )
        if caption_column and self.kind != "tsv":
            raise ValueError(f"{location!r}: --caption-column {caption_column} is for a .tsv; leave it out")
        self._columns: conceptual_captions.TsvColumns | None = None
        if self.kind == "tsv":
            root = os.path.dirname(self.location)
            self._columns = conceptual_captions.columns_of(self.location, caption_column, root=root)
        if split is not None and self.kind != "karpathy":
            raise ValueError(f"{location!r} has no splits, a Karpathy file has; leave --split {split} out")
        if split is not None and split not in karpathy.SPLITS:
            raise ValueError(f"--split {split!r}: choose one of {', '.join(karpathy.SPLITS)}")
        self.split = split
        self._splits = karpathy.TRAINING_SPLITS if split is None else (split,)
        self.notes: list[str] = []
        self.other_splits: list[str] = []
        self._bad: list[BadRows] = []

    def __iter__(self) -> Iterator[Caption]:
        return self.captions()

    def captions(self) -> Iterator[Caption]:
        """Captions in file order. Afterwards `notes` tells what was left out, and `other_splits` has the images of a
        Karpathy file that are in other splits.

        Raises:
            ValueError: at the entry that cannot be read, or at the end if there was no caption.
        """
        self.notes.clear()
        self.other_splits.clear()
        self._bad.clear()
        num_captions = 0
        for caption in self._captions():
            num_captions += 1
            yield caption
        self.notes += [note for bad in self._bad for note in bad.notes()]
        bad = [each for each in self._bad if each]
        if not num_captions and bad and all(each.are_empty_captions for each in bad):
            raise ValueError(f"{self.location}: all of its captions are empty; give captions with words in them")
        if not num_captions:
            raise ValueError(
                f"{self.location!r}: no captions in it (an instances file has boxes only; give the captions file)"
                + "".join(f"; {note}" for note in self.notes)
            )

    def _captions(self) -> Iterator[Caption]:
        if self.kind == "coco":
            found = coco.read_coco(self.location, id_rule=_AS_WRITTEN)
            for image_id, text in found.captions:
                yield Caption(text, image_id)
            self._bad += found.bad
        elif self.kind == "karpathy":
            yield from self._captions_of_splits()
        else:
            yield from self._rows()

    def _rows(self) -> Iterator[Caption]:
        is_sbu = self.kind == "sbu"
        rows: Iterator[CaptionRow | UrlRow | image_list.ListRow | BadRow]
        if is_sbu:
            rows = sbu.read_sbu(self.location, id_rule=_AS_WRITTEN)
        elif self.kind == "caption-list":
            rows = caption_list.read_caption_list(self.location, id_rule=_AS_WRITTEN)
        elif self.kind == "flickr30k":
            rows = flickr30k.read_caption_lines(self.location, id_rule=_AS_WRITTEN)
        elif self.kind == "image-list":
            rows = image_list.read_image_list(self.location, os.path.dirname(self.location), id_rule=_AS_WRITTEN)
        else:
            rows = conceptual_captions.read_caption_rows(self.location, id_rule=_AS_WRITTEN, columns=self._columns)
        bad = BadRows("entry" if self.kind in ("sbu", "caption-list") else "line")
        usable: Iterator[CaptionRow | UrlRow | image_list.ListRow] = bad.passed(rows)
        for row in usable:
            if isinstance(row, CaptionRow):
                yield Caption(row.caption, row.image_id, row.line - 1 if is_sbu else None)
            elif isinstance(row, UrlRow):
                header = self._columns.header if self._columns else 0  # no row, to what downloads the list
                yield Caption(row.caption, None, row.line - 1 - header)
            else:
                yield from (Caption(text, row.image_id) for text in row.captions)
                for _ in range(row.empty_captions):
                    bad.add(BadRow(row.line, EMPTY_CAPTION))
        self._bad.append(bad)

    def _captions_of_splits(self) -> Iterator[Caption]:
        num_left_out, bad = 0, karpathy.bad_entries(self.location)
        for image in karpathy.read_karpathy(self.location, id_rule=_AS_WRITTEN, bad=bad):
            if image.split in self._splits:
                for text in image.captions(bad):
                    yield Caption(text, image.image_id)
            else:
                num_left_out += len(image.sentences)
                self.other_splits.append(image.image_id)
        if self._splits == karpathy.TRAINING_SPLITS:
            self.notes += karpathy.evaluation_note(num_left_out)
        self._bad.append(bad)


class CaptionFiles:
    """Several caption files of the same images, one after the other: as of one `CaptionFile`."""

    def __init__(self, files: Sequence[CaptionFile]) -> None:
        self._files = files
        self.location = " and ".join(file.location for file in files)
        self.notes: list[str] = []
        self.other_splits: list[str] = []

    def captions(self) -> Iterator[Caption]:
        """See `CaptionFile.captions`."""
        self.notes.clear()
        self.other_splits.clear()
        for file in self._files:
            yield from file.captions()
            self.notes += [f"{os.path.basename(file.location)}: {note}" for note in file.notes]
            self.other_splits += file.other_splits


def is_tsv(captions: str) -> bool:
    """Whether a file of captions has columns."""
    return captions.lower().endswith(".tsv")


def given_file(captions: str, *, caption_column: str) -> CaptionFile:
    """A caption file, one of several perhaps: `caption_column` is for those that have columns."""
    return CaptionFile(captions, caption_column=caption_column if is_tsv(captions) else "")


def read_captions(location: str) -> tuple[list[Caption], list[str]]:
    """All captions of a file that memory can hold, and notes on what was left out; errors as `CaptionFile`."""
    file = CaptionFile(location)
    return list(file.captions()), file.notes
