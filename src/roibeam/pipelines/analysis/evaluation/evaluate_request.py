"""Evaluation by the names of its parts: a checkpoint, a store and a caption file, opened and evaluated.

Files and settings are checked before torch is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig, checked_output, named_model
from roibeam.pipelines.analysis.requests import EvaluateRequest
from roibeam.pipelines.common.compute import check_device
from roibeam.pipelines.common.console.command_files import FILE, FOLDER, read_json_object
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.captions.caption_files import CaptionFile, stored_captions
from roibeam.pipelines.data.compatibility import checked_one_in

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.evaluation.evaluation_run import EvaluationResult

_HELD_OUT_SPLIT = "test"  # of a Karpathy file


def evaluate(request: EvaluateRequest, tell: Callable[[str], None] = lambda _remark: None) -> EvaluationResult:
    """Writes `results.json`; remarks on the caption file come before the others.

    Args:
        tell: as of `evaluate_checkpoint`; the notes on the caption file come last.
    """
    if not request.checkpoint or not request.store:
        raise ValueError("evaluate needs a checkpoint and --store (or --compare A B); roibeam evaluate --help")
    config = EvaluationConfig(
        seed=request.seed, batch_size=request.batch_size, max_images=request.max_images or 0,
        max_regions=request.max_regions or 0, retrieval=not request.no_retrieval, folds=request.folds,
        task=request.task_token, background=request.background, device=request.device,
        precision=request.precision,
    )  # fmt: skip
    file, out = _checked(request)
    _refuse_untrained_heads(request.checkpoint)
    # Torch is imported only when the names are in order.
    with waiting("loading torch"):
        from roibeam.pipelines.analysis.evaluation.evaluation_run import evaluate_checkpoint
        from roibeam.pipelines.analysis.load_for_evaluation import load_requested

    found, tokenizer = load_requested(request, "evaluate")
    source = {"checkpoint": request.checkpoint, "captions": file and file.location, "split": file and file.split}
    with FeatureStore(request.store) as store:
        store.checked_one_in = checked_one_in(request.checksums)
        result = evaluate_checkpoint(
            found,
            tokenizer,
            store,
            stored_captions(store) if file is None else file,
            out,
            config=config,
            images=request.photos,
            min_match=0.0 if file is None else request.min_match,
            extra_facts={"asked": source},
            tell=tell,
        )
    notes = () if file is None else file.notes
    for note in notes:
        tell(note)
    return dataclasses.replace(result, remarks=(*notes, *result.remarks))


def _checked(request: EvaluateRequest) -> tuple[CaptionFile | None, Path]:
    """Returns the caption file and the output folder; ValueError lists all that is wrong with the names."""
    named, has_checkpoint, has_store = named_model(request)
    has_captions = named.need("--captions", request.captions, FILE)
    named.need("--photos", request.photos, FOLDER)
    named.look(lambda: check_device(request.device))
    named.look(lambda: checked_one_in(request.checksums))
    if has_store:
        named.look(lambda: FeatureStore(request.store).close())
    file = named.look(lambda: _caption_file(request)) if has_captions else None
    return file, checked_output(named, request, "evaluation", has_checkpoint=has_checkpoint)


def _refuse_untrained_heads(checkpoint: str) -> None:
    """Raises ValueError for a run of `finetune` from new weights: nothing was pre-trained that could be measured."""
    place = Path(checkpoint).expanduser()
    configs = [each / "config.json" for each in (place, *place.parents[:3])]
    saved = next((read_json_object(each) for each in configs if each.is_file()), {})
    task, recorded = saved.get("task"), saved.get("recorded")
    is_tuned = isinstance(task, dict) and task.get("kind") == "finetuning"
    if is_tuned and isinstance(recorded, dict) and recorded.get("start") == "none":
        raise ValueError(
            f"{checkpoint}: was fine-tuned from new weights, so it never learned masked words, masked regions and "
            "matches, which evaluate measures; roibeam predict and roibeam score measure its task"
        )


def _caption_file(request: EvaluateRequest) -> CaptionFile | None:
    if request.captions is None:
        if request.split is not None:
            raise ValueError("--split is of a Karpathy file; name one with --captions")
        if request.caption_column:
            raise ValueError("--caption-column is of a caption .tsv; name one with --captions")
        return None
    file = CaptionFile(request.captions, split=request.split, caption_column=request.caption_column)
    if file.kind == "karpathy" and request.split is None:
        file = CaptionFile(request.captions, split=_HELD_OUT_SPLIT)
    file.check()
    return file
