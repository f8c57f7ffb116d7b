"""Stores hurt by thousands of seeds, read in child processes: an error or the truth, never a crash, a hang or a lie."""

from __future__ import annotations

import encodings.utf_16_be
import encodings.utf_16_le
import encodings.utf_32_be
import encodings.utf_32_le
import os
import resource
import signal
import sys
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_mutations import FAMILIES, Original, examine, hurt, write_original

SHARE = float(os.environ.get("ROIBEAM_SOAK", "1"))
SEEDS_OF_A_SOAK = 2500
_SECONDS_PER_MUTATION = 30
_SLACK = 4 * 2**20  # arenas of the allocators, which grow in steps
_CODE = ("exec", "compile", "marshal.loads", "pickle.find_class", "ctypes.", "subprocess.", "os.system", "os.exec",
         "os.posix_spawn", "os.fork", "socket.")  # fmt: skip
# json finds these by itself in hurt text, and the child watches what is imported and opened.
_WARM = (encodings.utf_16_be, encodings.utf_16_le, encodings.utf_32_be, encodings.utf_32_le)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return write_original(tmp_path_factory.mktemp("fuzz") / "store")


@pytest.mark.parametrize("family", FAMILIES)
def test_hurt_stores(original: Original, family: str) -> None:
    noticed = in_a_child(original, family, range(6))
    assert noticed.total() == 6


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_thousands_of_hurt_stores(original: Original, family: str) -> None:
    count = int(SEEDS_OF_A_SOAK * SHARE)
    noticed = in_a_child(original, family, range(1000, 1000 + count))
    print(f"{family}: {count} mutations, noticed by {dict(noticed)}")
    assert noticed.total() == count
    assert noticed["f"] + noticed["d"] > count // 4, noticed


def in_a_child(original: Original, family: str, seeds: range) -> Counter[str]:
    """Examines each mutation in one fork of this process, limited in address space and, each, in time.

    Returns:
        how many were noticed by whom, as `examine` tells.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            _examine_all(original, family, seeds, writing)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        marks = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for name, data in original.files.items():
        _write(original.folder / name, data)
    assert code == 0, f"exit code {code} ({_signal(code)}) at seed {seeds[min(len(marks), len(seeds) - 1)]} of {family}"
    return Counter(marks)


def _signal(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else "an exception, printed above"


def _examine_all(original: Original, family: str, seeds: range, writing: int) -> None:
    seen: list[str] = []
    sys.addaudithook(_watch(original.folder, seen))
    assert examine(original, {}) == "."
    unhurt = _traced_peak(lambda: examine(original, {}))
    _limit_memory(2 * original.num_bytes)
    seen.clear()
    for seed in seeds:
        changed = hurt(original, family, seed)
        seen.clear()
        for name, data in changed.items():
            _write(original.folder / name, data)
        signal.alarm(_SECONDS_PER_MUTATION)
        if seed % 10:
            mark = examine(original, changed)
        else:
            marks: list[str] = []
            peak = _traced_peak(lambda changed=changed, marks=marks: marks.append(examine(original, changed)))
            grown = max(sum(map(len, changed.values())), original.num_bytes)
            assert peak <= unhurt + 2 * grown, f"{peak} bytes of memory, {unhurt} for the unhurt store of {grown} bytes"
            (mark,) = marks
        signal.alarm(0)
        assert not seen, seen
        for name in changed:
            _write(original.folder / name, original.files[name])
        os.write(writing, mark.encode())


def _watch(folder: Path, seen: list[str]) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that notes code being run, and files opened for writing or outside of `folder`."""
    inside = os.fspath(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_CODE):
            seen.append(f"{event} {arguments[:1]!r:.200}")
        elif event == "open" and isinstance(arguments[0], str) and not arguments[0].startswith(inside):
            seen.append(f"open {arguments[0]}")

    return hook


def _traced_peak(read: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _limit_memory(more: int) -> None:
    status = Path("/proc/self/status").read_text()
    (peak,) = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmPeak:")]
    limit = peak + more + _SLACK
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # a new file: maps of the one before stay whole
    path.write_bytes(data)
