"""`roibeam finetune`: a pre-trained model learns a task."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.pipelines.cli.options import (
    DROP_HELD_OUT,
    HELD_OUT,
    JSON,
    NUMBERS_OF,
    RESUME,
    THREADS,
    named_step,
    origin_facts,
    origin_lines,
    run_folder_lines,
)
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option
from roibeam.pipelines.cli.surface.option_names import END_TO_END, TRAINING
from roibeam.pipelines.cli.train.precision import precision_setting
from roibeam.pipelines.common.console.interruption import typed_again
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.console.waiting_threads import sleep_beside_others
from roibeam.pipelines.training.model_files.encoder_settings import DEFAULT_ENCODER

if TYPE_CHECKING:
    from roibeam.pipelines.finetuning.frame.finetune_run import FinetuneResult


def finetune_command(
    out: Annotated[Path, argument("RUN", "Run folder to write.")],
    task: Annotated[str, option("task")],
    start: Annotated[str, option("from", "Or a run of a task, for more; or none: new weights.", callback=named_step)],
    data: Annotated[Path, option("data", "Or tables of your own (docs/finetuning.md).")],
    store: Annotated[str | None, option("store", "Of all images of the task; GLUE has none.")] = None,
    annotated_store: Annotated[str | None, option("annotated-store")] = None,
    recipe: Annotated[str | None, option("recipe", "Here: a published run of the task.")] = None,
    toy: Annotated[bool, option("toy", "With --recipe.")] = False,
    system: Annotated[str | None, option("system", "With --from none.", default="that of --from or --recipe")] = None,
    model: Annotated[str | None, option("model", "With --from none.", default="small")] = None,
    from_bert: Annotated[str | None, option("from-bert", "With --from none.", default="none")] = None,
    tokenizer: Annotated[
        str | None, option("tokenizer", default="that of --from, else made from the task's texts")
    ] = None,
    min_match: Annotated[float, option("min-match", "Here: of the images of a split.")] = 1.0,
    held_out: Annotated[list[str] | None, HELD_OUT] = None,
    drop_held_out: Annotated[bool, DROP_HELD_OUT] = False,
    numbers_of: Annotated[str | None, NUMBERS_OF] = None,
    steps: Annotated[int | None, option("steps", default="1,000; where a run goes on, its own")] = None,
    epochs: Annotated[float | None, option("epochs", default="--steps, or those of the recipe")] = None,
    batch_size: Annotated[int | None, option("batch-size", "Here: questions or statements.", default="32")] = None,
    learning_rate: Annotated[
        float | None, option("learning-rate", "Not scaled by batch or processes.", default="0.00005")
    ] = None,
    warmup_steps: Annotated[
        int | None, option("warmup-steps", default="a tenth of the steps", is_advanced=True)
    ] = None,
    seed: Annotated[int, option("seed", is_advanced=True)] = 0,
    seeds: Annotated[int, option("seeds")] = 1,
    resume: Annotated[bool | None, RESUME] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "set",
            "Sections: train, data, model, layout, head, steps, one with the name of the task; end to end also "
            "detector, encoder, photos, end_to_end. docs/finetuning.md tells more.",
            group=TRAINING,
        ),
    ] = None,
    device: Annotated[str, option("device")] = "auto",
    precision: Annotated[
        str | None, option("precision", values="float32, bf16 or fp16", default="that of the recipe, else float32")
    ] = None,
    threads: Annotated[int | None, THREADS] = None,
    end_to_end: Annotated[bool, option("end-to-end")] = False,
    photos: Annotated[str | None, option("photos", default="where the store says", group=END_TO_END)] = None,
    detector: Annotated[
        str | None,
        option("detector", default=f"that of --from, else {DEFAULT_ENCODER}", group=END_TO_END),
    ] = None,
    weights: Annotated[str | None, option("weights", default="those of --detector", group=END_TO_END)] = None,
    conventions: Annotated[
        str | None,
        option("conventions", default="those of --detector, else vlbert-e2e", group=END_TO_END),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Trains a pre-trained model on a task, from stored features or through the detector's network.

    Tasks are vqa, vcr, nlvr2, refcoco, refcoco+, refcocog, flickr30k-entities, retrieval and those of GLUE (cola,
    sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli), from their official files; labels, one label for an image and a
    text, from a table of your own; or a file of your own task. torchrun starts it on several GPUs.

    Examples:
        roibeam finetune r --task rte --recipe interbert-rte --toy --from r0 --data d
        roibeam finetune vqa-run/ --task vqa --from run/ --store store/ --data vqa/
        roibeam finetune r/ --task labels --from run/ --store store/ --data my/
        roibeam finetune r/ --task vqa --from run/ --store s/ --data vqa/ --seeds 3
        roibeam finetune r/ --task vcr --from run/ --store s/ --data d/ --end-to-end
    """
    # Not above, as in predict.py: the help of all commands would wait for what reads tasks, photos and stores.
    from roibeam.pipelines.finetuning.end_to_end.encoder_request import EncoderRequest
    from roibeam.pipelines.finetuning.frame.finetune_request import FinetuneRequest
    from roibeam.pipelines.finetuning.trained_photos import HeldOutWords

    request = FinetuneRequest(
        out=out, task=task, start=start, store=store, annotated_store=annotated_store, data=data, recipe=recipe,
        toy=toy, system=system, size=model, from_bert=from_bert, tokenizer=tokenizer, min_match=min_match, steps=steps,
        epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, warmup_steps=warmup_steps, device=device,
        threads=threads, seed=seed, seeds=seeds,
        settings=[*precision_setting(precision, settings or ()), *(settings or ())], resume=resume,
        held_out=HeldOutWords(held_out or (), drop_held_out, numbers_of), command=typed_again(sys.argv),
        end_to_end=end_to_end,
        encoder=EncoderRequest(photos=photos, detector=detector, weights=weights, conventions=conventions),
    )  # fmt: skip
    # Before torch is imported.
    from roibeam.pipelines.finetuning.frame.checked_finetune import check_finetune
    from roibeam.pipelines.finetuning.frame.seeds import seed_requests, seed_summary, write_seeds

    check_finetune(request)
    sleep_beside_others()
    with waiting("loading torch"):
        from roibeam.pipelines.common.launched import is_main_process
        from roibeam.pipelines.finetuning.frame.finetune_run import run_finetuning

    results = [run_finetuning(each) for each in seed_requests(request)]
    if not is_main_process():
        return
    for result in results:
        _tell(result, as_json=as_json)
    if seeds > 1:
        chosen = [each.evaluated_step for each in results] if any(each.is_of_best for each in results) else None
        chances = {figure.name: figure.chance for figure in results[0].figures}
        measured = [(each.run_dir, each.evaluation) for each in results]
        summary = seed_summary(measured, results[0].main, chosen, chances=chances)
        path = write_seeds(out, summary)
        _tell_seeds(path, summary, as_json=as_json)


