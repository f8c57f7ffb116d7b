"""Files of tasks about the pictures of pre-training, since both stores have them; and of two tasks of texts.

WORK/again/retrieval/            Karpathy's json: what a run learns from and is asked, "train", "val" and "test"
WORK/again/flickr30k-entities/   the captions of the same pictures with marked phrases, boxes and gold parses
WORK/again/stores/<name>/        their records by the names that they have there: numbers alone
WORK/again/texts/{mrpc,rte}/     pairs of captions of another world, in GLUE's form

The pictures for testing are those of the questions about pre-trained models: what these reach without learning the
task, their floors and their ceilings stand beside. Nothing is made twice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evidence.readers.bounds import Bound
from evidence.worlds import SEED, World, image_id
from roibeam.features.store import FeatureStore
from roibeam.features.writing.store_writer import write_store
from roibeam.pipelines.toyworld.entities import PARSES_NAME, ToyEntities
from roibeam.pipelines.toyworld.perfect_store import CLASS_NAMES
from roibeam.pipelines.toyworld.picture import SCENES_NAME, describe
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.toyworld.tasks.text_pairs import FollowsTask, ScenePairsTask
from roibeam.pipelines.toyworld.tasks.write_tasks import CEILING, FLOOR, READERS_FOLDER, toy_levels

MOST_TRAINED = 5000  # pictures that a task is learned from
# Pictures whose captions the tasks of texts are about; two thirds are learned from. They are of the tasks' world.
TEXT_PICTURES, QUICK_TEXT_PICTURES, TEXT_SEED = 12_000, 200, 11
RETRIEVAL, ENTITIES, TEXTS = "retrieval", "flickr30k-entities", "texts"
TEXT_TASKS = ("mrpc", "rte")
_SPLITS = {"train": "train", "val": "validation", "test": "test"}  # of the tasks: of the world
_KARPATHY = "dataset_flickr30k.json"
_READ = (
    "From the result files of a reader that knows what the captions say, and of one that says the same of all pairs."
)


class OwnPictures:
    """
    Args:
        text_pictures: see `TEXT_PICTURES`.
    """

    def __init__(self, world: World, text_pictures: int = TEXT_PICTURES) -> None:
        self.world, self.text_pictures = world, text_pictures
        self.folder = world.work / "again"

    def files(self, task: str) -> Path:
        return self.folder / TEXTS / task if task in TEXT_TASKS else self.folder / task

    def store(self, task: str, name: str) -> Path:
        """The store of a task; that of the phrases has the names of Flickr30k, where an image is a number."""
        return self.folder / "stores" / name if task == ENTITIES else self.world.store(name)

    def split(self, name: str) -> Sequence[int]:
        """Numbers of the pictures of a task's split."""
        return self.world.sizes.of(_SPLITS[name])[:MOST_TRAINED]

    def images(self, task: str, split: str) -> Sequence[str]:
        """Names of the pictures of a split, by a task; none of texts."""
        names: Mapping[str, Callable[[int], str]] = {RETRIEVAL: image_id, ENTITIES: str}
        return [names[task](index) for index in self.split(split)] if task in names else []

    def make(self, stores: Sequence[str], bounds: Path, say: Callable[[str], None]) -> None:
        """What is there is left as it is.

        Args:
            stores: names of stores of the world, which are there.
            bounds: file to write floors and ceilings of the tasks of texts to.
        """
        for task, write in ((RETRIEVAL, self._retrieval), (ENTITIES, self._entities), (TEXTS, self._texts)):
            if not (self.folder / task).exists():
                say(f"writing {self.folder / task}")
                part = self.folder / f"{task}.part"
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                write(part)
                part.rename(self.folder / task)
        if not bounds.exists():
            write_text_bounds(self.folder / TEXTS, bounds)
        for name in stores:
            if not (self.store(ENTITIES, name) / "manifest.json").exists():
                say(f"copying records into {self.store(ENTITIES, name)}")
                self._copy(name)

    def _copy(self, name: str) -> None:
        indices = [index for split in _SPLITS for index in self.split(split)]
        with FeatureStore(self.world.store(name)) as store:
            renamed = (replace(store.get(image_id(index)), image_id=str(index)) for index in indices)
            write_store(self.store(ENTITIES, name), renamed, feature_space=f"toyworld-{name}", classes=CLASS_NAMES)

    def _retrieval(self, out: Path) -> None:
        """The captions of pre-training; for testing the first one of each picture, as everywhere here."""
        images = []
        for split, name in _SPLITS.items():
            captions = read_captions(self.world.captions(name))
            for index in self.split(split):
                sentences = [
                    {"sentid": 100 * index + place, "raw": text, "tokens": text.split()}
                    for place, text in enumerate(captions[f"{image_id(index)}.jpg"])
                ]
                images.append(
                    {"imgid": index, "filename": f"{image_id(index)}.jpg", "split": split, "sentences": sentences}
                )
        (out / _KARPATHY).write_text(json.dumps({"dataset": "flickr30k", "images": images}), "utf-8")

    def _entities(self, out: Path) -> None:
        """Of `roibeam toyworld --entities`, with the names and the splits that the pictures have here."""
        scenes, written = out / "scenes", out / "written"
        scenes.mkdir()
        indices = [index for split in _SPLITS for index in self.split(split)]
        with (scenes / SCENES_NAME).open("w", encoding="ascii") as lines:
            lines.writelines(describe(generate(SEED, index)).to_line() for index in indices)
        ToyEntities(str(written), scenes, SEED, len(indices)).write()
        for folder, ending in (("Sentences", "txt"), ("Annotations", "xml")):
            (out / folder).mkdir()
            for index in indices:  # the world counts its pictures from 1
                os.rename(written / folder / f"{index + 1}.{ending}", out / folder / f"{index}.{ending}")
        with (written / PARSES_NAME).open(encoding="utf-8") as lines:
            (out / PARSES_NAME).write_text("".join(map(_renamed, lines)), "utf-8")
        for split in _SPLITS:
            (out / f"{split}.txt").write_text("".join(f"{index}\n" for index in self.split(split)), "utf-8")
        shutil.rmtree(scenes)
        shutil.rmtree(written)

    def _texts(self, out: Path) -> None:
        for task in (ScenePairsTask(), FollowsTask()):
            for index in range(self.text_pictures):
                task.add(describe(generate(TEXT_SEED, index)))
            task.close()
            task.write(out / task.name)
            task.write_results(out / READERS_FOLDER)


