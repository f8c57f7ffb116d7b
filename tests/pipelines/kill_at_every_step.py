"""Kills a small run at each of its file operations in turn, runs the same command again, and compares the stores.

    python kill_at_every_step.py FOLDER [--boxes] [STEP ...]     all steps, or only those given; boxes given or proposed

See `forks.in_a_fork` and, for how many are all, `soak_share`. Prints one line for each step and exits 1 if any rerun
failed, lost a record, or left something behind.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import torch
from disturbed_runs import NETWORK
from forks import KILLED, in_a_fork
from soak_share import share_of

from roibeam.features.verify import verify_store
from roibeam.pipelines.cli import main as cli
from roibeam.pipelines.extract import beam_extraction
from roibeam.pipelines.toyworld.rendering import draw_samples


def run(photos: Path, store: Path, kill_at: int | None, output: Path, options: list[str]) -> tuple[int, list[str]]:
    """One extraction in a fork of this process, as `in_a_fork`; what it prints goes to `output`."""

    def work() -> None:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        command = ["roibeam", "extract", str(photos), str(store), *NETWORK, "--shard-size", "2", "--max-failures", "1"]
        sys.argv = [*command, *options]
        cli.main()

    return in_a_fork(work, store, kill_at)


def main() -> None:
    assert beam_extraction.run_extract  # imported here, before the forks
    folder, options = Path(sys.argv[1]), []
    torch.set_num_threads(1)
    draw_samples(folder, count=3)
    photos, output = folder / "images", folder / "output"
    (photos / "bad.jpg").write_bytes(b"")
    if "--boxes" in sys.argv:
        rows = [{"image_id": path.stem, "boxes": [[0, 0, 9, 9]] * i} for i, path in enumerate(sorted(photos.iterdir()))]
        (folder / "boxes.jsonl").write_text("\n".join(map(json.dumps, rows)))
        options = ["--boxes", str(folder / "boxes.jsonl")]
    code, steps = run(photos, folder / "undisturbed", None, output, options)
    assert code == 0, output.read_text()
    wanted = json.loads((folder / "undisturbed" / "manifest.json").read_text())["content_digest"]
    chosen = [int(step) for step in sys.argv[2:] if step != "--boxes"] or share_of(
        range(1, len(steps) + 1), str(options[:1])
    )
    bad = 0
    for step in chosen:
        store = folder / "killed"
        shutil.rmtree(store, ignore_errors=True)
        killed, _ = run(photos, store, step, output, options)
        rerun, _ = run(photos, store, None, output, options)
        problems: list[str] = [] if rerun == 0 else [output.read_text().strip().splitlines()[-1]]
        if rerun == 0:
            got = json.loads((store / "manifest.json").read_text())["content_digest"]
            problems += [] if got == wanted else ["other content digest"]
            problems += [f"{problem.file}: {problem.what}" for problem in verify_store(store, deep=True)]
            problems += [f"left behind: {path.name}" for path in store.glob(".*")]
        bad += bool(problems) or killed != KILLED
        verdict = "; ".join(problems) or ("ok" if killed == KILLED else f"was not killed but ended with {killed}")
        print(f"{step:3d} of {len(steps)}  {steps[step - 1]:<60}  {verdict}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
