"""Settings that change no number of the training, so a resumed run may change them. Without torch."""

_FREE = ("checkpoint_every", "keep", "evaluate_every", "best_by", "best_is", "patience", "tensorboard")
_SAME_NUMBERS = ("activation_checkpointing",)
_GONE = ("log_every",)  # that configurations of older runs hold
FREE_ON_RESUME = frozenset(f"train.{name}" for name in (*_FREE, *_SAME_NUMBERS, *_GONE)) | {"task.data.workers"}


def is_free_on_resume(setting: str) -> bool:
    """Whether "section.field" of a command line changes no number, so that a run may go on with another value."""
    return setting in FREE_ON_RESUME or f"task.{setting}" in FREE_ON_RESUME
