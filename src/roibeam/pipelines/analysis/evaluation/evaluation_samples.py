"""Samples of an evaluation, by rules that are the same for all systems.

So that two models can be compared on the same masks: 15 % of the words and 15 % of the regions of a pair that belongs
together are hidden, each of them predicted; a match is predicted with nothing hidden. Text is one caption
between [CLS] and [SEP]. The rules that a system trains by (random words in place of masks, two captions, cuts to a
length) are not applied.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.common.masking import mask_regions, mask_words
from roibeam.model.imagebert.model import ImageBertConfig
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.visualbert.model import VisualBertConfig
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.pipelines.data.batches.sample import ClassTargets, PretrainSample, as_float32, collate
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.compatibility import check_vocabulary, check_width
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, EncodedCaption

MASK_PROBABILITY = 0.15
_LEARNED = ("text_labels", "region_targets", "region_target_mask", "region_feature_targets", "match_labels")


@dataclass(frozen=True)
class RegionObjective:
    """Prediction target of masked regions.

    Attributes:
        loss: "cross entropy" with the detector's class distribution, "kl" divergence from it, its best "class",
            "regression" of the feature, "contrastive": the feature among others.
        labels: of a head that predicts classes: background is one of them, but for "class", where it may be left out.
            0 for features.
        negatives: other features that the right one stands among, with "contrastive".
    """

    loss: str
    labels: int = 0
    negatives: int = 0


def region_objective(config: Any) -> RegionObjective | None:
    """Prediction target of masked regions for this model configuration; None for none."""
    if isinstance(config, VisualBertConfig):
        return None
    if isinstance(config, VLBertConfig):
        return RegionObjective("cross entropy", config.num_region_labels) if config.with_region_head else None
    if isinstance(config, ImageBertConfig):
        if config.with_region_class_head:
            return RegionObjective("class", config.num_region_labels)
        return RegionObjective("regression") if config.with_region_feature_head else None
    if config.region_loss == "none":
        return None
    if config.region_loss == "kl":
        loss = "class" if getattr(config, "region_labels", "soft") == "hard" else "kl"
        return RegionObjective(loss, config.region_target_size)
    return RegionObjective(config.region_loss, 0, getattr(config, "num_negatives", 0))


@dataclass(frozen=True, eq=False)
class EvaluationRow:
    """A row of a batch: the sample, and (G,) float32, the record's feature of the whole image, where it has one."""

    sample: PretrainSample
    image_feature: Tensor | None


