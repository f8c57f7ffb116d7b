"""`roibeam store copy`: one streaming copy that merges, reshards, cuts out a subset, and changes records.

The manifest of the copy states what all stores have in common.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import Any

from roibeam.features.annotations import write_annotations
from roibeam.features.folders.folder_protocol import run_lock
from roibeam.features.folders.local_folder import output_folder
from roibeam.features.reading.temporary_copy import local_store, unfinished_lines
from roibeam.features.record.fingerprint import (
    IMPORTED_PREFIX,
    Fingerprint,
    has_classes,
    merged_numerics,
    space_difference,
)
from roibeam.features.record.region_record import TopKDistribution, content_digest
from roibeam.features.shard.manifest import DeadLetter, ShardSummary, StoreManifest
from roibeam.features.shard.writer import Outcome
from roibeam.features.store import FeatureStore
from roibeam.features.store_copy import DoesNotFitError, Entry, RecordChange, StoredRecord, StoreMerge
from roibeam.features.writing.partial_store import SequenceStore, work_folder
from roibeam.messages import on_a_line, plural, printable
from roibeam.pipelines.common.console.command_files import NamedFiles
from roibeam.pipelines.common.console.progress import ENTRIES, Progress
from roibeam.pipelines.common.dead_letters import write_dead_letters
from roibeam.pipelines.common.image_ids import in_nfc
from roibeam.pipelines.data.captions.caption_files import merged_annotations, read_annotations
from roibeam.pipelines.data.id_lists import IdSelection
from roibeam.pipelines.data.record_photos import write_locations
from roibeam.pipelines.data.vocabulary import PUBLISHED_LISTS
from roibeam.pipelines.extract.stores.class_names import ImportedClasses, added_names
from roibeam.pipelines.extract.stores.locations import StoreLocation, resolved


def merged_fingerprint(stores: Sequence[FeatureStore], change: RecordChange) -> Fingerprint:
    """The fingerprint of the copy; ValueError when the sources' records do not belong into one store."""
    first = change.fingerprint(stores[0].fingerprint, stores[0].feature_dtype)
    for store in stores:
        other = change.fingerprint(store.fingerprint, store.feature_dtype)
        if (other.feature_space, other.details) != (first.feature_space, first.details):
            how = space_difference(first, other, {}) or _different_details(first, other)
            # A store states one choice of boxes and one dtype for all of its records; a mixture of two would state
            # neither. Training takes both side by side instead, with a note on the difference.
            why = "features of two detectors, conventions or dtypes do not mix (--dtype makes dtypes equal)"
            if other.meaning == first.meaning and not first.feature_space.startswith(IMPORTED_PREFIX):
                why = (
                    "they mean the same, but a store has boxes of one choice and one dtype (--dtype makes dtypes "
                    "equal); train on both with --store given for each"
                )
            raise ValueError(
                f"{stores[0].folder} and {store.folder} have different feature spaces{f' ({how})' if how else ''}; "
                f"{why}"
            )
        if change.regions is not None and not has_classes(store.fingerprint):
            raise ValueError(
                f"{store.folder} has no class scores (its source had none), so its regions cannot be chosen by them; "
                f"leave out --min-score, --min-regions and --max-regions"
            )
    widths = {store.feature_dim: store for store in stores if len(store)}
    if len(widths) > 1:
        found = ", ".join(f"{store.folder}: {width}" for width, store in widths.items())
        raise ValueError(f"the sources have features of different widths ({found}); one store holds one width")
    _check_distributions(stores, change)
    numerics = merged_numerics(store.fingerprint.numerics for store in stores)
    return Fingerprint(first.feature_space, numerics, first.details)


def _different_details(left: Fingerprint, right: Fingerprint) -> str:
    """Details in which imported stores differ."""
    keys = left.details.keys() | right.details.keys()
    return ", ".join(sorted(key for key in keys if left.details.get(key) != right.details.get(key)))


def _check_distributions(stores: Sequence[FeatureStore], change: RecordChange) -> None:
    """Checks for one kind of class distribution, which readers expect; a source's kind is that of its first record."""
    if change.distribution != "keep" or len(stores) == 1:
        return
    kinds: dict[str, FeatureStore] = {}
    for store in stores:
        image_id = next(store.ids(), None)
        if image_id is not None:
            kept = store.get(image_id, copy=False).class_distribution
            kind = "none" if kept is None else "full"
            if isinstance(kept, TopKDistribution):
                kind = f"top-{kept.class_ids.shape[1]}"
            kinds.setdefault(kind, store)
    if len(kinds) > 1:
        found = ", ".join(f"{store.folder}: {kind}" for kind, store in kinds.items())
        raise ValueError(f"the sources hold different class distributions ({found}); --distribution makes them equal")


