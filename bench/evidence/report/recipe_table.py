"""The table of docs/finetuning.md: by task the published runs."""

from __future__ import annotations

from pathlib import Path

HEAD = "| task | published runs |\n"
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


def recipe_table() -> str:
    from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS

    rows = [f"| `{task}` | {runs} |\n" for task in TASKS if (runs := _published(task))]
    return f"{HEAD}|---|---|\n{''.join(rows)}"


def write_recipe_table(page: Path) -> None:
    """Puts the table of now where the page has it.

    Raises:
        ValueError: when the page lacks it.
    """
    before, found, behind = page.read_text("utf-8").partition(HEAD)
    if not found:
        raise ValueError(f"{page}: no line {HEAD.strip()!r}, where the table of recipes begins")
    rest = behind.partition("\n\n")[2]
    page.write_text(f"{before}{recipe_table()}\n{rest}", "utf-8")


def _published(task: str) -> str:
    """Published runs, each with its first figure and its source."""
    from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES

    runs = []
    for name, recipe in TASK_RECIPES.items():
        if recipe.task != task or name not in FULL:
            continue
        figure = next(iter(recipe.figures), None)
        where = "" if figure is None else figure.where.removesuffix(", read off a list of results")
        runs.append(f"`{name}` {'-' if figure is None else f'{figure.printed} ({where})'}")
    return ", ".join(runs)
