"""Join of captions to images, for extraction and pre-training, and its report.

`give_captions` joins them to a source that has none of its own: a folder, a pattern, an archive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import xxhash

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.messages import plural, printable
from roibeam.pipelines.common.scratch_database import ScratchDatabase
from roibeam.pipelines.data.captions.caption_files import Caption, CaptionFile
from roibeam.pipelines.data.image_table import RULES, Ambiguous, Found, ImageFinder
from roibeam.pipelines.data.source_kinds import Source

_EXAMPLES = 3
Text = TypeVar("Text")


@dataclass(frozen=True)
class JoinReport:
    """Counts of a join of captions to images.

    Attributes:
        captions: usable ones of the file; the sum of `joined`, `ambiguous` and `without_image`.
        captioned_images: different images that they are of; those that were not found, by what the file calls them.
        images_without_caption: of `images`.
        by_rule: captions that joined by each of `image_table.RULES`.
        ambiguous: captions whose image may be one of several; they are left out.
        examples: the first few of "without_image", "ambiguous" and "without_caption".
        images_of_other_splits: of those without a caption, how many the file has in another split than the chosen ones.
        columns_seem_swapped: whether the text of one of the first captions without image names an image.
    """

    captions: int
    captioned_images: int
    found_images: int
    images: int
    images_without_caption: int
    by_rule: dict[str, int]
    ambiguous: int
    without_image: int
    examples: dict[str, tuple[str, ...]]
    images_of_other_splits: int = 0
    columns_seem_swapped: bool = False

    @property
    def joined(self) -> int:
        return sum(self.by_rule.values())

    @property
    def found_share(self) -> float:
        """Share of the captioned images that were found, 0..1."""
        return self.found_images / max(self.captioned_images, 1)

    def to_json(self) -> dict[str, Any]:
        return {
            "captions": self.captions, "joined": self.joined, "by_rule": self.by_rule,
            "ambiguous": self.ambiguous, "without_image": self.without_image,
            "captioned_images": self.captioned_images, "found_images": self.found_images, "images": self.images,
            "images_without_caption": self.images_without_caption,
            "examples": {name: list(examples) for name, examples in self.examples.items() if name != "other_splits"},
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Lines for the log: one in all, and one for each kind of thing that was left out."""
        rules = ", ".join(f"{count:,} by {rule}" for rule, count in self.by_rule.items() if count)
        found = f"{self.found_images:,} of {plural(self.captioned_images, 'captioned image')} found"
        lines = [f"{self.joined:,} of {plural(self.captions, 'caption')} joined ({rules or 'none'}); {found}"]
        for name, count, unit, what in (
            ("without_image", self.without_image, "caption", "without image"),
            ("ambiguous", self.ambiguous, "caption", "left out: several images may be meant"),
            ("other_splits", self.images_of_other_splits, "image", "in other splits of the caption file"),
            ("without_caption", self.images_without_caption - self.images_of_other_splits, "image", "without caption"),
        ):
            if count:
                examples = ", ".join(printable(example, 80) for example in self.examples[name])
                lines.append(f"{plural(count, unit)} {what}: {examples}{', ...' if count > _EXAMPLES else ''}")
        return lines


