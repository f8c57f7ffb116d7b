"""Runs in processes of their own, disturbed at fail points, and what must hold after a rerun: `assert_mended`."""

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from fail_points import FailPoint, install
from prepared_processes import PROCESSES

from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store

# A network of milliseconds; one thread, so that processes forked from one another compute alike.
NETWORK = (
    "--detector", "small", "--weights", "random:1", "--device", "cpu", "--threads", "1",
    "--set", "detector.short_edge=48",
    "--set", "detector.long_edge=80", "--set", "detector.proposals_after_nms=16", "--set", "detector.base_channels=4",
    "--set", "selection.max_regions=12",
)  # fmt: skip
Letter = tuple[str, str, str]  # image id, stage, reason
BAD: list[Letter] = [("sample_00003_bad", "decode", "empty file")]  # of the photos of the fixture `faulty_photos`


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or minus the signal that ended it; what it said, both streams."""

    code: int
    said: str

    @property
    def last_line(self) -> str:
        return (self.said.splitlines() or [""])[-1]


class Run:
    """Work going on in a process of its own.

    Args:
        work: what it does, picklable; an exit code where it ends by SystemExit, 1 for an exception.
        folder: where it may leave its log; its temporary files go into folder/tmp.
        points: where it is disturbed.
    """

    def __init__(self, work: Callable[[], object], folder: Path, points: Sequence[FailPoint] = ()) -> None:
        number = sum(1 for _ in folder.glob("log-*"))
        self.log = folder / f"log-{number}"
        self.log.touch()
        (folder / "tmp").mkdir(exist_ok=True)
        self.process = PROCESSES.Process(target=_work, args=(work, self.log, folder / "tmp", tuple(points)))
        self.process.start()

    def wait(self, seconds: float = 120) -> Ended:
        """Raises AssertionError when it takes longer."""
        self.process.join(seconds)
        said = self.log.read_text(errors="replace")
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            raise AssertionError(f"no end after {seconds} s: {said[-1000:]}")
        return Ended(code, said)

    def wait_for(self, path: Path, seconds: float = 60) -> None:
        """Until another process has made `path`."""
        deadline = time.monotonic() + seconds
        while not path.exists():
            assert self.process.is_alive() and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.002)


def _work(work: Callable[[], object], log: Path, temporary: Path, points: tuple[FailPoint, ...]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["TMPDIR"] = str(temporary)
    if points:
        install(points)
    work()


@dataclass(frozen=True)
class Command:
    """A command line of roibeam, to be called in a process of its own."""

    arguments: tuple[str, ...]

    def __call__(self) -> None:
        from roibeam.pipelines.cli import main as cli

        sys.argv = ["roibeam", *self.arguments]
        cli.main()


@dataclass(frozen=True)
class BucketCommand:
    """A command line whose s3:// is a server of the test's own."""

    command: Command
    settings: Mapping[str, str]

    def __call__(self) -> None:
        import fsspec.config

        os.environ.update(self.settings)
        fsspec.config.set_conf_env(fsspec.config.conf)  # fsspec read the environment when it was imported
        self.command()


def export_in_small_steps(store: Path, out: Path, name: str) -> None:
    """`store export`, with commits of a few records where the format has commits, and its log."""
    from roibeam.features.exchange.lmdb_files import LmdbOutput
    from roibeam.pipelines.common.console.progress import configure_logging
    from roibeam.pipelines.extract.stores.store_export import export_store

    LmdbOutput.__init__.__kwdefaults__["commit_bytes"] = 10_000
    configure_logging()
    export_store(store, out, format_name=name)


def plan_only(command: Command, where: Path) -> None:
    """A run that ends where its workers would begin; leaves in `where` what they would get: the job, and the shards."""
    from roibeam.pipelines.extract import beam_extraction

    def keep(job: Any, plan: Any, *_: object, **__: object) -> None:
        where.write_bytes(pickle.dumps((job, list(plan.shards))))
        raise SystemExit(0)

    beam_extraction.run_extraction = keep
    command()


@dataclass(frozen=True)
class Extraction:
    """One `roibeam extract` of a test: its source, the store it writes and a folder for logs."""

    source: Path
    store: Path
    folder: Path
    options: tuple[str, ...] = ("--shard-size", "2")

    def command(self, *more: str) -> Command:
        arguments = ("extract", str(self.source), str(self.store), *NETWORK, "--max-failures", "1", *self.options)
        return Command((*arguments, *more))

    def start(self, *more: str, points: Sequence[FailPoint] = ()) -> Run:
        self.folder.mkdir(exist_ok=True)
        return Run(self.command(*more), self.folder, points)

    def run(self, *more: str, points: Sequence[FailPoint] = ()) -> Ended:
        return self.start(*more, points=points).wait()


def assert_one_line(ended: Ended, words: str) -> None:
    """The command failed, said why in its last line, and showed no traceback."""
    assert ended.code == 1 and "Traceback" not in ended.said, ended
    assert ended.last_line.startswith("roibeam: ") and words in ended.last_line, ended.last_line


def assert_mended(
    extraction: Extraction, undisturbed: Path, *, dead: Iterable[Letter], options: Sequence[str] = ()
) -> Ended:
    """What must hold after every fault: the same command completes; the store has the content digest and the numerics
    of the undisturbed one; its dead letters are exactly `dead`; no temporary file is left in it, and the rerun leaves
    none elsewhere.

    Args:
        options: what the rerun has beside, such as --retry-dead-letters.
    Returns:
        the rerun.
    """
    temporary = extraction.folder / "tmp"
    before = {path.name for path in temporary.iterdir()}  # Beam's, of a killed process
    rerun = extraction.run(*options)
    assert rerun.code == 0, rerun.said
    with FeatureStore(undisturbed) as want, FeatureStore(extraction.store) as got:
        assert got.manifest.content_digest == want.manifest.content_digest
        assert got.manifest.fingerprint.numerics == want.manifest.fingerprint.numerics
        assert sorted(got.ids()) == sorted(want.ids())
    assert dead_letters(extraction.store) == sorted(dead)
    assert verify_store(extraction.store, deep=True) == []
    assert [*extraction.store.rglob(".*"), *(path for path in temporary.iterdir() if path.name not in before)] == []
    return rerun


def dead_letters(store: Path) -> list[Letter]:
    """The dead letters of a store, by id."""
    rows: list[dict[str, Any]] = pq.read_table(store / "dead_letters.parquet").to_pylist()
    return sorted((row["image_id"], row["stage"], row["reason"]) for row in rows)
