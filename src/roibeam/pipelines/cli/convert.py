"""`roibeam convert`: a published weight file of a detector or a model as a file of another kind."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.common.console.command_files import check_named_files
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.console.request_options import DETECTOR, MODEL, Json, argument, option
from roibeam.pipelines.training.requests import named_step


def convert_command(
    weights: Annotated[str, argument(
        "WEIGHTS",
        "Weight file of a detector (Hugging Face, detectron2 .pkl, MILVLG .pth, Caffe .caffemodel, VL-BERT .model), "
        "checkpoint of a model, or a run's folder; a path or a URL.", convert=named_step,
    )],
    out: Annotated[Path, argument("OUT", "File or folder to write. It must not exist yet.")],
    to: Annotated[str | None, option(
        "Format to write. For a detector: safetensors, detectron2, hf, milvlg or vlbert. For a model: roibeam (a "
        "folder), official (its authors' names, with its settings in OUT.json), or detector (that of a run with "
        "--labels).", "FORMAT", default="by the suffix of OUT",
    )] = None,
    detector: Annotated[str, option(
        "toy, a run of `roibeam detector train`, or a network: vg-r101-c4-600, vinvl-x152-c4, r2c-r50, others. The "
        "file must have the sizes of this network.", "NAME", DETECTOR,
    )] = "vg-r101-c4",
    settings: Annotated[list[str] | None, option(
        "Change one setting, as section.field=value; may be given several times. Section: detector.",
        "FIELD=VALUE", DETECTOR, "--set",
    )] = None,
    config_file: Annotated[Path | None, option(
        "JSON with the settings of an official checkpoint: its authors' own, or FILE.json of convert --to official.",
        "FILE", MODEL, "--config", advanced=True,
    )] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Converts a weight file to another format, and checks the result.

    docs/detectors.md lists the formats of detectors, docs/models.md those of models.

    Examples:
        roibeam convert faster_rcnn.pkl vg.safetensors
        roibeam convert vl-bert-base.model vlbert/ --to roibeam
    """
    from roibeam.pipelines.training.model_files.model_folder import DIRECTIONS

    if to in DIRECTIONS:
        _convert_model(weights, out, to, config_file, settings, as_json)
        return
    if config_file is not None:
        raise ValueError("--config is for a model's checkpoint; give --to roibeam or --to official, too")
    check_named_files([("WEIGHTS", weights)])
    from roibeam.extraction.network.config import CONFIGS
    from roibeam.extraction.weights.sources import check_weight_file, check_written_file, format_named
    from roibeam.pipelines.common.console.overrides import apply_overrides

    to = format_named(to, out)
    if detector not in CONFIGS:
        raise ValueError(f"--detector {detector!r} is unknown; there are {', '.join(CONFIGS)}")
    config = apply_overrides({"detector": CONFIGS[detector]}, settings or [])["detector"]
    check_written_file(out, to)
    check_weight_file(weights)
    with waiting("converting"):
        from roibeam.extraction.weights.loading import convert_weights  # torch: after names and files were looked at

        done = convert_weights(weights, out, to=to, config=config)
    if as_json:
        typer.echo(json_line({"weights": weights, "out": str(out), "format": to, **asdict(done)}))
        return
    exact = done.digest_before == done.digest_after
    typer.echo(f"{weights}: {done.family}; {', '.join(done.changes) or 'nothing to convert'}")
    typer.echo(f"{out}: {to}, {done.num_tensors} tensors, read back and compared")
    typer.echo(f"  weights before {done.digest_before}")
    rounded = f"box deltas rounded, by at most {done.largest_change:.1e} of the largest"
    typer.echo(f"  weights after  {done.digest_after} ({'equal' if exact else rounded})")


def _convert_model(
    weights: str, out: Path, to: str, config_file: Path | None, settings: list[str] | None, as_json: bool
) -> None:
    from roibeam.pipelines.training.model_files.model_folder import check_converted_output, check_model_files

    if settings:
        raise ValueError("--set is for a detector's sizes; those of a model come from its file, or from --config")
    check_named_files([("WEIGHTS", weights), ("--config", config_file)])
    check_converted_output(out, to)
    check_model_files(weights)
    from transformers.utils import logging as transformers_logging

    from roibeam.pipelines.training.model_files.model_conversion import convert_model

    transformers_logging.disable_progress_bar()  # of a second
    with waiting("converting"):
        done = convert_model(weights, out, to=to, options=config_file)
    if as_json:
        fields = asdict(done) | {"settings": None if done.settings is None else str(done.settings)}
        typer.echo(json_line({"weights": weights, "out": str(out), "format": to, **fields}))
        return
    typer.echo(f"{weights}: {done.model}; {', '.join(done.changes) or 'nothing left out'}")
    typer.echo(f"{out}: {to}, {done.num_tensors} tensors, read back and compared (equal)")
    if done.settings is not None:
        alone = f" (here {', '.join(done.settings_alone)})" if done.settings_alone else ""
        typer.echo(f"{done.settings}: settings that the file does not show{alone}; roibeam reads it with the file")
