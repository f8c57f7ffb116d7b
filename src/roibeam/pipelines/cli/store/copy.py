"""`roibeam store copy | plan`: stores merged, cut anew and changed, and shared out among the ranks of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roibeam.features.counted import counted
from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import JSON_OUTPUT


def copy_command(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...", help="Stores of one feature space.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the store into; new, empty, or of this copy, killed.")],
    ids: Annotated[Path | None, typer.Option(help="Only these images: a file with one image id a line.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Only these images: FILE:NAME, a Karpathy json and train, restval, val or test.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Features as float16 or float32 [default: as they are].", show_default=False)
    ] = None,
    distribution: Annotated[
        str, typer.Option(help="Class distributions: keep, none, or top-<k> for the k best and the rest mass.")
    ] = "keep",
    min_score: Annotated[float, typer.Option(min=0, max=1, help="Only regions of this class score.")] = 0.0,
    min_regions: Annotated[int, typer.Option(min=0, help="But at least so many per image, the best ones.")] = 0,
    max_regions: Annotated[
        int | None, typer.Option(min=1, help="At most so many per image, the best ones [default: all].")
    ] = None,
    shard_size: Annotated[int, typer.Option(min=1, help="Images per shard, at most.")] = 4000,
    shard_mb: Annotated[
        int | None, typer.Option(min=1, help="A shard ends near so many MB (10^6 bytes) [default: no such limit].")
    ] = None,
    drop_damaged: Annotated[
        bool, typer.Option("--drop-damaged/--stop-at-damaged", help="A damaged record: a dead letter, or the end.")
    ] = False,
    max_failures: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of failed records and missing ids above which the exit code is 1."),
    ] = 0.05,
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Copies stores into a new one: merges them, cuts other shards, takes a subset, changes dtype, distribution or
    regions. Every record that is read is checked.

    The same image in several sources counts once when they agree and is an error when they do not. Dead letters,
    captions and labels travel. A killed copy goes on with the same command. See docs/stores.md.
    """
    from roibeam.features.region_filter import RegionFilter
    from roibeam.features.shard.record_change import RecordChange
    from roibeam.pipelines.sources.id_lists import read_id_list, read_split
    from roibeam.pipelines.stores.store_copy import CopyOptions, copy_store

    if ids is not None and split is not None:
        raise ValueError("--ids and --split both say which images; give one of them")
    if min_regions and not min_score:
        raise ValueError("--min-regions is the least that --min-score may leave; give --min-score too")
    asked = None if ids is None else read_id_list(ids)
    asked = asked if split is None else read_split(split)
    regions = RegionFilter(min_score, min_regions, max_regions)
    change = RecordChange(dtype, distribution, None if regions == RegionFilter() else regions)
    shard_bytes = None if shard_mb is None else shard_mb * 10**6
    options = CopyOptions(change, asked, shard_size, shard_bytes, drop_damaged)
    summary = copy_store(sources, out, options)
    typer.echo(json_line(summary.to_json(out)) if as_json else summary.text(out))
    if summary.failed_share > max_failures:
        typer.echo(
            f"roibeam: {100 * summary.failed_share:.1f} % of what was to be copied is missing or failed, more than the "
            f"{100 * max_failures:g} % of --max-failures; the store is complete for the rest",
            err=True,
        )
        raise typer.Exit(1)


def plan_command(
    store: Annotated[Path, typer.Argument(help="Store whose shards are shared out.")],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks that read the store.")],
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Which rank reads which shards, so that each has about as many bytes to fetch and to read."""
    from roibeam.features.reading.rank_plan import imbalance, plan_ranks
    from roibeam.features.store import FeatureStore

    with FeatureStore(store) as opened:
        plan = plan_ranks(opened.manifest.shards, ranks)
    if as_json:
        ranks_json = [
            {
                "rank": rank,
                "shards": [entry.shard for entry in entries],
                "data_files": [entry.data_file for entry in entries],
                "records": sum(entry.num_records for entry in entries),
                "bytes": sum(entry.data_bytes for entry in entries),
            }
            for rank, entries in enumerate(plan)
        ]
        typer.echo(json_line({"store": str(store), "imbalance": imbalance(plan), "ranks": ranks_json}))
        return
    typer.echo(f"{'rank':>6} {'shards':>7} {'records':>11} {'MB':>12}  shard numbers")
    for rank, entries in enumerate(plan):
        records, num_bytes = (sum(getattr(entry, name) for entry in entries) for name in ("num_records", "data_bytes"))
        numbers = _ranges([entry.shard for entry in entries])
        typer.echo(f"{rank:>6} {len(entries):>7,} {records:>11,} {num_bytes / 1e6:>12,.1f}  {numbers}")
    typer.echo(f"{store}: the fullest rank has {imbalance(plan):.3f} times the bytes of the mean")
    if idle := sum(not entries for entries in plan):
        typer.echo(
            f"roibeam: {counted(idle, 'rank')} without a shard; `roibeam store copy --shard-size` cuts smaller ones",
            err=True,
        )


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers, such as "0, 4-6, 9"; the first twelve pieces."""
    pieces: list[tuple[int, int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1] = (pieces[-1][0], number)
        else:
            pieces.append((number, number))
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in pieces[:12]]
    return ", ".join(shown + (["..."] if len(pieces) > 12 else [])) or "none"
