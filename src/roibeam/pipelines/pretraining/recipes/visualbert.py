"""VisualBERT's published pre-training runs: the paper's appendices A to C, and configs/ of uclanlp/visualbert.

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

from roibeam.model.common.presets import SMALL_SIZES
from roibeam.model.visualbert.presets import visualbert_fields
from roibeam.pipelines.foundation.statistics.printed_figure import Figure
from roibeam.pipelines.pretraining.recipes.recipe import ModelFields, Recipe
from roibeam.pipelines.pretraining.samples.visualbert_sampling import NAMED, TASK_TEXT, VisualBertSampling
from roibeam.pipelines.training.step_policies import release_settings

_CONFIG = "roibeam.model.visualbert.model.VisualBertConfig"
_PAPER = "Li et al., What Does BERT with Vision Look At? (long version: arXiv:1908.03557)"
_COCO = "COCO, Karpathy's training images, 5 captions each"
_COCO_OPEN = (
    'The paper has "the Karpathy train split", around 100k images; a Karpathy file is read with its restval images too.'
)
_CUT_OPEN = (
    "Pairs of more than 128 pieces are cut from the front by the release, and by too much; here the longer caption "
    "loses its end (sampling.cut=release_front is the release's way)."
)
_POOLER_OPEN = "The release trains nothing named pooler; so does this."
_VARIANT_OPEN = "Batch, rate, epochs and warm-up of the variant are not given: the full model's."
_VARIANT_SOURCE = f"{_PAPER}, appendix B"
_LATE = "-late-fusion"
_NLVR2, _ENTITIES = "NLVR2", "Flickr30k Entities"


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
        model: fields of its configuration.
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
# `freeze_detector` fixes where a configuration does not say otherwise; its last one, what tells outlines and what
# takes classes are trained. Classes: COCO's 80, and the whole image.
_R2C: Mapping[str, Any] = MappingProxyType(
    {
        "end_to_end": True,
        "on_stored": True,
        "detector": "r2c-r50",
        "encoder": {"frozen_stages": (1, 2, 3, 4), "mask_channels": 32},
        "photos": {"flip": False, "fixed_size": True, "aspect_buckets": False},
        "model": {"num_region_classes": 81},
        "changes": {},  # how many classes there are, the data say; a start was told as many
    }
)
_R2C_OPEN = (
    "On stored features (extract --detector r2c-r50 --boxes) the ResNet-50 stays as it is, and outlines are not told.",
    "R2C puts a photo somewhere into a black frame, 768 pixels wide and 384 high, by chance in training; here it "
    "stands at the top left, the mean beside it, and one that is higher than wide is as high as others are wide. "
    "R2C's norms take the statistics of the batch; here they are fixed.",
)
_RIGHT_OPEN = (
    "The paper has masked words alone here (appendix A.3), the release also asks whether the text is right; "
    "model.with_match_head=false is the paper's way."
)
_STATEMENTS = "NLVR2, training statements, each with both of its images"
_ABLATION = f"{_PAPER}, appendix C; 36 regions"

_FULL: Mapping[str, Recipe] = MappingProxyType(
    {
        "visualbert-coco-vqa": _phase(
            "VisualBERT, first phase for VQA: COCO captions, 100 regions of width 2048",
            "configs/vqa/coco-pre-train.json",
            batch_size=48,
            data=_COCO,
        ),
        "visualbert-coco-nlvr2": _phase(
            "VisualBERT, first phase for NLVR2: COCO captions, 144 regions of width 1024",
            "configs/nlvr2/coco-pre-train.json",
            batch_size=64,
            data=_COCO,
            sampling=VisualBertSampling(max_regions=144),
        ),
        "visualbert-coco-vcr": _phase(
            "VisualBERT, first phase for VCR: COCO captions, R2C's regions of a ResNet-50 with their classes",
            "configs/vcr/coco-pre-train.json, models/model.py, utils/detector.py",
            batch_size=128,
            learning_rate=1e-4,
            data=f"{_COCO}; their objects and the whole image, each with its class and outline",
            sampling=VisualBertSampling(told_classes=True, whole_region=True),
            left_open=(
                *_R2C_OPEN,
                "The release's objects are what the detector finds that VCR was made with (its files of boxes and "
                "masks), and it leaves out photos without any; --objects takes COCO's own instances.",
            ),
            **_R2C,
        ),
        "visualbert-coco-flickr": _phase(
            "VisualBERT, first phase for Flickr30k Entities: COCO captions, features with six numbers of their box",
            "configs/flickr/coco-pre-train.json",
            batch_size=32,
            data=_COCO,
            sampling=VisualBertSampling(box_numbers=True),
        ),
        "visualbert-task-vqa": _phase(
            "VisualBERT, second phase for VQA: questions with their answers, masked words alone",
            "configs/vqa/pre-train.json",
            batch_size=64,
            data="VQA v2, training questions, each with one of its ten answers behind it in one text",
            sampling=_TASK_TEXT,
            model={"with_match_head": False},
            after="visualbert-coco-vqa",
            figures=(
                Figure("VQA", "accuracy, test-dev", 70.80, "Table 3"),
                Figure("VQA", "accuracy, test-std", 71.00, "Table 3"),
            ),
            left_open=(
                "The release adds VQA's validation questions and draws among answers of its 3,129; here training "
                "questions and all answers.",
                "The release reads questions without their commas, as Pythia prepared them; here as VQA has them.",
                'The release spells the answer letter by letter ("y e s"), by a slip; here it is a word.',
            ),
        ),
        "visualbert-task-vcr": _phase(
            "VisualBERT, second phase for VCR: questions with answers and rationales, and which are right",
            "configs/vcr/pre-train.json, models/model.py, utils/detector.py",
            batch_size=32,
            epochs=1,
            warmup=0.1879,
            data="VCR, training questions: each with four answers, and with its right answer and four rationales; "
            "the boxes that a question's texts name (extract --boxes vcr1images/) and the whole image, each with its "
            "class and outline",
            sampling=VisualBertSampling(
                text_form=TASK_TEXT,
                aligned_words="first_piece",
                told_classes=True,
                whole_region=True,
                shown_boxes=NAMED,
            ),
            after="visualbert-coco-vcr",
            figures=(
                Figure("VCR", "Q->A, val", 70.8, "Table 4"),
                Figure("VCR", "Q->A, test", 71.6, "Table 4"),
                Figure("VCR", "QA->R, val", 73.2, "Table 4"),
                Figure("VCR", "QA->R, test", 73.2, "Table 4"),
                Figure("VCR", "Q->AR, val", 52.2, "Table 4"),
                Figure("VCR", "Q->AR, test", 52.4, "Table 4"),
                Figure("VCR", "Q->AR, val, features of a fixed ResNet-50", 51.4, "footnote 3"),
            ),
            left_open=(
                _RIGHT_OPEN,
                "Of a question's eight texts the release takes one, eight times, by a slip; here each once.",
                *_R2C_OPEN,
                "A word that names a box should be aligned by its first piece; the release takes the word's number for "
                "the piece's, by a slip (sampling.aligned_words=release).",
            ),
            **_R2C,
        ),
        "visualbert-task-nlvr2": _phase(
            "VisualBERT, second phase for NLVR2: statements on two images, and whether they are true",
            "configs/nlvr2/pre-train.json",
            batch_size=64,
            data=_STATEMENTS,
            sampling=VisualBertSampling(text_form=TASK_TEXT, max_regions=144),
            after="visualbert-coco-nlvr2",
            figures=(
                Figure(_NLVR2, "accuracy, dev", 67.4, "Table 5"),
                Figure(_NLVR2, "accuracy, test-P", 67.0, "Table 5"),
                Figure(_NLVR2, "accuracy, test-U", 67.3, "Table 5"),
                Figure(_NLVR2, "consistency, test-U", 26.9, "Table 5"),
            ),
            left_open=(
                "The release takes the first 144 regions of the file; here those of highest score.",
                "Table 1 has 67.3 under test-P, Table 5 under test-U and 67.0 under test-P: Table 5's.",
                _RIGHT_OPEN,
            ),
        ),
        "visualbert-task-flickr": _phase(
            "VisualBERT, second phase for Flickr30k Entities: its captions, masked words alone",
            f"configs/flickr/pre-train.json; {_PAPER}, section 2",
            batch_size=32,
            data="Flickr30k, training captions",
            sampling=VisualBertSampling(text_form="words_only", box_numbers=True),
            model={"with_match_head": False},
            after="visualbert-coco-flickr",
            figures=(
                Figure(_ENTITIES, "R@1, dev", 70.40, "Table 6"),
                Figure(_ENTITIES, "R@1, test", 71.33, "Table 6"),
                Figure(_ENTITIES, "R@5, dev", 84.49, "Table 6"),
                Figure(_ENTITIES, "R@5, test", 84.98, "Table 6"),
                Figure(_ENTITIES, "R@10, dev", 86.31, "Table 6"),
                Figure(_ENTITIES, "R@10, test", 86.51, "Table 6"),
            ),
            left_open=("The release takes only captions that have a phrase with a box; here all.",),
        ),
    }
)


def _late_fusion(full: Recipe, figures: tuple[Figure, ...]) -> Recipe:
    """A phase without early fusion, after one without it."""
    return _variant(
        full,
        "without early fusion",
        figures,
        build=full.build.changed(early_fusion=False),
        toy_build=full.toy_build.changed(early_fusion=False),
        after=f"{full.after}{_LATE}" if full.after else "",
        changes={**full.changes, "early_fusion": False} if full.after else {},
    )


def _without_coco(full: Recipe, figures: tuple[Figure, ...]) -> Recipe:
    """A second phase that starts where the first one would."""
    return _variant(full, "right from BERT, without COCO", figures, after="", changes={})


def _variant(full: Recipe, what: str, figures: tuple[Figure, ...], **changes: Any) -> Recipe:
    return replace(
        full,
        summary=f"{full.summary}; {what}",
        source=f"{_VARIANT_SOURCE}; {full.source}",
        figures=figures,
        left_open=(_VARIANT_OPEN, *full.left_open),
        **changes,
    )


_LATE_FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "visualbert-task-vqa": (Figure("VQA", "accuracy, test-dev", 68.18, "Table 3"),),
    "visualbert-task-vcr": (
        Figure("VCR", "Q->A, val", 70.1, "Table 4"),
        Figure("VCR", "QA->R, val", 71.9, "Table 4"),
        Figure("VCR", "Q->AR, val", 50.6, "Table 4"),
    ),
    "visualbert-task-nlvr2": (Figure(_NLVR2, "accuracy, dev", 64.6, "Table 5"),),
    "visualbert-task-flickr": (
        Figure(_ENTITIES, "R@1, dev", 70.33, "Table 6"),
        Figure(_ENTITIES, "R@5, dev", 84.53, "Table 6"),
        Figure(_ENTITIES, "R@10, dev", 86.39, "Table 6"),
    ),
}
_WITHOUT_COCO_FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "visualbert-task-vqa": (Figure("VQA", "accuracy, test-dev", 70.18, "Table 3"),),
    "visualbert-task-vcr": (
        Figure("VCR", "Q->A, val", 67.9, "Table 4"),
        Figure("VCR", "QA->R, val", 69.5, "Table 4"),
        Figure("VCR", "Q->AR, val", 47.9, "Table 4"),
    ),
    "visualbert-task-nlvr2": (Figure(_NLVR2, "accuracy, dev", 63.5, "Table 5"),),
    "visualbert-task-flickr": (
        Figure(_ENTITIES, "R@1, dev", 68.07, "Table 6"),
        Figure(_ENTITIES, "R@5, dev", 83.98, "Table 6"),
        Figure(_ENTITIES, "R@10, dev", 86.24, "Table 6"),
    ),
}

_FEWER = VisualBertSampling(max_regions=36)
_FEWER_STATEMENTS = VisualBertSampling(text_form=TASK_TEXT, max_regions=36)
_ABLATION_OPEN = (
    "That each ablation has the second phase is not said: the full model has it (appendix B), and C3's is "
    '"trained as the full model".',
    "Batch, rate, epochs and warm-up of the ablations are not given: those of NLVR2's full model.",
)


def _ablation(
    name: str,
    what: str,
    accuracy: float,
    *,
    data: str = _COCO,
    first: VisualBertSampling = _FEWER,
    model: Mapping[str, Any] = MappingProxyType({}),
    start: str = "bert-base-uncased",
    where: str = "Table 7",
    right_open: tuple[str, ...] = (_RIGHT_OPEN,),
    left_open: tuple[str, ...] = (),
) -> dict[str, Recipe]:
    """Both phases of a row of Table 7."""
    before = f"visualbert-coco-{name}"
    shared: dict[str, Any] = {"batch_size": 64, "model": model, "start": start}
    return {
        before: _phase(
            f"{what}; first phase",
            f"{_ABLATION}; configs/nlvr2/coco-pre-train.json",
            data=data,
            sampling=first,
            left_open=(*left_open, *_ABLATION_OPEN),
            **shared,
        ),
        f"visualbert-{name}": _phase(
            f"{what}; second phase, on NLVR2's statements",
            f"{_ABLATION}; configs/nlvr2/pre-train.json",
            data=_STATEMENTS,
            sampling=_FEWER_STATEMENTS,
            after=before,
            figures=(Figure(_NLVR2, "accuracy, dev", accuracy, where),),
            left_open=(*left_open, *_ABLATION_OPEN, *right_open),
            **shared,
        ),
    }


_ABLATIONS: Mapping[str, Recipe] = MappingProxyType(
    {
        **_ablation(
            "ablation-full",
            "VisualBERT with 36 regions, that its ablations are measured against",
            66.7,
            where="Table 7 and footnote 4",
            left_open=(
                "Footnote 4 also has 64.8 with 9 regions, 65.5 with 18 and 67.1 with 72, and does not say in which "
                "phases: --set sampling.max_regions=9 is of both.",
            ),
        ),
        "visualbert-without-coco": _phase(
            "VisualBERT whose first phase is left out: NLVR2's statements right from BERT (C1)",
            f"{_ABLATION}; configs/nlvr2/pre-train.json",
            batch_size=64,
            data=_STATEMENTS,
            sampling=_FEWER_STATEMENTS,
            figures=(Figure(_NLVR2, "accuracy, dev", 62.9, "Table 7"),),
            left_open=(*_ABLATION_OPEN, _RIGHT_OPEN),
        ),
        **_ablation(
            "without-images",
            "VisualBERT whose first phase reads captions without images (C1)",
            63.9,
            data=f"{_COCO}; regions left out",
            first=VisualBertSampling(max_regions=36, with_regions=False),
        ),
        **_ablation("late-fusion", "VisualBERT without early fusion (C2)", 61.4, model={"early_fusion": False}),
        **_ablation("without-bert", "VisualBERT without BERT's weights to start from (C3)", 64.7, start=""),
        **_ablation(
            "without-second-caption",
            "VisualBERT without its second objective (C4)",
            64.9,
            first=VisualBertSampling(text_form="words_only", max_regions=36),
            model={"with_match_head": False},
            right_open=(
                "The second phase has masked words alone, as the paper's always has (appendix A.3); the release would "
                "also ask whether the statement is right.",
            ),
            left_open=("Whether the first phase still reads two captions is not said: one.",),
        ),
    }
)

VISUALBERT_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        **_FULL,
        **{f"{name}{_LATE}": _late_fusion(full, _LATE_FIGURES.get(name, ())) for name, full in _FULL.items()},
        **{
            f"{name}-without-coco": _without_coco(_FULL[name], figures)
            for name, figures in _WITHOUT_COCO_FIGURES.items()
        },
        **_ABLATIONS,
    }
)
