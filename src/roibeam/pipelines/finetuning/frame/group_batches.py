"""Groups of a task and a store to batches, laid out as a system reads them. An image is read once for a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.finetuning.frame.losses import TaskLoss, real_scores
from roibeam.pipelines.finetuning.frame.task_batch import TaskBatch
from roibeam.pipelines.finetuning.rows import LABEL, REGION, TaskGroup, TaskRow
from roibeam.pipelines.finetuning.systems.layout_options import IN_FILE, SHOWN, STORED, LayoutOptions
from roibeam.pipelines.finetuning.systems.row_text import Pieces, RowText, lay_out
from roibeam.pipelines.finetuning.systems.task_system import AskedForm, TaskSystem
from roibeam.pipelines.inputs.batches.class_targets import as_float32, as_tensor
from roibeam.pipelines.inputs.batches.sample import PretrainSample, collate
from roibeam.pipelines.inputs.captioned.corpus import reader
from roibeam.pipelines.inputs.fit import check_positions, check_task, check_vocabulary, check_width
from roibeam.pipelines.inputs.mirrored_boxes import mirrored_boxes
from roibeam.pipelines.inputs.regions_at_boxes import regions_at_boxes
from roibeam.pipelines.inputs.shown_regions import strongest_regions
from roibeam.pipelines.inputs.whole_image import whole_image_feature
from roibeam.pipelines.model_files.tokenizer import CaptionTokenizer


@dataclass(frozen=True, eq=False)
class ShownImage:
    """An image of a group.

    Attributes:
        record: of the image.
        regions: (R,) int64, numbers of the record's regions that are shown, in their order.
        named: number of a box, as words name it -> its place among these; a box that is not there is not shown.
        num_boxes: that words may name.
    """

    record: RegionRecord
    regions: np.ndarray
    named: Mapping[int, int]
    num_boxes: int


class GroupBatches:
    """Makes batches of groups.

    Args:
        config: of the pre-trained model, whatever head it has.
        asked: what is asked of a row.
        store: that every image of every group is in, under the group's own name for it.
        regions: see `DownstreamTask`.
        blind: shows nothing of the images: no regions, and of regions that are to be chosen among only their boxes.
    Raises:
        ValueError: when tokenizer or options do not fit the model.
    """

    def __init__(
        self,
        system: TaskSystem,
        config: Any,
        tokenizer: CaptionTokenizer,
        options: LayoutOptions,
        asked: AskedForm,
        store: FeatureStore,
        *,
        loss: TaskLoss | None,
        blind: bool = False,
        regions: Callable[[TaskGroup, int, RegionRecord], np.ndarray] | None = None,
    ) -> None:
        check_vocabulary(config, tokenizer)
        positions = system.positions(config)
        check_positions(positions, options.max_pieces)
        check_task(config, options.task_token if options.task_token >= 0 else None)
        self._system, self._config, self._options, self._asked = system, config, options, asked
        self._pieces, self._pad_id = Pieces(tokenizer), tokenizer.pad_id
        self._max_pieces = options.max_pieces or positions
        self._record_of, self._loss, self._blind, self._regions = reader(store), loss, blind, regions
        self._tells_words = system.grounds_words and getattr(config, "text_visual", "") == "grounded"

    def check(self, group: TaskGroup) -> None:
        """Raises ValueError when the record of the group's first image does not fit the model."""
        record = self._record_of(group.images[0])
        check_width(self._config, record)
        self._global_feature(record)

    def batch(self, groups: Sequence[TaskGroup]) -> TaskBatch:
        """
        Raises:
            ValueError: naming the group whose rows do not fit.
        """
        samples = [sample for group in groups for sample in self._group(group)]
        inputs = collate(samples, pad_id=self._pad_id)
        if self._options.task_token >= 0:
            inputs = replace(inputs, task_ids=torch.full((inputs.batch_size,), self._options.task_token))
        sizes = tuple(len(group.rows) for group in groups)
        targets = None
        if self._loss is not None and all(group.target is not None for group in groups):
            real = real_scores(self._asked.form, inputs, sizes, self._asked.num_labels)
            targets = self._loss.targets(groups, inputs, real.shape[1])
        return TaskBatch(inputs, sizes, targets, tuple(group.id for group in groups))

    def _group(self, group: TaskGroup) -> list[PretrainSample]:
        if self._asked.form in (LABEL, REGION) and len(group.rows) != 1:
            raise ValueError(f"{group.id}: {len(group.rows)} rows; a group of the form {self._asked.form} has one")
        images = [self._shown(group, number) for number in range(len(group.images))]
        return [sample for row in group.rows for sample in self._row(group.id, row, images)]

    def _shown(self, group: TaskGroup, number: int) -> ShownImage:
        """The regions of the boxes that the task gives, else those of the record that the options choose."""
        record = self._record_of(group.images[number])
        given = group.boxes[number] if len(group.boxes) else None
        if given is not None:
            regions = regions_at_boxes(record, np.asarray(given, np.float32).reshape(-1, 4))
            named, num_boxes = {place: place for place in range(len(regions))}, len(regions)
        else:
            regions, num_boxes = self._stored_regions(group, number, record), record.num_regions
            named = {int(region): place for place, region in enumerate(regions)}
        if group.mirrored:  # stored features are those of the photo as it is
            record = replace(record, boxes=mirrored_boxes(record.boxes, record.width))
        if self._blind and self._asked.form != REGION:
            return ShownImage(record, np.arange(0), {}, num_boxes)
        return ShownImage(record, regions, named, num_boxes)

    def _stored_regions(self, group: TaskGroup, number: int, record: RegionRecord) -> np.ndarray:
        if self._regions is not None:
            return self._regions(group, number, record)
        most = self._options.max_regions
        if self._options.region_order == IN_FILE:
            return np.arange(min(record.num_regions, most or record.num_regions))
        return strongest_regions(record, most)

    def _row(self, name: str, row: TaskRow, images: Sequence[ShownImage]) -> list[PretrainSample]:
        if len(row.images) != self._asked.num_images:
            raise ValueError(f"{name}: a row with {len(row.images)} images; the task has {self._asked.num_images}")
        spans = self._system.text(self._pieces, row.parts, self._asked.form, len(row.images))
        text = lay_out(spans, self._max_pieces, self._options.cut)
        shown = [images[number] for number in row.images]
        if self._system.joins_images:
            return [self._sample(name, text, shown)]
        return [self._sample(name, text, [each]) for each in shown]

    def _sample(self, name: str, text: RowText, shown: Sequence[ShownImage]) -> PretrainSample:
        features = torch.cat([as_tensor(each.record.features[each.regions]) for each in shown])
        if self._blind:
            features = torch.zeros_like(features)
        boxes = np.concatenate([each.record.boxes[each.regions] for each in shown])
        nothing = np.zeros(len(boxes), bool)
        several = len(shown) > 1
        return PretrainSample(
            sample_id=name,
            text_ids=text.ids,
            text_labels=np.full(len(text.ids), IGNORE_INDEX, np.int64),
            text_segments=text.segments,
            features=features,
            boxes=boxes,
            masked=nothing,
            predicted=nothing,
            region_targets=None,
            whole_image=self._whole_image(shown[0].record),
            global_feature=self._global_feature(shown[0].record),
            region_images=np.repeat(np.arange(len(shown)), [len(each.regions) for each in shown]) if several else None,
            aligned_words=self._aligned(name, text, shown[0]) if self._system.grounds_words else None,
            height=shown[0].record.height,
            width=shown[0].record.width,
        )

    def _aligned(self, name: str, text: RowText, shown: ShownImage) -> np.ndarray | None:
        """See `PretrainSample.aligned_words`; a word names a box by its number: of those that the task gives, else of
        the record's regions.

        Raises:
            ValueError: for a word that names a box that is not there.
        """
        named = np.flatnonzero(text.tags >= 0)
        if not len(named) and not self._tells_words:
            return None
        words: list[list[int]] = [[] for _ in shown.regions]
        for piece in named:
            region = int(text.tags[piece])
            if region >= shown.num_boxes:
                raise ValueError(
                    f"{name}: a word names box {region}, the image {shown.record.image_id!r} has {shown.num_boxes}; "
                    f"extract with --boxes of the task"
                )
            if region in shown.named:
                words[shown.named[region]].append(int(piece))
        most = max([1, *map(len, words)])
        rows = [each + [-1] * (most - len(each)) for each in words]
        return np.array(rows, np.int64).reshape(len(words), most)

    def _whole_image(self, record: RegionRecord) -> torch.Tensor | None:
        """(D,), see `LayoutOptions.whole_image`; None where it is made of what is shown."""
        if self._options.whole_image == SHOWN or self._blind:
            return None
        return whole_image_feature(record, stored=self._options.whole_image == STORED)

    def _global_feature(self, record: RegionRecord) -> torch.Tensor | None:
        """(G,) for a model that reads one; ValueError where the record has none of that width."""
        width = getattr(self._config, "global_feature_size", 0)
        if not width:
            return None
        feature = record.image_feature
        if feature is None or len(feature) != width:
            raise ValueError(
                f"record {record.image_id!r}: the model reads a feature of the whole image of width {width}, the store "
                f"has {'none' if feature is None else len(feature)}; extract with --image-feature, from the network "
                f"that it was trained with"
            )
        return torch.zeros(width) if self._blind else as_float32(feature)
