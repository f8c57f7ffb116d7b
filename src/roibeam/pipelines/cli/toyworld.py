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
    from roibeam.pipelines.toyworld.perfect_store import Perception
    from roibeam.pipelines.toyworld.world_files import FolderBesideWorld, WrittenFiles
    from roibeam.pipelines.toyworld.write_web import ToyWeb


def toyworld_command(
    out: Annotated[Path, argument("OUT", "Folder to write.")],
    num_images: Annotated[int, option(
        "Number of pictures to draw, in all data sets and splits together; at least 40.", "N", KEPT, min=40,
    )] = 2000,
    seed: Annotated[int, option(
        "Seed of all random choices. Each number gives another world.", "N", TRAINING, min=0,
    )] = 0,
    workers: Annotated[int | None, option(
        "Processes that work at the same time.", "N", SPEED, min=1, default="one for each core",
    )] = None,
    tasks: Annotated[str | None, option(
        "Also write tasks about the pictures: VQA v2, VCR, RefCOCO+, NLVR2, GLUE.", "FOLDER",
    )] = None,
    entities: Annotated[str | None, option(
        "Folder of Flickr30k Entities: Sentences, Annotations, lists of splits. Here it is also written: captions with "
        "marked phrases, boxes and gold parses.", "FOLDER",
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
        "Also write a store of the true regions, made without a detector.", "STORE", PERFECT,
    )] = None,
    noise: Annotated[float | None, option(
        "Standard deviation of the noise on the features, whose own standard deviation is 1.",
        "X", PERFECT, min=0, max=100, default="0.3",
    )] = None,
    missed: Annotated[float | None, option(
        "Share of the objects without a region.", "SHARE", PERFECT, min=0, max=1, default="0",
    )] = None,
    doubled: Annotated[float | None, option(
        "Share of the objects with two regions.", "SHARE", PERFECT, min=0, max=1, default="0",
    )] = None,
    box_jitter: Annotated[float | None, option(
        "Standard deviation of the noise on a box's edges, as a share of its sides.",
        "X", PERFECT, min=0, max=100, default="0",
    )] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Draws a small world of pictures with boxes, attributes and captions.

    It writes them in the file formats of COCO, Visual Genome, Conceptual Captions, SBU and Flickr30k, about 20 kB for a
    picture. docs/detectors.md shows it. An existing world is not drawn again.

    Examples:
        roibeam toyworld world/ --num-images 2000
        roibeam toyworld world/ --num-images 2000 --perfect-store perfect/
        roibeam toyworld world/ --num-images 2000 --tasks tasks/
        roibeam toyworld world/ --num-images 2000 --entities entities/
        roibeam toyworld world/ --num-images 2000 --web web/ --pages 5000
    """
    from roibeam.pipelines.toyworld.entities import ToyEntities
    from roibeam.pipelines.toyworld.perfect_store import PerfectStore
    from roibeam.pipelines.toyworld.tasks.write_tasks import ToyTasks
    from roibeam.pipelines.toyworld.write import write_world

    faults = {"noise": noise, "missed": missed, "doubled": doubled, "box_jitter": box_jitter}
    perception = _perception({name: value for name, value in faults.items() if value is not None}, perfect_store)
    requested: dict[str, FolderBesideWorld | PerfectStore] = {}
    if tasks is not None:
        requested["tasks"] = ToyTasks(tasks, out, seed, num_images)
    if entities is not None:
        requested["entities"] = ToyEntities(entities, out, seed, num_images)
    given = {"--pages": pages, "--page-kb": page_kb, "--web-port": web_port}
    if (site := _web(web, out, seed, num_images, given)) is not None:
        requested["web"] = site
    if perfect_store is not None:
        folder = None if tasks is None else Path(tasks)
        requested["perfect_store"] = PerfectStore(perfect_store, out, perception, seed, num_images, folder)
    for each in requested.values():
        each.check()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = cores if workers is None else workers
    done = write_world(out, seed=seed, num_images=num_images, workers=workers)
    made = {name: each.write(workers) for name, each in requested.items()}
    if as_json:
        summary = {"out": str(out), "drawn": done.num_new, "seconds": round(done.seconds, 3), "world": done.manifest}
        for name, written in made.items():
            key = "store" if name == "perfect_store" else name
            summary[name] = {key: requested[name].folder, "seconds": round(written.seconds, 3)} | written.manifest
        typer.echo(json_line(summary))
        return
    typer.echo("\n".join(_lines(out, num_images, done)))
    lines = {"tasks": _task_lines, "entities": _entity_lines, "web": _web_lines, "perfect_store": _store_lines}
    for name, written in made.items():
        typer.echo("\n".join(lines[name](requested[name].folder, written)))


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


def _lines(out: Path, num_images: int, done: WrittenFiles) -> Iterator[str]:
    from roibeam.pipelines.toyworld.world import PLACES
    from roibeam.pipelines.toyworld.write import CONTACT_SHEET_NAME

    statistics = done.manifest["statistics"]
    if done.num_new:
        yield f"{num_images:,} pictures, {done.num_new:,} drawn now, in {done.seconds:.0f} s"
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
    yield f"{folder}: {made.words}"
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
    yield f"{folder}: {made.words}"
    yield f"  images: {', '.join(f'{split} {count:,}' for split, count in images.items())}"
    yield f"  {counts['captions']:,} captions, {counts['phrases']:,} phrases, {counts['with boxes']:,} with boxes"


def _web_lines(folder: str, made: WrittenFiles) -> Iterator[str]:
    manifest = made.manifest
    yield f"{folder}: {made.words}"
    yield f"  {manifest['pages']:,} pages: {', '.join(f'{kind} {n:,}' for kind, n in manifest['kinds'].items())}"
    yield f"  {manifest['good_pictures']:,} pictures with a good text"
    yield f"Serve it: python -m http.server {manifest['port']} --bind 127.0.0.1 --directory {Path(folder) / 'site'}"


def _store_lines(folder: str, made: WrittenFiles) -> Iterator[str]:
    from roibeam.pipelines.toyworld.perfect_store import Perception

    now = f"{made.num_new:,} written now, in {made.seconds:.0f} s" if made.num_new else made.words
    yield f"{folder}: {made.manifest['records']:,} pictures, {made.manifest['regions']:,} regions, {now}"
    yield f"  seen with {Perception(**made.manifest['perception']).words}"
