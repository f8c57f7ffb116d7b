"""Kills a command at named stages of writing a store, each time at the same place; what must hold after a kill.

    python fail_points.py FOLDER [STAGE:COUNT ...]     extracts six drawn photos, killed at each point or those given

The fork that runs the command wraps the calls that the stage is known by, counts them, and at the n-th sends itself
SIGKILL. Its standard error, with the name of the stage as the last line, is the log.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from features.record import RegionRecord
from features.shard import ShardWriter
from features.store import FeatureStore
from features.verify import verify_store

TRANSACTION = "in a transaction"  # after the n-th record of the run was put
COMMIT = "in a commit"  # the system writes n pages of a data file and refuses the rest of what LMDB commits
SYNC = "before sync"  # at the n-th data file that is to be made durable
PUBLICATION = "between data and manifest"  # at the n-th shard manifest that is to get its name
STORE = "before the store manifest"
STAGES = (TRANSACTION, COMMIT, SYNC, PUBLICATION)
KILLS = 5
_PAGE = 4096
_FIRST_PAGES = 2  # LMDB writes its meta pages when it makes the file


def run(work: Callable[[], object], log: Path, stage: str | None = None, count: int = 0) -> int:
    """Runs `work` in a fork of this process, killed when it reaches `stage` for the `count`-th time.

    Returns:
        0, 1 for an exception, or minus the signal that ended it. `log` then has its standard error.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if stage is not None:
            _install(stage, count)
        work()
        status = 0
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _install(stage: str, count: int) -> None:
    left = 1 if stage == COMMIT else count

    def reached(what: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.write(2, f"fail point: {stage}, number {count}: {what}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    put, fsync, replace, unlink = ShardWriter.put, os.fsync, os.replace, Path.unlink

    def counted_put(self: ShardWriter, record: RegionRecord) -> None:
        put(self, record)
        reached(record.image_id)

    def counted_fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".lmdb"):
            reached(path)
        fsync(descriptor)

    def counted_replace(source: Any, target: Any) -> None:
        name = os.path.basename(target)
        if (name.startswith("part-") and name.endswith(".json")) if stage == PUBLICATION else name == "manifest.json":
            reached(target)
        replace(source, target)

    def unlink_of_the_half_written(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".lmdb":
            reached(f"{self.stat().st_size} bytes of {self}")
        unlink(self, missing_ok)

    if stage == TRANSACTION:
        ShardWriter.put = counted_put  # type: ignore[method-assign]
    elif stage == SYNC:
        os.fsync = counted_fsync
    elif stage in (PUBLICATION, STORE):
        os.replace = counted_replace
    else:
        # Python ignores the signal of this limit, so the write is cut short, LMDB gives up, and before the writer can
        # delete the file the process is gone.
        limit = (_FIRST_PAGES + count) * _PAGE - 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        Path.unlink = unlink_of_the_half_written  # type: ignore[method-assign]


def disturb(work: Callable[[], object], out: Path, wanted: Path, log: Path, stage: str, count: int) -> list[str]:
    """Kills `work` at a fail point, looks at what it left in `out`, runs it again and compares with `wanted`.

    Returns:
        everything that should not be; [] when nothing is lost, nothing twice and nothing half.
    """
    shutil.rmtree(out, ignore_errors=True)
    ended = run(work, log, stage, count)
    said = log.read_text().strip().splitlines()
    bad = []
    if ended != -signal.SIGKILL:
        return [f"was not killed but ended with {ended}: {said[-1:]}"]
    if not said[-1].startswith(f"fail point: {stage}, number {count}: "):
        bad.append(f"the log ends with {said[-1]!r}")
    # No shard or a whole one: whatever has a manifest is sound to its last byte, the rest is named as left over.
    left = verify_store(out, deep=True)
    others = [problem for problem in left if not problem.leftover]
    if [problem.file for problem in others] != ["manifest.json"] or "has not finished" not in others[0].what:
        bad.append(f"after the kill: {others}")
    if len(left) < 2:
        bad.append("verify does not name what the kill left")
    if again := run(work, log):
        return [*bad, f"the rerun ended with {again}: {log.read_text()[-300:]}"]
    bad += [f"after the rerun: {problem.file}: {problem.what}" for problem in verify_store(out, deep=True)]
    with FeatureStore(wanted) as want, FeatureStore(out) as got:
        if got.manifest.content_digest != want.manifest.content_digest:
            bad.append("other content digest")
        if sorted(got.ids()) != sorted(want.ids()):
            bad.append("other ids")
    return bad


def main() -> None:
    """Prints one line for each kill; the exit code is 1 if any left something wrong."""
    import torch
    from kill_at_every_step import NETWORK

    from pipelines import cli, extraction_run
    from pipelines.toyworld.draw import draw_samples

    assert extraction_run.run_extract  # imported here, before the forks
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    points = [(point.partition(":")[0], int(point.partition(":")[2])) for point in sys.argv[2:]]
    draw_samples(folder, count=6)

    def extraction(store: Path) -> Callable[[], object]:
        def work() -> None:
            sys.argv = ["roibeam", "extract", str(folder / "images"), str(store), *NETWORK, "--shard-size", "1"]
            cli.main()

        return work

    log, wanted, out = folder / "log", folder / "wanted", folder / "out"
    assert run(extraction(wanted), log) == 0, log.read_text()
    wrong = 0
    for stage, count in points or [(stage, count) for stage in STAGES for count in range(1, KILLS + 1)]:
        bad = disturb(extraction(out), out, wanted, log, stage, count)
        wrong += bool(bad)
        print(f"{stage}, number {count}: {'; '.join(bad) or 'ok'}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
