"""JSON files of a store: a manifest for each shard and one for the store, written last, and the numbers of its plan.

A data file that no manifest names does not exist. Fields that this version does not know are ignored, so a later
version may add some; a change of meaning is a new version number, which is refused. No field is used before it is
checked.

`listed_manifest` finds the shard manifest that a store manifest was made from, also while failed images of the shard
are tried again. `unfinished_run` reads `plan.json`, which `roibeam.pipelines.data.shard_plan` writes and reads in full.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from roibeam.features.folders.durable_files import read_regular_file
from roibeam.features.folders.folder_protocol import OutputFolder
from roibeam.features.folders.kept_work import check_sum
from roibeam.features.record.fingerprint import IMPORTED_PREFIX, Fingerprint
from roibeam.features.shard.layout import DTYPE_CODES
from roibeam.messages import plural, short_repr


def parse_json(data: bytes, path: str | os.PathLike[str]) -> Any:
    """Raises ValueError naming `path` for what is no JSON; NaN and infinity are none."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON ({error}); restore it or run the command that wrote it again") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


class JsonFields:
    """A JSON object being read: each method takes one field, and a complaint names file, field, want and got."""

    def __init__(self, value: Any, where: str) -> None:
        self._where = where
        if not isinstance(value, dict):
            raise self.wrong("content", "an object", value)
        self._value = value

    def wrong(self, name: str, want: str, got: object) -> ValueError:
        text = repr(got)
        text = text if len(text) <= 200 else text[:200] + "..."
        return ValueError(
            f"{self._where}: {name} must be {want}, got {text}; "
            f"restore the file from a copy or run the command that wrote it again"
        )

    def format(self, want: str, want_version: int) -> None:
        found, version = self.text("format"), self.count("version")
        if found != want:
            raise ValueError(f"{self._where}: format is {found!r}, expected {want!r}; is this the right file?")
        if version != want_version:
            raise ValueError(
                f"{self._where}: {want} version {version}, this roibeam reads {want_version}; "
                f"read it with the version that wrote it"
            )

    def or_none(self, take: Callable[[str], Any], name: str) -> Any:
        """`take`, one of the methods below, for a field that may be null."""
        value = self._take(name, "there (null when it has no value)", lambda _value: True)
        return None if value is None else take(name)

    def text(self, name: str) -> str:
        return self._take(name, "a string", lambda value: isinstance(value, str))

    def count(self, name: str) -> int:
        return self._take(name, "an integer from 0", lambda value: type(value) is int and 0 <= value < 2**63)

    def digest(self, name: str) -> str:
        def is_digest(value: object) -> bool:
            return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None

        return self._take(name, "64 hex digits", is_digest)

    def mapping(self, name: str) -> dict[str, Any]:
        return self._take(name, "an object", lambda value: isinstance(value, dict))

    def items(self, name: str) -> list[Any]:
        return self._take(name, "a list", lambda value: isinstance(value, list))

    def objects(self, name: str) -> list[JsonFields]:
        return [JsonFields(inner, f"{self._where}: {name}[{i}]") for i, inner in enumerate(self.items(name))]

    def names(self, name: str) -> tuple[str, ...] | None:
        def is_names(value: object) -> bool:
            return value is None or (isinstance(value, list) and all(isinstance(one, str) for one in value))

        value = self._take(name, "null or a list of strings", is_names)
        return None if value is None else tuple(value)

    def file_name(self, name: str) -> str:
        """A name that cannot leave the folder of the manifest."""

        def is_plain(value: object) -> bool:
            return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", value) is not None

        return self._take(name, "a plain file name in the same folder (no separator, no '..')", is_plain)

    def fingerprint(self, name: str) -> Fingerprint:
        inner = JsonFields(self.mapping(name), f"{self._where}: {name}")
        details = inner.mapping("details") if "details" in inner._value else {}
        try:
            return Fingerprint(inner.text("feature_space"), inner.mapping("numerics"), details)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._where}: {error}") from None

    def plain_fields(self, kind: type) -> dict[str, Any]:
        """The fields of a dataclass that are here under their names: all but its tuples and other dataclasses."""
        found: dict[str, Any] = {}
        for each in fields(kind):
            written = str(each.type)
            take = _TAKEN_BY_NAME.get(each.name) or _TAKEN_BY_TYPE.get(written.removesuffix(" | None"))
            if take is not None:
                one = partial(take, self)
                found[each.name] = self.or_none(one, each.name) if written.endswith(" | None") else one(each.name)
        return found

    def _take(self, name: str, want: str, fits: Callable[[Any], bool]) -> Any:
        if name not in self._value:
            raise self.wrong(name, want, "nothing: the field is missing")
        value = self._value[name]
        if not fits(value):
            raise self.wrong(name, want, value)
        return value


