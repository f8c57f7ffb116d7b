"""What stands in the card of predictions, from the run of each model that was asked. No torch but its version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.feature_words import boxes_words
from roibeam.pipelines.finetuning.trained_photos import SeenBefore
from roibeam.pipelines.training.model_files.model_folder import FoundModel
from roibeam.pipelines.training.model_files.trained_with import trained_with
from roibeam.pipelines.training.processes.precision import learned_in
from roibeam.pipelines.training.run_folder.folder import saved_config
from roibeam.pipelines.training.run_folder.run_words import origins
from roibeam.version import __version__


def model_facts(
    found: FoundModel, weights: str, seen: SeenBefore, seeds: Mapping[str, Any] | None, precision: str
) -> dict[str, Any]:
    """Of one model: where it lies, what it was trained on and started from, and what of the split it has seen before.

    Args:
        weights: their digest.
        seeds: of `seeds_of`.
        precision: that it was asked in.
    """
    saved = saved_config(found.source.parent)
    described, recorded = saved["task"], saved["recorded"]
    return {
        "task": described["task"],
        "options": described["task_options"],
        "model": {
            "folder": str(found.source), "weights": weights, "step": trained_with(found).step,
            "system": described["system"], "seed": saved["train"].get("seed"), "seeds": seeds,
            "trained_on": recorded.get("data"), "precision": precision, "learned_in": learned_in(saved["train"]),
            **{name: recorded.get(name) for name in ("start", "recipe", "trained_groups", "notes")},
            "started_from": "; ".join(f"{words}" for words in origins(saved).values()),
        },
        "leaks": {**seen.to_json(), "start_is_known": bool(recorded.get("start_tells_images"))},
        "command": recorded.get("command"),
    }  # fmt: skip


def card_facts(
    store: FeatureStore | None,
    models: Sequence[Mapping[str, Any]],
    told: Mapping[str, Any],
    *,
    rows: int,
    split: str,
    asked: Mapping[str, Any],
    annotated: str | None,
    command: str,
) -> dict[str, Any]:
    """The card, see prediction_card.py.

    Args:
        store: that has the images; None of a task of texts alone.
        models: `model_facts` of each model; a second one tells another problem of the task.
        told: of `joined_parts`.
        rows: groups that were asked about.
        asked: what of the request changes what the model says.
        annotated: second store; None for none.
        command: as it was typed.
    """
    first, second = models[0], models[1] if len(models) > 1 else None
    return {
        "split": split,
        "asked": dict(asked),
        **{name: first[name] for name in ("task", "options", "model", "leaks")},
        "second": None if second is None else {name: second[name] for name in ("options", "model", "leaks")},
        "store": {} if store is None else {
            "path": str(store.path), "content": store.manifest.content_digest,
            "feature_space": store.fingerprint.feature_space,
            "boxes": boxes_words(store.fingerprint) or f"not told ({store.fingerprint.feature_space[:60]})",
            "annotated": annotated,
        },
        "rows": rows,
        "told": {name: value for name, value in told.items() if name != "rows"},
        "commands": [each for each in (*(model["command"] for model in models), command) if each],
        "torch": torch.__version__,
        "roibeam": __version__,
    }  # fmt: skip
