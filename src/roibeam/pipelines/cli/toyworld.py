"""`roibeam toyworld`: pictures that the project draws itself, in the official formats of the data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.common.console.request_options import KEPT, PERFECT, SPEED, TRAINING, Json, argument, option

if TYPE_CHECKING:
    from roibeam.pipelines.toyworld.perfect_store import Perception, WrittenStore
    from roibeam.pipelines.toyworld.world_files import WrittenFiles
    from roibeam.pipelines.toyworld.write import WorldSummary
    from roibeam.pipelines.toyworld.write_web import ToyWeb


def toyworld_command(
    out: Annotated[Path, argument("OUT", "Folder to write.")],
    num_images: Annotated[int, option(
        "Number of pictures to draw. Over all data sets and splits; at least 40.", "N", KEPT, min=40,
    )] = 2000,
    seed: Annotated[int, option(
        "Number that every random choice follows from. Each number gives another world.", "N", TRAINING, min=0,
    )] = 0,
    workers: Annotated[int | None, option(
        "Processes that work at the same time.", "N", SPEED, min=1, default="one for each core",
    )] = None,
    tasks: Annotated[str | None, option(
        "Also write tasks about the pictures: VQA v2, VCR, RefCOCO+, NLVR2, GLUE.", "FOLDER",
    )] = None,
    entities: Annotated[str | None, option(
        "Folder of Flickr30k Entities: Sentences, Annotations, lists of splits. Here: written too, captions with "
        "marked phrases, boxes and gold parses of the pictures.", "FOLDER",
    )] = None,
    web: Annotated[str | None, option(
        "Also write a web of pages and WARC files with pictures, all labelled.", "FOLDER",
    )] = None,
    pages: Annotated[int | None, option("Number of pages of --web.", "N", min=1, default="1000")] = None,
    page_kb: Annotated[int | None, option(
        "Median size of a page of --web, in kB (10^3 bytes).", "N", min=1, max=10000, default="6", advanced=True,
    )] = None,
    web_port: Annotated[int | None, option(
        "Port of 127.0.0.1 at which the pictures of --web will be served.", "N", min=1, max=65535, default="8780",
    )] = None,
    perfect_store: Annotated[str | None, option(
        "Also write a store of regions that are seen without a detector.", "STORE", PERFECT,
    )] = None,
    noise: Annotated[float | None, option(
        "Standard deviation of what is added to the features, whose parts have 1.", "X", PERFECT, min=0, max=100,
        default="0.3",
    )] = None,
    missed: Annotated[float | None, option(
        "Share of the objects that no region shows.", "SHARE", PERFECT, min=0, max=1, default="0",
    )] = None,
    doubled: Annotated[float | None, option(
        "Share of the objects that two regions show.", "SHARE", PERFECT, min=0, max=1, default="0",
    )] = None,
    box_jitter: Annotated[float | None, option(
        "Standard deviation of the edges of a box, as a share of its sides.", "X", PERFECT, min=0, max=100,
        default="0",
    )] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Draws a small world of pictures with boxes, attributes and captions.

    Writes them in the file formats of COCO, Visual Genome, Conceptual Captions, SBU and Flickr30k, about 20 kB for a
    picture. docs/detectors.md shows it. A world that is there is not drawn again.

    Examples:
        roibeam toyworld world/ --num-images 2000
        roibeam toyworld world/ --num-images 2000 --perfect-store perfect/
        roibeam toyworld world/ --num-images 2000 --tasks tasks/
        roibeam toyworld world/ --num-images 2000 --entities entities/
        roibeam toyworld world/ --num-images 2000 --web web/ --pages 5000
    """
    from roibeam.pipelines.toyworld.entities import ToyEntities
    from roibeam.pipelines.toyworld.perfect_store import PerfectStore
    from roibeam.pipelines.toyworld.tasks.write_tasks import ToyTasks, toy_levels
    from roibeam.pipelines.toyworld.write import write_world

    faults = {"noise": noise, "missed": missed, "doubled": doubled, "box_jitter": box_jitter}
    perception = _perception({name: value for name, value in faults.items() if value is not None}, perfect_store)
    requested_tasks = None if tasks is None else ToyTasks(tasks, out, seed, num_images)
    requested_entities = None if entities is None else ToyEntities(entities, out, seed, num_images)
    requested_store = None
    if perfect_store is not None:
        folder = None if tasks is None else Path(tasks)
        requested_store = PerfectStore(perfect_store, out, perception, seed, num_images, folder)
    requested_web = _web(web, out, seed, num_images, {"--pages": pages, "--page-kb": page_kb, "--web-port": web_port})
    for each in (requested_tasks, requested_entities, requested_store, requested_web):
        if each is not None:
            each.check()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = cores if workers is None else workers
    done = write_world(out, seed=seed, num_images=num_images, workers=workers)
    made_tasks = None if requested_tasks is None else requested_tasks.write(toy_levels)
    made_entities = None if requested_entities is None else requested_entities.write()
    made_web = None if requested_web is None else requested_web.write(workers)
    written = None if requested_store is None else requested_store.write()
    if as_json:
        summary = {"out": str(out), "drawn": done.drawn, "seconds": round(done.seconds, 3), "world": done.manifest}
        if made_tasks is not None:
            summary["tasks"] = {"tasks": tasks, "seconds": round(made_tasks.seconds, 3)} | made_tasks.manifest
        if made_entities is not None:
            summary["entities"] = {
                "entities": entities,
                "seconds": round(made_entities.seconds, 3),
                **made_entities.manifest,
            }
        if made_web is not None:
            summary["web"] = {"web": web, "seconds": round(made_web.seconds, 3)} | made_web.manifest
        if written is not None:
            summary["perfect_store"] = {
                "store": perfect_store,
                "written": written.written,
                "seconds": round(written.seconds, 3),
                "records": written.manifest.num_records,
                "regions": written.manifest.num_regions,
                "feature_space": written.manifest.fingerprint.feature_space,
                "perception": vars(perception),
            }
        typer.echo(json_line(summary))
        return
    typer.echo("\n".join(_lines(out, num_images, done)))
    if made_tasks is not None:
        typer.echo("\n".join(_task_lines(str(tasks), made_tasks)))
    if made_entities is not None:
        typer.echo("\n".join(_entity_lines(str(entities), made_entities)))
    if made_web is not None:
        typer.echo("\n".join(_web_lines(str(web), made_web)))
    if written is not None:
        typer.echo("\n".join(_store_lines(str(perfect_store), written, perception)))


