"""What tasks are learned and asked on: another toy world than the one of pre-training, so that no picture is known.

WORK/tasks/world           the pictures
WORK/tasks/tasks           their tasks in the official formats
WORK/tasks/stores/<name>   regions: of the scene graph ("perfect"), or of the toy detector ("detector", and
                           "detector-nlvr2" of the pictures of this task)
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from evidence.readers.bounds import Bound
from evidence.tasks.repeated_pictures import files_below, link_files, names_of_pictures, write_repeated
from evidence.tasks.task_arms import PERFECT, TASKS
from evidence.worlds import ROIBEAM

SEED = 11  # not that of pre-training, 7, nor that of the toy detector, 0
# A fifth of them is trained on by all tasks but NLVR2. With 12,000, ViLBERT knows 79 % of the VQA questions that it
# learns from after 1,500 steps, and 67 % of new ones.
PICTURES, QUICK_PICTURES = 40_000, 120
_CEILING, _FLOOR = "perfect", "blind"  # readers of `roibeam toyworld --tasks`
# The photos of a store by what shows them.
_COCO, _NLVR2 = "coco", "nlvr2"
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

    @staticmethod
    def store_name(name: str, task: str) -> str:
        """Of the regions that a task reads; NLVR2's have a store of their own where a detector finds them."""
        return f"{name}-{_NLVR2}" if task == _NLVR2 and name != PERFECT else name

    def files(self, task: str) -> Path:
        return self.work / "tasks" / task

    def make(self, needed: Mapping[str, Collection[str]], bounds: Path, say: Callable[[str], None]) -> None:
        """World, tasks and stores; what is there is left as it is.

        Args:
            needed: names of stores, each with the tasks that read it.
            bounds: file to write floors and ceilings to.
        """
        if needed and not (self.store(PERFECT) / "manifest.json").exists():
            say(f"drawing {self.pictures:,} pictures and their tasks into {self.work}")
            world = ("toyworld", str(self.work / "world"), "--seed", str(SEED), "--num-images", str(self.pictures))
            _run(*world, "--tasks", str(self.work / "tasks"), "--perfect-store", str(self.store(PERFECT)))
            write_bounds(self.work / "tasks" / "tasks.json", bounds)
        for name, tasks in needed.items():
            if name != PERFECT and set(tasks) - {_NLVR2}:
                source = self.work / "world" / _COCO
                self._detect(source, files_below(source), self.store(name), _COCO, say)
            if name != PERFECT and _NLVR2 in tasks:
                self._detect_once(self.store(self.store_name(name, _NLVR2)), say)

    def _detect_once(self, store: Path, say: Callable[[str], None]) -> None:
        """Regions of NLVR2's pictures under all their names."""
        if not store.exists():
            source, found = self.files(_NLVR2) / "images", store.with_name(f"{store.name}-once")
            names = names_of_pictures(source)
            self._detect(source, names, found, _NLVR2, say)
            write_repeated(found, store, [[f"{_NLVR2}/{name}" for name in each] for each in names.values()])

    def _detect(
        self, source: Path, places: Collection[Path], store: Path, part: str, say: Callable[[str], None]
    ) -> None:
        """Regions of these files of `source`, whose names in the store begin with `part`."""
        made, photos = store / f"{part}.made", self.work / f"photos-{store.name}"
        if made.exists():
            return
        say(f"finding regions of {part}'s pictures for {store} (only what is missing)")
        if not (photos / part).exists():
            link_files(source, places, photos / part)
        # Two processes of one thread each take half the time of one with two.
        toy = ("--detector", "toy", "--device", "cpu", "--workers", "2", "--threads", "1", "--shard-size", "1000")
        _run("extract", str(photos), str(store), *toy)
        made.touch()


def _run(*words: str) -> None:
    subprocess.run([*ROIBEAM, *words], check=True, stdout=subprocess.DEVNULL)


def write_bounds(manifest: Path, bounds: Path) -> None:
    """Floors and ceilings of the tasks, by our names of the measures."""
    written = json.loads(manifest.read_text("utf-8"))
    found = {
        kept: {"floor": levels[_FLOOR], "ceiling": levels[_CEILING]}
        for task in TASKS.values()
        for split, measures in task.splits.items()
        for measure, kept in {**measures, **(task.kinds if task.main in measures.values() else {})}.items()
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
