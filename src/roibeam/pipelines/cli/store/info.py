"""`roibeam store info | verify | show`: look at a store; and where the other commands on stores are put together."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.features.counted import byte_count, counted
from roibeam.pipelines.cli.store.copy import copy_command, plan_command
from roibeam.pipelines.cli.store.exchange import diff_command, export_command, import_command
from roibeam.pipelines.cli.store.repair import repair_command

if TYPE_CHECKING:
    from roibeam.features.shard.manifest import StoreManifest

store_app = typer.Typer(
    help="Look at a store, repair, copy, merge or cut it, compare two, exchange features with other code bases.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_STORE = typer.Argument(help="Folder that `roibeam extract`, `store import` or `store copy` wrote.")
_JSON = typer.Option("--json/--no-json", help="JSON on standard output.")


@store_app.command("info")
def info_command(
    store: Annotated[str, typer.Argument(help="Store: a folder, or its URL (s3://, gs://, ...).")],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """What is in a store: counts, sizes, and what its features mean."""
    manifest = _manifest_of(store)
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
        "shards": f"{len(manifest.shards):,}, {byte_count(num_bytes)}",
        "captions": _annotations_row(manifest),
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
        **_rows_of_a_copy(manifest),
        "feature space": manifest.fingerprint.feature_space,
        "content digest": manifest.content_digest,
    }
    typer.echo("\n".join([str(store), *(f"  {name:<15} {value}" for name, value in rows.items())]))


def _manifest_of(store: str) -> StoreManifest:
    from roibeam.features.folders.folder_choice import output_folder
    from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest
    from roibeam.features.store import FeatureStore

    if "://" in store:
        folder = output_folder(store)
        return StoreManifest.from_bytes(folder.read_bytes(STORE_MANIFEST_NAME), folder.where(STORE_MANIFEST_NAME))
    with FeatureStore(store) as opened:
        return opened.manifest


@store_app.command("verify")
def verify_command(
    store: Annotated[Path, _STORE],
    deep: Annotated[bool, typer.Option("--deep/--no-deep", help="Also read every record: checksums, digests.")] = False,
    shards: Annotated[
        str | None,
        typer.Option(help="Shards that --deep reads, <first>-<last> or <first>-: to go on, to share work [all]."),
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Checks manifests, sizes, indexes and the table of captions (seconds); with --deep every byte of every record and
    every row; exit 1 on a problem."""
    from roibeam.features.store import FeatureStore
    from roibeam.features.verify import Problem, verify_store
    from roibeam.pipelines.extract.annotations import annotation_problem
    from roibeam.pipelines.foundation.console.progress_log import LoggedProgress

    if shards is not None and not deep:
        raise ValueError("--shards goes with --deep: the rest of the check takes seconds and is for all shards")
    deep_shards = None if shards is None else _shard_range(shards)
    progress: LoggedProgress | None = None
    done, start = 0, time.monotonic()

    def show(now: int, total: int) -> None:
        nonlocal progress, done
        done = now
        progress = progress or LoggedProgress("records verified", total, since=start)
        progress.to(done)

    try:
        problems = verify_store(store, deep=deep, progress=show if deep else None, deep_shards=deep_shards)
    except KeyboardInterrupt:
        if deep:
            typer.echo(f"roibeam: --shards {_shard_of_record(store, done)}- goes on from here", err=True)
        raise
    if deep and not problems:
        with FeatureStore(store) as opened:
            entry, what = opened.manifest.annotations, annotation_problem(opened)
        if entry is not None and what is not None:
            problems.append(Problem(entry.file, what, "run the command that wrote the store again"))
    if as_json:
        typer.echo(
            json.dumps({"store": str(store), "deep": deep, "problems": [asdict(problem) for problem in problems]})
        )
    else:
        for problem in problems:
            typer.echo(f"{problem.file}: {problem.what}; {problem.what_to_do}")
        depth = "every record read" if deep else "manifests, sizes and indexes; --deep reads every record"
        if shards is not None:
            depth = f"every record of the shards {shards} read; manifests, sizes and indexes of all"
        count = counted(len(problems), "problem")
        typer.echo(f"{store}: {count}" if problems else f"{store}: clean ({depth})")
    if problems:
        raise typer.Exit(1)


def _shard_range(text: str) -> range:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})?", text, re.ASCII)
    last = int(match[2]) if match and match[2] else sys.maxsize - 1
    if match is None or int(match[1]) > last:
        raise ValueError(f"--shards {text!r}: expected <first>-<last> or <first>-, such as 100-199")
    return range(int(match[1]), last + 1)


