"""How many pieces and regions a published run shows a model, counted in batches that it makes."""

from __future__ import annotations

import numpy as np
import pytest
from captioned_records import make_record
from task_groups import LOSS, small_network, tokenizer

from roibeam.model.inputs import VLBatch
from roibeam.pipelines.finetuning.frame.group_batches import GroupBatches
from roibeam.pipelines.finetuning.frame.losses import loss_named
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.task_system import AskedForm
from roibeam.pipelines.finetuning.tasks.candidate_boxes import candidates_of
from roibeam.pipelines.finetuning.tasks.vcr_rules.regions import join_regions

MANY = 150  # regions of an image, and words of a text
# Slots of an image, one of them the whole image's: max_region_num of vlbert_tasks.yml (jiasenlu/vilbert_beta) and of
# interbert_tasks.yml (black4321/InterBERT).
SLOTS = {
    **{name: 100 for name, recipe in TASK_RECIPES.items() if recipe.system.startswith("vilbert")},
    **{name: 100 for name in TASK_RECIPES if name.startswith("interbert-vcr")},
    "interbert-retrieval-release": 102,
}


def batch_of(name: str) -> VLBatch:
    """One row of the published run, of a long text and an image of many regions, as its model gets it."""
    recipe = TASK_RECIPES[name]
    form = LABEL if recipe.task == "vqa" else CHOICE
    rows = (TaskRow((TaskText(("dog " * MANY,), (-1,)),)),)
    group = TaskGroup("group", ("image",), rows, {0: 1.0} if form == LABEL else 0)
    asked = AskedForm(form, 3 if form == LABEL else 1)
    network = small_network(recipe.system, form, asked=asked)
    made = GroupBatches(
        SYSTEMS[recipe.system], network.encoder_config, tokenizer(), recipe.layout, asked,
        {"image": make_record("image", 1, num_regions=MANY)}, loss=loss_named(form, LOSS[form]),
    )  # fmt: skip
    return made.batch([group]).inputs


@pytest.mark.parametrize("name", SLOTS)
def test_a_release_s_slots_hold_the_whole_image_too(name: str) -> None:
    """Recipes showed as many regions as the release has slots, and the whole image beside them."""
    recipe, slots = TASK_RECIPES[name], SLOTS[name]
    features, boxes = np.ones((MANY, 4), np.float32), np.tile(np.array([1, 1, 9, 9], np.float32), (MANY, 1))
    if recipe.task in ("vqa", "retrieval"):
        assert batch_of(name).region_mask.sum(dim=1).tolist() == [slots - 1]
    elif recipe.task == "vcr":
        joined = join_regions((features, boxes), (features[:3], boxes[:3]), recipe.options.max_boxes)
        assert len(joined.features) == slots - 1
    else:
        assert len(candidates_of("photo", boxes, boxes[:3], (60, 60), recipe.options.candidate_rules).boxes) == slots


@pytest.mark.parametrize("name", [name for name in TASK_RECIPES if name.startswith("imagebert-retrieval")])
def test_imagebert_is_fed_the_elements_of_its_paper(name: str) -> None:
    """Section 5.1 of arXiv:2001.07966: 144 of them, 100 regions and 44 others; a row of Table 4 has 36 regions."""
    inputs = batch_of(name)
    assert inputs.text_mask.sum(dim=1).tolist() == [44]
    assert inputs.region_mask.sum(dim=1).tolist() == [36 if "36-regions" in name else 100]
