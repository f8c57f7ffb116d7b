"""A run in figures, from its folder: how long it took, how large its model is, how good it is beside chance.

RUN/summary.json    what the last evaluation of a run asked, found, and what it stands beside
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from roibeam.pipelines.common.files.json_files import read_json_object
from roibeam.pipelines.common.statistics.measure_names import measure_name
from roibeam.pipelines.common.statistics.verdict import Figure

SUMMARY_NAME = "summary.json"
_PRETRAINING = (
    "Masks and pairs are drawn by the training rules of this system. roibeam evaluate asks all systems alike and hides "
    "15 % of words and regions, so its numbers differ from these."
)
_ASIDE = f".writing-{SUMMARY_NAME}"


@dataclass(frozen=True)
class RunSummary:
    """What a run ended with; a file of its own, which runs of earlier versions have without its last fields.

    Attributes:
        system: title of what was trained, such as "VisualBERT"; "" for that of its configuration.
        asked: what the evaluation asked about, for people.
        held_out: whether the run was not trained on it.
        evaluation: numbers by name; None where there was nothing to measure.
        chance: what a model reaches that knows nothing, by the same names.
        items: how many answers each number is of.
        words_alone: what counting neighbouring words finds without any picture, by the same names; none in old runs.
        intervals: ends of the 95 % interval over images, by the same names; none in old runs, and of what has none.
        question: how it was asked, for people.
    """

    system: str
    asked: str
    held_out: bool
    evaluation: Mapping[str, float | None]
    chance: Mapping[str, float]
    items: Mapping[str, int]
    words_alone: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    question: str = _PRETRAINING

    @classmethod
    def of_figures(
        cls, figures: Sequence[Figure], *, system: str, asked: str, held_out: bool, question: str = _PRETRAINING
    ) -> RunSummary:
        return cls(
            system,
            asked,
            held_out,
            {each.name: each.value for each in figures},
            {each.name: each.chance for each in figures if each.chance is not None},
            {each.name: each.items for each in figures if each.items},
            {each.name: each.words_alone for each in figures if each.words_alone is not None},
            {each.name: (each.low, each.high) for each in figures if each.low is not None and each.high is not None},
            question,
        )

    @property
    def figures(self) -> list[Figure]:
        """Of all numbers, shares first."""
        names = sorted(self.evaluation, key=lambda name: not measure_name(name).is_share)
        return list(map(self._figure, names))

    def _figure(self, name: str) -> Figure:
        low, high = self.intervals.get(name, (None, None))
        items, alone = self.items.get(name, 0), self.words_alone.get(name)
        return Figure(name, self.evaluation[name], low, high, self.chance.get(name), None, items, alone)


def write_summary(run_dir: Path, summary: RunSummary) -> None:
    """Replaces RUN/summary.json."""
    aside = run_dir / _ASIDE
    aside.write_text(json.dumps(asdict(summary), indent=1) + "\n", encoding="utf-8")
    aside.replace(run_dir / SUMMARY_NAME)


def read_summary(run_dir: Path) -> RunSummary | None:
    """None where the run has none: it was ended before, or is no pre-training."""
    path = run_dir / SUMMARY_NAME
    return RunSummary(**read_json_object(path)) if path.is_file() else None


def training_seconds(lines: Sequence[Mapping[str, Any]]) -> float:
    """How long the steps of log.jsonl took, over all calls that the run went on in; evaluations are in it.

    Each call counts its seconds from its own start.
    """
    total, before = 0.0, 0.0
    for line in lines:
        seconds = line["seconds"]
        total += seconds - before if seconds >= before else seconds
        before = seconds
    return total


def number_of_weights(run_dir: Path) -> int | None:
    """Numbers in the newest checkpoint's weight file, read from its header; None where there is none."""
    files = sorted(run_dir.glob("checkpoints/step-*/model/*.safetensors"))
    newest = [file for file in files if file.parents[1] == files[-1].parents[1]]
    return sum(map(_numbers_in, newest)) if newest else None


def _numbers_in(file: Path) -> int:
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        tensors = json.loads(opened.read(length))
    return sum(prod(each["shape"]) for name, each in tensors.items() if name != "__metadata__")
