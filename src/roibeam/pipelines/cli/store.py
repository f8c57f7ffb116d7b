"""`roibeam store info | verify | show | ids | dead-letters | copy | plan | repair`, and the group of store commands."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated
from unicodedata import category

import typer

from roibeam.messages import on_a_line, plural
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.help_pages import HelpedCommand, HelpedGroup
from roibeam.pipelines.cli.request_command import request_command
from roibeam.pipelines.cli.store_exchange import diff_command, export_command, import_command
from roibeam.pipelines.common.console.printable_streams import Unchanged
from roibeam.pipelines.common.console.request_options import (
    DETECTOR,
    FAILURES,
    INPUT,
    KEPT,
    QUESTION,
    SPEED,
    Json,
    Scratch,
    argument,
    option,
)


def copy_command(
    sources: Annotated[list[str], argument("SOURCE", "Stores, or their URLs, with features made in the same way.")],
    out: Annotated[str, argument("OUT", "Folder or URL to write the new store into.")],
    ids: Annotated[Path | None, option(
        "Use only these images: a file with one id on each line, or of `store ids --json`.", "FILE", INPUT,
    )] = None,
    without_ids: Annotated[Path | None, option("Leave these images out: a file as for --ids.", "FILE", INPUT)] = None,
    split_file: Annotated[Path | None, option("Karpathy file of --split.", "FILE", INPUT)] = None,
    split: Annotated[str | None, option(
        "Use only this split, such as train, val or test. Several are separated by commas.", "NAME", INPUT,
    )] = None,
    dtype: Annotated[str | None, option(
        "Number type of the stored features: float16 or float32.", "TYPE", KEPT, default="as it is",
    )] = None,
    distribution: Annotated[str | None, option(
        "Class probabilities to store for each region: full, top-K or none. A copy cannot restore the full ones.",
        "KIND", KEPT, default="as they are",
    )] = None,
    min_score: Annotated[float, option("Keep only regions of at least this score.", "SHARE", KEPT, min=0, max=1)] = 0.0,
    min_regions: Annotated[int, option(
        "Keep at least N regions of an image, whatever their scores. With --min-score.", "N", KEPT, min=0,
    )] = 0,
    max_regions: Annotated[int | None, option(
        "Use at most N regions of an image, those with the best scores.", "N", KEPT, min=1, default="all",
    )] = None,
    vocab: Annotated[str | None, option(
        "Class names: vg, a file, or a folder with objects_vocab.txt and attributes_vocab.txt. For stores whose class "
        "ids have no names.", "DIR", KEPT, default="those of the store",
    )] = None,
    shard_size: Annotated[int, option("Number of images in each new shard.", "N", KEPT, min=1)] = 4000,
    shard_mb: Annotated[int | None, option(
        "End a shard at about this many MB (10^6 bytes).", "N", KEPT, min=1, default="no such limit",
    )] = None,
    drop_damaged: Annotated[bool, option(
        "Leave damaged records out, instead of stopping. They count as failures.", "", FAILURES,
    )] = False,
    max_failures: Annotated[float, option(
        "Exit with an error if more than this share fails. Ids that no source has count as failures.", "SHARE",
        FAILURES, min=0, max=1,
    )] = 0.05,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Copies stores into a new one: merged, in other shards, or in part.

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
    from roibeam.features.batch import RegionFilter
    from roibeam.features.store_copy import RecordChange
    from roibeam.pipelines.data.id_lists import read_id_list, read_split
    from roibeam.pipelines.extract.stores.locations import check_scratch
    from roibeam.pipelines.extract.stores.store_copy import CopyOptions, copy_store

    given = {"--ids": ids, "--without-ids": without_ids, "--split": split}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{names[0]} and {names[1]} both choose images; give one of them")
    if (split is None) != (split_file is None):
        raise ValueError("--split NAME and --split-file FILE go together: a split, and the Karpathy file that it is of")
    if min_regions and not min_score:
        raise ValueError("--min-regions is the least that --min-score may leave; give --min-score too")
    chosen = None if ids is None else read_id_list(ids)
    if without_ids is not None:
        chosen = replace(read_id_list(without_ids), is_without=True)
    if split is not None:
        chosen = read_split(str(split_file), split)
    regions = RegionFilter(min_score, min_regions, max_regions)
    change = RecordChange(
        dtype, "keep" if distribution is None else distribution, None if regions == RegionFilter() else regions
    )
    shard_bytes = None if shard_mb is None else shard_mb * 10**6
    options = CopyOptions(change, chosen, shard_size, shard_bytes, drop_damaged, vocab)
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
    ranks: Annotated[int, option("Number of processes that share the store.", "N", QUESTION, min=1)],
    as_json: Json = False,
) -> None:
    """Shows which shards each training process would read.

    Shards are divided so that every process reads about the same number of bytes.

    Examples:
        roibeam store plan store/ --ranks 64
    """
    from roibeam.features.reading.staging import imbalance, plan_ranks
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
            cure = f"the store has only {plural(records, 'record')}"
        typer.echo(f"roibeam: {plural(idle, 'rank')} without a shard; {cure}", err=True)


def _ranges(numbers: list[int]) -> str:
    """Formats ascending numbers, such as "0, 4-6, 9"; the first twelve pieces."""
    pieces: list[tuple[int, int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1] = (pieces[-1][0], number)
        else:
            pieces.append((number, number))
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in pieces[:12]]
    return ", ".join(texts + (["..."] if len(pieces) > 12 else []))


def repair_command(
    store: Annotated[str, argument("STORE", "Folder or URL of the store that `roibeam extract` wrote.")],
    photos: Annotated[str | None, option(
        "Folder or URL of the photos, or of the archives that hold them. Without it, damage is only listed.",
        "DIR", INPUT,
    )] = None,
    weights: Annotated[str | None, option(
        "Weights of the detector: a file, a URL, hf:REPO or random:SEED.", "FILE", DETECTOR, default="where they were",
    )] = None,
    detector: Annotated[str | None, option(
        "toy, a run of `roibeam detector train`, or a network: vg-r101-c4-600, vinvl-x152-c4, r2c-r50, others. Needed "
        "for a run that has moved, and for torchvision:, hf: and python:.", "NAME", DETECTOR,
        default="that of the store",
    )] = None,
    backbone: Annotated[str | None, option(
        "Backbone of another library, which must be given again: torchvision:, hf: or python:.", "NAME", DETECTOR,
    )] = None,
    backbone_weights: Annotated[str | None, option(
        "Weights of a torchvision backbone: a file, a URL, random:SEED, or default for torchvision's own.",
        "FILE", DETECTOR,
    )] = None,
    device: Annotated[str | None, option(
        "Where to compute: auto (a GPU if there is one), cpu, cuda or cuda:N.", "DEVICE", SPEED,
        default="that of the run that made the store",
    )] = None,
    retry_dead_letters: Annotated[bool, option("Try again what failed before.", "", FAILURES)] = False,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Lists broken images of a store, and extracts them again.

    Without --photos it only lists them, and those that are missing. It reads every record. Intact records stay as they
    are. The new features must be made in the same way (detector, conventions, selection, dtype), else nothing is
    written. It stops at a photo that is not the one of the broken record. Shards of a store at a URL are copied here
    one after the other. The exit code is 1 if the store needs a repair, if images could not be extracted again, or if a
    new record differs too much from the old one.

    Examples:
        roibeam store repair store/
        roibeam store repair store/ --photos photos/
    """
    from roibeam.pipelines.extract.stores.locations import check_scratch

    check_scratch(scratch, (store,))
    if photos is None:
        given = {"--weights": weights, "--detector": detector, "--device": device, "--backbone": backbone}
        names = [name for name, value in given.items() if value is not None]
        names += ["--retry-dead-letters"] if retry_dead_letters else []
        if names:
            raise ValueError(f"{names[0]} is for a repair: give --photos DIR too")
        _list_damage(store, scratch, as_json=as_json)
        return
    if weights is not None and detector is not None and ":" not in detector:
        raise ValueError("--weights and --detector both name weights; give one of them")
    from roibeam.pipelines.extract.stores.store_repair import RepairSource, repair_json, repair_store, repair_text

    source = RepairSource(photos, weights, detector, device, backbone, backbone_weights)
    summary = repair_store(store, source, retry_dead_letters=retry_dead_letters, scratch=scratch)
    typer.echo(json_line(repair_json(store, summary)) if as_json else repair_text(store, summary))
    if summary.lost or summary.compared.doubtful:
        raise typer.Exit(1)


