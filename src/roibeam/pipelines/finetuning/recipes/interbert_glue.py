"""InterBERT's published runs on GLUE, texts without an image: section 3.6, Table 3 and appendix 6.3 of
arXiv:2003.13198. The release has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.systems.layout_options import LayoutOptions
from roibeam.pipelines.finetuning.tasks.language.glue import GlueOptions
from roibeam.pipelines.foundation.statistics.printed_figure import Figure

_COLUMNS = ("qnli", "cola", "sst-2", "sts-b", "rte", "mnli", "mnli", "qqp", "mrpc")
_ROWS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "interbert": (91.1, 57.3, 92.3, 88.9, 64.3, 84.1, 83.7, 88.1, 88.6),
        "interbert-single-stream": (90.8, 52.3, 91.6, 88.6, 59.2, 82.6, 84.1, 87.8, 86.4),
    }
)
_METRICS: Mapping[str, str] = MappingProxyType(
    {"sts-b": "Spearman's correlation, dev", "qqp": "F1, dev", "mrpc": "F1, dev"}
)
_SETTINGS: Mapping[str, Any] = MappingProxyType({"optimizer": "adamw", "weight_decay": 0.01})
_OPEN = (
    "How a text is fed alone is not said: the joint layers on the text, then those of the text; no IMG.",
    "Warm-up, decay and schedule are not said: BERT's, a tenth of the steps and a linear fall, decay 0.01.",
    "Whether the best or the last epoch counts is not said, nor the number of seeds: the last; for small tasks the "
    "median of --seeds 5.",
    "Its average of 81.8 is over the eight tasks, MNLI's two files taken together first.",
)
_COLA_OPEN = "The figure is called an accuracy; GLUE takes Matthews' correlation, and its size is that of one."


def _runs() -> Iterator[tuple[str, TaskRecipe]]:
    for model, values in _ROWS.items():
        alone = model != "interbert"
        for task in dict.fromkeys(_COLUMNS):
            own = [value for column, value in zip(_COLUMNS, values, strict=True) if column == task]
            metrics = [_METRICS.get(task, "accuracy, dev")]
            if task == "mnli":
                metrics = ["accuracy, dev matched", "accuracy, dev mismatched"]
            what = "the single-stream baseline of its paper" if alone else "InterBERT"
            yield (
                f"interbert-{task}{'-single-stream' if alone else ''}",
                TaskRecipe(
                    summary=f"{what[0].upper()}{what[1:]}, GLUE's {task}: pooled [CLS] of the text alone",
                    source="arXiv:2003.13198, section 3.6, Table 3, appendix 6.3",
                    task=task,
                    system="interbert",
                    model=model,
                    options=GlueOptions(),
                    layout=LayoutOptions(max_pieces=128),
                    settings=_SETTINGS,
                    learning_rate=2e-5,
                    batch_size=128,
                    epochs=3,
                    warmup=0.1,
                    figures=tuple(
                        Figure("GLUE", metric, value, "Table 3") for metric, value in zip(metrics, own, strict=True)
                    ),
                    left_open=(*_OPEN, *([_COLA_OPEN] if task == "cola" else [])),
                ),
            )


INTERBERT_GLUE_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict(_runs()))
