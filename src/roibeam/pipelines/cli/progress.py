"""`roibeam progress`: look at a run from another terminal or machine."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from roibeam.pipelines.cli.options import JSON
from roibeam.pipelines.cli.surface.option import argument, option
from roibeam.pipelines.common.console.printable_streams import Unchanged


def progress_command(
    stores: Annotated[list[str], argument("STORE", "Stores that runs write: folders, or URLs (s3://, gs://, ...).")],
    watch: Annotated[bool, option("watch")] = False,
    every: Annotated[float, option("every", "With --watch.")] = 15.0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Shows how far an extraction is, and the time left.

    It reads what the run has written, on any runner and from any machine, and writes nothing. --watch ends when the
    run has ended, or nothing was heard of it for 20 minutes. The exit code is 1 if the run stopped before its end, is
    silent for so long, or failed (--max-failures); 0 if it is at work or has finished. Of several stores, sums are
    shown, and the stores that neither work nor have finished; the exit code is 1 if there are such.

    Examples:
        roibeam progress store/
        roibeam progress s3://bucket/store --watch
        roibeam progress parts/*
    """
    from roibeam.pipelines.extract.report.several_status import SeveralView
    from roibeam.pipelines.extract.report.store_status import SILENT_SECONDS

    view = SeveralView(stores)
    began = time.monotonic()
    while True:
        look = view.read()
        if as_json:
            for line in look.json_lines():
                typer.echo(json.dumps(line))
        else:
            if watch and sys.stdout.isatty():  # a look takes the place of the one before
                typer.echo(Unchanged("\x1b[2J\x1b[H"), nl=False)
            typer.echo(look.text())
        # At a URL, a run that was just begun again is silent until its first shard: that is waited for.
        was_long = time.monotonic() - began >= SILENT_SECONDS
        if not watch or look.is_over or (was_long and not look.has_work):
            if not look.is_well:
                raise typer.Exit(1)
            return
        sys.stdout.flush()
        time.sleep(every)
