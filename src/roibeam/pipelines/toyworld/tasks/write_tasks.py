"""Tasks of a toy world on disk, and the scores of their perfect and blind readers.

    TASKS/
      tasks.json      version, world, rows, ceilings and floors, a digest for each task
      vqa/  vcr/  refcoco+/  nlvr2/     official files, see vqa.py, vcr.py, refcoco.py, nlvr2.py
      mrpc/  rte/     {train,dev,test}.tsv: texts alone, in GLUE's form
      readers/        result files of perfect, blind and other readers, for `roibeam score`

Pictures are links to those of the world, or copies where the disk cannot link. A folder that is there is whole. FROZEN:
models are compared on these files; a change of questions must raise `TASKS_VERSION`.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.features.safe_pickle import load_pickle
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.data.datasets.photo_folders import TASKS_FORMAT, TASKS_NAME
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.finetuning.metrics.glue import has_extra
from roibeam.pipelines.finetuning.metrics.measure import STRICT
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS
from roibeam.pipelines.toyworld.picture import SCENES_NAME, read_pictures
from roibeam.pipelines.toyworld.tasks.nlvr2 import Nlvr2Task
from roibeam.pipelines.toyworld.tasks.refcoco import REFS_NAME, RefcocoTask
from roibeam.pipelines.toyworld.tasks.scene_queries import Task
from roibeam.pipelines.toyworld.tasks.text_pairs import FollowsTask, ScenePairsTask
from roibeam.pipelines.toyworld.tasks.vcr import VcrTask
from roibeam.pipelines.toyworld.tasks.vqa import VqaTask
from roibeam.pipelines.toyworld.world_files import FolderBesideWorld
from roibeam.pipelines.toyworld.write import PICTURES

TASKS_VERSION = 1
READERS_FOLDER = "readers"
_TEXT_SUFFIXES = frozenset({".json", ".jsonl", ".tsv"})
# Task -> split -> measure -> reader -> 0..1.
Levels = dict[str, dict[str, dict[str, dict[str, float]]]]


@dataclass(frozen=True)
class ToyTasks(FolderBesideWorld):
    """Request for the tasks of a world."""

    option, holds, manifest_name, format, version = "--tasks", "tasks", TASKS_NAME, TASKS_FORMAT, TASKS_VERSION

    def _write_files(self, folder: Path, workers: int) -> dict[str, Any]:
        tasks = self._made()
        for task in tasks:
            task.write(folder / task.name)
            _link_pictures(task, self.world, folder / task.name)
            task.write_results(folder / READERS_FOLDER)
        return {
            "rows": {task.name: task.rows() for task in tasks},
            "levels": toy_levels(folder),
            "sha256": {task.name: task_digest(folder / task.name) for task in tasks},
        }

    def _made(self) -> Sequence[Task]:
        """Returns all tasks with their questions; ValueError if the world has too few pictures for a split."""
        texts = (ScenePairsTask(), FollowsTask())
        tasks: Sequence[Task] = (VqaTask(), VcrTask(), RefcocoTask(), Nlvr2Task(), *texts)
        with Progress("asking questions", self.num_images, PICTURES) as progress:
            for picture in progress.counting(read_pictures(self.world / SCENES_NAME)):
                for task in tasks:
                    task.add(picture)
        for task in tasks:
            task.close()
            for split, count in task.rows().items():
                if not count:
                    raise ValueError(
                        f"{self.world}: its {self.num_images:,} pictures give nothing to ask for {split} of {task.name}"
                        "; draw a larger world, with --num-images 400 or more"
                    )
        return tasks


def _link_pictures(task: Task, world: Path, folder: Path) -> None:
    for picture, name in task.links():
        source, target = world / picture.place.dataset / picture.file_name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another disk, or one without links
            shutil.copyfile(source, target)


def task_digest(folder: Path) -> str:
    """SHA-256 over path, length and bytes of a task's text files in path order; references count as the JSON of the
    pickle's content, since the bytes of a pickle depend on Python."""
    digest = hashlib.sha256()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(files):
        if files[name].suffix in _TEXT_SUFFIXES:
            data = files[name].read_bytes()
        elif name == REFS_NAME:
            data = json.dumps(load_pickle(str(files[name]))).encode("ascii")
        else:
            continue
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


CEILING, FLOOR = "perfect", "blind"  # folders of readers


def toy_levels(tasks: Path) -> Levels:
    """Scores every result file, readers/<reader>/<task>_<split>. Raises ValueError for a result file that does not fit
    its task."""
    found: Levels = {}
    for name in sorted({path.name for path in (tasks / READERS_FOLDER).glob("*/*")}):
        task, _, split = name.partition(".")[0].partition("_")
        opened = SCORED_TASKS[task].open(tasks / task, split, STRICT)
        if task in GLUE_TASKS and not has_extra(GLUE_TASKS[task].name):
            continue  # correlations and F1 are computed by packages of an extra
        measures = found.setdefault(task, {}).setdefault(split, {})
        for results in sorted((tasks / READERS_FOLDER).glob(f"*/{name}")):
            for measure in opened.measures(str(results)).values():
                measures.setdefault(measure.name, {})[results.parent.name] = measure.mean
    return found
