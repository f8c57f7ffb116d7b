"""The JSON files that make data files valid: one manifest per shard, one per store, written last.

A data file that no manifest names does not exist. Fields that this version does not know are ignored, so a later
version may add some; a change of meaning is a new version number, which is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from roibeam.features.folders.durable_files import read_regular_file
from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.shard.json_fields import JsonFields, parse_json
from roibeam.features.shard.layout import DTYPE_CODES
from roibeam.short_repr import short_repr

SHARD_FORMAT = "roibeam-shard"
STORE_FORMAT = "roibeam-store"
MANIFEST_VERSION = 1
STORE_MANIFEST_NAME = "manifest.json"
ANNOTATIONS_NAME = "annotations.parquet"
RETRIED_PREFIX = "retried-"
DEAD_LETTERS_NAME = "dead_letters.parquet"
EMPTY_CONTENT_DIGEST = hashlib.sha256().hexdigest()


def data_file_name(shard: int, attempt: str) -> str:
    """`part-00003.<attempt>.lmdb`; two attempts of one shard never share a file.

    Raises:
        ValueError: when `attempt` is not 1 to 64 letters, digits, `-` or `_`.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", attempt):
        raise ValueError(f"attempt {attempt!r} must be 1 to 64 letters, digits, - or _: it becomes part of a file name")
    return f"part-{shard:05d}.{attempt}.lmdb"


def retried_manifest_name(shard: int) -> str:
    """Where the manifest of a finished shard waits while its failed images are tried again."""
    return f"{RETRIED_PREFIX}{shard:05d}.json"


def shard_manifest_name(shard: int) -> str:
    """`part-00003.json`."""
    return f"part-{shard:05d}.json"


class _JsonFile(ABC):
    """A manifest as the file it is."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Raises FileNotFoundError, or ValueError naming file and field."""
        return cls.from_bytes(read_regular_file(Path(path)), path)

    @classmethod
    def from_bytes(cls, data: bytes, path: str | os.PathLike[str]) -> Self:
        """Reads a file's content; `path` is only named in errors."""
        return cls.from_json(parse_json(data, path), path)

    @classmethod
    @abstractmethod
    def from_json(cls, value: Any, path: str | os.PathLike[str]) -> Self:
        """Reads what `to_json` gives; `path` is only named in errors."""


@dataclass(frozen=True, kw_only=True)
class ShardSummary:
    """What `ShardWriter.finish` knows about the file it wrote.

    Attributes:
        data_bytes: size of the data file; always `page_size * num_pages`. 0 without records: then there is no file.
        index_offset, index_bytes: where the offset index lies in the file.
        feature_dtype: key of `FEATURE_DTYPES`; None without records, as `first_id` and `last_id` are.
        first_id, last_id: smallest and largest image id in the order of their UTF-8 bytes.
        content_digest: hex, see `roibeam.features.record.digest.content_digest`.
    """

    data_bytes: int = 0
    page_size: int = 0
    num_pages: int = 0
    index_offset: int = 0
    index_bytes: int = 0
    num_records: int = 0
    num_regions: int = 0
    feature_dim: int = 0
    feature_dtype: str | None = None
    first_id: str | None = None
    last_id: str | None = None
    content_digest: str = EMPTY_CONTENT_DIGEST


