"""`roibeam collect` and `roibeam download`: image-text pairs from web pages, their judges, images of a caption list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.extract import ExtractCommand
from roibeam.pipelines.cli.help_pages import HelpedCommand, HelpedGroup
from roibeam.pipelines.cli.request_command import request_command
from roibeam.pipelines.collection.judging.requests import TrainImagesRequest, TrainPairsRequest
from roibeam.pipelines.collection.request import CollectRequest
from roibeam.pipelines.common.console.request_options import (
    FAILURES,
    INPUT,
    NETWORK,
    TRAINING,
    AllowPrivate,
    Json,
    MaxBytes,
    MaxPixels,
    UserAgent,
    argument,
    option,
)
from roibeam.pipelines.extract.request import RunnerChoice

if TYPE_CHECKING:
    from roibeam.pipelines.collection.judging.picture_judge import TrainedJudge


def download_command(
    rows: Annotated[str, argument(
        "ROWS", "List of URLs: Conceptual Captions .tsv (3M or 12M), SBU .json, a table (.parquet, .csv).",
    )],
    out: Annotated[Path, argument("OUT", "Folder to write.")],
    url_column: Annotated[str, option(
        "Column of the URLs, where ROWS is a table.", "NAME", INPUT, default="url or image_url, in any case",
    )] = "",
    caption_column: Annotated[str, option(
        "Column of the captions: its name, or 1 or 2 in a caption .tsv.", "COLUMN", INPUT,
        default="caption, text or top_caption, in any case",
    )] = "",
    connections: Annotated[int, option("Connections that are open at once.", "N", NETWORK, min=1)] = 64,
    per_host: Annotated[int, option("Connections to one host that are open at once.", "N", NETWORK, min=1)] = 8,
    attempts: Annotated[int, option("Tries of a URL that fails for a temporary reason.", "N", NETWORK, min=1)] = 3,
    connect_timeout: Annotated[float, option(
        "Seconds to wait for a connection.", "SECONDS", NETWORK, advanced=True,
    )] = 10.0,
    stall_timeout: Annotated[float, option(
        "Seconds that a server may be silent.", "SECONDS", NETWORK, advanced=True,
    )] = 15.0,
    timeout: Annotated[float, option(
        "Seconds that one response may take in all.", "SECONDS", NETWORK, advanced=True,
    )] = 60.0,
    max_wait: Annotated[float, option(
        "Longest wait that a server may ask for.", "SECONDS", NETWORK, min=0, advanced=True,
    )] = 60.0,
    backoff: Annotated[float, option(
        "Seconds before the second try; doubled before each further one.", "SECONDS", NETWORK, min=0, advanced=True,
    )] = 1.0,
    max_redirects: Annotated[int, option(
        "Redirects that are followed for one URL.", "N", NETWORK, min=0, advanced=True,
    )] = 5,
    allow_private: AllowPrivate = (),
    user_agent: UserAgent = None,
    robots_txt: Annotated[bool, option(
        "Read each host's robots.txt, and skip what it forbids.", "", NETWORK, "--robots-txt/--no-robots-txt",
    )] = False,
    seed: Annotated[int, option(
        "Seed of all random choices. Here: of the waits between tries.", "N", TRAINING, min=0,
    )] = 0,
    retry_dead_letters: Annotated[bool, option("Try again what failed before.", "", FAILURES)] = False,
    max_failures: Annotated[float, option(
        "Exit with an error if more than this share fails. Dead links are normal: by default no share is too many.",
        "SHARE", FAILURES, min=0, max=1,
    )] = 1.0,
    max_bytes: MaxBytes = 20_000_000,
    max_pixels: MaxPixels = 120_000_000,
    min_side: Annotated[int, option(
        "Images whose shorter side has fewer pixels count as failures.", "N", FAILURES, min=0,
    )] = 0,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Downloads the images of a caption list.

    It also writes OUT/local.tsv, the captions with local paths, for `roibeam extract`. Run the same command again to
    continue. Images that fail are listed with the reason in OUT/dead_letters.parquet. Images whose site does not want
    them used (X-Robots-Tag) are left out.

    Examples:
        roibeam download Train_GCC-training.tsv cc/
        roibeam extract cc/local.tsv store/ --preset vl-bert --weights vg.model
        roibeam download laion.parquet laion/ --caption-column alt
    """
    from roibeam.pipelines.data.datasets.tables import UrlColumns
    from roibeam.pipelines.data.download.download_folder import summary, summary_text
    from roibeam.pipelines.data.download.download_run import DownloadOptions, run_download
    from roibeam.pipelines.data.download.limits import DownloadLimits

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


