"""Attention analysis by the names of its parts: a checkpoint, a store, Flickr30k Entities and perhaps parses.

entities x store x parses -> questions -> attention of all heads -> figures -> attention.json, plots, pictures

Files and settings are checked before torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from roibeam.features.store import FeatureStore
from roibeam.pipelines.analysis.analysis_settings import RULES, SOURCE_WORDS, checked_output, named_model
from roibeam.pipelines.analysis.attention_questions import SPACY, check_spacy
from roibeam.pipelines.analysis.requests import AttentionRequest
from roibeam.pipelines.common.compute import check_device
from roibeam.pipelines.common.console.command_files import FILE, FOLDER
from roibeam.pipelines.common.console.progress import waiting
from roibeam.pipelines.data.datasets.entities import check_entities, read_conll

if TYPE_CHECKING:
    from roibeam.pipelines.analysis.attention_run import AttentionResult


def analyse_attention(request: AttentionRequest, tell: Callable[[str], None] = lambda _remark: None) -> AttentionResult:
    """Writes attention.json and the pictures beside it.

    Args:
        tell: is called with each remark as soon as it is known.
    """
    out = _checked(request)
    # Torch is imported only when the names are in order.
    with waiting("loading torch"):
        from roibeam.pipelines.analysis.attention_run import analyse_checkpoint
        from roibeam.pipelines.analysis.load_for_evaluation import load_requested

    found, tokenizer = load_requested(request, "analyse")
    with FeatureStore(request.store) as store:
        return analyse_checkpoint(found, tokenizer, store, request, out, tell)


def _checked(request: AttentionRequest) -> Path:
    """Returns the output folder; ValueError lists all that is wrong with the names."""
    named, has_checkpoint, has_store = named_model(request)
    has_entities = named.need("--entities", request.entities, FOLDER)
    is_parsed = request.parses is not None and str(request.parses) == SPACY
    has_parses = is_parsed or named.need("--parses", request.parses, FILE)
    named.need("--photos", request.photos, FOLDER)
    named.look(lambda: check_device(request.device))
    named.look(lambda: _check_choices(request))
    if has_store:
        named.look(lambda: FeatureStore(request.store).close())
    if has_entities:
        named.look(lambda: check_entities(request.entities, request.split))
    if is_parsed:
        named.look(check_spacy)
    elif has_parses and request.parses is not None:
        named.look(lambda: next(read_conll(str(request.parses)), None))
    return checked_output(named, request, "attention", has_checkpoint=has_checkpoint)


def _check_choices(request: AttentionRequest) -> None:
    if request.rules not in RULES:
        raise ValueError(f"--rules {request.rules!r}: choose one of {', '.join(RULES)}")
    if request.word not in SOURCE_WORDS:
        raise ValueError(f"--word {request.word!r}: choose one of {', '.join(SOURCE_WORDS)}")
    if request.word == "head" and request.parses is None:
        raise ValueError("--word head needs --parses, which give the head word of a phrase")
