"""VisualBERT's published fine-tuning runs: appendices B and C of its paper, and uclanlp/visualbert.

Tables are numbered as in "What Does BERT with Vision Look At?", whose long version is arXiv:1908.03557. Its variants
differ in what they start from: the second phase of pre-training, see pipelines/pretraining/recipes/visualbert.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from roibeam.pipelines.common.statistics.paper_figures import figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.finetuning.recipes.task_recipe import BERT, LABELS_OPEN, TaskRecipe
from roibeam.pipelines.finetuning.systems.options import BEFORE_SEP, HIDDEN, LayoutOptions
from roibeam.pipelines.finetuning.tasks.language import EntitiesOptions
from roibeam.pipelines.finetuning.tasks.nlvr2 import Nlvr2Options
from roibeam.pipelines.finetuning.tasks.vcr import ANSWER, RATIONALE, VcrOptions
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions
from roibeam.pipelines.training.step_policies import parted_settings

_PAPER = "Li et al., What Does BERT with Vision Look At? (long version: arXiv:1908.03557)"
_CONFIGS = "uclanlp/visualbert visualbert/configs"
_RELEASE, _ACCIDENTS = parted_settings("visualbert-ucla-tasks")
_OPEN = (
    "The release trains nothing named pooler, and of accumulated micro-batches the last one alone "
    "(--set steps.rule=release).",
)
_PATIENCE = 4  # visualbert/models/train.py: the best epoch lies more than its "patience" of 3 before the last
_PATIENCE_OPEN = (
    "As the release, a run ends when the best epoch is four old, and the best counts "
    "(--set train.patience=0 trains all epochs)."
)
_VARIANT_OPEN = "Batch, rate and epochs of the variant are not given: the full model's."
# Variants: what the summary says of them, and their rows of Tables 3 to 6.
_VARIANTS: Mapping[str, tuple[str, str]] = {
    "": ("", "VisualBERT"),
    "-late-fusion": ("without early fusion", "VisualBERT w/o Early Fusion"),
    "-without-coco": ("whose pre-training lacks COCO", "VisualBERT w/o COCO Pre-training"),
}


def _run(summary: str, source: str, **fields: Any) -> TaskRecipe:
    published: dict[str, Any] = {
        "system": "visualbert",
        "layout": LayoutOptions(max_pieces=128),
        "settings": _RELEASE,
        "accidents": _ACCIDENTS,
        "learning_rate": 2e-5,
        "batch_size": 64,
        "epochs": 10,
        "warmup": 0.1,
    }
    open_too = (*fields.pop("left_open", ()), *_OPEN)
    if "judged_by" in fields:
        published["patience"] = _PATIENCE
        open_too = (*open_too, _PATIENCE_OPEN)
    return TaskRecipe(summary=summary, source=source, **{**published, **fields}, left_open=open_too)


_VQA = _run(
    "VisualBERT, VQA v2: the state of [MASK] behind the question, divergence from the soft scores",
    f"{_CONFIGS}/vqa/fine-tune.json; {_PAPER}, appendix B.1",
    task="vqa",
    model="visualbert-task-vqa",
    features=Features(detector="pythia-x152-fpn"),
    options=VqaOptions(train="train+val", loss="kl", question="pythia"),
    head="release",
    left_open=(
        "The release cuts a question at 128 pieces with its [MASK]; here [MASK] stays "
        "(--set layout.cut=before_sep is the release's way).",
        "The release's validation questions lie inside its training, and it ends when the best epoch is four old; here "
        "no validation data are left, and all epochs are trained.",
        "The release may answer <unk>, which is never right (--set vqa.says_unknown=true).",
        LABELS_OPEN,
    ),
)


_RESNET: Mapping[str, Any] = MappingProxyType({"frozen_stages": (), "mask_channels": 32})
_FIXED_RESNET: Mapping[str, Any] = MappingProxyType({"frozen_stages": (1, 2, 3, 4), "mask_channels": 32})
_FIXED_OPEN = (
    "Footnote 3 does not name the fixed part; it is fixed to compare with R2C, whose models/train.py fixes all but the "
    "last stage, as the release's freeze_detector does: so does this (--set 'encoder.frozen_stages=[1,2,3,4,5]' fixes "
    "that too)."
)


def _vcr(problem: str) -> TaskRecipe:
    name, epochs, file = (
        ("Q->A", 8, "fine-tune-qa.json") if problem == "answer" else ("QA->R", 12, "fine-tune-qar.json")
    )
    return _run(
        f"VisualBERT, VCR {name}: one number for each choice from the pooled [CLS]",
        f"{_CONFIGS}/vcr/{file}; {_PAPER}, appendix B.2",
        task="vcr",
        model="visualbert-task-vcr",
        features=Features(detector="r2c-r50", boxes="vcr"),
        options=VcrOptions(
            problem=problem, boxes="named", whole_region=True, told_classes=True, names="restarted",
            truncation="choice-front", max_pieces=125,
        ),
        batch_size=32,
        epochs=epochs,
        judged_by=name,
        end_to_end=True,
        detector="r2c-r50",
        encoder=_RESNET,
        photos={"flip": False, "fixed_size": True},
        edges=(384, 768),
        left_open=(
            "Its ResNet-50 starts as torchvision's of ImageNet: --weights resnet50.pth. On stored features it stays "
            "as it is, and outlines are no input.",
            "R2C puts a photo somewhere into a black frame of 768 x 384, by chance in training; here it stands at the "
            "top left, and the mean beside it. R2C's norms take the statistics of the batch; here they are fixed.",
            "A person who is first named in a choice is counted from 0 again, and long choices lose their front: "
            "both by the release.",
            "A word of a box is aligned by its number there, by a slip; here by its piece.",
        ),
    )  # fmt: skip


def _vcr_fixed(problem: str) -> TaskRecipe:
    """Footnote 3: the full model whose ResNet is not trained along."""
    recipe, answer = _vcr(problem), "visualbert-vcr-answer-fixed-resnet"
    unknown = f"Its own figure is not known here: footnote 3 has both problems together, see {answer}."
    return replace(
        recipe,
        summary=f"{recipe.summary}; on a ResNet-50 that is fixed",
        encoder=_FIXED_RESNET,
        figures=figures_of("VisualBERT", "VisualBERT with a fixed ResNet50") if problem == "answer" else (),
        left_open=(_FIXED_OPEN, *(() if problem == "answer" else (unknown,)), *recipe.left_open),
    )


_NLVR2 = _run(
    "VisualBERT, NLVR2: both images in one row, two labels from the pooled [CLS]",
    f"{_CONFIGS}/nlvr2/fine-tune.json; {_PAPER}, appendix B.3",
    task="nlvr2",
    model="visualbert-task-nlvr2",
    features=Features(detector="mask-rcnn-r101-fpn"),
    options=Nlvr2Options(max_regions=144, image_names="with-extension"),
    judged_by="accuracy",
    left_open=(
        "Table 1 has 67.3 under test-P, Table 5 under test-U and 67.0 under test-P: Table 5's.",
        "Its regions are of Detectron's Mask R-CNN R-101-FPN, of width 1024, 150 to a file, the first 144 of them.",
        "Images are called by the names of files, as in its feature files "
        "(--set nlvr2.image_names=no-extension for stores of roibeam extract).",
    ),
)
_ENTITIES = _run(
    "VisualBERT, Flickr30k Entities: attention from the last piece of a phrase to the regions",
    f"{_CONFIGS}/flickr/fine-tune.json; {_PAPER}, appendix B.4",
    task="flickr30k-entities",
    model="visualbert-task-flickr",
    features=Features("butd-10-100"),
    options=EntitiesOptions(),
    judged_by="R@1",
    layout=LayoutOptions(max_pieces=128, cut=BEFORE_SEP, box_numbers=True),
    head="release",
    batch_size=32,
    epochs=5,
    left_open=(
        "The paper averages the heads of an attention block, the release has one of width 64 "
        "(--set head.kind=ours --set flickr30k-entities.heads=12).",
        "A phrase that comes twice stands where it comes first in the release "
        "(--set flickr30k-entities.place=release).",
        "Its regions are bottom-up attention's, 10 to 100, six numbers of the box behind each feature. Table 6 "
        "has the upper bounds, the share of phrases that one of them covers, beside BAN and the row without COCO.",
        "The loss is a mean over captions, as released.",
        "A phrase whose word lies beyond 128 pieces is read where that stood, [SEP] or a region, as released; behind "
        "the last region the release reads padding or stops, here [SEP] is read.",
    ),
)
# Rows of Table 7: pre-training recipe, what it lacks, the row's name.
_ABLATIONS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "full": ("visualbert-ablation-full", "nothing left out", "VisualBERT (36 features)"),
        "without-images": (
            "visualbert-without-images", "pre-trained on captions without images (C1)",
            "C1 VisualBERT w/o Grounded Pre-training",
        ),
        "without-coco": (
            "visualbert-without-coco", "its pre-training lacks COCO (C1)", "C1 VisualBERT w/o COCO Pre-training",
        ),
        "late-fusion": ("visualbert-late-fusion", "without early fusion (C2)", "C2 VisualBERT w/o Early Fusion"),
        "without-bert": (
            "visualbert-without-bert", "without BERT's weights to start from (C3)",
            "C3 VisualBERT w/o BERT Initialization",
        ),
        "without-second-caption": (
            "visualbert-without-second-caption", "without the second objective (C4)", "C4 VisualBERT w/o Objective 2",
        ),
    }
)  # fmt: skip
_FEWER = (9, 18, 72)  # footnote 4; 36 is Table 7's, 144 the full model


def _variant(recipe: TaskRecipe, end: str, *columns: str) -> TaskRecipe:
    words, row = _VARIANTS[end]
    figures = figures_of("VisualBERT", row, *columns)
    if not end:
        return replace(recipe, figures=figures)
    return replace(
        recipe,
        summary=f"{recipe.summary}; {words}",
        model=f"{recipe.model}{end}",
        figures=figures,
        left_open=(_VARIANT_OPEN, *recipe.left_open),
    )


def _ablation(model: str, words: str, regions: int, row: str, *left_open: str) -> TaskRecipe:
    return replace(
        _NLVR2,
        summary=f"{_NLVR2.summary}; {regions} regions, {words}",
        source=f"{_PAPER}, appendix C; {_CONFIGS}/nlvr2/fine-tune.json",
        model=model,
        options=replace(_NLVR2.options, max_regions=regions),
        figures=figures_of("VisualBERT", row),
        left_open=(
            *left_open,
            "Batch, rate and epochs of the ablations are not given: those of NLVR2's full model.",
            *_NLVR2.left_open[1:],
        ),
    )


def _text_only(recipe: TaskRecipe) -> TaskRecipe:
    """BERT on the text of a task, which no paper has as a row of its own."""
    return replace(
        recipe,
        summary=f"{recipe.summary}; the text alone",
        start=BERT,
        layout=replace(recipe.layout, images=HIDDEN),
        figures=(),
        encoder={},
        photos={},
        edges=(),
        end_to_end=False,
        detector="",
        left_open=(
            "A row without a figure: no paper prints it. It tells how much of a task the text gives away. VisualBERT "
            "without an image is BERT, and starts from its weights.",
            *recipe.left_open,
        ),
    )


def _runs() -> Iterator[tuple[str, TaskRecipe]]:
    for end in _VARIANTS:
        yield f"visualbert-vqa{end}", _variant(_VQA, end, "VQA")
    for problem, columns in (("answer", ("VCR, Q->A", "VCR, Q->AR")), ("rationale", ("VCR, QA->R",))):
        for end in _VARIANTS:
            found = _variant(_vcr(problem), end, *columns)
            if end == "-without-coco":  # footnote 3
                found = replace(found, encoder=_FIXED_RESNET, left_open=(_FIXED_OPEN, *found.left_open))
            yield f"visualbert-vcr-{problem}{end}", found
        yield f"visualbert-vcr-{problem}-fixed-resnet", _vcr_fixed(problem)
    for end in _VARIANTS:
        yield f"visualbert-nlvr2{end}", _variant(_NLVR2, end, "NLVR2")
        yield f"visualbert-flickr30k-entities{end}", _variant(_ENTITIES, end, "Flickr30k Entities")
    for name, (model, words, row) in _ABLATIONS.items():
        yield f"visualbert-nlvr2-ablation-{name}", _ablation(model, words, 36, row)
    for regions in _FEWER:
        run = _ablation(
            f"visualbert-{regions}-regions",
            "nothing left out",
            regions,
            f"VisualBERT ({regions} proposals)",
            "Footnote 4 does not say in which phases there are so many regions: in all three.",
        )
        yield f"visualbert-nlvr2-{regions}-regions", run
    for name, recipe in (
        ("vqa", _VQA),
        ("nlvr2", _NLVR2),
        *((f"vcr-{each}", _vcr(each)) for each in (ANSWER, RATIONALE)),
    ):
        yield f"visualbert-{name}-text-only", _text_only(recipe)


VISUALBERT_TASK_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict(_runs()))
