"""The fine-tuning runs of `make evidence`: which system learns which task, from which weights, under which rule.

All systems learn a task with the same steps, batch and rate, so that a row of the table differs in the system alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evidence.arms import SEEDS
from evidence.tasks.accidents import ACCIDENTS, CORRECT_RULES
from evidence.worlds import DETECTOR
from roibeam.pipelines.toyworld.tasks.vqa import TYPES as QUESTION_TYPES

PERFECT = "perfect"
PREFIX = "tasks-"  # of the stores' names in the arms: they are of another world
PERMUTED, BLIND = "another picture", "no picture"  # ways to ask beside the right one, of seed 0
EVALUATIONS, WATCHED = 5, 640  # evaluations of a run, and the questions that each asks


@dataclass(frozen=True)
class TaskRules:
    """How a task is learned and asked here.

    Attributes:
        name: as `--task`.
        steps, batch, rate: as in `roibeam finetune`; a batch is of questions.
        splits: that a model is asked about -> measures of `roibeam score` that are kept -> their names here. The first
            one stands in the tables.
        settings: of `--set`.
        kinds: further measures of the first split, which are kept of seed 0 -> their names here.
        ways: in which it is asked of seed 0 too, `PERMUTED` and `BLIND`. Of other pictures nothing can be chosen where
            the answer is a region of the own one.
        is_own: whether it is about the pictures of pre-training, see own_pictures.py.
        has_regions: whether it has pictures at all.
        precision: as `--precision`; see task_runs.py.
    """

    name: str
    steps: int
    batch: int
    rate: float
    splits: Mapping[str, Mapping[str, str]]
    settings: Mapping[str, object] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    ways: tuple[str, ...] = (PERMUTED, BLIND)
    is_own: bool = False
    has_regions: bool = True
    precision: str = "float32"

    @property
    def main(self) -> str:
        return next(name for measures in self.splits.values() for name in measures.values())


# Questions of the toy world by what they ask for: VQA's question types.
VQA_KINDS: Mapping[str, str] = {
    f"question type {asked}": f"vqa {kind}" for kind, (asked, _) in QUESTION_TYPES.items()
}  # fmt: skip
# The rate is half of ViLBERT's in pre-training. At twice as much it knows 68 % of VQA after 2,500 steps, and whether a
# thing is there no better than a reader without the picture; at this rate it knows that of 87 % after 500 steps. Steps
# are such that most runs take two to eight minutes of one core, as there are many: at 2,500 steps in float32 ViLBERT
# knows 76 % of VQA, in bf16 74 % from 900 steps on. bf16 takes two thirds of float32's time.
TASKS: Mapping[str, TaskRules] = {
    rules.name: rules
    for rules in (
        # One softmax: with a sigmoid for each of 46 answers, all at one half, the first 200 steps only push them down
        # (loss 32 at the start), and a VisualBERT knows 40 % after 400 steps in place of 55 %.
        TaskRules(
            "vqa", 1000, 64, 5e-4, {"val": {"overall": "vqa"}}, {"vqa.loss": "ce"}, kinds=VQA_KINDS, precision="bf16",
        ),
        TaskRules(
            "vcr", 600, 32, 5e-4, {"val": {"Q->AR": "vcr Q->AR", "Q->A": "vcr Q->A", "QA->R": "vcr QA->R"}},
            {"vcr.problem": "both"}, precision="bf16",
        ),
        TaskRules(
            "refcoco+", 1000, 64, 5e-4,
            {split: {"accuracy": f"refcoco+ {split}"} for split in ("val", "testA", "testB")},
            {"refcoco+.boxes": "stored"}, ways=(BLIND,), precision="bf16",
        ),
        # Pairs that are half true tell little at a time: at 5e-4 and more VisualBERT forgets before it learns (50 %
        # after 1,000 steps), at this rate it knows 66 % after 900 and no more after 1,500.
        TaskRules(
            "nlvr2", 900, 64, 2e-4,
            {"test1": {"accuracy": "nlvr2", "consistency": "nlvr2 consistency"}}, precision="bf16",
        ),
    )
}  # fmt: skip
# The published pairs. Of VQA two more, which nobody published; of NLVR2 one that is told boxes, as VisualBERT is not.
PAIRS: Mapping[str, Sequence[str]] = {
    "vqa": ("vlbert", "vilbert", "visualbert", "imagebert", "interbert"),
    "vcr": ("vlbert", "vilbert", "visualbert", "interbert"),
    "refcoco+": ("vlbert", "vilbert"),
    "nlvr2": ("visualbert", "vilbert"),
}
# VL-BERT's published figures on tasks come from pre-training without the relationship task, which its version 1 had.
_STARTS = {f"{PERFECT}/vlbert": f"{PERFECT}/vlbert-base", f"{DETECTOR}/vlbert": f"{DETECTOR}/vlbert-released"}


@dataclass(frozen=True)
class TaskArm:
    """One kind of fine-tuning run; it is made once for each seed.

    Attributes:
        name: without the store.
        what: for people.
        rules: of its task.
        system: as `--system`.
        store: name of a store.
        start: arm whose kept weights it starts from; its models' shape is that of `shape`.
        shape: arm whose kept weights have the shape of the model.
        settings: of `--set`, beside those of the task.
        options: further arguments.
        seeds: of its runs.
    """

    name: str
    what: str
    rules: TaskRules
    system: str
    store: str
    start: str
    shape: str
    settings: Mapping[str, object] = field(default_factory=dict)
    options: Sequence[str] = ()
    seeds: tuple[int, ...] = SEEDS

    @property
    def id(self) -> str:
        """Such as "tasks-perfect/vqa-vilbert"."""
        return f"{PREFIX}{self.store}/{self.name}"

    def arguments(self, *, steps: int, precision: str = "") -> list[str]:
        """Of `roibeam finetune`, without run folder, files, start and seed.

        Args:
            precision: in place of the task's own.
        """
        rules = self.rules
        precision = precision or rules.precision
        watched = {"train.evaluate_every": max(1, steps // EVALUATIONS), "data.validation_groups": WATCHED}
        fields = {**watched, **rules.settings, **self.settings}
        batch = fields.pop("data.batch_size", rules.batch)
        return [
            *("--task", rules.name, "--steps", str(steps), "--warmup-steps", str(steps // 10)),
            *("--batch-size", str(batch), "--learning-rate", str(rules.rate)),
            *(() if precision == "float32" else ("--precision", precision)),
            *self.options,
            *(word for name, value in fields.items() for word in ("--set", f"{name}={value}")),
        ]


def _pairs(store: str) -> Iterator[TaskArm]:
    for task, systems in PAIRS.items():
        for system in systems:
            kept = _STARTS.get(f"{store}/{system}", f"{store}/{system}")
            yield TaskArm(f"{task}-{system}", f"{task}, {system}", TASKS[task], system, store, kept, kept)


def _not_trained_before() -> Iterator[TaskArm]:
    for arm in _pairs(PERFECT):
        yield TaskArm(f"{arm.name}-new", f"{arm.what}, not pre-trained", arm.rules, arm.system, PERFECT, "", arm.shape)


def _other_starts() -> Iterator[TaskArm]:
    """VL-BERT's Table 4 (c); ViLBERT's Tables 1 and 2, and its share of data; VisualBERT's Tables 3, 4, 5 and 7."""
    for task in ("vqa", "refcoco+"):
        start, told = f"{PERFECT}/vlbert-relation", f"{task}, VL-BERT, pre-trained with the relationship task"
        yield TaskArm(f"{task}-vlbert-relation", told, TASKS[task], "vlbert", PERFECT, start, start)
        for kept, what in (
            ("base", "half the steps of pre-training"),
            ("single", "one stream"),
            ("shallow", "one co-attention"),
            ("1k", "1,000 pictures to pre-train on"),
            ("5k", "5,000 pictures to pre-train on"),
        ):
            start, system = f"{PERFECT}/vilbert-{kept}", "vilbert-single-stream" if kept == "single" else "vilbert"
            told = f"{task}, ViLBERT, {what}"
            yield TaskArm(f"{task}-vilbert-{kept}", told, TASKS[task], system, PERFECT, start, start)
    for task in ("vqa", "vcr", "nlvr2"):
        for name, kept, what in (
            ("late", "visualbert-late-all", "image and text meet in one last layer"),
            ("text", "text-only", "pre-trained on captions without pictures"),
        ):
            start, told = f"{PERFECT}/{kept}", f"{task}, VisualBERT, {what}"
            yield TaskArm(f"{task}-visualbert-{name}", told, TASKS[task], "visualbert", PERFECT, start, start)


