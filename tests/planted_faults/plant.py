"""Faults that our code could have, each planted in a copy of it and run against the test that must notice it.

    python tests/planted_faults/plant.py [NAME ...]

A fault is one text of one file, put in the place of another. Exit code 1 when a test passes over its fault, or fails
without it. With its fault every test runs in a process of its own, forked where the libraries are imported and our
package is not; without, all run in one.
The lists lie beside this file, one for each part of the house.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fault import Fault

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ("src", "bench", "tests", "pyproject.toml")
LIMIT_SECONDS = 300  # of a test; the slowest takes half a minute
LINKED = "tests/goldens"  # only read, and larger than all the rest

sys.path.append(str(HERE))  # no folder of a script is on the path where PYTHONSAFEPATH is set
LISTS: dict[str, tuple[Fault, ...]] = {
    path.stem.removesuffix("_faults"): import_module(path.stem).FAULTS for path in sorted(HERE.glob("*_faults.py"))
}
FAULTS = tuple(fault for faults in LISTS.values() for fault in faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    lists = ", ".join(LISTS)
    parser.add_argument("names", nargs="*", help=f"parts of faults' names, or lists ({lists}); all by default")
    wanted = parser.parse_args().names
    faults = [
        fault for name, listed in LISTS.items() for fault in listed if not wanted or _is_wanted(fault, name, wanted)
    ]
    if not faults:
        parser.error(f"no fault and no list is called {' or '.join(wanted)}")
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
            path = copy / fault.file
            before = path.read_text("utf-8")
            path.write_text(planted_in(fault, before), "utf-8")
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


def _is_wanted(fault: Fault, list_name: str, wanted: list[str]) -> bool:
    return any(list_name == part if part in LISTS else part in fault.name for part in wanted)


def planted_in(fault: Fault, text: str) -> str:
    """The file's text with the fault.

    Raises:
        ValueError: when what it takes the place of does not stand there once.
    """
    if (times := text.count(fault.found)) != 1:
        raise ValueError(f"{fault.name}: {fault.found!r} stands {times} times in {fault.file}; expected once")
    return text.replace(fault.found, fault.planted)


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
