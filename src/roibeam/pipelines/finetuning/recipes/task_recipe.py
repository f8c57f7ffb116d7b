"""A published fine-tuning run as data: what it sets, what came of it, and what its source leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roibeam.pipelines.common.statistics.paper_figures import PaperFigure
from roibeam.pipelines.data.needed_features import Features
from roibeam.pipelines.finetuning.recipes.parameters import PARAMETERS
from roibeam.pipelines.finetuning.systems.layout_options import LayoutOptions
from roibeam.pipelines.training.step_policies import (
    CORRECT,
    STEP_RULES,
    PublishedSchedule,
    StepRule,
    UpdatesApart,
)

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
        features: that it needs of the images; None for a task of texts alone.
        options: of the task.
        layout: of the rows.
        head, head_start: kind and start of `HeadOptions`.
        settings: fields of `TrainConfig` beside steps, rate and warm-up, by which steps are right.
        accidents: the fields by which the release's steps are not, see training/step_policies.py; empty where the
            source is a paper alone.
        updates_apart: how its release makes an update for each of several problems; None for one of them together.
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
        judged_by: measure of the evaluations that the run is judged by, for the rule "release-plateau", and `patience`.
        patience: epochs in a row without a better one, after which the run ends, and the best one counts; 0 trains all
            of them, and the last one counts.
        in_turn_with: the recipe of the other task that the same model learned in turn with this one; "" for none.
        figures: what was printed for it, of paper_figures.csv.
        left_open: what the source does not say or says differently elsewhere, and what is done here.
    """

    summary: str
    source: str
    task: str
    system: str
    model: str
    features: Features | None
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
    updates_apart: UpdatesApart | None = None
    decays_at: tuple[float, ...] = ()
    end_to_end: bool = False
    detector: str = ""
    encoder: Mapping[str, Any] = field(default_factory=dict)
    photos: Mapping[str, Any] = field(default_factory=dict)
    photo_options: Mapping[str, Any] = field(default_factory=dict)
    edges: tuple[int, ...] = ()
    judged_by: str = ""
    patience: int = 0
    in_turn_with: str = ""
    figures: tuple[PaperFigure, ...] = ()
    left_open: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """That are trained, the head's among them and a detector's not; of the published size."""
        return PARAMETERS[self.model, self.task]

    def options_for(self, end_to_end: bool) -> Any:
        """Options of the task, of a run from photos or on stored features."""
        return replace(self.options, **self.photo_options) if end_to_end else self.options

    @property
    def schedule(self) -> PublishedSchedule:
        """Of its steps, in epochs and shares."""
        return PublishedSchedule(self.epochs, self.warmup, self.decays_at, self.judged_by)

    @property
    def step_rules(self) -> tuple[str, ...]:
        """Names of the rules that its steps may follow, the correct one first."""
        released = [
            name
            for name, rule in STEP_RULES.items()
            if rule.as_released and self.accidents and (not rule.systems or self.system in rule.systems)
        ]
        return (CORRECT, *released)

    def step_rule(self, name: str) -> StepRule:
        """Raises ValueError for a rule that it does not have."""
        if name not in self.step_rules:
            raise ValueError(f"steps.rule {name!r}: this recipe has {' and '.join(self.step_rules)}")
        return STEP_RULES[name]

    def options_by(self, rule: StepRule, begun: Any, options: Any) -> Any:
        """The task's options as the rule has them: by a release's, each of several problems has its own update.

        Args:
            begun: the options of the recipe, see `options_for`.
            options: the same with the user's settings.
        """
        apart = self.updates_apart
        if apart is None or not rule.as_released or not _has(options, apart.where):
            return begun
        return replace(begun, **apart.fields)

    def problems_apart(self, rule: StepRule, options: Any) -> int:
        """How many problems have updates of their own, by the rule and the options that a run has; 1 for none."""
        apart = self.updates_apart
        if apart is None or not rule.as_released:
            return 1
        return apart.problems if _has(options, {**apart.where, **apart.fields}) else 1

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


def _has(options: Any, fields: Mapping[str, Any]) -> bool:
    return all(getattr(options, name) == value for name, value in fields.items())
