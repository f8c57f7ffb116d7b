"""A task of one's own: a file of Python that the user names in place of a task, `--task gqa.py`.

The file sets `TASK`, an `OwnTask`; `label_task` of tasks/labels.py makes one from a few lines. It is run, as any
program that its user starts. So it is run only when it is named: a run's folder keeps its digest, and never a copy
that `roibeam predict` would run unasked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from roibeam.features.printable import printable
from roibeam.pipelines.finetuning.scored_tasks import ScoredTask
from roibeam.pipelines.finetuning.task import NamedTask

logger = logging.getLogger(__name__)

SUFFIX = ".py"


class OwnTask(NamedTuple):
    """Attributes:
    task: what is trained and asked.
    scored: how result files are scored; None where `roibeam score` cannot.
    """

    task: NamedTask
    scored: ScoredTask | None = None


def is_own(name: str) -> bool:
    """Whether a task is named by its file."""
    return name.endswith(SUFFIX)


def task_name(name: str) -> str:
    """What a task is called in settings and cards: "gqa" of "tasks/gqa.py"."""
    return Path(name).stem if is_own(name) else name


def digest_of_task(name: str) -> str:
    """SHA-256 (hex) of the file; "" of a task that roibeam has itself."""
    return hashlib.sha256(Path(name).expanduser().read_bytes()).hexdigest() if is_own(name) else ""


def own_task(name: str, option: str = "--task") -> OwnTask:
    """Runs the file and takes its `TASK`.

    Raises:
        ValueError: when there is no such file, it does not run, or it sets no `TASK`.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"{option} {name!r}: no such file")
    if not path.stem.isidentifier():
        raise ValueError(f"{option} {name!r}: the name is that of the task in --set; use letters, digits and _ alone")
    spec = importlib.util.spec_from_file_location(f"roibeam_own_task_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        told = printable(f"{type(error).__name__}: {error}", 300)
        raise ValueError(f"{option} {name!r} does not run: {told}") from error
    found = getattr(module, "TASK", None)
    if not isinstance(found, OwnTask):
        what = "sets no TASK" if found is None else f"sets TASK to a {type(found).__name__}"
        raise ValueError(f"{option} {name!r} {what}; expected an OwnTask, such as label_task makes")
    return found


def asked_task(described: Mapping[str, Any], task_file: str | None) -> str:
    """The name or the file of the task that a run learned.

    Args:
        described: the task, in the run's configuration.
        task_file: that the user named.
    Raises:
        ValueError: when the task is one of the user's own and its file is not named, or the named one is another.
    """
    name, digest = str(described["task"]), described.get("task_file")
    if digest is None:
        if task_file is not None and task_file != name:
            raise ValueError(f"--task {task_file!r}: the run learned {name}; leave --task out")
        return name
    if task_file is None:
        raise ValueError(f"--task is missing: the run learned a task of your own; name its file, such as {name}.py")
    if not is_own(task_file) or task_name(task_file) != name:
        raise ValueError(f"--task {task_file!r}: the run learned {name}, of a file {name}.py")
    if not Path(task_file).expanduser().is_file():
        raise ValueError(f"--task {task_file!r}: no such file")
    if digest_of_task(task_file) != digest:
        logger.warning("%s has changed since the run learned it", task_file)
    return task_file
