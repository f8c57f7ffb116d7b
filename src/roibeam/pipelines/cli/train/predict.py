"""`roibeam predict`: a fine-tuned model answers a split of its task, in the official format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from roibeam.pipelines.cli.options import JSON, THREADS, named_step
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option
from roibeam.pipelines.cli.surface.option_names import QUESTION, SPEED
from roibeam.pipelines.common.console.interruption import typed_again
from roibeam.pipelines.common.console.progress import waiting


def predict_command(
    run: Annotated[
        Path,
        argument(
            "RUN",
            "Run folder of `roibeam finetune`; the best seed is asked, and the best step by train.best_by.",
            callback=named_step,
        ),
    ],
    data: Annotated[Path, option("data", "Or tables of your own.")],
    out: Annotated[Path, option("out", "A file, in the task's format.")],
    store: Annotated[str | None, option("store", "Of all images of the split; GLUE has none.")] = None,
    second: Annotated[
        Path | None, argument("RUN_2", "A run of VCR's other problem, for one file that tells both.")
    ] = None,
    task: Annotated[str | None, option("task", "Here: of a task of your own, its file.", default="that of RUN")] = None,
    annotated_store: Annotated[str | None, option("annotated-store")] = None,
    photos: Annotated[
        str | None, option("photos", "For a model trained end to end.", default="where the store says")
    ] = None,
    split: Annotated[str | None, option("split", default="val; dev of nlvr2 and GLUE")] = None,
    page: Annotated[Path | None, option("page")] = None,
    scores: Annotated[Path | None, option("scores", "Of tasks that choose a label.")] = None,
    min_match: Annotated[
        float, option("min-match", "Here: of the images of the split; rows of the others are answered without regions.")
    ] = 1.0,
    blind: Annotated[bool, option("blind")] = False,
    permute_images: Annotated[bool, option("permute-images")] = False,
    seed: Annotated[int, option("seed", "Here: of --permute-images.", group=QUESTION, is_advanced=True)] = 0,
    max_images: Annotated[int | None, option("max-images", "Of retrieval.", default="all", is_advanced=True)] = None,
    folds: Annotated[int, option("folds", "Of retrieval; COCO 1k is 5.")] = 1,
    batch_size: Annotated[int, option("batch-size", "Here: questions, statements, or pairs.", group=SPEED)] = 64,
    device: Annotated[str, option("device")] = "auto",
    precision: Annotated[
        str | None,
        option(
            "precision",
            values="float32, bf16 or fp16",
            default="that of RUN on CUDA; float32 elsewhere, and of retrieval",
        ),
    ] = None,
    threads: Annotated[int | None, THREADS] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Writes a fine-tuned model's predictions, as the task's test server takes them.

    `roibeam score` scores them; what it tells of the model lies beside them, in FILE.card.json. A call that was ended
    goes on where it was; torchrun starts it on several GPUs.

    Examples:
        roibeam predict vqa-run/ --store store/ --data vqa/ --out answers.json
        roibeam predict vqa-run/ --store store/ --data vqa/ --blind --out blind.json
        roibeam predict r/ --store s/ --data vqa/ --out a.json --page a.html
        roibeam predict r/ --store s/ --data flickr/ --split test --out scores.npy
        roibeam predict qa/ qar/ --store s/ --data vcr/ --split test --out vcr.csv
    """
    from roibeam.pipelines.finetuning.frame.predict_request import PredictRequest, asks_pairs, check_predict
    from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS

    request = PredictRequest(
        run=run, second=second, store=store, annotated_store=annotated_store, data=data, out=out, photos=photos,
        split=split or "", blind=blind, permute_images=permute_images, seed=seed, batch_size=batch_size, device=device,
        max_images=max_images or 0, folds=folds, threads=threads, task=task, page=page, command=typed_again(sys.argv),
        scores=scores, min_match=min_match, precision=precision,
    )  # fmt: skip
    check_predict(request)
    with waiting("loading torch"):
        from roibeam.pipelines.common.launched import is_main_process
        from roibeam.pipelines.finetuning.frame.predict_run import run_prediction
        from roibeam.pipelines.finetuning.retrieval.predict_pairs import run_pair_prediction

    result = run_pair_prediction(request) if asks_pairs(request) else run_prediction(request)
    if not is_main_process():
        return
    if as_json:
        typer.echo(
            json_line(
                {
                    "out": str(result.out), "task": result.task, "split": result.split, "groups": result.groups,
                    "judged": result.judged, "unjudged": result.unjudged, "parts_made": result.made,
                    "checkpoint": str(result.checkpoint), "notes": list(result.notes),
                    "page": None if result.page is None else str(result.page),
                    "scores": None if result.scores is None else str(result.scores),
                }
            )
        )  # fmt: skip
        return
    for note in result.notes:
        typer.echo(f"note: {note}")
    if result.page is not None:
        what = "the best and the worst of them" if result.judged else "the surest and the least sure of them"
        typer.echo(f"{result.page}   {what}")
    if result.scores is not None:
        typer.echo(f"{result.scores}   the score of every label")
    scored = f"roibeam score {result.task} {result.out} --data {data}"
    known = SCORED_TASKS.get(result.task)
    if known is not None and result.split != next(iter(known.splits)):
        scored += f" --split {result.split}"
    if result.unjudged:  # which `roibeam score` refuses, but for its form
        which = "the right ones are" if not result.judged else f"the right ones of {result.unjudged:,} are"
        scored = f"{which} not known; {scored} --check"
    typer.echo(f"{result.out}   {result.groups:,} answers; {scored}")
