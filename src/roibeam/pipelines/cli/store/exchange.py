"""`roibeam store import | export | diff`: features of other code bases, and how two sets of features compare."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roibeam.features.counted import counted
from roibeam.features.record.imported import has_classes, num_classes_of
from roibeam.pipelines.cli.json_output import error_line, json_line
from roibeam.pipelines.cli.options import JSON_OUTPUT

logger = logging.getLogger(__name__)
_DIFFERENT, _TROUBLE = 1, 2  # exit codes of diff(1)


def import_command(
    source: Annotated[Path, typer.Argument(help="Feature file or folder of another code base; see docs/exchange.md.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the store into; new, empty, or of a killed import.")],
    format_name: Annotated[
        str | None, typer.Option("--format", help="Format of SOURCE [default: recognised by its content].")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Stored features: float16 or float32 (as they are in the file).")
    ] = "float16",
    num_classes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Foreground classes of the detector behind SOURCE (1600 of Visual Genome), for a file that has class "
            "ids and no probabilities: most systems predict them in pretrain [default: not known].",
            show_default=False,
        ),
    ] = None,
    vocab: Annotated[
        str | None,
        typer.Option(
            help="In place of --num-classes, the names of these classes and of attributes: folder with "
            "objects_vocab.txt and attributes_vocab.txt, file, or vg [default: none]."
        ),
    ] = None,
    shard_size: Annotated[int, typer.Option(min=1, help="Images per shard.")] = 4000,
    max_failures: Annotated[
        float, typer.Option(min=0, max=1, help="Share of unusable entries above which the exit code is 1.")
    ] = 0.05,
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Makes a store of a published feature file, and prints what was in it.

    An entry that cannot be used becomes a dead letter with its place. Where an image has several entries, the first
    usable one counts: later ones are left out when they say the same, and are dead letters when they do not.
    """
    from roibeam.pipelines.stores.store_import import import_features

    summary = import_features(
        source, out, format_name=format_name, dtype=dtype, shard_size=shard_size, num_classes=num_classes, vocab=vocab
    )
    manifest = summary.manifest
    if as_json:
        counts = {"records": manifest.num_records, "regions": manifest.num_regions}
        repeats = {"dead_letters": dict(summary.failures), "equal_repeats": summary.num_repeats}
        figures = {"format": summary.format, **counts, **repeats, "seconds": round(summary.seconds, 3)}
        report = {"content_digest": manifest.content_digest, "report": summary.report.to_json()}
        typer.echo(json_line({"store": str(out), **figures, **report}))
    else:
        typer.echo(
            f"{out}: {counted(manifest.num_records, 'record')} with {counted(manifest.num_regions, 'region')}, "
            f"{counted(manifest.num_dead_letters, 'dead letter')}; {counted(summary.num_repeats, 'equal repeat')} "
            f"left out"
        )
        typer.echo("\n".join([f"{source} ({summary.format}):", *summary.report.lines()]))
        if has_classes(manifest.fingerprint) and num_classes_of(manifest.fingerprint) is None:
            typer.echo(
                "note: the file does not say how many classes its detector has, and most systems predict them in "
                "pretrain; say it with --num-classes or --vocab here, or with --num-classes there"
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
    store: Annotated[Path, typer.Argument(help="Store to export.")],
    out: Annotated[Path, typer.Argument(help="New file or folder.")],
    format_name: Annotated[str, typer.Option("--format", help="Such as lxmert-h5; see docs/exchange.md.")],
    layout: Annotated[
        str | None, typer.Option(help="Layout, where the format has several [default: its first].")
    ] = None,
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Writes a store as a feature file that another code base reads, and checks it by reading it back.

    The file appears under its name when it is whole. Stopped, the same command goes on (lxmert-h5 begins anew).
    What the format has no place for is listed.
    """
    from roibeam.pipelines.stores.store_export import export_store

    summary = export_store(store, out, format_name=format_name, layout=layout)
    errors = summary.read_back
    if as_json:
        figures = {
            "format": summary.format, "layout": summary.layout, "records": summary.num_records,
            "left_out": summary.left_out, "without_classes": summary.without_classes,
            "read_back": asdict(errors), "seconds": round(summary.seconds, 3),
        }  # fmt: skip
        typer.echo(json_line({"file": str(out), **figures, "report": summary.report.to_json()}))
        return
    lines = [f"{out}: {counted(summary.num_records, 'record')} as {summary.format}, layout {summary.layout}"]
    lines += [
        f"  left out      {name} of {counted(count, 'record')}" for name, count in sorted(summary.left_out.items())
    ]
    if summary.without_classes:
        lines.append("  doubt         the store has no classes: class ids and scores in the file mean nothing")
    lines.append(
        f"  read back     {errors.records:,} records; boxes within {errors.box_error_px:.2g} px, features within "
        f"{errors.feature_error:.2g} of the largest value, the same classes in {errors.same_classes:,}"
    )
    typer.echo("\n".join(lines + summary.report.lines()))


def diff_command(
    left: Annotated[Path, typer.Argument(help="Store, or feature file of another code base.")],
    right: Annotated[Path, typer.Argument(help="Store or feature file to compare it with.")],
    ids: Annotated[
        str, typer.Option(help="Which images are the same: exact (equal ids) or number (the number ids end in).")
    ] = "exact",
    images: Annotated[
        str | None, typer.Option(help="Folder of the photos, for --html [default: empty canvases].")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the worst images side by side here.")] = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst images to show.")] = 8,
    max_error: Annotated[
        float,
        typer.Option(min=0, max=1, help="Features (of the largest value), scores, distributions may differ by this."),
    ] = 1e-3,
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Compares two stores, or a store with a published feature file: images, boxes, features, classes, attributes.

    Regions are matched by the overlap of their boxes, whatever their order. Exit code 0: equal, that is, the same
    images and sizes, every region matched within 0.1 px, features and scores within --max-error, the same classes and
    attributes where both sides have them. 1: they differ. 2: they could not be compared.
    """
    from roibeam.features.comparison.record_source import RecordSource
    from roibeam.features.comparison.store_comparison import compare
    from roibeam.pipelines.stores.comparison_report import comparison_text

    try:
        if images is not None and html is None:
            raise ValueError("--images is for the page: give --html FILE too")
        if html is not None:
            # Not above: photos need the packages that decode them, which take seconds to import.
            from roibeam.pipelines.stores.diff_store import check_page_path, write_comparison_page

            check_page_path(html)
        with RecordSource(left) as first, RecordSource(right) as second:
            found = compare(first, second, id_rule=ids, max_error=max_error, worst=worst)
            typer.echo(json_line(found.to_json()) if as_json else comparison_text(found))
            if html is not None:
                write_comparison_page(html, found, first, second, images=images)
    except Exception as error:  # whatever it is: 1 would tell a script that the stores were compared and differ
        logger.debug("the comparison stopped", exc_info=True)
        expected = isinstance(error, ValueError | OSError)
        message = str(error) if expected else f"{type(error).__name__}: {error}; --debug tells more"
        typer.echo(f"roibeam: {message}", err=True)
        if as_json:
            typer.echo(error_line(message, _TROUBLE))
        raise typer.Exit(_TROUBLE) from None
    if html is not None and not as_json:
        typer.echo(f"page: {html}")
    if not found.equal:
        raise typer.Exit(_DIFFERENT)
