"""One run of pre-training: its command, the training in a process of its own, and what it is asked afterwards."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from evidence.arms import ARMS, BESIDE, MATCHING, QUICK_STEPS, Arm
from evidence.run_answers import rounded_tallies
from evidence.weights import keep_weights, write_bert
from evidence.worlds import ROIBEAM, World

CURVES = ("masked_word_accuracy", "masked_region_accuracy", "matching_accuracy")


class PretrainingRuns:
    """
    Args:
        weights: folder of the weights that are kept.
        quick: few steps, to see that all of it works.
        device: where models are trained and asked, as `--device`.
    """

    def __init__(self, world: World, *, weights: Path, quick: bool, device: str = "cpu") -> None:
        self.world, self.weights, self.quick, self.device = world, weights, quick, device

    def folder(self, arm: Arm, seed: int) -> Path:
        return self.world.work / "runs" / f"{arm.id}-{seed}"

    def steps(self, arm: Arm) -> int:
        return QUICK_STEPS if self.quick else arm.steps

    def is_trained(self, arm: Arm, seed: int) -> bool:
        return (self.folder(arm, seed) / "trained").exists()

    def command(self, arm: Arm) -> str:
        """As it is shown: files by their place in WORK, without run folder, seed and what watches the training."""
        files = [f"--store stores/{arm.store} --captions captions/{arm.captions}.json"]
        files += ["--text-corpus captions/corpus.txt"] if arm.text_corpus else []
        files += ["--labels captions/labels.json"] if arm.labels else []
        files += [f"--from-run runs/{arm.needs}"] if arm.after else []
        files += [f"--from-bert berts/{arm.needs}"] if arm.bert else []
        return " ".join(["roibeam pretrain", *files, *arm.arguments(steps=self.steps(arm))])

    def answers(self, arm: Arm, seed: int) -> dict[str, Any]:
        """Trains what is not trained, asks, and keeps the weights that are to be kept.

        Returns:
            "curve" and "tallies".
        """
        self.train(arm, seed)
        found = {"curve": evaluated(self.folder(arm, seed), CURVES), "tallies": self._tallies(arm, seed)}
        if arm.kept and seed == 0:
            keep_weights(self.folder(arm, seed), self.weights / arm.id)
        return found

    def train(self, arm: Arm, seed: int) -> None:
        """A run that was stopped goes on at its newest checkpoint."""
        if self.is_trained(arm, seed):
            return
        folder, world = self.folder(arm, seed), self.world
        start = ["--tokenizer", str(world.tokenizer)]
        if arm.needs:
            before = ARMS[arm.needs]
            self.train(before, seed)
            if arm.after:
                start = ["--from-run", str(self.folder(before, seed))]
            else:
                bert = world.work / "berts" / f"{before.id}-{seed}"
                start += ["--from-bert", str(write_bert(self.folder(before, seed), bert))]
        command = [
            *(*ROIBEAM, "pretrain", str(folder), "--store", str(world.store(arm.store)), "--min-match", "0"),
            *("--captions", str(world.captions(arm.captions))),
            *("--validation-captions", str(world.captions("validation"))),
            *(["--text-corpus", str(world.corpus)] if arm.text_corpus else []),
            *(["--labels", str(world.labels), "--labels-photos", str(world.photos)] if arm.labels else []),
            *("--seed", str(seed), "--device", self.device, "--threads", "1", *self._loaders, *start),
            *arm.arguments(steps=self.steps(arm)),
        ]
        logged(command, folder.with_suffix(".log"))
        (folder / "trained").touch()

    @property
    def _loaders(self) -> tuple[str, ...]:
        """A GPU would wait for batches that are made between its steps; they are the same, wherever they are made."""
        return () if self.device == "cpu" else ("--set", "data.workers=1")

    def _tallies(self, arm: Arm, seed: int) -> dict[str, Any]:
        from evidence.mask_patterns import patterns_tally
        from evidence.questions import Asked
        from roibeam.features.store import FeatureStore

        folder = self.folder(arm, seed)
        with FeatureStore(self.world.store(arm.store)) as store:
            asked = Asked(folder, store, self.world, device=self.device)
            tallies: dict[str, Any] = dict(asked.measured(arm.measures))
            if (MATCHING in arm.measures or BESIDE in arm.measures) and arm.captions != "permuted":
                captions = self.world.captions(arm.captions)
                tallies["patterns"] = patterns_tally(folder, store, captions, arm.system, arm.sampling)
        return rounded_tallies({name: (tally.right, tally.asked) for name, tally in tallies.items()})


def evaluated(folder: Path, names: tuple[str, ...]) -> dict[str, list[float]]:
    """The measures that all evaluations of a run have, with their steps."""
    rows = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text("utf-8").splitlines()]
    found = [name for name in names if all(row.get(name) is not None for row in rows)]
    return {
        "steps": [row["step"] for row in rows],
        **{name: [round(row[name], 4) for row in rows] for name in found},
    }


def logged(command: list[str], log: Path) -> None:
    """Runs a command, whose words go behind those of the log; SystemExit where it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        done = subprocess.run(command, check=False, stdout=out, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"{log}: ended with {done.returncode}: {' '.join(command)}")
