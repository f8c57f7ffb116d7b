"""What tasks are learned and asked on: another toy world than the one of pre-training, so that no picture is known.

WORK/tasks/world           the pictures
WORK/tasks/tasks           their tasks in the official formats
WORK/tasks/stores/<name>   regions: of the scene graph ("perfect"), or of the toy detector ("detector", and of two
                           tasks "detector-nlvr2", whose pictures are others, and "detector-vcr", which has its boxes)
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
_COCO, _NLVR2, _VCR = "coco", "nlvr2", "vcr"
_OWN = (_NLVR2, _VCR)  # tasks whose regions are in a store of their own where a detector finds them
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
        """Of the regions that a task reads."""
        return f"{name}-{task}" if task in _OWN and name != PERFECT else name

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
            for found in {self.store_name(name, task): task for task in tasks if name != PERFECT}.items():
                self._make_found(*found, say)

    def _make_found(self, name: str, task: str, say: Callable[[str], None]) -> None:
        """What the toy detector says of the pictures of a task."""
        store, source = self.store(name), self.files(task)
        if task == _NLVR2:
            self._detect_once(source / "images", store, say)
        elif task == _VCR:
            boxes = source / "vcr1images"
            self._detect(boxes, store, say, "--boxes", str(boxes))
        else:
            coco = self._linked(self.work / "world" / _COCO, None, store.name, _COCO)
            self._detect(coco, store, say)

    def _detect_once(self, source: Path, store: Path, say: Callable[[str], None]) -> None:
        """Regions of NLVR2's pictures under all their names."""
        if not store.exists():
            names, once = names_of_pictures(source), store.with_name(f"{store.name}-once")
            self._detect(self._linked(source, names, once.name, _NLVR2), once, say)
            write_repeated(once, store, [[f"{_NLVR2}/{name}" for name in each] for each in names.values()])

    def _linked(self, source: Path, places: Collection[Path] | None, name: str, part: str) -> Path:
        """A folder with these files of `source`, or all, in `part`, as names in the store begin with it."""
        photos = self.work / f"photos-{name}"
        if not (photos / part).exists():
            link_files(source, files_below(source) if places is None else places, photos / part)
        return photos

    @staticmethod
    def _detect(photos: Path, store: Path, say: Callable[[str], None], *options: str) -> None:
        """Regions of all photos of a folder."""
        made = store / "made"
        if not made.exists():
            say(f"finding regions of {photos} for {store} (only what is missing)")
            # Two processes of one thread each take half the time of one with two.
            toy = ("--detector", "toy", "--device", "cpu", "--workers", "2", "--threads", "1", "--shard-size", "1000")
            _run("extract", str(photos), str(store), *toy, *options)
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
