"""An image is read and embedded once a question, a text once where rows share it, and no score or loss shows it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

import pytest
import torch
from captioned_records import WIDTH, make_store
from small_pretraining import in_floats_of
from task_groups import ASKED, LOSS, NUM_LABELS, groups, small_network, store, tokenizer

from roibeam.features.store import FeatureStore
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION, TaskGroup
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches, TaskBatch
from roibeam.pipelines.finetuning.run.group_task import scores_of
from roibeam.pipelines.finetuning.run.losses import loss_named, real_scores
from roibeam.pipelines.finetuning.run.network import TaskNetwork
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions

SHARING = [(system, kind) for system in SYSTEMS for kind in (CHOICE, "pair")]


class CountingStore:
    """How often each image was read."""

    def __init__(self) -> None:
        self.records, self.reads = make_store(), Counter[str]()

    def __getitem__(self, image_id: str) -> Any:
        self.reads[image_id] += 1
        return self.records[image_id]


def varied(kind: str) -> list[TaskGroup]:
    """Groups one of which is shown mirrored, and one with boxes of its own; the first words name a box."""
    first, second, third, last = groups(kind)
    boxes = tuple(store()[image].boxes[[3, 1]] for image in third.images)
    return [first, replace(second, mirrored=True), replace(third, boxes=boxes), last]


def made(
    network: TaskNetwork, system: str, kind: str, read: object = None, *, blind: bool = False, **options: Any
) -> GroupBatches:
    return GroupBatches(
        SYSTEMS[system], network.encoder_config, tokenizer(), LayoutOptions(**options), ASKED[kind],
        cast(FeatureStore, read or store()), loss=loss_named(ASKED[kind].form, LOSS[kind]), blind=blind,
    )  # fmt: skip


def in_double(batch: TaskBatch, inputs: VLBatch | None = None) -> TaskBatch:
    targets = batch.targets
    if targets is not None and targets.is_floating_point():
        targets = targets.double()
    return replace(batch, inputs=in_floats_of(inputs or batch.inputs, torch.float64), targets=targets)


def assert_equal_fields(found: VLBatch, wanted: VLBatch) -> None:
    for field in fields(VLBatch):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, field.name


def scores_and_loss(network: TaskNetwork, kind: str, batch: TaskBatch) -> tuple[Any, Any, Sequence[Any]]:
    """Scores, the loss, and its gradients."""
    network.module.zero_grad()
    scores = scores_of(network.module, batch, ASKED[kind].form)
    real = real_scores(ASKED[kind], batch.inputs, batch.group_sizes)
    assert batch.targets is not None
    loss = loss_named(ASKED[kind].form, LOSS[kind]).term(scores, batch.targets, real).mean
    loss.backward()
    return scores.detach(), loss.detach(), [each.grad for each in network.module.parameters() if each.grad is not None]


@pytest.mark.parametrize(("system", "kind"), SHARING)
def test_rows_that_share_are_scored_and_trained_as_rows_of_their_own(system: str, kind: str) -> None:
    """In float64: choices of a question about one image, a statement about two; words that name boxes too."""
    network = small_network(system, kind, double=True)
    batches = made(network, system, kind)
    together = batches.batch(varied(kind))
    apart = replace(together, inputs=together.inputs.without_sharing())
    if kind == CHOICE:  # each row as a group of its own: an image for each
        rows = [replace(group, rows=(row,), target=None) for group in varied(kind) for row in group.rows]
        assert_equal_fields(batches.batch(rows).inputs, apart.inputs)
    shared = scores_and_loss(network, kind, in_double(together))
    own = scores_and_loss(network, kind, in_double(apart))
    torch.testing.assert_close(shared, own, rtol=0, atol=1e-12)
    real = real_scores(ASKED[kind], together.inputs, together.group_sizes)
    assert shared[0][real].std() > 0 and len(shared[2]) > 10


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("kind", [LABEL, CHOICE, REGION, "pair"])
def test_an_image_is_read_and_embedded_once_a_question(system: str, kind: str) -> None:
    """However many choices it has. A statement about two images is embedded once, where each image has a row."""
    network, read = small_network(system, kind), CountingStore()
    asked = groups(kind)
    batch = made(network, system, kind, read).batch(asked)
    assert read.reads == Counter(image for group in asked for image in group.images)
    inputs, joined = batch.inputs, SYSTEMS[system].joins_images
    rows = sum(len(group.rows) * (1 if joined else ASKED[kind].num_images) for group in asked)
    assert inputs.batch_size == rows
    assert len(inputs.text_ids) == sum(len(group.rows) for group in asked)
    assert len(inputs.region_mask) == sum(1 if joined else len(group.images) for group in asked)
    assert len(inputs.image_hw) == len(inputs.region_mask)
    assert (inputs.row_images is None) == (rows == len(inputs.region_mask))
    seen: list[int] = []
    linear = (each for each in network.module.modules() if isinstance(each, torch.nn.Linear))
    module = next(each for each in linear if each.in_features >= WIDTH)
    module.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(0, -2).shape[0]))
    network.module(inputs)
    regions = int(inputs.region_mask.sum())
    assert seen in ([regions], [regions + len(inputs.region_mask)])  # with the whole image beside them or without


def test_rows_without_a_brother_share_nothing() -> None:
    batch = made(small_network("vlbert", LABEL), "vlbert", LABEL).batch(groups(LABEL)).inputs
    assert batch.row_images is None and batch.row_texts is None


def test_a_task_token_goes_with_its_text() -> None:
    """Of two rows with one text there is one."""
    network = small_network("vilbert", "pair")
    network.encoder_config.num_task_tokens = 4
    inputs = made(network, "vilbert", "pair", task_token=2).batch(groups("pair")).inputs
    assert inputs.task_ids is not None and inputs.task_ids.tolist() == [2] * 4 and inputs.batch_size == 8


@pytest.mark.parametrize("system", ["vlbert", "visualbert"])
def test_what_a_blind_model_reads_is_shared_too(system: str) -> None:
    """No region is left, and each row's words still name boxes that are there."""
    network, read = small_network(system, CHOICE), CountingStore()
    inputs = made(network, system, CHOICE, read, blind=True).batch(groups(CHOICE)).inputs
    assert inputs.region_mask.shape == (4, 0) and inputs.row_images is not None
    assert set(read.reads.values()) == {1} and inputs.batch_size > NUM_LABELS
    assert network.module(inputs).isfinite().all()
