"""`roibeam extract | progress | look`: region shards of photos, progress of a run, regions of one photo."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from roibeam.messages import on_a_line
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.help_pages import HelpedCommand
from roibeam.pipelines.cli.option_names import argument, option
from roibeam.pipelines.cli.options import (
    CAPTION_COLUMN,
    CONVENTIONS,
    DETECTOR_SET,
    DROP_HELD_OUT,
    HELD_OUT,
    ID_RULE,
    JSON,
    NUMBERS_OF,
    PRESET,
    PRESET_NAMES,
    SELECTION,
    THREADS,
    WEIGHTS,
)
from roibeam.pipelines.common.console.printable_streams import Unchanged
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.compatibility import MIN_MATCH
from roibeam.pipelines.extract.request import (
    ExtractRequest,
    RequestedDetector,
    RequestedImages,
    RequestedRecords,
    RunOptions,
)
from roibeam.pipelines.extract.shard.process_setup import use_one_arena

# Values of `--precision`, and their names in the store.
_MODES = {"float32": "exact", "tf32": "tf32", "bf16": "bf16"}


class ExtractCommand(HelpedCommand):
    """Command whose words after -- are for the Beam runner: neither a source nor the store."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        super().parse_args(ctx, args[:end])
        ctx.args = args[end + 1 :]
        return ctx.args

    def where_else(self, name: str) -> str:
        from roibeam.pipelines.extract.runners.pipeline_run import is_beam_option

        return f"; Beam has it: give it after --, as in -- {name}=VALUE" if is_beam_option(name) else ""


