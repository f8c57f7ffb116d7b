"""Outcomes in, published shards 0, 1, 2, ... out: how an import and a copy write a store."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.record.region_record import RegionRecord, TopKDistribution
from roibeam.features.shard.manifest import DeadLetter, ShardManifest, ShardSummary, data_file_name
from roibeam.features.shard.publish import publish_shard
from roibeam.features.shard.writer import ShardWriter


@dataclass(frozen=True)
class Repeat:
    """An entry whose image was read before, with equal content: left out, and counted."""

    image_id: str
    location: str


Outcome = RegionRecord | DeadLetter | Repeat


def write_shard_sequence(
    folder: Path,
    outcomes: Iterable[Outcome],
    *,
    fingerprint: Fingerprint,
    source: str,
    shard_size: int,
    shard_bytes: int | None = None,
    planned_bytes: int,
    first_shard: int = 0,
    stats: dict[str, Any] | None = None,
    check: Callable[[ShardSummary], None] | None = None,
) -> Iterator[ShardManifest]:
    """Writes and publishes shards with ascending numbers and yields the manifest of each; `publish_store` comes after
    the last.

    Memory does not grow with the number of outcomes: one record, one LMDB transaction, the dead letters of one shard.

    Args:
        outcomes: records in any order, with ids that are unique; ascending ones make shards with disjoint ranges. No
            outcome of the next shard is asked for before the manifest of the last one was yielded.
        source: what the records come from; goes into the digest of a shard's members.
        shard_size: outcomes per shard, at most.
        shard_bytes: a shard also ends with the record that brings it to so many bytes of arrays; None: no such limit.
        planned_bytes: rough size of a shard, so that the map of LMDB need not grow.
        first_shard: its number; larger than 0 where earlier shards are there already.
        stats: for every manifest, beside "equal_repeats".
        check: called with what was written before it is published; raises what ends the writing.
    Raises:
        ValueError: for records of several widths or dtypes in one shard, or one id twice in it.
        OSError: when the folder cannot be written; the shard that was being written leaves no file.
    """
    remaining = iter(outcomes)
    first: Outcome | None = next(remaining, None)
    number = first_shard
    while first is not None:
        attempt = secrets.token_hex(4)
        members = hashlib.sha256(source.encode("utf-8", "backslashreplace"))
        letters: list[DeadLetter] = []
        repeats = 0
        path = folder / data_file_name(number, attempt)
        with ShardWriter(path, planned_bytes=planned_bytes) as writer:
            outcome: Outcome | None = first
            taken = num_bytes = 0
            while outcome is not None:
                members.update(outcome.image_id.encode("utf-8", "surrogatepass") + b"\0")
                if isinstance(outcome, RegionRecord):
                    writer.put(outcome)
                    num_bytes += _array_bytes(outcome)
                elif isinstance(outcome, DeadLetter):
                    letters.append(outcome)
                else:
                    repeats += 1
                taken += 1
                is_full = taken >= shard_size or (shard_bytes is not None and num_bytes >= shard_bytes)
                outcome = None if is_full else next(remaining, None)
            summary = writer.finish()
        try:
            if check is not None:
                check(summary)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        manifest = ShardManifest.from_summary(
            summary,
            shard=number,
            attempt=attempt,
            fingerprint=fingerprint,
            members_digest=members.hexdigest(),
            dead_letters=letters,
            stats={"equal_repeats": repeats, **(stats or {})},
        )
        publish_shard(folder, manifest)
        yield manifest
        number += 1
        first = next(remaining, None)


def num_outcomes(manifest: ShardManifest) -> int:
    """How many outcomes a shard of such a sequence took."""
    return manifest.num_records + len(manifest.dead_letters) + int(manifest.stats["equal_repeats"])


def _array_bytes(record: RegionRecord) -> int:
    """Bytes of a record's arrays; its place in the file takes up to a page and a half more."""
    arrays = [record.features, record.boxes, record.class_ids, record.class_scores]
    arrays += [
        each for each in (record.attribute_ids, record.attribute_scores, record.image_feature) if each is not None
    ]
    distribution = record.class_distribution
    if isinstance(distribution, TopKDistribution):
        arrays += [distribution.class_ids, distribution.probabilities, distribution.rest]
    elif distribution is not None:
        arrays.append(distribution)
    return sum(array.nbytes for array in arrays)
