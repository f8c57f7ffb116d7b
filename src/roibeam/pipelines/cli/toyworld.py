"""`roibeam toyworld`: pictures that the project draws itself, in the official formats of the data sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import JSON
from roibeam.pipelines.cli.surface.option import argument, option


def toyworld_command(
    out: Annotated[Path, argument("OUT", "Folder to write.")],
    num_images: Annotated[int, option("num-images", "Over all data sets and splits; at least 40.")] = 2000,
    seed: Annotated[int, option("seed", "Each number gives another world.")] = 0,
    workers: Annotated[int | None, option("workers", default="one for each core")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Draws a small world of pictures with boxes, attributes and captions.

    Writes them in the file formats of COCO, Visual Genome, Conceptual Captions, SBU and Flickr30k, about 20 kB for a
    picture. docs/detectors.md shows it.

    Examples:
        roibeam toyworld world/ --num-images 2000
    """
    from roibeam.pipelines.toyworld.splits import PLACES
    from roibeam.pipelines.toyworld.write import CONTACT_SHEET_NAME, write_world

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    done = write_world(out, seed=seed, num_images=num_images, workers=cores if workers is None else workers)
    if as_json:
        summary = {"out": str(out), "drawn": done.drawn, "seconds": round(done.seconds, 3), "world": done.manifest}
        typer.echo(json_line(summary))
        return
    statistics = done.manifest["statistics"]
    if done.drawn:
        typer.echo(f"{num_images:,} pictures, {done.drawn:,} drawn now, in {done.seconds:.0f} s")
    else:
        typer.echo(f"{num_images:,} pictures, all there already")
    typer.echo(f"  {statistics['objects']:,} objects, {statistics['captions']:,} captions")
    for dataset in dict.fromkeys(place.dataset for place in PLACES):
        splits = [place.split for place in PLACES if place.dataset == dataset]
        counts = (f"{split} {done.manifest['splits'][f'{dataset}/{split}']:,}" for split in splits)
        typer.echo(f"  {out / dataset}: {', '.join(counts)}")
    typer.echo(f"  {out / 'text'}: {done.manifest['documents']:,} documents without pictures")
    typer.echo(f"Texts {done.manifest['texts_sha256']}")
    typer.echo(f"Look at it: {(out / CONTACT_SHEET_NAME).absolute()}")
