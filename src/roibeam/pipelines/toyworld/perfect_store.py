"""Perfect perception: regions as from a detector that knows the scene graph, and their store beside a toy world.

A feature is the sum of one random vector for the category and one for each attribute, plus noise. So the learning of a
model from such regions does not depend on the quality of a detector. The cost of a worse detector can be measured one
fault at a time. The store has all pictures, under the ids that an extraction of the world's folder gives them.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np

from roibeam.features.folders.folder_protocol import store_lock
from roibeam.features.record.fingerprint import IMPORTED_PREFIX
from roibeam.features.record.region_record import RegionRecord, record_digest
from roibeam.features.shard.manifest import ShardManifest, StoreManifest
from roibeam.features.writing.partial_store import FinishedShards, check_folder
from roibeam.features.writing.store_writer import DEFAULT_SHARD_BYTES, write_store
from roibeam.features.writing.writer_input import WriterSettings
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.common.image_ids import image_id_of
from roibeam.pipelines.toyworld.picture import SCENES_NAME, read_pictures
from roibeam.pipelines.toyworld.scene import Scene, generate
from roibeam.pipelines.toyworld.tasks.nlvr2 import Nlvr2Task, read_names
from roibeam.pipelines.toyworld.world import ATTRIBUTES, CATEGORIES, place_of
from roibeam.pipelines.toyworld.world_files import WrittenFiles, check_beside
from roibeam.pipelines.toyworld.write import PICTURES

FEATURE_DIM = 96
CLASS_NAMES = tuple(CATEGORIES)
SPACE_PREFIX = "toyworld-perfect-"
MOST_DEVIATION = 100  # beyond it a feature is noise alone; float16 ends at 65,504
_VECTORS, _FAULTS, _NOISE, _JITTER = 100, 101, 102, 103  # purposes of random numbers

_DEVIATION = (MOST_DEVIATION, "a standard deviation")
_SPACE = re.compile(SPACE_PREFIX + "noise(.+)-missed(.+)-doubled(.+)-jitter(.+)")


@dataclass(frozen=True)
class Perception:
    """Faults of the perception of objects; the defaults give each object one region with its own box.

    Attributes:
        noise: standard deviation of the noise on each number of a feature; the vectors have 1.
        missed: share of objects without a region, 0..1.
        doubled: share of objects with two regions, with noise and box of their own, 0..1.
        box_jitter: standard deviation of a box's edges, as a share of its width or height.
    Raises:
        ValueError: for a share outside 0..1, a deviation outside 0..`MOST_DEVIATION`, or more than six digits: the name
            of the store has six.
    """

    noise: float = 0.3
    missed: float = 0.0
    doubled: float = 0.0
    box_jitter: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            spoken = name.replace("_", " ")
            most, what = (1, "a share of the objects") if name in ("missed", "doubled") else _DEVIATION
            if not 0 <= value <= most:  # also no number
                raise ValueError(f"{spoken} {value:g}: expected {what}, 0 to {most}")
            if float(f"{value:g}") != value:
                raise ValueError(f"{spoken} {value!r}: give at most six digits, such as {value:g}")

    @property
    def feature_space(self) -> str:
        """Name of the feature space: other faults count as another detector."""
        faults = f"missed{self.missed:g}-doubled{self.doubled:g}-jitter{self.box_jitter:g}"
        return f"{SPACE_PREFIX}noise{self.noise:g}-{faults}"

    @classmethod
    def of_feature_space(cls, name: str) -> Self | None:
        """Returns the perception of a store with this name; None for the name of other features."""
        found = _SPACE.fullmatch(name)
        try:
            return None if found is None else cls(*map(float, found.groups()))
        except ValueError:
            return None

    @property
    def words(self) -> str:
        """Description, such as "noise 0.3, missed 0, doubled 0, box jitter 0"."""
        return ", ".join(f"{each.name.replace('_', ' ')} {getattr(self, each.name):g}" for each in fields(self))


def perceive(scene: Scene, image_id: str, perception: Perception) -> RegionRecord:
    """Returns the regions of a scene: its objects from the lowest to the uppermost, then the second regions of some.

    The random numbers depend on the scene alone, so that more of one fault leaves the others as they were.

    Returns:
        A record of R regions: features (R, `FEATURE_DIM`) float16, boxes x1 y1 x2 y2 in pixels, classes with a score of
        1, the colour as the attribute, a distribution of 1 at the class.
    """
    things = scene.objects
    drawn = _random(_FAULTS, scene).random((len(things), 2))
    seen = np.flatnonzero(drawn[:, 0] >= perception.missed)
    twice = seen[drawn[seen, 1] < perception.doubled]
    views = np.concatenate([seen, twice + len(things)])  # rows of the random numbers: of a first and a second view
    chosen = [things[view % len(things)] for view in views]
    features = np.reshape([_vector(thing.category, thing.attributes) for thing in chosen], (len(chosen), FEATURE_DIM))
    noise = _random(_NOISE, scene).standard_normal((2 * len(things), FEATURE_DIM))[views]
    class_ids = np.array([CLASS_NAMES.index(thing.category) for thing in chosen], np.uint16)
    distribution = np.zeros((len(chosen), len(CLASS_NAMES) + 1), np.float16)
    distribution[np.arange(len(chosen)), class_ids] = 1
    ones = np.ones(len(chosen), np.float32)
    return RegionRecord(
        image_id=image_id,
        height=scene.height,
        width=scene.width,
        boxes=_boxes(scene, views, perception.box_jitter),
        features=(features + perception.noise * noise).astype(np.float16),
        class_ids=class_ids,
        class_scores=ones,
        attribute_ids=np.array([ATTRIBUTES.index(thing.colour) for thing in chosen], np.uint16),
        attribute_scores=ones,
        class_distribution=distribution,
    )


def write_perfect_store(
    out: Path, scenes: Iterable[tuple[str, Scene]], perception: Perception, *, photos: Path | None = None
) -> StoreManifest:
    """Writes the regions of all scenes as a store; resumes a stopped call.

    Args:
        out: folder of the store: new, empty, or begun by this function with the same perception.
        scenes: image id and scene.
        photos: folder of the pictures, below which an image id is a path; None where they are not needed.
    """
    return write_store(
        out,
        (perceive(scene, image_id, perception) for image_id, scene in scenes),
        feature_space=perception.feature_space,
        classes=CLASS_NAMES,
        attributes=ATTRIBUTES,
        photos=photos,
    )


def _boxes(scene: Scene, views: np.ndarray, jitter: float) -> np.ndarray:
    """(R, 4) float32, inside the picture and of at least one pixel."""
    given = np.array([thing.box for thing in scene.objects], np.float64).reshape(-1, 4)  # x, y, width, height
    given = given[views % max(1, len(given))]
    corners = np.concatenate([given[:, :2], given[:, :2] + given[:, 2:]], axis=1)
    moved = _random(_JITTER, scene).standard_normal((2 * len(scene.objects), 4))[views]
    corners += jitter * moved * np.tile(given[:, 2:], 2)
    limits = np.array([scene.width, scene.height])
    first = np.clip(np.minimum(corners[:, :2], corners[:, 2:]), 0, limits - 1)
    last = np.clip(np.maximum(corners[:, :2], corners[:, 2:]), first + 1, limits)
    return np.concatenate([first, last], axis=1).astype(np.float32)


@cache
def _vector(category: str, attributes: tuple[str, ...]) -> np.ndarray:
    """(`FEATURE_DIM`,) float64 vector that all objects of this kind have in common."""
    vectors = np.random.default_rng(_VECTORS).standard_normal((len(CLASS_NAMES) + len(ATTRIBUTES), FEATURE_DIM))
    chosen = [CLASS_NAMES.index(category), *(len(CLASS_NAMES) + ATTRIBUTES.index(name) for name in attributes)]
    return vectors[chosen].sum(axis=0)


def _random(purpose: int, scene: Scene) -> np.random.Generator:
    return np.random.default_rng([purpose, scene.seed, scene.index])


_NLVR2 = Nlvr2Task.name


@dataclass(frozen=True)
class PerfectStore:
    """Request for the perfect store of a world.

    Attributes:
        folder: of the store, as it was typed.
        tasks: folder of its tasks, whose names of NLVR2's pictures the store has too; None for none.
    """

    folder: str
    world: Path
    perception: Perception
    seed: int
    num_images: int
    tasks: Path | None = None

    def check(self) -> None:
        """Checks that the store can be written, or continued, before anything is drawn."""
        check_beside("--perfect-store", self.folder, self.world, holds="store")
        folder = Path(self.folder)
        if folder.is_dir() and any(folder.iterdir()):
            self._check_existing(folder)

    def write(self, workers: int = 1) -> WrittenFiles:
        """Writes the regions of all pictures of the drawn world, or those that are missing. The manifest of the result
        has what people want to know of the store's."""
        start, folder = time.monotonic(), Path(self.folder)
        before = sum(ShardManifest.read(path).num_records for path in folder.glob("part-*.json"))
        names: dict[str, list[str]] = {}  # NLVR2's, by image id, as `roibeam extract TASKS` has them too
        for name, picture in () if self.tasks is None else read_names(self.tasks / _NLVR2):
            names.setdefault(image_id_of(picture), []).append(image_id_of(f"{_NLVR2}/{name}"))
        total = self.num_images + sum(map(len, names.values()))
        with Progress("writing regions", total, PICTURES) as progress:
            scenes = progress.counting(_scenes(self.world, names))
            manifest = write_perfect_store(folder, scenes, self.perception, photos=self.world)
        num_new = manifest.num_records - before
        facts = {
            "written": num_new,
            "records": manifest.num_records,
            "regions": manifest.num_regions,
            "feature_space": manifest.fingerprint.feature_space,
            "perception": vars(self.perception),
        }
        return WrittenFiles(facts, num_new, time.monotonic() - start)

    def _check_existing(self, folder: Path) -> None:
        for path in sorted(folder.glob("part-*.json")):
            name = ShardManifest.read(path).fingerprint.feature_space.removeprefix(IMPORTED_PREFIX)
            found = Perception.of_feature_space(name)
            if found is not None and name != self.perception.feature_space:
                raise ValueError(
                    f"{folder}: holds a perfect store with {found.words}, requested {self.perception.words}; request "
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
        """Checks that the pictures are of this world: all by their ids, the first by its regions too."""
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
    """Returns the id of scene `index`: the path of its picture below the world's folder, without the extension."""
    place = place_of(index)
    return image_id_of(f"{place.dataset}/{place.file_name(index + 1)}")


def _index_of(image: str) -> int | None:
    """Returns the scene with this image id; None for an id that none has."""
    digits = re.search(r"[0-9]+$", image)
    index = -1 if digits is None else int(digits[0]) - 1
    return index if index >= 0 and image_id(index) == image else None


def _scenes(world: Path, other_names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Scene]]:
    for picture in read_pictures(world / SCENES_NAME):
        name = image_id(picture.scene.index)
        for each in (name, *other_names.get(name, ())):
            yield each, picture.scene
