"""ViLBERT's published pre-training runs: section 3.1 of arXiv:1908.02265 with its tables, and jiasenlu/vilbert_beta."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import SMALL_SIZES
from roibeam.model.vilbert.fields import SMALL, vilbert_fields
from roibeam.pipelines.common.statistics.paper_figures import figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields, Recipe
from roibeam.pipelines.pretraining.samples.sampling import ViLbertSampling
from roibeam.pipelines.training.step_policies import release_settings

_CONFIG = "roibeam.model.vilbert.encoder.ViLbertConfig"
_SINGLE_STREAM = "roibeam.model.vilbert.single_stream.SingleStreamConfig"
_PAPER = "arXiv:1908.02265, section 3.1; jiasenlu/vilbert_beta train_concap.py"
_DATA = "Conceptual Captions, 3.1 M pairs; 10 to 36 regions"
_FEATURES = Features("vilbert")
_SHARED_OPEN = (
    "Warm-up, decay, clipping, Adam's betas and epsilon and the length of the text are not in the paper: the release's "
    "10 % of the steps, 0.01, 1 for each tensor, 0.9 and 0.999, 1e-6, 36 pieces.",
    "The paper replaces image or caption of a mismatched pair, the release the caption alone: the release's. How often "
    "is not in the paper, nor whether masked words and regions count there: half, and they do, as in the release.",
    "The score that a region needs is not given: that of bottom-up attention, 0.2. If a store has more than 36 "
    "regions, those of the highest score are read.",
)
_OPEN = (
    *_SHARED_OPEN,
    "The width of the text is printed as 762: BERT-base's 768. Those of the image's feed-forward and of co-attention "
    "are not given: the release's 1024.",
    "Decay lies on biases and LayerNorms, not on matrices, as in the release (train.parameter_groups=task mends it).",
    "The rate of what BERT brought is a tenth there only where the model is wrapped for several GPUs; here always.",
)
_SHARE_OPEN = (
    "Which images the subsets hold is not given: drawn by share_seed.",
    'Whether "the same setup" is as many epochs or as many steps is not given: 10 epochs of the subset.',
)


def _toy(depth: int) -> dict[str, Any]:
    """Half as many co-attention layers as the published depth, before the last of 4 text layers."""
    layers = depth // 2
    return {
        **SMALL,
        "image_num_hidden_layers": layers,
        "image_co_attention": tuple(range(layers)),
        "text_co_attention": tuple(range(4 - layers, 4)),
    }


_BASE = Recipe(
    summary="",
    source=_PAPER,
    system="vilbert",
    build=ModelFields(_CONFIG, vilbert_fields(depth=6)),
    toy_build=ModelFields(_CONFIG, _toy(6)),
    sampling=ViLbertSampling(),
    settings=release_settings("vilbert-release"),
    learning_rate=1e-4,
    batch_size=512,
    epochs=10,
    warmup=0.1,
    data=_DATA,
    features=_FEATURES,
    left_open=_OPEN,
)


def _run(summary: str, row: str, *, depth: int = 6, share: float = 1.0) -> Recipe:
    return replace(
        _BASE,
        summary=summary,
        build=ModelFields(_CONFIG, vilbert_fields(depth=depth)),
        toy_build=ModelFields(_CONFIG, _toy(depth)),
        share=share,
        figures=figures_of("ViLBERT", row),
        left_open=_OPEN if share == 1 else (*_OPEN, *_SHARE_OPEN),
    )


VILBERT_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "vilbert": _run("ViLBERT, 6 co-attention layers", "ViLBERT"),
        "vilbert-paper": replace(
            _BASE,
            summary="ViLBERT in its paper's own words: image or caption replaced, plain Adam",
            source="arXiv:1908.02265, sections 2.2 and 3.1",
            build=ModelFields(_CONFIG, vilbert_fields("paper")),
            sampling=ViLbertSampling(negatives="caption_or_image"),
            settings={"optimizer": "adamw", "betas": (0.9, 0.999), "weight_decay": 0.01, "clip_norm": 0.0},
            figures=figures_of(
                *("ViLBERT", "ViLBERT", "VQA, accuracy, test-dev", "VCR, Q->A, val", "VCR, QA->R, val"),
                *("VCR, Q->AR, val", "RefCOCO+", "Flickr30k image retrieval", "zero-shot Flickr30k image retrieval"),
            ),
            left_open=(
                "The figures are of the authors' run, which their release is (vilbert); where it is not as the paper "
                "says, the paper's words stand here.",
                "Length of the warm-up, decay, clipping, Adam's betas and epsilon are not given: a tenth of the steps, "
                "0.01 on matrices, none, 0.9 and 0.999, 1e-6. What BERT brought has the same rate.",
                "How often pairs are mismatched is not given, nor whether masked words and regions count there: half, "
                "and they do. The length of the text and the score that a region needs are not given: 36 pieces, the "
                "store's regions, of more than 36 those of the highest score.",
                "The width of the text is printed as 762: BERT-base's 768. Those of the image's feed-forward and of "
                "co-attention are not given: the release's 1024.",
            ),
        ),
        "vilbert-without-bert": replace(
            _BASE,
            summary="ViLBERT without BERT's weights to start from, as InterBERT's authors compare with",
            start="",
            figures=figures_of("InterBERT", "ViLBERT w/o BERT initialization"),
            left_open=(
                *_OPEN,
                "How InterBERT's authors trained it, and on which captions, is not given: as its own authors do. The "
                "split is not named: val.",
            ),
        ),
        "vilbert-2-layer": _run("ViLBERT, 2 co-attention layers", "ViLBERT (2-layer)", depth=2),
        "vilbert-4-layer": _run("ViLBERT, 4 co-attention layers", "ViLBERT (4-layer)", depth=4),
        "vilbert-8-layer": _run("ViLBERT, 8 co-attention layers", "ViLBERT (8-layer)", depth=8),
        "vilbert-25-percent": _run("ViLBERT on a quarter of Conceptual Captions", "ViLBERT (25 %)", share=0.25),
        "vilbert-50-percent": _run("ViLBERT on half of Conceptual Captions", "ViLBERT (50 %)", share=0.5),
        "vilbert-single-stream": replace(
            _BASE,
            summary="The single-stream baseline of ViLBERT's paper",
            source="arXiv:1908.02265, section 4, Baselines",
            system="vilbert-single-stream",
            build=ModelFields(_SINGLE_STREAM),
            toy_build=ModelFields(_SINGLE_STREAM, SMALL_SIZES),
            settings={**_BASE.settings, "parameter_groups": "task"},
            figures=figures_of("ViLBERT", "Single-Stream"),
            left_open=(
                *_SHARED_OPEN,
                'Never released; "trained identically": the optimiser of the release, one group, decay on all.',
                'There are no figures of retrieval: not measured, "due to high computational cost".',
            ),
        ),
    }
)
