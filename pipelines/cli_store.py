"""`roibeam store ...`: look at a store, compare two, exchange features with other code bases."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from features.counted import counted

if TYPE_CHECKING:
    from features.manifest import StoreManifest

logger = logging.getLogger(__name__)
store_app = typer.Typer(
    help="Look at a store, compare two, exchange features: info, verify, show, diff, import, export.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_STORE = typer.Argument(help="Folder that `roibeam extract` or `roibeam store import` wrote.")
_JSON = typer.Option("--json/--no-json", help="JSON on standard output.")
_DIFFERENT, _TROUBLE = 1, 2  # exit codes of diff(1)


@store_app.command("info")
def info_command(
    store: Annotated[Path, _STORE],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """What is in a store: counts, sizes, and what its features mean."""
    from features.store import FeatureStore

    with FeatureStore(store) as opened:
        manifest = opened.manifest
        num_bytes = sum(shard.data_bytes for shard in manifest.shards)
        if as_json:
            content = manifest.to_json()
            typer.echo(json.dumps({**content, "data_bytes": num_bytes, "store": str(store)}))
            return
        details = manifest.fingerprint.details.get("detector", {})
        rows = {
            "records": f"{manifest.num_records:,}",
            "regions": f"{manifest.num_regions:,}, {manifest.num_regions / max(manifest.num_records, 1):.1f} per image",
            "dead letters": f"{manifest.num_dead_letters:,}",
            "shards": f"{len(manifest.shards):,}, {_size(num_bytes)}",
            "features": f"{manifest.feature_dim} x {manifest.feature_dtype}",
            **_image_feature_row(manifest),
            "classes": _vocabulary_row(manifest.classes, details.get("num_classes")),
            "attributes": _vocabulary_row(manifest.attributes, details.get("num_attributes")),
            "source": manifest.config.get("source", {}).get("location", "?"),
            "weights": manifest.config.get("detector", {}).get("weights", "?"),
            "conventions": manifest.config.get("conventions", "?"),
            "selection": _selection_row(manifest),
            "numerics": json.dumps(manifest.fingerprint.numerics),
            **_rows_of_an_import(manifest),
            "feature space": manifest.fingerprint.feature_space,
            "content digest": manifest.content_digest,
        }
        typer.echo("\n".join([str(store), *(f"  {name:<15} {value}" for name, value in rows.items())]))


@store_app.command("verify")
def verify_command(
    store: Annotated[Path, _STORE],
    deep: Annotated[bool, typer.Option("--deep/--no-deep", help="Also read every record: checksums, digests.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Checks manifests, sizes and indexes (seconds); with --deep every byte of every record; exit 1 on a problem."""
    from features.verify import verify_store

    problems = verify_store(store, deep=deep)
    if as_json:
        typer.echo(
            json.dumps({"store": str(store), "deep": deep, "problems": [asdict(problem) for problem in problems]})
        )
    else:
        for problem in problems:
            typer.echo(f"{problem.file}: {problem.what}; {problem.what_to_do}")
        depth = "every record read" if deep else "manifests, sizes and indexes; --deep reads every record"
        count = counted(len(problems), "problem")
        typer.echo(f"{store}: {count}" if problems else f"{store}: clean ({depth})")
    if problems:
        raise typer.Exit(1)