class CaptionJoin:
    """Joins captions to images as they are read. Memory: 8 bytes for each name in the file, a byte for each image."""

    def __init__(self, image_ids: Iterable[str]) -> None:
        self.finder = ImageFinder(image_ids)
        self._by_rule = Counter[str]()
        self._names: dict[bool, list[np.ndarray]] = {True: [], False: []}  # of found images and others, as hashes
        self._has_caption = np.zeros(self.finder.num_images, bool)
        self._num_captions = self._ambiguous = 0
        self._first_strangers: dict[str, None] = {}
        self._first_ambiguous: dict[str, None] = {}
        self._columns_seem_swapped = False

    def rows(self, captions: Iterable[Caption]) -> Iterator[tuple[int, str]]:
        """(place of the image, caption) of every caption that has its image, in the order given; to be read once."""
        for places, caption in self.joined((caption, (caption,)) for caption in captions):
            yield places[0], caption.text

    def joined(self, texts: Iterable[tuple[Text, Sequence[Caption]]]) -> Iterator[tuple[tuple[int, ...], Text]]:
        """The places of the images of every text that has them all, in the order given; to be read once.

        Args:
            texts: each with what its images are called. It counts as one caption.
        """
        names: dict[bool, list[int]] = {True: [], False: []}
        for text, images in texts:
            self._num_captions += 1
            found, missing = [], []
            for image in images:
                each = self._look_up(image)
                is_found = isinstance(each, Found)
                called = each.image_id if isinstance(each, Found) else image.called  # one image may have many names
                names[is_found].append(xxhash.xxh3_64_intdigest(called.encode("utf-8", "surrogatepass")))
                if len(names[is_found]) == 1_000_000:
                    self._keep(names)
                if isinstance(each, Found):
                    found.append(each)
                else:
                    missing.append((image, each))
            if not missing:
                self._by_rule[found[0].rule] += 1
                places = tuple(each.place for each in found)
                self._has_caption[list(places)] = True
                yield places, text
                continue
            image, several = missing[0]
            if several is None:
                if len(self._first_strangers) < _EXAMPLES and isinstance(text, Caption):
                    self._columns_seem_swapped |= isinstance(self.finder.look_up(text.text), Found)
                _note_first(self._first_strangers, image.called)
            else:
                self._ambiguous += 1
                _note_first(self._first_ambiguous, f"{image.called} ({' or '.join(several.image_ids)})")
        self._keep(names)

    def _look_up(self, caption: Caption) -> Found | Ambiguous | None:
        found = self.finder.look_up(caption.name) if caption.name is not None else None
        if found is None and caption.row is not None:
            return self.finder.look_up_row(caption.row)
        return found

    def _keep(self, names: dict[bool, list[int]]) -> None:
        for is_found, hashes in names.items():
            self._names[is_found].append(np.unique(np.array(hashes, np.uint64)))
            hashes.clear()

    def report(self, other_splits: Iterable[str] = ()) -> JoinReport:
        """Report of the rows read so far.

        Args:
            other_splits: names of images that the file has in other splits than the chosen ones.
        """
        found, others = (
            len(np.unique(np.concatenate([np.empty(0, np.uint64), *self._names[is_found]])))
            for is_found in (True, False)
        )
        elsewhere = np.zeros(self.finder.num_images, bool)
        for name in other_splits:
            if isinstance(image := self.finder.look_up(name), Found):
                elsewhere[image.place] = not self._has_caption[image.place]
        places = {"other_splits": elsewhere, "without_caption": ~self._has_caption & ~elsewhere}
        first_places = {name: np.flatnonzero(of_images)[:_EXAMPLES].tolist() for name, of_images in places.items()}
        examples = {
            "without_image": tuple(self._first_strangers),
            "ambiguous": tuple(self._first_ambiguous),
            **{name: tuple(map(self.finder.id_at, first)) for name, first in first_places.items()},
        }
        by_rule = {rule: self._by_rule[rule] for rule in RULES}
        without_image = self._num_captions - self._by_rule.total() - self._ambiguous
        return JoinReport(
            self._num_captions, found + others, found, self.finder.num_images,
            int(np.count_nonzero(~self._has_caption)), by_rule, self._ambiguous, without_image, examples,
            int(np.count_nonzero(elsewhere)), self._columns_seem_swapped,
        )  # fmt: skip


