"""`roibeam leaks`: does a source or store hold images that results are reported on?"""

from __future__ import annotations

from typing import Annotated

import typer

from roibeam.features.counted import counted
from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import HELD_OUT, IMAGES_OF, JSON_OUTPUT


def leaks_command(
    images: Annotated[str, typer.Argument(metavar="SOURCE_OR_STORE", help="What extract takes, or a store's folder.")],
    held_out: Annotated[list[str], HELD_OUT],
    images_of: Annotated[str | None, IMAGES_OF] = None,
    image_root: Annotated[str | None, typer.Option(help="As in extract.")] = None,
    id_rule: Annotated[str, typer.Option(help="As in extract: no-extension or with-extension.")] = "no-extension",
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Which images of a source or store are held out: those that results are reported on. Exit 1 if there are any."""
    from roibeam.pipelines.sources.held_out import find_leaks

    report = find_leaks(images, held_out, image_root=image_root, id_rule=id_rule, images_of=images_of)
    if as_json:
        typer.echo(json_line({"source": images, **report.to_json()}))
    else:
        typer.echo("\n".join(report.lines()))
        typer.echo(f"{images}: {len(report.leaked):,} of {counted(report.images, 'image')} held out")
    if report.leaked:
        raise typer.Exit(1)
