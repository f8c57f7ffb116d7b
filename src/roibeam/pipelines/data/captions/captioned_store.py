"""Stores with their captions, as a run takes one or several: opened, joined, checked, held-out images left out.

`GivenStores` are the sources that `--store`, `--captions` and `--store-weight` of a command name together, in their
order; `GivenValidation` those of `--validation-captions`. Captions that cannot be trained on, or will be cut, are
counted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import xxhash

from roibeam.features.reading.staging import StagedStore
from roibeam.features.record.fingerprint import meaning_difference
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.pipelines.data.captions.caption_files import (
    Caption,
    CaptionFile,
    CaptionFiles,
    given_file,
    stored_captions,
)
from roibeam.pipelines.data.captions.caption_join import CaptionJoin, JoinReport, check_match
from roibeam.pipelines.data.captions.corpus import CaptionTable, TextColumn
from roibeam.pipelines.data.captions.task_texts import TaskCorpusText, TaskTable, TaskTexts
from roibeam.pipelines.data.compatibility import ALL, checked_one_in
from roibeam.pipelines.data.feature_settings import boxes_words, choice_note, dtype_words
from roibeam.pipelines.data.held_out import HeldOut, LeakReport, held_out_hint
from roibeam.pipelines.data.image_identity import checked_data_set, data_set_of_store
from roibeam.pipelines.data.labelled_photos import LabelledPhotos

_REPEATED = 0.1  # share from which it is noted: two people may describe a picture in the same words

AnyCaption = TypeVar("AnyCaption", Caption, TaskCorpusText)


class UsableCaptions:
    """Leaves out captions of white space alone, as the readers of line-by-line files do.

    Args:
        most_pieces: that the system reads of a caption, [CLS] and [SEP] counted; None for no limit.
    """

    def __init__(self, most_pieces: int | None) -> None:
        self._most_words = None if most_pieces is None else most_pieces - 2
        self._empty = self._long = self._longest = 0
        self._first = ""
        self._seen = array("Q")  # 8 bytes for each caption

    def passed(
        self,
        captions: Iterable[AnyCaption],
        words_of: Callable[[AnyCaption], int] = lambda each: len(each.text.split()),
    ) -> Iterator[AnyCaption]:
        """The others; to be read once."""
        for caption in captions:
            words = words_of(caption)
            if words:
                self._longest = max(self._longest, words)
                self._long += self._most_words is not None and words > self._most_words
                if isinstance(caption, Caption):  # a task's texts come again with other images
                    same = f"{caption.called}\0{caption.text}"
                    self._seen.append(xxhash.xxh3_64_intdigest(same.encode("utf-8", "surrogatepass")))
                yield caption
                continue
            if not self._empty:
                self._first = caption.called
            self._empty += 1

    def notes(self) -> list[str]:
        """Notes for the log. Words are counted between white space: a caption of fewer may still be too many pieces."""
        notes = []
        if self._empty:
            of = printable(self._first, 80)
            notes.append(f"{plural(self._empty, 'empty caption')} left out (the first is of {of})")
        again = len(self._seen) - len(np.unique(np.array(self._seen, np.uint64)))
        if again > _REPEATED * len(self._seen):
            notes.append(
                f"{plural(again, 'caption')} of {len(self._seen):,} come again word for word, of the same image"
            )
        if self._long:
            notes.append(
                f"{plural(self._long, 'caption')} of more than {self._most_words} words will be cut; the longest has "
                f"{self._longest:,}"
            )
        return notes


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
        leave_out: drop such images instead of stopping.
    """

    held_out: HeldOut
    leave_out: bool = False

    def kept(self, rows: CaptionTable, source: CaptionedStore) -> tuple[CaptionTable, LeakReport]:
        """The rows that may be trained on; errors as of `HeldOut.scan_kept`."""
        ids, where = rows.captioned_ids(), str(source.store.path)
        report = self.held_out.scan_kept(ids, source.data_set, where, leave_out=self.leave_out)
        return (rows.without(report.leaked) if report.leaked else rows), report

    def kept_photos(self, photos: LabelledPhotos, data_set: str | None) -> LabelledPhotos:
        """The labelled photos that may be trained on, likewise; `data_set` is that of the store."""
        ids, where = [image.image_id for image in photos.images], f"the labelled photos of {photos.root}"
        leaked = set(self.held_out.scan_kept(ids, data_set, where, leave_out=self.leave_out).leaked)
        kept = tuple(image for image in photos.images if image.image_id not in leaked)
        return dataclasses.replace(photos, images=kept)


