"""VL-BERT's published fine-tuning runs: section 4.2 of arXiv:1908.08530, and cfgs/ of jackroos/VL-BERT.

"paper" is the first version. Of the later one, which the release belongs to, few figures are known here. Its table of
ablations is reached with half of the epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from roibeam.model.vlbert.fields import vlbert_fields
from roibeam.pipelines.common.statistics.paper_figures import PaperFigure, figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.finetuning.recipes.task_recipe import BERT, LABELS_OPEN, PRETRAINED, TaskRecipe
from roibeam.pipelines.finetuning.rows import GROUNDED, UNGROUNDED
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.tasks.referring import ReferringOptions
from roibeam.pipelines.finetuning.tasks.vcr import VcrOptions
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions
from roibeam.pipelines.training.step_policies import parted_settings

_CFGS, _PAPER = "jackroos/VL-BERT cfgs", "arXiv:1908.08530, version 1, section"
_VERSION_1, _LATER = "VL-BERT, version 1", "VL-BERT, later version"
_UNKNOWN_OPEN = "Its figures are in the later version of the paper, and not known here."
_ADAM: Mapping[str, Any] = MappingProxyType(
    {"optimizer": "adamw", "betas": (0.9, 0.999), "epsilon": 1e-6, "weight_decay": 1e-4, "clip_norm": 0.0,
     "parameter_groups": "vl-bert"}
)  # fmt: skip
_ADAM_OPEN = (
    "Adam's epsilon and clipping are not given: torch's AdamW with 1e-6, no clipping. Whether decay is decoupled, and "
    "what decays, is not given: it is, and everything does, as released."
)
_RELEASE, _ACCIDENTS = parted_settings("vl-bert-tasks", meant={"parameter_groups": "vl-bert"})
_SGD: Mapping[str, Any] = MappingProxyType(
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4, "schedule": "steps", "parameter_groups": "vl-bert"}
)
_FALLS = (14 / 20, 18 / 20)
_EDGES = (600, 1000)
_SELECTION_OPEN = (
    "The score that a region of VQA needs is not given: above 0.5, as in pre-training (10 to 100 are by the release)."
)
_STORED_OPEN = "The published run trains the detector's head along; from stored features the regions stay as they are."


_VQA = TaskRecipe(
    summary="VL-BERT, VQA v2: the state of [MASK] behind the question, all answers by themselves",
    source=f"{_CFGS}/vqa/base_4x16G_fp32.yaml",
    task="vqa",
    system="vlbert",
    model="vlbert-base",
    features=Features("vl-bert", image_feature="region"),
    options=VqaOptions(train="train+val", mirror=True, label_form="without_signs", score_rule="left_out"),
    layout=LayoutOptions(whole_image="stored"),
    head="release",
    head_start="words",
    settings=_RELEASE,
    accidents=_ACCIDENTS,
    learning_rate=1.6e-4,
    batch_size=256,
    epochs=5,
    warmup=500,
    figures=figures_of(_LATER, "VL-BERT base", "VQA"),
    left_open=(
        LABELS_OPEN,
        _SELECTION_OPEN,
        "The first version of the paper prints rate 1e-4, 20 epochs and a softmax over answers (vlbert-vqa-paper); the "
        "release has 1.6e-4, 5 epochs and one binary loss an answer. Its author trains 20 without pre-training.",
        "The release's validation questions lie inside its training; here no validation data are left.",
    ),
)
_VQA_PAPER = replace(
    _VQA,
    summary="VL-BERT of the paper's first version, VQA v2: the state of [MASK], one of all answers",
    source=f"{_PAPER} 4.2.2",
    model="vlbert-paper",
    options=VqaOptions(train="train+val", answers="majority-train+val", loss="ce"),
    head_start="drawn",
    settings=_ADAM,
    accidents={},
    learning_rate=1e-4,
    epochs=20,
    warmup=2000,
    end_to_end=True,
    photos={"flip": False},
    edges=_EDGES,
    figures=figures_of(_VERSION_1, "VL-BERT", "VQA"),
    left_open=(
        LABELS_OPEN,
        _SELECTION_OPEN,
        _ADAM_OPEN,
        "Layers of the classifier other than its output are not given: the release's transform, which starts as that "
        "of masked words. Nothing is mirrored. A question without an answer among the labels does not count.",
        "Whether validation questions are trained on is not given. The protocol is that of BUTD, and the figures are "
        "of the test server: they are, as by BUTD and the release, and no validation data are left. BUTD adds "
        "questions of Visual Genome, of which the paper says nothing: none.",
        'Figure 1 and section 3.4 train "all parameters" here too; stem, res2 and batch norms of the detector stay '
        "fixed, as released, the others have the model's rate. Edges of photos are the release's. Its own runs on VQA "
        "read stored features (vlbert-vqa).",
    ),
)
_VCR_TEXTS: Mapping[str, Any] = MappingProxyType(
    {"names": "in-turn", "people": "vl-bert", "truncation": "shared", "max_pieces": 64, "cut_untold": False}
)
_VCR_OPEN = (
    "People's names go on from one question to the next, so they depend on the order of the file: by the release.",
    "That a long choice shortens the question of all four is by the release, and that rationales are not cut without "
    "labels (test).",
    "Photos of half of the questions are mirrored, without a change of words; stored features are not.",
    _STORED_OPEN,
)
_VCR_GROUNDED_OPEN = (
    "A word that names a box carries its feature, by the release. The paper gives every word that of the whole image "
    "(--set vcr.grounding=none)."
)
_VCR_SEGMENT_OPEN = "Segment 1 starts as segment 0, which captions have trained: by the release, with its head."


def _vcr_summary(problem: str, read: str) -> str:
    other, words = ("QA->R", "rationale of an answer") if problem == "rationale" else ("Q->A", "answer of a question")
    return f"VL-BERT, VCR {other}: the {words} by {read}, beside the classes of its boxes"


def _vcr(problem: str, name: str, **fields: Any) -> TaskRecipe:
    published: dict[str, Any] = {
        "summary": _vcr_summary(problem, "the pooled [CLS]"),
        "source": f"{_CFGS}/vcr/{name}.yaml",
        "task": "vcr",
        "system": "vlbert",
        "model": "vlbert-base-e2e",
        "features": Features("vl-bert", boxes="vcr"),
        "head": "release",
        "options": VcrOptions(
            problem=problem, joining="and", grounding=GROUNDED, object_loss="shown", loss="sigmoid", **_VCR_TEXTS
        ),
        "settings": {**_SGD, "clip_norm": 10.0},
        "accidents": {"loss_mean": "micro_batch"},
        "learning_rate": 7e-5 * 64,
        "batch_size": 64,
        "epochs": 20,
        "warmup": 1000,
        "decays_at": _FALLS,
        "end_to_end": True,
        "photos": {"fixed_size": True},
        "edges": (600, 1200),
    }
    open_too = (*fields.pop("left_open", (_VCR_GROUNDED_OPEN, _VCR_SEGMENT_OPEN)), *_VCR_OPEN)
    return TaskRecipe(**{**published, **fields}, left_open=open_too)


def _vcr_figures(problem: str, paper: str, row: str) -> tuple[PaperFigure, ...]:
    """Figures of a problem; those of both together stand with the first."""
    own = {"answer": ("VCR, Q->A", "VCR, Q->AR"), "rationale": ("VCR, QA->R",)}[problem]
    return figures_of(paper, row, *own)


_VCR_PAPER_OPEN = (
    "The boxes whose classes are learned are masked ones; how many is not given, nor what that loss weighs: 15 % of "
    "them, as in pre-training, and as much as the choice.",
    'If choices share a softmax is not given ("a Softmax classifier for predicting whether the given Answer is the '
    'correct choice"): they do. Clipping is not given: none.',
    "The release starts segment 1 as segment 0, which captions have trained; here it starts as it is.",
    "Every word carries the whole image's feature, as section 3.2 has it; in the release one that names a box carries "
    "that box's (--set vcr.grounding=words).",
)


def _vcr_paper(problem: str) -> TaskRecipe:
    return _vcr(
        problem,
        "",
        summary=_vcr_summary(problem, "[CLS]"),
        source=f"{_PAPER} 4.2.1",
        model="vlbert-paper",
        head="ours",
        options=VcrOptions(problem=problem, grounding=UNGROUNDED, object_loss="masked", **_VCR_TEXTS),
        settings={**_SGD, "clip_norm": 0.0},
        accidents={},
        learning_rate=2e-3,
        figures=_vcr_figures(problem, _VERSION_1, "VL-BERT"),
        left_open=_VCR_PAPER_OPEN,
    )


class _Track(NamedTuple):
    """Candidates of a sentence."""

    boxes: str
    words: str
    file: str

    @property
    def name(self) -> str:
        return f"refcoco+-{self.boxes}"

    def figures(self, paper: str, row: str) -> tuple[PaperFigure, ...]:
        track = "ground-truth regions" if self.boxes == "annotated" else "detected regions"
        return figures_of(paper, row, *(f"RefCOCO+, accuracy, {split}, {track}" for split in ("val", "testA", "testB")))


_TRACKS = (
    _Track("annotated", "among annotated boxes", "gt_boxes"),
    _Track("detected", "among MAttNet's boxes", "detected_regions"),
)
_OVERLAP_OPEN = (
    "With --end-to-end overlaps are measured in the resized and clamped photo, as released; on stored features in the "
    "photo as it is."
)
_REFERRING_OPEN = (
    "Half of the photos are mirrored, with left and right changed in the text; stored features are not.",
    _STORED_OPEN,
)


def _referring(track: _Track, network: str, **fields: Any) -> TaskRecipe:
    detected = track.boxes == "detected"
    published: dict[str, Any] = {
        "summary": f"VL-BERT, RefCOCO+ {track.words}: each region by itself",
        "source": f"{_CFGS}/refcoco/{network}_{track.file}_4x16G.yaml",
        "task": "refcoco+",
        "system": "vlbert",
        "model": "vlbert-base-e2e",
        "features": Features("vl-bert", boxes="mattnet" if detected else "refcoco+"),
        "options": ReferringOptions(
            text="tokens", boxes=track.boxes, annotated_in_training=detected, crowds=True, whole_image="last_pixel",
            one_pixel_more=True, box_rule="vl-bert",
        ),
        "head": "release",
        "settings": _RELEASE,
        "accidents": _ACCIDENTS,
        "learning_rate": 8e-7 * 32,
        "batch_size": 32,
        "epochs": 20,
        "warmup": 3750,
        "end_to_end": True,
        "photos": {"aspect_buckets": True},
        "photo_options": {"overlap_in": "input"},
    }  # fmt: skip
    open_too = (*fields.pop("left_open", (_OVERLAP_OPEN,)), *_REFERRING_OPEN)
    return TaskRecipe(**{**published, **fields}, left_open=open_too)


def _referring_paper(track: _Track) -> TaskRecipe:
    return _referring(
        track,
        "",
        source=f"{_PAPER} 4.2.3",
        model="vlbert-paper",
        options=ReferringOptions(boxes=track.boxes, annotated_in_training=track.boxes == "detected"),
        head="ours",
        settings=_ADAM,
        accidents={},
        learning_rate=2e-4,
        batch_size=256,
        warmup=500,
        photo_options={},
        figures=track.figures(_VERSION_1, "VL-BERT"),
        left_open=(
            _ADAM_OPEN,
            "Which regions are right is not given: those whose overlap with the object is above a half. Nor which hit: "
            "the rule of the data set's authors. Annotated boxes follow detected ones in training, as released.",
            'The layers between a region and its number are not given ("fed into a classifier"): one layer. The '
            "release has the transform of masked regions before it (--set head.kind=release, with whole_image).",
            "Batch and rate differ eightfold from the release's (vlbert-refcoco+-annotated, -detected).",
        ),
    )


def _without(recipe: TaskRecipe, figures: tuple[PaperFigure, ...], **changes: Any) -> TaskRecipe:
    """The row without pre-training: BERT's weights, and new ones for all else."""
    preset = "paper" if recipe.model == "vlbert-paper" else "release"
    unknown = () if figures else (_UNKNOWN_OPEN,)
    return replace(
        recipe,
        **changes,
        summary=f"{recipe.summary}; without pre-training",
        start=BERT,
        model_fields=vlbert_fields(preset),
        figures=figures,
        left_open=(*recipe.left_open, *unknown),
    )


