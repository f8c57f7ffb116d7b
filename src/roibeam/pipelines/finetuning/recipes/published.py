"""The published fine-tuning runs by name: VQA so far."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from roibeam.near_names import name_hint
from roibeam.pipelines.finetuning.recipes.task_recipe import TaskRecipe
from roibeam.pipelines.finetuning.systems.layout_options import LayoutOptions
from roibeam.pipelines.finetuning.tasks.vqa import VqaOptions
from roibeam.pipelines.foundation.statistics.printed_figure import Figure
from roibeam.pipelines.training.release_settings import release_settings

_DEV, _STD = "accuracy, test-dev", "accuracy, test-std"
_LABELS_OPEN = (
    "The release has a label file of its own; here the majority answers, in the order of their questions: "
    "--set vqa.answers=FILE takes a file."
)
_MINIVAL_OPEN = (
    "The release keeps the last 3,000 validation questions for itself, whose images it trains on; here nothing is left "
    "to be judged on (--set vqa.train=train+val-minival data.shared_images=true is the release's way)."
)

TASK_RECIPES: Mapping[str, TaskRecipe] = MappingProxyType(
    {
        "vlbert-vqa": TaskRecipe(
            summary="VL-BERT, VQA v2: the state of [MASK] behind the question, all answers by themselves",
            source="jackroos/VL-BERT cfgs/vqa/base_4x16G_fp32.yaml; arXiv:1908.08530, section 4.2.2",
            task="vqa",
            system="vlbert",
            options=VqaOptions(train="train+val", mirror=True, label_form="without_signs", score_rule="left_out"),
            layout=LayoutOptions(whole_image="stored"),
            head_start="words",
            settings={**release_settings("vl-bert"), "clip_norm": 1.0},
            learning_rate=1.6e-4,
            batch_size=256,
            epochs=5,
            warmup=500,
            figures=(
                Figure("VQA", _DEV, 70.50, "version 1, Table 3"),
                Figure("VQA", _STD, 70.83, "version 1, Table 3"),
            ),
            left_open=(
                "The paper prints rate 1e-4, 20 epochs and a softmax over answers; the release has 1.6e-4, 5 epochs, "
                "one binary loss an answer, which this does.",
                _LABELS_OPEN,
            ),
        ),
        "vilbert-vqa": TaskRecipe(
            summary="ViLBERT, VQA v2: the product of both pooled streams, all answers by themselves",
            source="jiasenlu/vilbert_beta vlbert_tasks.yml and train_tasks.py; arXiv:1908.02265, section 3.2",
            task="vqa",
            system="vilbert",
            options=VqaOptions(train="train+val"),
            layout=LayoutOptions(max_pieces=16, max_regions=100, region_order="file", whole_image="all"),
            settings=release_settings("vilbert-release-tasks"),
            learning_rate=4e-5,
            batch_size=256,
            epochs=20,
            warmup=0.1,
            decays_at=(0.6, 0.8),
            figures=(
                Figure("VQA", _DEV, 70.55, "Table 1"),
                Figure("VQA", _STD, 70.92, "Table 1"),
            ),
            left_open=(
                "The release cuts questions at 16 pieces after their [SEP], which long ones lose; here it stays "
                "(--set layout.cut=release is the release's way).",
                _MINIVAL_OPEN,
                _LABELS_OPEN,
            ),
        ),
        "visualbert-vqa": TaskRecipe(
            summary="VisualBERT, VQA v2: the state of [MASK] behind the question, divergence from the soft scores",
            source="uclanlp/visualbert configs/vqa/fine-tune.json; arXiv:1908.03557, section 4.1",
            task="vqa",
            system="visualbert",
            options=VqaOptions(train="train+val", loss="kl", question="pythia"),
            layout=LayoutOptions(max_pieces=128),
            settings=release_settings("visualbert-ucla"),
            learning_rate=2e-5,
            batch_size=64,
            epochs=10,
            warmup=0.1,
            figures=(
                Figure("VQA", _DEV, 70.80, "Table 3"),
                Figure("VQA", _STD, 71.00, "Table 3"),
            ),
            left_open=(
                "The release cuts a question at 128 pieces with its [MASK]; here [MASK] stays "
                "(--set layout.cut=before_sep is the release's way).",
                "The release's validation questions lie inside its training; here nothing is left to be judged on.",
                _LABELS_OPEN,
            ),
        ),
    }
)  # fmt: skip


def task_recipe_named(name: str) -> TaskRecipe:
    """Raises ValueError for an unknown name."""
    if name not in TASK_RECIPES:
        raise ValueError(f"--recipe {name!r}: {name_hint(name, TASK_RECIPES)}")
    return TASK_RECIPES[name]
