"""Batches of whole groups of a task and a store, laid out as a system reads them, with their targets.

An image is read, and stands in a batch, once for a group.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.messages import plural, printable
from roibeam.model.common.masking import mask_words
from roibeam.model.end_to_end import ImageBatch
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.data.batches.image_batch import PhotoInput
from roibeam.pipelines.data.batches.sample import (
    ImageWithTargets,
    SharedRows,
    as_float32,
    as_tensor,
    whole_image_feature,
    with_box_numbers,
)
from roibeam.pipelines.data.captions.corpus import Reader, reader
from roibeam.pipelines.data.compatibility import check_positions, check_task, check_vocabulary, check_width
from roibeam.pipelines.data.record_regions import mirrored_boxes
from roibeam.pipelines.finetuning.rows import (
    CHOICE,
    PHRASE,
    REGION,
    UNGROUNDED,
    PartPieces,
    TaskGroup,
    TaskRow,
    TaskText,
)
from roibeam.pipelines.finetuning.run.group_images import (
    GroupPhotos,
    ImageInput,
    RegionChoice,
    auxiliary_targets,
    flags_of,
    joined_pieces,
    with_input_classes,
    with_whole_region,
)
from roibeam.pipelines.finetuning.run.losses import TaskLoss, real_scores
from roibeam.pipelines.finetuning.run.task_data import StorePair, bare_record
from roibeam.pipelines.finetuning.systems.options import ALL, BEFORE_SEP, HIDDEN, SHOWN, STORED, LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import (
    OutputSpec,
    Pieces,
    RowText,
    TaskSystem,
    cut_words,
    lay_out,
    naming_words,
    places_in_row,
    places_of_phrases,
)
from roibeam.pipelines.finetuning.task import DownstreamTask
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """G groups.

    Attributes:
        inputs: the rows of all groups, one after the other.
        group_sizes: how many rows of the task each group has; a row may take several of `inputs`.
        targets: (G, A) float or (G,) long, by the task's loss; of regions (G, R) float. None without labels.
        images: the photos of a run through the region encoder; None on stored features.
        placed_boxes: (I, R, 4) float, boxes as they are in those photos: clipped to them, mirrored where these are;
            those of `inputs` are as the store or the task has them. None on stored features.
    """

    inputs: VLBatch
    group_sizes: tuple[int, ...]
    targets: Tensor | None
    ids: tuple[str, ...]
    images: ImageBatch | None = None
    placed_boxes: Tensor | None = None

    @property
    def model_inputs(self) -> tuple[VLBatch] | tuple[VLBatch, ImageBatch]:
        """Arguments of the network."""
        if self.images is None or self.placed_boxes is None:
            return (self.inputs,)
        return replace(self.inputs, region_boxes=self.placed_boxes), self.images

    def to(self, device: torch.device | str) -> TaskBatch:
        """The same batch with every tensor on `device`."""
        targets = None if self.targets is None else self.targets.to(device, non_blocking=True)
        images = None if self.images is None else self.images.to(device)
        placed = None if self.placed_boxes is None else self.placed_boxes.to(device, non_blocking=True)
        return replace(self, inputs=self.inputs.to(device), targets=targets, images=images, placed_boxes=placed)


_MOST_SPECIAL = 16  # of the special pieces of a row, a "?" that a system adds among them
_SPECIAL = 3  # [CLS] context [SEP] choice [SEP]


@dataclass(frozen=True, eq=False, kw_only=True)
class PhotoSide(ImageWithTargets):
    """An image of a batch whose photo a thread reads; its features are empty, (R, 0)."""

    photo: Future[PhotoInput]


class GroupBatches:
    """Makes batches of groups.

    Args:
        config: of the pre-trained model, whatever head it has.
        store: of every image of every group, under the group's own name for it, or its records by that name;
            None for texts alone.
        task: gives the input regions, the cuts of texts and the auxiliary targets; None leaves all of that to the
            options.
        blind: without images: no regions, and only the boxes of regions that are to be chosen among.
    """

    def __init__(
        self,
        system: TaskSystem,
        config: Any,
        tokenizer: CaptionTokenizer,
        options: LayoutOptions,
        output: OutputSpec,
        store: FeatureStore | StorePair | Mapping[str, RegionRecord] | None,
        *,
        loss: TaskLoss | None,
        blind: bool = False,
        task: DownstreamTask | None = None,
    ) -> None:
        check_vocabulary(config, tokenizer)
        positions = system.positions(config)
        check_positions(positions, options.max_pieces)
        check_task(config, options.task_token if options.task_token >= 0 else None)
        self._system, self._config, self._options, self._output = system, config, options, output
        self._pieces, self._pad_id = Pieces(tokenizer), tokenizer.pad_id
        self._max_pieces = options.max_pieces or positions
        self._loss, self._blind, self._task = loss, blind or options.images == HIDDEN, task
        if options.images == HIDDEN and output.form in (REGION, PHRASE):
            raise ValueError("layout.images hidden: this task chooses among the regions of its image; show them")
        self._regions = RegionChoice(store, task, options)
        self._read: Reader = _no_record if store is None else reader(store)
        self._separator, self._mask_id = tokenizer.sep_id, tokenizer.mask_id
        self._vocab_size = tokenizer.vocab_size
        if task is not None and task.pieces is not None:
            _check_cut(task, options, positions)
        if task is not None and task.whole_region and system.has_whole_image(config):
            raise ValueError(
                f"{task.name}.whole_region: this {system.name} has an element for the image as a whole already; leave "
                f"it at false"
            )
        self._global_width = int(getattr(config, "global_feature_size", 0))
        self.photos: GroupPhotos | None = None  # of a run through the region encoder
        self._reads_cut_phrases = system.reads_cut_phrases and options.cut == BEFORE_SEP
        self._grounds_words = bool(system.grounding) and (task is None or task.grounding != UNGROUNDED)
        self._grounds_by_number = self._grounds_words and getattr(config, "text_visual", "") == "grounded"

    def without_regions(self, image_id: str) -> GroupBatches:
        """The same for groups whose images are missing: without regions, as a blind one.

        Args:
            image_id: of an image of the store; rows without regions have its size.
        """
        made = copy.copy(self)
        own = self._read(image_id)
        record = bare_record(own, np.zeros((0, 4), np.float32), width=own.features.shape[1])
        made._regions = RegionChoice(None, self._task, self._options)
        made._read, made._blind = lambda _name: record, True
        return made

    def with_photos(self, photos: GroupPhotos) -> GroupBatches:
        """The same from photos: boxes are those of the store, or of the task where it gives some, features the
        encoder's. Raises ValueError for a system that reads several images in one row, or box numbers behind features.
        """
        if self._system.joins_images and self._output.num_images > 1:
            raise ValueError(
                f"--end-to-end: {self._system.name} reads {self._output.num_images} images in one row, which is not "
                f"made of photos; take stored features, or a system with a row for each image, such as vilbert"
            )
        if self._options.box_numbers:
            raise ValueError("--end-to-end: features of photos have no box numbers; set layout.box_numbers to false")
        made = copy.copy(self)
        made.photos = photos
        return made

    def check(self, group: TaskGroup) -> None:
        """Raises ValueError when record or photo of the group's first image does not fit the model."""
        if self.photos is not None or not group.images:
            self.batch([group])
            return
        record = self._read(group.images[0])
        check_width(self._config, record, box_numbers=self._options.box_numbers, setting="layout.box_numbers")
        self._global_feature(record)

    def check_boxes(self, groups: Iterable[TaskGroup]) -> None:
        """Raises ValueError where a store lacks boxes of the task; photos are cut at any."""
        if self.photos is None:
            self._regions.check(groups)

    def notes_of_cuts(self, groups: Iterable[TaskGroup], what: str) -> list[str]:
        """Notes on texts that are longer than a row and are cut, also on cut words of phrases, words that name a box,
        and [MASK]. Raises ValueError naming a group whose text a task that cuts texts itself cannot cut.

        Args:
            what: the groups are, such as "training".
        """
        cut = [(lengths, group) for group in groups if (lengths := self._lengths_if_cut(group)) is not None]
        if not cut:
            return []
        (whole, left), longest = max(cut, key=lambda each: (each[0], each[1].id))
        note, name = f"{plural(len(cut), f'{what} text')} longer than a row", printable(longest.id, 80)
        if self._task is not None and self._task.lengths is not None:
            note += f": of the longest, {whole} pieces, {left} are read ({name})"
        else:
            note += f": {left} pieces are read of each (layout.max_pieces), and the longest has {whole} ({name})"
        return [note, *self._notes_of_lost_words([group for _, group in cut], what)]

    def _notes_of_lost_words(self, groups: Iterable[TaskGroup], what: str) -> list[str]:
        """Notes on words of phrases, words that name a box, and [MASK] in texts that are cut."""
        phrases = naming = masks = 0
        names_boxes = self._grounds_words and getattr(self._config, "text_visual", "grounded") == "grounded"
        for group in groups:
            for row, parts in zip(group.rows, self._parts(group), strict=True):
                text = self._text(parts, len(row.images))
                whole = self._text(row.parts, len(row.images), whole=True)
                phrases += cut_words(row.phrases, whole, text)
                naming += names_boxes * (naming_words(whole) - naming_words(text))
                masks += self._mask_id in whole.ids and self._mask_id not in text.ids
        place = "where that stood, [SEP] or a region, as by VisualBERT's release"
        place = place if self._reads_cut_phrases else "at the last piece that is left"
        notes = [
            f"{plural(phrases, f'{what} phrase')} whose word is cut: read {place}; in loss and accuracy they count",
            f"{plural(naming, f'{what} word')} that name a box cut: no piece tells the model of the box",
            f"{plural(masks, f'{what} text')} without the [MASK] that is read (layout.cut): another piece is read",
        ]
        return [note for number, note in zip((phrases, naming, masks), notes, strict=True) if number]

    def _lengths_if_cut(self, group: TaskGroup) -> tuple[int, int] | None:
        """Pieces of the group's longest cut row, and how many of them are read; None if no row is cut."""
        if self._task is not None and self._task.lengths is not None:
            most = self._max_pieces - _SPECIAL
            lengths = self._task.lengths(group, self._pieces.coder, self._context_separator)
            return max(((whole, min(left, most)) for whole, left in lengths if min(left, most) < whole), default=None)
        longest = 0
        for row in group.rows:
            # A piece has a character at least.
            if sum(len(part.text) for part in row.parts) + _MOST_SPECIAL > self._max_pieces:
                spans = self._system.text(self._pieces, row.parts, self._output.form, len(row.images))
                longest = max(longest, sum(len(span.ids) for span in spans))
        return (longest, self._max_pieces) if longest > self._max_pieces else None

    def batch(self, groups: Sequence[TaskGroup]) -> TaskBatch:
        """The rows of some groups, collated. Raises ValueError that names the group whose rows do not fit."""
        return self.finished(groups, self.rows(groups))

    def finished(self, groups: Sequence[TaskGroup], rows: SharedRows) -> TaskBatch:
        """The batch of groups whose rows are made, once their photos are read."""
        inputs = self._with_task_token(rows.collate(pad_id=self._pad_id))
        if not self._output.num_images:
            inputs = replace(inputs, text_only=torch.ones(len(rows.texts), dtype=torch.bool))
        sizes = tuple(len(group.rows) for group in groups)
        targets = self._targets(groups, inputs, sizes)
        batch = TaskBatch(inputs, sizes, targets, tuple(group.id for group in groups))
        coming = [image.photo for image in rows.images if isinstance(image, PhotoSide)]
        if self.photos is None or not coming:
            return batch
        images, placed = self.photos.collated(coming)
        if targets is not None and self._task is not None and self._task.measured_in_input:
            seen = self.photos.in_input(groups, coming)
            targets = self._targets(seen, replace(inputs, region_boxes=images.boxes), sizes)
        return replace(batch, targets=targets, images=images, placed_boxes=placed)

    def _targets(self, groups: Sequence[TaskGroup], inputs: VLBatch, sizes: tuple[int, ...]) -> torch.Tensor | None:
        """Targets of a batch; None without labels or a loss."""
        if self._loss is None or any(group.target is None for group in groups):
            return None
        real = real_scores(self._output, inputs, sizes)
        # Of photos, boxes and the right one are both of the photo as it is, or both as the network sees them.
        known = groups if self.photos is None else [replace(group, mirrored=False) for group in groups]
        return self._loss.targets(known, inputs, real.shape[1])

    def rows(self, groups: Sequence[TaskGroup]) -> SharedRows:
        """The rows of the groups before padding. An image is there once for each group that has it."""
        rows = SharedRows()
        for place, group in enumerate(groups):
            self._add(rows, place, group)
        return rows

    def texts(self, groups: Sequence[TaskGroup]) -> VLBatch:
        """The text of each group, which has one row, beside the image of the first, which is not read."""
        rows = SharedRows()
        image = rows.image(0, partial(self._image, [self._input_image(groups[0], 0)]))
        for group in groups:
            text = self.row_text(group)
            rows.row(group.id, rows.text(text.ids, text.segments), image, self._no_words())
        return self._with_task_token(rows.collate(pad_id=self._pad_id))

    def images(self, groups: Sequence[TaskGroup]) -> VLBatch:
        """The image of each group beside the text of the first, which is not read."""
        rows = SharedRows()
        text = self.row_text(groups[0])
        number = rows.text(text.ids, text.segments)
        for place, group in enumerate(groups):
            image = rows.image(place, partial(self._image, [self._input_image(group, 0)]))
            rows.row(group.id, number, image, self._no_words())
        return self._with_task_token(rows.collate(pad_id=self._pad_id))

    def row_text(self, group: TaskGroup) -> RowText:
        """The text of a group's only row, in pieces."""
        (parts,) = self._parts(group)
        return self._text(parts, 1)

    def num_regions(self, group: TaskGroup) -> int:
        """Input regions of a group's first image."""
        return len(self._input_image(group, 0).regions)

    def _no_words(self) -> np.ndarray | None:
        """Alignment of an image without named regions, for a model that reads which words name them."""
        return np.full((1, 1), -1) if self._grounds_by_number else None

    def _with_task_token(self, inputs: VLBatch) -> VLBatch:
        if self._options.task_token < 0:
            return inputs
        return replace(inputs, task_ids=torch.full((len(inputs.text_ids),), self._options.task_token))

    def _add(self, rows: SharedRows, place: int, group: TaskGroup) -> None:
        """Adds the rows of a group; each is one of the batch, or one for each of its images."""
        if self._output.form != CHOICE and len(group.rows) != 1:
            raise ValueError(f"{group.id}: {len(group.rows)} rows; a group of the form {self._output.form} has one")
        images = [self._input_image(group, number) for number in range(len(group.images))]
        if self._task is not None and self._task.input_classes is not None:
            classes = self._task.input_classes.of(group)
            images = [with_input_classes(each, classes) for each in images]
        beside = None if self._task is None else self._task.beside
        generator = None
        if beside is not None and group.draws:
            generator = np.random.default_rng(group.draws)
            images = [auxiliary_targets(each, group, beside, generator) for each in images]
        for row, parts in zip(group.rows, self._parts(group), strict=True):
            if len(row.images) != self._output.num_images:
                raise ValueError(
                    f"{group.id}: a row with {len(row.images)} images; the task has {self._output.num_images}"
                )
            text, ids, labels = self._text(parts, len(row.images)), None, None
            if generator is not None and beside is not None and beside.hidden_words:
                ids, labels = mask_words(
                    text.ids, text.words, generator, mask_id=self._mask_id, vocab_size=self._vocab_size,
                    probability=beside.hidden_words,
                )  # fmt: skip
            number = rows.text(text.ids if ids is None else ids, text.segments)
            if not row.images:
                rows.row(group.id, number, rows.image((place, number), self._no_image), None, labels)
                continue
            for together in [row.images] if self._system.joins_images else [(each,) for each in row.images]:
                chosen = [images[each] for each in together]
                image = rows.image((place, *together), partial(self._image, chosen))
                words = self._aligned(group.id, text, chosen[0]) if self._grounds_words else None
                rows.row(group.id, number, image, words, labels)
                if self._output.form == PHRASE:
                    rows.row_phrases.append(self._phrases(row, text, len(chosen[0].regions)))

    def _parts(self, group: TaskGroup) -> list[Sequence[TaskText | PartPieces]]:
        """Parts of each row; of rows that the task cuts, the context and the choice."""
        if self._task is None or self._task.pieces is None:
            return [row.parts for row in group.rows]
        rows = self._task.pieces(group, self._pieces.coder, self._context_separator)
        return [[joined_pieces(context), choice] for *context, choice in rows]

    @property
    def _context_separator(self) -> int | None:
        """The piece between parts of a context that a task cuts."""
        return None if self._system.joins_context else self._separator

    def _text(self, parts: Sequence[TaskText | PartPieces], num_images: int, *, whole: bool = False) -> RowText:
        """A row's text; with `whole` before it is cut."""
        if num_images:
            spans = self._system.text(self._pieces, parts, self._output.form, num_images)
        else:
            spans = self._system.text_alone(self._pieces, parts)
        return lay_out(spans, sys.maxsize if whole else self._max_pieces, self._options.cut)

    def _phrases(self, row: TaskRow, text: RowText, num_regions: int) -> list[int]:
        """`VLBatch.phrase_positions` of a row. A row that was cut is as long as any row of its batch can be."""
        if not self._reads_cut_phrases or len(text.ids) < self._max_pieces:
            return places_of_phrases(row.phrases, text)
        return places_in_row(row.phrases, self._text(row.parts, 1, whole=True), len(text.ids), num_regions)

    def _input_image(self, group: TaskGroup, number: int) -> ImageInput:
        """The regions of the boxes that the task gives, else those of the record that the options choose."""
        record = self._read(group.images[number])
        image = self._regions.of(group, number, record, from_photos=self.photos is not None)
        if self._blind and self._output.form not in (REGION, PHRASE):
            image = replace(image, regions=np.arange(0), named={}, boxes=image.boxes[:0])
        if group.mirrored and self.photos is None:  # stored features are those of the photo as it is
            image = replace(image, boxes=mirrored_boxes(image.boxes, image.record.width))
        if self._task is None or not self._task.whole_region or self._blind:
            return image
        return with_whole_region(image, self._whole_image(image))

    def _image(self, images: Sequence[ImageInput]) -> ImageWithTargets:
        """The image of a row, or several that are read together."""
        several = len(images) > 1
        boxes = np.concatenate([_boxes_in_first(images[0], each) for each in images])
        nothing = np.zeros(len(boxes), bool)
        classes = [each.classes for each in images if each.classes is not None]
        input_classes = [each.input_classes for each in images if each.input_classes is not None]
        side = ImageWithTargets(
            features=self._features(images),
            boxes=boxes,
            masked=flags_of([each.hidden for each in images], nothing),
            predicted=flags_of([each.predicted for each in images], nothing),
            region_targets=torch.cat(classes) if classes else None,
            region_classes=np.concatenate(input_classes) if input_classes else None,
            whole_image=None if several else self._whole_image(images[0]),
            global_feature=self._global_feature(images[0].record),
            region_images=np.repeat(np.arange(len(images)), [len(each.regions) for each in images])
            if several
            else None,
            height=images[0].record.height,
            width=images[0].record.width,
        )
        if self.photos is None or self._blind:
            return side
        (one,) = images
        return PhotoSide(**vars(side), photo=self.photos.coming(one))

    def _no_image(self) -> ImageWithTargets:
        """Empty image of a row of text alone."""
        nothing, width = np.zeros(0, bool), self._config.region_feature_size
        boxes = np.zeros((0, 4), np.float32)
        return ImageWithTargets(
            features=torch.zeros(0, width), boxes=boxes, masked=nothing, predicted=nothing, height=1, width=1
        )

    def _features(self, images: Sequence[ImageInput]) -> torch.Tensor:
        """(R, D) features of images that are read together; (R, 0) where the encoder makes them of photos."""
        if self.photos is not None:
            count = sum(len(each.regions) for each in images)
            return torch.zeros(count, self._config.region_feature_size if self._blind else 0)
        parts = [as_tensor(each.record.features[each.regions]) for each in images]
        if self._options.box_numbers:
            parts = [
                with_box_numbers(part, each.boxes, each.record.width, each.record.height)
                for part, each in zip(parts, images, strict=True)
            ]
        features = torch.cat(parts) if len(parts) > 1 else parts[0]
        return torch.zeros_like(features) if self._blind else features

    def _aligned(self, name: str, text: RowText, image: ImageInput) -> np.ndarray | None:
        """`PretrainSample.aligned_words` of a row; a word names a box by its number, of those that the task gives, else
        of the record's regions. Raises ValueError for a word that names a box that is not there."""
        named = np.flatnonzero(text.tags >= 0)
        if not len(named) and not self._grounds_by_number:
            return None
        words: list[list[int]] = [[] for _ in image.regions]
        for piece in named:
            region = int(text.tags[piece])
            if region >= image.num_boxes and not image.swapped:
                raise ValueError(
                    f"{name}: a word names box {region}, the image {image.record.image_id!r} has {image.num_boxes}; "
                    f"extract with --boxes of the task"
                )
            if region in image.named:
                words[image.named[region]].append(int(piece))
        most = max([1, *map(len, words)])
        rows = [each + [-1] * (most - len(each)) for each in words]
        return np.array(rows, np.int64).reshape(len(words), most)

    def _whole_image(self, image: ImageInput) -> torch.Tensor | None:
        """(D,), see `LayoutOptions.whole_image`; None where it is made of the input regions."""
        if self.photos is not None:  # the encoder makes it; a blind model that reads it gets zeros
            hidden = self._blind and self.photos.has_whole_image
            return torch.zeros(self._config.region_feature_size) if hidden else None
        if self._options.whole_image == SHOWN or self._blind:
            return None
        if self._options.whole_image == ALL and image.whole is not None:
            return as_float32(image.whole)
        return whole_image_feature(image.record, stored=self._options.whole_image == STORED)

    def _global_feature(self, record: RegionRecord) -> torch.Tensor | None:
        """(G,) for a model that reads one; ValueError where the record has none of that width."""
        width = self._global_width
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