_Names = tuple[str, ...] | None


def merged_text(stores: Sequence[FeatureStore], change: RecordChange) -> tuple[dict[str, Any], _Names, _Names]:
    """Configuration, classes and attributes of the copy: common values stay, a single source's goes under "copy";
    ValueError when two name classes or attributes differently."""
    configs = [store.manifest.config for store in stores]
    common = {
        key: value
        for key, value in configs[0].items()
        if key != "copy" and all(other.get(key) == value for other in configs)
    }
    origins = [
        {
            "location": str(store.folder) if store.folder.local_path is None else os.path.abspath(store.path),
            "content_digest": store.manifest.content_digest,
            "feature_space": store.fingerprint.feature_space,
            "records": len(store),
            "config": {key: value for key, value in config.items() if key not in common},
        }
        for store, config in zip(stores, configs, strict=True)
    ]
    if isinstance(common.get("options"), dict):  # what a run wrote; the copy's records are otherwise now
        changed = {"feature_dtype": change.dtype, "distribution": change.distribution}
        changed = {key: value for key, value in changed.items() if value not in (None, "keep")}
        common["options"] = {**common["options"], **changed}
    return {**common, "copy": {"sources": origins}}, _names(stores, "classes"), _names(stores, "attributes")


def _names(stores: Sequence[FeatureStore], which: str) -> _Names:
    known = {getattr(store.manifest, which): store for store in stores if getattr(store.manifest, which) is not None}
    if len(known) > 1:
        paths = " and ".join(str(store.folder) for store in known.values())
        raise ValueError(f"{paths} name their {which} differently; their ids do not mean the same")
    return next(iter(known), None)


log = logging.getLogger(__name__)
_AHEAD = 16  # records that are prefetched
_NAMED_MISSING = 5


@dataclass(frozen=True)
class CopySummary:
    """Result of a copy.

    Attributes:
        failures: reason -> records that could not be copied; they are dead letters, beside those of the sources.
        num_repeats: records left out because an earlier source has the same.
        num_kept_shards: written by an earlier run of this copy.
        num_missing: ids of the list that no source has.
        is_without: whether the list named the images to leave out; missing ones are no failure then.
        seconds: wall time.
    """

    manifest: StoreManifest
    failures: Counter[str]
    num_repeats: int
    num_kept_shards: int
    num_missing: int
    first_missing: tuple[str, ...]
    is_without: bool
    seconds: float

    @property
    def failed_share(self) -> float:
        """(Failed records + missing ids) / (those + records), 0..1."""
        failed = self.failures.total() + (0 if self.is_without else self.num_missing)
        return failed / max(self.manifest.num_records + failed, 1)

    def to_json(self, out: StoreLocation) -> dict[str, Any]:
        manifest = self.manifest
        return {
            "store": str(out), "records": manifest.num_records, "regions": manifest.num_regions,
            "shards": len(manifest.shards), "dead_letters": manifest.num_dead_letters, "failures": dict(self.failures),
            "equal_repeats": self.num_repeats, "kept_shards": self.num_kept_shards, "missing": self.num_missing,
            "first_missing": list(self.first_missing), "content_digest": manifest.content_digest,
            "feature_space": manifest.fingerprint.feature_space, "seconds": round(self.seconds, 3),
        }  # fmt: skip

    def text(self, out: StoreLocation) -> str:
        """Result for the terminal."""
        manifest = self.manifest
        lines = [
            f"{out}: {plural(manifest.num_records, 'record')} with {plural(manifest.num_regions, 'region')} in "
            f"{plural(len(manifest.shards), 'shard')}, {plural(manifest.num_dead_letters, 'dead letter')}; "
            f"{plural(self.num_repeats, 'equal repeat')} left out"
        ]
        if self.num_kept_shards == len(manifest.shards):
            lines.append("  all of it was there already; nothing to do")
        lines += [f"  not copied    {plural(count, 'record')}: {why}" for why, count in sorted(self.failures.items())]
        if self.num_missing:
            names = ", ".join(printable(image_id) for image_id in self.first_missing)
            more = ", ..." if self.num_missing > len(self.first_missing) else ""
            lines.append(f"  in no source  {plural(self.num_missing, 'id')}: {names}{more}")
        return "\n".join([*map(on_a_line, lines), f"  content       {manifest.content_digest}"])