def _perception(faults: dict[str, float], store: str | None) -> Perception:
    from roibeam.pipelines.toyworld.perfect_store import Perception

    if faults and store is None:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in faults)
        raise ValueError(f"{names}: only with --perfect-store STORE, which names the store to write")
    return Perception(**faults)


def _web(web: str | None, out: Path, seed: int, num_images: int, given: dict[str, int | None]) -> ToyWeb | None:
    from roibeam.pipelines.toyworld.write_web import ToyWeb

    if web is None:
        names = ", ".join(name for name, value in given.items() if value is not None)
        if names:
            raise ValueError(f"{names}: only with --web FOLDER, which names the web to write")
        return None
    pages, page_kb, port = given.values()
    return ToyWeb(web, out, seed, num_images, pages or 1000, port or 8780, page_kb or 6)


def _lines(out: Path, num_images: int, done: WorldSummary) -> Iterator[str]:
    from roibeam.pipelines.toyworld.world import PLACES
    from roibeam.pipelines.toyworld.write import CONTACT_SHEET_NAME

    statistics = done.manifest["statistics"]
    if done.drawn:
        yield f"{num_images:,} pictures, {done.drawn:,} drawn now, in {done.seconds:.0f} s"
    else:
        yield f"{num_images:,} pictures, all there already"
    yield f"  {statistics['objects']:,} objects, {statistics['captions']:,} captions"
    for dataset in dict.fromkeys(place.dataset for place in PLACES):
        splits = [place.split for place in PLACES if place.dataset == dataset]
        counts = (f"{split} {done.manifest['splits'][f'{dataset}/{split}']:,}" for split in splits)
        yield f"  {out / dataset}: {', '.join(counts)}"
    yield f"  {out / 'text'}: {done.manifest['documents']:,} documents without pictures"
    yield f"Texts {done.manifest['texts_sha256']}"
    yield f"Look at it: {(out / CONTACT_SHEET_NAME).absolute()}"


def _task_lines(folder: str, made: WrittenFiles) -> Iterator[str]:
    from roibeam.pipelines.toyworld.tasks.write_tasks import CEILING, FLOOR

    rows, levels = made.manifest["rows"], made.manifest["levels"]
    yield f"{folder}: {f'written in {made.seconds:.0f} s' if made.is_new else 'all there already'}"
    for task, splits in rows.items():
        yield f"  {task}: {', '.join(f'{split} {count:,}' for split, count in splits.items())}"
    yield f"  {'':<28}{'ceiling, %':>12}{'blind, %':>12}"
    for task, splits in levels.items():
        for split, measures in splits.items():
            for measure, reached in measures.items():
                if " type " not in measure:
                    name = f"{task} {split}, {measure}"
                    yield f"  {name:<28}{100 * reached[CEILING]:>12.2f}{100 * reached[FLOOR]:>12.2f}"


def _entity_lines(folder: str, made: WrittenFiles) -> Iterator[str]:
    counts, images = made.manifest["counts"], made.manifest["images"]
    yield f"{folder}: {f'written in {made.seconds:.0f} s' if made.is_new else 'all there already'}"
    yield f"  images: {', '.join(f'{split} {count:,}' for split, count in images.items())}"
    yield f"  {counts['captions']:,} captions, {counts['phrases']:,} phrases, {counts['with boxes']:,} with boxes"


def _web_lines(folder: str, made: WrittenFiles) -> Iterator[str]:
    manifest = made.manifest
    yield f"{folder}: {f'written in {made.seconds:.0f} s' if made.is_new else 'all there already'}"
    yield f"  {manifest['pages']:,} pages: {', '.join(f'{kind} {n:,}' for kind, n in manifest['kinds'].items())}"
    yield f"  {manifest['good_pictures']:,} pictures with a good text"
    yield f"Serve it: python -m http.server {manifest['port']} --bind 127.0.0.1 --directory {Path(folder) / 'site'}"


def _store_lines(store: str, written: WrittenStore, perception: Perception) -> Iterator[str]:
    now = f"{written.written:,} written now, in {written.seconds:.0f} s" if written.written else "all there already"
    records, regions = written.manifest.num_records, written.manifest.num_regions
    yield f"{store}: {records:,} pictures, {regions:,} regions, {now}"
    yield f"  seen with {perception.words}"
