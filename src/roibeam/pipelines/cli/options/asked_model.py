"""Options that evaluate and probe share: which checkpoint is asked, and how its text and classes are read."""

from __future__ import annotations

import typer

CHECKPOINT_HELP = "Run folder of `roibeam pretrain`, a model's folder, or an official checkpoint (docs/checkpoints.md)."
TOKENIZER = typer.Option(help="As in pretrain [default: that of the checkpoint's run].")
CONFIG = typer.Option(help="Official JSON configuration beside an official checkpoint.")
BACKGROUND_FIRST = typer.Option(
    "--background-first/--background-last",
    help="Where the model's classes have background: last in our stores, first in those of bottom-up attention, so in "
    "most official checkpoints.",
)
TASK = typer.Option(min=0, help="Task token, for a multi-task ViLBERT with such tokens; needed there.")
