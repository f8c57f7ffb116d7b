"""Commands that few users need: `roibeam conformance`, `roibeam leaks`, `roibeam worker-pool`."""

from pathlib import Path
from typing import Annotated

import typer

from roibeam.messages import plural
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.common.console.request_options import (
    INPUT,
    NETWORK,
    QUESTION,
    CaptionColumn,
    IdRule,
    Json,
    argument,
    option,
)
from roibeam.pipelines.data.compatibility import HeldOutRules, NumbersOf


def conformance_command(
    folder: Annotated[Path | None, argument("DIR", "Reference arrays.")] = None,
    only: Annotated[str | None, option(
        "Run the cases whose family, name or file fits this pattern.", "PATTERN", QUESTION,
    )] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Prints how to compare with reference arrays: `python tests/conformance`, in a clone.

    Examples:
        roibeam conformance
    """
    del folder, only, as_json  # they are accepted, so that any call of the release before gets this answer
    raise ValueError(
        "the reference arrays are compared in a clone of roibeam's repository, by python tests/conformance [DIR] "
        "[--only GLOB] [--json]; see docs/fidelity.md"
    )


def leaks_command(
    images: Annotated[str, argument(
        "SOURCE_OR_STORE", "Source as in `roibeam extract`, or folder of a store or of a training run.",
    )],
    held_out: HeldOutRules,
    photos: Annotated[str | None, option(
        "Folder of the photos, or a URL. For a list or annotation file.", "DIR", INPUT, default="found near it",
    )] = None,
    numbers_of: NumbersOf = None,
    id_rule: IdRule = "no-extension",
    caption_column: CaptionColumn = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Finds images that are test images of a benchmark.

    In a training run, it finds those on which its model was trained, or a model that it started from. The exit code is
    1 if there are any.

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
    port: Annotated[int, option("Port at which runners request workers.", "N", NETWORK, min=1, max=65535)] = 50000,
    host: Annotated[str, option(
        "Address to listen at. An address that other machines reach needs a token; one pool on each machine needs no "
        "such address.", "ADDRESS", NETWORK,
    )] = "localhost",
    pool_token_file: Annotated[Path | None, option(
        "File with the token of the worker pools. Without one, every user of this machine can run code as you.",
        "FILE", NETWORK,
    )] = None,
) -> None:  # fmt: skip
    """Starts Beam workers on this machine, for Flink or Spark.

    Start one beside each TaskManager, with the same Python and the same roibeam. It runs until Ctrl-C.

    Examples:
        roibeam worker-pool --pool-token-file token
    """
    from roibeam.pipelines.extract.runners.pool_token import read_token
    from roibeam.pipelines.extract.runners.worker_pool import serve_worker_pool

    token = None if pool_token_file is None else read_token(pool_token_file)
    serve_worker_pool(PIPELINE, host, port, token)
