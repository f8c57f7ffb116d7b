"""`roibeam look`: what a detector finds in one photo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.options import CONVENTIONS, DETECTOR_SET, JSON, PRESET_NAMES, SELECTION, WEIGHTS
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option
from roibeam.pipelines.common.console.progress import waiting


def look_command(
    photo: Annotated[Path, argument("PHOTO", "A JPEG, PNG or another image file.")],
    detector: Annotated[
        str | None, option("detector", default="toy; with --weights or --preset that of the preset")
    ] = None,
    preset: Annotated[str | None, option("preset", values=PRESET_NAMES)] = None,
    weights: Annotated[str | None, WEIGHTS] = None,
    vocab: Annotated[str | None, option("vocab", default="those of the detector's folder, else none")] = None,
    conventions: Annotated[str | None, CONVENTIONS] = None,
    selection: Annotated[str | None, SELECTION] = None,
    settings: Annotated[list[str] | None, DETECTOR_SET] = None,
    max_regions: Annotated[int, option("max-regions", "They are drawn and listed.")] = 10,
    device: Annotated[str, option("device")] = "auto",
    out: Annotated[
        Path | None,
        option("out", "A .png file; an older picture of `roibeam look` is replaced.", default="NAME.regions.png, here"),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Finds the regions of one photo, draws the best ones and lists them.

    `roibeam store show --draw` draws the regions that a store holds.

    Examples:
        roibeam look photo.jpg
        roibeam look photo.jpg --weights vg.pkl --vocab vg --out regions.png
    """
    from roibeam.pipelines.analysis.look import look_at_photo
    from roibeam.pipelines.extract.request import RequestedDetector

    asked = RequestedDetector(
        detector or ("toy" if weights is None and preset is None else None), preset=preset, weights=weights,
        conventions=conventions, selection=selection, vocabulary=vocab, settings=tuple(settings or ()), device=device,
    )  # fmt: skip
    with waiting("finding regions"):
        done = look_at_photo(photo, out, asked, num_regions=max_regions)
    if as_json:
        facts = {"picture": str(done.picture), "note": done.note or None, "device": done.device.name}
        typer.echo(json_line({"photo": str(photo), **done.view.to_json(), **facts}))
        return
    typer.echo(done.device.words, err=True)
    typer.echo("\n".join(done.view.lines()))
    if done.note:
        typer.echo(f"note: {done.note}")
    typer.echo(f"{done.picture}   the photo with {'its regions' if done.view.is_whole else 'the best regions'}")