def read_captions(path: Path) -> Mapping[str, list[str]]:
    """Of a file of `worlds.write_captions`, by file name."""
    told = json.loads(path.read_text("utf-8"))
    names = {image["id"]: image["file_name"] for image in told["images"]}
    found: dict[str, list[str]] = {name: [] for name in names.values()}
    for each in told["annotations"]:
        found[names[each["image_id"]]].append(each["caption"])
    return found


def _renamed(line: str) -> str:
    """`# sent_id = 7#0` by the name that the picture has here."""
    head, is_there, rest = line.partition("# sent_id = ")
    if head or not is_there:
        return line
    number, _, caption = rest.partition("#")
    return f"# sent_id = {int(number) - 1}#{caption}"


def write_text_bounds(texts: Path, bounds: Path) -> None:
    """What the readers of both tasks reach."""
    found = {
        task: {"floor": levels[FLOOR], "ceiling": levels[CEILING]}
        for task, splits in toy_levels(texts).items()
        for levels in (splits["dev"]["accuracy"],)
    }
    bounds.parent.mkdir(parents=True, exist_ok=True)
    bounds.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read_text_bounds(bounds: Path) -> Mapping[str, Bound]:
    """By question; none where nothing was written yet."""
    if not bounds.exists():
        return {}
    found = json.loads(bounds.read_text("utf-8"))
    return {name: Bound(each["floor"], each["ceiling"], _READ) for name, each in found.items()}
