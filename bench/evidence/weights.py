"""Trained models to fine-tune, so that tasks need not pre-train again: seed 0 of some arms, in half precision.

    bench/evidence/weights/<store>/<arm>/    config.json, model.safetensors (float16), tokenizer/

Each folder is one that `roibeam pretrain --from-run` and `roibeam evaluate` read. `make evidence` writes them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from roibeam.pipelines.model_files.model_checkpoint import CONFIG, WEIGHTS, model_folder

MAX_BYTES = 3_000_000  # of one file


def keep_weights(run: Path, out: Path) -> None:
    """The newest model of a run with its tokenizer; matrices and vectors as float16.

    Raises:
        ValueError: where the file would be larger than `MAX_BYTES`.
    """
    model, tokenizer = model_folder(run)
    assert tokenizer is not None
    halves = {name: value.half().contiguous() for name, value in load_file(model / WEIGHTS).items()}
    size = sum(2 * value.numel() for value in halves.values())
    if size > MAX_BYTES:
        raise ValueError(f"{run}: {size:,} bytes in float16, at most {MAX_BYTES:,} are kept")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    save_file(halves, out / WEIGHTS, metadata={"format": "pt"})
    shutil.copy(model / CONFIG, out / CONFIG)
    shutil.copytree(tokenizer, out / "tokenizer")