def check_match(report: JoinReport, *, min_match: float, captions: str, images: str) -> None:
    """Stops a join that went wrong.

    Args:
        min_match: share of the captioned images (0..1) that must have been found.
    Raises:
        ValueError: when fewer were found, or none, saying which share of which side was, with a name of each side
            that was not; or that the columns of a hand-made file seem swapped.
    """
    if report.found_images and report.found_share >= min_match:
        return
    if not report.captions:
        raise ValueError(f"{captions}: all of its captions are empty; give captions with words in them")
    stranger = [*report.examples["without_image"], *report.examples["ambiguous"]][:1]
    image = report.examples["without_caption"][:1]
    sides = ", ".join([f"a caption names {name!r}" for name in stranger] + [f"an image is {name!r}" for name in image])
    if report.columns_seem_swapped:
        raise ValueError(
            f"{captions}: the columns seem swapped: what should be a caption names an image, and {stranger[0]!r} names "
            f"none; expected caption TAB path on each line; --caption-column 2 reads them the other way round"
        )
    elsewhere = plural(report.images_of_other_splits, "image")
    others = f"; {elsewhere} of them in other splits of the file (roibeam evaluate --split names one)"
    others *= bool(report.images_of_other_splits)
    if not report.found_images:
        raise ValueError(
            f"{captions}: none of {plural(report.captioned_images, 'captioned image')} is among the "
            f"{plural(report.images, 'image')} of {images}{': ' * bool(sides)}{sides}{others}; give the captions of "
            f"these images, or write their ids into the file"
        )
    found = f"{report.found_images:,} of {plural(report.captioned_images, 'captioned image')}"
    allowed = f"--min-match {_below(report.found_share)}"
    if image:
        met = report.images - report.images_without_caption
        why = f"{met:,} of these {report.images:,} images have a caption ({sides}): is it the right folder and file? "
        cure = f"If so, allow it with {allowed}"
    else:
        why = (
            "All of these images have a caption"
            + " or are in other splits" * bool(others)
            + ", so the file is of more photos than these. "
        )
        cure = f"That is a normal case: allow it with {allowed}"
    raise ValueError(
        f"{captions}: {found} ({100 * report.found_share:.2g} %) are among the {plural(report.images, 'image')} of "
        f"{images}, less than the {100 * min_match:g} % of --min-match. {why}{cure}"
    )


@dataclass(frozen=True)
class GivenCaptions:
    """Attributes:
    location: absolute path of the caption file.
    report: how its captions met the images.
    """

    location: str
    report: JoinReport


def give_captions(
    source: Source, location: str, *, min_match: float, caption_column: str = ""
) -> tuple[Source, GivenCaptions]:
    """Reads the captions for a source. All of its images stay; those that the file does not name have no caption.

    Neither captions nor images are in memory all at once.

    Returns:
        The source with captions, and notes on what was left out; the report.
    """
    file = CaptionFile(location, caption_column=caption_column)
    join = CaptionJoin(_ids_without_captions(source))
    table = ScratchDatabase("CREATE TABLE captions (place INTEGER, caption TEXT)")
    table.add("INSERT INTO captions VALUES (?, ?)", join.rows(file.captions()))
    table.rows("CREATE INDEX by_place ON captions (place)")
    report = join.report(file.other_splits)
    check_match(report, min_match=min_match, captions=file.location, images=source.location)

    def captioned() -> Iterator[ImageRef]:
        for place, image in enumerate(source.images):
            found = table.rows("SELECT caption FROM captions WHERE place = ? ORDER BY rowid", (place,))
            yield replace(image, captions=tuple(caption for (caption,) in found)) if found else image

    notes = [*source.notes, *file.notes, *report.lines()]
    return replace(source.with_images(captioned()), notes=notes), GivenCaptions(file.location, report)


def _ids_without_captions(source: Source) -> Iterator[str]:
    for image in source.images:
        if image.captions:
            raise ValueError(
                f"{source.location!r} brings captions of its own; leave out --captions, or name the folder of its "
                f"images instead"
            )
        yield image.image_id


def _below(share: float) -> str:
    """A share to give as --min-match that is met."""
    return f"{int(share * 1000) / 1000:g}"


def _note_first(names: dict[str, None], name: str) -> None:
    if len(names) < _EXAMPLES:
        names[name] = None
