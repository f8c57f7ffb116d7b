"""`roibeam finetune | predict | score`: a model learns a task, predicts a split of it, and predictions are scored.

Predictions of other code bases are scored too, as the official code of the task scores them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.common.compute import sleep_beside_others
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.common.console.request_options import INPUT, QUESTION, Json, argument, option
from roibeam.pipelines.common.console.termination import typed_again
from roibeam.pipelines.finetuning.requests import FinetuneRequest, PredictRequest

if TYPE_CHECKING:
    from roibeam.pipelines.finetuning.run.finetune_run import FinetuneResult
    from roibeam.pipelines.finetuning.score_run import Score, ScoredFigure


def finetune_command(request: FinetuneRequest, json: Json = False) -> None:
    """Trains a pre-trained model on a task, from stored features or through the detector's network.

    Tasks are vqa, vcr, nlvr2, refcoco, refcoco+, refcocog, flickr30k-entities, retrieval and those of GLUE (cola,
    sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli), from their official files; labels, one label for an image and a
    text, from a table of your own; or a file of your own task. torchrun runs it on several GPUs.

    Examples:
        roibeam finetune r --task rte --recipe interbert-rte --toy --from r0 --data d
        roibeam finetune vqa-run/ --task vqa --from run/ --store store/ --data vqa/
        roibeam finetune r/ --task labels --from run/ --store store/ --data my/
        roibeam finetune r/ --task vqa --from run/ --store s/ --data vqa/ --seeds 3
        roibeam finetune r/ --task vcr --from run/ --store s/ --data d/ --end-to-end
    """
    request = replace(request, command=typed_again(sys.argv))
    # Before torch is imported.
    from roibeam.pipelines.finetuning.run.finetune_request import seed_requests, seed_summary, write_seeds
    from roibeam.pipelines.finetuning.run.finetune_settings import check_finetune

    check_finetune(request)
    sleep_beside_others()
    with waiting("loading torch"):
        from roibeam.pipelines.cli.figure_table import print_dry_run
        from roibeam.pipelines.common.compute import is_main_process
        from roibeam.pipelines.finetuning.run.finetune_run import run_finetuning

    if request.dry_run:
        print_dry_run(lambda out: run_finetuning(replace(request, out=out)), as_json=json)
        return
    results = [run_finetuning(each) for each in seed_requests(request)]
    if not is_main_process():
        return
    for result in results:
        _print_result(result, None if request.toy else request.recipe, as_json=json)
    if request.seeds > 1:
        chosen = [each.evaluated_step for each in results] if any(each.is_of_best for each in results) else None
        chances = {figure.name: figure.chance for figure in results[0].figures}
        measured = [(each.run_dir, each.evaluation) for each in results]
        summary = seed_summary(measured, results[0].main, chosen, chances=chances)
        path = write_seeds(request.out, summary)
        _print_seeds(path, summary, as_json=json)


def _print_result(result: FinetuneResult, recipe: str | None, *, as_json: bool) -> None:
    from roibeam.pipelines.cli.figure_table import origin_facts, origin_lines, run_folder_lines, task_lines

    if as_json:
        typer.echo(json_line({**result.to_json(), **origin_facts(result.run_dir)}))
        return
    out = result.run_dir
    typer.echo(result.training.done())
    typer.echo(origin_lines(out))
    if result.figures:
        best = f", the best checkpoint, step {result.evaluated_step:,}" if result.is_of_best else ""
        typer.echo(f"evaluated on {result.asked:,} of the validation split{best}:")
        typer.echo("\n".join(task_lines(result.figures, result.last_evaluation if result.is_of_best else {})))
        if recipe is not None:
            ours = {each.name: None if each.value is None else 100 * each.value for each in result.figures}
            for line in (line for split in ("val", "dev", "dev_matched") for line in _printed(recipe, ours, split)):
                typer.echo(line)
    if result.encoder is not None:
        from roibeam.pipelines.training.run_folder.run_summary import encoder_lines

        typer.echo("\n".join(encoder_lines(result.encoder)))
    typer.echo(f"\n{out}/\n  {result.training.checkpoint.relative_to(out)}/   weights, optimizer, position")
    typer.echo("\n".join([*run_folder_lines(out, result.training), "  tokenizer/"]))


def _print_seeds(path: Path, summary: Mapping[str, Any], *, as_json: bool) -> None:
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


def predict_command(request: PredictRequest, json: Json = False) -> None:
    """Writes a fine-tuned model's predictions, as the task's test server takes them.

    `roibeam score` scores them; FILE.card.json, beside them, describes the model. A call that was stopped continues
    when it is repeated; torchrun runs it on several GPUs.

    Examples:
        roibeam predict vqa-run/ --store store/ --data vqa/ --out answers.json
        roibeam predict vqa-run/ --store store/ --data vqa/ --blind --out blind.json
        roibeam predict r/ --store s/ --data vqa/ --out a.json --page a.html
        roibeam predict r/ --store s/ --data flickr/ --split test --out scores.npy
        roibeam predict qa/ qar/ --store s/ --data vcr/ --split test --out vcr.csv
    """
    from roibeam.pipelines.finetuning.run.predict_request import check_predict, checkpoints_of, predicts_pairs
    from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS

    request = replace(request, command=typed_again(sys.argv))
    check_predict(request)
    with waiting("loading torch"):
        from roibeam.pipelines.common.compute import is_main_process
        from roibeam.pipelines.finetuning.run.predict_pairs import run_pair_prediction
        from roibeam.pipelines.finetuning.run.predict_run import run_prediction

    result = run_pair_prediction(request) if predicts_pairs(checkpoints_of(request)[0]) else run_prediction(request)
    if not is_main_process():
        return
    if json:
        facts = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(result).items()}
        facts["parts_made"] = facts.pop("made")
        typer.echo(json_line(facts))
        return
    for note in result.notes:
        typer.echo(f"note: {note}")
    if result.page is not None:
        what = "the best and the worst of them" if result.judged else "the surest and the least sure of them"
        typer.echo(f"{result.page}   {what}")
    if result.scores is not None:
        typer.echo(f"{result.scores}   the score of every label")
    scored = f"roibeam score {result.task} {result.out} --data {request.data}"
    known = SCORED_TASKS.get(result.task)
    if known is not None and result.split != next(iter(known.splits)):
        scored += f" --split {result.split}"
    if result.unjudged:  # which `roibeam score` refuses, but for its form
        which = "the right ones are" if not result.judged else f"the right ones of {result.unjudged:,} are"
        scored = f"{which} not known; {scored} --check"
    typer.echo(f"{result.out}   {result.groups:,} answers; {scored}")


def score_command(
    task: Annotated[str, argument("TASK", "Task, as in `roibeam finetune --task`; glue for a zip of all its tables.")],
    file: Annotated[Path, argument("FILE", "Predictions, in the task's official format (docs/look.md).")],
    data: Annotated[Path, option("Folder with the official files of a data set.", "DIR", INPUT)],
    split: Annotated[str | None, option(
        "Use only this split, such as train, val or test.", "NAME", INPUT,
        default="that of the predictions if known, else val (nlvr2 and GLUE: dev, retrieval: test)",
    )] = None,
    rules: Annotated[str, option(
        "Rules by which predictions are counted. strict and official; boxes: uniter, vl-bert, vilbert; retrieval: "
        "five-folds, subset.", "NAME", QUESTION,
    )] = "strict",
    check: Annotated[bool, option(
        "Only check that the predictions are complete and in the right format.", "", QUESTION,
    )] = False,
    against: Annotated[Path | None, option(
        "Compare with this second file of predictions, row by row.", "FILE", QUESTION,
    )] = None,
    recipe: Annotated[str, option(
        "Also print the figures of this recipe's paper; `roibeam recipes` lists them.", "NAME", QUESTION,
        default="that of the run that made the predictions",
    )] = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Scores predictions for a task as its official code does.

    The official files of the data set are found in --data by their names. Each score comes with a card of what was
    counted, and by which rules.

    Examples:
        roibeam score vqa answers.json --data vqa/
        roibeam score nlvr2 a.csv --data nlvr2/ --against b.csv
        roibeam score vcr test.csv --data vcr1annots/ --split test --check
    """
    from roibeam.pipelines.finetuning.score_run import ScoreRequest, run_score

    if recipe:
        _check_task(recipe, task)
    score = run_score(ScoreRequest(task, file, data, split, rules, against, typed_again(sys.argv)), check_only=check)
    ours = {figure.name: figure.percent for figure in score.figures}
    printed = [
        line
        for each in ([recipe] if recipe else _recipes_of(score.card["predicted"][0]))
        for line in _printed(each, ours, score.card["split"], score.card)
    ]
    printed = printed or [f"printed, of the recipe {recipe}, {score.card['split']}: no figure"] * bool(recipe)
    if as_json:
        facts = {"printed": printed} if printed else {}
        figures = [asdict(figure) for figure in score.figures]
        typer.echo(json_line({"figures": figures, "card": score.card, **facts}))
        return
    if check:
        count, official = score.card["rows"], score.card["official_rows"]
        of_all = "" if official is None else f" (official {score.card['split']}: {official:,})"
        typer.echo("\n".join((f"{file}: complete, one row for each of {count:,}{of_all}", *printed)))
        return
    lines = _table(score, has_second=against is not None)
    typer.echo("\n".join([*lines, "", *([*printed, ""] if printed else []), *_card(score.card)]))


