"""The tokenizer of a pre-training run, saved in its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from pipelines.run_folder import CONFIG_NAME, Resume, saved_config
from pipelines.tokenizer import CaptionTokenizer, load_tokenizer
from pipelines.training import is_main_process

logger = logging.getLogger(__name__)


def tokenizer_of_run(run_dir: Path, spec: str, texts: Iterable[str], *, resume: Resume) -> CaptionTokenizer:
    """The one that a resumed run saved, else what `load_tokenizer` makes of `spec` and `texts`, saved there."""
    saved = run_dir / "tokenizer"
    if resume and saved.is_dir():
        _warn_of_another(run_dir, spec)
        return load_tokenizer(str(saved))
    tokenizer = load_tokenizer(spec, texts)
    if is_main_process():
        tokenizer.save(saved)
    return tokenizer


def _warn_of_another(run_dir: Path, spec: str) -> None:
    saved = saved_config(run_dir)["recorded"]["tokenizer_spec"] if (run_dir / CONFIG_NAME).exists() else spec
    if saved != spec:
        logger.warning("the run goes on with its own tokenizer, of %s; %s is not read", saved, spec)