def _no_record(image_id: str) -> RegionRecord:
    raise AssertionError(f"a task of texts alone needs the image {image_id}")


def _boxes_in_first(first: ImageInput, image: ImageInput) -> np.ndarray:
    """(R, 4) boxes of an image, in pixels of the first image of the row: a row has one size."""
    boxes, own, other = image.boxes, image.record, first.record
    if (own.width, own.height) == (other.width, other.height):
        return boxes
    return boxes * np.array([other.width / own.width, other.height / own.height] * 2, np.float32)


def _check_cut(task: DownstreamTask, options: LayoutOptions, positions: int) -> None:
    """Raises ValueError where texts that the task cuts would be cut once more."""
    most = task.max_pieces + _SPECIAL
    if options.max_pieces and (options.max_pieces < most or not task.max_pieces):
        raise ValueError(
            f"layout.max_pieces {options.max_pieces}: {task.name} cuts the texts itself; leave that at 0"
            f"{f', or at {most} and more' if task.max_pieces else ''}"
        )
    if task.max_pieces + _SPECIAL > positions:
        raise ValueError(
            f"{task.name}.max_pieces {task.max_pieces}: with {_SPECIAL} special pieces a row is longer than the "
            f"{positions} pieces that the model takes; set {positions - _SPECIAL} or fewer"
        )