# Pre-training of each row of the later version's table of ablations. In the last row alone Fast R-CNN was tuned in it:
# the release calls such models "e2e", those on stored features "prec" (PREPARE_PRETRAINED_MODELS.md).
_ABLATION: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "none": ("vlbert-base", "without pre-training"),
        "a": ("vlbert-ablation-words", "pre-trained on masked words"),
        "b": ("vlbert-base-captions", "pre-trained on masked words and regions"),
        "c": ("vlbert-ablation-relationship", "pre-trained on masked words, regions and the relationship"),
        "d": ("vlbert-base", "pre-trained on masked words, regions and the text corpus"),
        "full": ("vlbert-base-e2e", "pre-trained on all of it, the detector along"),
    }
)
_FIXED_BEFORE_OPEN = (
    "Fast R-CNN is tuned in pre-training in the row full alone; pre-training of this row, if any, reads stored "
    "features. So the detector's network begins with its own weights here, as the release's files for this task have "
    "it (IMAGE_PRETRAINED), and is trained along."
)
_TUNED_BEFORE_OPEN = (
    "The release's files for VQA read stored features and start from a model that was trained on them. The Fast R-CNN "
    "of this row was tuned in pre-training, and no stored features are its own: it goes on, and photos are as large as "
    "there."
)