def _list_damage(store: str, scratch: str | None, *, as_json: bool) -> None:
    from roibeam.features.folders.local_folder import output_folder
    from roibeam.pipelines.extract.stores.store_check import find_damage
    from roibeam.pipelines.extract.stores.store_repair import damage_json, damage_text

    damage = find_damage(output_folder(store, scratch))
    typer.echo(json_line(damage_json(store, damage)) if as_json else damage_text(store, damage))
    if not damage.is_whole:
        raise typer.Exit(1)


store_app = typer.Typer(
    cls=HelpedGroup,
    help="Stores of region features: inspect, repair, copy, compare, exchange with other code bases.",
    rich_markup_mode=None,
)
_STORE = argument("STORE", "Store: a folder, or its URL (s3://, gs://, ...).")


@store_app.command("info", cls=HelpedCommand)
@request_command
def info_command(store: Annotated[str, _STORE], as_json: Json = False) -> None:
    """Shows what is in a store, and how its features were made.

    Examples:
        roibeam store info store/
    """
    from roibeam.features.folders.local_folder import output_folder
    from roibeam.features.reading.temporary_copy import unfinished_run_of
    from roibeam.pipelines.extract.stores.store_facts import data_bytes, read_manifest, store_facts

    manifest = read_manifest(store)
    unfinished = unfinished_run_of(output_folder(store), manifest)
    if as_json:
        content = {**manifest.to_json(), "unfinished": None if unfinished is None else asdict(unfinished)}
        typer.echo(json_line({**content, "data_bytes": data_bytes(manifest), "store": str(store)}))
        return
    facts = store_facts(manifest, unfinished)
    typer.echo("\n".join([str(store), *(f"  {name:<15} {value}" for name, value in facts.items())]))


