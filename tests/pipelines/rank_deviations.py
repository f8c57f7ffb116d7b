"""How far training on several processes is from training on one: every objective, on what is stored and end to end, the
same global batch, no dropout.

    python tests/pipelines/rank_deviations.py [--steps 50]

Prints the largest relative difference of any number of any step's line in the log; exit code 1 above a bound.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "model"))
from end_to_end_examples import ENCODER, FEATURES
from labelled_world import write_labelled
from objectives import OBJECTIVES
from photo_store import PhotoStore, write_photo_store
from ranks import run_ranks, said
from small_end_to_end import CASES, EndToEndTraining
from small_pretraining import SAMPLES, Training, settings

from roibeam.pipelines.data.labelled_photos import LabelledPhotos

BOUNDS = {"float64": 1e-10, "float32": 1e-5}
# The share of an end-to-end run's steps in float32 whose gradient norms need not agree. A ReLU of the encoder that is
# nearly 0 may be open in one of two runs that are rounded differently: one of the 300,000 of a step moves no loss, but
# the norm by 1e-4 of itself. Short steps keep the runs together behind it.
KINKS = 0.1
Log = list[dict[str, Any]]
Logs = dict[tuple[str, str], Log]  # by float type and name


@dataclass(frozen=True)
class InTurn:
    """Some runs, one after the other in the same processes."""

    runs: Sequence[Callable[[], object]]

    def __call__(self) -> None:
        for run in self.runs:
            run()


def trained_on(
    num_ranks: int, objectives: Sequence[str], folder: Path, *, steps: int, kinds: Sequence[str] = tuple(BOUNDS)
) -> Logs:
    """The logs of a run of each objective in each float type."""
    runs = {
        (kind, name): Training(
            folder / kind / name, settings(steps=steps, checkpoint_every=0),
            SAMPLES * OBJECTIVES[name].group // num_ranks, {"objective": name, "double": kind == "float64"},
        )
        for kind in kinds
        for name in objectives
    }  # fmt: skip
    return _logs_of(runs, num_ranks, folder)


@dataclass(frozen=True)
class Photos:
    """What end-to-end runs read."""

    captioned: PhotoStore
    labelled: LabelledPhotos


def write_photos(folder: Path) -> Photos:
    return Photos(write_photo_store(folder, feature_dim=FEATURES), write_labelled(folder / "labelled"))


def trained_end_to_end_on(
    num_ranks: int, cases: Sequence[str], photos: Photos, folder: Path, *, steps: int,
    kinds: Sequence[str] = tuple(BOUNDS),
) -> Logs:  # fmt: skip
    """The logs of a run of each case, with photos all padded to one size: with others it would be another training."""
    runs = {
        (kind, name): EndToEndTraining(
            photos.captioned, folder / kind / name, name, SAMPLES * CASES[name].group // num_ranks, accumulation=1,
            steps=steps, double=kind == "float64", checkpoint_every=0, labelled=photos.labelled,
            padding_multiple=ENCODER.long_edge,
        )
        for kind in kinds
        for name in cases
    }  # fmt: skip
    return _logs_of(runs, num_ranks, folder)


def _logs_of(runs: Mapping[tuple[str, str], Callable[[], object]], num_ranks: int, folder: Path) -> Logs:
    logs = folder / "said"
    codes = run_ranks(InTurn(list(runs.values())), num_ranks, logs, seconds=900)
    assert codes == [0] * num_ranks, said(logs)[-3000:]
    return {(kind, name): log_in(folder / kind / name) for kind, name in runs}


def log_in(folder: Path) -> Log:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def largest_difference(left: Log, right: Log, *, kinks: int = 0) -> float:
    """Of any number of any step, relative; what is null in one must be in the other.

    Args:
        kinks: of so many steps the gradient norm does not count, those where it differs most.
    """
    largest, norms = 0.0, []
    for ours, theirs in zip(left, right, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            assert (ours[name] is None) == (theirs[name] is None), name
            if ours[name]:
                difference = abs(ours[name] - theirs[name]) / abs(ours[name])
                if name == "gradient_norm":
                    norms.append(difference)
                else:
                    largest = max(largest, difference)
    return max([largest, *sorted(norms)[: len(norms) - kinks]])


def differences(left: Logs, right: Logs, *, end_to_end: bool = False) -> dict[tuple[str, str], float]:
    """The largest difference of each run."""
    assert left.keys() == right.keys()
    kinks = {"float32": KINKS if end_to_end else 0.0, "float64": 0.0}
    return {
        (kind, name): largest_difference(log, right[kind, name], kinks=int(kinks[kind] * len(log)))
        for (kind, name), log in left.items()
    }


def too_far(left: Logs, right: Logs, *, end_to_end: bool = False) -> dict[tuple[str, str], float]:
    """Those that are not within the bound of their float type."""
    found = differences(left, right, end_to_end=end_to_end)
    return {(kind, name): far for (kind, name), far in found.items() if not far < BOUNDS[kind]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args().steps
    stored, through = dict[int, Logs](), dict[int, Logs]()
    with tempfile.TemporaryDirectory() as folder:
        photos = write_photos(Path(folder) / "photos")
        for ranks in (1, 2, 4):
            place = Path(folder) / str(ranks)
            stored[ranks] = trained_on(ranks, list(OBJECTIVES), place, steps=steps)
            through[ranks] = trained_end_to_end_on(ranks, list(CASES), photos, place / "end-to-end", steps=steps)
    worst: dict[tuple[str, int], dict[str, float]] = {(kind, ranks): {} for kind in BOUNDS for ranks in (2, 4)}
    for ranks in (2, 4):
        for (kind, name), far in differences(stored[1], stored[ranks]).items():
            worst[kind, ranks][f"`{name}`"] = far
        for (kind, name), far in differences(through[1], through[ranks], end_to_end=True).items():
            worst[kind, ranks][f"`{name}`, end to end"] = far
    print(f"| {steps} steps | " + " | ".join(f"{kind}, {ranks} processes" for kind, ranks in worst) + " |")
    print("|---" * (len(worst) + 1) + "|")
    for name in next(iter(worst.values())):
        print(f"| {name} | " + " | ".join(f"{column[name]:.1e}" for column in worst.values()) + " |")
    return int(any(max(column.values()) >= BOUNDS[kind] for (kind, _), column in worst.items()))


if __name__ == "__main__":
    raise SystemExit(main())
