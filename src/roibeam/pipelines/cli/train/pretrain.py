"""`roibeam pretrain`: the training stage reads a store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from roibeam.features.counted import counted
from roibeam.pipelines.cli.options.caption import HELD_OUT, IMAGES_OF, LEAVE_OUT, MIN_MATCH
from roibeam.pipelines.cli.options.end_to_end import (
    DEFAULT_ENCODER,
    JUDGE_IMAGES,
    JUDGE_LABELS,
    JUDGE_PHOTOS,
    LABELS,
    LABELS_IMAGES,
    LABELS_VOCAB,
    EndToEndOptions,
)
from roibeam.pipelines.cli.options.training import RESUME, run_folder_lines
from roibeam.pipelines.cli.train.stages import options_given, run_stages, stages_of

NO_BERT = "none"


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
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="Result as a JSON line.")] = False,
) -> None:
    """Pre-trains one of the systems on captions and stored regions, or on photos and stored boxes: masked words, masked
    regions, pairs that match.

    On several GPUs: torchrun --no-python --nproc-per-node <n> roibeam pretrain ... (--no-python keeps the working
    directory off the import path).
    """
    import torch

    from roibeam.pipelines.cli.options.given_stores import GivenStores, GivenValidation, held_out_hints
    from roibeam.pipelines.foundation.overrides import apply_overrides, parse_value
    from roibeam.pipelines.model_files.bert_start import read_bert
    from roibeam.pipelines.model_files.joint_checkpoint import JointCheckpoint, load_model_or_joint
    from roibeam.pipelines.pretraining.data.captioned_store import LeakGuard
    from roibeam.pipelines.pretraining.data.task_texts import TaskTexts
    from roibeam.pipelines.pretraining.pretrain_run import pretrain
    from roibeam.pipelines.pretraining.recipes.published import recipe_named
    from roibeam.pipelines.pretraining.recipes.recipe import TOY_ENCODER
    from roibeam.pipelines.pretraining.systems import system_named
    from roibeam.pipelines.pretraining.task import DataConfig
    from roibeam.pipelines.pretraining.text_run import pretrain_on_text
    from roibeam.pipelines.sources.held_out import HeldOut
    from roibeam.pipelines.training.loop import is_main_process, num_processes
    from roibeam.pipelines.training.run_folder.curves import write_curves
    from roibeam.pipelines.training.run_folder.detector_figures import DETECTOR_NAME, change_rows
    from roibeam.pipelines.training.train_config import TrainConfig

    stages = stages_of(context, recipe, from_run, stage or [])
    if stages:
        run_stages(context, out, stages, as_json=as_json, resume=resume)
        return
    if store is None:
        of_stores = {
            "--captions": captions, "--weight": weight, "--task-text": task_text, "--validation": validation,
            "--validation-store": validation_store, "--held-out": held_out, "--images-of": images_of,
            "--leave-out-held-out": leave_out_held_out, "--end-to-end": end_to_end, "--stage-to": stage_to,
            "--stage-gb": stage_gb, "--recipe": recipe, "--min-match": "min_match" in options_given(context),
        }  # fmt: skip
        unread = [option for option, value in of_stores.items() if value]
        if unread or not text_corpus:
            what = f" that {unread[0]} is for" if unread else "; for text without images, --text-corpus"
            raise ValueError(f"--store: name the store that roibeam extract wrote{what}")
    published = None if recipe is None else recipe_named(recipe)
    if published is not None and (system or model):
        raise ValueError(f"--recipe {recipe} says which system and model; leave --system and --model out")
    if toy and published is None:
        raise ValueError("--toy is the small variant of a --recipe; name one (roibeam recipes lists them)")
    chosen = system_named(published.system if published else system or "vlbert")
    if published is not None:
        build_config = published.toy_build if toy else published.build
    elif (model or "small") in chosen.sizes:
        build_config = chosen.sizes[model or "small"]
    else:
        raise ValueError(f"--model {model!r}: choose one of {', '.join(chosen.sizes)}")
    if background_first is not None and from_run is None:
        raise ValueError("--background-first/--background-last: of a model to start from, name it with --from-run")
    if from_run is not None and from_bert is not None:
        raise ValueError("--from-run and --from-bert: a model starts from one of them")
    if threads is not None:
        torch.set_num_threads(threads)
    own = [setting for setting in settings or [] if not setting.startswith("model.")]
    if batch_size is None:
        batch_size = published.at_once(num_processes()) if published is not None and not toy else 32
    options = {"steps": steps, "learning_rate": learning_rate, "warmup_steps": warmup_steps}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}

    def train_config(num_captions: int) -> TrainConfig:
        """That of the recipe or of the options, for a data set of this size, with the user's --set."""
        if published is None:
            config = TrainConfig(**{"steps": 1000, **given})
        elif toy:
            config = published.toy_config(micro_batch=batch_size, **given)
        else:
            config = published.train_config(num_captions, micro_batch=batch_size, processes=num_processes(), **given)
        pause = max(1, min(1000, config.steps // 10))
        paced = replace(
            config,
            device=device,
            seed=seed,
            log_every=max(1, min(20, config.steps // 10)),
            checkpoint_every=pause,
            evaluate_every=config.evaluate_every or (pause if validation else 0),
        )
        return cast(TrainConfig, apply_overrides({"train": paced}, of_train)["train"])

    of_train = [setting for setting in own if setting.startswith("train.")]
    of_data = [setting for setting in own if not setting.startswith("train.")]
    defaults: dict[str, Any] = {
        "train": TrainConfig(steps=1),
        "data": DataConfig(batch_size=batch_size, share=published.share if published else 1.0),
        "sampling": published.sampling if published else chosen.sampling(),
    }
    start = None if from_run is None else load_model_or_joint(from_run)
    if toy and end_to_end and not isinstance(start, JointCheckpoint):
        detector = detector or TOY_ENCODER
    through = EndToEndOptions(
        images, detector, weights, conventions, skip_missing_photos, labels, labels_images, labels_vocab,
        judge_labels, judge_images, judge_photos,
    )  # fmt: skip
    if end_to_end:
        defaults |= through.sections(chosen.whole_image, start)
    elif published is not None and published.end_to_end:
        raise ValueError(f"--recipe {recipe} trains through the detector: add --end-to-end, see docs/end-to-end.md")
    else:
        through.refuse()
        if isinstance(start, JointCheckpoint):
            raise ValueError(f"--from-run {from_run} was trained end to end: its encoder goes on with it, --end-to-end")
    sections = apply_overrides(defaults, of_data)
    train_config(1)  # what is wrong with --set is said before anything is read
    overrides: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, value = setting.removeprefix("model.").partition("=")
        if setting.startswith("model."):
            if not equals:
                raise ValueError(f"--set {setting!r}: expected model.field=value")
            overrides[name.strip()] = parse_value(value.strip())
    if published is not None and published.text_corpus and not text_corpus:
        raise ValueError(f"--recipe {recipe} mixes in text without images: name the files with --text-corpus")
    if published is not None and published.task_text and not task_text:
        raise ValueError(f"--recipe {recipe} reads a task's own text: name its files with --task-text")
    if published is not None and from_run is not None:
        overrides = {**published.changes, **overrides}
    if published is not None and not toy and from_run is None:
        if from_bert is None and published.start:
            from_bert = f"hf:google-bert/{published.start}"
    if from_bert == NO_BERT:
        from_bert = None
    own_tokenizer = None if start is None or start.tokenizer is None else str(start.tokenizer)
    through_encoder = through.end_to_end(sections, start) if end_to_end else None
    if leave_out_held_out and not held_out:
        raise ValueError("--leave-out-held-out: name what is held out, with --held-out")
    rules = HeldOut(held_out or [])
    of_run: dict[str, Any] = {
        "train_config": train_config,
        "system": chosen,
        "build_config": build_config,
        "data": sections["data"],
        "sampling": sections["sampling"],
        "tokenizer_spec": tokenizer or own_tokenizer or from_bert or "captions",
        "start": start,
        "background_first": background_first,
        "bert": None if from_bert is None else read_bert(from_bert),
        "model_overrides": overrides,
        "inspect_rows": inspect_batch,
        "resume": "auto" if resume is None else resume,
    }
    notes: list[str] = []
    if store is None:
        result = pretrain_on_text(text_corpus or (), out, **of_run)
    else:
        told = TaskTexts(task_text, id_rule=id_rule) if task_text else None
        given_stores = GivenStores(store, captions or [], weight or [], texts=told, id_rule=id_rule)
        validated = GivenValidation(validation, validation_store, id_rule=id_rule)
        with (
            given_stores.opened(stage_to, stage_gb, images_of=images_of, min_match=min_match) as sources,
            validated.opened(sources[0], images_of=images_of, min_match=min_match) as asked,
        ):
            if not held_out:
                notes += held_out_hints(sources)
            result = pretrain(
                sources,
                out,
                text_files=text_corpus or (),
                guard=LeakGuard(rules, leave_out_held_out) if held_out else None,
                end_to_end=through_encoder,
                validation=asked,
                **of_run,
            )
        for one, of_file in zip(result.sources, given_stores.notes(), strict=True):
            notes += one.told(of_file)
        notes += validated.notes()
    notes += result.notes
    if not is_main_process():
        return
    write_curves(out)
    facts = {
        "run": str(out),
        "checkpoint": str(result.training.checkpoint),
        "step": result.training.step,
        "seconds": round(result.training.seconds, 1),
        "captions": sum(one.join.joined for one in result.sources),
        "sources": [one.to_json() for one in result.sources],
        "notes": notes,
        "left_out_photos": dict(result.left_out),
        "vocabulary": result.vocab_size,
        "num_classes": result.num_classes,
        "last": result.training.last,
        "best": None if result.training.best is None else str(result.training.best),
        "evaluation": result.evaluation,
        "evaluated_on": result.asked,
        "detector": result.detector,
    }
    if as_json:
        typer.echo(json.dumps({"event": "done", **facts}))
        return
    for note in notes:
        typer.echo(f"note: {note}")
    for one in result.sources:
        lines = one.join.lines()
        if one.leaks is not None:
            lines += [*one.leaks.lines(), f"{counted(len(one.leaks.leaked), 'captioned image')} left out as held out"]
        typer.echo("\n".join(one.told(lines)))
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
    if inspect_batch:
        typer.echo("  batch.html   rows of the first batch, to look at")
