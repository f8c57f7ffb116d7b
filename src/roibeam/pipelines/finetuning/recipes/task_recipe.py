"""A published fine-tuning run as data: what it sets, what came of it, and what its source leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roibeam.pipelines.finetuning.recipes.parameters import PARAMETERS
from roibeam.pipelines.finetuning.systems.layout_options import LayoutOptions
from roibeam.pipelines.foundation.statistics.printed_figure import Figure

PRETRAINED, BERT, NOTHING = "pre-trained", "bert", "nothing"
STARTS = (PRETRAINED, BERT, NOTHING)


@dataclass(frozen=True, kw_only=True)
class TaskRecipe:
    """One published run.

    Attributes:
        summary: for people, one line.
        source: paper section, or file of the released code, that the settings are from.
        task, system: by name.
        model: the pre-training recipe whose model it has.
        start: that model "pre-trained"; or new with the weights of a "bert", or with "nothing", as rows without
            pre-training have it.
        model_fields: of a new model's configuration, beside its size, "base" of `TaskSystem.sizes`.
        options: of the task.
        layout: of the rows.
        head, head_start: kind and start of `HeadOptions`.
        settings: fields of `TrainConfig` beside steps, rate and warm-up, by which steps are right.
        accidents: the fields by which the release's steps are not, see training/step_policies.py.
        learning_rate: peak, for the whole batch.
        batch_size: groups of a step over all processes.
        epochs: over the groups.
        warmup: steps, or below 1 the share of all steps.
        decays_at: shares of all steps after which the rate falls, for the schedule "steps".
        end_to_end: whether features were made of photos in every step, through the detector's network, and whatever of
            it was not frozen was trained along.
        detector: of such a run, the preset of its network; "" for the usual one.
        encoder: of such a run, fields of `EncoderOptions`.
        photos: of such a run, fields of `TaskPhotos`.
        photo_options: of such a run, fields of `options` that runs on stored features have no place for.
        edges: of its photos, short and long edge, pixels; () for those of the encoder.
        in_turn_with: the recipe of the other task that the same model learned in turn with this one; "" for none.
        figures: what was printed for it.
        left_open: what the source does not say or says differently elsewhere, and what is done here.
    """

    summary: str
    source: str
    task: str
    system: str
    model: str
    options: Any
    learning_rate: float
    batch_size: int
    epochs: float
    warmup: float
    start: str = PRETRAINED
    model_fields: Mapping[str, Any] = field(default_factory=dict)
    layout: LayoutOptions = field(default_factory=LayoutOptions)
    head: str = "ours"
    head_start: str = "drawn"
    settings: Mapping[str, Any] = field(default_factory=dict)
    accidents: Mapping[str, Any] = field(default_factory=dict)
    decays_at: tuple[float, ...] = ()
    end_to_end: bool = False
    detector: str = ""
    encoder: Mapping[str, Any] = field(default_factory=dict)
    photos: Mapping[str, Any] = field(default_factory=dict)
    photo_options: Mapping[str, Any] = field(default_factory=dict)
    edges: tuple[int, ...] = ()
    in_turn_with: str = ""
    figures: tuple[Figure, ...] = ()
    left_open: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """That are trained, the head's among them and a detector's not; of the published size."""
        return PARAMETERS[self.model, self.task]

    def options_for(self, end_to_end: bool) -> Any:
        """Options of the task, of a run from photos or on stored features."""
        return replace(self.options, **self.photo_options) if end_to_end else self.options

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

    def start_notes(self, *, pretrained: bool, from_bert: bool, end_to_end: bool, alone: bool) -> tuple[str, ...]:
        """What a run that begins otherwise than the published one must be told.

        Args:
            pretrained: whether it starts from a model that was pre-trained.
            from_bert: whether new weights start from those of a BERT.
            end_to_end: whether features are made of photos in every step.
            alone: whether one problem is learned, where the task has several.
        """
        notes = []
        given = PRETRAINED if pretrained else BERT if from_bert else NOTHING
        if given != self.start:
            starts = {PRETRAINED: "a pre-trained model", BERT: "the weights of a BERT", NOTHING: "new weights"}
            notes.append(f"the published run starts from {starts[self.start]}, this one from {starts[given]}")
        if end_to_end != self.end_to_end:
            words = {True: "goes through the detector's network", False: "is on stored features"}
            notes.append(f"the published run {words[self.end_to_end]}, this one {words[end_to_end]} (--end-to-end)")
        if self.in_turn_with and alone:
            notes.append(f"the published model learned this in turn with {self.in_turn_with}; this run learns it alone")
        return tuple(notes)
