"""`roibeam pretrain`: the training stage reads the store."""

from __future__ import annotations

import typer


def pretrain_command() -> None:
    """placeholder"""
    raise typer.Exit(1)
