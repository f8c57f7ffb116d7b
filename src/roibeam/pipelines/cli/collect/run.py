"""`roibeam collect run`: web pages in, clean image-text pairs out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.extract import ExtractCommand
from roibeam.pipelines.cli.options import HELD_OUT, JSON
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option


class CollectRunCommand(ExtractCommand):
    """What follows -- is for the Beam runner."""


def collect_run_command(
    context: typer.Context,
    pages: Annotated[
        str, argument("PAGES", "A .warc or .warc.gz, here or at a URL; a folder of them or of HTML; a list (.paths).")
    ],
    out: Annotated[Path, argument("OUT", "Folder to write.")],
    base_url: Annotated[str | None, option("base-url", default="none; images must have whole addresses")] = None,
    held_out: Annotated[list[str] | None, HELD_OUT] = None,
    held_out_images: Annotated[list[str] | None, option("held-out-images")] = None,
    images_from: Annotated[Path | None, option("images-from")] = None,
    picture_judge: Annotated[Path | None, option("picture-judge", default="none: the step is off")] = None,
    pair_judge: Annotated[Path | None, option("pair-judge", default="none: the step is off")] = None,
    detector: Annotated[str | None, option("detector", "The judges' own.", default="none")] = None,
    match_model: Annotated[str | None, option("match-model", default="none")] = None,
    device: Annotated[str, option("device")] = "auto",
    nsfw: Annotated[bool, option("nsfw")] = True,
    settings: Annotated[
        list[str] | None,
        option("set", "Sections: page, language, image, text, picture, aggregation.", group="What is kept"),
    ] = None,
    connections: Annotated[int, option("connections")] = 64,
    per_host: Annotated[int, option("per-host")] = 8,
    allow_private: Annotated[list[str] | None, option("allow-private")] = None,
    user_agent: Annotated[str | None, option("user-agent", default="roibeam and its version")] = None,
    robots_txt: Annotated[bool, option("robots-txt")] = True,
    retry_dead_letters: Annotated[bool, option("retry-dead-letters", is_advanced=True)] = False,
    max_bytes: Annotated[int, option("max-bytes")] = 20_000_000,
    max_pixels: Annotated[int, option("max-pixels")] = 120_000_000,
    workers: Annotated[int, option("workers", "Here: of the local runner.")] = 1,
    runner: Annotated[str, option("runner", "Options after -- are for it.", is_advanced=True)] = "local",
    pool_token_file: Annotated[
        Path | None, option("pool-token-file", "For --runner flink or spark.", is_advanced=True)
    ] = None,
    dry_run: Annotated[bool, option("dry-run")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Collects image-text pairs from web pages.

    Pages are read, their dominant images fetched politely, and the best text of each image kept, with a reason for
    whatever is dropped. Run the same command again to continue. docs/collection.md tells the steps.

    Examples:
        roibeam collect run crawl/ pairs/ --workers 2
        roibeam collect run crawl/ pairs/ --pair-judge pairs.json --detector toy
        roibeam extract pairs/local.tsv store/ --detector toy
    """
    # What is heavy waits until a command needs it, so that --help is quick.
    from roibeam.pipelines.collection.judging.judge_files import JudgeFiles
    from roibeam.pipelines.collection.page import NOWHERE
    from roibeam.pipelines.collection.running.request import CollectRequest, files_state
    from roibeam.pipelines.data.download.limits import DownloadLimits
    from roibeam.pipelines.extract.requested_detector import check_runner_name

    judges = JudgeFiles(picture_judge, pair_judge, detector, match_model, device)
    request = CollectRequest(
        pages, Path(os.path.abspath(out)), NOWHERE if base_url is None else base_url,
        settings=tuple(settings or ()), held_out=tuple(held_out or ()), held_out_images=tuple(held_out_images or ()),
        images_from=images_from, is_nsfw_checked=nsfw, allow_private=tuple(allow_private or ()), user_agent=user_agent,
        retry_dead_letters=retry_dead_letters, asks_robots_txt=robots_txt, as_json=as_json,
        limits=DownloadLimits(
            connections=connections, per_host=per_host, max_bytes=max_bytes, max_pixels=max_pixels
        ),
    )  # fmt: skip
    check_runner_name(runner)
    request.check()
    judges.check()
    request.units()
    if picture_judge or pair_judge:
        request = request.with_judges(judges, files_state([picture_judge, pair_judge], [detector, match_model]))
    from roibeam.pipelines.collection.running.collection_run import dry_run as run_dry
    from roibeam.pipelines.collection.running.collection_run import run_collection
    from roibeam.pipelines.collection.running.run_text import dry_run_text, summary_text
    from roibeam.pipelines.extract.runners.pipeline_run import RunnerChoice

    if dry_run:
        units, num_bytes = run_dry(request)
        found = {"units": len(units), "bytes": num_bytes}
        typer.echo(json_line(found, event="dry_run") if as_json else dry_run_text(units, num_bytes))
        return
    choice = RunnerChoice(
        runner, tuple(context.args), workers, None if pool_token_file is None else str(pool_token_file)
    )
    done = run_collection(request, choice, tell=lambda line: typer.echo(line, err=True))
    typer.echo(json_line({"out": str(out), **done.summary()}, event="summary") if as_json else summary_text(done, out))
