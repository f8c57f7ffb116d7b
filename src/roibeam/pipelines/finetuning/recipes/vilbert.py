"""ViLBERT's published fine-tuning runs: section 3.2 and Tables 1 to 3 of arXiv:1908.02265, and jiasenlu/vilbert_beta.

Every row of the tables is the same three runs, from another model. InterBERT's runs on VCR share the open points of
VCR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from roibeam.pipelines.common.statistics.paper_figures import figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.finetuning.recipes.task_recipe import (
    BERT,
    LABELS_OPEN,
    MINIVAL_OPEN,
    PRETRAINED,
    ModelRow,
    TaskRecipe,
)
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.tasks.referring import ReferringOptions
from roibeam.pipelines.finetuning.tasks.vcr import ANSWER, BOTH, RATIONALE, VcrOptions
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions
from roibeam.pipelines.training.step_policies import VCR_UPDATES_APART, parted_settings

PROBLEM_NAMES: Mapping[str, str] = MappingProxyType({ANSWER: "Q->A", RATIONALE: "QA->R"})
BOTH_OPEN = (
    "In the release each problem has an update of its own, the first one's with gradients that the other left, and the "
    "rise ends after half of what is meant (--set steps.rule=release); here one update of both."
)
INPUTS_OPEN = (
    "Which boxes are shown, how people are called and how long a text may be is not in the paper: detected and "
    "annotated ones, at most 100 with the whole image, names that are drawn, 60 and 80 pieces, as released. "
)
NAMES_OPEN = (
    "The releases draw names from a table of their own (--set vcr.people=unisex_names_table.csv takes it); here "
    "they are drawn from the 15 of VisualBERT's."
)


_SOURCE = "arXiv:1908.02265, section 3.2; jiasenlu/vilbert_beta vlbert_tasks.yml and train_tasks.py"
_RELEASE, _ACCIDENTS = parted_settings("vilbert-release-tasks")
_FALLS = (12 / 20, 16 / 20)
_SCHEDULE_OPEN = (
    "Warm-up, what comes behind it, decay, clipping, Adam's betas and epsilon are not in the paper: a tenth of the "
    "steps, a tenth of the rate after epochs 12 and 16, 0.01 on matrices, 1 for each tensor, 0.9 and 0.999, 1e-6, as "
    "released. There decay lies on biases and LayerNorms (--set steps.rule=release). Their later multi-task code has a "
    "schedule of its own (release-mt)."
)
PAPER_OPEN = (
    "Warm-up, what comes behind it, decay, clipping, Adam's betas and epsilon are not in the paper: as the release "
    "means them, without its accidents. The other rows of its tables have recipes of the release alone."
)
REGIONS_OPEN = (
    "Which regions the task has is not in the paper; the release shows the first 99 of the file and the whole image, "
    "its 100 slots. Here they are bottom-up attention's 10 to 100, as in its feature files; in pre-training 10 to 36."
)
_TWENTY_OPEN = 'Epochs are "a maximum of 20", and how one is chosen is not given: 20.'
_VQA = TaskRecipe(
    summary="ViLBERT, VQA v2: the product of both pooled streams, all answers by themselves",
    source=_SOURCE,
    task="vqa",
    system="vilbert",
    model="vilbert",
    features=Features("butd-10-100"),
    options=VqaOptions(train="train+val"),
    layout=LayoutOptions(max_pieces=16, max_regions=99, region_order="file", whole_image="all"),
    head="release",
    settings={**_RELEASE, "parameter_groups": "vilbert-tasks"},
    accidents=_ACCIDENTS,
    learning_rate=4e-5,
    batch_size=256,
    epochs=20,
    warmup=0.1,
    decays_at=_FALLS,
    judged_by="overall",
    left_open=(
        _SCHEDULE_OPEN,
        _TWENTY_OPEN,
        REGIONS_OPEN,
        "The release cuts questions at 16 pieces after their [SEP], which long ones lose; here it stays "
        "(--set layout.cut=release is the release's way).",
        "The paper has one rate, the release 1e-4 for the answer classifier: the recipe vilbert-vqa-paper has one.",
        MINIVAL_OPEN,
        LABELS_OPEN,
    ),
)


_PROBLEMS = (*PROBLEM_NAMES, BOTH)


def vcr_run(problem: str, name: str, system: str, read: str, **fields: Any) -> TaskRecipe:
    """A run of both problems, which one model learns in turn, or of one of them alone.

    Args:
        name: of the recipe of both problems.
        read: what a choice's number is made from, for the summary.
    """
    pieces = 60 if problem != RATIONALE else 80
    other = {ANSWER: RATIONALE, RATIONALE: ANSWER}.get(problem, "")
    problems = PROBLEM_NAMES.get(problem, "Q->A and QA->R by one model")
    return TaskRecipe(
        summary=f"{system}, VCR {problems}: one number for each choice from {read}",
        task="vcr",
        system=system.lower(),
        model=system.lower(),
        options=VcrOptions(
            problem=problem, names="drawn", boxes="detected", max_boxes=100, truncation="running",
            max_pieces=pieces - 3, rationale_pieces=77 if problem == BOTH else 0,
        ),
        layout=LayoutOptions(whole_image="all"),
        learning_rate=2e-5,
        in_turn_with=f"{name}-{other}" if other else "",
        **fields,
    )  # fmt: skip


def _vcr(problem: str) -> TaskRecipe:
    return vcr_run(
        problem,
        "vilbert-vcr",
        "ViLBERT",
        "the product of both pooled streams",
        source=_SOURCE,
        features=Features("butd-10-100", annotated="vcr"),
        settings=_RELEASE,
        accidents=_ACCIDENTS,
        updates_apart=VCR_UPDATES_APART,
        batch_size=64,
        epochs=20,
        warmup=0.1,
        decays_at=_FALLS,
        judged_by=PROBLEM_NAMES.get(problem, "Q->AR"),
        left_open=(
            _SCHEDULE_OPEN,
            f"{INPUTS_OPEN}The detected ones are bottom-up attention's 10 to 100.",
            NAMES_OPEN,
            BOTH_OPEN if problem == BOTH else "One model for both problems: the recipe vilbert-vcr.",
        ),
    )


_REFERRING = TaskRecipe(
    summary="ViLBERT, RefCOCO+ among MAttNet's boxes: each region by itself",
    source=_SOURCE,
    task="refcoco+",
    system="vilbert",
    model="vilbert",
    features=Features("butd-10-100", boxes="mattnet", annotated="refcoco+"),
    options=ReferringOptions(
        text="raw",
        annotated_in_training=True,
        whole_image="size",
        max_boxes=100,
        target="iou",
        judged_target="overlap",
        one_pixel_more=True,
        loss="rows",
        box_rule="vilbert",
    ),
    layout=LayoutOptions(max_pieces=20, whole_image="all"),
    head="release",
    settings=_RELEASE,
    accidents=_ACCIDENTS,
    learning_rate=4e-5,
    batch_size=256,
    epochs=20,
    warmup=0.1,
    decays_at=_FALLS,
    judged_by="accuracy",
    left_open=(
        _SCHEDULE_OPEN,
        _TWENTY_OPEN,
        'The paper labels regions by "thresholding at 0.5"; the release takes the overlap itself where it is at least '
        "that much. The recipe vilbert-refcoco+-detected-paper has the paper's labels and candidates.",
        "The release cuts expressions at 20 pieces after their [SEP], which long ones lose; here it stays "
        "(--set layout.cut=release is the release's way).",
        "At most 99 regions and the whole image are candidates, as released. There a photo with more boxes stops the "
        "run; here detected ones go.",
        "That the whole image is a candidate, and annotated boxes stand behind the others in training, is by the "
        "release.",
    ),
)


_SINGLE = "vilbert-single-stream"
_SINGLE_OPEN = (
    'No weights of it were released, its code was (vilbert/basebert.py, with these heads); "trained identically".'
)
# Rows of Tables 1 to 3; the baseline stands behind the models with two streams.
TWO_STREAM_ROWS = (
    ModelRow("", "", "vilbert", PRETRAINED, "ViLBERT"),
    ModelRow("without-pretraining", "without pre-training", "vilbert", BERT, "ViLBERT w/o pre-training"),
    *(
        ModelRow(f"{n}-layer", f"{n} co-attention layers", f"vilbert-{n}-layer", PRETRAINED, f"ViLBERT ({n}-layer)")
        for n in (2, 4, 8)
    ),
    *(
        ModelRow(
            f"{n}-percent", f"pre-trained on {part} of the captions", f"vilbert-{n}-percent", PRETRAINED,
            f"ViLBERT ({n} %)",
        )
        for n, part in ((25, "a quarter"), (50, "half"))
    ),
)  # fmt: skip
_ROWS = (
    *TWO_STREAM_ROWS,
    ModelRow("single-stream", "its single-stream baseline", _SINGLE, PRETRAINED, "Single-Stream"),
    ModelRow(
        "single-stream-without-pretraining", "its single-stream baseline without pre-training", _SINGLE, BERT,
        "Single-Stream w/o pre-training",
    ),
)  # fmt: skip


def _vcr_column(problem: str) -> str:
    """Columns of one problem, or of the whole row, both problems right together included."""
    return "VCR" if problem == BOTH else f"VCR, {PROBLEM_NAMES[problem]}"


def _row_recipe(recipe: TaskRecipe, row: ModelRow, column: str) -> TaskRecipe:
    """The run of a row. The baseline has names of its own, by which its rules for parameters go."""
    found = row.of(recipe, figures_of("ViLBERT", row.printed, column))
    if row.model != _SINGLE:
        return found
    return replace(
        found,
        system=_SINGLE,
        head="release",
        settings={**recipe.settings, "parameter_groups": f"{_SINGLE}-tasks"},
        accidents={**recipe.accidents, "parameter_groups": f"{_SINGLE}-release-tasks"},
        left_open=(*recipe.left_open, _SINGLE_OPEN),
    )


def _paper_recipe(recipe: TaskRecipe, **changes: Any) -> TaskRecipe:
    """The first row as the paper has it, where the release does otherwise."""
    left_open = (*(each for each in recipe.left_open if "-paper" not in each and each != _SCHEDULE_OPEN), PAPER_OPEN)
    return replace(
        recipe,
        summary=f"{recipe.summary}; as the paper has it",
        source="arXiv:1908.02265, section 3.2",
        model="vilbert-paper",
        settings=_RELEASE,
        accidents={},
        **{"left_open": left_open, **changes},
    )


def _runs() -> Iterator[tuple[str, TaskRecipe]]:
    for row in _ROWS:
        yield row.named("vilbert-vqa"), _row_recipe(_VQA, row, "VQA")
    for problem in _PROBLEMS:
        name = "vilbert-vcr" if problem == BOTH else f"vilbert-vcr-{problem}"
        for row in _ROWS:
            yield row.named(name), _row_recipe(_vcr(problem), row, _vcr_column(problem))
        yield f"{name}-without-bert", _without_bert(problem)
    for row in _ROWS:
        yield row.named("vilbert-refcoco+-detected"), _row_recipe(_REFERRING, row, "RefCOCO+")
    yield "vilbert-vqa-paper", _paper_recipe(_row_recipe(_VQA, _ROWS[0], "VQA"))
    run = _paper_recipe(
        _row_recipe(_REFERRING, _ROWS[0], "RefCOCO+"),
        features=Features("butd-10-100", boxes="mattnet"),
        options=replace(
            _REFERRING.options,
            annotated_in_training=False,
            whole_image="none",
            max_boxes=0,
            target="binary",
            judged_target="binary",
        ),
        head="ours",
        left_open=(
            "Each proposal of MAttNet is a candidate, and nothing else: neither the whole image nor annotated boxes.",
            "How overlap and loss are counted is not given: sides with one pixel more, the sum over the candidates of "
            "an expression, as released.",
            _TWENTY_OPEN,
            "How long an expression may be is not given: 20 pieces, as released.",
            PAPER_OPEN,
        ),
    )
    yield "vilbert-refcoco+-detected-paper", run


def _without_bert(problem: str) -> TaskRecipe:
    """The run that InterBERT's authors measured."""
    recipe, printed = _vcr(problem), "ViLBERT w/o BERT initialization"
    words = "pre-trained without BERT's weights to start from"
    return ModelRow("without-bert", words, "vilbert-without-bert", PRETRAINED, printed).of(
        recipe,
        figures_of("InterBERT", printed, _vcr_column(problem)),
        source=f"arXiv:2003.13198, section 3.6; {recipe.source}",
        left_open=(*recipe.left_open, "How InterBERT's authors trained ViLBERT is not given: as its own authors do."),
    )


VILBERT_TASK_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict(_runs()))
