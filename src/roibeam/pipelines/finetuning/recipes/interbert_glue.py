"""InterBERT's published runs on GLUE, texts without an image: section 3.6, Table 3 and appendix 6.3 of
arXiv:2003.13198. The release has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.systems.layout_options import LayoutOptions
from roibeam.pipelines.finetuning.tasks.language.glue import GlueOptions
from roibeam.pipelines.foundation.statistics.paper_figures import figures_of

# Models, and their rows of Table 3.
_ROWS: Mapping[str, str] = MappingProxyType({"interbert": "InterBERT", "interbert-single-stream": "Single Stream"})
_COLUMNS = ("QNLI", "CoLA", "SST-2", "STS-B", "RTE", "MNLI", "QQP", "MRPC")
_SETTINGS: Mapping[str, Any] = MappingProxyType({"optimizer": "adamw", "weight_decay": 0.01})
_OPEN = (
    "How a text is fed alone is not said: the joint layers on the text, then those of the text; no IMG.",
    "Warm-up, decay and schedule are not said: BERT's, a tenth of the steps and a linear fall, decay 0.01.",
    "Whether the best or the last epoch counts is not said, nor the number of seeds: the last; for small tasks the "
    "median of --seeds 5.",
    "Its average is over the eight tasks, MNLI's two files taken together first.",
)
_COLA_OPEN = "The figure is called an accuracy; GLUE takes Matthews' correlation, and its size is that of one."


def _runs() -> Iterator[tuple[str, TaskRecipe]]:
    for model, row in _ROWS.items():
        alone = model != "interbert"
        for column in _COLUMNS:
            task = column.lower()
            what = "the single-stream baseline of its paper" if alone else "InterBERT"
            yield (
                f"interbert-{task}{'-single-stream' if alone else ''}",
                TaskRecipe(
                    summary=f"{what[0].upper()}{what[1:]}, GLUE's {task}: pooled [CLS] of the text alone",
                    source="arXiv:2003.13198, section 3.6, Table 3, appendix 6.3",
                    task=task,
                    system="interbert",
                    model=model,
                    features=None,
                    options=GlueOptions(),
                    layout=LayoutOptions(max_pieces=128),
                    settings=_SETTINGS,
                    learning_rate=2e-5,
                    batch_size=128,
                    epochs=3,
                    warmup=0.1,
                    figures=figures_of("InterBERT", row, f"GLUE {column}"),
                    left_open=(*_OPEN, *([_COLA_OPEN] if task == "cola" else [])),
                ),
            )


INTERBERT_GLUE_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict(_runs()))
