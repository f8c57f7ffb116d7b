"""The tables of docs/finetuning.md: by task and system the published runs, and figures of the toy world."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidence.run_answers import read_runs
from evidence.tasks.own_arms import OWN_ARMS
from evidence.tasks.task_arms import PERFECT, PREFIX, TASK_ARMS

ARMS, STORE = {**TASK_ARMS, **OWN_ARMS}, f"{PREFIX}{PERFECT}"
COLUMNS = {
    "VL-BERT": "vlbert",
    "ViLBERT": "vilbert",
    "VisualBERT": "visualbert",
    "ImageBERT": "imagebert",
    "InterBERT": "interbert",
}
_GLUE = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte")
# Without the rows of ablations, other sizes, depths, shares and starts.
FULL = {
    *("vlbert-vqa", "vlbert-vqa-paper", "vlbert-vcr-answer", "vlbert-vcr-rationale", "vlbert-vcr-answer-paper"),
    *("vlbert-vcr-rationale-paper", "vlbert-refcoco+-annotated", "vlbert-refcoco+-detected"),
    *("vlbert-refcoco+-annotated-paper", "vlbert-refcoco+-detected-paper"),
    *("vilbert-vqa", "vilbert-vcr", "vilbert-vcr-answer", "vilbert-vcr-rationale", "vilbert-refcoco+-detected"),
    *("vilbert-vqa-paper", "vilbert-refcoco+-detected-paper", "vilbert-retrieval-paper"),
    *("visualbert-vqa", "visualbert-vcr-answer", "visualbert-vcr-rationale", "visualbert-nlvr2"),
    *("interbert-vcr", "interbert-vcr-answer", "interbert-vcr-rationale", "interbert-vcr-release"),
    "interbert-vcr-release-answer",
    *("interbert-vcr-release-rationale", "vilbert-retrieval", "imagebert-retrieval", "interbert-retrieval"),
    *("interbert-retrieval-release", "visualbert-flickr30k-entities"),
    *(f"interbert-{task}" for task in _GLUE),
}  # fmt: skip


def recipe_tables(results: Path) -> list[str]:
    """
    Args:
        results: folder of the answers, see `run_answers`.
    """
    from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS

    made = read_runs(results)
    tables = {
        "task": {task: [_published(task, system) for system in COLUMNS.values()] for task in TASKS},
        "task, toy world": {task: [_toy_figure(task, system, made) for system in COLUMNS.values()] for task in TASKS},
    }
    return [
        "\n".join(
            [f"| {head} | {' | '.join(COLUMNS)} |", f"|---{'|---' * len(COLUMNS)}|"]
            + [f"| `{task}` | {' | '.join(cells)} |" for task, cells in rows.items() if set(cells) - {"ours", "-"}]
        )
        for head, rows in tables.items()
    ]


def write_recipe_tables(page: Path, results: Path) -> None:
    """Puts the tables of now where the page has them.

    Raises:
        ValueError: when the page lacks one.
    """
    text = page.read_text("utf-8")
    for table in recipe_tables(results):
        head = table.splitlines()[0]
        before, found, behind = text.partition(f"{head}\n")
        if not found:
            raise ValueError(f"{page}: no line {head!r}, where a table of recipes begins")
        rest = behind.splitlines(keepends=True)
        end = next((at for at, line in enumerate(rest) if not line.startswith("|")), len(rest))
        text = f"{before}{table}\n{''.join(rest[end:])}"
    page.write_text(text, "utf-8")


def _published(task: str, system: str) -> str:
    """Published runs, each with its first figure and its source."""
    from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES

    runs = []
    for name, recipe in TASK_RECIPES.items():
        if (recipe.task, recipe.system) != (task, system) or name not in FULL:
            continue
        figure = next(iter(recipe.figures), None)
        where = "" if figure is None else figure.where.removesuffix(", read off a list of results")
        runs.append(f"`{name}` {'-' if figure is None else f'{figure.printed} ({where})'}")
    return ", ".join(runs) or "ours"


# Runs whose name is not that of task and system; of ImageBERT's retrieval the best published loss.
_RUNS = {"flickr30k-entities": "phrases-{}", "retrieval imagebert": "retrieval-imagebert-binary-hard"}


def _toy_figure(task: str, system: str, made: Mapping[str, Any]) -> str:
    """Main measure, in percent, of the runs with pre-trained weights on the perfect store."""
    shares, run = [], _RUNS.get(f"{task} {system}", _RUNS.get(task, f"{task}-{{}}")).format(system)
    for name in filter(re.compile(f"{STORE}/{re.escape(run)}-[0-9]").fullmatch, made):
        main = made[name]["tallies"][ARMS[f"{STORE}/{run}"].rules.main]
        shares.append(100 * sum(main["right"]) / sum(main["asked"]))
    return f"{sum(shares) / len(shares):.1f}" if shares else "-"
