"""InterBERT's published runs on GLUE, texts without an image: section 3.6, Table 3 and appendix 6.3 of
arXiv:2003.13198. The release has none.

Its row of BERT-base is VisualBERT's system started from BERT: on a text alone it is BERT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from roibeam.pipelines.common.statistics.paper_figures import figures_of
from roibeam.pipelines.finetuning.recipes.task_recipe import BERT, PRETRAINED, TaskRecipe
from roibeam.pipelines.finetuning.systems.layout_options import LayoutOptions
from roibeam.pipelines.finetuning.tasks.language.glue import GlueOptions


class _Row(NamedTuple):
    """A row of Table 3: end of its recipes' names, what it is, system, model and how it starts."""

    row: str
    end: str
    words: str
    system: str
    model: str
    start: str = PRETRAINED


_ROWS = (
    _Row("InterBERT", "", "InterBERT", "interbert", "interbert"),
    _Row(
        "Single Stream",
        "-single-stream",
        "The single-stream baseline of its paper",
        "interbert",
        "interbert-single-stream",
    ),
    _Row("BERT-base", "-bert-base", "BERT-base", "visualbert", "visualbert-coco-vqa", BERT),
)
_COLUMNS = ("QNLI", "CoLA", "SST-2", "STS-B", "RTE", "MNLI", "QQP", "MRPC")
_SETTINGS: Mapping[str, Any] = MappingProxyType({"optimizer": "adamw", "weight_decay": 0.01})
_FED_OPEN = "How a text is fed alone is not said: the joint layers on the text, then those of the text; no IMG."
_BERT_OPEN = (
    "BERT itself is the layers, pooler and segments of VisualBERT's system on a text alone, started by --from none "
    "--from-bert hf:google-bert/bert-base-uncased.",
    "Average of the eight: roibeam score glue on a zip of all tables.",
)
_OPEN = (
    "Warm-up, decay and schedule are not said: BERT's, a tenth of the steps and a linear fall, decay 0.01.",
    "Whether the best or the last epoch counts is not said, nor the number of seeds: the last; for small tasks the "
    "median of --seeds 5.",
    "Its average is over the eight tasks, MNLI's two files taken together first.",
)
_COLA_OPEN = "The figure is called an accuracy; GLUE takes Matthews' correlation, and its size is that of one."


def _runs() -> Iterator[tuple[str, TaskRecipe]]:
    for row in _ROWS:
        is_bert = row.start == BERT
        for column in _COLUMNS:
            task = column.lower()
            yield (
                f"interbert-{task}{row.end}",
                TaskRecipe(
                    summary=f"{row.words}, GLUE's {task}: pooled [CLS] of the text alone",
                    source="arXiv:2003.13198, section 3.6, Table 3, appendix 6.3",
                    task=task,
                    system=row.system,
                    model=row.model,
                    start=row.start,
                    features=None,
                    options=GlueOptions(),
                    layout=LayoutOptions(max_pieces=128),
                    settings=_SETTINGS,
                    learning_rate=2e-5,
                    batch_size=128,
                    epochs=3,
                    warmup=0.1,
                    figures=figures_of(
                        "InterBERT", row.row, f"GLUE {column}", *(["GLUE, average of the eight"] if is_bert else [])
                    ),
                    left_open=(
                        *(_BERT_OPEN if is_bert else [_FED_OPEN]),
                        *_OPEN,
                        *([_COLA_OPEN] if task == "cola" else []),
                    ),
                ),
            )


INTERBERT_GLUE_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict(_runs()))