_TAKEN_BY_TYPE: dict[str, Callable[[JsonFields, str], Any]] = {
    "int": JsonFields.count,
    "str": JsonFields.text,
    "dict[str, Any]": JsonFields.mapping,
    "Fingerprint": JsonFields.fingerprint,
}
_TAKEN_BY_NAME: dict[str, Callable[[JsonFields, str], Any]] = {
    **dict.fromkeys(("file", "manifest", "data_file"), JsonFields.file_name),
    **dict.fromkeys(("content_digest", "manifest_sha256", "sha256"), JsonFields.digest),
}

SHARD_FORMAT = "roibeam-shard"
STORE_FORMAT = "roibeam-store"
MANIFEST_VERSION = 1
STORE_MANIFEST_NAME = "manifest.json"
ANNOTATIONS_NAME = "annotations.parquet"
LOCATIONS_NAME = "locations.jsonl"
RETRIED_PREFIX = "retried-"
DEAD_LETTERS_NAME = "dead_letters.parquet"
EMPTY_CONTENT_DIGEST = hashlib.sha256().hexdigest()


def data_file_name(shard: int, attempt: str) -> str:
    """`part-00003.<attempt>.lmdb`; two attempts of one shard never share a file. Raises ValueError when `attempt` is
    not 1 to 64 letters, digits, `-` or `_`."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", attempt):
        raise ValueError(f"attempt {attempt!r} must be 1 to 64 letters, digits, - or _: it becomes part of a file name")
    return f"part-{shard:05d}.{attempt}.lmdb"


def retried_manifest_name(shard: int) -> str:
    """Name of a finished shard's manifest while its failed images are tried again."""
    return f"{RETRIED_PREFIX}{shard:05d}.json"


def shard_manifest_name(shard: int) -> str:
    """`part-00003.json`."""
    return f"part-{shard:05d}.json"