def extract_command(
    context: typer.Context,
    sources: Annotated[
        list[str],
        argument(
            "SOURCE",
            "Photos, a folder, a pattern in quotes, a .tar or .zip, a list or annotation file (COCO, .csv, ...), here "
            "or at a URL; docs/extract.md names all.",
        ),
    ],
    out: Annotated[str, argument("OUT", "Store to write: a folder, or a URL (s3://, gs://, hdfs://).")],
    preset: Annotated[str | None, PRESET] = None,
    weights: Annotated[str | None, option("weights", default="those of the detector")] = None,
    detector: Annotated[
        str | None,
        option(
            "detector", "Or of detectron2: mask-rcnn-r101-fpn, pythia-x152-fpn, a .yaml.", default="that of the preset"
        ),
    ] = None,
    vocab: Annotated[
        str | None,
        option("vocab", default="those of the detector"),
    ] = None,
    conventions: Annotated[str | None, CONVENTIONS] = None,
    selection: Annotated[str | None, SELECTION] = None,
    image_feature: Annotated[str, option("image-feature")] = "none",
    settings: Annotated[list[str] | None, option("set", "Sections: detector, conventions, selection.")] = None,
    captions: Annotated[str | None, option("captions")] = None,
    boxes: Annotated[
        str | None,
        option("boxes", "docs/extract.md names the formats."),
    ] = None,
    photos: Annotated[
        str | None,
        option("photos", "Or a URL. For a list or annotation file.", default="found near it"),
    ] = None,
    caption_column: Annotated[str, CAPTION_COLUMN] = "",
    min_match: Annotated[float, option("min-match")] = MIN_MATCH,
    held_out: Annotated[list[str] | None, HELD_OUT] = None,
    drop_held_out: Annotated[bool, DROP_HELD_OUT] = False,
    numbers_of: Annotated[str | None, NUMBERS_OF] = None,
    id_rule: Annotated[str, ID_RULE] = "no-extension",
    id_prefix: Annotated[str, option("id-prefix", default="none")] = "",
    skip_bad_archives: Annotated[bool, option("skip-bad-archives")] = False,
    dtype: Annotated[str, option("dtype", values="float16, bfloat16 or float32", is_advanced=True)] = "float16",
    distribution: Annotated[str, option("distribution", is_advanced=True)] = "full",
    shard_size: Annotated[
        int | None,
        option(
            "shard-size",
            "Older shards stay as they are.",
            default="ten minutes of work, at most 4,000; 1,000 for GPUs of a cluster",
        ),
    ] = None,
    device: Annotated[str, option("device")] = "auto",
    precision: Annotated[
        str,
        option("precision", values="float32, or tf32 (NVIDIA GPUs) and bf16, faster and less exact", is_advanced=True),
    ] = "float32",
    workers: Annotated[int, option("workers", "Here: of the local runner.")] = 1,
    runner: Annotated[str, option("runner", "Options after -- are for it.", is_advanced=True)] = "local",
    pool_token_file: Annotated[
        Path | None, option("pool-token-file", "For --runner flink or spark.", is_advanced=True)
    ] = None,
    batched: Annotated[bool, option("batched", "Only with --precision float32.", is_advanced=True)] = False,
    threads: Annotated[int | None, THREADS] = None,
    decode_threads: Annotated[int, option("decode-threads")] = 2,
    scratch: Annotated[
        str | None, option("scratch", "On each worker, with room for one shard.", default="the temporary folder")
    ] = None,
    retry_dead_letters: Annotated[bool, option("retry-dead-letters", is_advanced=True)] = False,
    max_failures: Annotated[float, option("max-failures")] = 0.05,
    max_pixels: Annotated[int, option("max-pixels")] = 120_000_000,
    load_timeout: Annotated[float, option("load-timeout")] = 120.0,
    detect_timeout: Annotated[float, option("detect-timeout")] = 900.0,
    dry_run: Annotated[bool, option("dry-run")] = False,
    as_json: Annotated[bool, JSON] = False,
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

    request = ExtractRequest(
        RequestedImages(
            tuple(sources), image_root=photos, id_rule=id_rule, id_prefix=id_prefix,
            skip_bad_archives=skip_bad_archives, boxes=boxes, captions=captions, min_match=min_match,
            held_out=tuple(held_out or ()), leave_out_held_out=drop_held_out, images_of=numbers_of,
            caption_column=caption_column,
        ),
        out,
        RequestedDetector(
            detector, preset=preset, weights=weights, conventions=conventions, selection=selection,
            settings=tuple(settings or ()), vocabulary=vocab, device=device, mode=_mode(precision, batched=batched),
            threads=threads,
        ),
        RequestedRecords(
            dtype=dtype, distribution=distribution, max_pixels=max_pixels, decode_threads=decode_threads,
            image_feature=image_feature, load_timeout=load_timeout, detect_timeout=detect_timeout,
        ),
        RunOptions(
            max_failures=max_failures, retry_dead_letters=retry_dead_letters, runner=runner,
            beam_args=tuple(context.args), workers=workers, as_json=as_json, scratch=scratch,
            pool_token_file=None if pool_token_file is None else str(pool_token_file),
        ),
        shard_size,
    )  # fmt: skip
    with waiting("looking for the photos"):
        work = (open_plan if dry_run else open_work)(request, tell=_print_note)
    # Torch and Beam are imported only when the request is in order.
    with waiting("loading torch and Beam"):
        from roibeam.pipelines.extract.beam_extraction import extract_work, summary_event, summary_text
        from roibeam.pipelines.extract.dry_run import dry_run as run_dry

    if dry_run:
        found = run_dry(work, request.run)
        typer.echo(found.event() if as_json else found.text())
        return
    assert isinstance(work, Work)
    summary = extract_work(work, request.run, tell=_print_note)
    typer.echo(summary_event(summary) if as_json else summary_text(summary))
    if not summary.succeeded:
        _print_note(
            f"roibeam: {100 * summary.failed_share:.1f} % of the images failed, more than the {100 * max_failures:g} % "
            f"of --max-failures; the store is complete for the others; {out}/report.html tells why, and "
            f"`roibeam store dead-letters {out}` lists all that failed; --retry-dead-letters tries them again"
        )
        raise typer.Exit(1)


def _mode(precision: str, *, batched: bool) -> str:
    """Returns the name of the precision in the store."""
    if precision not in _MODES:
        raise ValueError(f"--precision {precision!r}: choose one of {', '.join(_MODES)}")
    if not batched:
        return _MODES[precision]
    if precision != "float32":
        raise ValueError(f"--batched goes with --precision float32, got {precision}; leave one of them out")
    return "batched"


def _print_note(line: str) -> None:
    typer.echo(on_a_line(line), err=True)


def progress_command(
    stores: Annotated[list[str], argument("STORE", "Stores that runs write: folders, or URLs (s3://, gs://, ...).")],
    watch: Annotated[bool, option("watch")] = False,
    every: Annotated[float, option("every", "With --watch.")] = 15.0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Shows how far an extraction is, and the time left.

    It reads what the run has written, on any runner and from any machine, and writes nothing. --watch ends when the
    run has ended, or nothing was heard of it for 20 minutes. The exit code is 1 if the run stopped before its end, is
    silent for so long, or failed (--max-failures); 0 if it is at work or has finished. Of several stores, each is
    shown; the exit code is 1 if one of them neither works nor has finished.

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
        if as_json:
            for line in look.json_lines():
                typer.echo(json.dumps(line))
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
    detector: Annotated[
        str | None, option("detector", default="toy; with --weights or --preset that of the preset")
    ] = None,
    preset: Annotated[str | None, option("preset", values=PRESET_NAMES)] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
    vocab: Annotated[str | None, option("vocab", default="those of the detector's folder, else none")] = None,
    conventions: Annotated[str | None, CONVENTIONS] = None,
    selection: Annotated[str | None, SELECTION] = None,
    settings: Annotated[list[str] | None, DETECTOR_SET] = None,
    max_regions: Annotated[int, option("max-regions", "They are drawn and listed.")] = 10,
    device: Annotated[str, option("device")] = "auto",
    out: Annotated[
        Path | None,
        option("out", "A .png file; an older picture of `roibeam look` is replaced.", default="NAME.regions.png, here"),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Finds the regions of one photo, draws the best ones and lists them.

    `roibeam store show --draw` draws the regions that a store holds.

    Examples:
        roibeam look photo.jpg
        roibeam look photo.jpg --weights vg.pkl --vocab vg --out regions.png
    """
    from roibeam.pipelines.analysis.look import look_at_photo
    from roibeam.pipelines.extract.request import RequestedDetector

    requested = RequestedDetector(
        detector or ("toy" if weights is None and preset is None else None), preset=preset, weights=weights,
        conventions=conventions, selection=selection, vocabulary=vocab, settings=tuple(settings or ()), device=device,
    )  # fmt: skip
    with waiting("finding regions"):
        done = look_at_photo(photo, out, requested, num_regions=max_regions)
    if as_json:
        facts = {"picture": str(done.picture), "note": done.note or None, "device": done.device.name}
        typer.echo(json_line({"photo": str(photo), **done.view.to_json(), **facts}))
        return
    typer.echo(done.device.words, err=True)
    typer.echo("\n".join(done.view.lines()))
    if done.note:
        typer.echo(f"note: {done.note}")
    typer.echo(f"{done.picture}   the photo with {'its regions' if done.view.is_whole else 'the best regions'}")