def _through_the_detector() -> Iterator[TaskArm]:
    """A published pair that trains the detector's network too, beside the same steps on stored features."""
    task, system = "refcoco+", "vlbert"
    kept_splits = {"val": TASKS[task].splits["val"]}  # photos of the others would take longer than the training
    rules = replace(TASKS[task], steps=300, batch=16, splits=kept_splits, ways=())
    # As with stored features: no mirrored photos, none put together by shape, the whole image as the regions' mean.
    alike: dict[str, object] = {
        "photos.flip": "false",
        "photos.aspect_buckets": "false",
        "end_to_end.whole_image": "model",
    }
    # With the rate of a small new model a trained detector forgets: 29 % of val where stored features have 38.
    alike |= {"encoder.learning_rate_scale": 0.02}
    kept = _STARTS[f"{DETECTOR}/{system}"]
    for name, what, settings, options in (
        ("stored", "300 steps on stored features", {}, ()),
        ("photos", "300 steps through the detector", alike, ("--end-to-end", "--detector", "toy")),
    ):
        told = f"{task}, {system}, {what}"
        yield TaskArm(f"{task}-{system}-{name}", told, rules, system, DETECTOR, kept, kept, settings, options)


def _accidents() -> Iterator[TaskArm]:
    for name, each in {**CORRECT_RULES, **ACCIDENTS}.items():
        task, system = each.pair
        kept, rules = f"{PERFECT}/{system}", TASKS[task]
        rules = replace(rules, steps=each.updates * rules.steps, ways=())
        yield TaskArm(
            f"{task}-{system}-{name}", each.what, rules, system, PERFECT, kept, kept, each.settings, seeds=SEEDS[:1]
        )


_IN_ORDER = (_pairs(PERFECT), _not_trained_before(), _pairs(DETECTOR), _other_starts(), _through_the_detector())
TASK_ARMS: Mapping[str, TaskArm] = {arm.id: arm for arms in (*_IN_ORDER, _accidents()) for arm in arms}
QUICK_TASK_ARMS = ("tasks-perfect/vqa-visualbert",)
