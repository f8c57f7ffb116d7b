"""What tasks are learned and asked on: another toy world than the one of pre-training, so that no picture is known.

WORK/tasks/world           the pictures
WORK/tasks/tasks           their tasks in the official formats
WORK/tasks/stores/<name>   regions: of the scene graph ("perfect"), or of the toy detector ("detector")
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from evidence.readers.bounds import Bound
from evidence.tasks.task_arms import PERFECT, TASKS
from evidence.worlds import ROIBEAM

SEED = 11  # not that of pre-training, 7, nor that of the toy detector, 0
# A fifth of them is trained on by all tasks but NLVR2. With 12,000, ViLBERT knows 79 % of the VQA questions that it
# learns from after 1,500 steps, and 67 % of new ones.
PICTURES, QUICK_PICTURES = 40_000, 120
_CEILING, _FLOOR = "perfect", "blind"  # readers of `roibeam toyworld --tasks`
_READ = "From the result files of a reader that knows the scene graph and of one that sees no picture."


class TaskWorld:
    """
    Args:
        work: folder of all evidence.
    """

    def __init__(self, work: Path, pictures: int) -> None:
        self.work, self.pictures = work / "tasks", pictures

    def store(self, name: str) -> Path:
        return self.work / "stores" / name

    def files(self, task: str) -> Path:
        return self.work / "tasks" / task

    def make(self, stores: Sequence[str], bounds: Path, say: Callable[[str], None]) -> None:
        """World, tasks and these stores; what is there is left as it is.

        Args:
            bounds: file to write floors and ceilings to.
        """
        missing = [name for name in stores if not (self.store(name) / "manifest.json").exists()]
        if PERFECT in missing or (missing and not (self.work / "tasks").exists()):
            say(f"drawing {self.pictures:,} pictures and their tasks into {self.work}")
            world = ("toyworld", str(self.work / "world"), "--seed", str(SEED), "--num-images", str(self.pictures))
            _run(*world, "--tasks", str(self.work / "tasks"), "--perfect-store", str(self.store(PERFECT)))
            write_bounds(self.work / "tasks" / "tasks.json", bounds)
        for name in missing:
            if name != PERFECT:
                say(f"making the store {self.store(name)} (only what is missing)")
                self._detect(self.store(name))

    def _detect(self, store: Path) -> None:
        """The pictures that tasks show: those of COCO, and NLVR2's."""
        photos = self.work / "photos"
        if not photos.exists():
            part = photos.with_name("photos.part")
            shutil.rmtree(part, ignore_errors=True)
            for name, source in (("coco", self.work / "world" / "coco"), ("nlvr2", self.files("nlvr2") / "images")):
                shutil.copytree(source, part / name, copy_function=os.link)
            part.rename(photos)
        # Two processes of one thread each take half the time of one with two.
        toy = ("--detector", "toy", "--device", "cpu", "--workers", "2", "--threads", "1", "--shard-size", "1000")
        _run("extract", str(photos), str(store), *toy)


def _run(*words: str) -> None:
    subprocess.run([*ROIBEAM, *words], check=True, stdout=subprocess.DEVNULL)


def write_bounds(manifest: Path, bounds: Path) -> None:
    """Floors and ceilings of the tasks, by our names of the measures."""
    written = json.loads(manifest.read_text("utf-8"))
    found = {
        kept: {"floor": levels[_FLOOR], "ceiling": levels[_CEILING]}
        for task in TASKS.values()
        for split, measures in task.splits.items()
        for measure, kept in measures.items()
        for levels in (written["levels"][task.name][split][measure],)
    }
    bounds.parent.mkdir(parents=True, exist_ok=True)
    bounds.write_text(json.dumps({"world": written["world"], "bounds": found}, indent=1) + "\n", encoding="utf-8")


def read_bounds(bounds: Path) -> Mapping[str, Bound]:
    """By measure; none where nothing was written yet."""
    if not bounds.exists():
        return {}
    found = json.loads(bounds.read_text("utf-8"))["bounds"]
    return {name: Bound(each["floor"], each["ceiling"], _READ) for name, each in found.items()}
