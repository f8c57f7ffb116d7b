"""What an evaluation writes: results.json, every figure image by image, so that two models can be compared on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roibeam.features.folders.durable_files import read_regular_file
from roibeam.features.folders.kept_work import DamagedError, check_sum, write_summed_json
from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.common.statistics.bootstrap import Bootstrap, floor_median
from roibeam.pipelines.common.statistics.measure_names import less_is_better
from roibeam.pipelines.common.statistics.verdict import Figure, mean_figure

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.evaluation.measures import Measure
    from roibeam.pipelines.analysis.evaluation.retrieval import Direction

RESULTS_NAME = "results.json"
_FORMAT = 1
# What two results must share: else they are answers to different questions.
_SAME_QUESTION = ("captions_digest", "seed", "max_images", "folds")


def figure_of(measure: Measure, bootstrap: Bootstrap) -> Figure:
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
    folder: Path, facts: Mapping[str, Any], figures: Iterable[Figure], image_ids: Iterable[str], measures: list[Measure]
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
    Raises:
        ValueError: when there is none, or it is none of ours.
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
        """Which of two models is better in this figure, "the first" or "the second", where the interval tells."""
        if not self.excludes_zero:
            return "no clear difference"
        first_is_better = (self.low > 0) != less_is_better(self.name)
        return f"the {'first' if first_is_better else 'second'} is better"


def compare_results(first: Path, second: Path, *, seed: int = 0) -> list[Difference]:
    """What two models differ by on the same captions, for every figure that both have and that is a mean.

    Raises:
        ValueError: when they were not asked the same: other captions, images or seed.
    """
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
