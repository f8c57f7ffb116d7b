"""Kills a small run at each of its file operations in turn, runs the same command again, and compares the stores.

    python kill_at_every_step.py FOLDER [--boxes] [STEP ...]     all steps, or only those given; boxes given or proposed

An audit hook sees every file that the run creates, renames or removes below its store; the n-th of them ends the
process at once, as kill -9 would. Each run is a fork of this process, so that imports cost nothing. Prints one line for
each step and exits 1 if any rerun failed, lost a record, or left something behind.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from features.verify import verify_store
from pipelines import cli, extraction_run
from pipelines.toyworld.draw import draw_samples

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
NETWORK = (
    "--detector", "small", "--weights", "random:1", "--threads", "1", "--set", "detector.short_edge=48",
    "--set", "detector.long_edge=80", "--set", "detector.proposals_after_nms=16", "--set", "detector.base_channels=4",
    "--set", "selection.max_regions=12",
)  # fmt: skip


class KillPoint:
    """Counts file operations below `folder`; at number `kill_at` the process is gone."""

    def __init__(self, folder: Path, kill_at: int | None, log: int) -> None:
        self._folder, self._kill_at, self._log, self._count = os.fspath(folder), kill_at, log, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        path = os.fspath(arguments[0])
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        if not path.startswith(self._folder) or (event == "open" and not (arguments[2] or 0) & writes):
            return
        self._count += 1
        os.write(self._log, f"{event} {path.removeprefix(self._folder)}\n".encode())
        if self._count == self._kill_at:
            os._exit(9)


def run(photos: Path, store: Path, kill_at: int | None, log_path: Path, options: list[str]) -> int:
    """The exit code of one extraction in a fork of this process; 9 when it was killed at its step."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    output = os.open(log_path.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.addaudithook(KillPoint(store, kill_at, log))
    command = ["roibeam", "extract", str(photos), str(store), *NETWORK, "--shard-size", "2", "--max-failures", "1"]
    sys.argv = [*command, *options]
    try:
        cli.main()
    except SystemExit as stopped:
        os._exit(int(stopped.code or 0))
    os._exit(99)


def main() -> None:
    assert extraction_run.run_extract  # imported here, before the forks
    folder, options = Path(sys.argv[1]), []
    torch.set_num_threads(1)
    draw_samples(folder, count=3)
    photos, log = folder / "images", folder / "steps.log"
    (photos / "bad.jpg").write_bytes(b"")
    if "--boxes" in sys.argv:
        rows = [{"image_id": path.stem, "boxes": [[0, 0, 9, 9]] * i} for i, path in enumerate(sorted(photos.iterdir()))]
        (folder / "boxes.jsonl").write_text("\n".join(map(json.dumps, rows)))
        options = ["--boxes", str(folder / "boxes.jsonl")]
    assert run(photos, folder / "undisturbed", None, log, options) == 0, (folder / "steps.out").read_text()
    steps = log.read_text().splitlines()
    wanted = json.loads((folder / "undisturbed" / "manifest.json").read_text())["content_digest"]
    chosen = [int(step) for step in sys.argv[2:] if step != "--boxes"] or range(1, len(steps) + 1)
    bad = 0
    for step in chosen:
        store = folder / "killed"
        shutil.rmtree(store, ignore_errors=True)
        killed = run(photos, store, step, log, options)
        rerun = run(photos, store, None, log, options)
        problems: list[str] = [] if rerun == 0 else [(folder / "steps.out").read_text().strip().splitlines()[-1]]
        if rerun == 0:
            got = json.loads((store / "manifest.json").read_text())["content_digest"]
            problems += [] if got == wanted else ["other content digest"]
            problems += [f"{problem.file}: {problem.what}" for problem in verify_store(store, deep=True)]
            problems += [f"left behind: {path.name}" for path in store.glob(".*")]
        bad += bool(problems) or killed != 9
        verdict = "; ".join(problems) or ("ok" if killed == 9 else f"was not killed but ended with {killed}")
        print(f"{step:3d} of {len(steps)}  {steps[step - 1]:<60}  {verdict}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
