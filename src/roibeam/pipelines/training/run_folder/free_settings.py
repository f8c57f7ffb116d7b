"""Settings that change no number of the training, so a resumed run may change them. Without torch."""

FREE_ON_RESUME = frozenset(
    f"train.{name}"
    for name in ("log_every", "checkpoint_every", "keep", "evaluate_every", "best_by", "best_is", "tensorboard")
) | {"task.data.workers", "train.activation_checkpointing"}


def is_free_on_resume(setting: str) -> bool:
    """Whether "section.field" of a command line changes no number, so that a run may go on with another value."""
    return setting in FREE_ON_RESUME or f"task.{setting}" in FREE_ON_RESUME
