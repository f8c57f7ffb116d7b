"""Threads of a process that extracts share one pool of memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Eight threads at once, each of which allocates; then what glibc says of its heaps.
COUNT_HEAPS = """
import ctypes, sys, threading
from roibeam.pipelines.extract.shard.process_setup import use_one_arena

if sys.argv[1] == "one":
    use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
together = threading.Barrier(8)
def allocate():
    libc.malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fopen.restype, libc.malloc_info.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
file = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
@pytest.mark.parametrize(
    ("called", "users_own", "expected"), [("not", None, range(2, 17)), ("one", None, [1]), ("one", "3", [3])]
)
def test_threads_get_one_heap_or_what_the_user_says(
    tmp_path: Path, called: str, users_own: str | None, expected: range | list[int]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    if users_own is not None:
        environment["MALLOC_ARENA_MAX"] = users_own
    info = tmp_path / "info.xml"
    subprocess.run([sys.executable, "-c", COUNT_HEAPS, called, str(info)], env=environment, check=True)
    assert info.read_text().count("<heap nr=") in expected
