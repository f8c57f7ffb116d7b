"""What published runs of tasks build and feed: pieces and regions in batches that they make, heads, rates, targets."""

from functools import partial

import numpy as np
import pytest
import torch
from captioned_records import make_record
from finetune_requests import has_whole_image, request
from task_groups import LOSS, small_network, tokenizer

from roibeam.model.inputs import VLBatch
from roibeam.model.task_heads import MatchModel
from roibeam.model.task_losses import referred_targets
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.finetune_settings import config_of
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.run.network import TaskNetwork
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS
from roibeam.pipelines.finetuning.tasks.referring import candidates_of
from roibeam.pipelines.finetuning.tasks.vcr_rules import join_regions
from roibeam.pipelines.training.optimizer import chosen_groups
from roibeam.pipelines.training.parameter_groups import ParameterGroup

MANY = 150  # regions of an image, and words of a text
# Slots of an image, one of them the whole image's: max_region_num of vlbert_tasks.yml (jiasenlu/vilbert_beta) and of
# interbert_tasks.yml (black4321/InterBERT).
BY_THE_RELEASE = [
    name
    for name, recipe in TASK_RECIPES.items()
    if recipe.system.startswith("vilbert") and name != "vilbert-refcoco+-detected-paper"  # which takes all proposals
]
SLOTS = {
    **dict.fromkeys(BY_THE_RELEASE, 100),
    **{name: 100 for name in TASK_RECIPES if name.startswith("interbert-vcr")},
    "interbert-retrieval-release": 102,
}


def batch_of(name: str) -> VLBatch:
    """One row of the published run, of a long text and an image of many regions, as its model gets it."""
    recipe = TASK_RECIPES[name]
    form = LABEL if recipe.task == "vqa" else CHOICE
    rows = (TaskRow((TaskText(("dog " * MANY,), (-1,)),)),)
    group = TaskGroup("group", ("image",), rows, {0: 1.0} if form == LABEL else 0)
    asked = OutputSpec(form, 3 if form == LABEL else 1)
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
        assert len(candidates_of("photo", boxes, boxes[:3], (60, 60), recipe.options).boxes) == slots


@pytest.mark.parametrize("name", [name for name in TASK_RECIPES if name.startswith("imagebert-retrieval")])
def test_imagebert_is_fed_the_elements_of_its_paper(name: str) -> None:
    """Section 5.1 of arXiv:2001.07966: 144 of them, 100 regions and 44 others; a row of Table 4 has 36 regions."""
    inputs = batch_of(name)
    assert inputs.text_mask.sum(dim=1).tolist() == [44]
    assert inputs.region_mask.sum(dim=1).tolist() == [36 if "36-regions" in name else 100]


def built(name: str, form: str, num_labels: int = 1) -> TaskNetwork:
    recipe = TASK_RECIPES[name]
    asked = OutputSpec(form, num_labels, whole_image=has_whole_image(recipe))
    return small_network(recipe.system, form, head=recipe.head, asked=asked)


def test_vilbert_s_paper_has_one_rate_on_vqa() -> None:
    """Section 3.2 of arXiv:1908.02265; the release gives the answer classifier another one."""
    rates = {}
    for name in ("vilbert-vqa", "vilbert-vqa-paper"):
        recipe, network = TASK_RECIPES[name], built(name, LABEL, 3)
        config = config_of(request(), TASKS["vqa"].options, recipe, steps=100).train
        plain: list[ParameterGroup] = [{"params": list(network.module.parameters())}]
        groups = chosen_groups(network.module, partial(list, plain), config)
        rates[name] = {round(config.learning_rate * group.get("learning_rate_scale", 1.0), 9) for group in groups}
    assert rates == {"vilbert-vqa": {4e-5, 1e-4}, "vilbert-vqa-paper": {4e-5}}


def test_vilbert_s_paper_scores_pairs_by_the_alignment_head() -> None:
    """Its release draws a new layer. One of the paper's distractors is an image that looks alike."""
    release, paper = (built(f"vilbert-retrieval{end}", CHOICE).module for end in ("", "-paper"))
    names = [{path for path, each in module.named_parameters() if each.requires_grad} for module in (release, paper)]
    assert isinstance(paper, MatchModel) and any("match_head" in each for each in names[1])
    assert not isinstance(release, MatchModel) and not any("match_head" in each for each in names[0])
    assert TASK_RECIPES["vilbert-retrieval-paper"].options.mixes == [["caption", "image", "hard_image"]]


def test_vilbert_s_paper_labels_proposals_alone_by_a_threshold() -> None:
    """Its release takes the overlap itself, the whole image as a candidate, and annotated boxes in training."""
    found = {}
    boxes = torch.tensor([[[0.0, 0.0, 99.0, 99.0], [0.0, 0.0, 99.0, 69.0], [0.0, 0.0, 99.0, 29.0]]])
    for end in ("", "-paper"):
        recipe = TASK_RECIPES[f"vilbert-refcoco+-detected{end}"]
        rules = {"kind": recipe.options.target_of("train"), "inclusive_sides": recipe.options.one_pixel_more}
        targets = referred_targets(boxes, torch.ones(1, 3, dtype=torch.bool), boxes[:, 0], **rules)
        proposals = candidates_of("a", boxes[0].numpy(), boxes[0].numpy(), (99, 99), recipe.options)
        scored = built(f"vilbert-refcoco+-detected{end}", REGION)
        found[end] = targets[0].tolist(), len(proposals.boxes) - 3, recipe.options.annotated_in_training
        assert scored.described
    assert found == {"": (pytest.approx([1, 0.7, 0]), 4, True), "-paper": ([1, 1, 0], 3, False)}
