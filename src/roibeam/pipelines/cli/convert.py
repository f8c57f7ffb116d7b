"""`roibeam convert`: a published weight file of a detector or a model as a file of another kind."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import JSON_OUTPUT
from roibeam.pipelines.foundation.files.named_files import check_named_files


def convert_command(
    weights: Annotated[
        str,
        typer.Argument(
            help="A detector's file of any family (Hugging Face, detectron2 .pkl, MILVLG .pth, Caffe .caffemodel, "
            "VL-BERT .model), a model's official checkpoint or our folder of one; or hf:<repo>, "
            "https://...[#sha256=<hex>], gs://..."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            help="File to write: .safetensors, .pkl, .bin, .pth or .model; with --to roibeam or detector a folder. "
            "Must not be there yet."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            help="Of a detector: safetensors, detectron2, hf, milvlg or vlbert [default: what the suffix of OUT says]. "
            "Of a model: roibeam (our folder) or official (its authors' names); of a run end to end with --labels also "
            "detector: a detector's folder."
        ),
    ] = None,
    detector: Annotated[
        str, typer.Option(help="Network sizes that the file must have: vg-r101-c4 (Visual Genome, true size) or small.")
    ] = "vg-r101-c4",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="detector.field=value, such as detector.num_classes=1000.")
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", help="Official JSON configuration of a model, where its sizes are not the published ones."
        ),
    ] = None,
    as_json: Annotated[bool, JSON_OUTPUT] = False,
) -> None:
    """Converts a weight file, checks that nothing is missing or damaged, and reads the result back.

    With --to roibeam or official: checkpoints of VL-BERT, ViLBERT, VisualBERT and InterBERT (docs/checkpoints.md).
    safetensors has Hugging Face's names and layout. docs/weights.md tells what is converted, and what is lost (nothing,
    but for the last digit of box deltas where their scale changes).
    """
    from roibeam.pipelines.model_files.converted_output import DIRECTIONS

    if to in DIRECTIONS:
        _convert_model(weights, out, to, config_file, settings, as_json)
        return
    if config_file is not None:
        raise ValueError("--config is for a model's checkpoint; say --to roibeam or --to official too")
    check_named_files([("WEIGHTS", weights)])
    from roibeam.extraction.network.config import CONFIGS
    from roibeam.extraction.weights.file_formats import check_written_file, format_named
    from roibeam.pipelines.foundation.overrides import apply_overrides

    to = format_named(to, out)
    if detector not in CONFIGS:
        raise ValueError(f"--detector {detector!r} is unknown; there are {', '.join(CONFIGS)}")
    config = apply_overrides({"detector": CONFIGS[detector]}, settings or [])["detector"]
    check_written_file(out, to)
    from roibeam.extraction.weights.conversion import convert_weights  # torch: after names and files were looked at

    done = convert_weights(weights, out, to=to, config=config)
    if as_json:
        typer.echo(json_line({"weights": weights, "out": str(out), "format": to, **asdict(done)}))
        return
    exact = done.digest_before == done.digest_after
    typer.echo(f"{weights}: {done.family}; {', '.join(done.changes) or 'nothing to convert'}")
    typer.echo(f"{out}: {to}, {done.num_tensors} tensors, read back and compared")
    typer.echo(f"  weights before {done.digest_before}")
    typer.echo(f"  weights after  {done.digest_after} ({_difference(done.largest_change, exact)})")


def _convert_model(
    weights: str, out: Path, to: str, config_file: Path | None, settings: list[str] | None, as_json: bool
) -> None:
    from roibeam.pipelines.model_files.converted_output import check_converted_output

    if settings:
        raise ValueError("--set is for a detector's sizes; those of a model come from its file, or from --config")
    check_named_files([("WEIGHTS", weights), ("--config", config_file)])
    check_converted_output(out, to)
    from transformers.utils import logging as transformers_logging

    from roibeam.pipelines.model_files.model_conversion import convert_model

    transformers_logging.disable_progress_bar()  # of a second
    done = convert_model(weights, out, to=to, options=config_file)
    if as_json:
        typer.echo(json_line({"weights": weights, "out": str(out), "format": to, **asdict(done)}))
        return
    typer.echo(f"{weights}: {done.model}; {', '.join(done.changes) or 'nothing left out'}")
    typer.echo(f"{out}: {to}, {done.num_tensors} tensors, read back and compared (equal)")


def _difference(largest_change: float, exact: bool) -> str:
    return "equal" if exact else f"box deltas rounded, by at most {largest_change:.1e} of the largest"
