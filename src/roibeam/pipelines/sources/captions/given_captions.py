"""Captions that the user gives for the images of a source that has none of its own: a folder, a pattern, an archive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.pipelines.foundation.files.scratch_database import ScratchDatabase
from roibeam.pipelines.sources.captions.caption_files import CaptionFile
from roibeam.pipelines.sources.captions.join import CaptionJoin, JoinReport, check_match
from roibeam.pipelines.sources.source_kinds import Source


@dataclass(frozen=True)
class GivenCaptions:
    """Attributes:
    location: absolute path of the caption file.
    report: how its captions met the images.
    """

    location: str
    report: JoinReport


def give_captions(source: Source, location: str, *, min_match: float) -> tuple[Source, GivenCaptions]:
    """Reads the captions for a source. All of its images stay; those that the file does not name have no caption.

    Neither captions nor images are in memory all at once.

    Returns:
        The source with captions, and notes on what was left out; the report.
    Raises:
        ValueError: one line: no caption file, a damaged one, a source with captions of its own, too few images found
            (see `check_match`).
    """
    file = CaptionFile(location, id_rule=source.id_rule)
    join = CaptionJoin(_ids_without_captions(source))
    table = ScratchDatabase("CREATE TABLE captions (place INTEGER, caption TEXT)")
    table.add("INSERT INTO captions VALUES (?, ?)", join.rows(file.captions()))
    table.rows("CREATE INDEX by_place ON captions (place)")
    report = join.report()
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
