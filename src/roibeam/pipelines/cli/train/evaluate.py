"""`roibeam evaluate`: what a pre-trained model gets right on captions it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.pipelines.cli.options import (
    BACKGROUND,
    CAPTION_COLUMN,
    CHECKPOINT,
    CONFIG,
    JSON,
    TASK_TOKEN,
    THREADS,
    TOKENIZER,
)
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import option
from roibeam.pipelines.cli.surface.option_names import QUESTION, SPEED

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.evaluation.evaluation_run import EvaluationResult


def evaluate_command(
    checkpoint: Annotated[str | None, CHECKPOINT] = None,
    store: Annotated[str | None, option("store", "Its images are evaluated on.")] = None,
    captions: Annotated[str | None, option("captions", default="those that the store keeps")] = None,
    caption_column: Annotated[str, CAPTION_COLUMN] = "",
    split: Annotated[str | None, option("split", "Of a Karpathy file; restval too.", default="test")] = None,
    photos: Annotated[
        str | None, option("photos", "For a model trained end to end.", default="where the store says")
    ] = None,
    max_images: Annotated[int | None, option("max-images", "Drawn by --seed.", default="all")] = None,
    min_match: Annotated[float, option("min-match")] = 1.0,
    checksums: Annotated[str, option("checksums")] = "all",
    no_retrieval: Annotated[bool, option("no-retrieval")] = False,
    folds: Annotated[int, option("folds", "5 for COCO's 1K.")] = 1,
    compare: Annotated[tuple[Path, Path] | None, option("compare", "Shows A less B.")] = None,
    seed: Annotated[
        int, option("seed", "Here: masks, wrong images, subset and intervals.", group=QUESTION, is_advanced=True)
    ] = 0,
    tokenizer: Annotated[str | None, TOKENIZER] = None,
    config: Annotated[Path | None, CONFIG] = None,
    background: Annotated[str | None, BACKGROUND] = None,
    task_token: Annotated[int | None, TASK_TOKEN] = None,
    max_regions: Annotated[int | None, option("max-regions", group=QUESTION, is_advanced=True, default="all")] = None,
    device: Annotated[str, option("device")] = "auto",
    batch_size: Annotated[int, option("batch-size", "Here: captions, and pairs of retrieval.", group=SPEED)] = 64,
    threads: Annotated[int | None, THREADS] = None,
    out: Annotated[
        Path | None,
        option("out", "A new folder, for results.json.", default="RUN/evaluation, then RUN/evaluation-2, ..."),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Measures a trained model on captions that it has not seen.

    Masked words, masked regions, matching and retrieval, each with its interval and with what guessing would give.
    Works for VL-BERT, ViLBERT, VisualBERT, ImageBERT and InterBERT.

    Examples:
        roibeam evaluate run/ --store store/ --captions test.json
        roibeam evaluate run/ --store store/ --captions dataset_coco.json --split val
        roibeam evaluate --compare a/results.json b/results.json
    """
    if compare is not None:
        if checkpoint is not None or store is not None or captions is not None:
            raise ValueError("--compare A B compares two results.json that are there; give it no checkpoint or store")
        _compare(*compare, as_json=as_json)
        return
    if checkpoint is None or store is None:
        raise ValueError("evaluate needs a checkpoint and --store (or --compare A B); roibeam evaluate --help")
    from roibeam.pipelines.analysis.evaluation.evaluate_request import EvaluateRequest, evaluate
    from roibeam.pipelines.analysis.evaluation.evaluation_config import EvaluationConfig

    how = EvaluationConfig(
        seed=seed, batch_size=batch_size, max_images=max_images or 0, max_regions=max_regions or 0,
        retrieval=not no_retrieval,
        folds=folds, task=task_token, background=background, device=device,
    )  # fmt: skip
    request = EvaluateRequest(
        checkpoint=checkpoint, store=store, out=out, captions=captions, split=split, images=photos,
        min_match=min_match, tokenizer=tokenizer, options=config, config=how,
        threads=threads, checksums=checksums, caption_column=caption_column,
    )  # fmt: skip
    tell: Callable[[str], None] = (lambda remark: None) if as_json else lambda remark: typer.echo(f"note: {remark}")
    _print(evaluate(request, tell), as_json=as_json)


def _print(result: EvaluationResult, *, as_json: bool) -> None:
    from roibeam.features.counted import counted
    from roibeam.pipelines.cli.surface.figure_table import figure_lines

    if as_json:
        figures = [figure.to_json() for figure in result.figures]
        facts = {
            "step": result.step,
            "results": str(result.results),
            "page": str(result.page),
            "captions": result.num_captions,
            "images": result.num_images,
            "device": result.device,
        }
        joined = {"join": result.join.to_json(), "remarks": result.remarks, "seconds": round(result.seconds, 1)}
        typer.echo(json_line({**facts, **joined, "figures": figures}))
        return
    of_step = "" if result.step is None else f", asked of step {result.step:,}"
    typer.echo(f"{counted(result.num_captions, 'caption')} of {counted(result.num_images, 'image')}{of_step}\n")
    typer.echo("\n".join(figure_lines(result.figures, with_possible=True)))
    recalls = [figure.value for figure in result.figures if _is_recall(figure.name)]
    if recalls:
        typer.echo(f"{'sum of the six R@K':<30}{100 * sum(value or 0 for value in recalls):>8.1f}")
    typer.echo(f"\n{result.page}   look here first: each measure beside chance, with its interval")
    typer.echo(f"{result.results}   all of it, image by image; --compare takes two of them")


def _is_recall(name: str) -> bool:
    return name.rpartition("_")[2] in ("r1", "r5", "r10")


def _compare(first: Path, second: Path, *, as_json: bool) -> None:
    from roibeam.pipelines.analysis.evaluation.evaluation_results import compare_results
    from roibeam.pipelines.cli.surface.figure_table import in_order, label_of
    from roibeam.pipelines.common.statistics.measure_names import measure_name

    found = compare_results(first, second)
    if as_json:
        rows: list[dict[str, Any]] = [{**asdict(each), "excludes_zero": each.excludes_zero} for each in found]
        typer.echo(json_line({"first": str(first), "second": str(second), "differences": rows}))
        return
    typer.echo(f"{first} less {second}\n")
    typer.echo(f"{'':<30}{'first':>8}{'second':>8}{'difference':>12}{'95 % interval':>18}")
    named = {each.name: each for each in found}
    for each in map(named.__getitem__, in_order(list(named))):
        scale, places = (100, 1) if measure_name(each.name).is_share else (1, 3)
        numbers = [scale * each.first, scale * each.second, scale * (each.first - each.second)]
        shown = "".join(f"{number:>{width}.{places}f}" for number, width in zip(numbers, (8, 8, 12), strict=True))
        interval = f"{scale * each.low:.{places}f} .. {scale * each.high:.{places}f}"
        typer.echo(f"{label_of(each.name):<30}{shown}{interval:>18}  {each.verdict}")
