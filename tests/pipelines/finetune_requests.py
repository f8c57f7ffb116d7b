"""Requests of `roibeam finetune` that name nothing that is there, to ask for their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roibeam.pipelines.finetuning.frame.finetune_request import FinetuneRequest


def request(task: str = "vqa", **changes: Any) -> FinetuneRequest:
    named: dict[str, Any] = {"out": Path("o"), "task": task, "start": "none", "store": "s", "data": Path("d")}
    return FinetuneRequest(**{**named, **changes})