def _shard_of_record(store: Path, num_records: int) -> int:
    """Number of the shard that the record after so many lies in, or of the last one."""
    from roibeam.features.shard.manifest import STORE_MANIFEST_NAME, StoreManifest

    number = 0
    for entry in StoreManifest.read(store / STORE_MANIFEST_NAME).shards:
        number = entry.shard
        num_records -= entry.num_records
        if num_records < 0:
            break
    return number


@store_app.command("show")
def show_command(
    store: Annotated[Path, _STORE],
    image_id: Annotated[str | None, typer.Argument(help="Image to show [default: the first].")] = None,
    regions: Annotated[int, typer.Option(min=1, help="Regions to list, best first.")] = 10,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """One record: size, captions, labels, boxes, classes, attributes, feature statistics."""
    import numpy as np

    from roibeam.features.printable import printable
    from roibeam.features.record.imported import has_classes
    from roibeam.features.store import FeatureStore
    from roibeam.pipelines.extract.annotations import annotation_of

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
        annotation = annotation_of(opened, image_id)
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
                    "captions": list(annotation.captions) if annotation else [],
                    "labels": list(annotation.labels) if annotation else [],
                }
            )
        )  # fmt: skip
        return
    typer.echo(
        f"{printable(record.image_id, 200)}  {record.width}x{record.height} pixels  "
        f"{counted(record.num_regions, 'region')}"
    )
    if annotation is not None:
        for caption in annotation.captions:
            typer.echo(f"caption {printable(caption, 400)}")
        if annotation.labels:
            typer.echo(f"labels {', '.join(printable(label, 80) for label in annotation.labels)}")
    numbers = ", ".join(f"{name} {value:.3f}" for name, value in statistics.items())
    typer.echo(f"features {record.features.shape[1]} x {record.feature_dtype}: {numbers}")
    typer.echo(f"{'score':>6}  {'x1':>7} {'y1':>7} {'x2':>7} {'y2':>7}  class, attribute (score)")
    for row in rows:
        edges = " ".join(f"{edge:7.1f}" for edge in row["box"])
        attribute = f", {row['attribute']} ({row['attribute_score']:.2f})" if "attribute" in row else ""
        score = f"{row['score']:6.3f}" if classified else f"{'-':>6}"
        typer.echo(f"{score}  {edges}  {row['class'] or '-'}{attribute}")


def _rows_of_an_import(manifest: StoreManifest) -> dict[str, str]:
    """What `info` says otherwise about a store that another code base extracted."""
    from roibeam.features.record.fingerprint import IMPORTED_PREFIX
    from roibeam.features.record.imported import ABSENT

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


def _rows_of_a_copy(manifest: StoreManifest) -> dict[str, str]:
    """Where a copied store comes from, and what of its records was changed."""
    from roibeam.features.printable import printable

    copied = manifest.config.get("copy")
    if copied is None:
        return {}
    try:
        options = copied["options"]
        sources = ", ".join(str(source["location"]) for source in copied["sources"])
        changes = [
            f"{name} {options[name]}" for name in ("dtype", "distribution") if options[name] not in (None, "keep")
        ]
        changes += [f"regions {json.dumps(options['regions'])}"] if options["regions"] is not None else []
        changes += [f"images of {options['asked']['from']}"] if options["asked"] is not None else []
    except (KeyError, TypeError):  # somebody else's idea of "copy"
        return {"copied from": printable(json.dumps(copied), 200)}
    return {"copied from": printable(sources, 400), "changed": printable(", ".join(changes) or "nothing", 400)}


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


def _annotations_row(manifest: StoreManifest) -> str:
    entry = manifest.annotations
    if entry is None:
        return "none"
    kinds = [counted(entry.captions, "caption")] if entry.captions else []
    kinds += [counted(entry.labels, "label")] if entry.labels else []
    return f"{' and '.join(kinds)} of {counted(entry.rows, 'image')}, in {entry.file}"


def _vocabulary_row(names: tuple[str, ...] | None, count: int | None) -> str:
    if names is None:
        return f"{count if count is not None else '?'}, ids only (--vocab names them)"
    return f"{len(names):,}: {', '.join(names[:4])}, ..."


def _name(names: tuple[str, ...] | None, number: int) -> str:
    return names[number] if names is not None and number < len(names) else f"#{number}"


# Below the others, so that `--help` lists those first.
store_app.command("repair")(repair_command)
store_app.command("copy")(copy_command)
store_app.command("plan")(plan_command)
store_app.command("diff")(diff_command)
store_app.command("import")(import_command)
store_app.command("export")(export_command)
