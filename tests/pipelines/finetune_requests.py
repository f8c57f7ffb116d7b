"""Requests of `roibeam finetune` that name nothing that is there, to ask for their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roibeam.pipelines.finetuning.frame.finetune_request import FinetuneRequest
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe


def request(task: str = "vqa", **changes: Any) -> FinetuneRequest:
    named: dict[str, Any] = {"out": Path("o"), "task": task, "start": "none", "store": "s", "data": Path("d")}
    return FinetuneRequest(**{**named, **changes})


def has_whole_image(recipe: TaskRecipe) -> bool:
    """Whether the whole image is one of the candidates of its runs."""
    return getattr(recipe.options, "whole_image", "none") != "none"
