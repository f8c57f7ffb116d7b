"""Requests of `roibeam finetune` that name nothing that is there, to ask for their settings."""

from pathlib import Path
from typing import Any

from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.requests import FinetuneRequest
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, PHRASE, REGION
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec

ASKED = {
    "vqa": OutputSpec(LABEL, 3129),
    "vcr": OutputSpec(CHOICE),
    "refcoco+": OutputSpec(REGION),
    "nlvr2": OutputSpec(LABEL, 2, num_images=2),
    "retrieval": OutputSpec(CHOICE),
    "flickr30k-entities": OutputSpec(PHRASE),
    **{name: OutputSpec(LABEL, len(task.labels) or 1, num_images=0) for name, task in GLUE_TASKS.items()},
}


def request(task: str = "vqa", **changes: Any) -> FinetuneRequest:
    named: dict[str, Any] = {"out": Path("o"), "task": task, "from_": "none", "store": "s", "data": Path("d")}
    return FinetuneRequest(**{**named, **changes})


def has_whole_image(recipe: TaskRecipe) -> bool:
    """Whether the whole image is one of the candidates of its runs."""
    return getattr(recipe.options, "whole_image", "none") != "none"