@dataclass(frozen=True, eq=False)
class JoinedSource:
    """A source, joined: its captions, and reports on them.

    Attributes:
        join: how captions met records.
        leaks: report on held-out images among the captioned ones; None without rules. None of them is trained on: such
            images stop a run or are left out.
        notes: what was left out of the captions.
        prefix: of log lines on this source, where there are several.
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
        """Notes on entries of the file that were left out, on held-out images, and `notes`."""
        if self.leaks is None:
            return [*self.source.file_notes, *self.notes]
        left_out = f"{plural(len(self.leaks.leaked), 'captioned image')} left out as held out"
        return [*self.source.file_notes, *self.leaks.lines(), left_out, *self.notes]

    def prefixed(self, lines: Iterable[str]) -> list[str]:
        """Lines for people, with the name of the store before them where there are several."""
        return [self.prefix + line for line in lines]

    def to_json(self) -> dict[str, Any]:
        """JSON for the folder of a run."""
        return {
            "store": str(self.store.path),
            "feature_space": self.store.fingerprint.feature_space,
            "meaning": self.store.fingerprint.meaning,
            "boxes": boxes_words(self.store.fingerprint),
            "dtype": dtype_words(self.store.fingerprint),
            "numerics": self.store.fingerprint.numerics,
            "weight": self.source.weight,
            "captions": len(self.rows),
            "images": len(self.rows.captioned_ids()),
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
    if not sources:
        raise ValueError("pre-training needs a store with captions")
    check_stores_agree([source.store for source in sources])
    if len({source.weight is None for source in sources}) > 1:
        raise ValueError("some stores have a weight and some have none; give one to each, or to none")
    if len(sources) == 1 and sources[0].weight is not None:
        raise ValueError("weights are for mixing several stores; one store needs none")
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
    """Raises ValueError, naming the first store and one that does not fit it, unless one model can read them all."""
    for other in stores[1:]:
        check_pair_agrees(stores[0], other, in_one_run=True)


def check_pair_agrees(first: FeatureStore, other: FeatureStore, *, in_one_run: bool) -> None:
    """`check_stores_agree` of two. Boxes, dtype and mode may differ: `choice_notes` are about them.

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
    # Where a backbone makes the features, classes are compared by what reads them: `StoreClasses`.
    if "backbone" not in left.details and mine != yours and (in_one_run or (mine and yours)):
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
    captions are from is for errors. Raises ValueError where less than `min_match` of the images have a record."""
    ids = TextColumn(store.ids())
    join = CaptionJoin(ids)
    rows = CaptionTable(ids, join.rows(captions))
    return rows, _checked_report(join, other_splits, min_match, where, store, prefix)


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
    rows = TaskTable(ids, join.joined(named), as_pair=texts.as_pair)
    return rows, _checked_report(join, (), min_match, texts.files[0], store, prefix)


def _checked_report(
    join: CaptionJoin, other_splits: Collection[str], min_match: float, where: str, store: FeatureStore, prefix: str
) -> JoinReport:
    report = join.report(other_splits)
    check_match(report, min_match=min_match, captions=where, images=str(store.path))
    for line in report.lines():
        logger.info("%s%s", prefix, line)
    return report


def digest_of_captions(tables: Iterable[CaptionTable]) -> str:
    """SHA-256 (hex) of rows of (record id, caption), in their order, and of the other fields of a task's texts."""
    digest = hashlib.sha256()
    for table in tables:
        for row in table:
            for text in row:
                raw = text.encode("utf-8")
                digest.update(len(raw).to_bytes(8, "little") + raw)
        if isinstance(table, TaskTable):
            digest.update(table.facts())
    return digest.hexdigest()


OWN_CAPTIONS = "own"