@store_app.command("verify", cls=HelpedCommand)
@request_command
def verify_command(
    store: Annotated[str, _STORE],
    deep: Annotated[bool, option("Read every record and compare its checksum.", "", QUESTION)] = False,
    shards: Annotated[str | None, option(
        "Read only these shards, such as 0-9, or 10- for all from 10 on. With --deep.", "FIRST-LAST", INPUT,
        default="all",
    )] = None,
    scratch: Scratch = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Checks that a store is complete and undamaged.

    Without --deep it checks manifests, sizes, indexes and captions, which takes seconds. The exit code is 1 if there is
    a problem. With --deep, the shards of a store at a URL are copied one after the other to a temporary folder.

    Examples:
        roibeam store verify store/
        roibeam store verify s3://bucket/store
        roibeam store verify store/ --deep
    """
    from roibeam.pipelines.extract.stores.locations import check_scratch
    from roibeam.pipelines.extract.stores.store_check import check_store

    check_scratch(scratch, (store,))
    problems = check_store(store, deep=deep, shards=shards, scratch=scratch)
    if as_json:
        typer.echo(
            json_line({"store": str(store), "deep": deep, "problems": [asdict(problem) for problem in problems]})
        )
    else:
        for problem in problems:
            typer.echo(on_a_line(f"{problem.file}: {problem.what}; {problem.what_to_do}"))
        depth = "every record read" if deep else "manifests, sizes and indexes; --deep reads every record"
        if shards is not None:
            depth = f"every record of the shards {shards} read; manifests, sizes and indexes of all"
        count = plural(len(problems), "problem")
        typer.echo(f"{store}: {count}" if problems else f"{store}: clean ({depth})")
    if problems:
        raise typer.Exit(1)


@store_app.command("show", cls=HelpedCommand)
@request_command
def show_command(
    store: Annotated[Path, _STORE],
    image_id: Annotated[str | None, argument("IMAGE_ID", "Image to show [default: the first].")] = None,
    max_regions: Annotated[int, option(
        "Use at most N regions of an image, those with the best scores.", "N", KEPT, min=1,
    )] = 10,
    draw: Annotated[Path | None, option(
        "Also draw the regions on the photo, into this .png file. An older picture of roibeam is replaced.", "FILE",
    )] = None,
    photo: Annotated[Path | None, option(
        "File of one photo. With --draw; none draws on a blank page.", "FILE", default="where the store says",
    )] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Shows one image of a store: its captions, regions and features.

    Examples:
        roibeam store show store/
        roibeam store show store/ 000000391895 --draw regions.png
    """
    from roibeam.pipelines.extract.one_photo import BLANK, draw_stored, view_record

    if photo is not None and draw is None:
        raise ValueError("--photo is for --draw")
    view = view_record(store, image_id, num_regions=max_regions)
    if draw is not None:
        draw_stored(store, view.record.image_id, draw, photo, num_regions=max_regions)
    if as_json:
        typer.echo(json_line(view.to_json() if draw is None else {**view.to_json(), "picture": str(draw)}))
        return
    typer.echo("\n".join(view.lines()))
    if draw is not None:
        page = "a blank page" if photo == BLANK else "the photo"
        typer.echo(f"{draw}   {page} with {'its regions' if view.is_whole else 'the best regions'}")


@store_app.command("ids", cls=HelpedCommand)
@request_command
def ids_command(store: Annotated[str, _STORE], as_json: Json = False) -> None:
    """Lists the image ids of a store, one on each line.

    `roibeam store copy --ids` reads such a list, or a part of it, from a file. An id with a line break or the like is
    written with escapes; --json prints it unchanged, and --ids reads that, too.

    Examples:
        roibeam store ids store/
    """
    from roibeam.features.reading.temporary_copy import IndexedIds, local_store

    with local_store(store) as opened:
        ids = iter(IndexedIds(opened)) if opened.folder.local_path is None else opened.ids()
        if as_json:
            typer.echo(json_line({"store": store, "ids": list(ids)}))
            return
        escaped, is_terminal = 0, sys.stdout.isatty()
        for number, image_id in enumerate(ids):
            # A file gets format characters as they are, such as the joiners of Persian names; a terminal does not.
            line = on_a_line(image_id) if is_terminal else _without_controls(image_id)
            escaped += line != image_id
            if not is_terminal and number == 0 and line.startswith("\ufeff"):
                line = "\ufeff" + line  # readers take one mark off a file's first bytes
            sys.stdout.write(Unchanged(line + "\n"))
        if escaped:
            typer.echo(
                f"roibeam: {plural(escaped, 'id holds', 'ids hold')} line breaks or other control characters and "
                f"{'is' if escaped == 1 else 'are'} spelled with escapes above; for --ids take `store ids --json`",
                err=True,
            )


@store_app.command("dead-letters", cls=HelpedCommand)
@request_command
def dead_letters_command(store: Annotated[str, _STORE], as_json: Json = False) -> None:
    """Lists the images that failed, one on each line.

    A line has the image id, its location, stage, reason and detail, separated by tabs. While a run is at work, the
    failures of its finished shards are listed. `roibeam extract --retry-dead-letters` tries them again.

    Examples:
        roibeam store dead-letters store/
    """
    from roibeam.features.folders.local_folder import output_folder
    from roibeam.pipelines.common.dead_letters import read_letters

    letters = map(asdict, read_letters(output_folder(store)))
    if as_json:
        typer.echo(json_line({"store": store, "dead_letters": list(letters)}))
        return
    for letter in letters:
        typer.echo("\t".join(map(on_a_line, letter.values())))


def _without_controls(text: str) -> str:
    """Escapes control characters, such as \\n: they would end the line, or be swallowed on their way to a file."""
    return text if text.isprintable() else "".join(on_a_line(c) if category(c) == "Cc" else c for c in text)


# Below the others, so that `--help` lists those first.
store_app.command("repair", cls=HelpedCommand)(request_command(repair_command))
store_app.command("copy", cls=HelpedCommand)(request_command(copy_command))
store_app.command("plan", cls=HelpedCommand)(request_command(plan_command))
store_app.command("diff", cls=HelpedCommand)(request_command(diff_command))
store_app.command("import", cls=HelpedCommand)(request_command(import_command))
store_app.command("export", cls=HelpedCommand)(request_command(export_command))
