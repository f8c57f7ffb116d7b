"""Faults that our code could have, each planted in a copy of it and run against the test that must notice it.

    python tests/planted_faults/plant.py [NAME ...]

A fault is one text of one function, put in the place of another, in whatever file the function is. Exit code 1 when a
test passes over its fault, or fails without it. With its fault every test runs in a process of its own, forked where
the libraries are imported and our package is not; without, all run in one.
The list lies beside this file.
"""

import argparse
import ast
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ("src", "bench", "tests", "pyproject.toml")
LIMIT_SECONDS = 300  # of a test; the slowest takes half a minute
LINKED = "tests/goldens"  # only read, and larger than all the rest

sys.path.append(str(HERE))  # no folder of a script is on the path where PYTHONSAFEPATH is set

from faults import FAULTS, Fault  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of faults' names; all by default")
    parts = parser.parse_args().names or [""]
    faults = [fault for fault in FAULTS if any(part in fault.name for part in parts)]
    if not faults:
        parser.error(f"no fault is called {' or '.join(parts)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    _import_libraries()
    started = time.monotonic()
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        _copy_code(copy)
        tests = list(dict.fromkeys(fault.test for fault in faults))
        if _exit_code(copy, *tests, seconds=LIMIT_SECONDS * len(tests)) != 0:
            failing = [test for test in tests if _exit_code(copy, test) != 0]
            bad += [f"{test} does not pass without any fault" for test in failing]
            print(*bad, sep="\n", flush=True)
        for fault in faults:
            file, text = planted(fault)
            path = copy / file
            before = path.read_text("utf-8")
            path.write_text(text, "utf-8")
            code = _exit_code(copy, fault.test)
            path.write_text(before, "utf-8")
            noticed = code == 1  # pytest: a test failed; 0 none did, 2 and above nothing was tested
            print(
                f"{'noticed' if noticed else f'MISSED ({code})':12} {fault.name}: {fault.test.partition('::')[2]}",
                flush=True,
            )
            if not noticed:
                bad.append(f"{fault.name}: {fault.test} ended with exit code {code}")
    print(f"{len(faults)} faults in {time.monotonic() - started:.0f} s; {len(bad)} problems", *bad, sep="\n")
    return 1 if bad else 0


def planted(fault: Fault) -> tuple[Path, str]:
    """The file, below the repository, that has the fault's place, and its text with the fault.

    Raises:
        ValueError: when what it takes the place of does not stand there once, in one file.
    """
    places = []
    for file, text in _texts().items():
        if fault.found in text:
            places += [(file, start, end) for start, end in _spans(file, fault.function)]
    hits = [(file, start, end) for file, start, end in places if fault.found in _texts()[file][start:end]]
    times = sum(_texts()[file][start:end].count(fault.found) for file, start, end in hits)
    if times != 1:
        raise ValueError(f"{fault.name}: {fault.found!r} stands {times} times in {fault.function}; expected once")
    ((file, start, end),) = hits
    text = _texts()[file]
    return file, text[:start] + text[start:end].replace(fault.found, fault.planted) + text[end:]


@cache
def _texts() -> dict[Path, str]:
    return {
        path.relative_to(ROOT): path.read_text("utf-8")
        for name in ("src", "bench", "tests/conformance") for path in sorted((ROOT / name).rglob("*.py"))
    }  # fmt: skip


def _spans(file: Path, function: str) -> list[tuple[int, int]]:
    """Where in the file its functions and classes of this name begin and end; for the top of a file, all of it."""
    text = _texts()[file]
    beside = function.removeprefix("beside ")
    if not function:
        return [(0, len(text))]
    lines = list(accumulate(map(len, text.splitlines(keepends=True)), initial=0))
    named = [(name, lines[first - 1], lines[last]) for name, first, last in _definitions(ast.parse(text), "")]
    if beside != function:
        return [(0, len(text))] if any(name == beside for name, _, _ in named) else []
    return [(start, end) for name, start, end in named if name == function]


def _definitions(node: ast.AST, room: str) -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of each function and class; the first is that of its decorators."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{room}.{child.name}" if room else child.name
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            yield name, first, child.end_lineno or first
            yield from _definitions(child, name)
        else:
            yield from _definitions(child, room)


def _import_libraries() -> None:
    import accelerate
    import cv2
    import hypothesis
    import lmdb
    import pytest
    import torch
    import torchvision
    import transformers.modeling_utils

    assert all(
        module.__name__ for module in (accelerate, cv2, hypothesis, lmdb, pytest, torch, torchvision, transformers)
    )
    torch.set_num_threads(1)


def _copy_code(copy: Path) -> None:
    copy.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=_not_copied)
        else:
            shutil.copy2(source, copy / name)
    if (ROOT / LINKED).is_dir():
        (copy / LINKED).symlink_to(ROOT / LINKED)


def _not_copied(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__" or Path(folder, name) == ROOT / LINKED}


def _exit_code(copy: Path, *tests: str, seconds: int = LIMIT_SECONDS) -> int:
    """Of pytest on tests of the copy; less than 0 when they hung."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            signal.alarm(seconds)  # which ends the process: a fault may make its test hang
            os.chdir(copy)
            sys.path.insert(0, str(copy / "src"))
            os.environ["PYTHONPATH"] = str(copy / "src")  # of the processes that a test starts
            sys.dont_write_bytecode = True
            import pytest

            code = int(pytest.main(["-x", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(copy), *tests]))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    raise SystemExit(main())
