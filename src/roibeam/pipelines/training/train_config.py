"""How a run is trained, whatever its task: the settings."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.foundation.device_choice import check_device_name
from roibeam.pipelines.training.parameter_groups import PARAMETER_RULES

OPTIMIZERS = ("adamw", "sgd", "bert-adam", "adamw-transformers", "adamw-transformers-uncorrected")
SCHEDULES = ("linear", "steps", "epochs-over-warmup")
LOSS_MEANS = ("step", "micro_batch")
USED_MICRO_BATCHES = ("all", "last")
CLIP_SCOPES = ("all", "each")
PRECISIONS = ("fp32", "bf16", "fp16")
BEST_IS = ("highest", "lowest")
TASK_GROUPS = "task"


@dataclass(frozen=True)
class TrainConfig:
    """How to train, whatever the task.

    Attributes:
        steps: optimizer steps; the schedule ends there.
        learning_rate: peak, for the whole global batch; never scaled by batch size or processes.
        warmup_steps: linear rise, step k uses learning_rate * k / warmup_steps.
        warmup_share: in place of `warmup_steps`, as a share of `steps` that is not rounded, as in releases; 0 = none.
        schedule: after the rise: "linear" falls to 0 at `steps`; "steps" stays, times `decay_factor` behind each of
            `decay_steps`, as detectors are trained; "epochs-over-warmup" is "steps" with an accident of the multi-task
            ViLBERT: the first step of each epoch has the full rate, during the rise too (training/optimizer/build.py).
        decay_steps: last step before each fall, ascending; () = none.
        decay_factor: of each fall.
        epoch_steps: steps of an epoch, for "epochs-over-warmup".
        starts_at_zero: the schedule lags one step: the first has rate 0, as in releases that step their schedule after
            the optimizer.
        optimizer: "adamw" (torch's), "sgd" with momentum, or one of a release: "bert-adam", "adamw-transformers",
            "adamw-transformers-uncorrected" (pipelines/training/optimizer/release_optimizers.py).
        weight_decay: on every parameter unless its group says otherwise; decoupled in all but SGD.
        parameter_groups: "task" takes the task's own; a name of `PARAMETER_RULES` groups as that release does.
        betas, epsilon: of all but SGD. The defaults are those of VL-BERT's release (cfgs/pretrain).
        momentum: of SGD.
        clip_norm: largest gradient norm; 0 = no clipping.
        clip_scope: whether that is the norm of "all" gradients together, or of "each" tensor by itself.
        accumulation: micro-batches per step and process.
        loss_mean: over what a loss is a mean: all elements of the "step", whatever its micro-batches; or of each
            "micro_batch", whose means are averaged then, as releases do.
        used_micro_batches: "all"; or only the "last" one of a step gives gradients (uclanlp/visualbert, which clears
            them before each).
        precision: "fp32"; or "bf16" or "fp16" (autocast; weights stay fp32). fp16 needs an accelerator and scales the
            loss: a step whose gradients overflow is left out and the scale halved.
        activation_checkpointing: the model's layers compute their activations again in the backward pass instead of
            keeping them: the same numbers for less memory and more time.
        average_rate: what an exponential moving average of the weights keeps at each step, from 0 to below 1; 0 = none.
            Evaluations, and the folder `model` of a checkpoint, then have the average.
        device: "auto" (an accelerator if there is one), "cpu", "cuda" or, for a single process, "cuda:<n>".
        seed: of dropout; tasks take theirs from here too.
        checkpoint_every: steps between two checkpoints; 0 = only at the end.
        keep: newest checkpoints that stay; 0 = all.
        evaluate_every: steps between two evaluations of a task that offers them; 0 = none. Else there is one before the
            first step and one at the end too.
        best_by: number of the evaluations whose best checkpoint stays too, such as "masked_word_accuracy"; "" = none.
        best_is: whether the "highest" or the "lowest" is best.
        tensorboard: write RUN/tensorboard too (extra `tensorboard`).

    Raises:
        ValueError: naming the field, what it holds and what it may hold.
    """

    steps: int
    learning_rate: float = 1e-4
    warmup_steps: int = 0
    warmup_share: float = 0.0
    schedule: str = "linear"
    decay_steps: tuple[int, ...] = ()
    decay_factor: float = 0.1
    epoch_steps: int = 0
    starts_at_zero: bool = False
    optimizer: str = "adamw"
    weight_decay: float = 1e-4
    parameter_groups: str = TASK_GROUPS
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    momentum: float = 0.9
    clip_norm: float = 10.0
    clip_scope: str = "all"
    accumulation: int = 1
    loss_mean: str = "step"
    used_micro_batches: str = "all"
    precision: str = "fp32"
    activation_checkpointing: bool = False
    average_rate: float = 0.0
    device: str = "auto"
    seed: int = 0
    checkpoint_every: int = 1000
    keep: int = 2
    evaluate_every: int = 0
    best_by: str = ""
    best_is: str = "highest"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("accumulation", 1), ("warmup_steps", 0), ("seed", 0)):
            _require(getattr(self, name) >= least, f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("weight_decay", "clip_norm", "checkpoint_every", "keep", "evaluate_every"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        _require(
            len(self.betas) == 2 and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in self.betas),
            f"betas must be two numbers in 0..1, got {self.betas}",
        )
        _require(0 <= self.momentum < 1, f"momentum must be in 0..1, got {self.momentum}")
        _require(0 <= self.average_rate < 1, f"average_rate must be from 0 to below 1, got {self.average_rate}")
        _require(
            not self.best_by or self.evaluate_every > 0,
            f"best_by {self.best_by!r} needs evaluations; set evaluate_every",
        )
        check_device_name(self.device)
        _require(
            self.precision != "fp16" or self.device != "cpu",
            "precision fp16 needs an accelerator, device is cpu; choose bf16 or fp32",
        )
        _require(self.learning_rate > 0, f"learning_rate must be positive, got {self.learning_rate}")
        _require(
            self.warmup_steps <= self.steps, f"warmup_steps {self.warmup_steps} is more than all {self.steps} steps"
        )
        _require(
            0 <= self.warmup_share <= 1 and not (self.warmup_share and self.warmup_steps),
            f"warmup_share must be from 0 to 1 and stands in place of warmup_steps {self.warmup_steps}, got "
            f"{self.warmup_share}",
        )
        _require(
            (self.schedule == "epochs-over-warmup") == (self.epoch_steps > 0),
            f"epoch_steps belongs to the schedule epochs-over-warmup and is at least 1 there, got {self.epoch_steps}",
        )
        _require(0 < self.decay_factor <= 1, f"decay_factor must be above 0 and at most 1, got {self.decay_factor}")
        falls = self.decay_steps
        _require(
            all(isinstance(step, int) and step >= self.warmup_steps for step in falls) and list(falls) == sorted(falls),
            f"decay_steps must be whole numbers, ascending, from warmup_steps {self.warmup_steps} on, got {falls}",
        )
        _require(
            self.schedule != "linear" or not falls,
            f"decay_steps {falls} belong to the schedule steps, not {self.schedule}",
        )
        _require(
            self.clip_scope == "all" or self.clip_norm > 0,
            "clip_scope each needs a clip_norm above 0; there is no clipping",
        )
        for name, words in (
            ("schedule", SCHEDULES),
            ("optimizer", OPTIMIZERS),
            ("parameter_groups", (TASK_GROUPS, *PARAMETER_RULES)),
            ("clip_scope", CLIP_SCOPES),
            ("loss_mean", LOSS_MEANS),
            ("used_micro_batches", USED_MICRO_BATCHES),
            ("precision", PRECISIONS),
            ("best_is", BEST_IS),
        ):
            _require(getattr(self, name) in words, f"{name} must be {' or '.join(words)}, got {getattr(self, name)!r}")

    @property
    def rise(self) -> float:
        """Steps of the rise; with `warmup_share` perhaps no whole number."""
        return self.warmup_share * self.steps if self.warmup_share else self.warmup_steps


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"TrainConfig: {message}")
