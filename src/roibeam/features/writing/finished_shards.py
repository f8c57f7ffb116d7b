"""The shards that `StoreWriter` has finished in a folder, now or before it was stopped: which images are in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, ShardManifest, StoreManifest
from roibeam.features.shard.reader import ShardReader
from roibeam.features.writing.annotations_table import Annotation
from roibeam.features.writing.record_kind import RecordKind
from roibeam.features.writing.sequence_folder import check_sequence_folder, plan_stat, remove_unfinished
from roibeam.features.writing.shard_captions import read_shard_captions
from roibeam.features.writing.writer_settings import WriterSettings

COMMAND = "write"  # as `plan_stat` and the store's config have it


class FinishedShards:
    """
    Args:
        folder: of the store; needs the store's lock. What a stopped writer left half is removed.
    Raises:
        ValueError: when the folder holds anything but what a writer with these settings wrote, or a shard is damaged.
    """

    def __init__(self, folder: Path, settings: WriterSettings) -> None:
        self._folder = folder
        check_folder(folder, settings)
        self.manifests: list[ShardManifest] = []
        self._shard_of: dict[str, int] = {}  # image id -> place in `manifests`
        self._read: tuple[int, dict[str, bytes], dict[str, tuple[str, ...]]] | None = None  # of one shard
        for path in sorted(folder.glob("part-*.json"), key=lambda path: (len(path.name), path.name)):
            manifest = ShardManifest.read(path)
            self.add(manifest, _ids(folder, manifest))
        self.num_earlier = len(self.manifests)
        remove_unfinished(folder, self.manifests)
        self._drop_stale_manifest()

    def _drop_stale_manifest(self) -> None:
        """Where a shard was deleted to be written again, there is no store until the writer is done."""
        path = self._folder / STORE_MANIFEST_NAME
        found = {manifest.shard for manifest in self.manifests}
        if path.exists() and not {entry.shard for entry in StoreManifest.read(path).shards} <= found:
            path.unlink()

    def add(self, manifest: ShardManifest, image_ids: Iterable[str]) -> None:
        """Takes up a shard that was published just now."""
        self._shard_of.update(dict.fromkeys(image_ids, len(self.manifests)))
        self.manifests.append(manifest)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._shard_of

    def __len__(self) -> int:
        return len(self._shard_of)

    def ids(self) -> Iterator[str]:
        """In the order of the shards."""
        return iter(self._shard_of)

    @property
    def next_number(self) -> int:
        """Of a new shard."""
        return self.manifests[-1].shard + 1 if self.manifests else 0

    def is_earlier(self, image_id: str) -> bool:
        """Whether the image was there when the folder was opened."""
        return self._shard_of.get(image_id, self.num_earlier) < self.num_earlier

    def stored(self, image_id: str) -> tuple[bytes, tuple[str, ...]]:
        """Record digest and captions of an image that is there; those of its shard are kept until another is asked."""
        place = self._shard_of[image_id]
        if self._read is None or self._read[0] != place:
            manifest = self.manifests[place]
            assert manifest.data_file is not None
            with ShardReader(self._folder / manifest.data_file, manifest) as reader:
                digests = {key.decode("utf-8"): digest for key, digest in reader.digests()}
            self._read = place, digests, self._captions(manifest)
        return self._read[1][image_id], self._read[2].get(image_id, ())

    def kind(self) -> RecordKind | None:
        """Of the records that are there; None without any."""
        for manifest in self.manifests:
            return RecordKind.from_json(
                manifest.stats.get("kind"), str(self._folder / f"part-{manifest.shard:05d}.json")
            )
        return None

    def has_classes(self) -> bool | None:
        """Whether class ids of the records were given; None where no record tells."""
        told = [manifest.stats.get("classes") for manifest in self.manifests]
        return next((bool(each) for each in told if each is not None), None)

    def annotations(self) -> Iterator[list[Annotation]]:
        """The rows of each shard, in key order."""
        for manifest in self.manifests:
            yield [Annotation(image_id, texts, ()) for image_id, texts in self._captions(manifest).items()]

    def _captions(self, manifest: ShardManifest) -> dict[str, tuple[str, ...]]:
        if not manifest.stats.get("captions"):
            return {}
        assert manifest.data_file is not None
        return read_shard_captions(self._folder / manifest.data_file)


def check_folder(folder: Path, settings: WriterSettings) -> None:
    """ValueError when the folder holds anything but what a writer with these settings wrote; only reads."""
    before = _plan_found(folder)
    difference = settings.difference(before) if isinstance(before, str) else ""
    if difference:
        raise ValueError(
            f"{folder} was begun with {difference}; open it with the same settings, or choose a new folder"
        )
    check_sequence_folder(folder, COMMAND, settings.plan)


def _plan_found(folder: Path) -> object:
    if (folder / STORE_MANIFEST_NAME).exists():
        origin = StoreManifest.read(folder / STORE_MANIFEST_NAME).config.get(COMMAND)
        return origin.get("plan") if isinstance(origin, dict) else None
    for path in sorted(folder.glob("part-*.json")):
        return ShardManifest.read(path).stats.get(next(iter(plan_stat(COMMAND, ""))))
    return None


def _ids(folder: Path, manifest: ShardManifest) -> list[str]:
    name = f"part-{manifest.shard:05d}"
    try:
        if manifest.data_file is None or not re.fullmatch(rf"{name}\.[0-9a-f]+\.lmdb", manifest.data_file):
            raise ValueError(f"{folder / name}.json: names no data file of its own")
        with ShardReader(folder / manifest.data_file, manifest) as reader:
            return list(reader.ids())
    except (OSError, ValueError) as error:
        raise ValueError(f"{error}; or delete {name}.json and write its images again") from None
