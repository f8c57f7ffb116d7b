"""What the commands that train share: the option that resumes, and what they say of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from roibeam.pipelines.training.loop import TrainResult

RESUME = typer.Option(
    "--resume/--no-resume",
    help="Continue from OUT's newest checkpoint, or refuse a folder that holds a run "
    "[default: continue where OUT holds this very run].",
    show_default=False,
)


def run_folder_lines(run_dir: Path, result: TrainResult) -> list[str]:
    """The files of a run folder that every training writes, with a word on each, for the terminal."""
    best = [] if result.best is None else [f"  {result.best.relative_to(run_dir)}/   the best by its evaluations"]
    return [
        *best,
        "  report.html   look here first: losses, evaluations, settings",
        "  curves.svg   its losses, as a picture",
        "  log.jsonl   one line per step",
        "  config.json   everything this run was made with",
    ]