@dataclass(frozen=True)
class DeadLetter:
    """An image that gave no record: where it was, which stage failed, a reason to count by, and what happened."""

    image_id: str
    location: str
    stage: str
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class ShardManifest(ShardSummary, _JsonFile):
    """`part-00003.json`: which attempt's file is the shard, what is in it, and which images failed.

    Attributes:
        data_file: name in the same folder; None when no image of the shard gave a record.
        fingerprint: feature space and numerics of this shard (details stand in the store manifest).
        members_digest: hex digest of the plan's members of this shard, as `pipelines` defines it; compared, not
        recomputed.
        stats: anything JSON about the run: seconds, rates, host.
    """

    shard: int
    attempt: str
    data_file: str | None
    fingerprint: Fingerprint
    members_digest: str
    dead_letters: tuple[DeadLetter, ...] = ()
    stats: dict[str, Any] = field(default_factory=dict)

    __repr__ = short_repr

    @classmethod
    def from_summary(
        cls,
        summary: ShardSummary,
        *,
        shard: int,
        attempt: str,
        fingerprint: Fingerprint,
        members_digest: str,
        dead_letters: Iterable[DeadLetter] = (),
        stats: dict[str, Any] | None = None,
    ) -> Self:
        """The manifest of a finished `ShardWriter`, its file named by `data_file_name`."""
        data_file = data_file_name(shard, attempt) if summary.num_records else None
        named = {f.name: getattr(summary, f.name) for f in fields(ShardSummary)}
        return cls(
            shard=shard,
            attempt=attempt,
            data_file=data_file,
            fingerprint=fingerprint,
            members_digest=members_digest,
            dead_letters=tuple(dead_letters),
            stats=stats or {},
            **named,
        )

    def to_json(self) -> dict[str, Any]:
        inner = asdict(self)
        del inner["fingerprint"]["details"]
        head = ("shard", "attempt", "data_file", "fingerprint", "members_digest")
        first = {name: inner.pop(name) for name in head}
        last = {"dead_letters": list(inner.pop("dead_letters")), "stats": inner.pop("stats")}
        return {"format": SHARD_FORMAT, "version": MANIFEST_VERSION, **first, **inner, **last}

    @classmethod
    def from_json(cls, value: Any, path: str | os.PathLike[str]) -> Self:
        read = JsonFields(value, str(path))
        read.format(SHARD_FORMAT, MANIFEST_VERSION)
        dead = [JsonFields(inner, f"{path}: dead_letters[{i}]") for i, inner in enumerate(read.items("dead_letters"))]
        manifest = cls(
            shard=read.count("shard"),
            attempt=read.text("attempt"),
            data_file=read.or_none(read.file_name, "data_file"),
            fingerprint=read.fingerprint("fingerprint"),
            members_digest=read.text("members_digest"),
            data_bytes=read.count("data_bytes"),
            page_size=read.count("page_size"),
            num_pages=read.count("num_pages"),
            index_offset=read.count("index_offset"),
            index_bytes=read.count("index_bytes"),
            num_records=read.count("num_records"),
            num_regions=read.count("num_regions"),
            feature_dim=read.count("feature_dim"),
            feature_dtype=read.or_none(read.text, "feature_dtype"),
            first_id=read.or_none(read.text, "first_id"),
            last_id=read.or_none(read.text, "last_id"),
            content_digest=read.digest("content_digest"),
            dead_letters=tuple(DeadLetter(**{f.name: one.text(f.name) for f in fields(DeadLetter)}) for one in dead),
            stats=read.mapping("stats"),
        )
        named = (manifest.data_file, manifest.feature_dtype, manifest.first_id, manifest.last_id)
        if any((name is None) != (manifest.num_records == 0) for name in named):
            raise read.wrong(
                "data_file, feature_dtype, first_id and last_id", "null exactly when num_records is 0", named
            )
        if manifest.feature_dtype is not None and manifest.feature_dtype not in DTYPE_CODES:
            raise read.wrong("feature_dtype", "|".join(DTYPE_CODES), manifest.feature_dtype)
        return manifest


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """One shard as the store manifest lists it: enough to find an image without opening the shard's own manifest."""

    shard: int
    manifest: str
    data_file: str | None
    num_records: int
    num_regions: int
    data_bytes: int
    first_id: str | None
    last_id: str | None
    content_digest: str
    manifest_sha256: str

    @classmethod
    def of(cls, manifest: ShardManifest, *, manifest_sha256: str) -> Self:
        """How the store manifest lists a shard."""
        own: dict[str, Any] = {
            "manifest": shard_manifest_name(manifest.shard),
            "manifest_sha256": manifest_sha256,
        }
        return cls(**own, **{f.name: getattr(manifest, f.name) for f in fields(cls) if f.name not in own})