def _ablations(name: str, recipe: TaskRecipe) -> Iterator[tuple[str, TaskRecipe]]:
    for row, (model, words) in _ABLATION.items():
        tuned = row == "full"
        fields: dict[str, Any] = {"end_to_end": True, "edges": _EDGES} if tuned and not recipe.end_to_end else {}
        if recipe.end_to_end == tuned:
            network: tuple[str, ...] = ()
        else:
            network = (_TUNED_BEFORE_OPEN,) if tuned else (_FIXED_BEFORE_OPEN,)
        run = replace(
            recipe,
            summary=f"{recipe.summary}; {words}, half of the epochs",
            source=f"{recipe.source}; later version of the paper, Table 4",
            model=model,
            start=BERT if row == "none" else PRETRAINED,
            model_fields=vlbert_fields("release") if row == "none" else {},
            epochs=recipe.epochs / 2,
            figures=(),
            left_open=(*network, *recipe.left_open, _UNKNOWN_OPEN),
            **fields,
        )
        yield f"{name}-ablation-{row}", run


def _vqa_runs() -> Iterator[tuple[str, TaskRecipe]]:
    yield "vlbert-vqa", _VQA
    yield "vlbert-vqa-without-pretraining", _without(_VQA, (), epochs=20)
    run = replace(
        _VQA,
        summary=f"{_VQA.summary}; large",
        source=f"{_CFGS}/vqa/large_4x16G_fp32.yaml",
        model="vlbert-large",
        figures=figures_of(_LATER, "VL-BERT large", "VQA"),
    )
    yield "vlbert-vqa-large", run
    yield "vlbert-vqa-paper", _VQA_PAPER
    none = figures_of(_VERSION_1, "VL-BERT w/o pre-training", "VQA")
    yield "vlbert-vqa-paper-without-pretraining", _without(_VQA_PAPER, none)
    yield from _ablations("vlbert-vqa", _VQA)