class EvaluationSamples:
    """Makes rows of batches for one model.

    Args:
        num_classes: foreground classes of the store; None when unknown: as many as the model knows.
        with_class_ids: False for a store whose class ids mean nothing: no classes of regions are predicted then.
        background: where the model's classes have it: "first", as in the published stores of bottom-up attention,
            "last" or "none"; None: last, as in stores of roibeam, if it has one.
        max_regions: those with the best scores are kept, in the order of the record; 0 keeps all.
        task: number of the task token, for a model that has such tokens.
        features: changes a batch of images, such as `PhotoFeatures`; None leaves it with the stored features.
        as_read: changes a record to what the model reads, as `ModelCheckpoint.as_read`; None leaves the record.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: CaptionTokenizer,
        *,
        num_classes: int | None,
        with_class_ids: bool = True,
        background: str | None = None,
        max_regions: int = 0,
        task: int | None = None,
        features: Callable[[VLBatch], VLBatch] | None = None,
        as_read: Callable[[RegionRecord], RegionRecord] | None = None,
    ) -> None:
        check_vocabulary(config, tokenizer, "name the tokenizer it was trained with (--tokenizer)")
        self.objective = region_objective(config)
        self.config, self._tokenizer, self._features = config, tokenizer, features
        self._as_read = as_read or (lambda record: record)
        self._num_classes = _classes_of(self.objective, num_classes, background=background)
        self.predicts_regions = self.objective is not None and (with_class_ids or not self.objective.labels)
        self._background, self._max_regions, self._task = background, max_regions, task
        # VL-BERT needs two positions more than pieces; the others can spare them.
        self._longest = config.max_position_embeddings - 2 - getattr(config, "first_position", 0)

    def check(self, record: RegionRecord) -> None:
        """Raises ValueError when records like this one do not fit the model."""
        check_width(self.config, self._as_read(record))
        width = getattr(self.config, "global_feature_size", 0)
        got = 0 if record.image_feature is None else len(record.image_feature)
        if width and got != width:
            raise ValueError(
                f"record {record.image_id!r}: the model reads a feature of the whole image of width {width}, the store "
                f"has {got or 'none'}; extract with --image-feature, from the network that it was trained with"
            )

    def text(self, caption: str) -> EncodedCaption:
        """The caption's pieces, cut to what the model takes; [SEP] stays."""
        encoded = self._tokenizer.encode(caption)
        if len(encoded.ids) <= self._longest:
            return encoded
        kept = self._longest - 1
        return EncodedCaption(np.append(encoded.ids[:kept], encoded.ids[-1]), np.append(encoded.word_ids[:kept], -1))

    def is_cut(self, caption: str) -> bool:
        """Whether `text` leaves pieces out."""
        return len(self._tokenizer.encode(caption).ids) > self._longest

    def cut_words(self, caption: str) -> frozenset[int]:
        """Returns the words, counted between white space, of which `text` leaves a piece out."""
        words = self._tokenizer.pieces_of_words(caption) if self.is_cut(caption) else []
        return frozenset(word for word, pieces in enumerate(words) if pieces and pieces[-1] >= self._longest - 1)

    def pieces_of_words(self, caption: str) -> list[list[int]]:
        """Positions in `text` of the pieces of each word, counted between white space; [] where none is left."""
        last = self._longest - 1
        return [[piece for piece in each if piece < last] for each in self._tokenizer.pieces_of_words(caption)]

    def masked(self, corpus: Corpus, row: int, random: np.random.Generator) -> EvaluationRow:
        """The row's pair, with words and regions to predict, all of them hidden."""
        record, encoded = corpus.record(row), self.text(corpus.caption(row))
        text_ids, labels = mask_words(
            encoded.ids,
            encoded.word_ids,
            random,
            mask_id=self._tokenizer.mask_id,
            vocab_size=self._tokenizer.vocab_size,
            probability=MASK_PROBABILITY,
            masked_share=1.0,
        )
        probability = MASK_PROBABILITY if self.predicts_regions else 0.0
        masked, _ = mask_regions(record.num_regions, random, probability=probability, masked_share=1.0)
        return self.row(record, text_ids, labels, masked, match=1)

    def pair(self, corpus: Corpus, row: int, image_row: int) -> EvaluationRow:
        """The caption of a row with the image of a row, the same or another one; nothing is hidden."""
        return self._unhidden(corpus.record(image_row), self.text(corpus.caption(row)).ids, match=int(row == image_row))

    def seen(self, record: RegionRecord, caption: str) -> EvaluationRow:
        """The caption with its image; nothing is hidden."""
        return self._unhidden(record, self.text(caption).ids, match=1)

    def images(self, records: Sequence[RegionRecord]) -> VLBatch:
        """Rows with whole images, and a text that is not to be read."""
        rows = [self._unhidden(record, np.array([self._tokenizer.cls_id]), match=1) for record in records]
        nothing: dict[str, Any] = dict.fromkeys(_LEARNED)
        return dataclasses.replace(self.batch(rows), draw_seeds=(), **nothing)

    def texts(self, texts: Sequence[np.ndarray]) -> VLBatch:
        """Rows with texts of (T,) pieces, and images that are not to be read."""
        none = _record_of_nothing(self.config.region_feature_size)
        return self._padded([self._unhidden(none, ids, match=1) for ids in texts])

    def batch(self, rows: Sequence[EvaluationRow]) -> VLBatch:
        """Returns a padded batch, with the fields that only some models read, and the features of `features`."""
        padded = self._padded(rows)
        return padded if self._features is None else self._features(padded)

    def _padded(self, rows: Sequence[EvaluationRow]) -> VLBatch:
        features = [row.image_feature for row in rows if row.image_feature is not None]
        return dataclasses.replace(
            collate([row.sample for row in rows], pad_id=self._tokenizer.pad_id),
            task_ids=None if self._task is None else torch.full((len(rows),), self._task),
            global_features=torch.stack(features) if len(features) == len(rows) else None,
        )

    def _unhidden(self, record: RegionRecord, ids: np.ndarray, *, match: int) -> EvaluationRow:
        labels, masked = np.full(len(ids), IGNORE_INDEX, np.int64), np.zeros(record.num_regions, bool)
        return self.row(record, ids, labels, masked, match=match)

    def row(
        self,
        record: RegionRecord,
        ids: np.ndarray,
        labels: np.ndarray,
        masked: np.ndarray,
        *,
        match: int,
        segments: np.ndarray | None = None,
    ) -> EvaluationRow:
        """A text with a record.

        Args:
            ids, labels: (T,) int64; labels are `IGNORE_INDEX` where nothing is predicted.
            masked: (R,) bool, regions that are hidden, and predicted.
            match: 1 where the text belongs to the image, else 0.
            segments: (T,) int64; None: all of the text is segment 0.
        """
        record = self._as_read(record)
        kept = np.arange(record.num_regions)
        if self._max_regions:
            kept = np.sort(np.argsort(-record.class_scores, kind="stable")[: self._max_regions])
        masked = masked[kept]
        features = as_float32(record.features[kept])
        sample = PretrainSample(
            sample_id=record.image_id,
            text_ids=ids,
            text_labels=labels,
            text_segments=np.zeros(len(ids), np.int64) if segments is None else segments,
            features=features,
            boxes=record.boxes[kept],
            masked=masked,
            predicted=masked,
            region_targets=self._targets(record, kept, features, masked),
            contrasted=self.objective is not None and self.objective.loss == "contrastive",
            match=match,
            height=record.height,
            width=record.width,
        )
        return EvaluationRow(sample, None if record.image_feature is None else as_float32(record.image_feature))

    def _targets(
        self, record: RegionRecord, kept: np.ndarray, features: Tensor, masked: np.ndarray
    ) -> ClassTargets | Tensor | None:
        if self.objective is None:
            return None
        if self._num_classes is None:
            return features
        targets = ClassTargets.of(record, kept, masked, self._num_classes)
        if self._background != "first":
            return targets
        return dataclasses.replace(targets, rows=targets.rows.roll(1, dims=1))


