"""`roibeam progress`: look at a run from another terminal or machine."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from roibeam.pipelines.cli.options import JSON
from roibeam.pipelines.cli.surface.option import argument, option


def progress_command(
    store: Annotated[str, argument("STORE", "Store that a run writes: a folder, or a URL (s3://, gs://, ...).")],
    watch: Annotated[bool, option("watch")] = False,
    every: Annotated[float, option("every", "With --watch.")] = 15.0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Shows how far an extraction is, and the time left.

    It reads what the run has written, on any runner and from any machine, and writes nothing. --watch ends when the
    run has ended, or nothing was heard of it for 20 minutes. The exit code is 1 if the run stopped before its end, is
    silent for so long, or failed (--max-failures); 0 if it is at work or has finished.

    Examples:
        roibeam progress store/
        roibeam progress s3://bucket/store --watch
    """
    from roibeam.features.folders.folder_choice import output_folder
    from roibeam.pipelines.extract.report.store_status import SILENT_SECONDS, StatusView, status_json, status_text

    view = StatusView(output_folder(store))
    began = time.monotonic()
    while True:
        status = view.read()
        if as_json:
            typer.echo(json.dumps(status_json(status, store)))
        else:
            # On a terminal a look takes the place of the one before.
            typer.echo(("\x1b[2J\x1b[H" if watch and sys.stdout.isatty() else "") + status_text(status))
        # At a URL, a run that was just begun again is silent until its first shard: that is waited for.
        was_long = time.monotonic() - began >= SILENT_SECONDS
        if not watch or status.is_over or (not status.is_well and was_long):
            if not status.is_well:
                raise typer.Exit(1)
            return
        sys.stdout.flush()
        time.sleep(every)
