"""Published fine-tuning run as data: its settings, its results, and open points of its source.

Parameters of published runs stand here by pre-training recipe and task; a test counts them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from roibeam.pipelines.common.statistics.paper_figures import PaperFigure
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.training.step_policies import (
    CORRECT,
    STEP_RULES,
    PublishedRun,
    PublishedSchedule,
    StepRule,
    UpdatesApart,
)

LABELS_OPEN = (
    "The release has a label file of its own; here the majority answers, in the order of their questions: "
    "--set vqa.answers=FILE takes a file."
)
MINIVAL_OPEN = (
    "The release keeps the last 3,000 validation questions for itself, whose images it trains on; here no validation "
    "data are left (--set vqa.train=train+val-minival data.shared_images=true is the release's way)."
)


_GLUE_PAIRS = "qnli cola sst-2 rte qqp mrpc"  # tasks of two labels
_ABLATED = "vlbert-ablation-words vlbert-base-captions vlbert-ablation-relationship"
# Number, tasks, and the pre-training recipes whose models have so many for each of them.
_SIZES = (
    (115_041_849, "vqa", f"vlbert-base vlbert-paper vlbert-base-e2e {_ABLATED}"),
    (342_553_657, "vqa", "vlbert-large"),
    (112_634_881, "vcr refcoco+", f"vlbert-base vlbert-base-e2e {_ABLATED}"),
    (339_345_409, "vcr refcoco+", "vlbert-large-e2e"),
    (112_635_649, "vcr refcoco+", "vlbert-paper"),
    (244_216_379, "vqa", "vilbert vilbert-paper vilbert-25-percent vilbert-50-percent"),
    (162_302_523, "vqa", "vilbert-2-layer"),
    (203_259_451, "vqa", "vilbert-4-layer"),
    (285_173_307, "vqa", "vilbert-8-layer"),
    (117_054_011, "vqa", "vilbert-single-stream"),
    (235_706_881, "vcr refcoco+ retrieval", "vilbert vilbert-25-percent vilbert-50-percent"),
    (235_706_881, "vcr", "vilbert-without-bert"),
    (235_706_881, "refcoco+", "vilbert-paper"),
    (153_793_025, "vcr refcoco+ retrieval", "vilbert-2-layer"),
    (194_749_953, "vcr refcoco+ retrieval", "vilbert-4-layer"),
    (276_663_809, "vcr refcoco+ retrieval", "vilbert-8-layer"),
    (111_064_321, "vcr refcoco+", "vilbert-single-stream"),
    (235_707_906, "retrieval", "vilbert-paper"),
    (113_856_825, "vqa", "visualbert-task-vqa visualbert-task-vqa-without-coco"),
    (120_944_697, "vqa", "visualbert-task-vqa-late-fusion"),
    (111_396_737, "vcr", "visualbert-task-vcr visualbert-task-vcr-without-coco"),
    (118_484_609, "vcr", "visualbert-task-vcr-late-fusion"),
    (111_452_162, "nlvr2", "visualbert-task-nlvr2 visualbert-task-nlvr2-without-coco visualbert-ablation-full"),
    (111_452_162, "nlvr2", "visualbert-9-regions visualbert-18-regions visualbert-72-regions"),
    (111_452_162, "nlvr2", "visualbert-without-images visualbert-without-coco visualbert-without-bert"),
    (111_452_162, "nlvr2", "visualbert-without-second-caption"),
    (118_540_034, "nlvr2", "visualbert-task-nlvr2-late-fusion visualbert-late-fusion"),
    (111_549_056, "flickr30k-entities", "visualbert-task-flickr visualbert-task-flickr-without-coco"),
    (118_636_928, "flickr30k-entities", "visualbert-task-flickr-late-fusion"),
    (197_299_713, "vcr", "interbert interbert-single-masks interbert-without-bert"),
    (154_574_593, "vcr", "interbert-release"),
    (111_062_785, "retrieval", "imagebert-stage-2 imagebert-stage-2-36-regions"),
    (197_300_738, "retrieval", "interbert"),
    (154_575_618, "retrieval", "interbert-release"),
    (152_208_386, _GLUE_PAIRS, "interbert"),
    (152_207_361, "sts-b", "interbert"),
    (152_209_411, "mnli", "interbert"),
    (109_681_154, _GLUE_PAIRS, "interbert-single-stream"),
    (109_680_129, "sts-b", "interbert-single-stream"),
    (109_682_179, "mnli", "interbert-single-stream"),
    (109_483_778, _GLUE_PAIRS, "visualbert-coco-vqa"),
    (109_483_009, "sts-b", "visualbert-coco-vqa"),
    (109_484_547, "mnli", "visualbert-coco-vqa"),
)
PARAMETERS: Mapping[tuple[str, str], int] = MappingProxyType(
    {(model, task): count for count, tasks, models in _SIZES for model in models.split() for task in tasks.split()}
)


PRETRAINED, BERT, NOTHING = "pre-trained", "bert", "nothing"
STARTS = (PRETRAINED, BERT, NOTHING)


@dataclass(frozen=True, kw_only=True)
class TaskRecipe(PublishedRun):
    """One published run.

    Attributes:
        model: the pre-training recipe whose model it has.
        start: the model "pre-trained"; or new with the weights of a "bert", or with "nothing", as rows without
            pre-training have it.
        model_fields: of a new model's configuration, beside its size, "base" of `TaskSystem.sizes`.
        head, head_start: kind and start of `HeadOptions`.
        settings: by which steps are right.
        accidents: the fields by which the release's steps are not, see training/step_policies.py; empty where the
            source is a paper alone.
        updates_apart: rule by which its release updates each of several problems apart; None for one update of all.
        decays_at: shares of all steps after which the rate falls, for the schedule "steps".
        photo_options: of a run from photos, fields of `options` that runs on stored features have no place for.
        edges: of its photos, short and long edge, pixels; () for those of the encoder.
        judged_by: measure of the evaluations that the run is judged by, for the rule "release-plateau", and `patience`.
        patience: epochs in a row without a better one, after which the run ends, and the best one counts; 0 trains all
            of them, and the last one counts.
        in_turn_with: the recipe of the other task that the same model learned in turn with this one; "" for none.
    """

    task: str
    model: str
    options: Any
    start: str = PRETRAINED
    model_fields: Mapping[str, Any] = field(default_factory=dict)
    layout: LayoutOptions = field(default_factory=LayoutOptions)
    head: str = "ours"
    head_start: str = "drawn"
    accidents: Mapping[str, Any] = field(default_factory=dict)
    updates_apart: UpdatesApart | None = None
    decays_at: tuple[float, ...] = ()
    photo_options: Mapping[str, Any] = field(default_factory=dict)
    edges: tuple[int, ...] = ()
    judged_by: str = ""
    patience: int = 0
    in_turn_with: str = ""

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


class ModelRow(NamedTuple):
    """Row of a paper's table whose rows are the same runs from other models.

    Attributes:
        name: of its recipes, behind the task's; "" for the first row.
        model, start: of `TaskRecipe`.
    """

    name: str
    words: str
    model: str
    start: str
    printed: str

    def named(self, recipe: str) -> str:
        """Name of the row's recipe; "" for none."""
        return f"{recipe}-{self.name}" if recipe and self.name else recipe

    def of(self, recipe: TaskRecipe, figures: tuple[PaperFigure, ...], **changes: Any) -> TaskRecipe:
        return replace(
            recipe,
            summary=f"{recipe.summary}; {self.words}" if self.words else recipe.summary,
            model=self.model,
            start=self.start,
            in_turn_with=self.named(recipe.in_turn_with),
            figures=figures,
            **changes,
        )


def _has(options: Any, fields: Mapping[str, Any]) -> bool:
    return all(getattr(options, name) == value for name, value in fields.items())