class GivenStores:
    """
    Args:
        stores: folders or URLs, at least one.
        captions: a file for each store, or `OWN_CAPTIONS`; of one store also several files, read one after the other.
            None takes the captions that the stores keep.
        weights: one for each store, or none.
        texts: of a task, that take the place of captions.
        caption_column: as of `given_file`.
        checksums: records that are compared with theirs, see `checked_one_in`.
    """

    def __init__(
        self,
        stores: Sequence[str],
        captions: Sequence[str],
        weights: Sequence[float],
        *,
        texts: TaskTexts | None,
        caption_column: str = "",
        checksums: str = ALL,
    ) -> None:
        if not stores:
            raise ValueError("--store is missing: the folder that `roibeam extract` wrote")
        if captions and texts is not None:
            raise ValueError("--captions and --task-text: a run reads one of them")
        joins = len(stores) == 1 and len(captions) > 1
        if joins and OWN_CAPTIONS in captions:
            raise ValueError(f"--captions {OWN_CAPTIONS}: the captions that a store keeps are not joined with files")
        for option, given in (("--captions", captions), ("--store-weight", weights)):
            if given and len(given) != len(stores) and not (joins and given is captions):
                own = f" ({OWN_CAPTIONS} names those that a store keeps)" if option == "--captions" else ""
                raise ValueError(
                    f"{len(stores)} --store but {len(given)} {option}: give one {option} for each --store, in the same "
                    f"order{own}, or none at all"
                )
        named = captions or [OWN_CAPTIONS] * len(stores)
        self._stores, self._texts, self._one_in = stores, texts, checked_one_in(checksums)
        self._weights: Sequence[float | None] = weights or [None] * len(stores)
        files = [None if each == OWN_CAPTIONS else given_file(each, caption_column=caption_column) for each in named]
        self._files: Sequence[CaptionFile | CaptionFiles | None] = (
            [CaptionFiles([file for file in files if file is not None])] if joins else files
        )

    @contextmanager
    def opened(
        self, stage_to: Path | None, stage_gb: float | None, *, images_of: str | None, min_match: float
    ) -> Iterator[list[CaptionedStore]]:
        """The sources; their stores are closed at the end.

        Args:
            stage_to: folder that stores are copied to as they are read, each of several to a folder of its own there.
            stage_gb: room in it, 10^9 bytes, several stores have equal parts of.
            images_of: as of `checked_data_set`.
        """
        several, sources = len(self._stores) > 1, []
        with ExitStack() as stack:
            for number, (where, file) in enumerate(zip(self._stores, self._files, strict=True)):
                folder = stage_to / str(number + 1) if stage_to is not None and several else stage_to
                room = None if stage_gb is None else stage_gb / len(self._stores)
                store = stack.enter_context(_open_store(where, folder, room))
                store.checked_one_in = self._one_in
                data_set = checked_data_set(images_of, data_set_of_store(store.manifest))
                source = CaptionedStore(store, (), weight=self._weights[number], data_set=data_set)
                sources.append(self._captioned(source, file, min_match))
            yield sources

    def _captioned(
        self, source: CaptionedStore, file: CaptionFile | CaptionFiles | None, min_match: float
    ) -> CaptionedStore:
        texts = self._texts
        if texts is not None:
            where = f"the texts of {texts.task}"
            return replace(source, captions=texts, min_match=min_match, where=where, file_notes=texts.notes)
        if file is None:
            where = f"the captions of {source.store.path}"
            return replace(source, captions=stored_captions(source.store), where=where)
        return of_file(source, file, min_match)


class GivenValidation:
    """`--validation-captions` and `--validation-store`.

    Args:
        captions: a caption file, of a Karpathy file its split val; None for no held-out captions.
        store: folder of a store; None for the first one of the run.
    """

    def __init__(self, captions: str | None, store: str | None, *, caption_column: str = "") -> None:
        if captions is None and store is not None:
            raise ValueError("--validation-store: name the captions too, with --validation-captions")
        self._store = store
        self._file = None if captions is None else given_file(captions, caption_column=caption_column)
        if self._file is not None and self._file.kind == "karpathy":
            self._file = CaptionFile(self._file.location, split="val")

    @contextmanager
    def opened(
        self, first: CaptionedStore, *, images_of: str | None, min_match: float
    ) -> Iterator[CaptionedStore | None]:
        """The held-out captions; their own store is closed at the end.

        Args:
            images_of, min_match: as of `GivenStores.opened`.
        """
        if self._file is None:
            yield None
        elif self._store is None:
            yield self._captioned(first.store, min_match, first.data_set)
        else:
            with FeatureStore(self._store) as store:
                data_set = checked_data_set(images_of, data_set_of_store(store.manifest))
                yield self._captioned(store, min_match, data_set)

    def _captioned(self, store: FeatureStore, min_match: float, data_set: str | None) -> CaptionedStore:
        assert self._file is not None
        return of_file(CaptionedStore(store, (), data_set=data_set), self._file, min_match)


def of_file(source: CaptionedStore, file: CaptionFile | CaptionFiles, min_match: float) -> CaptionedStore:
    return replace(
        source,
        captions=file.captions(),
        min_match=min_match,
        where=file.location,
        other_splits=file.other_splits,
        file_notes=file.notes,
    )


def held_out_hints(sources: Sequence[CaptionedStore]) -> list[str]:
    """Hints on rules that would apply to the images of each store, see `held_out_hint`."""
    hints = [(source.store.path, held_out_hint(source.store.ids(), source.data_set)) for source in sources]
    return [hint if len(sources) == 1 else f"{path}: {hint}" for path, hint in hints if hint]


def _open_store(store: str, stage_to: Path | None, stage_gb: float | None) -> FeatureStore:
    if stage_to is not None:
        return StagedStore(store, stage_to, max_bytes=None if stage_gb is None else int(stage_gb * 1e9))
    if "://" in store or stage_gb is not None:
        what = "this is a URL" if "://" in store else "--cache-gb is given"
        raise ValueError(f"--store {store}: {what}, so name a folder on a local disk with --cache-dir")
    return FeatureStore(store)
