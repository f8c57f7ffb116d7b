"""How far a model can get on the tasks of a toy world, and what it gets without looking: the scores of their readers.

toyworld/tasks writes result files of readers that know the scene graph, or no picture. Here they are scored as
`roibeam score` scores any other file.
"""

from __future__ import annotations

from pathlib import Path

from roibeam.pipelines.data.datasets.glue import GLUE_TASKS
from roibeam.pipelines.finetuning.metrics.glue import has_extra
from roibeam.pipelines.finetuning.results.row_ids import STRICT
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS
from roibeam.pipelines.toyworld.tasks.write_tasks import READERS_FOLDER, Levels

CEILING, FLOOR = "perfect", "blind"  # folders of readers


def toy_levels(tasks: Path) -> Levels:
    """The score of every result file, which are readers/<reader>/<task>_<split>.

    Args:
        tasks: folder of the tasks.
    Raises:
        ValueError: for a result file that does not fit its task.
    """
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
