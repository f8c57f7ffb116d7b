"""`roibeam store copy | plan`: stores merged, cut anew and changed, and shared out among the ranks of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from roibeam.features.counted import counted
from roibeam.pipelines.cli.options import JSON, SCRATCH
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option
from roibeam.pipelines.cli.surface.option_names import KEPT


def copy_command(
    sources: Annotated[list[str], argument("SOURCE", "Stores, or URLs of some, with features made in the same way.")],
    out: Annotated[str, argument("OUT", "Folder or URL to write the new store into.")],
    ids: Annotated[Path | None, option("ids")] = None,
    without_ids: Annotated[Path | None, option("without-ids")] = None,
    split_file: Annotated[Path | None, option("split-file")] = None,
    split: Annotated[str | None, option("split", "Several with commas between.")] = None,
    dtype: Annotated[str | None, option("dtype", values="float16 or float32", default="as it is")] = None,
    distribution: Annotated[
        str | None,
        option("distribution", "A copy cannot make them full.", default="as they are"),
    ] = None,
    min_score: Annotated[float, option("min-score")] = 0.0,
    min_regions: Annotated[int, option("min-regions", "With --min-score.")] = 0,
    max_regions: Annotated[int | None, option("max-regions", default="all")] = None,
    vocab: Annotated[
        str | None,
        option("vocab", "For stores whose ids have no names.", group=KEPT, default="those of the store"),
    ] = None,
    shard_size: Annotated[int, option("shard-size", is_advanced=False)] = 4000,
    shard_mb: Annotated[int | None, option("shard-mb", is_advanced=False, default="no such limit")] = None,
    drop_damaged: Annotated[bool, option("drop-damaged", "They count as failures.")] = False,
    max_failures: Annotated[
        float, option("max-failures", "Ids that no source has count as failures.", is_advanced=False)
    ] = 0.05,
    scratch: Annotated[str | None, SCRATCH] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Copies stores into a new one: merged, cut anew, or in part.

    An image that several sources hold is copied once; it is an error if they differ. Captions and labels come along.
    Every record is checked. Run the same command again to continue. See docs/stores.md.

    Examples:
        roibeam store copy store-a/ store-b/ both/
        roibeam store copy store/ val/ --split-file dataset_coco.json --split val
        roibeam store copy store/ rest/ --without-ids taken-down.txt
        roibeam store copy store/ small/ --max-regions 36 --distribution none
        roibeam store copy store/ named/ --vocab vg
        roibeam store copy store/ s3://bucket/store
    """
    from roibeam.features.region_filter import RegionFilter
    from roibeam.features.shard.record_change import RecordChange
    from roibeam.pipelines.data.id_lists import read_id_list, read_split
    from roibeam.pipelines.extract.stores.places import check_scratch
    from roibeam.pipelines.extract.stores.store_copy import CopyOptions, copy_store

    given = {"--ids": ids, "--without-ids": without_ids, "--split": split}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{names[0]} and {names[1]} both say which images; give one of them")
    if (split is None) != (split_file is None):
        raise ValueError("--split NAME and --split-file FILE go together: a split, and the Karpathy file that it is of")
    if min_regions and not min_score:
        raise ValueError("--min-regions is the least that --min-score may leave; give --min-score too")
    asked = None if ids is None else read_id_list(ids)
    if without_ids is not None:
        asked = replace(read_id_list(without_ids), is_without=True)
    if split is not None:
        asked = read_split(str(split_file), split)
    regions = RegionFilter(min_score, min_regions, max_regions)
    change = RecordChange(
        dtype, "keep" if distribution is None else distribution, None if regions == RegionFilter() else regions
    )
    shard_bytes = None if shard_mb is None else shard_mb * 10**6
    options = CopyOptions(change, asked, shard_size, shard_bytes, drop_damaged, vocab)
    check_scratch(scratch, (*sources, out))
    summary = copy_store(sources, out, options, scratch=scratch)
    typer.echo(json_line(summary.to_json(out)) if as_json else summary.text(out))
    if summary.failed_share > max_failures:
        typer.echo(
            f"roibeam: {100 * summary.failed_share:.1f} % of what was to be copied is missing or failed, more than the "
            f"{100 * max_failures:g} % of --max-failures; the store is complete for the rest",
            err=True,
        )
        raise typer.Exit(1)


def plan_command(
    store: Annotated[str, argument("STORE", "Folder or URL of the store.")],
    ranks: Annotated[int, option("ranks")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Shows which shards each training process would read.

    Shards are shared out so that every process reads about as many bytes.

    Examples:
        roibeam store plan store/ --ranks 64
    """
    from roibeam.features.reading.rank_plan import imbalance, plan_ranks
    from roibeam.pipelines.extract.stores.store_facts import read_manifest

    plan = plan_ranks(read_manifest(store).shards, ranks)
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
        if entries:
            typer.echo(f"{rank:>6} {len(entries):>7,} {records:>11,} {num_bytes / 1e6:>12,.1f}  {numbers}")
    typer.echo(f"{store}: the fullest rank has {imbalance(plan):.3g} times the bytes of the mean")
    if idle := sum(not entries for entries in plan):
        records = sum(entry.num_records for entries in plan for entry in entries)
        cure = f"`roibeam store copy {store} OUT --shard-size {max(1, records // ranks)}` gives each one"
        if records < ranks:
            cure = f"the store has only {counted(records, 'record')}"
        typer.echo(f"roibeam: {counted(idle, 'rank')} without a shard; {cure}", err=True)


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers, such as "0, 4-6, 9"; the first twelve pieces."""
    pieces: list[tuple[int, int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1] = (pieces[-1][0], number)
        else:
            pieces.append((number, number))
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in pieces[:12]]
    return ", ".join(shown + (["..."] if len(pieces) > 12 else []))
