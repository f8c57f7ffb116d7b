"""A toy run that comes upon samples that are not finite, in one of several processes."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from toy_training import BareToyTask, ToyTask, config, run


@dataclasses.dataclass(frozen=True)
class PoisonedRun:
    """Three samples a micro-batch; what the loop refuses is left in `folder`.refused-<rank>.

    So a process ends well also where it was refused, and none is killed for the end of another.
    """

    folder: Path
    poisoned: Mapping[int, float]
    accumulation: int = 1
    splits_batches: bool = True

    def __call__(self) -> None:
        make = ToyTask if self.splits_batches else BareToyTask
        task = make(batch_size=3, poisoned=self.poisoned)
        weights = [weight.detach().clone() for weight in task.model.parameters()]
        try:
            run(self.folder, task, config(accumulation=self.accumulation, checkpoint_every=1, warmup_steps=0))
        except ValueError as error:
            moved = any(not each.equal(old) for each, old in zip(task.model.parameters(), weights, strict=True))
            finite = all(bool(each.isfinite().all()) for each in task.model.parameters())
            refused = self.folder.with_name(f"{self.folder.name}.refused-{os.environ['RANK']}")
            refused.write_text(f"{error}\n{moved=} {finite=}")
