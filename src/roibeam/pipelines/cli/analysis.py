"""`roibeam evaluate | attention | probe | search`: figures of a model and its heads, a pair, a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.pipelines.analysis.requests import AttentionRequest, EvaluateRequest, ProbeRequest, SearchRequest
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.console.request_options import QUESTION, Json, option

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.attention_run import AttentionResult
    from roibeam.pipelines.analysis.evaluation.evaluation_run import EvaluationResult
    from roibeam.pipelines.analysis.head_accuracy import HeadFigures
    from roibeam.pipelines.analysis.probe_request import Probed


def evaluate_command(
    request: EvaluateRequest,
    compare: Annotated[tuple[Path, Path] | None, option(
        "Compare two results.json instead of evaluating. Prints A minus B.", "A B", QUESTION,
    )] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Evaluates a trained model on held-out captions.

    It measures masked words, masked regions, matching and retrieval, each with its confidence interval and its chance
    level. Works for VL-BERT, ViLBERT, VisualBERT, ImageBERT and InterBERT.

    Examples:
        roibeam evaluate run/ --store store/ --captions test.json
        roibeam evaluate run/ --store store/ --captions dataset_coco.json --split val
        roibeam evaluate --compare a/results.json b/results.json
    """
    if compare is not None:
        if request.checkpoint or request.store or request.captions is not None:
            raise ValueError("--compare A B compares two results.json that are there; give it no checkpoint or store")
        _compare(*compare, as_json=json)
        return
    from roibeam.pipelines.analysis.evaluation.evaluate_request import evaluate

    _print_evaluation(evaluate(request, _teller(json)), as_json=json)


def _teller(as_json: bool) -> Callable[[str], None]:
    return (lambda _remark: None) if as_json else lambda remark: typer.echo(f"note: {remark}")


def _print_evaluation(result: EvaluationResult, *, as_json: bool) -> None:
    from roibeam.messages import plural
    from roibeam.pipelines.cli.figure_table import figure_lines

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
    of_step = "" if result.step is None else f", evaluated at step {result.step:,}"
    typer.echo(f"{plural(result.num_captions, 'caption')} of {plural(result.num_images, 'image')}{of_step}\n")
    typer.echo("\n".join(figure_lines(result.figures, with_possible=True)))
    recalls = [figure.value for figure in result.figures if figure.name.endswith(("_r1", "_r5", "_r10"))]
    if recalls:
        typer.echo(f"{'sum of the six R@K':<30}{100 * sum(value or 0 for value in recalls):>8.1f}")
    typer.echo(f"\n{result.page}   look here first: each measure beside chance, with its interval")
    typer.echo(f"{result.results}   all of it, image by image; --compare takes two of them")


def _compare(first: Path, second: Path, *, as_json: bool) -> None:
    from roibeam.pipelines.analysis.evaluation.evaluation_results import compare_results
    from roibeam.pipelines.cli.figure_table import in_order, label_of
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
        columns = "".join(f"{number:>{width}.{places}f}" for number, width in zip(numbers, (8, 8, 12), strict=True))
        interval = f"{scale * each.low:.{places}f} .. {scale * each.high:.{places}f}"
        typer.echo(f"{label_of(each.name):<30}{columns}{interval:>18}  {each.verdict}")


_MAIN = ("R@1", "R@5", "R@10", "upper bound")


def attention_command(request: AttentionRequest, json: Json = False) -> None:
    """Measures how well each attention head of a model finds the regions of phrases.

    A head is correct if the region that a word attends to most covers the object of the phrase: a word of the phrase
    or, with --parses, a word that depends on it. The baseline is the region with the best detection score.

    After "What Does BERT with Vision Look At?". The model analysed there is the run of roibeam pretrain --recipe
    visualbert-task-flickr: COCO's captions, then Flickr30k's.

    Examples:
        roibeam attention run/ --store store/ --entities flickr30k_entities/
        roibeam attention run/ --store store/ --entities e/ --parses p.conll
        roibeam attention run/ --store s/ --entities e/ --parses spacy
    """
    from roibeam.pipelines.analysis.attention_request import analyse_attention

    _print_attention(analyse_attention(request, _teller(json)), as_json=json)


def _print_attention(result: AttentionResult, *, as_json: bool) -> None:
    from roibeam.messages import plural
    from roibeam.pipelines.analysis.head_accuracy import commonest

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
    typer.echo(f"{plural(result.captions, 'caption')} of {plural(result.images, 'image')}\n")
    typer.echo(
        f"{'%':<16}{'count':>7}{'by lot':>8}{'baseline':>10}{'best head':>11}{'its figure':>12}{'any word':>10}"
        f"{'other half':>12}{'less baseline':>18}{'ceiling':>9}"
    )
    for each in (result.entity, *commonest(result.relations)):
        typer.echo(_row(each))
    recalls = ", ".join(f"{name} {100 * value:.1f}" for name, value in result.entity.recalls.items() if name in _MAIN)
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
    from roibeam.pipelines.analysis.attention_questions import ENTITY
    from roibeam.pipelines.analysis.head_accuracy import PAPER, PAPER_SETUP, beside_paper

    paper = "paper"
    typer.echo(f'\nbeside "{PAPER}", section 3.1 and Table 2:')
    typer.echo(f"{'%':<16}{'baseline':>10}{paper:>8}{'best head':>12}{paper:>8}{'its figure':>13}{paper:>8}".rstrip())
    for row, found in beside_paper(result.entity, result.relations):
        baseline, head, figure = "-", "-", "-"
        if found is not None:
            layer, number = found.best_of_all if row.name == ENTITY else (found.layer, found.head)
            baseline, head = f"{100 * found.baseline.value:.2f}", _head(found, layer, number)
            figure = f"{100 * found.accuracy[layer - 1, number - 1]:.2f}"
        typer.echo(
            f"{row.name:<16}{baseline:>10}{row.baseline:>8}{head:>12}{row.head or '-':>8}{figure:>13}{row.accuracy:>8}"
        )
    typer.echo(PAPER_SETUP)
    typer.echo(f"different here: {'; '.join(result.differences) or 'nothing in the model and options'}")


