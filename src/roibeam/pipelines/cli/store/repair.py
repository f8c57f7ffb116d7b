"""`roibeam store repair`: what is broken or missing in a store, and its repair from the photos."""

from __future__ import annotations

import json
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.features.counted import counted
from roibeam.features.printable import printable

if TYPE_CHECKING:
    from roibeam.pipelines.stores.damage import StoreDamage
    from roibeam.pipelines.stores.store_repair import RepairSummary

_LISTED = 20  # images, and files; --json lists all


def repair_command(
    store: Annotated[Path, typer.Argument(help="Folder that `roibeam extract` wrote.")],
    images: Annotated[
        str | None,
        typer.Option(
            help="Repair, with the photos or archives below this folder or URL: the one that `roibeam extract` read, "
            "or where it is now [default: only list]."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="The store's weights, where they have moved; as for extract [default: where they were]."),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(help="The store's detector, where its folder has moved: a folder, or toy [default: none]."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:<n> [default: as the store was made].")] = None,
    retry_dead_letters: Annotated[
        bool,
        typer.Option("--retry-dead-letters/--no-retry-dead-letters", help="Also try images again that failed."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="JSON on standard output, with all ids.")] = False,
) -> None:
    """Lists broken and missing images of a store; with --images extracts these again, and no others.

    Reads every record. Whole records are copied; the new features must be of the store's own kind (the same detector,
    conventions, selection, dtype), or nothing is written. Exit code 0: the store is whole. 1: it needs a repair, or
    images could not be extracted again.
    """
    if images is None:
        given = {"--weights": weights, "--detector": detector, "--device": device}
        names = [name for name, value in given.items() if value is not None]
        names += ["--retry-dead-letters"] if retry_dead_letters else []
        if names:
            raise ValueError(f"{names[0]} is for a repair: give --images FOLDER too")
        _list_damage(store, as_json=as_json)
        return
    if weights is not None and detector is not None:
        raise ValueError("--weights and --detector both name weights; give one of them")
    from roibeam.pipelines.stores.store_repair import RepairSource, repair_store

    source = RepairSource(images, weights, detector, device)
    summary = repair_store(store, source, retry_dead_letters=retry_dead_letters)
    typer.echo(json.dumps(_summary_json(store, summary)) if as_json else _summary_text(store, summary))
    if summary.lost:
        raise typer.Exit(1)


def _list_damage(store: Path, *, as_json: bool) -> None:
    from roibeam.pipelines.stores.damage import find_damage

    damage = find_damage(store)
    typer.echo(json.dumps(_damage_json(store, damage)) if as_json else _damage_text(store, damage))
    if not damage.is_whole:
        raise typer.Exit(1)


def _damage_json(store: Path, damage: StoreDamage) -> dict[str, Any]:
    shards = [
        {
            "shard": state.number,
            "files": list(state.files),
            "broken": [{"image_id": image_id, "what": what} for image_id, what in state.broken.items()],
            "missing": list(state.missing),
            "unnamed": state.num_unnamed,
        }
        for state in damage.damaged
    ]
    counts = {"broken": damage.num_broken, "missing": damage.num_missing, "dead_letters": damage.num_dead_letters}
    whole = {"whole": damage.is_whole, "manifest_is_stale": damage.is_stale}
    return {"store": str(store), **whole, **counts, "shards": shards}


def _damage_text(store: Path, damage: StoreDamage) -> str:
    files = [line for state in damage.damaged for line in state.files]
    lines = [printable(line, 300) for line in files[:_LISTED]]
    if len(files) > _LISTED:
        lines.append(f"... and {len(files) - _LISTED:,} more about files; --json tells all")
    found = chain.from_iterable(state.images() for state in damage.damaged)
    lines += [
        f"{kind:<8} {printable(name, 100)}: {printable(what, 200)}" for kind, name, what in islice(found, _LISTED)
    ]
    more = sum(1 for _ in found)
    if more:
        lines.append(f"... and {counted(more, 'more image', 'more images')}; --json tells all")
    unnamed = sum(state.num_unnamed for state in damage.damaged)
    if unnamed:
        lines.append(f"{counted(unnamed, 'lost record')} whose ids only the source knows: the store has no plan")
    if damage.is_stale:
        lines.append("manifest.json does not list the shards as they are; a repair writes it again")
    letters = counted(damage.num_dead_letters, "dead letter")
    if damage.is_whole:
        return f"{store}: whole; {counted(damage.manifest.num_records, 'record')}, {letters}"
    counts = f"{counted(damage.num_broken, 'broken image')}, {counted(damage.num_missing, 'missing image')}, {letters}"
    lines.append(f"{store}: {counts}; {_advice(store, damage)}")
    return "\n".join(lines)


def _advice(store: Path, damage: StoreDamage) -> str:
    if damage.plan is None:
        return "it has no plan of its images: import or copy it again from its source"
    return f"`roibeam store repair {store} --images {damage.plan.source['image_root']}` extracts the images again"


def _summary_json(store: Path, summary: RepairSummary) -> dict[str, Any]:
    return {
        "store": str(store),
        "shards": summary.num_shards,
        "extracted": summary.num_extracted,
        "copied": summary.num_copied,
        "retried": summary.num_retried,
        "lost": [{"image_id": letter.image_id, "reason": letter.reason} for letter in summary.lost],
        "records": summary.manifest.num_records,
        "dead_letters": summary.manifest.num_dead_letters,
        "content_digest": summary.manifest.content_digest,
        "as_before": summary.is_as_before,
        "seconds": round(summary.seconds, 3),
    }


def _summary_text(store: Path, summary: RepairSummary) -> str:
    lost = [
        f"lost     {printable(letter.image_id, 100)}: {letter.reason} ({printable(letter.detail, 200)})"
        for letter in summary.lost[:_LISTED]
    ]
    if len(summary.lost) > _LISTED:
        lost.append(f"... and {len(summary.lost) - _LISTED:,} more; {store}/dead_letters.parquet names all")
    done = (
        f"{store}: {counted(summary.num_shards, 'shard')} written anew: {counted(summary.num_extracted, 'image')} "
        f"extracted, {counted(summary.num_copied, 'record')} copied"
    )
    if summary.num_retried:
        done += f", {counted(summary.num_retried, 'dead letter')} now a record"
    content = "its content digest is what it was" if summary.is_as_before else "its content digest is another one now"
    records = counted(summary.manifest.num_records, "record")
    letters = counted(summary.manifest.num_dead_letters, "dead letter")
    return "\n".join([*lost, done, f"{records}, {letters}; {content}"])