@dataclass(frozen=True)
class CopyOptions:
    """Options of a copy.

    Attributes:
        vocab: names of classes and attributes for stores that have bare ids, see `read_vocabulary`; None adds none.
        selection: of the images; None for all.
        shard_size: entries per shard, at most.
        shard_bytes: see `ShardSequence`.
        drop_damaged: make a damaged record a dead letter instead of stopping. It is no part of what makes two copies
            the same: a copy that stopped at a damaged record goes on with it.
    """

    change: RecordChange = field(default_factory=RecordChange)
    selection: IdSelection | None = None
    shard_size: int = 4000
    shard_bytes: int | None = None
    drop_damaged: bool = False
    vocab: str | None = None


def copy_store(
    sources: Sequence[StoreLocation],
    out: StoreLocation,
    options: CopyOptions | None = None,
    *,
    scratch: str | None = None,
) -> CopySummary:
    """Writes the records of `sources` to the folder `out`, in key order; what is copied is checked.

    Any of them may be at a URL. Shards then lie in a scratch folder on their way: see `local_store` for sources; of
    `out` one shard, which is uploaded when it is whole.

    A killed copy goes on where it was: finished shards of the same sources and options are kept. Dead letters,
    vocabulary, captions, labels and, where all sources have them, locations of the photos travel. Memory: see
    `StoreMerge` and `ShardSequence`.

    Args:
        scratch: parent of the scratch folders; None for the machine's temporary folder.
    Raises:
        ValueError: when sources do not belong together, a record is damaged (naming it), or `out` holds anything but
            a part of this copy.
        OSError: when a source cannot be read or `out` not be written.
    """
    start = time.monotonic()
    options = options or CopyOptions()
    selection = options.selection
    is_without = selection is not None and selection.is_without
    _check_paths(sources, out, options.vocab)
    folder = output_folder(out, scratch)
    with ExitStack() as opened:
        at_hand = (local_store(source, scratch=scratch, keep_damaged=options.drop_damaged) for source in sources)
        stores = list(map(opened.enter_context, at_hand))
        if selection is not None:
            selection = replace(selection, ids=_ids_in_stores(stores, selection.ids))
            options = replace(options, selection=selection)
        _check_some_are_there(stores, selection)
        _refuse_forms(stores, selection)
        for line in (*unfinished_lines(stores), *missing_part_lines(stores)):
            log.warning("%s", line)
        merge = StoreMerge(stores, None if selection is None else selection.ids, is_without=is_without)
        fingerprint = merged_fingerprint(stores, options.change)
        config, classes, attributes = merged_text(stores, options.change)
        if is_without:
            config = _without_examples(config)
        names = added_names(stores, options.vocab)
        plan = _plan_digest(stores, options, names)
        outcomes = _Outcomes(stores, options)
        work = opened.enter_context(work_folder(folder, scratch))
        with run_lock(folder):
            sizes = _shard_sizes(stores, options)
            written = SequenceStore(folder, work, "copy", plan, fingerprint, before_publish=outcomes.check, **sizes)
            with Progress("copying", merge.num_entries, ENTRIES, done=written.num_done) as progress:
                # From the first entry on: missing ids are known at the end, and an index row is cheap.
                read = outcomes.of(islice(merge.entries(), written.num_done, None))
                written.write(progress.counting(read if names is None else names.checked(read)))
            write_dead_letters(folder, written.manifests)
            write_locations(folder, stores, lambda each: _is_kept(each, selection))
            facts = {"options": _options_json(options), "plan": plan, "missing": len(merge.missing)}
            rows = (row for store in stores for row in read_annotations(store))
            published = written.publish(
                config={**config, "copy": {**config["copy"], **facts}},
                classes=classes if names is None else names.names.classes,
                attributes=attributes if names is None else names.names.attributes or attributes,
                annotations=write_annotations(folder, merged_annotations(rows, folder, written.manifests)),
            )
    return CopySummary(
        published,
        written.failures - merge.dead_letters,  # that this copy made: those that did not come with the sources
        written.num_repeats,
        written.num_kept,
        len(merge.missing),
        tuple(nsmallest(_NAMED_MISSING, merge.missing)),
        is_without,
        time.monotonic() - start,
    )


