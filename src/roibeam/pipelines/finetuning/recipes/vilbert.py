"""ViLBERT's published fine-tuning runs: section 3.2 and Tables 1 to 3 of arXiv:1908.02265, and jiasenlu/vilbert_beta.

Every row of the tables is the same three runs, from another model. InterBERT's runs on VCR share the open points of
VCR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from roibeam.pipelines.common.statistics.paper_figures import figures_of
from roibeam.pipelines.data.feature_settings import Features
from roibeam.pipelines.finetuning.recipes.task_recipe import BERT, LABELS_OPEN, MINIVAL_OPEN, PRETRAINED, TaskRecipe
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
_TWENTY_OPEN = 'Epochs are "a maximum of 20", and how one is chosen is not said: 20.'
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


def _vcr(problem: str) -> TaskRecipe:
    """The run of both problems, which one model learns in turn, or of one of them alone."""
    pieces = 60 if problem != RATIONALE else 80
    other = {ANSWER: RATIONALE, RATIONALE: ANSWER}.get(problem, "")
    return TaskRecipe(
        summary=f"ViLBERT, VCR {PROBLEM_NAMES.get(problem, 'Q->A and QA->R by one model')}: one number for each choice "
        "from the product of both pooled streams",
        source=_SOURCE,
        task="vcr",
        system="vilbert",
        model="vilbert",
        features=Features("butd-10-100", annotated="vcr"),
        options=VcrOptions(
            problem=problem, names="drawn", boxes="detected", max_boxes=100, truncation="running",
            max_pieces=pieces - 3, rationale_pieces=77 if problem == BOTH else 0,
        ),
        layout=LayoutOptions(whole_image="all"),
        settings=_RELEASE,
        accidents=_ACCIDENTS,
        updates_apart=VCR_UPDATES_APART,
        learning_rate=2e-5,
        batch_size=64,
        epochs=20,
        warmup=0.1,
        decays_at=_FALLS,
        judged_by=PROBLEM_NAMES.get(problem, "Q->AR"),
        in_turn_with=f"vilbert-vcr-{other}" if other else "",
        left_open=(
            _SCHEDULE_OPEN,
            "Which boxes are shown, how people are called and how long a text may be is not in the paper: detected and "
            "annotated ones, at most 100 with the whole image, names that are drawn, 60 and 80 pieces, as released. "
            "The detected ones are bottom-up attention's 10 to 100.",
            NAMES_OPEN,
            BOTH_OPEN if problem == BOTH else "One model for both problems: the recipe vilbert-vcr.",
        ),
    )  # fmt: skip


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


class _Row(NamedTuple):
    """A row of Tables 1 to 3: the model, and how it starts."""

    name: str  # of its recipes, behind the task's
    words: str
    model: str
    start: str
    printed: str  # its name there


_SINGLE = "vilbert-single-stream"
_SINGLE_OPEN = (
    'No weights of it were released, its code was (vilbert/basebert.py, with these heads); "trained identically".'
)
_ROWS = (
    _Row("", "", "vilbert", PRETRAINED, "ViLBERT"),
    _Row("without-pretraining", "without pre-training", "vilbert", BERT, "ViLBERT w/o pre-training"),
    _Row("2-layer", "2 co-attention layers", "vilbert-2-layer", PRETRAINED, "ViLBERT (2-layer)"),
    _Row("4-layer", "4 co-attention layers", "vilbert-4-layer", PRETRAINED, "ViLBERT (4-layer)"),
    _Row("8-layer", "8 co-attention layers", "vilbert-8-layer", PRETRAINED, "ViLBERT (8-layer)"),
    _Row(
        "25-percent", "pre-trained on a quarter of the captions", "vilbert-25-percent", PRETRAINED, "ViLBERT (25 %)"
    ),
    _Row("50-percent", "pre-trained on half of the captions", "vilbert-50-percent", PRETRAINED, "ViLBERT (50 %)"),
    _Row("single-stream", "its single-stream baseline", _SINGLE, PRETRAINED, "Single-Stream"),
    _Row(
        "single-stream-without-pretraining", "its single-stream baseline without pre-training", _SINGLE, BERT,
        "Single-Stream w/o pre-training",
    ),
)  # fmt: skip


def _vcr_column(problem: str) -> str:
    """Columns of one problem, or of the whole row, both problems right together included."""
    return "VCR" if problem == BOTH else f"VCR, {PROBLEM_NAMES[problem]}"


def _row_recipe(recipe: TaskRecipe, row: _Row, column: str) -> TaskRecipe:
    """The run of a row. The baseline has names of its own, by which its rules for parameters go."""
    is_single, turn = row.model == _SINGLE, recipe.in_turn_with
    settings, accidents = dict(recipe.settings), dict(recipe.accidents)
    if is_single:
        settings["parameter_groups"] = f"{_SINGLE}-tasks"
        accidents["parameter_groups"] = f"{_SINGLE}-release-tasks"
    return replace(
        recipe,
        summary=f"{recipe.summary}; {row.words}" if row.words else recipe.summary,
        system=_SINGLE if is_single else recipe.system,
        head="release" if is_single else recipe.head,
        model=row.model,
        start=row.start,
        settings=settings,
        accidents=accidents,
        in_turn_with=_named(turn, row) if turn else "",
        figures=figures_of("ViLBERT", row.printed, column),
        left_open=(*recipe.left_open, _SINGLE_OPEN) if is_single else recipe.left_open,
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


def _named(name: str, row: _Row) -> str:
    return f"{name}-{row.name}" if row.name else name


def _runs() -> Iterator[tuple[str, TaskRecipe]]:
    for row in _ROWS:
        yield _named("vilbert-vqa", row), _row_recipe(_VQA, row, "VQA")
    for problem in _PROBLEMS:
        name = "vilbert-vcr" if problem == BOTH else f"vilbert-vcr-{problem}"
        for row in _ROWS:
            yield _named(name, row), _row_recipe(_vcr(problem), row, _vcr_column(problem))
        yield f"{name}-without-bert", _without_bert(problem)
    for row in _ROWS:
        yield _named("vilbert-refcoco+-detected", row), _row_recipe(_REFERRING, row, "RefCOCO+")
    yield "vilbert-vqa-paper", _paper_recipe(_row_recipe(_VQA, _ROWS[0], "VQA"))
    yield (
        "vilbert-refcoco+-detected-paper",
        _paper_recipe(
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
                "Each proposal of MAttNet is a candidate, and nothing else: neither the whole image nor annotated "
                "boxes.",
                "How overlap and loss are counted is not said: sides with one pixel more, the sum over the candidates "
                "of an expression, as released.",
                _TWENTY_OPEN,
                "How long an expression may be is not said: 20 pieces, as released.",
                PAPER_OPEN,
            ),
        ),
    )


def _without_bert(problem: str) -> TaskRecipe:
    """The run that InterBERT's authors measured."""
    recipe = _vcr(problem)
    return replace(
        recipe,
        summary=f"{recipe.summary}; pre-trained without BERT's weights to start from",
        source=f"arXiv:2003.13198, section 3.6; {recipe.source}",
        model="vilbert-without-bert",
        in_turn_with=f"{recipe.in_turn_with}-without-bert" if recipe.in_turn_with else "",
        figures=figures_of("InterBERT", "ViLBERT w/o BERT initialization", _vcr_column(problem)),
        left_open=(*recipe.left_open, "How InterBERT's authors trained ViLBERT is not said: as its own authors do."),
    )


VILBERT_TASK_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(dict(_runs()))
