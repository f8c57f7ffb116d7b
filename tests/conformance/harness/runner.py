"""Walks a tree of reference arrays, runs every case through the code users run, tells what misses.

    DIR/<family>/<case>.npz | <case>.json     a case: something to reproduce
    DIR/<family>/case.json, config_*.json     options, read by the family
    DIR/<family>/README.md                    passed over, as every .md and every hidden file

Nothing is skipped in silence: a file that no family knows, and a folder of a family that is not built yet, fail; a case
whose photos are not on this machine is listed as not run.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from harness.checks import Case, Check, Family, OpenFolder, failed
from harness.detector.family import DETECTOR_FAMILY
from harness.detector.networks import NETWORK_FAMILIES
from harness.finetuning.family import FINETUNING_FAMILIES
from harness.interbert_family import INTERBERT_FAMILY
from harness.metrics.box_cases import BOX_METRICS
from harness.metrics.choice_cases import CHOICE_METRICS
from harness.metrics.entity_cases import ENTITY_METRICS
from harness.metrics.retrieval_cases import RETRIEVAL_METRICS
from harness.metrics.vqa_cases import VQA_METRICS
from harness.places import matches
from harness.vilbert_family import VILBERT_FAMILY
from harness.visualbert_family import VISUALBERT_FAMILY
from harness.vlbert.family import VLBERT_FAMILY
from roibeam.pipelines.common.console.progress import Progress, Unit

# A new family is one module and one line here.
FAMILIES: MappingProxyType[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            *FINETUNING_FAMILIES,  # first: their weights have the names of the models' families
            *NETWORK_FAMILIES, DETECTOR_FAMILY, INTERBERT_FAMILY, VILBERT_FAMILY, VISUALBERT_FAMILY, VLBERT_FAMILY,
            VQA_METRICS, CHOICE_METRICS, ENTITY_METRICS, BOX_METRICS, RETRIEVAL_METRICS,
        )
    }
)  # fmt: skip


@dataclass(frozen=True)
class CaseResult:
    """One case and what its arrays said."""

    name: str  # <family>/<case>
    known: bool  # whether a family knows the file; an unknown one has one failed check that says so
    checks: tuple[Check, ...]
    seconds: float  # it took
    not_run: str = ""  # why it could not be run here, such as "photo missing"; then it has no checks and did not pass

    @property
    def passed(self) -> bool:
        return self.known and bool(self.checks) and all(check.passed for check in self.checks)


@dataclass(frozen=True)
class PlannedCase:
    """A case that was found, before it runs; `case` is None for an unknown file, `why` says what it is."""

    family: str
    file: str
    case: Case | None
    why: str = ""

    @property
    def name(self) -> str:
        return f"{self.family}/{Path(self.file).stem}"


def run_conformance(folder: Path, only: str | None = None) -> Iterator[CaseResult]:
    """Every case below `folder`, one result at a time.

    Args:
        folder: a tree of family folders, or one family's folder.
        only: shell pattern; a case runs when its family, its name, its file or <family>/<name> matches.
    Raises:
        ValueError: when there is no such folder, nothing in it, or nothing that matches.
    """
    planned = plan_cases(folder)
    chosen = [case for case in planned if only is None or matches(case.family, case.file, only)]
    if not chosen:
        raise ValueError(
            f"no case below {folder} matches --only {only!r}; there are {', '.join(case.name for case in planned[:8])}"
            + (", ..." if len(planned) > 8 else "")
            if planned
            else f"{folder} holds no case; expected <family>/<case>.npz, families: {', '.join(FAMILIES)}"
        )
    with Progress("comparing", len(chosen), Unit("case", "cases")) as progress:
        for case in chosen:
            progress.note(case.name)
            result = _run(case)
            progress.one_more()
            yield result


def plan_cases(folder: Path) -> list[PlannedCase]:
    """Everything below `folder` that is a case, or unknown."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; expected one laid out as <family>/<case>.npz")
    files = [path for path in _visible(folder) if not path.is_dir()]
    if files:  # the folder of one family, by its name or its looks
        own = (family for family in FAMILIES.values() if family.recognises(folder))
        if family := FAMILIES.get(folder.resolve().name) or next(own, None):
            return list(_plan_family(folder, family))
    planned = [PlannedCase(".", path.name, None, "a file outside every family's folder") for path in files]
    for inner in _visible(folder):
        if inner.is_dir():
            known = FAMILIES.get(inner.name)
            why = f"no family {inner.name!r}; known: {', '.join(FAMILIES)}"
            unknown = (PlannedCase(inner.name, path.name, None, why) for path in _visible(inner))
            planned.extend(_plan_family(inner, known) if known else unknown)
    return planned


def _plan_family(folder: Path, family: Family) -> Iterator[PlannedCase]:
    try:
        opened = family.open_folder(folder)
    except (ValueError, OSError) as error:
        # Without its options no case of the folder can run; each is listed, so that the count of cases stays.
        opened = OpenFolder((), frozenset())
        why = f"the folder's options cannot be used: {error}"
    else:
        why = f"no case of family {family.name!r} has such a name"
    for case in opened.cases:
        yield PlannedCase(family.name, case.file, case)
    known = opened.inputs | {case.file for case in opened.cases}
    for path in _visible(folder):
        if path.name not in known:
            yield PlannedCase(family.name, path.name, None, why)


def _visible(folder: Path) -> list[Path]:
    """What lies in a folder, by name, without documentation and hidden files."""
    return sorted(path for path in folder.iterdir() if path.suffix != ".md" and not path.name.startswith("."))


def _run(planned: PlannedCase) -> CaseResult:
    if planned.case is not None and planned.case.lacks:
        return CaseResult(planned.name, True, (), 0.0, planned.case.lacks)
    started = time.monotonic()
    checks: list[Check] = []
    if planned.case is None:
        checks.append(failed(planned.file, f"unknown case: {planned.why}"))
    else:
        try:
            checks.extend(planned.case.run())
            if not checks:  # a case that compares nothing proves nothing
                checks.append(failed(planned.file, "nothing in it was compared"))
        except (ValueError, OSError) as error:
            checks.append(failed(planned.file, str(error)))
    return CaseResult(planned.name, planned.case is not None, tuple(checks), time.monotonic() - started)
