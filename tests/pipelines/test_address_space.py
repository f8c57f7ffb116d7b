"""A limit on the address space: one line at the end, whatever part runs out of it, in Python or in C++."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image
from soak_share import some

from roibeam.pipelines.cli.command_exit import FAILED

WORDS = "roibeam: not enough memory"


class Ended(NamedTuple):
    code: int
    err: str

    @property
    def last(self) -> str:
        return self.err.splitlines()[-1]


def under(kilobytes: int, *command: object, folder: Path, threads: int = 1) -> Ended:
    limited = ["bash", "-c", f'ulimit -v {kilobytes}; exec "$@"', "-", *map(str, command)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(limited, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (80, 60)).save(tmp_path / "photos" / "a.png")
    return tmp_path


EXTRACT = (sys.executable, "-m", "roibeam", "extract", "photos", "store", "--detector", "toy")


@pytest.mark.parametrize("kilobytes", [1_500_000, 3_500_000])
def test_below_what_torch_maps_it_is_not_begun_with(folder: Path, kilobytes: int) -> None:
    """It ended in a line, in an error called ours, or in C++ with std::bad_alloc, as chance had it."""
    done = under(kilobytes, *EXTRACT, folder=folder)
    assert done.code == FAILED and done.last.startswith(f"{WORDS}: the address space is limited to "), done
    assert "ulimit -v" in done.last and "Traceback" not in done.err


@pytest.mark.parametrize("kilobytes", [400_000, 580_000])
def test_below_what_every_command_maps_nothing_large_is_imported(folder: Path, kilobytes: int) -> None:
    """Our own imports ran out: a segmentation fault, a traceback or a page of numpy's, as chance had it."""
    done = under(kilobytes, sys.executable, "-m", "roibeam", "--help", folder=folder)
    assert done.code == FAILED and done.err.startswith(f"{WORDS}: the address space is limited to 0."), done
    assert "every command needs 0.6 GB" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("threads", [1, 64])
def test_commands_without_torch_need_little(folder: Path, threads: int) -> None:
    """However many threads OpenBLAS would start: each of them maps 0.18 GB."""
    done = under(600_000, sys.executable, "-m", "roibeam", "recipes", folder=folder, threads=threads)
    assert done == (0, "")


ENDS = {
    "in C++": ("os.abort()", -6, True),
    "by a library": ("os._exit(1)", 1, True),
    "with a word": ("say_goodbye(); sys.exit('of our own')", 1, False),
    "well": ("say_goodbye()", 0, False),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_without_a_word_is_told_by_another_process(folder: Path, end: str) -> None:
    how, code, is_told = ENDS[end]
    script = f"""
import os, sys
from roibeam.pipelines.common.console.termination import report_silent_exit
say_goodbye = report_silent_exit()
{how}
"""
    done = under(1_500_000, sys.executable, "-c", script, folder=folder)
    assert done.code == code and done.err.startswith(WORDS) == is_told and done.err.count("\n") <= 1, done


LIMITS = (100_000, 400_000, 600_000, 800_000, 1_200_000, 4_450_000, 4_600_000, 5_000_000, 5_500_000)
# Below what torch needs an end takes no time; above it one a number of threads is enough, with more of them a soak.
KEPT = {(limit, threads) for limit in LIMITS for threads in (1, 64) if limit < 4_000_000}
KEPT |= {(4_450_000, 64), (5_500_000, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("limit", some(itertools.product(LIMITS, (1, 64)), KEPT), ids=str)
def test_every_limit_gives_the_line_or_what_was_asked_for(folder: Path, limit: tuple[int, int]) -> None:
    """Above the least that torch needs, threads run out of memory first: OpenMP's and OpenBLAS's end the process."""
    kilobytes, threads = limit
    done = under(kilobytes, *EXTRACT, folder=folder, threads=threads)
    if done.code == 0:
        assert (folder / "store" / "manifest.json").is_file()
    else:
        assert done.last.startswith(WORDS) and "ulimit -v" in done.last, done
    assert "Traceback" not in done.err and "fault of roibeam" not in done.err
