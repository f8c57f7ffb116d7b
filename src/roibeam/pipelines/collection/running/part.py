"""One unit of work on disk: its rows, then a file with its counts, which says that it is done.

    part-00003.jsonl   rows, a JSON object a line
    part-00003.json    fingerprint, counts, examples; written last

A rerun skips a unit whose file names the same fingerprint. Two workers that do one unit write the same bytes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roibeam.features.folders.durable_files import TEMPORARY_SUFFIX, fsync_folder, write_json_atomically
from roibeam.pipelines.foundation.console.progress import Standing
from roibeam.pipelines.foundation.files.json_files import read_json_object

EXAMPLES_PER_REASON = 4
MOST_HOSTS = 20_000  # of one unit; pages of further hosts are counted under OTHER_HOSTS
MOST_HOSTS_IN_ALL = 200_000
OTHER_HOSTS = "(other hosts)"


@dataclass
class Counts:
    """What a unit counted; adds up over units.

    Attributes:
        taken: pages, or pictures, that came in.
        kept: of them.
        reasons: dropped ones by reason.
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

    def count_host(self, host: str, *, is_kept: bool) -> None:
        if host not in self.hosts and len(self.hosts) >= MOST_HOSTS:
            host = OTHER_HOSTS
        both = self.hosts.setdefault(host, [0, 0])
        both[0] += 1
        both[1] += is_kept

    def add_example(self, reason: str, example: dict[str, str]) -> None:
        shown = self.examples.setdefault(reason, [])
        if len(shown) < EXAMPLES_PER_REASON:
            shown.append(example)

    def add(self, other: Counts) -> None:
        """Adds those of the next unit, in the order of units."""
        self.taken += other.taken
        self.kept += other.kept
        self.reasons.update(other.reasons)
        self.text_reasons.update(other.text_reasons)
        self.words.update(other.words)
        for host, (taken, kept) in other.hosts.items():
            if host not in self.hosts and len(self.hosts) >= MOST_HOSTS_IN_ALL:
                host = OTHER_HOSTS
            both = self.hosts.setdefault(host, [0, 0])
            both[0] += taken
            both[1] += kept
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


def part_name(number: int) -> str:
    return f"part-{number:05d}"


def is_done(folder: Path, number: int, fingerprint: str) -> bool:
    """Whether this unit was done with these settings, and its rows are there."""
    path = folder / f"{part_name(number)}.json"
    if not path.is_file():
        return False
    try:
        done = read_json_object(path)
        return done["fingerprint"] == fingerprint and (folder / done["rows"]).stat().st_size == done["bytes"]
    except (ValueError, KeyError, OSError):
        return False  # a damaged one is done again


class FinishedParts:
    """How many units were finished since this was made; for a progress line.

    Args:
        numbers: of the units that are to be done; parts of an earlier run may stand in their places.
    """

    def __init__(self, folder: Path, numbers: Iterable[int]) -> None:
        self._paths = [folder / f"{part_name(number)}.json" for number in numbers]
        self._before = list(map(_written, self._paths))

    def read(self) -> Standing:
        return Standing(sum(_written(path) != was for path, was in zip(self._paths, self._before, strict=True)))


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


class PartWriter:
    """Writes a unit; a context manager. Without `finish`, nothing of it counts."""

    def __init__(self, folder: Path, number: int, fingerprint: str) -> None:
        self._folder, self._number, self._fingerprint = folder, number, fingerprint
        self._place = folder / f"{part_name(number)}.jsonl"
        self._aside = folder / f".{part_name(number)}.{os.getpid()}{TEMPORARY_SUFFIX}"
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> PartWriter:
        self._file = self._aside.open("w", encoding="utf-8", newline="\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._aside.unlink(missing_ok=True)

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=True, sort_keys=True) + "\n")

    def finish(self, counts: Counts) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        num_bytes = self._aside.stat().st_size
        os.replace(self._aside, self._place)
        fsync_folder(self._folder)
        write_json_atomically(
            self._folder / f"{part_name(self._number)}.json",
            {
                "fingerprint": self._fingerprint, "rows": self._place.name, "bytes": num_bytes,
                "counts": counts.to_json(),
            },
        )  # fmt: skip


def read_counts(folder: Path, num_units: int) -> Counts:
    """Those of all units, in their order."""
    total = Counts()
    for number in range(num_units):
        total.add(Counts.from_json(read_json_object(folder / f"{part_name(number)}.json")["counts"]))
    return total


def read_rows(folder: Path, num_units: int) -> Iterator[dict[str, Any]]:
    """Rows of all units, in their order."""
    for number in range(num_units):
        with (folder / f"{part_name(number)}.jsonl").open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