def collect_run_command(
    context: typer.Context,
    request: CollectRequest,
    choice: RunnerChoice,
    dry_run: Annotated[bool, option("Show the plan, and write nothing.")] = False,
) -> None:
    """Collects image-text pairs from web pages.

    It reads pages, fetches their dominant images politely, and keeps the best text of each image. Each dropped page,
    image and text has a reason. Run the same command again to continue. docs/collection.md describes the steps.

    Examples:
        roibeam collect run crawl/ pairs/ --workers 2
        roibeam collect run crawl/ pairs/ --pair-judge pairs.json --detector toy
        roibeam extract pairs/local.tsv store/ --detector toy
    """
    # Heavy imports wait until a command needs them, so that --help is quick.
    from roibeam.pipelines.extract.requested_detector import check_runner_name

    out = request.out
    request, choice = replace(request, out=Path(os.path.abspath(out))), replace(choice, beam_args=tuple(context.args))
    check_runner_name(choice.runner)
    request.check()
    request.judge_files().check()
    request.units()
    from roibeam.pipelines.collection.collection_run import dry_run as run_dry
    from roibeam.pipelines.collection.collection_run import run_collection
    from roibeam.pipelines.collection.report import dry_run_text, summary_text

    if dry_run:
        units, num_bytes = run_dry(request)
        found = {"units": len(units), "bytes": num_bytes}
        typer.echo(json_line(found, event="dry_run") if request.json else dry_run_text(units, num_bytes))
        return
    done = run_collection(request, choice, tell=lambda line: typer.echo(line, err=True))
    typer.echo(
        json_line({"out": str(out), **done.summary()}, event="summary") if request.json else summary_text(done, out)
    )


_FEW_ROWS = 100  # a precision of 0.95 among 100 has an interval of 0.89 to 0.98


def train_images_command(request: TrainImagesRequest, json: Json = False) -> None:
    """Trains a judge that tells natural photos from logos, charts and screenshots.

    It looks at cheap statistics of the file and, with --store, at its regions. A quarter of the images is held out to
    set the threshold. OUT holds numbers only; nothing in it is executed.

    Examples:
        roibeam collect train-images labels.csv images.json
        roibeam collect train-images labels.csv images.json --store store/
    """
    from roibeam.pipelines.collection.judging.picture_judge import train_images

    _print(request.out, train_images(request), as_json=json)


def train_pairs_command(request: TrainPairsRequest, json: Json = False) -> None:
    """Trains a judge that tells whether a text describes an image.

    It learns from curated captions, from labelled texts, and from wrong pairs made of right ones in four ways. A
    quarter of the images is held out to set the threshold, by their labelled texts where there are any.

    Examples:
        roibeam collect train-pairs pairs.json --captions captions.json --store store/
        roibeam collect train-pairs pairs.json --pairs rows.csv --pairs-store rows/
    """
    from roibeam.pipelines.collection.judging.pair_judge import train_pairs

    _print(request.out, train_pairs(request), as_json=json)


def _print(out: Path, done: TrainedJudge, *, as_json: bool) -> None:
    if as_json:
        model = done.model
        summary = {"out": str(out), "threshold": model.threshold, "fingerprint": model.fingerprint}
        typer.echo(json_line(summary | {"left_out": done.left_out} | dict(model.facts)))
        return
    typer.echo("\n".join(_lines(out, done)))


def _lines(out: Path, done: TrainedJudge) -> Iterator[str]:
    facts = done.model.facts
    rows, held = facts["rows"], facts["held_out"]
    for reason, count in done.left_out.items():
        if count:
            yield f"left out: {count:,} ({reason})"
    yield f"trained on {rows['trained']:,} rows, {rows['held_out']:,} held out"
    yield (
        f"  threshold {done.model.threshold:.3f}: precision {held['precision']:.3f}, recall {held['recall']:.3f} "
        f"(area under ROC {held['auc']:.3f}) on {held['rows']:,.0f} held-out rows"
    )
    if held["rows"] < _FEW_ROWS:
        yield (
            f"  {held['rows']:,.0f} rows set the threshold and give these figures, which are too few to trust; label "
            f"more, until {_FEW_ROWS:,} or more of them are held out"
        )
    if rows["threshold_from"] < rows["held_out"]:
        yield "  they are the best text of each image, as a collection keeps it; next come all held-out rows"
    for kind, found in facts["kinds"].items():
        yield f"  {kind:<24}{found['rows']:>7,} rows, {100 * found['passed']:5.1f} % pass"
    yield f"looks most at: {', '.join(facts['importance'])}"
    yield f"Written: {out.absolute()}"


collect_app = typer.Typer(
    cls=HelpedGroup, help="Image-text pairs from web pages, and their judges.", rich_markup_mode=None
)
collect_app.command("run", cls=ExtractCommand)(request_command(collect_run_command))
collect_app.command("train-images", cls=HelpedCommand)(request_command(train_images_command))
collect_app.command("train-pairs", cls=HelpedCommand)(request_command(train_pairs_command))
