"""`roibeam leaks`: does a source or store hold images that results are reported on?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roibeam.features.counted import counted
from roibeam.pipelines.cli.options import CAPTION_COLUMN, HELD_OUT_NEEDED, ID_RULE, JSON, NUMBERS_OF
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option


def leaks_command(
    images: Annotated[
        str, argument("SOURCE_OR_STORE", "What extract takes, a store's folder, or that of a training run.")
    ],
    held_out: Annotated[list[str], HELD_OUT_NEEDED],
    photos: Annotated[
        str | None,
        option("photos", "Or a URL. For a list or annotation file.", default="found near that file"),
    ] = None,
    numbers_of: Annotated[str | None, NUMBERS_OF] = None,
    id_rule: Annotated[str, ID_RULE] = "no-extension",
    caption_column: Annotated[str, CAPTION_COLUMN] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Tells which images are test images of a benchmark.

    Of a training run it tells which of them its model was trained on, runs that it started from included. The exit
    code is 1 if there are any.

    Examples:
        roibeam leaks store/ --held-out karpathy=dataset_coco.json
        roibeam leaks run/ --held-out vqa=vqa/ --held-out 'refcoco+=refs(unc).p'
    """
    from roibeam.pipelines.data.held_out import find_leaks
    from roibeam.pipelines.training.run_folder.files import CHECKPOINTS
    from roibeam.pipelines.training.run_folder.trained_images import is_told, trained_report

    if is_told(Path(images)) or (Path(images) / CHECKPOINTS).is_dir():
        report = trained_report(Path(images), held_out)
    else:
        report = find_leaks(
            images, held_out, image_root=photos, id_rule=id_rule, images_of=numbers_of, caption_column=caption_column
        )
    if as_json:
        typer.echo(json_line({"source": images, **report.to_json()}))
    else:
        typer.echo("\n".join(report.lines()))
        typer.echo(f"{images}: {len(report.leaked):,} of {counted(report.images, 'image')} held out")
    if report.leaked:
        raise typer.Exit(1)
