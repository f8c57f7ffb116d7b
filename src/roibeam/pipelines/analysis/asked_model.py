"""The model that is asked, and the tokenizer of its words: where every evaluation and every probe begins."""

from __future__ import annotations

from typing import Any

from roibeam.pipelines.model_files.model_checkpoint import ModelCheckpoint


def pretraining_model(found: ModelCheckpoint, *, named: str, asking: str) -> Any:
    """The checkpoint's model, which answers for masked words, masked regions and matches.

    Args:
        named: what the user calls the checkpoint.
        asking: what is about to be done with it, such as "probe".
    Raises:
        ValueError: for a model with the heads of another task.
    """
    model = found.model
    if not hasattr(model, "match_log_odds"):
        raise ValueError(f"{named}: {type(model).__name__} is a task's model; {asking} one with pre-training heads")
    return model


def tokenizer_spec(found: ModelCheckpoint, given: str | None) -> str:
    """What `load_tokenizer` is to read: as given, else the tokenizer beside the checkpoint.

    Raises:
        ValueError: when there is none.
    """
    if given:
        return given
    if found.tokenizer is None:
        raise ValueError(f"--tokenizer is missing: {found.source} has none beside it")
    return str(found.tokenizer)
