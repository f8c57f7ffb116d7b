"""Answers of runs, as results/ has them.

results/<store>.jsonl.xz              one line per run, by arm and seed: what is kept in git
results/<store>/<arm>-<seed>.json     answers that are newer than the table, until `pack` puts them there
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TABLE = ".jsonl.xz"


def rounded_tallies(tallies: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """By question: (pictures,) right answers and (pictures,) asked ones, short enough to be kept."""
    return {
        name: {"right": [_rounded(value) for value in right], "asked": asked.astype(int).tolist()}
        for name, (right, asked) in tallies.items()
    }


def _rounded(value: float) -> float:
    """Whole numbers as such, others with four digits."""
    return int(value) if value == int(value) else round(float(value), 4)


def read_runs(results: Path) -> dict[str, dict[str, Any]]:
    """Answers of all runs by "<store>/<arm>-<seed>", in the order of these names."""
    found = {}
    for table in results.glob(f"*{TABLE}"):
        with lzma.open(table, "rt", encoding="utf-8") as lines:
            for run in map(json.loads, lines):
                found[f"{run['store']}/{run['arm']}-{run['seed']}"] = run
    for path in results.glob("*/*.json"):
        found[f"{path.parent.name}/{path.stem}"] = json.loads(path.read_text("utf-8"))
    return dict(sorted(found.items()))


def pack(results: Path) -> None:
    """Moves the answers that have a file of their own into the table of their store."""
    files = list(results.glob("*/*.json"))
    runs = read_runs(results)
    for store in {path.parent.name for path in files}:
        lines = [json.dumps(runs[name], separators=(",", ":")) for name in runs if name.startswith(f"{store}/")]
        aside = results / f"{store}.part"
        aside.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9))
        aside.rename(results / f"{store}{TABLE}")
    for path in files:
        path.unlink()
    for folder in {path.parent for path in files}:
        if not any(folder.iterdir()):
            folder.rmdir()
