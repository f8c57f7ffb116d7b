"""Evaluation by the names of its parts: a checkpoint, a store and a caption file, opened and evaluated.

Files and settings are checked before torch is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.analysis_settings import EvaluationConfig, checked_output, named_model
from roibeam.pipelines.common.compute import check_device
from roibeam.pipelines.common.console.command_files import FILE, FOLDER
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.captions.caption_files import CaptionFile, stored_captions
from roibeam.pipelines.data.compatibility import ALL, checked_one_in

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.evaluation.evaluation_run import EvaluationResult

_HELD_OUT_SPLIT = "test"  # of a Karpathy file


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """Request of `roibeam evaluate`: a model, a store and captions.

    Attributes:
        checkpoint: run folder, model folder or official checkpoint.
        store: folder of the store.
        out: folder for results.json, not there yet or empty; None is as of `default_output_path`, "evaluation".
        captions: file; None takes those that the store keeps.
        split: of a Karpathy file; None is its split test.
        caption_column: as of `CaptionFile`.
        images: of a model that was trained end to end: folder of the photos; None takes the places that the store
            recorded.
        min_match: share of the images of `captions` (0..1) that the store must have; the store's own have one anyway.
        tokenizer: as of `load_tokenizer`; None takes the one beside the checkpoint.
        options: official JSON configuration beside an official checkpoint.
        config: how it is evaluated.
        threads: of the CPU; None leaves torch's choice.
        checksums: how many records are compared with theirs, see `checked_one_in`.
    """

    checkpoint: str
    store: str
    out: Path | None = None
    captions: str | None = None
    split: str | None = None
    caption_column: str = ""
    images: str | None = None
    min_match: float = 1.0
    tokenizer: str | None = None
    options: Path | None = None
    config: EvaluationConfig = field(default_factory=EvaluationConfig)
    threads: int | None = None
    checksums: str = ALL


def evaluate(request: EvaluateRequest, tell: Callable[[str], None] = lambda remark: None) -> EvaluationResult:
    """Writes `results.json`; remarks on the caption file come before the others.

    Args:
        tell: as of `evaluate_checkpoint`; the notes on the caption file come last.
    """
    file, out = _checked(request)
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
            config=request.config,
            images=request.images,
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
    named.need("--photos", request.images, FOLDER)
    named.look(lambda: check_device(request.config.device))
    named.look(lambda: checked_one_in(request.checksums))
    if has_store:
        named.look(lambda: FeatureStore(request.store).close())
    file = named.look(lambda: _caption_file(request)) if has_captions else None
    return file, checked_output(named, request, "evaluation", has_checkpoint=has_checkpoint)


def _caption_file(request: EvaluateRequest) -> CaptionFile | None:
    if request.captions is None:
        if request.split is not None:
            raise ValueError("--split is of a Karpathy file; name one with --captions")
        if request.caption_column:
            raise ValueError("--caption-column is of a caption .tsv; name one with --captions")
        return None
    file = CaptionFile(request.captions, split=request.split, caption_column=request.caption_column)
    if file.kind == "karpathy" and request.split is None:
        return CaptionFile(request.captions, split=_HELD_OUT_SPLIT)
    return file