def _vcr_runs() -> Iterator[tuple[str, TaskRecipe]]:
    for problem, files in (("answer", "q2a"), ("rationale", "qa2r")):
        name, base = f"vlbert-vcr-{problem}", _vcr(problem, f"base_{files}_4x16G_fp32")
        yield name, replace(base, figures=_vcr_figures(problem, _LATER, "VL-BERT base"))
        yield f"{name}-without-pretraining", _without(base, ())
        run = replace(
            base,
            summary=f"{base.summary}; large",
            source=f"{_CFGS}/vcr/large_{files}_4x16G_fp16.yaml",
            model="vlbert-large-e2e",
            figures=_vcr_figures(problem, _LATER, "VL-BERT large"),
            left_open=(*base.left_open, "The release trains it in fp16 through apex; here fp32, or --precision."),
        )
        yield f"{name}-large", run
        paper = _vcr_paper(problem)
        yield f"{name}-paper", paper
        run = replace(
            paper,
            summary=f"{paper.summary} and masked words",
            options=replace(paper.options, hidden_words=0.15),
            figures=(),
            left_open=(
                *paper.left_open,
                'The paper says that this loss "would degrade the accuracy", without a figure. How many words '
                "are masked is not given, nor what it weighs: 15 %, as in pre-training, and as much as the choice.",
            ),
        )
        yield f"{name}-paper-with-words", run
        none = _vcr_figures(problem, _VERSION_1, "VL-BERT w/o pre-training")
        yield f"{name}-paper-without-pretraining", _without(paper, none)
        yield from _ablations(name, base)


def _referring_runs() -> Iterator[tuple[str, TaskRecipe]]:
    for track in _TRACKS:
        name, base, gt = f"vlbert-{track.name}", _referring(track, "base"), track.boxes == "annotated"
        yield name, replace(base, left_open=(*base.left_open, _UNKNOWN_OPEN))
        yield f"{name}-without-pretraining", _without(base, ())
        large = track.figures(_LATER, "VL-BERT large") if gt else ()
        run = replace(
            _referring(track, "large", model="vlbert-large-e2e", figures=large),
            summary=f"{base.summary}; large",
            left_open=(*base.left_open, *(() if large else (_UNKNOWN_OPEN,))),
        )
        yield f"{name}-large", run
        paper = _referring_paper(track)
        yield f"{name}-paper", paper
        none = track.figures(_VERSION_1, "VL-BERT w/o pre-training")
        yield f"{name}-paper-without-pretraining", _without(paper, none)
        if not gt:
            yield from _ablations(name, base)


VLBERT_TASK_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict([*_vqa_runs(), *_vcr_runs(), *_referring_runs()]))
