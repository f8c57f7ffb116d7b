"""`roibeam score`: anybody's predictions for a downstream task, scored as its official code scores them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roibeam.pipelines.cli.options import JSON
from roibeam.pipelines.cli.surface.json_output import json_line
from roibeam.pipelines.cli.surface.option import argument, option
from roibeam.pipelines.common.console.interruption import typed_again

if TYPE_CHECKING:
    from roibeam.pipelines.finetuning.score_run import Figure, Score


def score_command(
    task: Annotated[str, argument("TASK", "As of `roibeam finetune`; glue for a zip of all its tables.")],
    file: Annotated[Path, argument("FILE", "Predictions, in the task's official format (docs/look.md).")],
    data: Annotated[Path, option("data")],
    split: Annotated[str | None, option("split", default="val; dev of nlvr2 and GLUE; test of retrieval")] = None,
    rules: Annotated[
        str, option("rules", "strict and official; boxes: uniter, vl-bert, vilbert; retrieval: five-folds, subset.")
    ] = "strict",
    check: Annotated[bool, option("check")] = False,
    against: Annotated[Path | None, option("against")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Scores predictions for a task as its official code does.

    The official files of the data set are found in --data by their names. Each score comes with a card, which says
    what was counted and by which rules.

    Examples:
        roibeam score vqa answers.json --data vqa/
        roibeam score nlvr2 a.csv --data nlvr2/ --against b.csv
        roibeam score vcr test.csv --data vcr1annots/ --split test --check
    """
    from roibeam.pipelines.finetuning.score_run import ScoreRequest, run_score

    score = run_score(ScoreRequest(task, file, data, split, rules, against, typed_again(sys.argv)), check_only=check)
    if as_json:
        typer.echo(json_line({"figures": [asdict(figure) for figure in score.figures], "card": score.card}))
        return
    if check:
        count, official = score.card["rows"], score.card["official_rows"]
        of_all = "" if official is None else f" (official {score.card['split']}: {official:,})"
        typer.echo(f"{file}: complete, one row for each of {count:,}{of_all}")
        return
    typer.echo("\n".join([*_table(score, has_second=against is not None), "", *_card(score.card)]))


def _table(score: Score, *, has_second: bool) -> list[str]:
    second = f"{'second':>9}{'first less second':>19}{'95 % interval':>20}" if has_second else ""
    return [f"{'':<32}{'percent':>9}{'95 % interval':>18}{'chance':>9}{'of':>9}{second}", *map(_row, score.figures)]


def _row(figure: Figure) -> str:
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
    from roibeam.pipelines.finetuning.cards.prediction_card import card_lines

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
