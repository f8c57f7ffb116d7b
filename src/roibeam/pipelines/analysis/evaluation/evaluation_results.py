"""Results of an evaluation: results.json, with every figure image by image, and report.html.

Two models can be compared on the images of results.json. The report has each measure with its interval, beside chance,
and in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roibeam.features.folders.durable_files import read_regular_file, write_bytes_atomically
from roibeam.features.folders.kept_work import DamagedError, check_sum, write_summed_json
from roibeam.messages import plural
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.console.progress import duration
from roibeam.pipelines.common.page_layout import rendered
from roibeam.pipelines.common.statistics.measure_names import CHANCE, WORDS_ALONE, less_is_better, measure_name
from roibeam.pipelines.common.statistics.verdict import (
    INTERVALS,
    Bootstrap,
    Figure,
    floor_median,
    mean_figure,
    sentence_of,
    verdict_of,
    verdict_sentence,
)
from roibeam.pipelines.training.run_folder.files import PAGE_NAME

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.evaluation.measures import CaptionMeasure
    from roibeam.pipelines.analysis.evaluation.retrieval import Direction

RESULTS_NAME = "results.json"
_FORMAT = 1
# Settings that two results must share to be compared.
_SAME_QUESTION = ("captions_digest", "seed", "max_images", "folds")


def figure_of(measure: CaptionMeasure, bootstrap: Bootstrap) -> Figure:
    return mean_figure(
        measure.name,
        measure.sums,
        measure.counts,
        bootstrap,
        chance=measure.chance,
        best_possible=measure.best_possible,
        words_alone=measure.words_alone,
    )


def median_rank_of(direction: Direction, bootstrap: Bootstrap) -> Figure:
    low, high = bootstrap.median(direction.ranks, direction.image_of_query)
    return Figure(
        f"{direction.name}_median_rank",
        floor_median(direction.ranks),
        low,
        high,
        direction.median_by_chance,
        floor_median(direction.best_possible),
        len(direction.ranks),
    )


def write_results(
    folder: Path,
    facts: Mapping[str, Any],
    figures: Iterable[Figure],
    image_ids: Iterable[str],
    measures: list[CaptionMeasure],
) -> Path:
    """Writes `results.json` into a folder that is there."""
    result = {
        "format": _FORMAT,
        **facts,
        "figures": {figure.name: {k: v for k, v in asdict(figure).items() if k != "name"} for figure in figures},
        "images": {
            "ids": list(image_ids),
            "measures": {
                measure.name: {"sums": measure.sums.tolist(), "counts": measure.counts.astype(int).tolist()}
                for measure in measures
            },
        },
    }
    path = folder / RESULTS_NAME
    # NaN is no JSON; a loss that is not finite must not get this far.
    write_summed_json(path, result, allow_nan=False)
    return path


def read_results(path: Path) -> dict[str, Any]:
    """
    Args:
        path: results.json, or the folder that it is in.
    """
    file = path / RESULTS_NAME if path.is_dir() else path
    found = read_json_object(file, hint="roibeam evaluate writes results.json")
    try:
        check_sum(read_regular_file(file), file)
    except DamagedError as error:
        raise ValueError(f"{error}; restore it, or run the evaluation again") from None
    if found.get("format") != _FORMAT or "images" not in found:
        raise ValueError(f"{file}: no results.json of roibeam evaluate, format {_FORMAT}")
    return found


@dataclass(frozen=True)
class Difference:
    """The first value less the second, and the paired 95 % interval over images."""

    name: str
    first: float
    second: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def verdict(self) -> str:
        """Statement of which model is better in this figure, if the interval excludes zero."""
        if not self.excludes_zero:
            return "no clear difference"
        first_is_better = (self.low > 0) != less_is_better(self.name)
        return f"the {'first' if first_is_better else 'second'} is better"


def compare_results(first: Path, second: Path, *, seed: int = 0) -> list[Difference]:
    """Differences of two models on the same captions, for every figure that both have and that is a mean. Raises
    ValueError when captions, images or seed differ."""
    left, right = read_results(first), read_results(second)
    for name in _SAME_QUESTION:
        if left["question"].get(name) != right["question"].get(name):
            raise ValueError(
                f"{first} and {second} differ in {name} ({left['question'].get(name)!r}, "
                f"{right['question'].get(name)!r}); only answers to the same captions can be compared"
            )
    ids = left["images"]["ids"]
    if ids != right["images"]["ids"]:
        raise ValueError(f"{first} and {second} are of different images; only the same can be compared")
    if len(ids) < 2:
        raise ValueError(f"{first} is of one image; differences have an interval over two images or more")
    bootstrap, found = Bootstrap(len(ids), seed=seed), []
    mine, yours = left["images"]["measures"], right["images"]["measures"]
    for name in mine:
        if name in yours:
            pairs = [np.array(side[name][what], np.float64) for side in (mine, yours) for what in ("sums", "counts")]
            if all(counts.sum() for counts in pairs[1::2]):
                low, high = bootstrap.difference(*pairs)
                of_first, of_second = (float(pairs[place].sum() / pairs[place + 1].sum()) for place in (0, 2))
                found.append(Difference(name, of_first, of_second, low, high))
    return found


_RECALLS = ("_r1", "_r5", "_r10")
_LEGEND = "dot: measured; band: 95 % interval; bar: chance"
_LEGEND_WITH_WORDS = f"dot: measured; band: 95 % interval; orange bar: chance; green bar: {WORDS_ALONE}"
_HEAD = (
    "measure", "value", "95 % interval", CHANCE, WORDS_ALONE, "best possible", "answers", "in words", "from 0 to 100 %",
)  # fmt: skip


def write_evaluation_page(folder: Path, facts: Mapping[str, Any], figures: Sequence[Figure]) -> Path:
    """Writes report.html beside results.json.

    Args:
        folder: that results.json is in.
        facts: of results.json beside its figures.
        figures: in the order of display.
    Returns:
        The path of the page.
    """
    path = folder / PAGE_NAME
    write_bytes_atomically(path, _page(facts, figures).encode())
    return path


def _page(facts: Mapping[str, Any], figures: Sequence[Figure]) -> str:
    checkpoint, question = facts["checkpoint"], facts["question"]
    shares = [figure for figure in figures if measure_name(figure.name).is_share]
    recalls = [figure for figure in shares if figure.name.endswith(_RECALLS)]
    answers = [figure for figure in shares if figure not in recalls]
    ranks = [figure for figure in figures if measure_name(figure.name).is_rank]
    losses = [figure for figure in figures if figure not in shares and figure not in ranks]
    step = "" if checkpoint["step"] is None else f" after {plural(checkpoint['step'], 'step')}"
    scope = f"{plural(question['captions'], 'caption')} of {plural(question['images'], 'image')}"
    first = [*answers, *(figure for figure in recalls if figure.name.endswith("_r1"))]
    source, model = Path(checkpoint["source"]), checkpoint["model"].removesuffix("ForPreTraining")
    run = source if checkpoint["step"] is None else source.absolute().parents[2]
    good = "; ".join(sentence_of(figure) for figure in first)
    way = " end to end" if checkpoint["end_to_end"] else ""
    sections = []
    if answers:
        known = any(figure.words_alone is not None for figure in answers)
        sections.append(_section("Right answers", _LEGEND_WITH_WORDS if known else _LEGEND, answers))
    if recalls:
        total = 100 * sum(figure.value or 0 for figure in recalls)
        remark = f"found among the first 1, 5 and 10; sum of the {len(recalls)}: {total:.1f}"
        sections.append(_section("Retrieval", remark, [*recalls, *ranks]))
    if losses:
        sections.append(_section("Losses", "less is better", losses))
    return rendered(
        "evaluation.html",
        title=f"Evaluation of {run.name}",
        summary=[
            verdict_sentence(first),
            f"{model}{way}{step}, evaluated on {scope} of the store {facts['store']['path']}.",
            f"{good[0].upper()}{good[1:]}." if good else "",
        ],
        remarks=facts["remarks"],
        question=question,
        time=duration(facts["seconds"]),
        sections=sections,
        intervals=INTERVALS,
        with_words=any(figure.words_alone is not None for figure in figures),
        settings=_settings(facts),
    )


def _section(title: str, remark: str, figures: Sequence[Figure]) -> tuple[str, str, list[str], list[list[Any]]]:
    """Title, remark, head and rows of the table of these figures."""
    drawn = any(measure_name(figure.name).is_share for figure in figures)
    left_out = set() if any(figure.words_alone is not None for figure in figures) else {WORDS_ALONE}
    left_out |= set() if drawn else {_HEAD[-1]}
    columns = [place for place, name in enumerate(_HEAD) if name not in left_out]
    rows = [[row[place] for place in columns] for row in map(_row, figures)]
    return title, remark, [_HEAD[place] for place in columns], rows


def _row(figure: Figure) -> list[Any]:
    called = measure_name(figure.name)
    interval, bar = "", None
    if figure.low is not None and figure.high is not None:
        interval = f"{called.formatted(figure.low)} to {called.formatted(figure.high)}"
    if called.is_share and figure.value is not None:
        label = f"{called.formatted(figure.value)}, interval {interval}, chance {called.formatted(figure.chance)}"
        if figure.words_alone is not None:
            label += f", {WORDS_ALONE} {called.formatted(figure.words_alone)}"
        bar = {
            "value": figure.value, "low": figure.low, "high": figure.high, "level": figure.chance,
            "second": figure.words_alone, "label": label,
        }  # fmt: skip
    levels = (figure.chance, figure.words_alone, figure.best_possible)
    return [
        called.title,
        called.formatted(figure.value),
        interval,
        *("" if level is None else called.formatted(level) for level in levels),
        f"{figure.items:,}",
        verdict_of(figure),
        bar,
    ]


def _settings(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    named = {
        "checkpoint": facts["checkpoint"]["source"],
        "weights": facts["checkpoint"]["weights"],
        "store": facts["store"]["path"],
        "captions": (facts.get("asked") or {}).get("captions") or "those that the store keeps",
        "captions digest": facts["question"]["captions_digest"],
        "torch": facts["torch"],
        **facts["settings"],
    }
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in named.items()]
