"""Trained models in other forms: to fine-tune, so that tasks need not pre-train again, seed 0 of some arms by halves.

    bench/evidence/weights/<store>/<arm>/    config.json, model.safetensors (float16), tokenizer/

Each folder is one that `roibeam pretrain --from-run` and `roibeam evaluate` read. Git has only perfect/vilbert, which
tests start from. `make evidence ARGS="--only perfect/vlbert --seeds 0"` makes one of the others; `make evidence` makes
those that a missing run starts from.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from roibeam.model.visualbert.checkpoint import state_to_official
from roibeam.pipelines.training.model_files.model_checkpoint import CONFIG, WEIGHTS, load_model, model_folder

MAX_BYTES = 4_500_000  # of one file; ViLBERT takes most, with layers for words, for regions and between them


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


def write_untrained(kept: Path, out: Path, seed: int) -> Path:
    """A model of the shape of kept weights, as drawn, with their tokenizer.

    Returns:
        `out`.
    """
    shape: Any = load_model(str(kept)).model
    torch.manual_seed(seed)
    shutil.rmtree(out, ignore_errors=True)
    type(shape)(shape.config).save_pretrained(out)
    shutil.copytree(kept / "tokenizer", out / "tokenizer")
    return out


def write_bert(run: Path, out: Path) -> Path:
    """The layers of a VisualBERT that was trained on words alone, as a BERT's folder: what `--from-bert` reads.

    Returns:
        `out`.
    """
    model, _ = model_folder(run)
    settings = json.loads((model / CONFIG).read_text("utf-8"))
    names = {"hidden_act": "hidden_activation"}
    options = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = {name: settings[names.get(name, name)] for name in (*options, "hidden_act", "max_position_embeddings")}
    official = state_to_official(load_file(model / WEIGHTS))
    words = {name.replace("visual_bert.", "bert."): value.contiguous() for name, value in official.items()}
    left_out = ("visual", "projection", "predictions.decoder")  # of regions; copies of the word table
    kept = {name: value for name, value in words.items() if not any(part in name for part in left_out)}
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    save_file(kept, out / WEIGHTS, metadata={"format": "pt"})
    return out
