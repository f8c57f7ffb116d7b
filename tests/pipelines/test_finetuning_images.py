"""An image as a whole among the regions to be chosen, images without any region, and two images in one row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from small_pretraining import in_floats_of
from task_groups import ASKED, LOSS, groups, small_network, store, tokenizer

from roibeam.features.store import FeatureStore
from roibeam.pipelines.finetuning.rows import REGION, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.group_task import predicted, scores_of
from roibeam.pipelines.finetuning.run.losses import loss_named, real_scores, scored_boxes
from roibeam.pipelines.finetuning.run.network import TaskNetwork, started_network
from roibeam.pipelines.finetuning.run.task_data import StoreImages
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec

WHOLE = OutputSpec(REGION, whole_image=True)


def network_for(system: str, **fields: Any) -> TaskNetwork:
    """That scores the whole image too, in float64, without dropout."""
    torch.manual_seed(0)
    named, like = SYSTEMS[system], small_network(system, REGION).encoder_config
    own = {name: value for name, value in like.to_diff_dict().items() if name in like.own_fields()}
    model = named.model_class(type(like)(**{**own, **fields}))
    network = started_network(named, model, WHOLE, "ours", source="a test")
    network.module.eval().double()
    return network


def batches_of(network: TaskNetwork, system: str, loss: str = "regions", *, blind: bool = False) -> GroupBatches:
    return GroupBatches(
        SYSTEMS[system], network.encoder_config, tokenizer(), LayoutOptions(), WHOLE, store(),
        loss=loss_named(REGION, loss), blind=blind,
    )  # fmt: skip


def with_whole() -> list[TaskGroup]:
    """Groups with their whole images as candidates; the last one means all of its image."""
    found = []
    for group in groups(REGION):
        record = store()[group.images[0]]
        found.append(replace(group, whole_image=np.array([0, 0, record.width - 1, record.height - 1], np.float32)))
    return [*found[:-1], replace(found[-1], target=tuple(found[-1].whole_image.tolist()))]


@pytest.mark.parametrize("system", ["vlbert", "vilbert", "interbert", "vilbert-single-stream"])
def test_the_whole_image_is_the_first_candidate(system: str) -> None:
    """It has a target, a score and a box, before those of the regions, with any neighbours in a batch."""
    network = network_for(system)
    made, asked = batches_of(network, system), with_whole()
    batch = made.batch(asked)
    batch = replace(batch, inputs=in_floats_of(batch.inputs, torch.float64))
    scores = scores_of(network.module, batch, REGION)
    boxes, real = scored_boxes(asked, batch.inputs)
    counted = real_scores(REGION, batch.inputs, batch.group_sizes, 1, whole_image=True)
    assert batch.targets is not None and scores.shape == batch.targets.shape == real.shape
    assert torch.equal(real, counted) and real.sum(dim=1).tolist() == [
        store()[group.images[0]].num_regions + 1 for group in asked
    ]
    assert batch.targets[:, 0].tolist() == [0, 0, 0, 1] and batch.targets[:3, 3].tolist() == [1, 1, 1]
    np.testing.assert_array_equal(boxes[:, 0], np.stack([group.whole_image for group in asked]))
    for place, group in enumerate(asked):
        alone = made.batch([group])
        single = scores_of(network.module, replace(alone, inputs=in_floats_of(alone.inputs, torch.float64)), REGION)
        torch.testing.assert_close(single[0], scores[place, real[place]], rtol=0, atol=1e-12)
    network.module.float()
    said = list(predicted(network.module, made, asked, REGION, 3))
    for each, group in zip(said, asked, strict=True):
        assert each.boxes is not None and len(each.scores) == len(each.boxes)
        np.testing.assert_array_equal(each.boxes[0], group.whole_image)
        np.testing.assert_array_equal(np.sort(each.boxes[1:], axis=0), np.sort(store()[group.images[0]].boxes, axis=0))


@pytest.mark.parametrize(
    ("system", "fields"), [("visualbert", {}), ("imagebert", {}), ("vlbert", {"whole_image_element": False})]
)
def test_a_model_without_an_element_for_it_says_so(system: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"whole_image: this {system} has no element for the image as a whole"):
        network_for(system, **fields)


def test_the_right_box_is_mirrored_with_its_image() -> None:
    network = network_for("vlbert")
    made, asked = batches_of(network, "vlbert"), with_whole()
    plain, mirrored = (made.batch([replace(each, mirrored=turned) for each in asked]) for turned in (False, True))
    assert plain.targets is not None and mirrored.targets is not None
    assert not torch.equal(plain.inputs.region_boxes, mirrored.inputs.region_boxes)
    assert torch.equal(plain.targets, mirrored.targets) and plain.targets.sum() >= 4


@pytest.mark.parametrize("loss", ["regions", "rows"])
def test_a_batch_of_images_without_a_region_trains_and_is_asked(loss: str) -> None:
    """A detector may find nothing in each of a batch's images."""
    network = small_network("vlbert", REGION)
    row = TaskRow((TaskText(("a dog",)),))
    nothing = [replace(group, rows=(row,), boxes=(np.zeros((0, 4), np.float32),)) for group in groups(REGION)[:2]]
    made = GroupBatches(
        SYSTEMS["vlbert"], network.encoder_config, tokenizer(), LayoutOptions(), ASKED[REGION], store(),
        loss=loss_named(REGION, loss),
    )  # fmt: skip
    batch = made.batch(nothing)
    assert batch.targets is not None and batch.targets.shape == (2, 0)
    scores = scores_of(network.module, batch, REGION)
    term = loss_named(REGION, loss).term(scores, batch.targets, scores.bool())
    assert float(term.total.detach()) == 0
    for each in predicted(network.module, made, nothing, REGION, 2):
        assert each.boxes is not None and each.scores.shape == (0,) and each.boxes.shape == (0, 4)


