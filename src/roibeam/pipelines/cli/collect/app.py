"""`roibeam collect`: the group of its commands."""

from __future__ import annotations

import typer

from roibeam.pipelines.cli.collect.run import CollectRunCommand, collect_run_command
from roibeam.pipelines.cli.collect.train_judges import train_images_command, train_pairs_command
from roibeam.pipelines.cli.surface.command import HelpedCommand, HelpedGroup

collect_app = typer.Typer(
    cls=HelpedGroup, help="Image-text pairs from web pages: collected and judged.", rich_markup_mode=None
)
collect_app.command("run", cls=CollectRunCommand)(collect_run_command)
collect_app.command("train-images", cls=HelpedCommand)(train_images_command)
collect_app.command("train-pairs", cls=HelpedCommand)(train_pairs_command)
