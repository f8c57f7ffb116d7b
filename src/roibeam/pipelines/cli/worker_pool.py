"""`roibeam worker-pool`: the process beside each TaskManager or Spark worker that starts our Beam workers."""

from __future__ import annotations

from typing import Annotated

from roibeam.pipelines.cli.surface.option import option

PIPELINE = "roibeam.pipelines.extract.beam_extraction"  # by its name: the pool does not need torch, its workers do


def worker_pool_command(
    port: Annotated[int, option("port")] = 50000,
    host: Annotated[
        str, option("host", "Everybody who reaches it can run code here: keep it local, one pool on each machine.")
    ] = "localhost",
) -> None:
    """Starts Beam workers on this machine, for Flink or Spark.

    Start one beside each TaskManager, with the same Python and the same roibeam. It runs until Ctrl-C.

    Examples:
        roibeam worker-pool --port 50000
    """
    from roibeam.pipelines.extract.runners.worker_pool import serve_worker_pool

    serve_worker_pool(PIPELINE, host, port)
