"""ImageBERT's published pre-training runs: sections 5.1 and 5.3 of arXiv:2001.07966. No code was released."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import SMALL_SIZES
from roibeam.pipelines.common.statistics.paper_figures import PaperFigure, figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields, Recipe
from roibeam.pipelines.pretraining.samples.sampling import ImageBertSampling

_CONFIG = "roibeam.model.imagebert.model.ImageBertConfig"
_SOURCE = "arXiv:2001.07966, sections 4.3, 5.1 and 5.3"
_LAIT = "LAIT, 2 M of its 10 M pairs (never released; 2 M pairs of Conceptual 12M in its place)"
_CC, _SBU = "Conceptual Captions", "SBU Captions"
_OPEN = (
    "Adam's betas, epsilon, decay, clipping, schedule and warm-up are not given: 0.9 and 0.999, 1e-6, 0.01, 1, linear "
    "fall after 10 % of the steps.",
    "Batch, rate and 17 epochs are given once, not for which stage: for each run.",
    "The weights of the losses are not given: equal. The regressed feature's error is a sum in the formula of section "
    "4.3, 2048 times as much: its mean (model.feature_reduction=sum is the formula).",
    "How many pairs are mismatched is not given: half, of captions and images alike.",
    "Its detector is cited as Pythia's ([24, 25]): features of width 2048 from fc6 of a ResNeXt Faster R-CNN, 100 "
    "boxes, 1,600 classes; the family of VisualBERT's on VQA, and not the Caffe ResNet-101 of bottom-up attention. The "
    "preset imagebert keeps as many regions of that one.",
)
# Number of regions of the best runs, of the 100.
_FEATURES = Features(detector="pythia-x152-fpn")
_SETTINGS = {"optimizer": "adamw", "betas": (0.9, 0.999), "weight_decay": 0.01, "clip_norm": 1.0}
_MIXED = (
    "In which shares the data sets are mixed is not given: every pair as likely, a --store for each without "
    "--store-weight."
)
_REGRESSION_OPEN = (
    "Whether it has the regression is not given: section 4.2 has all four tasks in both stages, but Table 3's CC row "
    "is Table 4's run without it. Here with it; model.with_region_feature_head=false is without."
)
_UNICODER_OPEN = (
    "Its figures are, to the digit, those that Table 1 prints for Unicoder-VL, another model on the same data: one of "
    "the two rows may be the other's."
)
_SAMPLED_OPEN = "Which 2 M of LAIT's 10 M pairs were sampled is not given."
_STAND_IN_OPEN = (
    "LAIT was never released. An open stand-in is 2 M pairs of Conceptual 12M, or what roibeam collect makes "
    "(docs/collection.md); figures then are of other data."
)


def _run(
    summary: str,
    data: str,
    figures: tuple[PaperFigure, ...],
    *,
    after: str = "",
    sampling: ImageBertSampling | None = None,
    model: Mapping[str, Any] = MappingProxyType({}),
    features: Features = _FEATURES,
    left_open: tuple[str, ...] = (),
) -> Recipe:
    return Recipe(
        summary=summary,
        source=_SOURCE,
        system="imagebert",
        build=ModelFields(_CONFIG, model),
        toy_build=ModelFields(_CONFIG, {**SMALL_SIZES, **model}),
        sampling=sampling or ImageBertSampling(),
        settings=_SETTINGS,
        learning_rate=1e-4,
        batch_size=48,
        epochs=17,
        warmup=0.1,
        data=data,
        features=features,
        after=after,
        figures=figures,
        left_open=(*_OPEN, *left_open),
    )


_ROWS_OPEN = (
    "That Table 4's fine-tuned rows are of this run is by their figures. RoI(100) has other ones than Table 2 and "
    '"binary only", which are equal; what differs is not given.'
)
_FEWER = ImageBertSampling(max_regions=36)
_FEWER_OPEN = (
    "Whether 36 regions are seen from the first stage on, or in fine-tuning alone, is not given: in all. That the row "
    "is of two stages is by the row beside it: 100 regions, R@1 73.0 and 87.3, near Table 2's 73.1 and 87.0."
)
IMAGEBERT_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "imagebert-stage-1": _run(
            "ImageBERT, first stage: images and texts of the web",
            _LAIT,
            figures_of("ImageBERT", "LAIT"),
            left_open=(_STAND_IN_OPEN, _SAMPLED_OPEN, _REGRESSION_OPEN),
        ),
        "imagebert-stage-2": _run(
            "ImageBERT, second stage: public captions",
            f"{_CC} and {_SBU}",
            tuple(
                figure
                for row in ("ImageBERT", "RoI(100)", "Binary+CE+Triplet", "CE only", "Triplet only")
                for figure in figures_of("ImageBERT", row)
            ),
            after="imagebert-stage-1",
            left_open=(_STAND_IN_OPEN, _MIXED, _REGRESSION_OPEN, _ROWS_OPEN),
        ),
        "imagebert-stage-1-36-regions": _run(
            "ImageBERT with 36 regions, first stage",
            _LAIT,
            (),
            sampling=_FEWER,
            left_open=(_STAND_IN_OPEN, _SAMPLED_OPEN, _REGRESSION_OPEN, _FEWER_OPEN),
        ),
        "imagebert-stage-2-36-regions": _run(
            "ImageBERT with 36 regions, second stage",
            f"{_CC} and {_SBU}",
            figures_of("ImageBERT", "RoI(36)"),
            after="imagebert-stage-1-36-regions",
            sampling=_FEWER,
            left_open=(_STAND_IN_OPEN, _MIXED, _REGRESSION_OPEN, _FEWER_OPEN),
        ),
        "imagebert-cc-sbu": _run(
            "ImageBERT in one stage on public captions",
            f"{_CC} and {_SBU}",
            figures_of("ImageBERT", "CC+SBU"),
            left_open=(_MIXED, _REGRESSION_OPEN, _UNICODER_OPEN),
        ),
        "imagebert-lait-cc-sbu": _run(
            "ImageBERT in one stage on all data",
            f"{_LAIT}, {_CC} and {_SBU}",
            figures_of("ImageBERT", "LAIT+CC+SBU"),
            left_open=(_STAND_IN_OPEN, _MIXED, _SAMPLED_OPEN, _REGRESSION_OPEN),
        ),
        "imagebert-cc": _run(
            "ImageBERT on Conceptual Captions, without feature regression",
            _CC,
            figures_of("ImageBERT", "CC"),
            model={"with_region_feature_head": False},
            left_open=("Table 3's run is Table 4's without the regression loss, by their equal figures.",),
        ),
        "imagebert-cc-regression": _run(
            "ImageBERT on Conceptual Captions, with feature regression", _CC, figures_of("ImageBERT", "CC(w MRFR loss)")
        ),
        "imagebert-cc-sbu-global": _run(
            "ImageBERT with a feature of the whole image beside its regions",
            f"{_CC} and {_SBU}",
            figures_of("ImageBERT", "CC+SBU(w global feature)"),
            model={"global_feature_size": 2048},
            features=Features(detector="pythia-x152-fpn", image_feature="resnet152=resnet152.pth"),
            left_open=(
                _MIXED,
                _REGRESSION_OPEN,
                "Whether the row of 144 elements grows by one is not given: it does.",
                "The row's network for the global feature, one of three, is not named: a ResNet's width. A store with "
                "another one's needs --set model.global_feature_size.",
            ),
        ),
    }
)
