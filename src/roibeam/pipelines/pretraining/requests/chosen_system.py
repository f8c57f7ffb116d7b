"""Which system a request is for, where it names none and no recipe. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roibeam.pipelines.pretraining.recipes.named_systems import DEFAULT_SYSTEM, NAMED_SYSTEMS
from roibeam.pipelines.pretraining.requests.request import PretrainRequest

_LEARNS_FROM_TEXT_ALONE = "vlbert"
_LEARNS_FROM_TASK_TEXT = "visualbert"


def chosen_system(request: PretrainRequest) -> str:
    """The system that is asked for. Else, in this order: that of the run in `out`, so that the same command goes on,
    whatever the default was when it began; that of `from_run`; the one that can read what is given; the default.
    """
    asked, data = request.model, request.data
    if asked.system is not None:
        return asked.system
    begun = None if request.training.resume is False else system_of_folder(request.out)
    if begun is not None:
        return begun
    started_from = None if asked.from_run is None else system_of_folder(Path(asked.from_run))
    if started_from is not None:
        return started_from
    if data.task_texts:
        return _LEARNS_FROM_TASK_TEXT
    if data.text_corpus:
        return _LEARNS_FROM_TEXT_ALONE
    return DEFAULT_SYSTEM


def system_of_folder(folder: Path) -> str | None:
    """The system of a run's or model's folder; None where there is none, or it does not tell."""
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # what is wrong with it is said by whoever needs it whole
        return None
    for part in ("task", "model"):  # a run's folder has its model's configuration inside
        config = config.get(part, config) if isinstance(config, dict) else {}
    architectures = config.get("architectures") if isinstance(config, dict) else None
    named = {each.architecture: name for name, each in NAMED_SYSTEMS.items()}
    return named.get(architectures[0]) if isinstance(architectures, list) and architectures else None