@store_app.command("show")
def show_command(
    store: Annotated[Path, _STORE],
    image_id: Annotated[str | None, typer.Argument(help="Image to show [default: the first].")] = None,
    regions: Annotated[int, typer.Option(min=1, help="Regions to list, best first.")] = 10,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """One record: size, boxes, classes, attributes, feature statistics."""
    import numpy as np

    from features.imported import has_classes
    from features.printable import printable
    from features.store import FeatureStore

    with FeatureStore(store) as opened:
        if image_id is None:
            image_id = next(iter(opened.ids()), None)
            if image_id is None:
                raise ValueError(f"{store} holds no record")
        if image_id not in opened:
            raise ValueError(f"no image {image_id!r} in {store}; `roibeam store info` tells how many there are")
        record = opened[image_id]
        classes, attributes = opened.manifest.classes, opened.manifest.attributes
        classified = has_classes(opened.fingerprint)
    rows: list[dict[str, Any]] = []
    for i in np.argsort(-record.class_scores, kind="stable")[:regions]:
        row: dict[str, Any] = {
            "box": [round(float(edge), 1) for edge in record.boxes[i]],
            "class": _name(classes, int(record.class_ids[i])) if classified else None,
            "score": round(float(record.class_scores[i]), 4) if classified else None,
        }
        if record.attribute_ids is not None and record.attribute_scores is not None:
            row["attribute"] = _name(attributes, int(record.attribute_ids[i]))
            row["attribute_score"] = round(float(record.attribute_scores[i]), 4)
        rows.append(row)
    values = record.features.astype(np.float32)
    statistics = (
        {"mean": float(values.mean()), "std": float(values.std()), "max": float(values.max())} if values.size else {}
    )
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "image_id": record.image_id, "height": record.height, "width": record.width,
                    "num_regions": record.num_regions, "feature_dim": record.features.shape[1],
                    "feature_dtype": record.feature_dtype, "features": statistics, "regions": rows,
                }
            )
        )  # fmt: skip
        return
    typer.echo(
        f"{printable(record.image_id, 200)}  {record.width}x{record.height} pixels  "
        f"{counted(record.num_regions, 'region')}"
    )
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in statistics.items())
    typer.echo(f"features {record.features.shape[1]} x {record.feature_dtype}: {numbers}")
    typer.echo(f"{'score':>6}  {'x1':>7} {'y1':>7} {'x2':>7} {'y2':>7}  class, attribute (score)")
    for row in rows:
        edges = " ".join(f"{edge:7.1f}" for edge in row["box"])
        attribute = f", {row['attribute']} ({row['attribute_score']:.2f})" if "attribute" in row else ""
        score = f"{row['score']:6.3f}" if classified else f"{'-':>6}"
        typer.echo(f"{score}  {edges}  {row['class'] or '-'}{attribute}")


@store_app.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="Feature file or folder of another code base; see docs/exchange.md.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the store into; new, empty, or of a killed import.")],
    format_name: Annotated[
        str | None, typer.Option("--format", help="Format of SOURCE [default: recognised by its content].")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Stored features: float16 or float32 (as they are in the file).")
    ] = "float16",
    shard_size: Annotated[int, typer.Option(min=1, help="Images per shard.")] = 4000,
    max_failures: Annotated[
        float, typer.Option(min=0, max=1, help="Share of unusable entries above which the exit code is 1.")
    ] = 0.05,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Makes a store of a published feature file, and prints what was in it.

    An entry that cannot be used becomes a dead letter with its place. Where an image has several entries, the first
    usable one counts: later ones are left out when they say the same, and are dead letters when they do not.
    """
    from pipelines.store_import import import_features

    summary = import_features(source, out, format_name=format_name, dtype=dtype, shard_size=shard_size)
    manifest = summary.manifest
    if as_json:
        counts = {"records": manifest.num_records, "regions": manifest.num_regions}
        repeats = {"dead_letters": dict(summary.failures), "equal_repeats": summary.num_repeats}
        figures = {"format": summary.format, **counts, **repeats, "seconds": round(summary.seconds, 3)}
        report = {"content_digest": manifest.content_digest, "report": summary.report.to_json()}
        typer.echo(json.dumps({"store": str(out), **figures, **report}))
    else:
        typer.echo(
            f"{out}: {counted(manifest.num_records, 'record')} with {counted(manifest.num_regions, 'region')}, "
            f"{counted(manifest.num_dead_letters, 'dead letter')}; {counted(summary.num_repeats, 'equal repeat')} "
            f"left out"
        )
        typer.echo("\n".join([f"{source} ({summary.format}):", *summary.report.lines()]))
    if summary.failed_share > max_failures:
        typer.echo(
            f"roibeam: {100 * summary.failed_share:.1f} % of the entries cannot be used, more than the "
            f"{100 * max_failures:g} % of --max-failures; the store is complete for the others; "
            f"{out}/dead_letters.parquet names them",
            err=True,
        )
        raise typer.Exit(1)


@store_app.command("export")
def export_command(
    store: Annotated[Path, _STORE],
    out: Annotated[Path, typer.Argument(help="New file or folder.")],
    format_name: Annotated[str, typer.Option("--format", help="Such as lxmert-h5; see docs/exchange.md.")],
    layout: Annotated[
        str | None, typer.Option(help="Layout, where the format has several [default: its first].")
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Writes a store as a feature file that another code base reads, and checks it by reading it back.

    The file appears under its name when it is whole. What the format has no place for is listed.
    """
    from pipelines.store_export import export_store

    summary = export_store(store, out, format_name=format_name, layout=layout)
    errors = summary.read_back
    if as_json:
        figures = {
            "format": summary.format, "layout": summary.layout, "records": summary.num_records,
            "left_out": summary.left_out, "without_classes": summary.without_classes,
            "read_back": asdict(errors), "seconds": round(summary.seconds, 3),
        }  # fmt: skip
        typer.echo(json.dumps({"file": str(out), **figures, "report": summary.report.to_json()}))
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


