"""The store of a perfect perception beside a toy world: the regions of all its pictures, under the ids that an
extraction of the world's folder gives them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roibeam.features.folders.folder_lock import store_lock
from roibeam.features.record.digest import record_digest
from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.features.shard.manifest import ShardManifest, StoreManifest
from roibeam.features.writing.finished_shards import FinishedShards, check_folder
from roibeam.features.writing.store_writer import DEFAULT_SHARD_BYTES
from roibeam.features.writing.writer_settings import WriterSettings
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.common.files.image_ids import image_id_of
from roibeam.pipelines.toyworld.beside_world import check_beside
from roibeam.pipelines.toyworld.perfect_perception import CLASS_NAMES, Perception, perceive, write_perfect_store
from roibeam.pipelines.toyworld.picture import SCENES_NAME, read_pictures
from roibeam.pipelines.toyworld.scene import Scene, generate
from roibeam.pipelines.toyworld.splits import place_of
from roibeam.pipelines.toyworld.tasks.nlvr2 import Nlvr2Task, read_names
from roibeam.pipelines.toyworld.world import ATTRIBUTES
from roibeam.pipelines.toyworld.write import PICTURES

_NLVR2 = Nlvr2Task.name


@dataclass(frozen=True)
class WrittenStore:
    """What a run found or made; `written` counts the pictures that were missing."""

    manifest: StoreManifest
    written: int
    seconds: float


@dataclass(frozen=True)
class PerfectStore:
    """The store that is asked for.

    Attributes:
        folder: of the store, as it was typed.
        world: folder of the toy world.
        seed, num_images: of the world.
        tasks: folder of its tasks, whose names of NLVR2's pictures the store has too; None for none.
    """

    folder: str
    world: Path
    perception: Perception
    seed: int
    num_images: int
    tasks: Path | None = None

    def check(self) -> None:
        """Sees that the store can be written, or gone on with, before anything is drawn.

        Raises:
            ValueError: if the folder cannot be this store's, or holds another one.
        """
        check_beside("--perfect-store", self.folder, self.world, holds="store")
        folder = Path(self.folder)
        if folder.is_dir() and any(folder.iterdir()):
            self._check_begun(folder)

    def write(self) -> WrittenStore:
        """Writes the regions of all pictures of the drawn world, or those that are missing.

        Raises:
            ValueError: as `check`.
        """
        start, folder = time.monotonic(), Path(self.folder)
        before, names = _num_records(folder), _other_names(self.tasks)
        total = self.num_images + sum(map(len, names.values()))
        with Progress("writing regions", total, PICTURES) as progress:
            scenes = progress.counting(_scenes(self.world, names))
            manifest = write_perfect_store(folder, scenes, self.perception, photos=self.world)
        return WrittenStore(manifest, manifest.num_records - before, time.monotonic() - start)

    def _check_begun(self, folder: Path) -> None:
        for path in sorted(folder.glob("part-*.json")):
            name = ShardManifest.read(path).fingerprint.feature_space.removeprefix(IMPORTED_PREFIX)
            found = Perception.of_feature_space(name)
            if found is not None and name != self.perception.feature_space:
                raise ValueError(
                    f"{folder}: holds a perfect store with {found.words}, asked for {self.perception.words}; ask for "
                    "the same, or give another folder"
                )
        settings = WriterSettings(
            feature_space=self.perception.feature_space,
            classes=CLASS_NAMES,
            attributes=ATTRIBUTES,
            num_classes=None,
            dtype=None,
            shard_bytes=DEFAULT_SHARD_BYTES,
        )
        check_folder(folder, settings)  # before the lock: it is a file, and another's folder gets none
        with store_lock(folder):
            self._check_pictures(folder, FinishedShards(folder, settings))

    def _check_pictures(self, folder: Path, shards: FinishedShards) -> None:
        """That they are of this world: all by their ids, the first by its regions too."""
        is_first = True
        for image_id in shards.ids():
            if image_id.startswith(f"{_NLVR2}/"):
                if self.tasks is None:
                    raise ValueError(f"{folder}: has NLVR2's pictures of a world's tasks too; name them with --tasks")
                continue
            index = _index_of(image_id)
            is_there = index is not None and index < self.num_images
            if is_there and is_first:
                is_first = False
                assert index is not None
                expected = perceive(generate(self.seed, index).scene, image_id, self.perception)
                is_there = shards.stored(image_id)[0] == record_digest(expected)
            if not is_there:
                raise ValueError(
                    f"{folder}: its image {image_id!r} is of another toy world than {self.world}; give another folder"
                )


def image_id(index: int) -> str:
    """Of scene `index`: the path of its picture below the world's folder, without the extension."""
    place = place_of(index)
    return image_id_of(f"{place.dataset}/{place.file_name(index + 1)}")


def _index_of(image: str) -> int | None:
    """The scene with this image id; None for an id that none has."""
    digits = re.search(r"[0-9]+$", image)
    index = -1 if digits is None else int(digits[0]) - 1
    return index if index >= 0 and image_id(index) == image else None


def _scenes(world: Path, other_names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Scene]]:
    for picture in read_pictures(world / SCENES_NAME):
        name = image_id(picture.scene.index)
        for each in (name, *other_names.get(name, ())):
            yield each, picture.scene


def _other_names(tasks: Path | None) -> dict[str, list[str]]:
    """Image id -> what NLVR2 calls the picture, as `roibeam extract TASKS` does too."""
    found: dict[str, list[str]] = {}
    for name, picture in () if tasks is None else read_names(tasks / _NLVR2):
        found.setdefault(image_id_of(picture), []).append(image_id_of(f"{_NLVR2}/{name}"))
    return found


def _num_records(folder: Path) -> int:
    return sum(ShardManifest.read(path).num_records for path in folder.glob("part-*.json"))