def missing_part_lines(stores: Sequence[FeatureStore]) -> list[str]:
    """A line where stores are parts of a source (`extract --part I/N`) and others of its parts are not among them."""
    parts: dict[tuple[str, int], set[int]] = {}
    for store in stores:
        source = store.manifest.config.get("source")
        source = source if isinstance(source, dict) else {}
        if found := re.match(r"(\d+)/(\d+) of ", str(source.get("part", ""))):
            parts.setdefault((str(source["location"]), int(found[2])), set()).add(int(found[1]))
    lines = []
    for (location, number), there in parts.items():
        missing = ", ".join(str(part) for part in range(1, number + 1) if part not in there)
        if missing:
            lines.append(f"{location}: of its {number} parts the stores lack {missing}; their images are missing")
    return lines


def _shard_sizes(stores: Sequence[FeatureStore], options: CopyOptions) -> dict[str, int | None]:
    """Arguments of `ShardSequence`."""
    num_records = max(sum(len(store) for store in stores), 1)
    num_bytes = sum(entry.data_bytes for store in stores for entry in store.manifest.shards)
    planned = num_bytes * min(options.shard_size, num_records) // num_records
    planned = min(planned, options.shard_bytes or planned)
    return {"shard_size": options.shard_size, "shard_bytes": options.shard_bytes, "planned_bytes": planned}


def _without_examples(config: Any) -> Any:
    """A configuration without the image ids and captions that its reports give as examples."""
    if isinstance(config, dict):
        return {name: _without_examples(value) for name, value in config.items() if name != "examples"}
    return [_without_examples(value) for value in config] if isinstance(config, list) else config


def _check_paths(sources: Sequence[StoreLocation], out: StoreLocation, vocab: str | None) -> None:
    places, own = list(map(resolved, sources)), resolved(out)
    if len(set(places)) < len(places):
        raise ValueError("a source is named twice; name each store once")
    if own in places:
        raise ValueError(f"{out} is a source too; a copy goes to a new folder")
    if inside := [source for source, place in zip(sources, places, strict=True) if own.startswith(f"{place}/")]:
        raise ValueError(f"{out} is in the source {inside[0]}, which is only read; name a folder beside it")
    named = NamedFiles()
    for source in sources:
        named.need("SOURCE", source)
    named.need("--vocab", None if vocab == PUBLISHED_LISTS else vocab)
    named.need_output_folder(out)
    named.check()


def _options_json(options: CopyOptions) -> dict[str, Any]:
    sizes = {"shard_size": options.shard_size, "shard_bytes": options.shard_bytes}
    selection: dict[str, Any] | None = None
    if options.selection is not None:
        selection = {"from": options.selection.origin, "ids": len(options.selection.ids)}
        selection |= {"without": True} if options.selection.is_without else {}
    named = {} if options.vocab is None else {"vocab": options.vocab}
    return {**options.change.to_json(), **sizes, "asked": selection, **named}


def _ids_in_stores(stores: Sequence[FeatureStore], ids: frozenset[str]) -> frozenset[str]:
    """The ids, those that no store has in the form in which it has them: equal in NFC."""
    unknown = {each for each in ids if not each.isascii() and not any(each in store for store in stores)}
    if not unknown:
        return ids
    stored: dict[str, set[str]] = {in_nfc(each): set() for each in unknown}
    for image_id in (each for store in stores for each in store.ids() if not each.isascii()):
        stored.get(in_nfc(image_id), set()).add(image_id)
    return (ids - unknown).union(*(stored[in_nfc(each)] or {each} for each in unknown))


def _check_some_are_there(stores: Sequence[FeatureStore], selection: IdSelection | None) -> None:
    """Raises ValueError where a list names no image of any store: ids of another form, most often."""
    if selection is None or any(image_id in store for store in stores for image_id in selection.ids):
        return
    own = next((image_id for store in stores for image_id in store.ids()), None)
    if own is not None:
        raise ValueError(
            f"{selection.origin}: none of its {plural(len(selection.ids), 'id')} is in a store to copy; an id there "
            f"is {printable(own)!r}; roibeam store ids STORE lists all"
        )


