"""`roibeam progress`: look at a run from another terminal or machine."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer


def progress_command(
    store: Annotated[str, typer.Argument(help="Store that a run writes: a folder, or a URL (s3://, gs://, ...).")],
    watch: Annotated[bool, typer.Option("--watch/--no-watch", help="Look again until the store is complete.")] = False,
    every: Annotated[float, typer.Option(min=1, help="Seconds between two looks with --watch.")] = 15.0,
    as_json: Annotated[
        bool, typer.Option("--json/--no-json", help="A JSON line for each look on standard output.")
    ] = False,
) -> None:
    """How far a run is, whatever runner does it: images, rate, time left, failures, and which shards are in work.

    Reads shard manifests and heartbeats and writes nothing. The rate is that of the shards in work.
    """
    from roibeam.features.folders.folder_choice import output_folder
    from roibeam.pipelines.extract.report.store_status import StatusView, status_json, status_text

    view = StatusView(output_folder(store))
    while True:
        status = view.read()
        if as_json:
            typer.echo(json.dumps(status_json(status, store)))
        else:
            # On a terminal a look takes the place of the one before.
            typer.echo(("\x1b[2J\x1b[H" if watch and sys.stdout.isatty() else "") + status_text(status))
        if not watch or status.is_complete:
            return
        sys.stdout.flush()
        time.sleep(every)
