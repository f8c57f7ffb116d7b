"""A published fine-tuning run as data: what it sets, what came of it, and what its source leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roibeam.pipelines.finetuning.systems.layout_options import LayoutOptions
from roibeam.pipelines.foundation.statistics.printed_figure import Figure


@dataclass(frozen=True, kw_only=True)
class TaskRecipe:
    """One published run.

    Attributes:
        summary: for people, one line.
        source: paper section, or file of the released code, that the settings are from.
        task, system: by name.
        options: of the task.
        layout: of the rows.
        head, head_start: kind and start of `HeadOptions`.
        settings: fields of `TrainConfig` beside steps, rate and warm-up.
        learning_rate: peak, for the whole batch.
        batch_size: groups of a step over all processes.
        epochs: over the groups.
        warmup: steps, or below 1 the share of all steps.
        decays_at: shares of all steps after which the rate falls, for the schedule "steps".
        figures: what was printed for it.
        left_open: what the source does not say or says differently elsewhere, and what is done here.
    """

    summary: str
    source: str
    task: str
    system: str
    options: Any
    learning_rate: float
    batch_size: int
    epochs: float
    warmup: float
    layout: LayoutOptions = field(default_factory=LayoutOptions)
    head: str = "release"
    head_start: str = "drawn"
    settings: Mapping[str, Any] = field(default_factory=dict)
    decays_at: tuple[float, ...] = ()
    figures: tuple[Figure, ...] = ()
    left_open: tuple[str, ...] = ()

    def at_once(self, processes: int, *, most: int = 32) -> int:
        """Groups that each process takes at once where the user does not say: as many as divide the batch."""
        fitting = [count for count in range(1, most + 1) if self.batch_size % (count * processes) == 0]
        return max(fitting, default=most)

    def accumulation(self, batch_size: int, processes: int) -> int:
        """Micro-batches of a step.

        Raises:
            ValueError: when the published batch is no multiple of what the processes take at once.
        """
        if self.batch_size % (batch_size * processes):
            raise ValueError(
                f"this recipe's batch of {self.batch_size} is no multiple of {batch_size} on {processes} processes; "
                f"choose another --batch-size"
            )
        return self.batch_size // (batch_size * processes)
