"""`roibeam download`: the images of a caption list, fetched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.options import JSON
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option


def download_command(
    rows: Annotated[
        str,
        argument("ROWS", "List of URLs: Conceptual Captions .tsv (3M or 12M), SBU .json, a table (.parquet, .csv)."),
    ],
    out: Annotated[Path, argument("OUT", "Folder to write.")],
    url_column: Annotated[str, option("url-column", default="url or image_url, in any case")] = "",
    caption_column: Annotated[str, option("caption-column", default="caption, text or top_caption, in any case")] = "",
    connections: Annotated[int, option("connections")] = 64,
    per_host: Annotated[int, option("per-host")] = 8,
    attempts: Annotated[int, option("attempts")] = 3,
    connect_timeout: Annotated[float, option("connect-timeout")] = 10.0,
    stall_timeout: Annotated[float, option("stall-timeout")] = 15.0,
    timeout: Annotated[float, option("timeout")] = 60.0,
    max_wait: Annotated[float, option("max-wait")] = 60.0,
    backoff: Annotated[float, option("backoff")] = 1.0,
    max_redirects: Annotated[int, option("max-redirects")] = 5,
    allow_private: Annotated[list[str] | None, option("allow-private")] = None,
    user_agent: Annotated[str | None, option("user-agent", default="roibeam and its version")] = None,
    robots_txt: Annotated[bool, option("robots-txt")] = False,
    seed: Annotated[int, option("seed", "Here: the waits between tries.", is_advanced=True)] = 0,
    retry_dead_letters: Annotated[bool, option("retry-dead-letters")] = False,
    max_failures: Annotated[
        float, option("max-failures", "Dead links are normal: by default no share is too many.")
    ] = 1.0,
    max_bytes: Annotated[int, option("max-bytes")] = 20_000_000,
    max_pixels: Annotated[int, option("max-pixels")] = 120_000_000,
    min_side: Annotated[int, option("min-side")] = 0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Downloads the images of a caption list.

    It also writes OUT/local.tsv, their captions with local paths, which extract reads. Run the same command again to
    continue. Images that fail are listed with the reason in OUT/dead_letters.parquet. Images whose site does not want
    them used (X-Robots-Tag) are left out.

    Examples:
        roibeam download Train_GCC-training.tsv cc/
        roibeam extract cc/local.tsv store/ --preset vl-bert --weights vg.model
        roibeam download laion.parquet laion/ --caption-column alt
    """
    from roibeam.pipelines.data.datasets.url_table import UrlColumns
    from roibeam.pipelines.data.download.download_run import run_download
    from roibeam.pipelines.data.download.limits import DownloadLimits
    from roibeam.pipelines.data.download.options import DownloadOptions
    from roibeam.pipelines.data.download.outputs import summary, summary_text

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
        min_side=min_side,
    )
    options = DownloadOptions(
        limits, tuple(allow_private or ()), retry_dead_letters, seed, user_agent, as_json, robots_txt,
        UrlColumns(url_column, caption_column),
    )  # fmt: skip
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