def _head(each: HeadFigures, layer: int, head: int) -> str:
    """Name of a head, with an asterisk if it is not active."""
    return f"{layer}-{head}{'' if each.active[layer - 1, head - 1] else '*'}"


def _row(each: HeadFigures) -> str:
    name = each.name if each.name == each.paper_name else f"{each.name} ({each.paper_name})"
    head = _head(each, each.layer, each.head)
    difference = f"{100 * each.difference.low:+.1f} .. {100 * each.difference.high:+.1f}"
    return (
        f"{name:<16}{each.questions:>7,}{100 * each.by_lot:>8.1f}{100 * each.baseline.value:>10.1f}{head:>11}"
        f"{100 * each.best.value:>12.1f}{100 * each.blind:>10.1f}{100 * each.crossed:>12.1f}"
        f"{difference:>18}{100 * each.ceiling:>9.1f}  {each.verdict}"
    )


def probe_command(request: ProbeRequest, json: Json = False) -> None:
    """Shows what a trained model predicts for an image and a text.

    The model predicts each [MASK] and each masked region, and whether image and text match. A picture shows which word
    attends to which region.

    Examples:
        roibeam probe run/ photo.jpg "a dog on a [MASK]" --detector toy
        roibeam probe run/ 000000391895 "a man on a [MASK]" --store store/
    """
    from roibeam.pipelines.analysis.probe_request import write_probe

    with waiting("running the model"):
        done = write_probe(request)
    _print_probe(done, as_json=json)


def _print_probe(done: Probed, *, as_json: bool) -> None:
    from roibeam.messages import on_a_line, plural
    from roibeam.pipelines.analysis.load_for_evaluation import NO_MATCH_HEAD

    result = done.result
    if as_json:
        typer.echo(json_line({**done.numbers, "picture": str(done.picture), "device": done.device}))
        return
    for note in done.notes:
        typer.echo(on_a_line(f"note: {note}"))
    typer.echo(f"{on_a_line(' '.join(result.pieces))}    with {plural(done.record.num_regions, 'region')}")
    if not result.words:
        typer.echo("no [MASK] in the text, so no words are guessed")
    for word in result.words:
        best = ", ".join(f"{guess.name} {100 * guess.probability:.1f} %" for guess in word.guesses)
        typer.echo(f"  [MASK] at piece {word.position}: {on_a_line(best)}")
    for region in result.regions:
        best = ", ".join(f"{guess.name} {100 * guess.probability:.1f} %" for guess in region.guesses)
        typer.echo(on_a_line(f"  region {region.number} hidden, the detector says {region.seen_as}: {best}"))
    if result.regions_remark:
        typer.echo(f"  no region is guessed: {result.regions_remark}")
    typer.echo(f"  match: {NO_MATCH_HEAD}" if result.match is None else f"  match: {100 * result.match:.1f} %")
    numbers = done.picture.with_suffix(".json").name
    typer.echo(f"{done.picture}   the photo, and which word attends to which region; all numbers: {numbers}")


def search_command(request: SearchRequest, json: Json = False) -> None:
    """Finds photos of a store by a sentence, or by a similar region or photo.

    With --model a trained model scores the sentence with each photo. Without it, the text network of the store's
    vectors is used: those of roibeam extract --backbone hf:ID#projection. The cost is printed first.

    Examples:
        roibeam search store/ "a dog on a beach" --model run/ --html found.html
        roibeam search store/ "a dog on a beach" --model run/ --among 1000
        roibeam search store/ --region 000000391895:3 --top 20
        roibeam search store/ --photo dog.jpg --index store.index
    """
    from roibeam.messages import on_a_line, plural
    from roibeam.pipelines.analysis.search import search_store

    result = search_store(request)
    if json:
        typer.echo(json_line(asdict(result)))
        return
    for remark in result.notes:
        typer.echo(on_a_line(f"note: {remark}"))
    typer.echo(on_a_line(f"{result.query}: {plural(result.searched, 'photo')} in {result.seconds:.1f} s"))
    for row in result.found:
        region = "" if row["region"] is None else f":{row['region']}"
        words = row["caption"] or row["class"] or ""
        typer.echo(on_a_line(f"{row['rank']:>4}  {row['score']:>8.4f}  {row['image_id']}{region}  {words}"))
    if request.html is not None:
        typer.echo(f"\n{request.html}   the photos, with their best regions")