def _recipes_of(predicted: Mapping[str, Any]) -> list[str]:
    """Recipes of the runs that made predictions, by their card, without those of toys."""
    from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES

    second = predicted.get("second")
    models = [each.get("model") for each in (predicted, second) if isinstance(each, dict)]
    names = [str(each.get("recipe")) for each in models if isinstance(each, dict) and each.get("toy") is False]
    return [name for name in dict.fromkeys(names) if name in TASK_RECIPES]


def _check_task(recipe: str, task: str) -> None:
    from roibeam.pipelines.finetuning.recipes.published import task_recipe_named

    of_recipe = task_recipe_named(recipe).task
    if of_recipe != task:
        raise ValueError(f"--recipe {recipe} is of the task {of_recipe}, not {task}")


def _printed(
    recipe: str, ours: Mapping[str, float | None], split: str, card: Mapping[str, Any] | None = None
) -> list[str]:
    """Lines on what the paper has of a split, and what the measured percent is less it; a submission has none.

    Args:
        card: of the score; None for figures of a run.
    """
    from roibeam.pipelines.cli.recipe_commands import printed_figures
    from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES

    options, rules, on_coco = TASK_RECIPES[recipe].options, None, None
    own = getattr(options, "box_rule", "refer")
    if card is not None:
        rules = card["rules"]
        on_coco = any("dataset_coco" in path for path in card["labels"]) if card["task"] == "retrieval" else None
    other_rule = f"; the recipe counts by --rules {own}" if own not in ("refer", rules) and rules else ""
    lines = [f"printed, of the recipe {recipe}, {split}:"]
    for measure, figures in printed_figures(recipe, split, in_folds=rules == "five-folds", on_coco=on_coco).items():
        value = ours.get(measure)
        each = ", ".join(f"{one.printed} ({one.column}; {one.where})" for one in figures)
        less = "" if value is None or len(figures) > 1 else f"; ours less it {value - figures[0].value:+.2f}"
        less = other_rule or less
        less = less if ours or not split.startswith("test") else ", from the test server"
        lines.append(f"  {measure}: {each}{less}")
    return lines if len(lines) > 1 else []


