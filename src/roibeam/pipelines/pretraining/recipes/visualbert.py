"""VisualBERT's published pre-training runs: the paper's appendices A to C, and uclanlp/visualbert.

Appendices, tables and footnotes are numbered as in "What Does BERT with Vision Look At?", whose long version is
arXiv:1908.03557.

Phase one is on COCO's captions, once for each kind of features; phase two on a task's own text; fine-tuning follows.
Tables 3 to 6 have two variants of it for every task: without early fusion in either phase, and without phase one.
Table 7 has ablations on NLVR2 with fewer regions, each in both phases but the one without COCO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import SMALL_SIZES
from roibeam.model.visualbert.fields import visualbert_fields
from roibeam.pipelines.common.statistics.paper_figures import PaperFigure, figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields, Recipe
from roibeam.pipelines.pretraining.samples.sampling import NAMED, TASK_TEXT, VisualBertSampling
from roibeam.pipelines.training.step_policies import release_settings

_CONFIG = "roibeam.model.visualbert.model.VisualBertConfig"
_PAPER = "Li et al., What Does BERT with Vision Look At? (long version: arXiv:1908.03557)"
_CONFIGS = "uclanlp/visualbert visualbert/configs"
_COCO = "COCO, Karpathy's training images, 5 captions each"
_COCO_OPEN = (
    'The paper has "the Karpathy train split", around 100k images; a Karpathy file is read with its restval images too.'
)
_CUT_OPEN = (
    "Pairs of more than 128 pieces are cut from the front by the release, and by too much; here the longer caption "
    "loses its end (sampling.cut=release_front is the release's way)."
)
_POOLER_OPEN = "The release trains nothing named pooler; so does this."
# Datasets are VQA and NLVR2, whose ablations have the best of the 144 regions; Flickr30k has six box numbers more.
_PYTHIA, _DETECTRON = Features(detector="pythia-x152-fpn"), Features(detector="mask-rcnn-r101-fpn")
_BUTD = Features("butd-10-100")
_VARIANT_OPEN = "Batch, rate, epochs and warm-up of the variant are not given: the full model's."
_VARIANT_SOURCE = f"{_PAPER}, appendix B"
_LATE = "-late-fusion"


def _phase(
    summary: str,
    source: str,
    *,
    sampling: VisualBertSampling | None = None,
    model: Mapping[str, Any] = MappingProxyType({}),
    left_open: tuple[str, ...] = (),
    **published: Any,
) -> Recipe:
    """
    Args:
        left_open: beside what all phases of its kind leave open.
        published: further fields of `Recipe`, its data and batch size among them.
    """
    sampling = sampling or VisualBertSampling()
    changes = model if published.get("after") else {}
    usual: dict[str, Any] = {"learning_rate": 5e-5, "epochs": 10, "warmup": 0.1, "changes": changes}
    open_too = (
        *([_COCO_OPEN] if published["data"].startswith(_COCO) else []),
        *([_CUT_OPEN] if sampling.text_form == "two_captions" else []),
        _POOLER_OPEN,
    )
    return Recipe(
        summary=summary,
        source=source,
        system="visualbert",
        build=ModelFields(_CONFIG, {**visualbert_fields(), **model}),
        toy_build=ModelFields(_CONFIG, {**SMALL_SIZES, **model}),
        sampling=sampling,
        settings=release_settings("visualbert-ucla"),
        task_text=sampling.text_form == TASK_TEXT,
        left_open=(*left_open, *open_too),
        **(usual | published),
    )


_TASK_TEXT = VisualBertSampling(text_form=TASK_TEXT)
# uclanlp/visualbert models/model.py (VisualBERTDetector) in both phases: R2C's network, whose first four stages
# `freeze_detector` fixes unless a configuration has another value; its last one, and the layers that read outlines and
# classes, are trained. Classes: COCO's 80, and the whole image.
_R2C: Mapping[str, Any] = MappingProxyType(
    {
        "end_to_end": True,
        "on_stored": True,
        "detector": "r2c-r50",
        "encoder": {"frozen_stages": (1, 2, 3, 4), "mask_channels": 32},
        "photos": {"flip": False, "fixed_size": True, "aspect_buckets": False},
        "model": {"num_region_classes": 81},
        "changes": {},  # the data give the number of classes; a start has the same
    }
)
_R2C_OPEN = (
    "On stored features (extract --detector r2c-r50 --boxes) the ResNet-50 stays as it is, and outlines are not read.",
    "R2C puts a photo somewhere into a black frame, 768 pixels wide and 384 high, by chance in training; here it "
    "stands at the top left, the mean beside it, and one that is higher than wide is as high as others are wide. "
    "R2C's norms take the statistics of the batch; here they are fixed.",
)
_RIGHT_OPEN = (
    "The paper has masked words alone here (appendix A.3), the release also predicts whether the text is right; "
    "model.with_match_head=false is the paper's way."
)
_STATEMENTS = "NLVR2, training statements, each with both of its images"
_ABLATION = f"{_PAPER}, appendix C; 36 regions"

_RELATIONS = ("det", "pobj", "amod", "nsubj", "prep", "dobj", "punct", "partmod", "nn", "num")


def _relation(name: str) -> tuple[PaperFigure, ...]:
    """Figures of Table 2, without the name of the best head."""
    task = f"syntactic grounding of {name}"
    return figures_of("VisualBERT", name, f"{task}, baseline", f"{task}, accuracy")


_FULL: Mapping[str, Recipe] = MappingProxyType(
    {
        "visualbert-coco-vqa": _phase(
            "VisualBERT, first phase for VQA: COCO captions, 100 regions of width 2048",
            f"{_CONFIGS}/vqa/coco-pre-train.json",
            batch_size=48,
            data=_COCO,
            features=_PYTHIA,
        ),
        "visualbert-coco-nlvr2": _phase(
            "VisualBERT, first phase for NLVR2: COCO captions, 144 regions of width 1024",
            f"{_CONFIGS}/nlvr2/coco-pre-train.json",
            batch_size=64,
            data=_COCO,
            features=_DETECTRON,
            sampling=VisualBertSampling(max_regions=144),
        ),
        "visualbert-coco-vcr": _phase(
            "VisualBERT, first phase for VCR: COCO captions, R2C's regions of a ResNet-50 with their classes",
            f"{_CONFIGS}/vcr/coco-pre-train.json, visualbert/models/model.py, visualbert/utils/detector.py",
            batch_size=128,
            learning_rate=1e-4,
            data=f"{_COCO}; their objects and the whole image, each with its class and outline",
            sampling=VisualBertSampling(told_classes=True, whole_region=True),
            features=Features(detector="r2c-r50", boxes="coco"),
            left_open=(
                *_R2C_OPEN,
                "The release's objects are what the detector finds that VCR was made with (its files of boxes and "
                "masks), and it leaves out photos without any; --objects takes COCO's own instances.",
            ),
            **_R2C,
        ),
        "visualbert-coco-flickr": _phase(
            "VisualBERT, first phase for Flickr30k Entities: COCO captions, features with six numbers of their box",
            f"{_CONFIGS}/flickr/coco-pre-train.json",
            batch_size=32,
            data=_COCO,
            features=_BUTD,
            sampling=VisualBertSampling(box_numbers=True),
        ),
        "visualbert-task-vqa": _phase(
            "VisualBERT, second phase for VQA: questions with their answers, masked words alone",
            f"{_CONFIGS}/vqa/pre-train.json",
            batch_size=64,
            data="VQA v2, training questions, each with one of its ten answers behind it in one text",
            features=_PYTHIA,
            sampling=_TASK_TEXT,
            model={"with_match_head": False},
            after="visualbert-coco-vqa",
            figures=figures_of("VisualBERT", "VisualBERT", "VQA"),
            left_open=(
                "The release adds VQA's validation questions and draws among answers of its 3,129; here training "
                "questions and all answers.",
                "The release reads questions without their commas, as Pythia prepared them; here as VQA has them.",
                'The release spells the answer letter by letter ("y e s"), by a slip; here it is a word.',
            ),
        ),
        "visualbert-task-vcr": _phase(
            "VisualBERT, second phase for VCR: questions with answers and rationales, and which are right",
            f"{_CONFIGS}/vcr/pre-train.json, visualbert/models/model.py, visualbert/utils/detector.py",
            batch_size=32,
            epochs=1,
            warmup=0.1879,
            data="VCR, training questions: each with four answers, and with its right answer and four rationales; "
            "the boxes that a question's texts name (extract --boxes vcr1images/) and the whole image, each with its "
            "class and outline",
            features=Features(detector="r2c-r50", boxes="vcr"),
            sampling=VisualBertSampling(
                text_form=TASK_TEXT,
                aligned_words="first_piece",
                told_classes=True,
                whole_region=True,
                shown_boxes=NAMED,
            ),
            after="visualbert-coco-vcr",
            figures=figures_of("VisualBERT", "VisualBERT", "VCR")
            + figures_of("VisualBERT", "VisualBERT with a fixed ResNet50"),
            left_open=(
                _RIGHT_OPEN,
                "The release takes one of a question's eight texts eight times, by a slip; here each is taken once.",
                *_R2C_OPEN,
                "A word that names a box should be aligned by its first piece; the release takes the word's number for "
                "the piece's, by a slip (sampling.aligned_words=release).",
            ),
            **_R2C,
        ),
        "visualbert-task-nlvr2": _phase(
            "VisualBERT, second phase for NLVR2: statements on two images, and whether they are true",
            f"{_CONFIGS}/nlvr2/pre-train.json",
            batch_size=64,
            data=_STATEMENTS,
            features=_DETECTRON,
            sampling=VisualBertSampling(text_form=TASK_TEXT, max_regions=144),
            after="visualbert-coco-nlvr2",
            figures=figures_of("VisualBERT", "VisualBERT", "NLVR2"),
            left_open=(
                "The release takes the first 144 regions of the file; here those of highest score.",
                "Table 1 has 67.3 under test-P, Table 5 under test-U and 67.0 under test-P: Table 5's.",
                _RIGHT_OPEN,
            ),
        ),
        "visualbert-task-flickr": _phase(
            "VisualBERT, second phase for Flickr30k Entities: its captions, masked words alone",
            f"{_CONFIGS}/flickr/pre-train.json; {_PAPER}, section 2",
            batch_size=32,
            data="Flickr30k, training captions",
            features=_BUTD,
            sampling=VisualBertSampling(text_form="words_only", box_numbers=True),
            model={"with_match_head": False},
            after="visualbert-coco-flickr",
            figures=(
                *figures_of("VisualBERT", "VisualBERT", "Flickr30k Entities"),
                *figures_of("VisualBERT", "entity grounding"),
                *(figure for relation in _RELATIONS for figure in _relation(relation)),
            ),
            left_open=("The release takes only captions that have a phrase with a box; here all.",),
        ),
    }
)


def _late_fusion(name: str) -> Recipe:
    """A phase without early fusion, after one without it."""
    full, row = _FULL[name], "VisualBERT w/o Early Fusion"
    return _variant(
        full,
        "without early fusion",
        figures=figures_of("VisualBERT", row, _TASKS[name]) if name in _TASKS else (),
        build=full.build.changed(early_fusion=False),
        toy_build=full.toy_build.changed(early_fusion=False),
        after=f"{full.after}{_LATE}" if full.after else "",
        changes={**full.changes, "early_fusion": False} if full.after else {},
    )


def _without_coco(name: str) -> Recipe:
    """A second phase that starts where the first one would."""
    figures = figures_of("VisualBERT", "VisualBERT w/o COCO Pre-training", _TASKS[name])
    return _variant(_FULL[name], "right from BERT, without COCO", figures=figures, after="", changes={})


def _variant(full: Recipe, what: str, **changes: Any) -> Recipe:
    return replace(
        full,
        summary=f"{full.summary}; {what}",
        source=f"{_VARIANT_SOURCE}; {full.source}",
        left_open=(_VARIANT_OPEN, *full.left_open),
        **changes,
    )


_TASKS: Mapping[str, str] = {
    "visualbert-task-vqa": "VQA",
    "visualbert-task-vcr": "VCR",
    "visualbert-task-nlvr2": "NLVR2",
    "visualbert-task-flickr": "Flickr30k Entities",
}
_FEWER = VisualBertSampling(max_regions=36)
_FEWER_STATEMENTS = VisualBertSampling(text_form=TASK_TEXT, max_regions=36)
_ABLATION_OPEN = (
    "That each ablation has the second phase is not given: the full model has it (appendix B), and C3's is "
    '"trained as the full model".',
    "Batch, rate, epochs and warm-up of the ablations are not given: those of NLVR2's full model.",
)


def _ablation(
    name: str,
    what: str,
    row: str,
    *,
    data: str = _COCO,
    first: VisualBertSampling = _FEWER,
    model: Mapping[str, Any] = MappingProxyType({}),
    start: str = "bert-base-uncased",
    right_open: tuple[str, ...] = (_RIGHT_OPEN,),
    left_open: tuple[str, ...] = (),
    where: str = _ABLATION,
) -> dict[str, Recipe]:
    """Both phases of a row of Table 7, or of footnote 4."""
    before = f"visualbert-coco-{name}"
    shared: dict[str, Any] = {"batch_size": 64, "model": model, "start": start, "features": _DETECTRON}
    return {
        before: _phase(
            f"{what}; first phase",
            f"{where}; {_CONFIGS}/nlvr2/coco-pre-train.json",
            data=data,
            sampling=first,
            left_open=(*left_open, *_ABLATION_OPEN),
            **shared,
        ),
        f"visualbert-{name}": _phase(
            f"{what}; second phase, on NLVR2's statements",
            f"{where}; {_CONFIGS}/nlvr2/pre-train.json",
            data=_STATEMENTS,
            sampling=replace(_FEWER_STATEMENTS, max_regions=first.max_regions),
            after=before,
            figures=figures_of("VisualBERT", row),
            left_open=(*left_open, *_ABLATION_OPEN, *right_open),
            **shared,
        ),
    }


_ABLATIONS: Mapping[str, Recipe] = MappingProxyType(
    {
        **_ablation(
            "ablation-full",
            "VisualBERT with 36 regions, that its ablations are measured against",
            "VisualBERT (36 features)",
            left_open=(
                "Footnote 4 also has 64.8 with 9 regions, 65.5 with 18 and 67.1 with 72: the recipes "
                "visualbert-9-regions, visualbert-18-regions and visualbert-72-regions.",
            ),
        ),
        "visualbert-without-coco": _phase(
            "VisualBERT whose first phase is left out: NLVR2's statements right from BERT (C1)",
            f"{_ABLATION}; {_CONFIGS}/nlvr2/pre-train.json",
            batch_size=64,
            data=_STATEMENTS,
            features=_DETECTRON,
            sampling=_FEWER_STATEMENTS,
            figures=figures_of("VisualBERT", "C1 VisualBERT w/o COCO Pre-training"),
            left_open=(*_ABLATION_OPEN, _RIGHT_OPEN),
        ),
        **_ablation(
            "without-images",
            "VisualBERT whose first phase reads captions without images (C1)",
            "C1 VisualBERT w/o Grounded Pre-training",
            data=f"{_COCO}; regions left out",
            first=VisualBertSampling(max_regions=36, with_regions=False),
        ),
        **_ablation(
            "late-fusion",
            "VisualBERT without early fusion (C2)",
            "C2 VisualBERT w/o Early Fusion",
            model={"early_fusion": False},
        ),
        **_ablation(
            "without-bert",
            "VisualBERT without BERT's weights to start from (C3)",
            "C3 VisualBERT w/o BERT Initialization",
            start="",
        ),
        **_ablation(
            "without-second-caption",
            "VisualBERT without its second objective (C4)",
            "C4 VisualBERT w/o Objective 2",
            first=VisualBertSampling(text_form="words_only", max_regions=36),
            model={"with_match_head": False},
            right_open=(
                "The second phase has masked words alone, as the paper's always has (appendix A.3); the release would "
                "also predict whether the statement is right.",
            ),
            left_open=("Whether the first phase still reads two captions is not given: one.",),
        ),
    }
)

# Footnote 4; 36 regions are Table 7's full model, 144 that of Table 5.
_NUMBERS: Mapping[str, Recipe] = MappingProxyType(
    {
        name: recipe
        for regions in (9, 18, 72)
        for name, recipe in _ablation(
            f"{regions}-regions",
            f"VisualBERT with {regions} regions",
            f"VisualBERT ({regions} proposals)",
            first=VisualBertSampling(max_regions=regions),
            where=f"{_PAPER}, footnote 4",
            left_open=("Footnote 4 does not say in which phases there are so many regions: in all three.",),
        ).items()
    }
)

VISUALBERT_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        **_FULL,
        **{f"{name}{_LATE}": _late_fusion(name) for name in _FULL},
        **{f"{name}-without-coco": _without_coco(name) for name in _TASKS},
        **_ABLATIONS,
        **_NUMBERS,
        # Figures of the full run alone: its variants are not analysed.
        "visualbert-task-flickr": replace(
            _FULL["visualbert-task-flickr"],
            summary=f"{_FULL['visualbert-task-flickr'].summary}; the model that section 3 analyses (roibeam attention)",
        ),
    }
)
