"""`roibeam toyworld`: pictures that the project draws itself, in the official formats of the data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import JSON
from roibeam.pipelines.cli.surface.option import argument, option

if TYPE_CHECKING:
    from roibeam.pipelines.toyworld.perfect_perception import Perception
    from roibeam.pipelines.toyworld.write import WorldSummary


def toyworld_command(
    out: Annotated[Path, argument("OUT", "Folder to write.")],
    num_images: Annotated[int, option("num-images", "Over all data sets and splits; at least 40.")] = 2000,
    seed: Annotated[int, option("seed", "Each number gives another world.")] = 0,
    workers: Annotated[int | None, option("workers", default="one for each core")] = None,
    perfect_store: Annotated[str | None, option("perfect-store")] = None,
    noise: Annotated[float | None, option("noise", default="0.3")] = None,
    missed: Annotated[float | None, option("missed", default="0")] = None,
    doubled: Annotated[float | None, option("doubled", default="0")] = None,
    box_jitter: Annotated[float | None, option("box-jitter", default="0")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Draws a small world of pictures with boxes, attributes and captions.

    Writes them in the file formats of COCO, Visual Genome, Conceptual Captions, SBU and Flickr30k, about 20 kB for a
    picture. docs/detectors.md shows it. A world that is there is not drawn again.

    Examples:
        roibeam toyworld world/ --num-images 2000
        roibeam toyworld world/ --num-images 2000 --perfect-store perfect/
    """
    from roibeam.pipelines.toyworld.perfect_store import PerfectStore
    from roibeam.pipelines.toyworld.write import write_world

    faults = {"noise": noise, "missed": missed, "doubled": doubled, "box_jitter": box_jitter}
    perception = _perception({name: value for name, value in faults.items() if value is not None}, perfect_store)
    asked = None if perfect_store is None else PerfectStore(perfect_store, out, perception, seed, num_images)
    if asked is not None:
        asked.check()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    done = write_world(out, seed=seed, num_images=num_images, workers=cores if workers is None else workers)
    written = None if asked is None else asked.write()
    if as_json:
        summary = {"out": str(out), "drawn": done.drawn, "seconds": round(done.seconds, 3), "world": done.manifest}
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
    if written is not None:
        now = f"{written.written:,} written now, in {written.seconds:.0f} s" if written.written else "all there already"
        typer.echo(f"{perfect_store}: {num_images:,} pictures, {written.manifest.num_regions:,} regions, {now}")
        typer.echo(f"  seen with {perception.words}")


def _perception(faults: dict[str, float], store: str | None) -> Perception:
    from roibeam.pipelines.toyworld.perfect_perception import Perception

    if faults and store is None:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in faults)
        raise ValueError(f"{names}: only with --perfect-store STORE, which names the store to write")
    return Perception(**faults)


def _lines(out: Path, num_images: int, done: WorldSummary) -> Iterator[str]:
    from roibeam.pipelines.toyworld.splits import PLACES
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
