"""What `make evidence` trains on and asks about: pictures of the toy world, their regions, captions in several states.

WORK/world/images, captions.json   pictures of one seed; the first ones are for testing
WORK/store                         their regions, by the toy detector
WORK/captions/<name>.json          COCO's format, see `write_captions`
WORK/tokenizer                     one vocabulary for all runs
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roibeam.pipelines.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.toyworld.draw import draw_samples
from roibeam.pipelines.toyworld.picture import Picture, describe
from roibeam.pipelines.toyworld.scene import generate

SEED = 7  # of the world; the toy detector was trained on that of seed 0
ROIBEAM = (sys.executable, "-P", "-c", "from roibeam.pipelines.cli.main import main; main()")
SECONDS_A_PICTURE = 0.12  # drawn, and its regions found


@dataclass(frozen=True)
class Sizes:
    """Pictures to test on, to train on, and to fine-tune the probe on; numbered in this order."""

    test: int
    train: int
    probe: int

    @property
    def all(self) -> int:
        return self.test + self.train + self.probe


FULL, QUICK = Sizes(test=500, train=2000, probe=100), Sizes(test=100, train=300, probe=50)


class World:
    """The pictures and what was made of them; nothing is made twice.

    Args:
        work: folder of all of it.
    """

    def __init__(self, work: Path, sizes: Sizes) -> None:
        self.work, self.sizes = work, sizes
        self.store, self.tokenizer = work / "store", work / "tokenizer"

    def seconds(self) -> float:
        """What `make` takes, about, on two cores: 0 where it was done."""
        return 0.0 if self.tokenizer.exists() else SECONDS_A_PICTURE * self.sizes.all

    def captions(self, name: str) -> Path:
        return self.work / "captions" / f"{name}.json"

    def make(self, say: Callable[[str], None]) -> None:
        """Draws, extracts, writes captions; what is there is left as it is."""
        world = self.work / "world"
        if not (world / "captions.json").exists():
            say(f"drawing {self.sizes.all:,} pictures")
            draw_samples(world, count=self.sizes.all, seed=SEED)
        say(f"extracting their regions to {self.store} (only what is missing)")
        toy = ("--detector", "toy", "--device", "cpu")
        command = [*ROIBEAM, "extract", str(world / "images"), str(self.store), *toy]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if not self.tokenizer.exists():
            pictures = [describe(generate(SEED, index)) for index in range(self.sizes.all)]
            (self.work / "captions").mkdir(exist_ok=True)
            write_captions(pictures, self.sizes, self.captions)
            train = pictures[self.sizes.test :]
            load_tokenizer("captions", (one.text for picture in train for one in picture.captions)).save(self.tokenizer)


def image_id(index: int) -> str:
    return f"sample_{index:05d}"


def write_captions(pictures: Sequence[Picture], sizes: Sizes, path: Callable[[str], Path]) -> None:
    """test: the first caption of each picture for testing. train: all those of the pictures for training.
    permuted: the same, every picture with another one's. probe: of pictures in none of the others.
    clean and noisy: one half of train each; of noisy, every second picture has another one's captions."""
    texts = [[caption.text for caption in picture.captions] for picture in pictures]
    tested, trained = range(sizes.test), range(sizes.test, sizes.test + sizes.train)
    elsewhere = another_picture(trained, seed=0)
    own = {index: index for index in trained}
    clean, noisy = trained[: sizes.train // 2], trained[sizes.train // 2 :]
    wrong = another_picture(noisy, seed=1)
    halves = {
        "clean": {index: index for index in clean},
        "noisy": {index: index if index % 2 else wrong[index] for index in noisy},
    }
    _write(path("test"), {index: texts[index][:1] for index in tested})
    _write(path("probe"), {index: texts[index] for index in range(sizes.test + sizes.train, sizes.all)})
    for name, source in {
        "train": own,
        "permuted": elsewhere,
        **halves,
        "clean-and-noisy": halves["clean"] | halves["noisy"],
    }.items():
        _write(path(name), {index: texts[of] for index, of in source.items()})


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
