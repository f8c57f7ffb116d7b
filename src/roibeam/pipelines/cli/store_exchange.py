"""`roibeam store import | export | diff`: features of other code bases, and how two sets of features compare."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roibeam.features.record.fingerprint import has_classes, num_classes_of
from roibeam.messages import plural
from roibeam.pipelines.cli.command_exit import error_line, json_line
from roibeam.pipelines.common.console.command_files import check_named_files
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.common.console.request_options import (
    FAILURES,
    INPUT,
    KEPT,
    OUTPUT,
    QUESTION,
    SPEED,
    Json,
    Scratch,
    argument,
    option,
    part_of,
)
from roibeam.pipelines.common.console.termination import failure_of

logger = logging.getLogger(__name__)
_DIFFERENT, _TROUBLE = 1, 2  # exit codes of diff(1)


def import_command(
    source: Annotated[str, argument(
        "SOURCE", "Feature file or folder of another code base, or its URL; see docs/stores.md.",
    )],
    out: Annotated[str, argument("OUT", "Folder or URL to write the store into.")],
    format_name: Annotated[str | None, option(
        "Format of the feature file.", "FORMAT", INPUT, "--format", default="recognised by its content",
    )] = None,
    dtype: Annotated[str | None, option(
        "Number type of the stored features: float16, bfloat16 or float32.", "TYPE", KEPT,
        default="that of the exported store, where the file says it, else float16",
    )] = None,
    num_classes: Annotated[int | None, option(
        "Number of object classes of the detector behind the features. 1600 for Visual Genome. For a file with class "
        "ids but no probabilities: most systems need it in pretrain.", "N", INPUT, min=1, default="not known",
    )] = None,
    vocab: Annotated[str | None, option(
        "Class names: vg, a file, or a folder with objects_vocab.txt and attributes_vocab.txt. In place of "
        "--num-classes.", "DIR", INPUT, default="none",
    )] = None,
    background: Annotated[str | None, option(
        "Position of the background class: first, last or none. In a file with class ids alone, first means that id 0 "
        "is background.", "PLACE", INPUT, default="that of the format", advanced=True,
    )] = None,
    feature_dtype: Annotated[str | None, option(
        "Number type of the features in the file: float16, bfloat16, float32, float64, uint8 or big-endian-float32.",
        "TYPE", INPUT, default="what the file says, else float32", advanced=True,
    )] = None,
    shard_size: Annotated[int, option("Number of images in each new shard.", "N", KEPT, min=1, advanced=True)] = 4000,
    max_failures: Annotated[float, option(
        "Exit with an error if more than this share fails.", "SHARE", FAILURES, min=0, max=1,
    )] = 0.05,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Makes a store of a published feature file.

    It prints what the file holds. Entries that cannot be used are listed with the reason in OUT/dead_letters.parquet.

    Examples:
        roibeam store import trainval_36.tsv store/ --num-classes 1600
    """
    from roibeam.pipelines.extract.stores.locations import check_scratch
    from roibeam.pipelines.extract.stores.store_import import import_features

    check_scratch(scratch, (source, out))
    summary = import_features(
        source, out, format_name=format_name, dtype=dtype, shard_size=shard_size, num_classes=num_classes, vocab=vocab,
        background=background, feature_dtype=feature_dtype, scratch=scratch,
    )  # fmt: skip
    manifest = summary.manifest
    if as_json:
        counts = {"records": manifest.num_records, "regions": manifest.num_regions}
        repeats = {"dead_letters": dict(summary.failures), "equal_repeats": summary.num_repeats}
        figures = {"format": summary.format, **counts, **repeats, "seconds": round(summary.seconds, 3)}
        report = {"content_digest": manifest.content_digest, "report": summary.report.to_json()}
        typer.echo(json_line({"store": str(out), **figures, **report}))
    else:
        typer.echo(
            f"{out}: {plural(manifest.num_records, 'record')} with {plural(manifest.num_regions, 'region')}, "
            f"{plural(manifest.num_dead_letters, 'dead letter')}; {plural(summary.num_repeats, 'equal repeat')} "
            f"left out"
        )
        typer.echo("\n".join([f"{source} ({summary.format}):", *summary.report.lines()]))
        if has_classes(manifest.fingerprint) and num_classes_of(manifest.fingerprint) is None:
            typer.echo(
                "note: the file does not record the number of classes of its detector, and most systems predict them "
                "in pretrain; give it with --num-classes or --vocab here, or with --num-classes there"
            )
    if summary.failed_share > max_failures:
        typer.echo(
            f"roibeam: {100 * summary.failed_share:.1f} % of the entries cannot be used, more than the "
            f"{100 * max_failures:g} % of --max-failures; the store is complete for the others; "
            f"{out}/dead_letters.parquet names them",
            err=True,
        )
        raise typer.Exit(1)


