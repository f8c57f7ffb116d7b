"""InterBERT's published fine-tuning runs, on VCR and on GLUE's texts without an image (arXiv:2003.13198).

VCR: appendix 6.2 and Tables 1 and 2, and black4321/InterBERT. GLUE: section 3.6, Table 3 and appendix 6.3; the release
has none. GLUE's row of BERT-base is VisualBERT's system started from BERT: on a text alone it is BERT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from roibeam.model.interbert.fields import interbert_fields
from roibeam.pipelines.common.statistics.paper_figures import PaperFigure, figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.finetuning.recipes.task_recipe import BERT, PRETRAINED, ModelRow, TaskRecipe
from roibeam.pipelines.finetuning.recipes.vilbert import BOTH_OPEN, INPUTS_OPEN, NAMES_OPEN, PROBLEM_NAMES, vcr_run
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.tasks.language import GlueOptions
from roibeam.pipelines.finetuning.tasks.vcr import BOTH
from roibeam.pipelines.training.step_policies import VCR_UPDATES_APART, parted_settings

ADAMW: Mapping[str, Any] = MappingProxyType(
    {"optimizer": "adamw", "betas": (0.9, 0.9999), "epsilon": 1e-6, "weight_decay": 0.01, "clip_norm": 0.0,
     "average_rate": 0.9999}
)  # fmt: skip
_SHARED_OPEN = (
    f"{INPUTS_OPEN}Detected are the 90 to 100 that it has for Flickr30k.",
    NAMES_OPEN,
    "That a long choice shortens the question of those behind it is by the release.",
)
_PAPER_OPEN = (
    'Optimiser, schedule and warm-up are "similar" to those of retrieval: the same, linear fall after 10,000 steps. '
    "Betas, epsilon and decay are of pre-training, no clipping.",
    'Batch "32": of questions, as in the release. That both problems are learned in turn is by the release.',
)


_ROWS = (  # of Tables 1 and 2, and of section 3.6
    ModelRow("", "", "interbert", PRETRAINED, "InterBERT"),
    ModelRow("without-pretraining", "without pre-training", "interbert", BERT, "InterBERT (w/o pt)"),
    ModelRow(
        "single-masks", "words and regions masked one by one", "interbert-single-masks", PRETRAINED, "MLM+MOM+ITM"
    ),
    ModelRow(
        "without-bert", "pre-trained without BERT's weights to start from", "interbert-without-bert", PRETRAINED,
        "InterBERT w/o BERT initialization",
    ),
)  # fmt: skip


def _vcr(problem: str, release: str = "") -> TaskRecipe:
    """The paper's run; `release` is "-release" in the names of the release's runs."""
    name = f"interbert-vcr{release}"
    return vcr_run(
        problem,
        name,
        "InterBERT",
        "the pair",
        source="arXiv:2003.13198, sections 2.4 and 3.4, appendix 6.2; black4321/InterBERT",
        features=Features("interbert", annotated="vcr"),
        settings=ADAMW,
        batch_size=32,
        epochs=5,
        warmup=10_000,
        left_open=(
            *_PAPER_OPEN,
            *_SHARED_OPEN,
            *(() if problem == BOTH else (f"Both problems by one model: the recipe {name}.",)),
        ),
    )


def _released(problem: str) -> TaskRecipe:
    settings, accidents = parted_settings("interbert-release-tasks")
    recipe = _vcr(problem, "-release")
    return replace(
        recipe,
        summary=f"{recipe.summary}; as released",
        source="black4321/InterBERT README.md, interbert_tasks.yml and train_tasks.py",
        model="interbert-release",
        settings={**settings, "average_rate": 0.9999},
        accidents=accidents,
        updates_apart=VCR_UPDATES_APART,
        warmup=0.1,
        figures=_figures(problem, "InterBERT, README.md", "InterBERT"),
        left_open=(
            "The README repeats the paper's figures.",
            "Decay lies on biases and LayerNorms there, and the average has a share of the weights from before "
            "training (--set steps.rule=release). The rate never falls in 5 epochs.",
            BOTH_OPEN,
            *(each for each in recipe.left_open if each not in _PAPER_OPEN),
        ),
    )


def _figures(problem: str, paper: str, row: str) -> tuple[PaperFigure, ...]:
    """Figures of one problem, or of the whole row, both problems right together included."""
    return figures_of(paper, row, "VCR" if problem == BOTH else f"VCR, {PROBLEM_NAMES[problem]}")


def _runs() -> Iterator[tuple[str, TaskRecipe]]:
    for problem in (*PROBLEM_NAMES, BOTH):
        recipe, own = _vcr(problem), "" if problem == BOTH else f"-{problem}"
        for row in _ROWS:
            fields = interbert_fields("paper") if row.start == BERT else {}
            figures = _figures(problem, "InterBERT", row.printed)
            yield row.named(f"interbert-vcr{own}"), row.of(recipe, figures, model_fields=fields)
        yield f"interbert-vcr-release{own}", _released(problem)


INTERBERT_TASK_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict(_runs()))


_GLUE_ROWS = (  # of Table 3
    ModelRow("", "InterBERT", "interbert", PRETRAINED, "InterBERT"),
    ModelRow(
        "single-stream",
        "The single-stream baseline of its paper",
        "interbert-single-stream",
        PRETRAINED,
        "Single Stream",
    ),
    ModelRow("bert-base", "BERT-base", "visualbert-coco-vqa", BERT, "BERT-base"),
)
_COLUMNS = ("QNLI", "CoLA", "SST-2", "STS-B", "RTE", "MNLI", "QQP", "MRPC")
_SETTINGS: Mapping[str, Any] = MappingProxyType({"optimizer": "adamw", "weight_decay": 0.01})
_FED_OPEN = "How a text is fed alone is not given: the joint layers on the text, then those of the text; no IMG."
_BERT_OPEN = (
    "BERT itself is the layers, pooler and segments of VisualBERT's system on a text alone, started by --from none "
    "--from-bert hf:google-bert/bert-base-uncased.",
    "Average of the eight: roibeam score glue on a zip of all tables.",
)
_OPEN = (
    "Warm-up, decay and schedule are not given: BERT's, a tenth of the steps and a linear fall, decay 0.01.",
    "Whether the best or the last epoch counts is not given, nor the number of seeds: the last; for small tasks the "
    "median of --seeds 5.",
    "Its average is over the eight tasks, MNLI's two files taken together first.",
)
_COLA_OPEN = "The figure is called an accuracy; GLUE takes Matthews' correlation, and its size is that of one."


def _glue_runs() -> Iterator[tuple[str, TaskRecipe]]:
    for row in _GLUE_ROWS:
        is_bert = row.start == BERT
        for column in _COLUMNS:
            task = column.lower()
            run = TaskRecipe(
                summary=f"{row.words}, GLUE's {task}: pooled [CLS] of the text alone",
                source="arXiv:2003.13198, section 3.6, Table 3, appendix 6.3",
                task=task,
                system="visualbert" if is_bert else "interbert",
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
                    "InterBERT", row.printed, f"GLUE {column}", *(["GLUE, average of the eight"] if is_bert else [])
                ),
                left_open=(
                    *(_BERT_OPEN if is_bert else [_FED_OPEN]),
                    *_OPEN,
                    *([_COLA_OPEN] if task == "cola" else []),
                ),
            )
            yield row.named(f"interbert-{task}"), run


INTERBERT_GLUE_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict(_glue_runs()))
