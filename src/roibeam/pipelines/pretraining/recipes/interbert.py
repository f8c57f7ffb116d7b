"""InterBERT's published pre-training runs: section 3 and appendix 6.2 of arXiv:2003.13198, and black4321/InterBERT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from roibeam.model.interbert.fields import SMALL, interbert_fields
from roibeam.pipelines.common.statistics.paper_figures import figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields, Recipe
from roibeam.pipelines.pretraining.samples.sampling import InterBertSampling
from roibeam.pipelines.training.step_policies import release_settings

_CONFIG = "roibeam.model.interbert.model.InterBertConfig"
_DATA = "Conceptual Captions, SBU Captions and COCO captions"
_FEATURES = Features("interbert")
_SOURCE = "arXiv:2003.13198, sections 2.3 and 3, appendix 6.2"
_ADAMW: Mapping[str, Any] = MappingProxyType(
    {"optimizer": "adamw", "betas": (0.9, 0.9999), "epsilon": 1e-6, "weight_decay": 0.01, "clip_norm": 0.0}
)
_OPEN = (
    "The weights of the three losses are named and not given: equal, as in the release.",
    "Clipping is not given: none. How many regions and pieces are kept in pre-training is not given: the release's "
    "36, the best of the 90 to 100 that section 3.4 has for Flickr30k.",
    "Whether masked words and regions of mismatched pairs are predicted is not given: words are, regions are not, as "
    "in the release (--set model.region_loss_pairs=all predicts them too).",
    'The "categories" of masked regions are the detector\'s distributions, as in the release '
    "(--set model.region_labels=hard takes its best class alone).",
    "Which 117 k images of COCO are meant is not given: those of the caption file.",
    "In which shares the data sets are mixed is not given: every pair as likely, a --store for each without "
    "--store-weight.",
)


def _toy_paper(preset: str) -> dict[str, Any]:
    """The paper's choices in the small model's sizes."""
    sizes = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "pooled_size"]
    sizes += ["image_num_attention_heads", "image_intermediate_size"]
    if preset == "paper":
        sizes += ["text_num_hidden_layers", "image_num_hidden_layers"]
    return {**interbert_fields(preset), **{name: SMALL[name] for name in sizes}}


_PARAMETERS_OPEN = (
    "173 million parameters are printed (section 3.5); the layers of appendix 6.2 make 200 million, 172.7 of them "
    "without the embeddings of text, poolers and heads."
)
_GLUE_OPEN = (
    "CoLA's figure is called an accuracy; GLUE itself takes Matthews' correlation, and its size is that of one."
)


_BASE = Recipe(
    summary="InterBERT of the paper: masked groups of words and regions",
    source=_SOURCE,
    system="interbert",
    build=ModelFields(_CONFIG, interbert_fields("paper")),
    toy_build=ModelFields(_CONFIG, _toy_paper("paper")),
    sampling=InterBertSampling(),
    settings=_ADAMW,
    learning_rate=1e-4,
    batch_size=512,
    epochs=20,
    warmup=10_000,
    data=_DATA,
    features=_FEATURES,
    figures=figures_of("InterBERT", "InterBERT"),
    left_open=(*_OPEN, _PARAMETERS_OPEN, _GLUE_OPEN),
)
INTERBERT_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "interbert": _BASE,
        "interbert-single-masks": replace(
            _BASE,
            summary="InterBERT with words and regions masked one by one",
            sampling=InterBertSampling(masking="single"),
            figures=figures_of("InterBERT", "MLM+MOM+ITM"),
            left_open=(
                *_OPEN,
                "How often single words and regions are masked is not given: 15 %, as BERT and the release.",
            ),
        ),
        "interbert-without-bert": replace(
            _BASE,
            summary="InterBERT without BERT's weights to start from",
            start="",
            figures=figures_of("InterBERT", "InterBERT w/o BERT initialization"),
            left_open=(
                *_OPEN,
                "The split is not named: val, whose figures in Table 1 the printed losses of 10.7 and 13.9 % are of.",
                'For retrieval the paper says that BERT has "little impacts" there, without a figure.',
            ),
        ),
        "interbert-single-stream": replace(
            _BASE,
            summary="The single-stream baseline of InterBERT's paper",
            build=ModelFields(_CONFIG, interbert_fields("single-stream")),
            toy_build=ModelFields(_CONFIG, _toy_paper("single-stream")),
            figures=figures_of("InterBERT", "Single Stream"),
            left_open=(
                *_OPEN,
                '"A simple BERT architecture" is all that the paper says: data, tasks and optimiser as InterBERT\'s.',
                _GLUE_OPEN,
            ),
        ),
        "interbert-release": replace(
            _BASE,
            summary="InterBERT as released: 6 joint layers, one masked span",
            source="black4321/InterBERT README.md and train_concap.py, --span_mask",
            build=ModelFields(_CONFIG, interbert_fields()),
            toy_build=ModelFields(_CONFIG, SMALL),
            sampling=InterBertSampling(masking="groups_as_released"),
            settings=release_settings("interbert-release"),
            epochs=15,
            warmup=0.1,
            figures=figures_of("InterBERT, README.md", "InterBERT"),
            left_open=(
                "The README repeats the paper's figures, though its 6 joint layers, 15 epochs and one span are not the "
                "paper's 12, 20 and several. It names neither data sets nor VCR's split: the paper's.",
                "Decay lies on biases and LayerNorms and not on matrices, as in the code it grew from "
                "(train.parameter_groups=task mends it).",
            ),
        ),
    }
)
