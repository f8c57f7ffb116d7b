"""Images beside what is said of them in files of the same name: WebDataset, and the folders that img2dataset writes.

    000000012.jpg    the image
    000000012.txt    its caption
    000000012.json   metadata, of which "caption" is taken where there is no .txt
    000000012.cls    its label
    000000012.seg.png    (also .mask.png, ...) its mask, which is left out

Id rule: the image's path in the archive or folder without its extension, which for one image in a sample is
WebDataset's key, and in an archive of a folder the id that the folder gives. Files of one sample must follow each
other, as WebDataset has it; where they do not, the note on what was left out says so.

A sample is what WebDataset takes for one: the files whose paths are equal up to the first dot of the name. What is said
in a file with the name of one image ("a.left.txt" of "a.left.jpg", "a.txt" of "a.jpg") is of that one; else of all
images of the sample. Names of one NFC form are one name.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.extraction.photos.photo_file import IMAGE_EXTENSIONS
from roibeam.features.counted import counted
from roibeam.pipelines.common.files.archives import Member
from roibeam.pipelines.common.files.image_ids import image_id_of, in_nfc
from roibeam.pipelines.data.datasets.rows import EMPTY_CAPTION

TEXT_EXTENSIONS = (".txt", ".json", ".cls")
_MAX_TEXT_BYTES = 2**20
_MASKS = (".seg", ".segm", ".segmentation", ".mask", ".masks", ".depth")  # before the image extension
_MAX_FILES = 64  # of a sample; names with dots of their own ("00.00.05.905.jpg") may look like one for a whole folder


@dataclass
class SampleNotes:
    """What was left out, counted while samples are read."""

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
            found.append(f"{counted(self.other_files, 'file')} without an image extension left out")
        if self.bad_texts:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.bad_texts.items()))
            found.append(
                f"{counted(self.bad_texts.total(), 'caption or label', 'captions or labels')} left out: {reasons}"
            )
        if self.lone_texts:
            found.append(
                f"{counted(self.lone_texts, 'caption or label', 'captions or labels')} left out: no image of that name "
                f"is beside"
            )
        if self.masks:
            found.append(f"{counted(self.masks, 'mask')} beside photos left out ({', '.join(_MASKS)} in the name)")
        return found


def read_samples(members: Iterable[Member], notes: SampleNotes, *, id_rule: str) -> Iterator[ImageRef]:
    """The images of an archive or folder in its order, with what is said of them; one sample is in memory."""
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
        """Of images that are called masks those stay that no photo is beside: they are what the user has."""
        masks = {stem for stem in stems if os.path.splitext(stem)[1].lower() in _MASKS}
        photos = stems - masks
        masks = {mask for mask in masks if (of := os.path.splitext(mask)[0]) in photos or (of == self.key and photos)}
        kept = [image for image in self._images if _stem(image.path) not in masks]
        self._notes.masks += len(self._images) - len(kept)
        self._images = kept


def _texts(data: bytes, extension: str) -> tuple[str, ...]:
    """The captions or the label in a file; none where it has none, "" for a caption that is empty.

    Raises:
        ValueError: with a short reason, so that files can be counted by it.
    """
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
