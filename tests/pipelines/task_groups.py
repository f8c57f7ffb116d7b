"""Small groups of every form over made records, the networks of all systems, and batches of them."""

from functools import cache
from typing import Any, cast

import torch
from captioned_records import CAPTIONS, WIDTH, make_store
from tiny_commands import TINY
from tiny_commands import TINY_OF as SIZES

from roibeam.features.store import FeatureStore
from roibeam.model.common.heads import DroppedLinear
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, PHRASE, REGION, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.run.network import TaskNetwork, started_network
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.training.model_files.tokenizer import MADE_FROM_CAPTIONS, CaptionTokenizer, load_tokenizer

NUM_LABELS = 3
WHOLE = "whole"  # regions, and the whole image before them
ASKED = {
    LABEL: OutputSpec(LABEL, NUM_LABELS),
    CHOICE: OutputSpec(CHOICE),
    REGION: OutputSpec(REGION),
    WHOLE: OutputSpec(REGION, whole_image=True),
    "pair": OutputSpec(LABEL, 2, num_images=2),
    PHRASE: OutputSpec(PHRASE),
}
LOSS = {LABEL: "bce", CHOICE: "softmax", REGION: "rows", WHOLE: "rows", "pair": "class", PHRASE: "captions"}


@cache
def tokenizer() -> CaptionTokenizer:
    return load_tokenizer(MADE_FROM_CAPTIONS, [f"{caption}?" for caption in CAPTIONS * 2])


def store() -> FeatureStore:
    return cast(FeatureStore, make_store())


def groups(kind: str) -> list[TaskGroup]:
    """Four of each form, whose texts, regions and numbers of rows differ."""
    found = []
    for number in range(4):
        question = TaskText((CAPTIONS[number], "?"), (0, -1))
        images, target, rows = (f"image-{number}",), cast(Any, number % 2), [TaskRow((question,))]
        whole = (0.0, 0.0, 300.0, 300.0) if kind == WHOLE else None
        if kind == LABEL:
            target = {number % NUM_LABELS: 1.0, (number + 1) % NUM_LABELS: 0.3}
        elif kind == CHOICE:
            choices = [TaskText(tuple(CAPTIONS[4 + each].split()[: each + 2])) for each in range(2 + number % 3)]
            rows = [TaskRow((question, choice)) for choice in choices]
        elif kind in (REGION, WHOLE):
            target = tuple(make_store()[images[0]].boxes[2].tolist())
        else:
            images = (f"image-{number}", f"image-{number + 4}")
            rows = [TaskRow((question,), (0, 1))]
        found.append(TaskGroup(f"group-{number}", images, tuple(rows), target, whole_image=whole))
    return found


def small_network(
    system: str, kind: str, *, head: str = "ours", double: bool = False, dropout: float = 0.0,
    asked: OutputSpec | None = None,
) -> TaskNetwork:  # fmt: skip
    """Of new weights, in evaluation mode; `asked` is that of the kind."""
    torch.manual_seed(0)
    named = SYSTEMS[system]
    own: Any = named.model_class.config_class
    dropouts = {name: dropout for name in own.own_fields() if name.endswith("dropout")}
    fields = {**TINY, **SIZES.get(system, {}), **dropouts}
    fields |= {"vocab_size": tokenizer().vocab_size, "region_feature_size": WIDTH, "max_position_embeddings": 64}
    config = named.sizes["small"](**fields)
    network = started_network(named, named.model_class(config), asked or ASKED[kind], head, source="a test")
    network.module.eval()
    drop(network.module, dropout)
    if double:
        network.module.double()
    return network


def drop(network: torch.nn.Module, share: float) -> None:
    """Sets every dropout, the head's too."""
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share
        elif isinstance(module, DroppedLinear):
            module.dropout = share


def batches(
    network: TaskNetwork, system: str, kind: str, *, options: LayoutOptions | None = None, blind: bool = False,
    loss: str = "", records: Any = None,
) -> GroupBatches:  # fmt: skip
    """`loss` in place of the one of the kind, `records` of the store of captions."""
    return GroupBatches(
        SYSTEMS[system], network.encoder_config, tokenizer(), options or LayoutOptions(), ASKED[kind],
        records or store(), loss=loss_named(ASKED[kind].form, loss or LOSS[kind]), blind=blind,
    )  # fmt: skip
