"""`roibeam download`: the images of a caption list, fetched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line


def download_command(
    rows: Annotated[str, typer.Argument(help="List of URLs: Conceptual Captions .tsv (3M or 12M) or SBU .json.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; run again to continue.")],
    connections: Annotated[int, typer.Option(min=1, help="Connections open at once.")] = 64,
    per_host: Annotated[int, typer.Option(min=1, help="Of these, to one host.")] = 8,
    attempts: Annotated[
        int, typer.Option(min=1, help="Tries of a URL whose failure may pass (no connection, 429, 5xx, cut off).")
    ] = 3,
    connect_timeout: Annotated[float, typer.Option(help="Seconds until a connection stands.")] = 10.0,
    stall_timeout: Annotated[float, typer.Option(help="Seconds a server may be silent.")] = 15.0,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer in all.")] = 60.0,
    max_wait: Annotated[
        float,
        typer.Option(min=0, help="Longest Retry-After, in seconds, that is waited for; a longer one is a failure."),
    ] = 60.0,
    backoff: Annotated[
        float, typer.Option(min=0, help="Seconds before the second attempt; doubled each time, times 0.5 to 1.5.")
    ] = 1.0,
    max_redirects: Annotated[int, typer.Option(min=0, help="Redirects followed for one URL.")] = 5,
    max_bytes: Annotated[int, typer.Option(min=1, help="Largest image file, also once decompressed.")] = 20_000_000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest image, by its header.")] = 120_000_000,
    allow_private: Annotated[
        list[str] | None,
        typer.Option(help="Network such as 10.0.0.0/8 that may be connected to although it is not public; repeatable."),
    ] = None,
    user_agent: Annotated[
        str | None, typer.Option(help="What we call ourselves [default: roibeam and its version].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the waits between attempts.")] = 0,
    retry_dead_letters: Annotated[
        bool, typer.Option("--retry-dead-letters/--no-retry-dead-letters", help="Try failed URLs again.")
    ] = False,
    max_failures: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share of rows without an image above which the command fails: dead links are normal."
        ),
    ] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json/--no-json", help="Progress and result as JSON lines on standard output.")
    ] = False,
) -> None:
    """Downloads the images that ROWS names into OUT, and writes their captions with local paths: OUT/local.tsv.

    `roibeam extract OUT/local.tsv STORE` reads them. A rerun does only what is missing. What gave no image is a dead
    letter with a reason. Sites that opt out (X-Robots-Tag) are left alone. docs/downloads.md tells more.
    """
    from roibeam.pipelines.sources.download.download_run import DownloadOptions, run_download
    from roibeam.pipelines.sources.download.limits import DownloadLimits
    from roibeam.pipelines.sources.download.outputs import summary, summary_text

    limits = DownloadLimits(
        connections=connections,
        per_host=per_host,
        attempts=attempts,
        connect_seconds=connect_timeout,
        stall_seconds=stall_timeout,
        total_seconds=timeout,
        max_wait_seconds=max_wait,
        backoff_seconds=backoff,
        max_redirects=max_redirects,
        max_bytes=max_bytes,
        max_pixels=max_pixels,
    )
    options = DownloadOptions(limits, tuple(allow_private or ()), retry_dead_letters, seed, user_agent, as_json)
    coverage = run_download(rows, Path(os.path.abspath(out)), options)
    typer.echo(
        json_line({"out": str(out), **summary(coverage)}, event="summary") if as_json else summary_text(coverage, out)
    )
    if coverage.failed_share > max_failures:
        typer.echo(
            f"roibeam: {100 * coverage.failed_share:.1f} % of the rows have no image, more than the "
            f"{100 * max_failures:g} % of --max-failures; {out}/dead_letters.parquet names the failed ones, "
            f"--retry-dead-letters tries them again",
            err=True,
        )
        raise typer.Exit(1)
