"""`roibeam attention`: what the attention heads of a pre-trained model know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roibeam.pipelines.cli.options import CHECKPOINT, CONFIG, JSON, TASK_TOKEN, THREADS, TOKENIZER
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import option
from roibeam.pipelines.cli.surface.option_names import QUESTION, SPEED

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.attention.attention_run import AttentionResult
    from roibeam.pipelines.analysis.attention.head_figures import HeadFigures, Interval

_TOLD = ("R@1", "R@5", "R@10", "upper bound")


def attention_command(
    checkpoint: Annotated[str, CHECKPOINT],
    store: Annotated[str, option("store", "Heads look at its regions.")],
    entities: Annotated[str, option("entities")],
    split: Annotated[str | None, option("split", "A list of --entities.", default="all images")] = None,
    parses: Annotated[
        Path | None, option("parses", "Or spacy: parsed here.", default="phrases alone are asked about")
    ] = None,
    rules: Annotated[str, option("rules", values="any, merged or release")] = "any",
    word: Annotated[str, option("word")] = "last",
    photos: Annotated[
        str | None, option("photos", "For a model trained end to end.", default="where the store says")
    ] = None,
    max_regions: Annotated[int | None, option("max-regions", default="all", group=QUESTION)] = None,
    max_images: Annotated[int | None, option("max-images", "Drawn by --seed.", default="all")] = None,
    min_match: Annotated[float, option("min-match")] = 1.0,
    seed: Annotated[int, option("seed", "Here: subset, halves, intervals.", group=QUESTION, is_advanced=True)] = 0,
    tokenizer: Annotated[str | None, TOKENIZER] = None,
    config: Annotated[Path | None, CONFIG] = None,
    task_token: Annotated[int | None, TASK_TOKEN] = None,
    device: Annotated[str, option("device")] = "auto",
    batch_size: Annotated[int, option("batch-size", "Here: captions.", group=SPEED)] = 16,
    threads: Annotated[int | None, THREADS] = None,
    out: Annotated[
        Path | None, option("out", "A new folder.", default="RUN/attention, then RUN/attention-2, ...")
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Asks every attention head of a model for the regions of phrases.

    A head is right where the region that a word looks at most covers what the phrase means: the phrase's own word, and
    with --parses each word that hangs on it. Beside it stands the region with the best detection score.

    After "What Does BERT with Vision Look At?". The model analysed there is the run of roibeam pretrain --recipe
    visualbert-task-flickr: COCO's captions, then Flickr30k's.

    Examples:
        roibeam attention run/ --store store/ --entities flickr30k_entities/
        roibeam attention run/ --store store/ --entities e/ --parses p.conll
        roibeam attention run/ --store s/ --entities e/ --parses spacy
    """
    from roibeam.pipelines.analysis.attention.attention_request import analyse_attention
    from roibeam.pipelines.analysis.attention.attention_settings import AttentionRequest

    request = AttentionRequest(
        checkpoint=checkpoint, store=store, entities=entities, out=out, split=split, parses=parses, rules=rules,
        word=word, images=photos, min_match=min_match, max_regions=max_regions or 0, max_images=max_images or 0,
        seed=seed, batch_size=batch_size, task=task_token, tokenizer=tokenizer, options=config, device=device,
        threads=threads,
    )  # fmt: skip
    tell: Callable[[str], None] = (lambda remark: None) if as_json else lambda remark: typer.echo(f"note: {remark}")
    _print(analyse_attention(request, tell), as_json=as_json)


def _print(result: AttentionResult, *, as_json: bool) -> None:
    from roibeam.features.counted import counted
    from roibeam.pipelines.analysis.attention.head_figures import commonest

    figures = [result.entity, *result.relations]
    if as_json:
        facts = {
            "results": str(result.results),
            "pictures": [str(each) for each in result.pictures],
            "captions": result.captions,
            "images": result.images,
            "device": result.device,
            "seconds": round(result.seconds, 1),
            "different_from_paper": result.differences,
            "remarks": result.remarks,
        }
        typer.echo(json_line({**facts, "populations": [each.to_json() for each in figures]}))
        return
    typer.echo(f"{counted(result.captions, 'caption')} of {counted(result.images, 'image')}\n")
    typer.echo(
        f"{'%':<16}{'asked':>7}{'by lot':>8}{'baseline':>10}{'best head':>11}{'its figure':>12}{'any word':>10}"
        f"{'other half':>12}{'less baseline':>18}{'ceiling':>9}"
    )
    for each in (result.entity, *commonest(result.relations)):
        typer.echo(_row(each))
    recalls = ", ".join(f"{name} {100 * value:.1f}" for name, value in result.entity.recalls.items() if name in _TOLD)
    typer.echo(f"\nphrases, best head: {recalls}; by type in the results")
    by_layer = ", ".join(f"{100 * value:.1f}" for value in result.entity.best_by_layer)
    typer.echo(f"phrases, best head of each layer: {by_layer}")
    num_active, num_heads = int(result.entity.active.sum()), result.entity.active.size
    typer.echo(f"active heads: {num_active} of {num_heads}; attention that prefers nothing would give regions "
               f"{100 * result.entity.uniform:.0f} %")  # fmt: skip
    _print_paper(result)
    typer.echo(f"\n{result.results}   all of it, every head")
    typer.echo(f"{result.pictures[0]}   look here first: each head over its layer, beside the baseline")


def _print_paper(result: AttentionResult) -> None:
    from roibeam.pipelines.analysis.attention.head_figures import beside_paper
    from roibeam.pipelines.analysis.attention.paper_table import ASKED_THERE, PAPER
    from roibeam.pipelines.analysis.attention.questions import ENTITY

    paper = "paper"
    typer.echo(f'\nbeside "{PAPER}", section 3.1 and Table 2:')
    typer.echo(f"{'%':<16}{'baseline':>10}{paper:>8}{'best head':>12}{paper:>8}{'its figure':>13}{paper:>8}".rstrip())
    for row, ours in beside_paper(result.entity, result.relations):
        baseline, head, figure = "-", "-", "-"
        if ours is not None:
            layer, number = ours.best_of_all if row.name == ENTITY else (ours.layer, ours.head)
            baseline, head = f"{100 * ours.baseline.value:.2f}", _head(ours, layer, number)
            figure = f"{100 * ours.accuracy[layer - 1, number - 1]:.2f}"
        typer.echo(
            f"{row.name:<16}{baseline:>10}{row.baseline:>8}{head:>12}{row.head or '-':>8}{figure:>13}{row.accuracy:>8}"
        )
    typer.echo(ASKED_THERE)
    typer.echo(f"different here: {'; '.join(result.differences) or 'nothing that a model and options tell'}")


def _head(each: HeadFigures, layer: int, head: int) -> str:
    """With an asterisk where it is not active."""
    return f"{layer}-{head}{'' if each.active[layer - 1, head - 1] else '*'}"


def _row(each: HeadFigures) -> str:
    name = each.name if each.name == each.paper_name else f"{each.name} ({each.paper_name})"
    head = _head(each, each.layer, each.head)
    return (
        f"{name:<16}{each.questions:>7,}{100 * each.by_lot:>8.1f}{100 * each.baseline.value:>10.1f}{head:>11}"
        f"{100 * each.best.value:>12.1f}{100 * each.blind:>10.1f}{100 * each.crossed:>12.1f}"
        f"{_difference(each.difference):>18}{100 * each.ceiling:>9.1f}  {each.verdict}"
    )


def _difference(found: Interval) -> str:
    return f"{100 * found.low:+.1f} .. {100 * found.high:+.1f}"