@dataclass(frozen=True, kw_only=True)
class AnnotationsEntry:
    """The table of captions and labels beside the shards, docs/store-format.md, section 8.

    Attributes:
        file: its name in the same folder.
        rows: images in it; those without captions and labels are not.
        captions, labels: of all rows together.
        bytes, sha256: of the file; sha256 in hex.
    """

    file: str
    rows: int
    captions: int
    labels: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class StoreManifest(_JsonFile):
    """`manifest.json`: the shards that are the store.

    Attributes:
        config: the resolved configuration of the run.
        classes, attributes: vocabularies in id order; None when unknown. In JSON under "vocabulary".
        shards: by ascending shard number.
        content_digest: hex; equal for two stores with equal records, however they are cut into shards.
        annotations: captions and labels of the images; None where there are none.
    """

    fingerprint: Fingerprint
    config: dict[str, Any]
    classes: tuple[str, ...] | None
    attributes: tuple[str, ...] | None
    feature_dim: int
    feature_dtype: str | None
    shards: tuple[ShardEntry, ...]
    num_records: int
    num_regions: int
    num_dead_letters: int
    content_digest: str
    annotations: AnnotationsEntry | None = None

    __repr__ = short_repr

    @property
    def vocabulary(self) -> dict[str, list[str] | None]:
        """{"classes": list or None, "attributes": list or None}, lists in id order."""
        return {
            "classes": None if self.classes is None else list(self.classes),
            "attributes": None if self.attributes is None else list(self.attributes),
        }

    def to_json(self) -> dict[str, Any]:
        inner = asdict(self)
        del inner["classes"], inner["attributes"]
        if self.annotations is None:
            del inner["annotations"]  # as in the stores of earlier versions
        first = {name: inner.pop(name) for name in ("fingerprint", "config")}
        head = {"format": STORE_FORMAT, "version": MANIFEST_VERSION}
        shards = list(inner.pop("shards"))
        return {**head, **first, "vocabulary": self.vocabulary, **inner, "shards": shards}

    @classmethod
    def from_json(cls, value: Any, path: str | os.PathLike[str]) -> Self:
        read = JsonFields(value, str(path))
        read.format(STORE_FORMAT, MANIFEST_VERSION)
        vocabulary = JsonFields(read.mapping("vocabulary"), f"{path}: vocabulary")
        entries = [
            ShardEntry(
                shard=one.count("shard"),
                manifest=one.file_name("manifest"),
                data_file=one.or_none(one.file_name, "data_file"),
                num_records=one.count("num_records"),
                num_regions=one.count("num_regions"),
                data_bytes=one.count("data_bytes"),
                first_id=one.or_none(one.text, "first_id"),
                last_id=one.or_none(one.text, "last_id"),
                content_digest=one.digest("content_digest"),
                manifest_sha256=one.digest("manifest_sha256"),
            )
            for one in (JsonFields(inner, f"{path}: shards[{i}]") for i, inner in enumerate(read.items("shards")))
        ]
        manifest = cls(
            fingerprint=read.fingerprint("fingerprint"),
            config=read.mapping("config"),
            classes=vocabulary.names("classes"),
            attributes=vocabulary.names("attributes"),
            feature_dim=read.count("feature_dim"),
            feature_dtype=read.or_none(read.text, "feature_dtype"),
            shards=tuple(entries),
            num_records=read.count("num_records"),
            num_regions=read.count("num_regions"),
            num_dead_letters=read.count("num_dead_letters"),
            content_digest=read.digest("content_digest"),
            annotations=_read_annotations(value, path) if "annotations" in value else None,
        )
        for name in ("num_records", "num_regions"):
            total = sum(getattr(entry, name) for entry in entries)
            if total != getattr(manifest, name):
                raise read.wrong(name, f"{total}, the sum over its shards", getattr(manifest, name))
        if any(left.shard >= right.shard for left, right in pairwise(entries)):
            raise read.wrong("shards", "ascending shard numbers", [entry.shard for entry in entries][:20])
        for entry in entries:
            named = (entry.data_file, entry.first_id, entry.last_id)
            if any((name is None) != (entry.num_records == 0) for name in named):
                raise read.wrong(f"shard {entry.shard}", "data_file and ids null exactly when it has no records", named)
        return manifest


def _read_annotations(manifest: dict[str, Any], path: str | os.PathLike[str]) -> AnnotationsEntry | None:
    if manifest["annotations"] is None:
        return None
    read = JsonFields(manifest["annotations"], f"{path}: annotations")
    return AnnotationsEntry(
        file=read.file_name("file"),
        rows=read.count("rows"),
        captions=read.count("captions"),
        labels=read.count("labels"),
        bytes=read.count("bytes"),
        sha256=read.digest("sha256"),
    )
