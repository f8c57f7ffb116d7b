"""Fixtures that several packages' tests share."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[1]
# Lets every test import these modules: pytest's importlib mode adds no folder by itself. Not the folder of this file,
# whose features/, model/ and others would hide our packages.
sys.path += [str(REPOSITORY / "tests" / "helpers"), str(REPOSITORY / "tools")]
SHARED = REPOSITORY.parent / "shared"

# A shell starts background jobs with Ctrl-C ignored, and processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # after -m has left tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests marked `soak(cases=True)` only a share of the cases is run, where a share is asked for.

    Those marked `long` begin first, each in another process: at the end all would wait for them.
    """
    from soak_share import share_of

    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        if any(mark.kwargs.get("cases") for mark in item.iter_markers("soak")):
            by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {item for name, cases in by_test.items() for item in set(cases).difference(share_of(cases, name))}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if item not in long]
    for number, item in enumerate(long):  # xdist gives each process a row of neighbours to begin with
        items.insert(number % processes * (len(items) + 1) // processes, item)


def pytest_collection() -> None:
    """What imports and collection make stays for the whole run: the garbage collector would look at it for seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.propagate = True  # else pytest adds its handlers to more than fifty loggers, three times a test
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Else Python's end would leave all of it, and libraries would tell of hundreds of leaked objects."""
    gc.unfreeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads waiting for a core that others use make small tests many times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The project's pack of real photos, vocabularies and tool outputs; not part of a clone."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs the real photos, vocabularies and tool outputs of ../shared/data")
    return SHARED / "data"


@pytest.fixture(scope="session")
def made_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made annotation files of every data set, laid out as `shared_data`. Shared: read only."""
    from annotation_pack import write_annotations

    return write_annotations(tmp_path_factory.mktemp("annotations"))


class CliResult(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def roibeam(capfd: pytest.CaptureFixture[str]) -> Callable[..., CliResult]:
    """Runs the command line in this process: roibeam("extract", folder, out, ...) -> exit code, stdout, stderr."""
    from in_process import run_roibeam
    from json_lines import json_lines

    def run(*args: object) -> CliResult:
        capfd.readouterr()
        code = run_roibeam(*args)
        captured = capfd.readouterr()
        if "--json" in args:
            json_lines(captured.out)  # whatever the test is about
        return CliResult(code, captured.out, captured.err)

    return run


# A network of the same family that takes milliseconds: for tests of what surrounds it.
TINY_NETWORK = (
    "--detector", "small", "--weights", "random:1", "--device", "cpu",
    "--set", "detector.short_edge=48", "--set", "detector.long_edge=80", "--set", "detector.proposals_after_nms=16",
    "--set", "detector.base_channels=4", "--set", "selection.max_regions=12",
)  # fmt: skip


@pytest.fixture(scope="session")
def tiny_network() -> tuple[str, ...]:
    """Options of `roibeam extract` for a network of milliseconds."""
    return TINY_NETWORK
