"""Published fine-tuning run as data: its settings, its results, and open points of its source.

Parameters of published runs stand here by pre-training recipe and task; a test counts them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from roibeam.pipelines.common.statistics.paper_figures import PaperFigure
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.training.step_policies import CORRECT, STEP_RULES, PublishedSchedule, StepRule, UpdatesApart

LABELS_OPEN = (
    "The release has a label file of its own; here the majority answers, in the order of their questions: "
    "--set vqa.answers=FILE takes a file."
)
MINIVAL_OPEN = (
    "The release keeps the last 3,000 validation questions for itself, whose images it trains on; here nothing is left "
    "to be judged on (--set vqa.train=train+val-minival data.shared_images=true is the release's way)."
)


PARAMETERS: Mapping[tuple[str, str], int] = MappingProxyType(
    {
        ("vlbert-base", "vqa"): 115_041_849,
        ("vlbert-large", "vqa"): 342_553_657,
        ("vlbert-paper", "vqa"): 115_041_849,
        ("vlbert-ablation-words", "vqa"): 115_041_849,
        ("vlbert-base-captions", "vqa"): 115_041_849,
        ("vlbert-ablation-relationship", "vqa"): 115_041_849,
        ("vlbert-base-e2e", "vqa"): 115_041_849,
        ("vlbert-base-e2e", "vcr"): 112_634_881,
        ("vlbert-large-e2e", "vcr"): 339_345_409,
        ("vlbert-paper", "vcr"): 112_635_649,
        ("vlbert-base", "vcr"): 112_634_881,
        ("vlbert-ablation-words", "vcr"): 112_634_881,
        ("vlbert-base-captions", "vcr"): 112_634_881,
        ("vlbert-ablation-relationship", "vcr"): 112_634_881,
        ("vlbert-base-e2e", "refcoco+"): 112_634_881,
        ("vlbert-large-e2e", "refcoco+"): 339_345_409,
        ("vlbert-paper", "refcoco+"): 112_635_649,
        ("vlbert-base", "refcoco+"): 112_634_881,
        ("vlbert-ablation-words", "refcoco+"): 112_634_881,
        ("vlbert-base-captions", "refcoco+"): 112_634_881,
        ("vlbert-ablation-relationship", "refcoco+"): 112_634_881,
        ("vilbert", "vqa"): 244_216_379,
        ("vilbert-paper", "vqa"): 244_216_379,
        ("vilbert-2-layer", "vqa"): 162_302_523,
        ("vilbert-4-layer", "vqa"): 203_259_451,
        ("vilbert-8-layer", "vqa"): 285_173_307,
        ("vilbert-25-percent", "vqa"): 244_216_379,
        ("vilbert-50-percent", "vqa"): 244_216_379,
        ("vilbert-single-stream", "vqa"): 117_054_011,
        ("vilbert", "vcr"): 235_706_881,
        ("vilbert-2-layer", "vcr"): 153_793_025,
        ("vilbert-4-layer", "vcr"): 194_749_953,
        ("vilbert-8-layer", "vcr"): 276_663_809,
        ("vilbert-25-percent", "vcr"): 235_706_881,
        ("vilbert-50-percent", "vcr"): 235_706_881,
        ("vilbert-single-stream", "vcr"): 111_064_321,
        ("vilbert-without-bert", "vcr"): 235_706_881,
        ("vilbert", "refcoco+"): 235_706_881,
        ("vilbert-paper", "refcoco+"): 235_706_881,
        ("vilbert-2-layer", "refcoco+"): 153_793_025,
        ("vilbert-4-layer", "refcoco+"): 194_749_953,
        ("vilbert-8-layer", "refcoco+"): 276_663_809,
        ("vilbert-25-percent", "refcoco+"): 235_706_881,
        ("vilbert-50-percent", "refcoco+"): 235_706_881,
        ("vilbert-single-stream", "refcoco+"): 111_064_321,
        ("visualbert-task-vqa", "vqa"): 113_856_825,
        ("visualbert-task-vqa-late-fusion", "vqa"): 120_944_697,
        ("visualbert-task-vqa-without-coco", "vqa"): 113_856_825,
        ("visualbert-task-vcr", "vcr"): 111_396_737,
        ("visualbert-task-vcr-late-fusion", "vcr"): 118_484_609,
        ("visualbert-task-vcr-without-coco", "vcr"): 111_396_737,
        ("visualbert-task-nlvr2", "nlvr2"): 111_452_162,
        ("visualbert-task-nlvr2-late-fusion", "nlvr2"): 118_540_034,
        ("visualbert-task-nlvr2-without-coco", "nlvr2"): 111_452_162,
        ("visualbert-ablation-full", "nlvr2"): 111_452_162,
        ("visualbert-9-regions", "nlvr2"): 111_452_162,
        ("visualbert-18-regions", "nlvr2"): 111_452_162,
        ("visualbert-72-regions", "nlvr2"): 111_452_162,
        ("visualbert-without-images", "nlvr2"): 111_452_162,
        ("visualbert-without-coco", "nlvr2"): 111_452_162,
        ("visualbert-late-fusion", "nlvr2"): 118_540_034,
        ("visualbert-without-bert", "nlvr2"): 111_452_162,
        ("visualbert-without-second-caption", "nlvr2"): 111_452_162,
        ("visualbert-task-flickr", "flickr30k-entities"): 111_549_056,
        ("visualbert-task-flickr-late-fusion", "flickr30k-entities"): 118_636_928,
        ("visualbert-task-flickr-without-coco", "flickr30k-entities"): 111_549_056,
        ("interbert", "vcr"): 197_299_713,
        ("interbert-single-masks", "vcr"): 197_299_713,
        ("interbert-without-bert", "vcr"): 197_299_713,
        ("interbert-release", "vcr"): 154_574_593,
        ("vilbert", "retrieval"): 235_706_881,
        ("vilbert-paper", "retrieval"): 235_707_906,
        ("vilbert-2-layer", "retrieval"): 153_793_025,
        ("vilbert-4-layer", "retrieval"): 194_749_953,
        ("vilbert-8-layer", "retrieval"): 276_663_809,
        ("vilbert-25-percent", "retrieval"): 235_706_881,
        ("vilbert-50-percent", "retrieval"): 235_706_881,
        ("imagebert-stage-2", "retrieval"): 111_062_785,
        ("imagebert-stage-2-36-regions", "retrieval"): 111_062_785,
        ("interbert", "retrieval"): 197_300_738,
        ("interbert-release", "retrieval"): 154_575_618,
        ("interbert", "qnli"): 152_208_386,
        ("interbert", "cola"): 152_208_386,
        ("interbert", "sst-2"): 152_208_386,
        ("interbert", "sts-b"): 152_207_361,
        ("interbert", "rte"): 152_208_386,
        ("interbert", "mnli"): 152_209_411,
        ("interbert", "qqp"): 152_208_386,
        ("interbert", "mrpc"): 152_208_386,
        ("interbert-single-stream", "qnli"): 109_681_154,
        ("interbert-single-stream", "cola"): 109_681_154,
        ("interbert-single-stream", "sst-2"): 109_681_154,
        ("interbert-single-stream", "sts-b"): 109_680_129,
        ("interbert-single-stream", "rte"): 109_681_154,
        ("interbert-single-stream", "mnli"): 109_682_179,
        ("interbert-single-stream", "qqp"): 109_681_154,
        ("interbert-single-stream", "mrpc"): 109_681_154,
        ("visualbert-coco-vqa", "qnli"): 109_483_778,
        ("visualbert-coco-vqa", "cola"): 109_483_778,
        ("visualbert-coco-vqa", "sst-2"): 109_483_778,
        ("visualbert-coco-vqa", "sts-b"): 109_483_009,
        ("visualbert-coco-vqa", "rte"): 109_483_778,
        ("visualbert-coco-vqa", "mnli"): 109_484_547,
        ("visualbert-coco-vqa", "qqp"): 109_483_778,
        ("visualbert-coco-vqa", "mrpc"): 109_483_778,
    }
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
        start: the model "pre-trained"; or new with the weights of a "bert", or with "nothing", as rows without
            pre-training have it.
        model_fields: of a new model's configuration, beside its size, "base" of `TaskSystem.sizes`.
        features: of the images; None for a task of texts alone.
        options: of the task.
        layout: of the rows.
        head, head_start: kind and start of `HeadOptions`.
        settings: fields of `TrainConfig` beside steps, rate and warm-up, by which steps are right.
        accidents: the fields by which the release's steps are not, see training/step_policies.py; empty where the
            source is a paper alone.
        updates_apart: rule by which its release updates each of several problems apart; None for one update of all.
        learning_rate: peak, for the whole batch.
        batch_size: groups of a step over all processes.
        epochs: over the groups.
        warmup: steps, or below 1 the share of all steps.
        decays_at: shares of all steps after which the rate falls, for the schedule "steps".
        end_to_end: whether features were made of photos in every step, through the detector's network, whose unfrozen
            parts were trained along.
        detector: of such a run, the preset of its network; "" for the usual one.
        encoder: of such a run, fields of `EncoderOptions`.
        photos: of such a run, fields of `PhotoRequest`.
        photo_options: of such a run, fields of `options` that runs on stored features have no place for.
        edges: of its photos, short and long edge, pixels; () for those of the encoder.
        judged_by: measure of the evaluations that the run is judged by, for the rule "release-plateau", and `patience`.
        patience: epochs in a row without a better one, after which the run ends, and the best one counts; 0 trains all
            of them, and the last one counts.
        in_turn_with: the recipe of the other task that the same model learned in turn with this one; "" for none.
        figures: what was printed for it, of paper_figures.csv.
        left_open: open and contradictory points of the source, and the choice made here.
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
        """Number of trained parameters of the published size, with the head's and without a detector's."""
        return PARAMETERS[self.model, self.task]

    def options_for(self, end_to_end: bool) -> Any:
        """Options of the task, of a run from photos or on stored features."""
        return replace(self.options, **self.photo_options) if end_to_end else self.options

    @property
    def schedule(self) -> PublishedSchedule:
        """Schedule of its steps, in epochs and shares."""
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
        """The rule of a name. Raises ValueError for a rule that the recipe does not have."""
        if name not in self.step_rules:
            raise ValueError(f"steps.rule {name!r}: this recipe has {' and '.join(self.step_rules)}")
        return STEP_RULES[name]

    def options_by(self, rule: StepRule, own: Any, options: Any) -> Any:
        """The task's options as the rule has them: by a release's, each of several problems has its own update.

        Args:
            own: the options of the recipe, see `options_for`.
            options: the same with the user's settings.
        """
        apart = self.updates_apart
        if apart is None or not rule.as_released or not _has(options, apart.where):
            return own
        return replace(own, **apart.fields)

    def problems_apart(self, rule: StepRule, options: Any) -> int:
        """Number of problems with updates of their own, by the rule and the options of a run; 1 for none."""
        apart = self.updates_apart
        if apart is None or not rule.as_released:
            return 1
        return apart.problems if _has(options, {**apart.where, **apart.fields}) else 1

    def at_once(self, processes: int, *, most: int = 32) -> int:
        """Default number of groups that each process takes at once: the most that divide the batch."""
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
        """Notes on differences between the start of a run and that of the published one.

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