def _tell(result: FinetuneResult, *, as_json: bool) -> None:
    from roibeam.pipelines.cli.surface.figure_table import task_lines

    if as_json:
        typer.echo(json_line({**result.to_json(), **origin_facts(result.run_dir)}))
        return
    out = result.run_dir
    typer.echo(result.training.done())
    typer.echo(origin_lines(out))
    if result.figures:
        best = f", the best checkpoint, step {result.evaluated_step:,}" if result.is_of_best else ""
        typer.echo(f"asked about {result.asked:,} of the validation split{best}:")
        typer.echo("\n".join(task_lines(result.figures, result.last_evaluation if result.is_of_best else {})))
    if result.encoder is not None:
        from roibeam.pipelines.training.run_folder.detector_figures import encoder_lines

        typer.echo("\n".join(encoder_lines(result.encoder)))
    typer.echo(f"\n{out}/\n  {result.training.checkpoint.relative_to(out)}/   weights, optimizer, position")
    typer.echo("\n".join([*run_folder_lines(out, result.training), "  tokenizer/"]))


def _tell_seeds(path: Path, summary: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_line({**summary, "seeds": str(path)}))
        return
    typer.echo(f"\n{len(summary['runs'])} seeds, the best is {summary['best']}:")
    for name, found in summary["measures"].items():
        sd = "" if found["sd"] is None else f", sd {100 * found['sd']:.2f}"
        median, best = 100 * found["median"], 100 * max(found["values"])
        chance = "" if found["chance"] is None else f"; chance {100 * found['chance']:.2f} %"
        typer.echo(
            f"  {name:<28} mean {100 * found['mean']:.2f} %{sd}, median {median:.2f} %, best {best:.2f} %{chance}"
        )
    typer.echo(f"{path}   all of it")