def _table(score: Score, *, has_second: bool) -> list[str]:
    second = f"{'second':>9}{'first less second':>19}{'95 % interval':>20}" if has_second else ""
    return [f"{'':<32}{'percent':>9}{'95 % interval':>18}{'chance':>9}{'of':>9}{second}", *map(_row, score.figures)]


def _row(figure: ScoredFigure) -> str:
    from roibeam.pipelines.finetuning.metrics.vqa import printed_percent

    interval = "" if figure.low is None else f"{100 * figure.low:.2f} .. {100 * (figure.high or 0):.2f}"
    value = "undefined" if figure.percent is None else f"{printed_percent(figure.percent):.2f}"
    chance = "" if figure.chance is None else f"{100 * figure.chance:.2f}"
    row = f"{figure.name[:31]:<32}{value:>9}{interval:>18}{chance:>9}{figure.rows:>9,}"
    if figure.against is not None:
        row += f"{printed_percent(100 * figure.against):>9.2f}{100 * (figure.less or 0):>+19.2f}"
        if figure.less_low is not None:
            row += f"{f'{100 * figure.less_low:+.2f} .. {100 * (figure.less_high or 0):+.2f}':>20}"
    return f"{row}  {figure.verdict}".rstrip()


def _card(card: dict[str, Any]) -> list[str]:
    from roibeam.pipelines.finetuning.prediction_card import card_lines

    rows, official = card["rows"], card["official_rows"]
    whole = "the whole split" if official in (rows, None) else f"the official split has {official:,}"
    lines = [
        ("task", f"{card['task']}, {card['split']}: {rows:,} rows; {whole}"),
        ("metric", card["metric"]),
        ("rules", f"{card['rules']}: {card['rules_words']}"),
        *(
            ("numbers", ", ".join(f"{name} {value:,.2f}" for name, value in numbers.items()))
            for numbers in card.get("numbers", {}).values()
        ),
        *(("labels", f"{path}  sha256 {digest[:16]}") for path, digest in card["labels"].items()),
    ]
    for (path, digest), predicted in zip(card["results"].items(), card["predicted"], strict=False):
        lines.append(("results", f"{path}  sha256 {digest[:16]}"))
        unknown = predicted.get("unknown")
        lines += card_lines(predicted) if unknown is None else [("model", unknown)]
    lines += [("command", card["command"])]
    return [f"{name:<8} {value}" for name, value in lines]
