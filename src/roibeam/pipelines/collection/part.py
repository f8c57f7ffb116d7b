"""One unit of work on disk: its rows, then a file with its counts, which marks it as done.

    part-00003.jsonl   rows, a JSON object a line
    part-00003.json    fingerprint, counts, examples; written last

A rerun skips a unit whose file names the same fingerprint. Two workers that do one unit write the same bytes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from roibeam.features.folders.kept_work import KeptFile, kept_work, read_summed_json, write_mark
from roibeam.pipelines.common.console.progress import ProgressState

EXAMPLES_PER_REASON = 4
MOST_HOSTS = 20_000  # of one unit; pages of further hosts are counted under OTHER_HOSTS
MOST_HOSTS_IN_ALL = 200_000
OTHER_HOSTS = "(other hosts)"


@dataclass
class Counts:
    """Counts of a unit; they add up over units.

    Attributes:
        taken: pages, or pictures, that came in.
        text_reasons: candidate texts by the rule against them.
        words: number of words of kept texts -> texts.
        hosts: host -> [taken, kept].
        examples: reason -> the first few, each a few plain texts.
    """

    taken: int = 0
    kept: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    text_reasons: Counter[str] = field(default_factory=Counter)
    words: Counter[int] = field(default_factory=Counter)
    hosts: dict[str, list[int]] = field(default_factory=dict)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def count_host(self, host: str, taken: int, kept: int, *, most: int = MOST_HOSTS) -> None:
        if host not in self.hosts and len(self.hosts) >= most:
            host = OTHER_HOSTS
        both = self.hosts.setdefault(host, [0, 0])
        both[0] += taken
        both[1] += kept

    def drop(self, reason: str, example: dict[str, str]) -> None:
        """Counts a dropped one, and keeps the first few examples."""
        self.reasons[reason] += 1
        self.add_example(reason, example)

    def add_example(self, reason: str, example: dict[str, str]) -> None:
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES_PER_REASON:
            examples.append(example)

    def add(self, other: Counts) -> None:
        """Adds the counts of the next unit, in the order of units."""
        self.taken += other.taken
        self.kept += other.kept
        self.reasons.update(other.reasons)
        self.text_reasons.update(other.text_reasons)
        self.words.update(other.words)
        for host, (taken, kept) in other.hosts.items():
            self.count_host(host, taken, kept, most=MOST_HOSTS_IN_ALL)
        for reason, examples in other.examples.items():
            for example in examples:
                self.add_example(reason, example)

    def to_json(self) -> dict[str, Any]:
        return {
            "taken": self.taken, "kept": self.kept, "reasons": dict(sorted(self.reasons.items())),
            "text_reasons": dict(sorted(self.text_reasons.items())),
            "words": {str(count): self.words[count] for count in sorted(self.words)},
            "hosts": dict(sorted(self.hosts.items())), "examples": dict(sorted(self.examples.items())),
        }  # fmt: skip

    @staticmethod
    def from_json(data: dict[str, Any]) -> Counts:
        return Counts(
            data["taken"], data["kept"], Counter(data["reasons"]), Counter(data["text_reasons"]),
            Counter({int(count): texts for count, texts in data["words"].items()}), data["hosts"], data["examples"],
        )  # fmt: skip


def _mark(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.json"


class FinishedParts:
    """Number of units finished since this was made; for a progress line.

    Args:
        numbers: of the units that are to be done; parts of an earlier run may stand in their places.
    """

    def __init__(self, folder: Path, numbers: Iterable[int]) -> None:
        self._paths = [_mark(folder, number) for number in numbers]
        self._before = list(map(_written, self._paths))

    def read(self) -> ProgressState:
        return ProgressState(sum(_written(path) != was for path, was in zip(self._paths, self._before, strict=True)))


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@dataclass(frozen=True)
class UnitJob(ABC):
    """Work on units, which have a number from 0; plain and picklable, travels to the workers.

    Attributes:
        folder: where parts go; seen by all workers.
    """

    folder: str

    @abstractmethod
    def fingerprint(self, unit: Any) -> str:
        """All that decides the rows of a unit."""

    @abstractmethod
    def rows(self, unit: Any, counts: Counts) -> Iterator[Any]:
        """Dataclasses; when the last was taken, the counts are those of the unit."""

    def is_done(self, unit: Any) -> bool:
        """Whether the unit was done with these settings, and its rows are there."""
        return kept_work(_mark(Path(self.folder), unit.number), self.fingerprint(unit)) is not None

    def do(self, unit: Any) -> None:
        """Writes a unit. Until all of it is there, nothing of it counts."""
        mark, counts = _mark(Path(self.folder), unit.number), Counts()
        mark.parent.mkdir(parents=True, exist_ok=True)
        with KeptFile(mark.with_suffix(".jsonl")) as file:
            for row in self.rows(unit, counts):
                file.write(json.dumps(asdict(row), ensure_ascii=True, sort_keys=True).encode("ascii") + b"\n")
            file.finish()
            write_mark(mark, self.fingerprint(unit), [file], counts=counts.to_json())


def read_counts(folder: Path, num_units: int) -> Counts:
    """Reads the counts of all units, in their order."""
    total = Counts()
    for number in range(num_units):
        total.add(Counts.from_json(read_summed_json(_mark(folder, number))[0]["counts"]))
    return total


def read_rows(folder: Path, num_units: int) -> Iterator[dict[str, Any]]:
    """Reads the rows of all units, in their order."""
    for number in range(num_units):
        with _mark(folder, number).with_suffix(".jsonl").open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
