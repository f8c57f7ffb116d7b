"""`roibeam worker-pool`: the process beside each TaskManager or Spark worker that starts our Beam workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from roibeam.pipelines.cli.surface.option import option

PIPELINE = "roibeam.pipelines.extract.beam_extraction"  # by its name: the pool does not need torch, its workers do


def worker_pool_command(
    port: Annotated[int, option("port")] = 50000,
    host: Annotated[
        str, option("host", "One that other machines reach needs a token; one pool on each machine needs none such.")
    ] = "localhost",
    pool_token_file: Annotated[
        Path | None, option("pool-token-file", "Without one, every user of this machine can run code as you.")
    ] = None,
) -> None:
    """Starts Beam workers on this machine, for Flink or Spark.

    Start one beside each TaskManager, with the same Python and the same roibeam. It runs until Ctrl-C.

    Examples:
        roibeam worker-pool --pool-token-file token
    """
    from roibeam.pipelines.extract.runners.pool_token import read_token
    from roibeam.pipelines.extract.runners.worker_pool import serve_worker_pool

    token = None if pool_token_file is None else read_token(pool_token_file)
    serve_worker_pool(PIPELINE, host, port, token)
