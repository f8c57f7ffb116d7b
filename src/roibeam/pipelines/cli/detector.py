"""`roibeam detector`: detectors are trained and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.cli.help_pages import HelpedCommand, HelpedGroup
from roibeam.pipelines.cli.option_names import INPUT, MODEL, argument, option
from roibeam.pipelines.cli.options import (
    JSON,
    RESUME,
    RESUME_FROM,
    THREADS,
    origin_facts,
    origin_lines,
    precision_setting,
    resume_choice,
    run_folder_lines,
)

detector_app = typer.Typer(cls=HelpedGroup, help="Detectors: trained and judged.", rich_markup_mode=None)

_LABELS = option("labels", group=INPUT)
_PHOTOS = option("photos", default="the folder of the labels")
_VOCAB = option("vocab", "For labels of Visual Genome.", group=INPUT, default="the folder of the labels")


@detector_app.command("train", cls=HelpedCommand)
def train_command(
    out: Annotated[Path, argument("OUT", "Run folder to write.")],
    labels: Annotated[str, _LABELS],
    photos: Annotated[str | None, _PHOTOS] = None,
    vocab: Annotated[str | None, _VOCAB] = None,
    val_labels: Annotated[str | None, option("val-labels", default="none")] = None,
    val_photos: Annotated[str | None, option("val-photos", default="the folder of --val-labels")] = None,
    detector: Annotated[
        str | None,
        option("detector", "Here: sizes; toy for those of that one.", default="those of --weights, or vg-r101-c4"),
    ] = None,
    conventions: Annotated[str | None, option("conventions", default="those of --weights, or hf")] = None,
    weights: Annotated[
        str | None,
        option("weights", "Start from a file of these classes, or a detector's folder of any.", default="new weights"),
    ] = None,
    resnet: Annotated[str | None, option("resnet", "Such as ImageNet's, or another detector's.")] = None,
    frozen_stages: Annotated[
        str | None, option("frozen-stages", default="1,2 with a file, none without", is_advanced=True)
    ] = None,
    steps: Annotated[int, option("steps")] = 90_000,
    batch_size: Annotated[int, option("batch-size", "Here: photos.")] = 2,
    learning_rate: Annotated[float, option("learning-rate", "Not scaled by batch or processes.")] = 0.0025,
    warmup_steps: Annotated[
        int | None, option("warmup-steps", default="1000, at most a third of --steps", is_advanced=True)
    ] = None,
    decay_steps: Annotated[
        str | None, option("decay-steps", default="2/3 and 8/9 of --steps", is_advanced=True)
    ] = None,
    seed: Annotated[int, option("seed", is_advanced=True)] = 0,
    settings: Annotated[
        list[str] | None, option("set", "Sections: train, photos, sampling, losses, detector, conventions.")
    ] = None,
    resume: Annotated[bool | None, RESUME] = None,
    resume_from: Annotated[str | None, RESUME_FROM] = None,
    device: Annotated[str, option("device")] = "auto",
    precision: Annotated[str | None, option("precision", values="float32, bf16 or fp16", default="float32")] = None,
    threads: Annotated[int | None, THREADS] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Trains a detector on photos with labelled objects.

    It is a Faster R-CNN that also predicts attributes. OUT/checkpoints/STEP/model is what `roibeam extract --detector`
    takes. torchrun starts it on several GPUs, as it does for pretrain.

    Examples:
        roibeam detector train run/ --labels vg/train.txt --photos vg/images
        roibeam detector train run/ --labels coco/instances_train2017.json
    """
    from roibeam.pipelines.training.detector.train_request import DetectorTrainRequest, train_requested_detector

    request = DetectorTrainRequest(
        labels=labels, images=photos, vocab=vocab, val_labels=val_labels, val_images=val_photos,
        detector=detector, conventions=conventions, weights=weights, resnet=resnet,
        frozen_stages=_numbers("frozen-stages", frozen_stages), steps=steps, batch_size=batch_size,
        learning_rate=learning_rate, warmup_steps=warmup_steps, decay_steps=_numbers("decay-steps", decay_steps),
        device=device, threads=threads, seed=seed,
        settings=(*precision_setting(precision, settings or ()), *(settings or ())),
        resume="auto" if (start := resume_choice(resume, resume_from)) is None else start,
    )  # fmt: skip
    trained = train_requested_detector(request, out)
    from roibeam.pipelines.common.compute import is_main_process
    from roibeam.pipelines.common.statistics.verdict import sentence_of

    if not is_main_process():
        return
    result, model = trained.result, trained.folder
    if as_json:
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
        typer.echo(f"on {val_labels}: {', '.join(map(sentence_of, result.evaluation.figures))}")
    use = "the detector, for roibeam detector evaluate and roibeam extract --detector"
    typer.echo(f"\n{out}/\n  {model.relative_to(out)}/   {use}")
    typer.echo("\n".join(run_folder_lines(out, result)))


@detector_app.command("evaluate", cls=HelpedCommand)
def evaluate_command(
    detector: Annotated[str, argument("DETECTOR", "Folder of a detector (model of a checkpoint), or toy.")],
    labels: Annotated[str, _LABELS],
    photos: Annotated[str | None, _PHOTOS] = None,
    vocab: Annotated[str | None, _VOCAB] = None,
    max_images: Annotated[int | None, option("max-images", "Here: the first ones.", default="all")] = None,
    settings: Annotated[list[str] | None, option("set", "Section: conventions, in place of the detector's.")] = None,
    nms_iou: Annotated[float, option("nms-iou", "detectron2's figures are made at 0.5.", group=MODEL)] = 0.3,
    device: Annotated[str, option("device")] = "auto",
    threads: Annotated[int | None, THREADS] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Judges a detector on photos with labelled objects.

    Measures mAP as Visual Genome and as COCO do, attributes, calibration, and recall of the kept regions.

    Examples:
        roibeam detector evaluate toy --labels world/visual_genome/test.txt
    """
    from roibeam.extraction.weights.detector_choice import read_detector_folder
    from roibeam.messages import plural
    from roibeam.pipelines.common.compute import check_device, choose_device
    from roibeam.pipelines.common.console.command_files import NamedFiles
    from roibeam.pipelines.common.console.overrides import apply_overrides
    from roibeam.pipelines.data.labelled_photos import look_at_photos, open_labelled_photos

    named = NamedFiles()
    folder = named.look(lambda: read_detector_folder(detector))
    for name, path in (("--labels", labels), ("--photos", photos), ("--vocab", vocab)):
        named.need(name, path)
    named.look(lambda: check_device(device))
    named.check()
    assert folder is not None
    conventions = apply_overrides({"conventions": folder.conventions}, settings or ())["conventions"]
    listed = open_labelled_photos(labels, image_root=photos, vocab=vocab)
    labelled = look_at_photos(listed.once(max_images), conventions.exif_orientation, is_needed=lambda image: True)
    if listed.num_repeats:
        typer.echo(
            f"note: {plural(listed.num_repeats, 'row')} of {labels} name a photo again; it counts once", err=True
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
                {"detector": detector, "labels": labels, "device": chosen.name, **report.as_json(), **labelled.facts()},
                event="evaluation",
            )
        )
        return
    typer.echo("\n".join(report_lines(report)))


def _numbers(what: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"--{what} {text!r}: expected whole numbers with commas between, such as 1,2") from None
