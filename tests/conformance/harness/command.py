"""Compares our code with reference arrays of the published codes.

Prints for each array its largest error, what is allowed, and whether it fits. A case of true size takes up to a
minute. A case whose photos are missing is listed as not run. See docs/fidelity.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.places import check_some_file_matches, default_folder
from roibeam.pipelines.cli.command_exit import json_line
from roibeam.pipelines.common.console.command_files import check_named_files
from roibeam.pipelines.common.console.progress import waiting

if TYPE_CHECKING:
    from harness.checks import Check
    from harness.runner import CaseResult


def main(arguments: Sequence[str]) -> int:
    """Compares a folder of arrays and prints the result; the exit code is 1 if an array does not fit or a case is not
    known.

    Raises:
        ValueError: when there is no such folder or case.
        SystemExit: with 2, for options that do not exist.
    """
    parser = argparse.ArgumentParser("python tests/conformance", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, help="arrays, as FAMILY/CASE.npz, or one family")
    parser.add_argument("--only", metavar="GLOB", help="run the cases whose family, name or file fits this pattern")
    parser.add_argument("--json", action="store_true", help="print the result as JSON lines")
    words = parser.parse_args(arguments)
    folder = words.folder or default_folder()
    check_named_files([("DIR", folder)])
    if words.only is not None:
        check_some_file_matches(folder, words.only)
    with waiting("loading torch"):
        from harness.runner import run_conformance  # torch: after the folder was looked at

    results = []
    for result in run_conformance(folder, words.only):
        results.append(result)
        if not words.json:
            for check in result.checks if result.known else ():
                print(_line(result.name, check))
            print(f"{result.name}: {_verdict(result)}")
    passed = all(result.passed or result.not_run for result in results)
    if words.json:
        print(json_line({"folder": str(folder), "passed": passed, "cases": list(map(_plain, results))}))
    else:
        print(_summary(folder, results))
    return 0 if passed else 1


def _line(case: str, check: Check) -> str:
    verdict = "ok" if check.passed else "MISS"
    note = f"; {check.note}" if check.note else ""
    return f"{case}  {check.array:<22} {check.error:>9.2e}  <= {check.tolerance:<7.1e} {verdict:<4}  {check.rule}{note}"


def _verdict(result: CaseResult) -> str:
    if result.not_run:
        return f"not run: {result.not_run}"
    count = len(result.checks)
    missed = sum(not check.passed for check in result.checks)
    said = f"{missed} of {count} comparisons MISS" if missed else f"{count} comparisons ok"
    if not result.known:
        said = "; ".join(check.note.replace("unknown case", "UNKNOWN CASE") for check in result.checks)
    return f"{said}, {result.seconds:.1f} s"


def _summary(folder: Path, results: list[CaseResult]) -> str:
    checks = [check for result in results if result.known for check in result.checks]
    missed, unknown = sum(not check.passed for check in checks), sum(not result.known for result in results)
    not_run = sum(bool(result.not_run) for result in results)
    line = f"{folder}: {len(results) - unknown - not_run} cases, {len(checks)} comparisons"
    line += ", all within tolerance" if not missed and not unknown else f", {missed} MISS, {unknown} unknown cases"
    return f"{line}; {not_run} not run" if not_run else line


def _plain(result: CaseResult) -> dict[str, Any]:
    return {
        "case": result.name,
        "known": result.known,
        "passed": result.passed,
        "seconds": round(result.seconds, 3),
        "not_run": result.not_run,
        # JSON knows no infinity; null means that nothing could be compared.
        "checks": [
            asdict(check) | {"error": check.error if math.isfinite(check.error) else None} for check in result.checks
        ],
    }