@store_app.command("diff")
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
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Compares two stores, or a store with a published feature file: images, boxes, features, classes, attributes.

    Regions are matched by the overlap of their boxes, whatever their order. Exit code 0: equal, that is, the same
    images and sizes, every region matched within 0.1 px, features and scores within --max-error, the same classes and
    attributes where both sides have them. 1: they differ. 2: they could not be compared.
    """
    from features.comparison import compare
    from features.record_source import RecordSource
    from pipelines.comparison_text import comparison_text

    try:
        if images is not None and html is None:
            raise ValueError("--images is for the page: give --html FILE too")
        if html is not None:
            # Not above: photos need the packages that decode them, which take seconds to import.
            from pipelines.store_diff import check_page_path, write_comparison_page

            check_page_path(html)
        with RecordSource(left) as first, RecordSource(right) as second:
            found = compare(first, second, id_rule=ids, max_error=max_error, worst=worst)
            typer.echo(json.dumps(found.to_json()) if as_json else comparison_text(found))
            if html is not None:
                write_comparison_page(html, found, first, second, images=images)
    except Exception as error:  # whatever it is: 1 would tell a script that the stores were compared and differ
        logger.debug("the comparison stopped", exc_info=True)
        expected = isinstance(error, ValueError | OSError)
        typer.echo(
            f"roibeam: {error if expected else f'{type(error).__name__}: {error}; --debug tells more'}", err=True
        )
        raise typer.Exit(_TROUBLE) from None
    if html is not None and not as_json:
        typer.echo(f"page: {html}")
    if not found.equal:
        raise typer.Exit(_DIFFERENT)


def _rows_of_an_import(manifest: StoreManifest) -> dict[str, str]:
    """What `info` says otherwise about a store that another code base extracted."""
    from features.fingerprint import IMPORTED_PREFIX
    from features.imported import ABSENT

    if not manifest.fingerprint.feature_space.startswith(IMPORTED_PREFIX):
        return {}
    details = manifest.fingerprint.details
    rows = {
        "weights": "not known: extracted by another code base",
        "conventions": "not known",
        "selection": "not known",
        "numerics": "not known",
        "imported from": f"{details.get('format')}, layout {details.get('layout')}",
    }
    if details.get("classes") == ABSENT:
        rows["classes"] = "none in the source: class ids and scores are 0 and mean nothing"
    else:
        rows["classes"] = f"ids only, from {details.get('classes')}"
    if details.get("attributes") == ABSENT:
        rows["attributes"] = "none in the source"
    else:
        rows["attributes"] = f"ids only, from {details.get('attributes')}"
    return rows


def _selection_row(manifest: StoreManifest) -> str:
    boxes = manifest.config.get("source", {}).get("boxes")
    if boxes:
        return f"none: boxes given in {boxes}"
    # Stores of earlier versions do not name it.
    return manifest.config.get("selection") or json.dumps(manifest.fingerprint.details.get("regions", {}))


def _image_feature_row(manifest: StoreManifest) -> dict[str, str]:
    """What the feature of the whole image is; nothing where there is none."""
    made = manifest.fingerprint.details.get("image_feature", "none")
    if made == "none":
        return {}
    if not isinstance(made, dict):
        return {"image feature": f"{made}: the detector's own of the whole image, {manifest.feature_dim} wide"}
    spec = str(manifest.config.get("options", {}).get("image_feature", ""))
    weights = spec.partition("=")[2] or made.get("weights", "?")
    return {"image feature": f"{made.get('network', '?')}, {made.get('feature_dim', '?')} wide, weights {weights}"}


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3f} MB"


def _vocabulary_row(names: tuple[str, ...] | None, count: int | None) -> str:
    if names is None:
        return f"{count if count is not None else '?'}, ids only (--vocab names them)"
    return f"{len(names):,}: {', '.join(names[:4])}, ..."


def _name(names: tuple[str, ...] | None, number: int) -> str:
    return names[number] if names is not None and number < len(names) else f"#{number}"
