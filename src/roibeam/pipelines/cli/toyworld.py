"""`roibeam toyworld`: pictures that the project draws itself, in the official formats of the data sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import JSON_OUTPUT


def toyworld_command(
    out: Annotated[Path, typer.Argument(help="Folder to write: new, empty, or of a run with these numbers to finish.")],
    seed: Annotated[int, typer.Option(help="Which world; every number is another one, from 0.")] = 0,
    images: Annotated[int, typer.Option(help="Pictures in all, over all data sets and splits; at least 40.")] = 2000,
    workers: Annotated[
        int | None, typer.Option(help="Processes that draw; changes nothing but the time [default: one per core].")
    ] = None,
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Draws scenes with boxes, attributes, relations and captions, and writes COCO, Visual Genome, Conceptual Captions,
    SBU, Flickr30k and text files of them.

    Some 20 kB for a picture. A picture depends on the seed and its number only. docs/toyworld.md shows and measures it.
    """
    from roibeam.pipelines.toyworld.splits import PLACES
    from roibeam.pipelines.toyworld.write import CONTACT_SHEET_NAME, write_world

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    done = write_world(out, seed=seed, num_images=images, workers=cores if workers is None else workers)
    if as_json:
        summary = {"out": str(out), "drawn": done.drawn, "seconds": round(done.seconds, 3), "world": done.manifest}
        typer.echo(json_line(summary))
        return
    statistics = done.manifest["statistics"]
    if done.drawn:
        typer.echo(f"{images:,} pictures, {done.drawn:,} drawn now, in {done.seconds:.0f} s")
    else:
        typer.echo(f"{images:,} pictures, all there already")
    typer.echo(f"  {statistics['objects']:,} objects, {statistics['captions']:,} captions")
    for dataset in dict.fromkeys(place.dataset for place in PLACES):
        splits = [place.split for place in PLACES if place.dataset == dataset]
        counts = (f"{split} {done.manifest['splits'][f'{dataset}/{split}']:,}" for split in splits)
        typer.echo(f"  {out / dataset}: {', '.join(counts)}")
    typer.echo(f"  {out / 'text'}: {done.manifest['documents']:,} documents without pictures")
    typer.echo(f"Texts {done.manifest['texts_sha256']}")
    typer.echo(f"Look at it: {(out / CONTACT_SHEET_NAME).absolute()}")
