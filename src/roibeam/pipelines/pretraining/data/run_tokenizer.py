"""The tokenizer of a pre-training run, saved in its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from roibeam.pipelines.model_files.model_checkpoint import ModelCheckpoint
from roibeam.pipelines.model_files.tokenizer import MADE_FROM_CAPTIONS, CaptionTokenizer, load_tokenizer
from roibeam.pipelines.model_files.trained_with import check_tokenizer, trained_with
from roibeam.pipelines.training.loop import is_main_process
from roibeam.pipelines.training.run_folder.folder import CONFIG_NAME, Resume, saved_config

logger = logging.getLogger(__name__)


def tokenizer_of_run(
    run_dir: Path, spec: str, texts: Iterable[str], *, start: ModelCheckpoint | None, resume: Resume
) -> CaptionTokenizer:
    """The one that a resumed run saved, else what `load_tokenizer` makes of `spec` and `texts`, saved there.

    Args:
        start: whose words the tokenizer must have.
    Raises:
        ValueError: when it has others, or would be made anew although nobody knows those of `start`.
    """
    saved = run_dir / "tokenizer"
    if resume and saved.is_dir():
        _warn_of_another(run_dir, spec)
        return load_tokenizer(str(saved))
    learned = None if start is None else trained_with(start).tokenizer
    if start is not None and learned is None and spec == MADE_FROM_CAPTIONS:
        raise ValueError(
            f"--tokenizer is missing: {start.source} has none beside it, and pieces made from these captions would be "
            f"other words to it; name the one it was trained with"
        )
    tokenizer = load_tokenizer(spec, texts)
    if start is not None:
        check_tokenizer(start, tokenizer)
    if is_main_process():
        tokenizer.save(saved)
    return tokenizer


def _warn_of_another(run_dir: Path, spec: str) -> None:
    saved = saved_config(run_dir)["recorded"]["tokenizer_spec"] if (run_dir / CONFIG_NAME).exists() else spec
    if saved != spec:
        logger.warning("the run goes on with its own tokenizer, of %s; %s is not read", saved, spec)
