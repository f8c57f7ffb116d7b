"""`roibeam collect` and `roibeam download`: image-text pairs from web pages, their judges, images of a caption list."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.extract import ExtractCommand
from roibeam.pipelines.cli.help_pages import HelpedCommand, HelpedGroup
from roibeam.pipelines.cli.option_names import argument, option
from roibeam.pipelines.cli.options import CAPTION_COLUMN, HELD_OUT, JSON

if TYPE_CHECKING:
    from roibeam.pipelines.collection.judging.picture_judge import TrainedJudge


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


class CollectRunCommand(ExtractCommand):
    """Command whose words after -- are for the Beam runner."""


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
    # Heavy imports wait until a command needs them, so that --help is quick.
    from roibeam.pipelines.collection.judging.judges import JudgeFiles
    from roibeam.pipelines.collection.pairs import NOWHERE
    from roibeam.pipelines.collection.request import CollectRequest, files_state
    from roibeam.pipelines.data.download.limits import DownloadLimits
    from roibeam.pipelines.extract.requested_detector import check_runner_name

    judges = JudgeFiles(picture_judge, pair_judge, detector, match_model, device)
    request = CollectRequest(
        pages, Path(os.path.abspath(out)), NOWHERE if base_url is None else base_url,
        settings=tuple(settings or ()), held_out=tuple(held_out or ()), held_out_images=tuple(held_out_images or ()),
        images_from=images_from, is_nsfw_checked=nsfw, allow_private=tuple(allow_private or ()), user_agent=user_agent,
        retry_dead_letters=retry_dead_letters, reads_robots_txt=robots_txt, as_json=as_json,
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
    from roibeam.pipelines.collection.collection_run import dry_run as run_dry
    from roibeam.pipelines.collection.collection_run import run_collection
    from roibeam.pipelines.collection.report import dry_run_text, summary_text
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


_OUT = argument("OUT", "File to write, .json.")
_PRECISION = option("wanted-precision")
_FEW_ROWS = 100  # a precision of 0.95 among 100 has an interval of 0.89 to 0.98
_SEED = option("seed", is_advanced=True)


def train_images_command(
    labels: Annotated[Path, argument("LABELS", "CSV with the columns image (its file) and label: natural or not.")],
    out: Annotated[Path, _OUT],
    store: Annotated[str | None, option("store", "Of these images; their regions are looked at too.")] = None,
    wanted_precision: Annotated[float, _PRECISION] = 0.99,
    seed: Annotated[int, _SEED] = 0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Trains a judge that tells natural photos from logos, charts and screenshots.

    It looks at cheap statistics of the file and, with --store, at its regions. A quarter of the images is held out, and
    sets the threshold. What it writes is numbers: nothing in it is executed.

    Examples:
        roibeam collect train-images labels.csv images.json
        roibeam collect train-images labels.csv images.json --store store/
    """
    from roibeam.pipelines.collection.judging.picture_judge import TrainImagesRequest, train_images

    done = train_images(TrainImagesRequest(labels, out, store, wanted_precision, seed))
    _print(out, done, as_json=as_json)


def train_pairs_command(
    out: Annotated[Path, _OUT],
    captions: Annotated[
        list[str] | None, option("captions", "Curated ones, which are right; may be given again.")
    ] = None,
    caption_column: Annotated[str, CAPTION_COLUMN] = "",
    store: Annotated[list[str] | None, option("store", "Of the images of --captions, in the same order.")] = None,
    pairs: Annotated[Path | None, option("pairs")] = None,
    pairs_store: Annotated[str | None, option("pairs-store")] = None,
    match_model: Annotated[str | None, option("match-model")] = None,
    max_captions: Annotated[int, option("max-captions")] = 5000,
    wanted_precision: Annotated[float, _PRECISION] = 0.95,
    seed: Annotated[int, _SEED] = 0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Trains a judge that tells whether a text describes an image.

    It learns from curated captions, from labelled texts, and from wrong pairs made of right ones in four ways. A
    quarter of the images is held out, and sets the threshold: the labelled texts of them, where there are any.

    Examples:
        roibeam collect train-pairs pairs.json --captions captions.json --store store/
        roibeam collect train-pairs pairs.json --pairs rows.csv --pairs-store rows/
    """
    from roibeam.pipelines.collection.judging.pair_judge import TrainPairsRequest, train_pairs

    request = TrainPairsRequest(
        out, tuple(captions or ()), tuple(store or ()), pairs, pairs_store, match_model, max_captions,
        wanted_precision, seed, caption_column,
    )  # fmt: skip
    _print(out, train_pairs(request), as_json=as_json)


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
    cls=HelpedGroup, help="Image-text pairs from web pages: collected and judged.", rich_markup_mode=None
)
collect_app.command("run", cls=CollectRunCommand)(collect_run_command)
collect_app.command("train-images", cls=HelpedCommand)(train_images_command)
collect_app.command("train-pairs", cls=HelpedCommand)(train_pairs_command)
