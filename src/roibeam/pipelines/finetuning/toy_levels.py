"""How far a model can get on the tasks of a toy world, and what it gets without looking: the scores of their readers.

toyworld/tasks writes result files of readers that know the scene graph, or no picture. Here they are scored as
`roibeam score` scores any other file.
"""

from __future__ import annotations

from pathlib import Path

from roibeam.pipelines.finetuning.score_run import ScoreRequest, run_score

READERS = "readers"
CEILING, FLOOR = "perfect", "blind"  # folders of readers


def toy_levels(tasks: Path) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Task -> split -> measure -> reader -> score, 0..1. A reader is a folder in `READERS`.

    Args:
        tasks: folder of the tasks.
    Raises:
        ValueError: for a result file that does not fit its task.
    """
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for reader in sorted(path for path in (tasks / READERS).iterdir() if path.is_dir()):
        for results in sorted(reader.iterdir()):
            task, _, split = results.stem.partition("_")
            score = run_score(ScoreRequest(task, results, tasks / task, split))
            for figure in score.figures:
                measures = found.setdefault(task, {}).setdefault(split, {})
                measures.setdefault(figure.name, {})[reader.name] = figure.value
    return found
