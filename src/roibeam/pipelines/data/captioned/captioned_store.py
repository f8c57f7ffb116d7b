"""A store with its captions, as a run takes one or several of them: joined, guarded, and checked to fit each other."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from roibeam.features.comparison.feature_spaces import meaning_difference
from roibeam.features.counted import counted
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captioned.task_corpus import TaskTable
from roibeam.pipelines.data.captioned.task_texts import TaskTexts
from roibeam.pipelines.data.captioned.usable_captions import UsableCaptions
from roibeam.pipelines.data.captions.caption_files import Caption
from roibeam.pipelines.data.captions.caption_join import CaptionJoin, JoinReport, check_match
from roibeam.pipelines.data.captions.caption_table import CaptionTable, TextColumn
from roibeam.pipelines.data.feature_words import boxes_words, choice_note, dtype_words
from roibeam.pipelines.data.held_out import HeldOut, LeakReport, refuse_leaks
from roibeam.pipelines.data.photos import LabelledPhotos

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class CaptionedStore:
    """One source of pre-training.

    Attributes:
        captions: joined to the records by `CaptionJoin`, read once; or the texts of a task, for a system that reads
            them.
        weight: how much of what is trained on comes from here, over the sum of all; None in all sources makes every
            caption of all of them as likely.
        min_match: share of the captioned images that must have a record, see `check_match`.
        data_set: that bare numbers among the store's ids belong to, see `image_identity`.
        where: the captions are from, for people.
        other_splits: as of `CaptionFile`, once the captions are read.
        file_notes: what was left out of their file, once they are read.
    """

    store: FeatureStore
    captions: Iterable[Caption] | TaskTexts
    weight: float | None = None
    min_match: float = 0.0
    data_set: str | None = None
    where: str = "the captions"
    other_splits: Collection[str] = ()
    file_notes: Collection[str] = ()


@dataclass(frozen=True)
class LeakGuard:
    """Images that must not be trained on.

    Attributes:
        held_out: the rules.
        leave_out: drop such images instead of stopping.
    """

    held_out: HeldOut
    leave_out: bool = False

    def kept(self, rows: CaptionTable, source: CaptionedStore) -> tuple[CaptionTable, LeakReport]:
        """The rows that may be trained on; ValueError where one may not and none is to be left out, or none is left."""
        report, where = self.held_out.scan(rows.captioned_ids(), source.data_set), str(source.store.path)
        if not self.leave_out:
            refuse_leaks(report, where)
        if len(report.leaked) == report.images:
            raise ValueError(f"{where}: all of {report.images:,} captioned images are held out; nothing to train on")
        return (rows.without(report.leaked) if report.leaked else rows), report

    def kept_photos(self, photos: LabelledPhotos, data_set: str | None) -> LabelledPhotos:
        """The labelled photos that may be trained on, likewise; `data_set` is that of the store."""
        report = self.held_out.scan((image.image_id for image in photos.images), data_set)
        if not self.leave_out:
            refuse_leaks(report, f"the labelled photos of {photos.root}")
        leaked = set(report.leaked)
        if len(leaked) == len(photos.images):
            raise ValueError(f"all of {len(leaked):,} labelled photos of {photos.root} are held out; nothing is left")
        kept = tuple(image for image in photos.images if image.image_id not in leaked)
        return dataclasses.replace(photos, images=kept)


@dataclass(frozen=True, eq=False)
class JoinedSource:
    """What a source turned out to be.

    Attributes:
        rows: captions that are trained on.
        join: how captions met records.
        leaks: what of the captioned images is held out; None when nothing was named to be. Of what is trained on it is
            none: such images stop a run or are left out.
        notes: what was left out of the captions.
        prefix: of what is told of this source, where there are several.
    """

    source: CaptionedStore
    rows: CaptionTable
    join: JoinReport
    leaks: LeakReport | None
    notes: tuple[str, ...]
    prefix: str

    @property
    def store(self) -> FeatureStore:
        return self.source.store

    def all_notes(self) -> list[str]:
        """What was left out of the file, what of the images is held out, and `notes`."""
        if self.leaks is None:
            return [*self.source.file_notes, *self.notes]
        left_out = f"{counted(len(self.leaks.leaked), 'captioned image')} left out as held out"
        return [*self.source.file_notes, *self.leaks.lines(), left_out, *self.notes]

    def told(self, lines: Iterable[str]) -> list[str]:
        """Lines for people, with the name of the store before them where there are several."""
        return [self.prefix + line for line in lines]

    def to_json(self) -> dict[str, Any]:
        """For the folder of a run."""
        return {
            "store": str(self.store.path),
            "feature_space": self.store.fingerprint.feature_space,
            "meaning": self.store.fingerprint.meaning,
            "boxes": boxes_words(self.store.fingerprint),
            "dtype": dtype_words(self.store.fingerprint),
            "numerics": self.store.fingerprint.numerics,
            "weight": self.source.weight,
            "captions": len(self.rows),
            "join": self.join.to_json(),
            "held_out": None if self.leaks is None else self.leaks.to_json(),
        }


def join_sources(
    sources: Sequence[CaptionedStore],
    *,
    most_pieces: int | None,
    guard: LeakGuard | None,
    share: float = 1.0,
    share_seed: int = 0,
) -> list[JoinedSource]:
    """Joins the captions of each source to its store.

    Args:
        most_pieces: as of `UsableCaptions`.
        share, share_seed: of the captioned images of each source, as of `CaptionTable.share_of_images`.
    Raises:
        ValueError: when there is no source, or stores or captions do not fit.
    """
    if not sources:
        raise ValueError("pre-training needs a store with captions")
    check_stores_agree([source.store for source in sources])
    if len({source.weight is None for source in sources}) > 1:
        raise ValueError("some stores have a weight and some have none; give one to each, or to none")
    if len(sources) == 1 and sources[0].weight is not None:
        raise ValueError("a weight says how several stores are mixed; one store needs none")
    joined = []
    for source in sources:
        usable, prefix = UsableCaptions(most_pieces), f"{source.store.path}: " if len(sources) > 1 else ""
        rows: CaptionTable
        if isinstance(source.captions, TaskTexts):
            rows, join = join_task_texts(source.store, source.captions, usable, source.min_match, prefix)
        else:
            captions = usable.passed(source.captions)
            rows, join = join_captions(
                source.store, captions, source.min_match, prefix, source.other_splits, where=source.where
            )
        leaks = None
        if guard is not None:
            rows, leaks = guard.kept(rows, source)
        if share < 1:
            rows = rows.share_of_images(share, share_seed)
        joined.append(JoinedSource(source, rows, join, leaks, tuple(usable.notes()), prefix))
    return joined


def check_stores_agree(stores: Sequence[FeatureStore]) -> None:
    """Whether one model can read them all.

    Raises:
        ValueError: naming the first store and one that does not fit it.
    """
    for other in stores[1:]:
        check_pair_agrees(stores[0], other, in_one_run=True)


def check_pair_agrees(first: FeatureStore, other: FeatureStore, *, in_one_run: bool) -> None:
    """As `check_stores_agree`, of two. Boxes, dtype and mode may differ: `choice_notes` tells.

    Args:
        in_one_run: else one after the other, where class names are compared only if both have some.
    """
    both, left, right = f"{first.path} and {other.path}", first.fingerprint, other.fingerprint
    remedy = "extract both with the same detector and settings" + ", or train on one of them" * in_one_run
    if left.meaning != right.meaning:
        difference = meaning_difference(left, right) or f"{left.feature_space} / {right.feature_space}"
        raise ValueError(f"{both} are of different feature spaces: {difference}; {remedy}")
    if first.feature_dim != other.feature_dim:
        raise ValueError(f"{both}: features have width {first.feature_dim} / {other.feature_dim}; {remedy}")
    mine, yours = first.vocabulary["classes"], other.vocabulary["classes"]
    if mine != yours and (in_one_run or (mine and yours)):
        raise ValueError(
            f"{both} have different class names ({_names(mine)} / {_names(yours)}), so class 7 of one may be "
            f"another thing in the other; {remedy}"
        )


def choice_notes(stores: Sequence[FeatureStore]) -> list[str]:
    """A line for each store whose choice of boxes, dtype or mode is not that of the first, for the user."""
    notes = []
    for other in stores[1:]:
        known, now = [stores[0].fingerprint], other.fingerprint
        note = choice_note(f"store {stores[0].path} has", known, f"{other.path} has", now)
        notes += [] if note is None or note in notes else [note]
    return notes


def _names(classes: Sequence[str] | None) -> str:
    return "none" if classes is None else f"{len(classes):,}, first {classes[0]!r}" if classes else "0"


def join_captions(
    store: FeatureStore, captions: Iterable[Caption], min_match: float, prefix: str = "",
    other_splits: Collection[str] = (), *, where: str = "the captions",
) -> tuple[CaptionTable, JoinReport]:  # fmt: skip
    """The captions whose image has a record, in order. The counts are logged, with `prefix` before them; `where` the
    captions are from is for errors.

    Raises:
        ValueError: where less than `min_match` of the images have a record.
    """
    ids = TextColumn(store.ids())
    join = CaptionJoin(ids)
    rows = CaptionTable(ids, join.rows(captions))
    report = join.report(other_splits)
    check_match(report, min_match=min_match, captions=where, images=str(store.path))
    for line in report.lines():
        logger.info("%s%s", prefix, line)
    return rows, report


def join_task_texts(
    store: FeatureStore, texts: TaskTexts, usable: UsableCaptions, min_match: float, prefix: str = ""
) -> tuple[TaskTable, JoinReport]:
    """The usable texts of a task all of whose images have a record, in order; errors as `join_captions`."""
    ids = TextColumn(store.ids())
    join = CaptionJoin(ids)
    named = (
        (text, [Caption(text.text, name) for name in text.names])
        for text in usable.passed(texts.texts(), lambda text: text.most_words)
    )
    rows, report = TaskTable(ids, join.joined(named), as_pair=texts.as_pair), join.report()
    check_match(report, min_match=min_match, captions=texts.files[0], images=str(store.path))
    for line in report.lines():
        logger.info("%s%s", prefix, line)
    return rows, report


def digest_of_captions(tables: Iterable[CaptionTable]) -> str:
    """SHA-256 (hex) of rows of (record id, caption), in their order, and of what else a task's texts say."""
    digest = hashlib.sha256()
    for table in tables:
        for row in table:
            for text in row:
                raw = text.encode("utf-8")
                digest.update(len(raw).to_bytes(8, "little") + raw)
        if isinstance(table, TaskTable):
            digest.update(table.facts())
    return digest.hexdigest()