def export_command(
    store: Annotated[str, argument("STORE", "Folder or URL of the store.")],
    out: Annotated[str, argument(
        "OUT", "File or folder to write, or its URL. It must not exist yet, unless this export was stopped.",
    )],
    format_name: Annotated[str, option(
        "Format of the feature file. For example butd-tsv (bottom-up-attention, LXMERT); see docs/stores.md.",
        "FORMAT", OUTPUT, "--format",
    )],
    layout: Annotated[str | None, option(
        "Layout of the file, where its format has several.", "NAME",
        default="that of the file that the store was imported from, else the first of the format",
    )] = None,
    dtype: Annotated[str | None, option(
        "Number type of the features: float16, bfloat16 or float32. For parquet and webdataset.", "TYPE", OUTPUT,
        default="that of the store; other formats have their own",
    )] = None,
    shard_size: Annotated[int | None, option(
        "Number of images in each new shard. For parquet and webdataset.", "N", OUTPUT, min=1, default="about 500 MB",
    )] = None,
    part: Annotated[str, option(
        "Write only this part of the shards, such as 2/8. Several calls in one shared folder divide the work.", "I/N",
        SPEED,
    )] = "1/1",
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Writes a store as a feature file that another code base reads.

    The file is checked by reading it back, and gets its name when it is complete. Fields that the format cannot hold
    are listed. parquet and webdataset hold all; in a folder they are written as shards with a data card.

    Examples:
        roibeam store export store/ features.h5 --format lxmert-h5
        roibeam store export store/ shards/ --format parquet
    """
    from roibeam.pipelines.extract.stores.locations import check_scratch
    from roibeam.pipelines.extract.stores.store_export import export_store

    check_scratch(scratch, (store, out))
    summary = export_store(
        store, out, format_name=format_name, layout=layout, dtype=dtype, shard_size=shard_size,
        part=part_of(part), scratch=scratch,
    )  # fmt: skip
    errors = summary.read_back
    if as_json:
        figures = {
            "format": summary.format, "layout": summary.layout, "records": summary.num_records,
            "left_out": summary.left_out, "without_classes": summary.without_classes,
            "read_back": asdict(errors), "seconds": round(summary.seconds, 3),
        }  # fmt: skip
        figures |= {} if summary.shards is None else dict(zip(("shards", "missing"), summary.shards, strict=True))
        report = None if summary.report is None else summary.report.to_json()
        typer.echo(json_line({"file": str(out), **figures, "report": report}))
        return
    lines = [f"{out}: {plural(summary.num_records, 'record')} as {summary.format}, layout {summary.layout}"]
    if summary.shards is not None:
        written, missing = summary.shards
        left = f"{plural(missing, 'shard')} of other parts missing" if missing else "all shards are there"
        lines = [f"{out}: {plural(summary.num_records, 'record')} in {plural(written, 'shard')} written; {left}"]
    if summary.report is None:
        typer.echo(lines[0])
        return
    lines += [
        f"  left out      {name} of {plural(count, 'record')}" for name, count in sorted(summary.left_out.items())
    ]
    if summary.without_classes:
        lines.append("  doubt         the store has no classes: class ids and scores in the file mean nothing")
    lines.append(
        f"  read back     {errors.records:,} records; boxes within {errors.box_error_px:.2g} px, features within "
        f"{errors.feature_error:.2g} of the largest value, the same classes in {errors.same_classes:,}"
    )
    typer.echo("\n".join(lines + summary.report.lines()))


def diff_command(
    left: Annotated[str, argument("LEFT", "Store, or feature file of another code base; either may be a URL.")],
    right: Annotated[str, argument("RIGHT", "Store or feature file to compare it with.")],
    match_ids: Annotated[str, option(
        "How image ids are matched: exact, or number (by the number at their end).", "RULE", INPUT,
    )] = "exact",
    max_error: Annotated[float, option(
        "Differences up to this share of the largest value count as equal.", "SHARE", QUESTION, min=0, max=1,
    )] = 1e-3,
    worst: Annotated[int, option("Show the N images that differ most. With --html.", "N", min=0)] = 8,
    html: Annotated[Path | None, option("Also write a page that shows the images side by side.", "FILE")] = None,
    photos: Annotated[str | None, option(
        "Folder of the photos. With --html; without it, boxes are drawn on a blank page.", "DIR",
    )] = None,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Compares two stores, or a store with a published feature file.

    Compares images, boxes, features, classes and attributes. Regions are matched by the overlap of their boxes, in any
    order. The exit code is 0 if all are equal (boxes within 0.1 px, numbers within --max-error), 1 if they differ, and
    2 if they cannot be compared.

    Examples:
        roibeam store diff store-a/ store-b/
        roibeam store diff store/ trainval_36.tsv --match-ids number --html page.html
    """
    from roibeam.features.store_comparison import compare
    from roibeam.pipelines.extract.stores.comparison_report import comparison_text
    from roibeam.pipelines.extract.stores.locations import check_scratch, opened_source

    try:
        if photos is not None and html is None:
            raise ValueError("--photos is for the page: give --html FILE too")
        if html is not None:
            # Not above: photos need the packages that decode them, which take seconds to import.
            from roibeam.pipelines.common.page_layout import check_page_file
            from roibeam.pipelines.extract.stores.comparison_page import write_comparison_page

            check_page_file("--html", html)
        check_named_files([("LEFT", left), ("RIGHT", right), ("--photos", photos)])
        check_scratch(scratch, (left, right))
        with opened_source(left, scratch) as first, opened_source(right, scratch) as second:
            with Progress("comparing", None) as progress:
                found = compare(
                    first, second, id_rule=match_ids, max_error=max_error, worst=worst, progress=progress.one_more
                )
            typer.echo(json_line(found.to_json()) if as_json else comparison_text(found))
            if html is not None:
                write_comparison_page(html, found, first, second, images=photos)
    except Exception as error:  # any error: exit code 1 would mean that the stores were compared and differ
        logger.debug("the comparison stopped", exc_info=True)
        message = failure_of(error).line
        typer.echo(f"roibeam: {message}", err=True)
        if as_json:
            typer.echo(error_line(message, _TROUBLE))
        raise typer.Exit(_TROUBLE) from None
    if html is not None and not as_json:
        typer.echo(f"page: {html}")
    if not found.equal:
        raise typer.Exit(_DIFFERENT)
