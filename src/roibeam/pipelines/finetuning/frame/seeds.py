"""Runs that differ in their seed alone: mean, standard deviation and best of what they measured. No torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roibeam.features.folders.full_disk import naming_file
from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.finetuning.frame.finetune_request import FinetuneRequest
from roibeam.pipelines.training.run_folder.checkpoint_sums import check_run_file, put_run_file

SEEDS_NAME = "seeds.json"


def seed_requests(request: FinetuneRequest) -> list[FinetuneRequest]:
    """One for each seed: OUT itself for one, OUT/seed-N for several."""
    if request.seeds == 1:
        return [request]
    numbers = range(request.seed, request.seed + request.seeds)
    return [replace(request, out=request.out / f"seed-{number}", seed=number, seeds=1) for number in numbers]


def seed_summary(
    results: Sequence[tuple[Path, Mapping[str, float | None]]],
    main: str,
    steps: Sequence[int] | None = None,
    *,
    chances: Mapping[str, float | None] = MappingProxyType({}),
) -> dict[str, Any]:
    """
    Args:
        results: folder of each run and its measures.
        main: measure by which the best is chosen.
        steps: of each run, the checkpoint that `train.best_by` chose and the measures are of; None for the last ones.
        chances: by measure, what guessing reaches.
    Returns:
        for each measure that all have: mean, median, sd (of a sample, None for one run), values, chance (None where it
        is not known); and the best run's folder.
    """
    measures = {}
    for name in results[0][1]:
        given = [values.get(name) for _, values in results]
        known = [value for value in given if value is not None]
        if len(known) == len(results):
            sd = statistics.stdev(known) if len(known) > 1 else None
            mean, median = statistics.fmean(known), statistics.median(known)
            measures[name] = {"mean": mean, "median": median, "sd": sd, "values": known, "chance": chances.get(name)}
    best = max(results, key=lambda each: each[1].get(main) or 0.0)[0]
    found = {"main": main, "best": best.name, "runs": [run.name for run, _ in results], "measures": measures}
    return found if steps is None else {**found, "steps": list(steps)}


def write_seeds(out: Path, summary: Mapping[str, Any]) -> Path:
    """Writes OUT/seeds.json, whole or not at all."""
    path = out / SEEDS_NAME
    aside = path.with_name(f".writing-{SEEDS_NAME}")
    with naming_file(path):
        aside.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    put_run_file(aside, path)
    return path


def seeds_of(run: Path) -> dict[str, Any] | None:
    """Of a run that is one of several seeds: how many, mean and sd of the main measure, and whether it is the best."""
    path = run.parent / SEEDS_NAME
    check_run_file(path)
    summary = read_json_object(path) if path.is_file() else {}
    if run.name not in summary.get("runs", ()):
        return None
    main = summary["measures"].get(summary["main"], {})
    return {
        "count": len(summary["runs"]), "measure": summary["main"], "mean": main.get("mean"), "sd": main.get("sd"),
        "is_best": summary.get("best") == run.name,
    }  # fmt: skip


def best_of_seeds(folder: Path) -> Path:
    """The best run of a folder of several seeds; the folder itself where it is of one.

    Raises:
        ValueError: when its list is damaged.
    """
    path = folder / SEEDS_NAME
    if not path.is_file():
        return folder
    check_run_file(path, f"name a run yourself, such as {folder / 'seed-0'}")
    best = read_json_object(path).get("best")
    if not isinstance(best, str) or not (folder / best).is_dir():
        raise ValueError(f"{path} names no run of this folder; name one yourself, such as {folder / 'seed-0'}")
    return folder / best
