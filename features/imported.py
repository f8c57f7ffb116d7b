"""A store made of records that another code base extracted: its fingerprint, and the writing of its shards."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from features.fingerprint import IMPORTED_PREFIX, Fingerprint
from features.manifest import DeadLetter, ShardManifest, data_file_name
from features.publish import publish_shard
from features.record import RegionRecord
from features.shard import ShardWriter

ABSENT = "absent"
_COMMIT_BYTES = 64 * 2**20  # about 150 MB of memory, see docs/store-format.md, section 10


@dataclass(frozen=True)
class Repeat:
    """A line or file whose image was read before, with equal content: left out, and counted."""

    image_id: str
    location: str


def imported_fingerprint(source_format: str, details: dict[str, Any]) -> Fingerprint:
    """`imported:<format>`: nobody here knows which weights and conventions made the features.

    Args:
        details: what is known; under "classes" and "attributes" where they come from, `ABSENT` when the source has none
            (class ids and scores of the records are then 0 and mean nothing).
    """
    for name in ("classes", "attributes"):
        if not isinstance(details.get(name), str):
            raise ValueError(f"details of an imported store say where its {name} come from; got {details.get(name)!r}")
    return Fingerprint(IMPORTED_PREFIX + source_format, {}, {"format": source_format, **details})


def has_classes(fingerprint: Fingerprint) -> bool:
    """False when the class ids and scores of a store only fill their place."""
    imported = fingerprint.feature_space.startswith(IMPORTED_PREFIX)
    return not (imported and fingerprint.details.get("classes") == ABSENT)


def write_imported_shards(
    folder: Path,
    outcomes: Iterable[RegionRecord | DeadLetter | Repeat],
    *,
    fingerprint: Fingerprint,
    source: str,
    shard_size: int,
    planned_bytes: int,
) -> Iterator[ShardManifest]:
    """Writes and publishes shards 0, 1, 2, ... and yields the manifest of each; `publish_store` comes after the last.

    Memory does not grow with the number of outcomes: one record, one LMDB transaction, the dead letters of one shard.

    Args:
        outcomes: records in any order, with ids that are unique; ascending ones make shards with disjoint ranges.
        source: what the records come from; goes into the digest of a shard's members.
        shard_size: outcomes per shard.
        planned_bytes: rough size of a shard, so that the map of LMDB need not grow.
    Raises:
        ValueError: for records of several widths or dtypes in one shard, or one id twice in it.
        OSError: when the folder cannot be written; the shard that was being written leaves no file.
    """
    remaining = iter(outcomes)
    first: RegionRecord | DeadLetter | Repeat | None = next(remaining, None)
    number = 0
    while first is not None:
        attempt = secrets.token_hex(4)
        members = hashlib.sha256(source.encode("utf-8", "backslashreplace"))
        letters: list[DeadLetter] = []
        repeats = 0
        path = folder / data_file_name(number, attempt)
        with ShardWriter(path, planned_bytes=planned_bytes, commit_bytes=_COMMIT_BYTES) as writer:
            outcome: RegionRecord | DeadLetter | Repeat | None = first
            taken = 0
            while outcome is not None:
                members.update(outcome.image_id.encode("utf-8", "surrogatepass") + b"\0")
                if isinstance(outcome, RegionRecord):
                    writer.put(outcome)
                elif isinstance(outcome, DeadLetter):
                    letters.append(outcome)
                else:
                    repeats += 1
                taken += 1
                outcome = next(remaining, None) if taken < shard_size else None
            summary = writer.finish()
        manifest = ShardManifest.from_summary(
            summary,
            shard=number,
            attempt=attempt,
            fingerprint=fingerprint,
            members_digest=members.hexdigest(),
            dead_letters=letters,
            stats={"equal_repeats": repeats},
        )
        publish_shard(folder, manifest)
        yield manifest
        number += 1
        first = next(remaining, None)
