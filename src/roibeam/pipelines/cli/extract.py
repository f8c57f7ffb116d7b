"""`roibeam extract | progress | look`: region shards of photos, progress of a run, regions of one photo."""

import sys
import time
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from roibeam.messages import on_a_line
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.help_pages import HelpedCommand
from roibeam.pipelines.common.console.printable_streams import Unchanged
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.console.request_options import KEPT, OUTPUT, QUESTION, Json, argument, option
from roibeam.pipelines.extract.request import ArrayOptions, DetectorOptions, ExtractRequest
from roibeam.pipelines.extract.shard.process_setup import use_one_arena


class ExtractCommand(HelpedCommand):
    """Command whose words after -- are for the Beam runner: neither a source nor the store."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        super().parse_args(ctx, args[:end])
        ctx.meta["typed"] = {} if ctx.resilient_parsing else self.make_parser(ctx).parse_args(args[:end])[0]
        ctx.args = args[end + 1 :]
        return ctx.args

    def where_else(self, name: str) -> str:
        from roibeam.pipelines.extract.runners.pipeline_run import is_beam_option

        return f"; Beam has it: give it after --, as in -- {name}=VALUE" if is_beam_option(name) else ""


def extract_command(
    context: typer.Context,
    request: ExtractRequest,
    array: ArrayOptions,
    dry_run: Annotated[bool, option("Show the plan, and write nothing; --gpus N adds a Slurm job.")] = False,
) -> None:
    """Extracts region features of all photos of SOURCE into a store.

    Run the same command again to continue, or to add new photos. Photos that fail are listed with the reason in
    OUT/report.html.

    Examples:
        roibeam extract photos/ store/ --detector toy
        roibeam extract photos/ store/ --preset butd-36 --weights vg.pkl --vocab vg
        roibeam extract instances_val2017.json store/ --photos val2017/ --dry-run
    """
    use_one_arena()  # before the imports here start threads
    # Heavy imports wait until a command needs them, so that --help is quick.
    from roibeam.pipelines.extract.work import Work, open_plan, open_work

    request = replace(request, run=replace(request.run, beam_args=tuple(context.args)))
    request = array.planned(request, dry_run=dry_run)
    with waiting("looking for the photos"):
        work = (open_plan if dry_run else open_work)(request, tell=_print_note)
    # Torch and Beam are imported only when the request is in order.
    with waiting("loading torch and Beam"):
        from roibeam.pipelines.extract.beam_extraction import extract_work, summary_event, summary_text
        from roibeam.pipelines.extract.dry_run import dry_run as run_dry

    if dry_run:
        found = run_dry(work, request, array, context.meta["typed"])
        typer.echo(found.event() if request.run.json else found.text())
        return
    assert isinstance(work, Work)
    summary = extract_work(work, request.run, tell=_print_note)
    typer.echo(summary_event(summary) if request.run.json else summary_text(summary))
    if not summary.succeeded:
        left = (
            "the store is complete for the others"
            if summary.failed_share < 1
            else f"the store has no record, and other commands refuse it: remove {request.out}, or mend the photos"
        )
        _print_note(
            f"roibeam: {100 * summary.failed_share:.1f} % of the images failed, more than the "
            f"{100 * request.run.max_failures:g} % of --max-failures; {left}; "
            f"{request.out}/report.html gives the reasons, and `roibeam store dead-letters {request.out}` lists all "
            "that failed; --retry-dead-letters tries them again"
        )
        raise typer.Exit(1)


def _print_note(line: str) -> None:
    typer.echo(on_a_line(line), err=True)


def progress_command(
    stores: Annotated[list[str], argument("STORE", "Stores that runs write: folders, or URLs (s3://, gs://, ...).")],
    watch: Annotated[bool, option("Repeat until the store is complete.", "", QUESTION)] = False,
    every: Annotated[float, option("Seconds between two reports. With --watch.", "SECONDS", QUESTION, min=1)] = 15.0,
    json: Json = False,
) -> None:
    """Shows how far an extraction is, and the time left.

    It reads what the run has written, on any runner and from any machine, and writes nothing. --watch ends when the run
    has ended, or has written nothing for 20 minutes. The exit code is 0 if the run is at work or has finished, and 1 if
    it was stopped, has written nothing for so long, or failed (--max-failures). With several stores, it is 1 if any of
    them gives 1.

    Examples:
        roibeam progress store/
        roibeam progress s3://bucket/store --watch
        roibeam progress parts/*
    """
    from roibeam.pipelines.extract.store_progress import SILENT_SECONDS, SeveralView

    view = SeveralView(stores)
    began = time.monotonic()
    while True:
        look = view.read()
        if json:
            for line in look.json_lines():
                typer.echo(dumps(line))
        else:
            if watch and sys.stdout.isatty():  # a look takes the place of the one before
                typer.echo(Unchanged("\x1b[2J\x1b[H"), nl=False)
            typer.echo(look.text())
        # At a URL, a run that was just begun again is silent until its first shard: that is waited for.
        was_long = time.monotonic() - began >= SILENT_SECONDS
        if not watch or look.is_over or (was_long and not look.has_work):
            if not look.is_well:
                raise typer.Exit(1)
            return
        sys.stdout.flush()
        time.sleep(every)


def look_command(
    photo: Annotated[Path, argument("PHOTO", "A JPEG, PNG or another image file.")],
    detector: DetectorOptions,
    max_regions: Annotated[int, option(
        "Use at most N regions of the image, those with the best scores, drawn and listed.", "N", KEPT, min=1,
    )] = 10,
    out: Annotated[Path | None, option(
        "Where to write the result. A .png file; an older picture of `roibeam look` is replaced.", "PATH", OUTPUT,
        "--out", "-o", default="NAME.regions.png, here",
    )] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Finds the regions of one photo, draws the best ones and lists them.

    The detector is toy, unless --detector, --preset or --weights name another one. `roibeam store show --draw` draws
    the regions that a store holds.

    Examples:
        roibeam look photo.jpg
        roibeam look photo.jpg --weights vg.pkl --vocab vg --out regions.png
    """
    from roibeam.pipelines.analysis.look import look_at_photo

    if detector.detector is detector.weights is detector.preset is None:
        detector = replace(detector, detector="toy")
    with waiting("finding regions"):
        done = look_at_photo(photo, out, detector, num_regions=max_regions)
    if json:
        facts = {"picture": str(done.picture), "note": done.note or None, "device": done.device.name}
        typer.echo(json_line({"photo": str(photo), **done.view.to_json(), **facts}))
        return
    typer.echo(done.device.words, err=True)
    typer.echo("\n".join(done.view.lines()))
    if done.note:
        typer.echo(f"note: {done.note}")
    typer.echo(f"{done.picture}   the photo with {'its regions' if done.view.is_whole else 'the best regions'}")
