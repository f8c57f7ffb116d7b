"""`roibeam detector`: detectors are trained and judged."""

from pathlib import Path
from typing import Annotated, Any

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.help_pages import HelpedCommand, HelpedGroup
from roibeam.pipelines.cli.request_command import request_command
from roibeam.pipelines.common.console.request_options import (
    DETECTOR,
    INPUT,
    MODEL,
    Device,
    Json,
    Threads,
    argument,
    option,
)
from roibeam.pipelines.training.requests import DetectorTrainRequest, LabelledPhotosOptions

detector_app = typer.Typer(cls=HelpedGroup, help="Detectors: train and evaluate.", rich_markup_mode=None)


@detector_app.command("train", cls=HelpedCommand)
@request_command
def train_command(
    out: Annotated[Path, argument("OUT", "Run folder to write.")], request: DetectorTrainRequest, json: Json = False
) -> None:
    """Trains a detector on photos with labelled objects.

    It is a Faster R-CNN that also predicts attributes. OUT/checkpoints/STEP/model is what `roibeam extract --detector`
    takes. torchrun runs it on several GPUs, as for pretrain.

    Examples:
        roibeam detector train run/ --labels vg/train.txt --photos vg/images
        roibeam detector train run/ --labels coco/instances_train2017.json
    """
    from roibeam.pipelines.cli.figure_table import origin_facts, origin_lines, print_dry_run, run_folder_lines
    from roibeam.pipelines.training.detector.train_request import train_requested_detector

    if request.dry_run:
        print_dry_run(lambda folder: train_requested_detector(request, folder), as_json=json)
        return
    trained = train_requested_detector(request, out)
    from roibeam.pipelines.common.compute import is_main_process
    from roibeam.pipelines.common.statistics.verdict import sentence_of

    if not is_main_process():
        return
    result, model = trained.result, trained.folder
    if json:
        facts: dict[str, Any] = {
            "run": str(out),
            "detector": str(model),
            "step": result.step,
            "seconds": round(result.seconds, 1),
        }
        facts |= {"device": result.device, **origin_facts(out)}
        best = None if result.best is None else str(result.best)
        facts |= {"last": result.last, "best": best, "evaluation": result.evaluation}
        facts["figures"] = [figure.to_json() for figure in result.evaluation.figures] if result.evaluation else []
        typer.echo(json_line({**facts, "labels": trained.photos.facts()}))
        return
    typer.echo(f"{result.done()}, last loss {result.last['loss']:.4f}")
    typer.echo(origin_lines(out))
    if result.evaluation is not None:
        typer.echo(f"on {request.val_labels}: {', '.join(map(sentence_of, result.evaluation.figures))}")
    typer.echo(f"\n{out}/\n  {model.relative_to(out)}/   the detector")
    typer.echo("\n".join(run_folder_lines(out, result)))
    chosen = model if result.best is None else result.best / "model"
    typer.echo(f"Next: roibeam extract PHOTOS STORE --detector {chosen}")


@detector_app.command("evaluate", cls=HelpedCommand)
@request_command
def evaluate_command(
    detector: Annotated[str, argument("DETECTOR", "Folder of a detector (model of a checkpoint), or toy.")],
    labels: LabelledPhotosOptions,
    max_images: Annotated[int | None, option(
        "Use at most N images, the first ones.", "N", INPUT, min=1, default="all",
    )] = None,
    settings: Annotated[list[str] | None, option(
        "Change one setting, as section.field=value; may be given several times. Section: conventions, in place of the "
        "detector's.", "FIELD=VALUE", DETECTOR, "--set",
    )] = None,
    nms_iou: Annotated[float, option(
        "Boxes of one class that overlap more than this suppress each other. detectron2's figures use 0.5.",
        "SHARE", MODEL, min=0, max=1,
    )] = 0.3,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Evaluates a detector on photos with labelled objects.

    It measures mAP as defined for Visual Genome and for COCO, attributes, calibration, and recall of the kept regions.

    Examples:
        roibeam detector evaluate toy --labels world/visual_genome/test.txt
    """
    from roibeam.extraction.weights.detector_choice import read_detector_folder
    from roibeam.messages import plural
    from roibeam.pipelines.common.compute import check_device, choose_device
    from roibeam.pipelines.common.console.command_files import NamedFiles
    from roibeam.pipelines.common.console.overrides import apply_overrides
    from roibeam.pipelines.data.labelled_photos import look_at_photos, open_labelled_photos
    from roibeam.pipelines.training.run_folder.folder import note_best_detector

    named = NamedFiles()
    folder = named.look(lambda: read_detector_folder(detector))
    for name, path in (("--labels", labels.labels), ("--photos", labels.photos), ("--vocab", labels.vocab)):
        named.need(name, path)
    named.look(lambda: check_device(device))
    named.check()
    assert folder is not None
    note_best_detector(detector)
    conventions = apply_overrides({"conventions": folder.conventions}, settings or ())["conventions"]
    listed = open_labelled_photos(labels.labels, image_root=labels.photos, vocab=labels.vocab)
    labelled = look_at_photos(listed.once(max_images), conventions.exif_orientation, is_needed=lambda _image: True)
    if listed.num_repeats:
        typer.echo(
            f"note: {plural(listed.num_repeats, 'row')} of {labels.labels} name a photo again; it counts once", err=True
        )
    for note in labelled.notes():
        typer.echo(f"note: {note}", err=True)
    # Torch is imported only when the names are in order.
    import torch

    from roibeam.pipelines.training.detector.evaluation import evaluate_folder
    from roibeam.pipelines.training.detector.report import report_lines

    if threads is not None:
        torch.set_num_threads(threads)
    chosen = choose_device(device, threads=threads)
    typer.echo(chosen.words, err=True)
    report = evaluate_folder(detector, labelled, device=chosen.name, nms_iou=nms_iou, conventions=conventions)
    if as_json:
        typer.echo(
            json_line(
                {
                    "detector": detector,
                    "labels": labels.labels,
                    "device": chosen.name,
                    **report.as_json(),
                    **labelled.facts(),
                },
                event="evaluation",
            )
        )
        return
    typer.echo("\n".join(report_lines(report)))