def test_a_group_with_nothing_to_choose_is_answered_without_its_image() -> None:
    """It keeps its place among the others, and its image need not be in the store."""
    network, (first, second, *_) = small_network("vilbert", REGION), groups(REGION)
    closed = replace(first, id="closed", images=("not extracted",), is_open=False)
    with pytest.raises(ValueError, match="missing are not extracted"):
        StoreImages(store()).join([first, replace(closed, is_open=True)], "val", min_match=1.0)
    joined = StoreImages(store()).join([closed, first, closed, second, closed], "val", min_match=1.0)
    assert not joined.missing and len(joined.groups) == 5
    made = GroupBatches(
        SYSTEMS["vilbert"], network.encoder_config, tokenizer(), LayoutOptions(), ASKED[REGION], store(), loss=None
    )
    said = list(predicted(network.module, made, joined.groups, REGION, 2))
    assert [len(each.scores) for each in said] == [0, len(said[1].scores), 0, len(said[3].scores), 0]
    for place, group in ((1, first), (3, second)):
        (alone,) = predicted(network.module, made, [group], REGION, 2)
        np.testing.assert_allclose(said[place].scores, alone.scores, atol=1e-6)


def test_vlbert_reads_two_images_in_one_row_each_in_a_segment_of_its_own() -> None:
    """The segment of the second image starts as that of the first, and its boxes are parts of its own image."""
    network = small_network("vlbert", "pair", double=True)
    module: Any = network.module
    assert SYSTEMS["vlbert"].joins_images and network.encoder_config.num_segments == 4
    segments = module.model.vlbert.embeddings.segments.weight
    assert torch.equal(segments[2], segments[3])
    group = groups("pair")[0]
    first, second = (store()[image] for image in group.images)
    second = replace(second, width=900, height=500)
    records = cast(FeatureStore, {group.images[0]: first, group.images[1]: second})
    made = GroupBatches(
        SYSTEMS["vlbert"], network.encoder_config, tokenizer(), LayoutOptions(), ASKED["pair"], records,
        loss=loss_named(ASKED["pair"].form, LOSS["pair"]),
    )  # fmt: skip
    inputs = in_floats_of(made.batch([group]).inputs, torch.float64)
    assert inputs.batch_size == 1 and inputs.region_images is not None
    assert inputs.region_images[0].tolist() == [0] * first.num_regions + [1] * second.num_regions
    shares = inputs.region_boxes[0, first.num_regions :] / torch.tensor([first.width, first.height] * 2)
    own = np.sort(second.boxes / np.array([second.width, second.height] * 2), axis=0)
    np.testing.assert_allclose(np.sort(shares, axis=0), own, atol=1e-6)
    with torch.no_grad():
        before = network.module(inputs)
        segments[3] += torch.linspace(0, 1, segments.shape[1])
        assert float((network.module(inputs) - before).abs().max()) > 1e-6
    bare: Any = small_network("vlbert", REGION).module.model
    with pytest.raises(ValueError, match=r"a row has several images, .* num_segments=4, got 3"):
        bare.encode(made.batch([group]).inputs)
