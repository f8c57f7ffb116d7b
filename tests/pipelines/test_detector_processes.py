"""Two processes train as one does that adds up two micro-batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from roibeam.extraction.training.batch_losses import LOSSES
from roibeam.pipelines.toyworld.write import write_world

OPTIONS = [
    "--detector", "toy", "--conventions", "vlbert-e2e", "--device", "cpu", "--weights", "random:1", "--steps", "4",
    "--warmup-steps", "1", "--batch-size", "1", "--learning-rate", "0.001",
    "--set", "detector.base_channels=4", "--set", "detector.short_edge=64", "--set", "detector.long_edge=96",
    "--set", "sampling.proposals_before_nms=80", "--set", "sampling.proposals_after_nms=30",
]  # fmt: skip


@pytest.mark.slow
def test_two_processes_are_two_micro_batches(tmp_path: Path) -> None:
    write_world(tmp_path / "world", seed=5, num_images=40, workers=1)
    labels = str(tmp_path / "world" / "visual_genome" / "train.txt")
    tools = Path(sys.executable).parent
    roibeam = [str(tools / "roibeam"), "detector", "train"]
    alone = [*roibeam, str(tmp_path / "alone"), "--labels", labels, *OPTIONS, "--set", "train.accumulation=2"]
    pair = [
        str(tools / "torchrun"), "--no-python", "--standalone", "--nproc-per-node", "2",
        *roibeam, str(tmp_path / "pair"), "--labels", labels, *OPTIONS,
    ]  # fmt: skip
    for command in (alone, pair):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    runs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("alone", "pair")
    ]
    for ours, theirs in zip(*runs, strict=True):
        assert ours["samples"] == theirs["samples"]
        for name in (*LOSSES, "loss", "gradient_norm", "proposal_recall"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-7, err_msg=name)
