"""Held-out captions for the evaluations of a run: chosen, joined, and kept out of what is trained on."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from features.counted import counted
from pipelines.caption_table import CaptionTable
from pipelines.pretraining.captioned_store import CaptionedStore, JoinedSource, check_stores_agree, join_sources

logger = logging.getLogger(__name__)


def join_validation(
    source: CaptionedStore, trained: Sequence[JoinedSource], *, most_pieces: int | None, captions: int
) -> tuple[JoinedSource, list[JoinedSource]]:
    """The captions that evaluations ask about, and what is left to train on: nothing of their images.

    Args:
        source: of the feature space of those that are trained on; the same store may be among them.
        trained: the sources of the run.
        most_pieces: as of `UsableCaptions`.
        captions: about so many are asked about, of images drawn by a fixed seed; 0 = all. All others of the file are
            kept out of training as well.
    Raises:
        ValueError: when stores do not fit, or nothing is left to train on.
    """
    check_stores_agree([trained[0].store, source.store])
    (found,) = join_sources([source], most_pieces=most_pieces, guard=None)
    asked = found.rows.captioned_ids()
    left = [_without(each, asked) for each in trained]
    if captions and captions < len(found.rows):
        found = dataclasses.replace(found, rows=found.rows.share_of_images(captions / len(found.rows), 0))
    logger.info("evaluations ask about %s", told(found.rows))
    return found, left


def _without(source: JoinedSource, image_ids: Sequence[str]) -> JoinedSource:
    rows = source.rows.without(image_ids)
    dropped = len(source.rows.captioned_ids()) - len(rows.captioned_ids())
    if not dropped:
        return source
    if not len(rows):
        raise ValueError(
            f"{source.store.path}: all of {dropped:,} captioned images are validated on; nothing is left to train on: "
            f"give --captions and --validation of different images"
        )
    note = f"{counted(dropped, 'image')} not trained on: the evaluations ask about images of the same file"
    return dataclasses.replace(source, rows=rows, notes=(*source.notes, note))


def told(rows: CaptionTable) -> str:
    return f"{counted(len(rows), 'held-out caption')} of {counted(len(rows.captioned_ids()), 'image')}"