def _classes_of(objective: RegionObjective | None, num_classes: int | None, *, background: str | None) -> int | None:
    """Foreground classes of the targets; None where the model predicts none."""
    if objective is None or not objective.labels:
        if background is not None:
            raise ValueError(f"this model predicts no classes of regions; leave --background {background} out")
        return None
    if num_classes is None:
        num_classes = objective.labels - (background != "none")
    with_background = objective.labels == num_classes + 1
    if not with_background and not (objective.loss == "class" and objective.labels == num_classes):
        raise ValueError(
            f"the model has {objective.labels} region labels, this store has {num_classes} classes and background; "
            f"evaluate on a store of the detector that it was trained with"
        )
    if background in ("first", "last") and not with_background:
        raise ValueError(f"this model's classes are without background; leave --background {background} out")
    if background == "none" and with_background:
        raise ValueError(
            f"--background none: the model has {objective.labels} region labels, one more than the store has classes: "
            "one is background; give first or last"
        )
    return num_classes


def _record_of_nothing(width: int) -> RegionRecord:
    return RegionRecord(
        image_id="no image",
        height=1,
        width=1,
        boxes=np.zeros((0, 4), np.float32),
        features=np.zeros((0, width), np.float32),
        class_ids=np.zeros(0, np.uint16),
        class_scores=np.zeros(0, np.float32),
    )
