"""`roibeam look`: what a detector finds in one photo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import CONVENTIONS, DETECTOR_SET, JSON_LINE, PRESET, SELECTION, VOCAB, WEIGHTS


def look_command(
    photo: Annotated[Path, typer.Argument(help="Photo: a JPEG, PNG or another image file.")],
    out: Annotated[
        Path | None,
        typer.Argument(
            help="Picture to write, a .png file; takes the place of an older one of `roibeam look`, of no other file "
            "[default: NAME.regions.png in the current folder].",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[str | None, PRESET] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            help="As in extract [default: toy, which comes with the project and knows the toy world; with --weights "
            "or --preset that of the preset].",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
    conventions: Annotated[str | None, CONVENTIONS] = None,
    selection: Annotated[str | None, SELECTION] = None,
    vocab: Annotated[str | None, VOCAB] = None,
    settings: Annotated[list[str] | None, DETECTOR_SET] = None,
    device: Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu, cuda or cuda:<n>.")] = "auto",
    regions: Annotated[int, typer.Option(min=1, help="Regions to draw and to list, best first.")] = 10,
    as_json: Annotated[bool, JSON_LINE] = False,
) -> None:
    """Finds the regions of one photo, draws the best of them and lists them: box, class, score.

    `roibeam store show --draw` draws what a store holds.
    """
    from roibeam.pipelines.analysis.look import look_at_photo
    from roibeam.pipelines.extract.request import RequestedDetector

    asked = RequestedDetector(
        detector or ("toy" if weights is None and preset is None else None), preset=preset, weights=weights,
        conventions=conventions, selection=selection, vocabulary=vocab, settings=tuple(settings or ()), device=device,
    )  # fmt: skip
    done = look_at_photo(photo, out, asked, num_regions=regions)
    if as_json:
        facts = {"picture": str(done.picture), "note": done.note or None, "device": done.device}
        typer.echo(json_line({"photo": str(photo), **done.view.to_json(), **facts}))
        return
    typer.echo("\n".join(done.view.lines()))
    if done.note:
        typer.echo(f"note: {done.note}")
    typer.echo(f"{done.picture}   the photo with {'its regions' if done.view.is_whole else 'the best regions'}")
