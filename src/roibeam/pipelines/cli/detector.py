"""`roibeam detector`: detectors are trained and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import JSON_LINE, RESUME, run_folder_lines

if TYPE_CHECKING:
    from roibeam.pipelines.detector.photos import LabelledPhotos

detector_app = typer.Typer(help="Train and judge detectors.", no_args_is_help=True)

_LABELS = "Labels: instances .json of COCO, or a split's .txt of Visual Genome with its xml files beside it."
_IMAGES = "Folder of the photos [default: that of the labels]."
_VOCAB = "Folder of objects_vocab.txt and attributes_vocab.txt, for Visual Genome [default: that of the labels]."
_DEVICE = "auto (an accelerator if there is one) or cpu."


@detector_app.command("train")
def train_command(
    out: Annotated[Path, typer.Argument(help="Run folder to write: config, log, checkpoints with the detector.")],
    labels: Annotated[str, typer.Option(help=_LABELS)],
    images: Annotated[str | None, typer.Option(help=_IMAGES)] = None,
    vocab: Annotated[str | None, typer.Option(help=_VOCAB)] = None,
    detector: Annotated[
        str,
        typer.Option(help="Network sizes: vg-r101-c4, vg-r101-c4-600, toy or small; classes are those of the labels."),
    ] = "vg-r101-c4",
    conventions: Annotated[str, typer.Option(help="Whose arithmetic: hf, d2, caffe, milvlg or vlbert-e2e.")] = "hf",
    weights: Annotated[
        str | None, typer.Option(help="Start from a whole detector of these classes: file, URL or hf:<repo>.")
    ] = None,
    resnet: Annotated[
        str | None, typer.Option(help="Start from the ResNet of this file only (ImageNet's, another detector's).")
    ] = None,
    frozen_stages: Annotated[
        str | None, typer.Option(help='Without gradients, such as "1,2" [default: 1,2 with a file, none from scratch].')
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 90_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Photos per step and process.")] = 2,
    learning_rate: Annotated[
        float, typer.Option(help="Of SGD at its peak; never scaled by batch or processes.")
    ] = 0.0025,
    warmup_steps: Annotated[int, typer.Option(min=0, help="Steps of linear warm-up.")] = 1000,
    decay_steps: Annotated[
        str | None, typer.Option(help="Steps after which the rate falls to a tenth [default: 2/3 and 8/9 of --steps].")
    ] = None,
    device: Annotated[str, typer.Option(help=_DEVICE)] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads [default: torch's choice].")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order, sizes and sampled regions.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="section.field=value; sections: train, photos, sampling, losses, detector, conventions.",
        ),
    ] = None,
    resume: Annotated[bool | None, RESUME] = None,
    as_json: Annotated[bool, JSON_LINE] = False,
) -> None:
    """Trains a Faster R-CNN with an attribute head on labelled photos.

    The folder model of a checkpoint is what `roibeam extract --detector` and `roibeam detector evaluate` take. On
    several GPUs, or CPU processes: torchrun --no-python --nproc-per-node <n> roibeam detector train ...
    """
    from roibeam.pipelines.detector.train_request import DetectorTrainRequest, train_requested_detector

    request = DetectorTrainRequest(
        labels=labels, images=images, vocab=vocab, detector=detector, conventions=conventions, weights=weights,
        resnet=resnet, frozen_stages=_numbers("frozen-stages", frozen_stages), steps=steps, batch_size=batch_size,
        learning_rate=learning_rate, warmup_steps=warmup_steps, decay_steps=_numbers("decay-steps", decay_steps),
        device=device, threads=threads, seed=seed, settings=tuple(settings or ()),
        resume="auto" if resume is None else resume,
    )  # fmt: skip
    trained = train_requested_detector(request, out)
    from roibeam.pipelines.training.loop import is_main_process  # torch: after the files were looked at

    if not is_main_process():
        return
    result, model = trained.result, trained.folder
    if as_json:
        facts = {"run": str(out), "detector": str(model), "step": result.step, "seconds": round(result.seconds, 1)}
        best = None if result.best is None else str(result.best)
        typer.echo(json_line({**facts, "last": result.last, "best": best}))
        return
    _echo_left_out(trained.photos)
    typer.echo(f"{result.step:,} steps in {result.seconds:.0f} s, last loss {result.last['loss']:.4f}")
    use = "the detector, for roibeam detector evaluate and roibeam extract --detector"
    typer.echo(f"\n{out}/\n  {model.relative_to(out)}/   {use}")
    typer.echo("\n".join(run_folder_lines(out, result)))


@detector_app.command("evaluate")
def evaluate_command(
    detector: Annotated[str, typer.Argument(help="Detector's folder (the folder model of a checkpoint), or toy.")],
    labels: Annotated[str, typer.Option(help=_LABELS)],
    images: Annotated[str | None, typer.Option(help=_IMAGES)] = None,
    vocab: Annotated[str | None, typer.Option(help=_VOCAB)] = None,
    nms_iou: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Boxes of one class suppress each other above it; detectron2's numbers are made at 0.5."
        ),
    ] = 0.3,
    max_images: Annotated[int | None, typer.Option(min=1, help="Judge the first so many photos only.")] = None,
    device: Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu, cuda or cuda:<n>.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads [default: torch's choice].")] = None,
    as_json: Annotated[bool, JSON_LINE] = False,
) -> None:
    """Judges a detector: mAP as Visual Genome's and as COCO's, attributes, calibration, recall of the kept regions."""
    from roibeam.extraction.choice.detector_folder import read_detector_folder
    from roibeam.pipelines.detector.photos import open_labelled_photos
    from roibeam.pipelines.foundation.files.named_files import check_named_files

    check_named_files([("--labels", labels), ("--images", images), ("--vocab", vocab)])
    read_detector_folder(detector)
    photos = open_labelled_photos(labels, image_root=images, vocab=vocab)
    # Torch comes now, when nothing is wrong with the names.
    import torch

    from roibeam.pipelines.detector.folder_evaluation import evaluate_folder
    from roibeam.pipelines.detector.report import report_lines
    from roibeam.pipelines.foundation.device_choice import choose_device

    if threads is not None:
        torch.set_num_threads(threads)
    chosen, words = choose_device(device)
    typer.echo(words, err=True)
    report = evaluate_folder(detector, photos, device=chosen, nms_iou=nms_iou, max_images=max_images)
    if as_json:
        typer.echo(json_line({"detector": detector, "labels": labels, **report.as_json()}, event="evaluation"))
        return
    _echo_left_out(photos)
    typer.echo("\n".join(report_lines(report)))


def _numbers(what: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"--{what} {text!r}: expected whole numbers with commas between, such as 1,2") from None


def _echo_left_out(photos: LabelledPhotos) -> None:
    for reason, count in photos.left_out.items():
        typer.echo(f"note: left out of the labels: {count:,} x {reason}", err=True)
