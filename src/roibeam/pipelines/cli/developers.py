"""Commands that few users need: `roibeam conformance`, `roibeam leaks`, `roibeam worker-pool`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roibeam.messages import plural
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.option_names import argument, option
from roibeam.pipelines.cli.options import CAPTION_COLUMN, HELD_OUT_NEEDED, ID_RULE, JSON, NUMBERS_OF


def conformance_command(
    folder: Annotated[Path | None, argument("DIR", "Reference arrays.")] = None,
    only: Annotated[str | None, option("only")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Says where the comparison with reference arrays is now: `python tests/conformance`, in a clone.

    Examples:
        roibeam conformance
    """
    raise ValueError(
        "the reference arrays are compared in a clone of roibeam's repository, by python tests/conformance [DIR] "
        "[--only GLOB] [--json]; see docs/fidelity.md"
    )


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
    from roibeam.pipelines.training.run_folder.training_data import has_trained_images, trained_report

    if has_trained_images(Path(images)) or (Path(images) / CHECKPOINTS).is_dir():
        report = trained_report(Path(images), held_out)
    else:
        report = find_leaks(
            images, held_out, image_root=photos, id_rule=id_rule, images_of=numbers_of, caption_column=caption_column
        )
    if as_json:
        typer.echo(json_line({"source": images, **report.to_json()}))
    else:
        typer.echo("\n".join(report.lines()))
        typer.echo(f"{images}: {len(report.leaked):,} of {plural(report.images, 'image')} held out")
    if report.leaked:
        raise typer.Exit(1)


PIPELINE = "roibeam.pipelines.extract.beam_extraction"  # by its name: the pool does not need torch, its workers do


def worker_pool_command(
    port: Annotated[int, option("port")] = 50000,
    host: Annotated[
        str, option("host", "One that other machines reach needs a token; one pool on each machine needs none such.")
    ] = "localhost",
    pool_token_file: Annotated[
        Path | None, option("pool-token-file", "Without one, every user of this machine can run code as you.")
    ] = None,
) -> None:
    """Starts Beam workers on this machine, for Flink or Spark.

    Start one beside each TaskManager, with the same Python and the same roibeam. It runs until Ctrl-C.

    Examples:
        roibeam worker-pool --pool-token-file token
    """
    from roibeam.pipelines.extract.runners.pool_token import read_token
    from roibeam.pipelines.extract.runners.worker_pool import serve_worker_pool

    token = None if pool_token_file is None else read_token(pool_token_file)
    serve_worker_pool(PIPELINE, host, port, token)