class _JsonFile(ABC):
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
    """Facts of the file that `ShardWriter.finish` wrote.

    Attributes:
        data_bytes: size of the data file; always `page_size * num_pages`. 0 without records: then there is no file.
        index_offset, index_bytes: where the offset index lies in the file.
        feature_dtype: key of `FEATURE_DTYPES`; None without records, as `first_id` and `last_id` are.
        first_id, last_id: smallest and largest image id in the order of their UTF-8 bytes.
        content_digest: hex, see `roibeam.features.record.region_record.content_digest`.
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
        letters = tuple(DeadLetter(**inner.plain_fields(DeadLetter)) for inner in read.objects("dead_letters"))
        manifest = cls(**read.plain_fields(cls), dead_letters=letters)
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
        own: dict[str, Any] = {"manifest": shard_manifest_name(manifest.shard), "manifest_sha256": manifest_sha256}
        return cls(**own, **{f.name: getattr(manifest, f.name) for f in fields(cls) if f.name not in own})


@dataclass(frozen=True, kw_only=True)
class AnnotationsEntry:
    """The table of captions and labels beside the shards, docs/store-format.md, section 7.

    Attributes:
        file: its name in the same folder.
        rows: images in it; those without captions and labels are not.
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
        entries = tuple(ShardEntry(**one.plain_fields(ShardEntry)) for one in read.objects("shards"))
        annotations = None
        if value.get("annotations") is not None:
            table = JsonFields(value["annotations"], f"{path}: annotations")
            annotations = AnnotationsEntry(**table.plain_fields(AnnotationsEntry))
        manifest = cls(
            **read.plain_fields(cls),
            classes=vocabulary.names("classes"),
            attributes=vocabulary.names("attributes"),
            shards=entries,
            annotations=annotations,
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


class ListedManifest(NamedTuple):
    """Bytes of a shard manifest and their SHA-256: another than the entry's where the store changed and the old one is
    gone. `is_set_aside`: a run tries the shard's failed images again, or was stopped when it did."""

    data: bytes
    sha256: str
    is_set_aside: bool = False


def listed_manifest(read: Callable[[str], bytes], entry: ShardEntry, where: str) -> ListedManifest:
    """The manifest that the store manifest was made from, wherever it is now; FileNotFoundError where it is gone.

    `extract --retry-dead-letters` sets the manifests of its shards aside and keeps their data files until the store
    manifest lists the new ones. So the store can be read while such a run is at work, or after it was killed.

    Args:
        read: gives a whole file of the store's folder by its name; FileNotFoundError where there is none.
        where: how messages name the manifest.
    """
    data = _read(read, entry.manifest)
    digest = None if data is None else hashlib.sha256(data).hexdigest()
    if digest != entry.manifest_sha256:
        aside = _read(read, retried_manifest_name(entry.shard))
        if aside is not None and hashlib.sha256(aside).hexdigest() == entry.manifest_sha256:
            return ListedManifest(aside, entry.manifest_sha256, is_set_aside=True)
    if data is None or digest is None:
        raise FileNotFoundError(
            f"{where}: is missing, {STORE_MANIFEST_NAME} lists it; restore it, or run the command that wrote the store "
            f"again"
        )
    return ListedManifest(data, digest)


def checked_manifest(
    read: Callable[[str], bytes], entry: ShardEntry, where: str, *, exact: bool = True
) -> tuple[ShardManifest, bytes]:
    """The manifest that the store manifest was made from, and its bytes; ValueError when it is gone, and another is
    there, or, `exact`, when its counts and ids are not those of the entry. Else as `listed_manifest`."""
    data, digest, _ = listed_manifest(read, entry, where)
    manifest = ShardManifest.from_bytes(data, where)
    own = ShardEntry.of(manifest, manifest_sha256=digest) if exact else replace(entry, manifest_sha256=digest)
    if own != entry:
        raise ValueError(
            f"{where}: is not the manifest that {STORE_MANIFEST_NAME} was made from (SHA-256 {digest}, expected "
            f"{entry.manifest_sha256}); finish the run that changed it and open the store again, or verify the store"
        )
    return manifest, data


def _read(read: Callable[[str], bytes], name: str) -> bytes | None:
    try:
        return read(name)
    except FileNotFoundError:
        return None


PLAN_NAME = "plan.json"
PLAN_FORMAT = "roibeam-plan"


@dataclass(frozen=True)
class UnfinishedRun:
    """A plan of which the store manifest does not list all shards; `str()` of it is the message."""

    planned_shards: int
    missing_shards: int
    planned_images: int
    missing_images: int

    def __str__(self) -> str:
        of_images = f"{self.missing_images:,} of {plural(self.planned_images, 'image')}"
        return (
            f"a run that adds images has not finished: {self.missing_shards:,} of "
            f"{plural(self.planned_shards, 'planned shard')} ({of_images}) are missing"
        )


def unfinished_run(folder: OutputFolder, manifest: StoreManifest) -> UnfinishedRun | None:
    """The run of the store's plan that has not finished; None for a store that is complete, or has no plan.

    Args:
        manifest: of the store in `folder`.
    Raises:
        ValueError: naming plan.json, when it is damaged or no plan of an extraction.
        OSError: when it cannot be read.
    """
    if manifest.fingerprint.feature_space.startswith(IMPORTED_PREFIX) or "copy" in manifest.config:
        return None
    try:
        planned = _planned_images(folder.read_bytes(PLAN_NAME))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{folder.where(PLAN_NAME)}: is damaged or no plan of roibeam ({error}); run the same command again, or "
            f"restore it"
        ) from None
    missing = planned.keys() - {entry.shard for entry in manifest.shards}
    if not missing:
        return None
    images = sum(planned[number] for number in missing)
    return UnfinishedRun(len(planned), len(missing), sum(planned.values()), images)


def _planned_images(data: bytes) -> dict[int, int]:
    """Images of each planned shard by its number."""
    check_sum(data, PLAN_NAME)
    content = json.loads(data)
    if content["format"] != PLAN_FORMAT:
        raise ValueError(f"format {content['format']!r}")
    return {int(shard["number"]): int(shard["num_images"]) for shard in content["shards"]}
