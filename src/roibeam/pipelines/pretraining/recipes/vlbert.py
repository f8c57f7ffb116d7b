"""VL-BERT's published pre-training runs: section 4.1 of arXiv:1908.08530, and cfgs/pretrain of jackroos/VL-BERT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from roibeam.model.vlbert.fields import vlbert_fields
from roibeam.pipelines.common.statistics.paper_figures import figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields, Recipe
from roibeam.pipelines.pretraining.samples.sampling import VLBertSampling
from roibeam.pipelines.training.step_policies import release_settings

_CONFIG = "roibeam.model.vlbert.config.VLBertConfig"
_CAPTIONS = "Conceptual Captions, 3.3 M pairs; 10 to 100 regions of score 0.5 and more"
_FEATURES = Features("vl-bert")
_RATE_OPEN = (
    "The paper has a rate of 1e-4 where the release's files have 1e-7 for each sample of a step, text corpus included; "
    "here it is the release's product."
)
_CORPUS_OPEN = (
    "Which copy of BookCorpus and Wikipedia is not given; the release reads documents of sentences, one a line, and "
    "an epoch is one of the captions, while the text goes round."
)
_FIGURES_OPEN = "The repository prints no figures; the paper's, as of its first version, are of vlbert-paper."
_HALF_OPEN = "The release trains in fp16 through apex (O2, LayerNorms in half too); here bf16 or fp32 autocast."


def _release(
    summary: str,
    source: str,
    *,
    size: str = "base",
    end_to_end: bool = False,
    text_corpus: bool = True,
    half: bool = False,
) -> Recipe:
    preset = "release-e2e" if end_to_end else "release" if text_corpus else "release-captions"
    # The rate counts the samples of all loaders: 4 x (32 + 32), 16 x (8 + 8), 4 x 64, 16 x (4 + 4) twice.
    captions = 128 if text_corpus else 256
    return Recipe(
        summary=summary,
        source=f"jackroos/VL-BERT cfgs/pretrain/{source}",
        system="vlbert",
        build=ModelFields(_CONFIG, vlbert_fields(preset, size=size)),
        toy_build=ModelFields(_CONFIG, vlbert_fields(preset, size="small")),
        sampling=VLBertSampling(),
        settings=release_settings("vl-bert"),
        learning_rate=1e-7 * 256,
        batch_size=captions,
        epochs=10,
        warmup=16000 if text_corpus else 8000,
        data=_CAPTIONS + ("; BookCorpus and English Wikipedia" if text_corpus else ""),
        features=_FEATURES,
        start=f"bert-{size}-uncased",
        text_corpus=text_corpus,
        end_to_end=end_to_end,
        masking="release" if end_to_end else "",
        left_open=(
            _RATE_OPEN,
            *([_CORPUS_OPEN] if text_corpus else []),
            *([_HALF_OPEN] if half else []),
            _FIGURES_OPEN,
        ),
    )


def _ablation(summary: str, row: str, **model: Any) -> Recipe:
    """A row of the later version's Table 4 that has no released file."""
    file = "base_prec_withouttextonly_4x16G_fp32.yaml"
    captions = _release(summary, file, text_corpus=False)
    return replace(
        captions,
        source=f"later version of arXiv:1908.08530, Table 4, row {row}; {captions.source}",
        build=captions.build.changed(**model),
        toy_build=captions.toy_build.changed(**model),
        left_open=(
            "Its figures are in the later version of the paper, and not known here; the repository prints no figures.",
            "Differences from the released run other than the tasks are not given: none. Fast R-CNN is tuned in the "
            "table's last row alone (vlbert-base-e2e); here it made stored features.",
            *captions.left_open[:-1],
        ),
    )


VLBERT_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "vlbert-paper": Recipe(
            summary="VL-BERT of the paper: three tasks, captions alone, trained through the detector",
            source="arXiv:1908.08530, sections 3.3 and 4.1",
            system="vlbert",
            build=ModelFields(_CONFIG, vlbert_fields("paper", size="base")),
            toy_build=ModelFields(_CONFIG, vlbert_fields("paper", size="small")),
            sampling=VLBertSampling(max_elements=0, word_masked_share=1.0, region_masked_share=1.0),
            settings={"optimizer": "adamw", "betas": (0.9, 0.999), "weight_decay": 1e-4, "clip_norm": 0.0},
            learning_rate=1e-4,
            batch_size=256,
            epochs=10,
            warmup=8000,
            data=_CAPTIONS,
            features=_FEATURES,
            end_to_end=True,
            masking="paper",
            figures=figures_of("VL-BERT, version 1", "VL-BERT"),
            left_open=(
                "Adam's epsilon and clipping are not given: torch's AdamW with 1e-6, no clipping.",
                "Whether decay is decoupled, and what decays, is not given: it is, and everything does, as released.",
                "The weights of the three losses are not given: equal.",
                "How long a caption may be is not given: nothing is cut.",
                "Whether masked words and regions count where caption and image do not match is not given: they do.",
                'Figure 1 trains "all parameters"; here stem, res2 and batch norms of the detector stay fixed, as '
                "released. How large photos are is not given: the release's short edge of 600.",
            ),
        ),
        "vlbert-base": _release("VL-BERT base on stored features, with the text corpus", "base_prec_4x16G_fp32.yaml"),
        "vlbert-base-captions": _release(
            "VL-BERT base on stored features, captions alone",
            "base_prec_withouttextonly_4x16G_fp32.yaml",
            text_corpus=False,
        ),
        "vlbert-base-e2e": _release(
            "VL-BERT base through the detector's head, with the text corpus",
            "base_e2e_16x16G_fp16.yaml",
            end_to_end=True,
            half=True,
        ),
        "vlbert-ablation-words": _ablation(
            "VL-BERT base on captions alone, masked words alone",
            "(a)",
            with_region_head=False,
            masked_region_token=False,
        ),
        "vlbert-ablation-relationship": _ablation(
            "VL-BERT base on captions alone, with the sentence-image relationship",
            "(c)",
            with_relationship_head=True,
            with_pooler=True,
        ),
        "vlbert-large": _release(
            "VL-BERT large on stored features, with the text corpus",
            "large_prec_4x16G_fp16.yaml",
            size="large",
            half=True,
        ),
        "vlbert-large-e2e": _release(
            "VL-BERT large through the detector's head, with the text corpus",
            "large_e2e_16x16G_fp16.yaml",
            size="large",
            end_to_end=True,
            half=True,
        ),
    }
)
