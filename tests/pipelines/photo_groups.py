"""Small groups of every form about photos of noise, and networks with a region encoder of milliseconds, for tests of
fine-tuning from photos in any process."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import end_to_end_examples as examples
import torch
from photo_store import CAPTIONS, PhotoStore, draw_record, image_id
from small_finetuning import judge_by_first_choice
from small_pretraining import in_floats_of, train_small
from task_groups import ASKED, LOSS, SIZES, drop

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.features.store import FeatureStore
from roibeam.pipelines.finetuning.rows import AUTO, CHOICE, LABEL, REGION, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.finetune_request import PhotoRequest
from roibeam.pipelines.finetuning.run.finetune_settings import FinetuneData
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches, TaskBatch
from roibeam.pipelines.finetuning.run.group_images import GroupPhotos, Outlines
from roibeam.pipelines.finetuning.run.group_task import PhotoTask
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.run.network import TaskNetwork, started_network, with_encoder
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.task import AuxiliaryTargets, DownstreamTask, TaskSplit
from roibeam.pipelines.training.hooks import TrainResult
from roibeam.pipelines.training.model_files.tokenizer import MADE_FROM_CAPTIONS, CaptionTokenizer, load_tokenizer
from roibeam.pipelines.training.task import WorstBatch
from roibeam.pipelines.training.train_config import TrainConfig


def tokenizer() -> CaptionTokenizer:
    return load_tokenizer(MADE_FROM_CAPTIONS, [f"{caption}?" for caption in CAPTIONS * 2])


def groups(kind: str, *, choices: int = 4) -> list[TaskGroup]:
    """Four of a form, about photos of different sizes and numbers of regions; the first word names a box."""
    found = []
    for number in range(4):
        question = TaskText((CAPTIONS[number], "?"), (1, -1))
        target: Any = number % 3
        rows = [TaskRow((question,))]
        if kind == LABEL:
            target = {number % 3: 1.0}
        elif kind == CHOICE:
            rows = [TaskRow((question, TaskText((CAPTIONS[4 + each % 4],)))) for each in range(choices)]
        elif kind == REGION:
            target = tuple(draw_record(number, examples.FEATURES).boxes[2].tolist())
        found.append(TaskGroup(f"group-{number}", (image_id(number),), tuple(rows), target))
    return found


def network(
    system: str, kind: str, *, whole_image: str = "model", dropout: float = 0.0, grounding: str = AUTO,
    beside: AuxiliaryTargets | None = None, num_input_classes: int = 0, **encoder: Any,
) -> tuple[TaskNetwork, TaskNetwork]:  # fmt: skip
    """The same weights on stored features, and with an encoder; no weight is at its start value."""
    torch.manual_seed(0)
    named = SYSTEMS[system]
    own: Any = named.model_class.config_class
    dropouts = {name: dropout for name in own.own_fields() if name.endswith("dropout")}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = named.sizes["small"](
        vocab_size=tokenizer().vocab_size, region_feature_size=examples.FEATURES, max_position_embeddings=64,
        **{**sizes, **SIZES.get(system, {}), **dropouts},
    )  # fmt: skip
    stored = started_network(
        named, named.model_class(config), ASKED[kind], "ours", source="a test", beside=beside,
        num_input_classes=num_input_classes, grounding=grounding,
    )  # fmt: skip
    examples.awake(stored.module)
    drop(stored.module, dropout)
    choices = replace(examples.BLANK, whole_image=whole_image)
    return stored, with_encoder(stored, examples.encoder(**encoder).to(memory_format=torch.channels_last), choices)


def encoder_of(made: TaskNetwork) -> RegionEncoder:
    module: Any = made.module
    return module.region_encoder


def photos_of(
    made: PhotoStore | None, opened: FeatureStore, trained: TaskNetwork, options: PhotoRequest,
    outlines: Outlines | None,
) -> GroupPhotos:  # fmt: skip
    joint: Any = trained.module
    folder = None if made is None else str(made.photos)
    return GroupPhotos(opened, opened.ids(), folder, joint.region_encoder, joint.choices, options, outlines=outlines)


def batches(
    opened: FeatureStore, trained: TaskNetwork, system: str, kind: str, *, photos: GroupPhotos | None = None,
    blind: bool = False, task: DownstreamTask | None = None,
) -> GroupBatches:  # fmt: skip
    made = GroupBatches(
        SYSTEMS[system], trained.encoder_config, tokenizer(), LayoutOptions(), ASKED[kind], opened,
        loss=loss_named(ASKED[kind].form, LOSS[kind]), blind=blind, task=task,
    )  # fmt: skip
    return made if photos is None else made.with_photos(photos)


def from_photos(
    opened: FeatureStore, trained: TaskNetwork, system: str, kind: str, *, outlines: Outlines | None = None,
    blind: bool = False, task: DownstreamTask | None = None, **options: Any,
) -> GroupBatches:  # fmt: skip
    photos = photos_of(None, opened, trained, PhotoRequest(**options), outlines)
    return batches(opened, trained, system, kind, photos=photos, blind=blind, task=task)


class InItsFloats(PhotoTask):
    """In the float type of its model."""

    def batches(self, *where: Any, **ranks: Any) -> Any:
        dtype = next(self.model.parameters()).dtype
        return (_in_floats(batch, dtype) for batch in super().batches(*where, **ranks))

    def worst_batch(self) -> WorstBatch:
        worst = super().worst_batch()
        return replace(worst, batch=_in_floats(worst.batch, next(self.model.parameters()).dtype))


def _in_floats(batch: TaskBatch, dtype: torch.dtype) -> TaskBatch:
    assert batch.images is not None and batch.placed_boxes is not None
    targets = batch.targets
    if targets is not None and targets.is_floating_point():
        targets = targets.to(dtype)
    images = in_floats_of(batch.images, dtype)
    inputs, placed = in_floats_of(batch.inputs, dtype), batch.placed_boxes.to(dtype)
    return replace(batch, inputs=inputs, images=images, placed_boxes=placed, targets=targets)


@dataclass(frozen=True)
class PhotoFinetuning:
    """A run, to be called in a process of its own."""

    store: Path
    folder: Path
    config: TrainConfig
    batch_size: int
    system: str = "vlbert"
    kind: str = CHOICE
    whole_image: str = "box"
    double: bool = False
    dropout: float = 0.0
    stop_at_step: int | None = None
    workers: int = 0
    beside: AuxiliaryTargets | None = None
    photos: dict[str, Any] = field(default_factory=dict)
    padding_multiple: int = 1  # of the encoder's conventions; its `long_edge` makes all inputs alike
    encoder_scale: float = 1.0
    conventions: str = "vlbert-e2e"
    encoder: dict[str, Any] = field(default_factory=dict)  # arguments of `RegionEncoder`
    shown: dict[str, Any] = field(default_factory=dict)  # fields of the task: what it shows beside features

    def task(self, opened: FeatureStore) -> PhotoTask:
        told = self.shown.get("input_classes")
        conventions = replace(CONVENTIONS[self.conventions], padding_multiple=self.padding_multiple)
        _, trained = network(
            self.system, self.kind, whole_image=self.whole_image, dropout=self.dropout, beside=self.beside,
            num_input_classes=told.num_classes if told else 0, conventions=conventions, **self.encoder,
        )  # fmt: skip
        trained.module.to(torch.float64 if self.double else torch.float32)
        asked: Sequence[TaskGroup] = groups(self.kind)
        task = DownstreamTask(
            name="small", form=ASKED[self.kind].form, loss=LOSS[self.kind], read=lambda split: TaskSplit(asked),
            train="train", validation=None, judge=judge_by_first_choice, answers=lambda groups, said: iter(()),
            write=lambda path, entries: None, labels=tuple("abc"),
            mirrored=lambda group: replace(group, mirrored=True), beside=self.beside,
            **self.shown,
        )  # fmt: skip
        made = from_photos(opened, trained, self.system, self.kind, task=task, **self.photos)
        loss = loss_named(task.form, task.loss)
        data = FinetuneData(batch_size=self.batch_size, workers=self.workers)
        given = (trained, made, task, ASKED[self.kind], loss, asked, (), data)
        return InItsFloats(*given, seed=3, encoder_scale=self.encoder_scale)

    def __call__(self) -> TrainResult:
        with FeatureStore(self.store) as opened:
            task = self.task(opened)
            torch.manual_seed(0)
            place = {"batch_size": self.batch_size, "stop_at_step": self.stop_at_step}
            return train_small(task, self.config, self.folder, **place)


def write_outlines(made: PhotoStore) -> None:
    """Beside every photo what VCR says of its regions: triangles, those of later boxes wider."""
    for number in range(8):
        boxes = draw_record(number, examples.FEATURES).boxes.tolist()
        segms = [
            [[[x1, y1], [x1 + (x2 - x1) * (place + 2) / (len(boxes) + 2), y1], [x1, y2]]]
            for place, (x1, y1, x2, y2) in enumerate(boxes)
        ]
        content = {"boxes": [[*box, 1.0] for box in boxes], "segms": segms, "names": ["person"] * len(boxes)}
        made.photo(image_id(number)).with_suffix(".json").write_text(json.dumps(content))
