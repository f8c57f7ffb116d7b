"""One run of fine-tuning: its command, the training, and what its predictions score, picture by picture."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence.pretraining_runs import evaluated, logged
from evidence.run_answers import rounded_tallies
from evidence.tasks.own_pictures import OwnPictures
from evidence.tasks.task_arms import BLIND, PERMUTED, TaskArm
from evidence.tasks.task_world import TaskWorld
from evidence.weights import write_untrained
from evidence.worlds import ROIBEAM

QUICK_STEPS = 20


class TaskRuns:
    """
    Args:
        own: tasks about the pictures of pre-training.
        weights: folder of the kept weights.
        quick: few steps, to see that all of it works.
        device: where models are trained and asked, as `--device`.
    """

    def __init__(self, world: TaskWorld, own: OwnPictures, *, weights: Path, quick: bool, device: str = "cpu") -> None:
        self.world, self.own, self.weights, self.quick, self.device = world, own, weights, quick, device

    def folder(self, arm: TaskArm, seed: int) -> Path:
        return self.world.work / "runs" / f"{arm.id}-{seed}"

    def steps(self, arm: TaskArm) -> int:
        return QUICK_STEPS if self.quick else arm.rules.steps

    def command(self, arm: TaskArm) -> str:
        """As it is shown: files by their place in WORK/tasks, without run folder and seed, in the task's precision."""
        return self._command(arm, arm.rules.precision)

    def _command(self, arm: TaskArm, precision: str) -> str:
        start = f"weights/{arm.start}" if arm.start else f"untrained/{arm.shape}"
        store = f"--store stores/{self._store_name(arm)} " if arm.rules.has_regions else ""
        files = f"--from {start} {store}--data {'again' if arm.rules.is_own else 'tasks'}/{arm.rules.name}"
        return " ".join(["roibeam finetune", files, *arm.arguments(steps=self.steps(arm), precision=precision)])

    def answers(self, arm: TaskArm, seed: int) -> dict[str, Any]:
        """Trains what is not trained, and asks.

        Returns:
            "curve", "tallies", and "precision" where it is not the task's own.
        """
        folder, precision = self.folder(arm, seed), precision_here(arm.rules.precision, self.device)
        self._forget_others(folder, self._command(arm, precision))
        if not (folder / "trained").exists():
            start = self.weights / arm.start
            if not arm.start:
                start = write_untrained(
                    self.weights / arm.shape, self.world.work / "untrained" / f"{arm.shape}-{seed}", seed
                )
            store = self._store(arm)
            files = ("--data", str(self._files(arm)), *(() if store is None else ("--store", store)))
            where = ("--seed", str(seed), "--device", self.device, "--threads", "1")
            command = [*ROIBEAM, "finetune", str(folder), "--from", str(start), *files, *where]
            arguments = arm.arguments(steps=self.steps(arm), precision=precision)
            logged([*command, *arguments], folder.with_suffix(".log"))
            (folder / "trained").touch()
        return {
            **({} if precision == arm.rules.precision else {"precision": precision}),
            "curve": evaluated(folder, tuple(name for measures in arm.rules.splits.values() for name in measures)),
            "tallies": self._tallies(arm, seed),
        }

    @staticmethod
    def _forget_others(folder: Path, command: str) -> None:
        """Removes a run of another command, such as of more steps; one that was interrupted goes on."""
        told = folder.with_suffix(".command")
        if not told.exists() or told.read_text("utf-8") != command:
            shutil.rmtree(folder, ignore_errors=True)
            told.parent.mkdir(parents=True, exist_ok=True)
            told.write_text(command, "utf-8")

    def _files(self, arm: TaskArm) -> Path:
        return (self.own if arm.rules.is_own else self.world).files(arm.rules.name)

    def _store(self, arm: TaskArm) -> str | None:
        if not arm.rules.has_regions:
            return None
        own = self.own.store(arm.rules.name, arm.store)
        return str(own if arm.rules.is_own else self.world.store(self._store_name(arm)))

    def _store_name(self, arm: TaskArm) -> str:
        return arm.store if arm.rules.is_own else self.world.store_name(arm.store, arm.rules.name)

    def _tallies(self, arm: TaskArm, seed: int) -> dict[str, Any]:
        """Of all splits; seed 0 is asked in other ways, too, and its questions are told apart."""
        rules, found = arm.rules, dict[str, tuple[np.ndarray, np.ndarray]]()
        for split, measures in rules.splits.items():
            kinds = rules.kinds if seed == 0 and rules.main in measures.values() else {}
            found |= self._scored(arm, seed, split, "", {**measures, **kinds})
            for way in rules.ways if seed == 0 else ():
                scored = self._scored(arm, seed, split, way, measures)
                found |= {f"{kept} {way}": counts for kept, counts in scored.items()}
        return rounded_tallies(found)

    def _scored(
        self, arm: TaskArm, seed: int, split: str, way: str, measures: Mapping[str, str]
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By our name of the measure: (pictures,) sums and counts, pictures in the order of their names. Each text
        counts as a picture of its own.

        Args:
            measures: of `roibeam score` -> their names here.
        """
        from roibeam.pipelines.finetuning.metrics.measure import STRICT
        from roibeam.pipelines.finetuning.requests import PredictRequest
        from roibeam.pipelines.finetuning.run.predict_run import run_prediction
        from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS

        folder, files = self.folder(arm, seed), self._files(arm)
        out = folder / f"said-{split} {way}".rstrip().replace(" ", "-")
        if not out.exists():  # in this process: a command would load torch once more for each way
            run_prediction(
                PredictRequest(
                    run=folder, store=self._store(arm), data=files, split=split, out=out, device=self.device, threads=1,
                    blind=way == BLIND, permute_images=way == PERMUTED, precision="float32",
                )
            )  # fmt: skip
        scored = SCORED_TASKS[arm.rules.name].open(files, split, STRICT).measures(str(out)).values()
        kept = {measures[each.name]: each for each in scored if each.name in measures}
        every = self.own.images(arm.rules.name, split) if arm.rules.is_own else ()
        return {
            name: measure.by_image({image: place for place, image in enumerate(sorted({*every, *measure.images}))})
            for name, measure in kept.items()
        }


_ROWS, _WIDTH, _INNER, _ROUNDS = 2560, 128, 512, 9  # tokens of a batch, and a layer as in the models of these runs


def precision_here(wanted: str, device: str) -> str:
    """float32 in place of bf16 where a CPU multiplies that more slowly: some take 1.4 times as long for a step."""
    return "float32" if wanted == "bf16" and device == "cpu" and not is_bf16_faster() else wanted


@cache
def is_bf16_faster() -> bool:
    """The quickest of several rounds decides, in turns, as other work may run beside."""
    seconds = [(_seconds(torch.float32), _seconds(torch.bfloat16)) for _ in range(_ROUNDS)]
    exact, short = (min(each) for each in zip(*seconds, strict=True))
    return short < exact


def _seconds(dtype: torch.dtype) -> float:
    """Of one layer, forward and backward."""
    layer = torch.nn.Linear(_WIDTH, _INNER, dtype=dtype)
    states = torch.ones(_ROWS, _WIDTH, dtype=dtype, requires_grad=True)
    start = time.perf_counter()
    layer(states).sum().backward()
    return time.perf_counter() - start
