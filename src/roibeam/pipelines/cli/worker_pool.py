"""`roibeam worker-pool`: the process beside each TaskManager or Spark worker that starts our Beam workers."""

from __future__ import annotations

from typing import Annotated

import typer

PIPELINE = "roibeam.pipelines.extract.beam_extraction"  # by its name: the pool does not need torch, its workers do


def worker_pool_command(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port that runners ask for workers at.")] = 50000,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at. Whoever reaches it can run code here: leave it local, one pool per machine."
        ),
    ] = "localhost",
) -> None:
    """Starts Beam workers for Flink, Spark or another portable runner on this machine, until Ctrl-C.

    One runs beside each TaskManager, with this Python and this roibeam. A runner asks it for a worker per job and
    TaskManager; each is a process with one model that its threads share. Workers end with their job, with their
    TaskManager, and with this process.
    """
    from roibeam.pipelines.extract.runners.worker_pool import serve_worker_pool

    serve_worker_pool(PIPELINE, host, port)