def _refuse_forms(stores: Sequence[FeatureStore], selection: IdSelection | None) -> None:
    """Raises ValueError where a merge would have two images whose ids are equal in NFC: captions would meet either."""
    if len(stores) == 1:
        return

    def accented() -> Iterator[tuple[FeatureStore, str]]:
        for store in stores:
            for each in store.ids():
                if not each.isascii() and _is_kept(each, selection):
                    yield store, each

    # Most systems write NFC; only ids of another form are held.
    others = {in_nfc(each): each for _, each in accented() if each != in_nfc(each)}
    for store, each in accented() if others else ():
        other = others.get(in_nfc(each), each)
        if each != other:
            raise ValueError(
                f"{store.path}: the id {each!a} differs from {other!a} of another store, or of this one, only in its "
                f"Unicode form; leave one of them out with --without-ids, as `roibeam store ids --json` prints it"
            )


def _is_kept(image_id: str, selection: IdSelection | None) -> bool:
    return selection is None or (image_id in selection.ids) != selection.is_without


def _plan_digest(stores: Sequence[FeatureStore], options: CopyOptions, names: ImportedClasses | None) -> str:
    """The same for two runs exactly when they write the same shards."""
    digest = hashlib.sha256()
    for part in (*(store.manifest.to_json() for store in stores), options.change.to_json()):
        digest.update(hashlib.sha256(json.dumps(part, sort_keys=True).encode("ascii")).digest())
    digest.update(f"{options.shard_size} {options.shard_bytes}".encode("ascii"))
    if names is not None:
        digest.update(f"names {names.names.digest}".encode("ascii"))
    if options.selection is not None:
        digest.update(b"without" if options.selection.is_without else b"")
        for image_id in sorted(options.selection.ids):
            digest.update(b"\0" + image_id.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


class _Outcomes:
    """Reads and changes records, and knows which digests the next shard must have if nothing was changed."""

    def __init__(self, stores: Sequence[FeatureStore], options: CopyOptions) -> None:
        self._stores, self._options = stores, options
        self._unchanged: list[tuple[bytes, bytes]] | None = []  # None: records of this shard were changed

    def of(self, entries: Iterable[Entry]) -> Iterator[Outcome]:
        ahead: deque[Entry] = deque()
        for entry in entries:
            ahead.append(entry)
            if isinstance(entry, StoredRecord):
                store = self._stores[entry.source]
                if store.folder.local_path is not None:  # of a URL, a shard is copied when its turn comes
                    with suppress(ValueError, KeyError):  # of a damaged record, an error when its turn comes
                        store.prefetch([entry.image_id])
            if len(ahead) > _AHEAD:
                yield self._outcome(ahead.popleft())
        while ahead:
            yield self._outcome(ahead.popleft())

    def check(self, path: Path | None, summary: ShardSummary) -> dict[str, Any]:
        """Raises ValueError when records that were not changed have other digests than in their sources' indexes."""
        expected, self._unchanged = self._unchanged, []
        if expected is not None and content_digest(expected) != summary.content_digest:
            first, last = expected[0][0].decode("utf-8"), expected[-1][0].decode("utf-8")
            raise ValueError(
                f"a record from {first!r} to {last!r} has another content than the index of its store says; "
                f"`roibeam store verify --deep` the sources to see which"
            )
        return {}

    def _outcome(self, entry: Entry) -> Outcome:
        if not isinstance(entry, StoredRecord):
            return entry
        store = self._stores[entry.source]
        try:
            record = store.get(entry.image_id, copy=False, check=True)
        except (KeyError, ValueError) as error:
            if isinstance(error, KeyError):
                what = "is listed by an index that does not find it; the index is damaged"
                error = ValueError(f"{store.folder}: record {entry.image_id!r} {what}")
            message = str(error).replace(str(store.path), str(store.folder))  # of a URL, not of the scratch folder
            if not self._options.drop_damaged:
                raise ValueError(
                    f"{message}; the copy stopped here: restore the file and run the same command again, or add "
                    f"--drop-damaged to go on without such records"
                ) from None
            return DeadLetter(entry.image_id, str(store.folder), "read", "damaged record", message)
        try:
            changed = self._options.change.apply(record)
        except DoesNotFitError as error:
            return DeadLetter(entry.image_id, str(store.folder), "record", "does not fit the dtype", str(error))
        if changed is not record:
            self._unchanged = None
        elif self._unchanged is not None:
            self._unchanged.append((entry.image_id.encode("utf-8"), entry.digest))
        return changed
