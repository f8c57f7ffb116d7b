"""What `make evidence` trains on and asks about: pictures of one toy world, seen in several ways, and their captions.

WORK/world/images          the pictures, for the detector alone
WORK/stores/<name>         regions of all pictures: of the scene graph ("perfect"), or of the toy detector ("detector")
WORK/captions/<name>.json  COCO's format, see `write_captions`; labels.json: boxes; corpus.txt: text without pictures
WORK/tokenizer             one vocabulary for all runs

Nothing is made twice; a store that was begun is finished.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.writing.store_writer import write_store
from roibeam.pipelines.toyworld.formats import write_corpus
from roibeam.pipelines.toyworld.perfect_store import CLASS_NAMES, Perception, perceive, write_perfect_store
from roibeam.pipelines.toyworld.picture import Picture, describe
from roibeam.pipelines.toyworld.rendering import draw_samples
from roibeam.pipelines.toyworld.scene import Scene, generate
from roibeam.pipelines.toyworld.world import ATTRIBUTES
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

SEED = 7  # of the world; the toy detector was trained on that of seed 0
ROIBEAM = (sys.executable, "-P", "-c", "from roibeam.pipelines.cli.main import main; main()")
SECONDS_A_SCENE, SECONDS_A_PICTURE = 0.003, 0.06  # described; drawn, and its regions found by the detector
DETECTOR = "detector"
WHOLE = "perfect-whole"  # as "perfect", with a feature of the whole picture beside the regions
PERFECT: Mapping[str, Perception] = {
    "perfect": Perception(),
    WHOLE: Perception(),
    **{f"perfect-noise{noise}": Perception(noise=noise) for noise in (0.6, 1.2, 2.4)},
}
_WHOLE_NOISE = 104  # purpose of random numbers
_FIRST_TEXT_SCENE = 1 << 40  # scenes of the text corpus are none of the pictures


@dataclass(frozen=True)
class Sizes:
    """Pictures to test on, to train on, to fine-tune the probe on, and to watch training by; numbered in this order."""

    test: int
    train: int
    probe: int
    validation: int

    @property
    def all(self) -> int:
        return self.test + self.train + self.probe + self.validation

    def of(self, split: str) -> range:
        """Numbers of the pictures of a split, by its name here."""
        first = 0
        for name in ("test", "train", "probe", "validation"):
            if name == split:
                return range(first, first + int(getattr(self, name)))
            first += int(getattr(self, name))
        raise KeyError(split)


FULL = Sizes(test=500, train=20_000, probe=100, validation=300)
QUICK = Sizes(test=100, train=300, probe=50, validation=50)


class World:
    """The pictures and what was made of them.

    Args:
        work: folder of all of it.
    """

    def __init__(self, work: Path, sizes: Sizes) -> None:
        self.work, self.sizes = work, sizes
        self.tokenizer = work / "tokenizer"
        self._pictures: list[Picture] = []

    def store(self, name: str) -> Path:
        return self.work / "stores" / name

    def captions(self, name: str) -> Path:
        return self.work / "captions" / f"{name}.json"

    @property
    def corpus(self) -> Path:
        """Text without pictures, as documents."""
        return self.work / "captions" / "corpus.txt"

    @property
    def labels(self) -> Path:
        """COCO instances of the pictures to train on, for training the detector beside."""
        return self.work / "captions" / "labels.json"

    @property
    def photos(self) -> Path:
        return self.work / "world" / "images"

    def seconds(self, stores: Sequence[str]) -> float:
        """What `make` takes, about, on two cores: 0 where it was done."""
        missing = [name for name in stores if not (self.store(name) / "manifest.json").exists()]
        a_picture = SECONDS_A_PICTURE * (DETECTOR in missing) + SECONDS_A_SCENE * (len(missing) + 1)
        return a_picture * self.sizes.all if missing or not self.tokenizer.exists() else 0.0

    def make(self, stores: Sequence[str], say: Callable[[str], None]) -> None:
        """Captions, tokenizer and these stores; what is there is left as it is."""
        if not self.tokenizer.exists():
            say(f"describing {self.sizes.all:,} scenes")
            self.work.mkdir(parents=True, exist_ok=True)
            (self.work / "captions").mkdir(exist_ok=True)
            write_captions(self._described(), self.sizes, self.captions)
            write_corpus(self.corpus, self._documents())
            train = self.sizes.of("train")
            texts = (one.text for index in train for one in self._described()[index].captions)
            load_tokenizer("captions", texts).save(self.tokenizer)
        for name in stores:
            if not (self.store(name) / "manifest.json").exists():
                say(f"making the store {self.store(name)} (only what is missing)")
                self._detect() if name == DETECTOR else self._perceive(name)

    def _described(self) -> list[Picture]:
        if not self._pictures:
            self._pictures = [describe(generate(SEED, index)) for index in range(self.sizes.all)]
        return self._pictures

    def _documents(self) -> Iterator[Iterator[object]]:
        """As many scenes of text alone as pictures to train on."""
        for number in range(self.sizes.train):
            yield iter(describe(generate(SEED, _FIRST_TEXT_SCENE + number)).captions)

    def _perceive(self, name: str) -> None:
        scenes: Iterator[tuple[str, Scene]] = (
            (image_id(index), picture.scene) for index, picture in enumerate(self._described())
        )
        if name == WHOLE:
            write_store_of_wholes(self.store(name), scenes, PERFECT[name])
        else:
            write_perfect_store(self.store(name), scenes, PERFECT[name])

    def _detect(self) -> None:
        if not (self.work / "world" / "captions.json").exists():
            draw_samples(self.work / "world", count=self.sizes.all, seed=SEED)
        write_labels(self.labels, [self._described()[index] for index in self.sizes.of("train")])
        # Two processes of one thread each take half the time of one with two.
        toy = ("--detector", "toy", "--device", "cpu", "--workers", "2", "--threads", "1", "--shard-size", "1100")
        command = [*ROIBEAM, "extract", str(self.photos), str(self.store(DETECTOR)), *toy]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write_store_of_wholes(out: Path, scenes: Iterable[tuple[str, Scene]], perception: Perception) -> None:
    """Perfect regions, and a feature of each whole picture: what all its objects are, in one sum, with its own noise.

    What a network that is trained on whole pictures would see at best, as ImageBERT's global feature.
    """

    def records() -> Iterator[RegionRecord]:
        for called, scene in scenes:
            record = perceive(scene, called, perception)
            whole = record.features.astype(np.float64).sum(axis=0) / max(1, len(record.features)) ** 0.5
            random = np.random.default_rng([_WHOLE_NOISE, scene.seed, scene.index])
            whole += perception.noise * random.standard_normal(len(whole))
            yield replace(record, image_feature=whole.astype(record.features.dtype))

    space = f"{perception.feature_space}-whole"
    write_store(out, records(), feature_space=space, classes=CLASS_NAMES, attributes=ATTRIBUTES)


def image_id(index: int) -> str:
    return f"sample_{index:05d}"


def write_captions(pictures: Sequence[Picture], sizes: Sizes, path: Callable[[str], Path]) -> None:
    """test: the first caption of each picture for testing. beside: its second one, or the first where there is no
    other. train, validation, probe: all those of these pictures. permuted: train, every picture with another one's.
    clean and noisy: one half of train each; of noisy, every second picture has another one's captions."""
    texts = [[caption.text for caption in picture.captions] for picture in pictures]
    tested, trained = sizes.of("test"), sizes.of("train")
    own = {index: index for index in trained}
    clean, noisy = trained[: sizes.train // 2], trained[sizes.train // 2 :]
    wrong = another_picture(noisy, seed=1)
    halves = {
        "clean": {index: index for index in clean},
        "noisy": {index: index if index % 2 else wrong[index] for index in noisy},
    }
    _write(path("test"), {index: texts[index][:1] for index in tested})
    _write(path("beside"), {index: texts[index][:2][-1:] for index in tested})
    for name in ("probe", "validation"):
        _write(path(name), {index: texts[index] for index in sizes.of(name)})
    for name, source in {
        "train": own,
        "permuted": another_picture(trained, seed=0),
        **halves,
        "clean-and-noisy": halves["clean"] | halves["noisy"],
    }.items():
        _write(path(name), {index: texts[of] for index, of in source.items()})


def write_labels(path: Path, pictures: Sequence[Picture]) -> None:
    """Boxes and kinds of all objects, in the format of COCO's instances."""
    number = {name: place + 1 for place, name in enumerate(CLASS_NAMES)}
    images = [
        {
            "id": picture.scene.index,
            "file_name": f"{image_id(picture.scene.index)}.jpg",
            "height": picture.scene.height,
            "width": picture.scene.width,
        }
        for picture in pictures
    ]
    things = [(picture.scene.index, thing) for picture in pictures for thing in picture.scene.objects]
    annotations = [
        {
            "id": place + 1,
            "image_id": index,
            "category_id": number[thing.category],
            "bbox": list(thing.box),
            "area": thing.area,
            "iscrowd": 0,
        }
        for place, (index, thing) in enumerate(things)
    ]
    categories = [{"id": place, "name": name} for name, place in number.items()]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}), "utf-8")


def another_picture(indices: Sequence[int], *, seed: int) -> dict[int, int]:
    """For each one another of them, each given once: a random cycle."""
    order = np.random.default_rng([SEED, seed]).permutation(len(indices))
    return {indices[one]: indices[other] for one, other in zip(order, np.roll(order, 1), strict=True)}


def _write(path: Path, captions: Mapping[int, Sequence[str]]) -> None:
    images = [{"id": index, "file_name": f"{image_id(index)}.jpg"} for index in captions]
    annotations = [
        {"id": number, "image_id": index, "caption": text}
        for number, (index, text) in enumerate((index, text) for index, texts in captions.items() for text in texts)
    ]
    path.write_text(json.dumps({"images": images, "annotations": annotations}), encoding="utf-8")
