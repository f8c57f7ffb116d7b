"""`roibeam pretrain`: the training stage reads a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.features.counted import counted
from roibeam.pipelines.cli.json_output import json_line
from roibeam.pipelines.cli.options import (
    HELD_OUT,
    IMAGES_OF,
    JSON_LINE,
    JUDGE_IMAGES,
    JUDGE_LABELS,
    JUDGE_PHOTOS,
    LABELS,
    LABELS_IMAGES,
    LABELS_VOCAB,
    LEAVE_OUT,
    RESUME,
    run_folder_lines,
)
from roibeam.pipelines.cli.train.stages import REQUEST_ALONE, options_given, stages_of
from roibeam.pipelines.pretraining.requests.request import (
    DEFAULT_ENCODER,
    PretrainRequest,
    RequestedData,
    RequestedEncoder,
    RequestedModel,
    RequestedTraining,
)
from roibeam.pipelines.sources.captions.least_match import MIN_MATCH

if TYPE_CHECKING:
    from roibeam.pipelines.pretraining.requests.checked_stages import RequestedStage
    from roibeam.pipelines.pretraining.run_frame import PretrainResult


def pretrain_command(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="Run folder to write: config, log, checkpoints, tokenizer.")],
    store: Annotated[
        list[str] | None,
        typer.Option(
            help="Store that `roibeam extract` wrote: a folder, or a URL with --stage-to. Needed, but for stages that "
            "name their own and for --text-corpus alone. May be given more than once: stores of one feature space are "
            "mixed.",
            show_default=False,
        ),
    ] = None,
    captions: Annotated[
        list[str] | None,
        typer.Option(
            help="Captions: .json of COCO, Karpathy (train and restval) or SBU, .tsv or .token; joined by image id, "
            "path or number, see docs/captions.md. With several stores one for each, in their order; own means those "
            "that a store keeps [default: the stores' own].",
            show_default=False,
        ),
    ] = None,
    weight: Annotated[
        list[float] | None,
        typer.Option(
            help="How much of what is trained on comes from a store, over the sum of all weights: one for each "
            "--store, in their order [default: every caption of all stores as likely].",
            show_default=False,
        ),
    ] = None,
    num_classes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Foreground classes of the stores' detector (1600 of Visual Genome), for imported stores that do not "
            "tell; without it their masked regions are not predicted by class [default: what the stores say].",
            show_default=False,
        ),
    ] = None,
    task_text: Annotated[
        list[Path] | None,
        typer.Option(
            help="In place of captions, a task's own text for a VisualBERT: VQA's questions and its annotations (both, "
            "each with the option), VCR's train.jsonl or NLVR2's train.json; other splits are refused.",
        ),
    ] = None,
    min_match: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the images in --captions or --task-text that the store must have."),
    ] = MIN_MATCH,
    validation: Annotated[
        str | None,
        typer.Option(
            help="Held-out captions, a file as in --captions, of a Karpathy file its split val: evaluations "
            "(train.evaluate_every) ask about data.validation_captions of them, and their images are not trained on.",
            show_default=False,
        ),
    ] = None,
    validation_store: Annotated[
        str | None,
        typer.Option(help="Store of their images [default: the first --store].", show_default=False),
    ] = None,
    held_out: Annotated[list[str] | None, HELD_OUT] = None,
    leave_out_held_out: Annotated[bool, LEAVE_OUT] = False,
    images_of: Annotated[str | None, IMAGES_OF] = None,
    from_bert: Annotated[
        str | None,
        typer.Option(
            help="BERT to start from: hf:<repo>, or a folder with config.json, weights and tokenizer; none for new "
            "weights. Its sizes take the place of --model's [default: the recipe's, else none].",
            show_default=False,
        ),
    ] = None,
    from_run: Annotated[
        str | None,
        typer.Option(
            help="Run, or model of the same system, to start from as a second stage does: its configuration and "
            "tokenizer are taken over, its weights go on with a new optimizer.",
            show_default=False,
        ),
    ] = None,
    background_first: Annotated[
        bool | None,
        typer.Option(
            "--background-first/--background-last",
            help="Where a model of --from-run that is no run's has background among its classes of regions: first in "
            "most published ones. It is moved to the end, where our stores have it [needed for such a model].",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="BERT vocab.txt, tokenizer folder, hf:<repo>, or captions: a vocabulary made from the captions "
            "[default: that of --from-run or --from-bert, else captions; needed for a --from-run without one].",
            show_default=False,
        ),
    ] = None,
    end_to_end: Annotated[
        bool,
        typer.Option(
            "--end-to-end/--stored-features",
            help="Train through the region encoder: photos and stored boxes instead of stored features "
            "(docs/end-to-end.md).",
        ),
    ] = False,
    images: Annotated[
        str | None,
        typer.Option(
            help="End to end: folder of the photos, found by id, path or number [default: where the store says that "
            "they lie].",
            show_default=False,
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            help="End to end: sizes of the encoder, as in extract: vg-r101-c4-600, toy, small, or a detector's folder "
            f"[default: {DEFAULT_ENCODER}; with --toy: toy].",
            show_default=False,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="End to end: what the encoder starts from: a Visual Genome detector's file, "
            "resnet101-pt-vgbua-0000.model, or random:<seed> [default: those of the detector's folder].",
            show_default=False,
        ),
    ] = None,
    conventions: Annotated[
        str | None,
        typer.Option(
            help="End to end: how the encoder computes, a preset as in extract [default: vlbert-e2e; those of a "
            "detector's folder].",
            show_default=False,
        ),
    ] = None,
    skip_missing_photos: Annotated[
        bool,
        typer.Option(
            "--skip-missing-photos/--need-all-photos",
            help="End to end: leave out, and count, samples whose photo is missing, broken or of another size than "
            "its record's, instead of stopping.",
        ),
    ] = False,
    labels: Annotated[str | None, LABELS] = None,
    labels_images: Annotated[str | None, LABELS_IMAGES] = None,
    labels_vocab: Annotated[str | None, LABELS_VOCAB] = None,
    judge_labels: Annotated[str | None, JUDGE_LABELS] = None,
    judge_images: Annotated[str | None, JUDGE_IMAGES] = None,
    judge_photos: Annotated[int | None, JUDGE_PHOTOS] = None,
    stage_to: Annotated[
        Path | None, typer.Option(help="Local folder that shards of a store at a URL are copied to as they are read.")
    ] = None,
    stage_gb: Annotated[
        float | None, typer.Option(min=0.001, help="Room for --stage-to, 10^9 bytes [default: no limit].")
    ] = None,
    text_corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text without images that a VL-BERT learns words from as well: UTF-8, a sentence or paragraph a line. "
            "One row of it for each caption, or data.texts_per_caption; without a --store, it is all that is learned "
            "from. May be given more than once.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A published run, see `roibeam recipes`: model, samples, optimiser, batch and steps as it has them, "
            "after the stages that come before it, or after --from-run; "
            "--batch-size is then what a process takes at once, the rest of its batch is accumulated.",
            show_default=False,
        ),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            help="Several stages in a row, given once for each, with the options that it has of its own: --stage "
            "'--store web/' --stage '--store coco/ --steps 5000'. Other options are of all stages; --set adds to them. "
            "They run in OUT/stage-1, OUT/stage-2, ..., each from the weights of the one before, with a new optimizer "
            "and schedule. A recipe that goes on from another one is such stages by itself.",
            show_default=False,
        ),
    ] = None,
    toy: Annotated[
        bool, typer.Option("--toy/--no-toy", help="The recipe's choices in a small model, for some minutes on 2 cores.")
    ] = False,
    system: Annotated[
        str | None,
        typer.Option(
            help="Whose model and rules: vlbert, vilbert, vilbert-single-stream, visualbert, imagebert or interbert "
            "[default: vlbert].",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Size of the model: small or base; a wrong name lists what else the system has [default: small].",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimizer steps [default: 1000].", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Captions per micro-batch and process; with data.max_tokens the most of them [default: 32, or of a "
            "recipe's batch what divides it].",
            show_default=False,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Peak; never scaled by batch or processes [default: 0.0001].", show_default=False),
    ] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(min=0, help="Steps of linear warm-up [default: 0].", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto (an accelerator if there is one) or cpu.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads [default: torch's choice].")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order, masks and dropout.")] = 0,
    id_rule: Annotated[str, typer.Option(help="As in extract: no-extension or with-extension.")] = "no-extension",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="section.field=value; sections: train, data, sampling, model; end to end also detector (sizes), "
            "encoder (frozen_stages, recompute, region_chunk), photos (flip, swap_left_right, short_edges, "
            "aspect_buckets, read_ahead) and end_to_end (masked_pixels, blank_pixels, whole_image); with --labels also "
            "labelled (photos_per_caption, flip, short_edges, heads), detection (weights of the losses), "
            "detection_sampling and detection_losses.",
        ),
    ] = None,
    inspect_batch: Annotated[
        int,
        typer.Option(
            min=0,
            help="Before the first step, show so many rows of the first batch in OUT/batch.html: pieces, masks, boxes, "
            "targets, the order of the sequence, what each loss is averaged over.",
        ),
    ] = 0,
    resume: Annotated[bool | None, RESUME] = None,
    as_json: Annotated[bool, JSON_LINE] = False,
) -> PretrainRequest | None:
    """Pre-trains one of the systems on captions and stored regions, or on photos and stored boxes: masked words, masked
    regions, pairs that match.

    On several GPUs: torchrun --no-python --nproc-per-node <n> roibeam pretrain ... (--no-python keeps the working
    directory off the import path).
    """
    request = PretrainRequest(
        out,
        RequestedData(
            stores=store or (), captions=captions or (), weights=weight or (), task_texts=task_text or (),
            text_corpus=text_corpus or (), num_classes=num_classes,
            min_match=min_match if "min_match" in options_given(context) else None,
            validation=validation, validation_store=validation_store, held_out=held_out or (),
            leave_out_held_out=leave_out_held_out, images_of=images_of, id_rule=id_rule, stage_to=stage_to,
            stage_gb=stage_gb,
        ),
        RequestedModel(
            recipe=recipe, toy=toy, system=system, size=model, from_bert=from_bert, from_run=from_run,
            background_first=background_first, tokenizer=tokenizer,
        ),
        RequestedTraining(
            steps=steps, batch_size=batch_size, learning_rate=learning_rate, warmup_steps=warmup_steps, device=device,
            threads=threads, seed=seed, settings=settings or (), inspect_batch=inspect_batch, resume=resume,
        ),
        end_to_end=end_to_end,
        encoder=RequestedEncoder(
            images=images, detector=detector, weights=weights, conventions=conventions,
            skip_missing_photos=skip_missing_photos, labels=labels, labels_images=labels_images,
            labels_vocab=labels_vocab, judge_labels=judge_labels, judge_images=judge_images, judge_photos=judge_photos,
        ),
    )  # fmt: skip
    if context.obj is REQUEST_ALONE:
        return request
    _run(request, stages_of(context, request.model, stage or []), as_json=as_json)
    return None


def _run(request: PretrainRequest, stages: Sequence[RequestedStage], *, as_json: bool) -> None:
    """Runs the stages, or without any the request itself, and tells what came of it."""
    # Before torch is imported.
    from roibeam.pipelines.pretraining.requests.checked_request import check_request
    from roibeam.pipelines.pretraining.requests.checked_stages import check_stages

    if stages:
        check_stages(request.out, stages)
    else:
        check_request(request)
    from roibeam.pipelines.pretraining.requests.requested_run import run_pretraining
    from roibeam.pipelines.pretraining.requests.requested_stages import run_stages
    from roibeam.pipelines.training.loop import is_main_process

    def tell(one: PretrainRequest, result: PretrainResult) -> None:
        if is_main_process():
            _tell(one, result, as_json=as_json)

    if not stages:
        tell(request, run_pretraining(request))
        return
    run_stages(request.out, stages, resume=request.training.resume, tell=tell)
    if is_main_process() and not as_json:
        typer.echo(f"\n{request.out}/\n  report.html   look here first: all {len(stages)} stages")


def _tell(request: PretrainRequest, result: PretrainResult, *, as_json: bool) -> None:
    from roibeam.pipelines.training.run_folder.detector_figures import DETECTOR_NAME, change_rows

    out = result.run_dir
    if as_json:
        typer.echo(json_line(result.to_json()))
        return
    for note in result.notes:
        typer.echo(f"note: {note}")
    for one in result.sources:
        if one.leaks is not None:  # how captions joined was said before the first step
            left_out = f"{counted(len(one.leaks.leaked), 'captioned image')} left out as held out"
            typer.echo("\n".join(one.told([*one.leaks.lines(), left_out])))
    if result.left_out:
        image_id, why = next(iter(result.left_out.items()))
        typer.echo(f"{counted(len(result.left_out), 'image')} left out, such as {image_id!r}: {why}")
    typer.echo(f"{counted(result.training.step, 'step')} in {result.training.seconds:.0f} s")
    typer.echo(f"asked about {result.asked}:")
    for name, mean in result.evaluation.items():
        typer.echo(f"  {name:<28} {'nothing to predict' if mean is None else f'{mean:.4f}'}")
    if result.detector is not None:
        typer.echo(f"the detector on {counted(result.detector['photos'], 'held-out photo')}, before and after")
        for name, before, after in change_rows(result.detector):
            typer.echo(f"  {name:<30} {before:>8} {after:>8}")
    typer.echo(f"\n{out}/\n  {result.training.checkpoint.relative_to(out)}/   weights, optimizer, position")
    typer.echo("\n".join(run_folder_lines(out, result.training)))
    typer.echo("  tokenizer/")
    if result.detector is not None:
        typer.echo(f"  {DETECTOR_NAME}   the detector before and after, class by class")
    if request.training.inspect_batch:
        typer.echo("  batch.html   rows of the first batch, to look at")
