"""What a family of reference arrays gives the runner: its cases, each of which yields checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from roibeam.pipelines.conformance.checks import Check


@dataclass(frozen=True)
class Case:
    """One file of a family's folder that holds something to reproduce.

    Attributes:
        file: its name in the folder.
        run: computes and compares; raises ValueError or OSError when the file cannot be used.
        lacks: what it needs and this machine does not have, two words such as "photo missing"; it cannot be run then.
    """

    file: str
    run: Callable[[], Iterable[Check]]
    lacks: str = ""

    @property
    def name(self) -> str:
        """The file name without its extension: the kind of case."""
        return Path(self.file).stem


@dataclass(frozen=True)
class OpenFolder:
    """What a family made of its folder.

    Attributes:
        cases: in the order they are best run in.
        inputs: names of the files that cases read (photos, options). Any other file is an unknown case.
    """

    cases: tuple[Case, ...]
    inputs: frozenset[str]


@dataclass(frozen=True)
class Family:
    """One kind of reference folder; each lives in a module of its own.

    Attributes:
        name: of the folder.
        recognises: whether a folder of another name is laid out like this family's.
        open_folder: reads the options and lists the cases; raises ValueError or OSError when they make no sense.
    """

    name: str
    recognises: Callable[[Path], bool]
    open_folder: Callable[[Path], OpenFolder]
