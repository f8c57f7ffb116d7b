"""VisualBERT's rules for a sample (arXiv:1908.03557, section 3.3; uclanlp/visualbert dataloaders/coco_dataset.py).

    [CLS] caption A [SEP] caption B [SEP] regions        segments 0 and 1, words masked piece by piece, regions never

One caption describes the image; the other does too (match 1), or another image (0).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import plural
from roibeam.model.common.masking import mask_pieces
from roibeam.model.visualbert.model import VisualBertConfig
from roibeam.pipelines.data.batches.sample import PretrainSample, as_tensor, whole_image_feature, with_box_numbers
from roibeam.pipelines.data.captions.corpus import Corpus
from roibeam.pipelines.data.captions.task_texts import GIVE_BOXES, TaskCorpus, TaskCorpusRow
from roibeam.pipelines.data.compatibility import check_width
from roibeam.pipelines.data.record_regions import WHOLE_IMAGE, ImageObjects, strongest_regions
from roibeam.pipelines.pretraining.samples.sampler import Lengths, RowSize, Sampler
from roibeam.pipelines.pretraining.samples.sampling import (
    NAMED,
    TASK_TEXT,
    VisualBertSampling,
    draw_pair,
    draw_second_caption,
)
from roibeam.pipelines.training.model_files.tokenizer import MOST_TEXTS, CaptionTokenizer, evenly


class _Texts(NamedTuple):
    """Pieces of the one or two texts of a row without [CLS] and [SEP]; whether they fit; lines of a task's text."""

    pieces: list[np.ndarray]
    match: int | None
    lines: tuple[int, ...] = ()


class VisualBertSampler(Sampler):
    """A `Sampler`."""

    def __init__(
        self,
        sampling: VisualBertSampling,
        tokenizer: CaptionTokenizer,
        model_config: VisualBertConfig,
        *,
        num_classes: int,
        objects: ImageObjects | None = None,
    ) -> None:
        self._objects = objects
        super().__init__(sampling, tokenizer, model_config, num_classes=num_classes)

    def _fit(self, sampling: VisualBertSampling, model_config: VisualBertConfig) -> None:
        _check_objects(sampling, model_config, self._objects)
        if not model_config.with_match_head and sampling.text_form not in ("words_only", TASK_TEXT):
            raise ValueError(
                f"VisualBERT: the model has no match head, so nothing uses captions of other images "
                f"(text_form {sampling.text_form!r}); set sampling.text_form=words_only"
            )
        self._max_pieces = min(sampling.max_pieces, model_config.max_position_embeddings)

    def check(self, record: RegionRecord) -> None:
        check_width(self._config, record, box_numbers=self._sampling.box_numbers, setting="sampling.box_numbers")

    def sample(self, corpus: Corpus, row: int, random: np.random.Generator) -> PretrainSample:
        records = corpus.records(row) if isinstance(corpus, TaskCorpus) else [corpus.record(row)]
        texts = self._texts(corpus, row, random)
        named = corpus.text(row).visible if isinstance(corpus, TaskCorpus) else None
        kept = [self._select(record, named) for record in records]
        features, boxes = map(list, zip(*map(self._regions, records, kept), strict=True))
        nothing = np.zeros(sum(map(len, boxes)), bool)
        text_ids, text_labels, text_segments = self._masked(texts.pieces, random)
        return PretrainSample(
            sample_id=" and ".join(record.image_id for record in records),
            text_ids=text_ids,
            text_labels=text_labels,
            text_segments=text_segments,
            features=features[0] if len(records) == 1 else torch.cat(features),
            boxes=np.concatenate(boxes),
            region_images=np.repeat(np.arange(len(boxes)), list(map(len, boxes))) if len(records) > 1 else None,
            region_classes=self._classes(records, kept),
            outlines=None if self._objects is None else partial(_outlines, self._objects, records, kept),
            aligned_words=self._aligned(corpus, row, texts, records[0], kept[0]),
            masked=nothing,
            predicted=nothing,
            region_targets=None,
            match=texts.match,
            height=records[0].height,
            width=records[0].width,
        )

    def sizes(self, corpus: Corpus, row: int, lengths: Lengths, random: np.random.Generator) -> list[RowSize]:
        sampling, regions = self._sampling, lengths.regions(row) if self._sampling.with_regions else 0
        if isinstance(corpus, TaskCorpus):
            texts, num_images = self._texts(corpus, row, random).pieces, corpus.num_images(row)
        else:
            caption_rows, _ = self._captions(corpus, row, random)
            texts, num_images = [np.empty(lengths.pieces(each) - 2) for each in caption_rows], 1
        texts = self._cut(texts)
        pieces = min(sum(map(len, texts)) + len(texts) + 1, self._config.max_position_embeddings)
        most_regions = num_images * sampling.max_regions or regions  # of two images each may have less by itself
        return [RowSize(pieces, min(regions, most_regions) + num_images * sampling.whole_region)]

    def _captions(self, corpus: Corpus, row: int, random: np.random.Generator) -> tuple[list[int], int | None]:
        """Rows of the captions, and the match label of the last one."""
        sampling = self._sampling
        if sampling.text_form == "two_captions":
            pair = draw_second_caption(corpus, row, random, mismatched_probability=sampling.mismatched_probability)
            return [row, pair.caption_row], int(pair.matched)
        if sampling.text_form == "one_caption":
            pair = draw_pair(corpus, row, random, mismatched_probability=sampling.mismatched_probability)
            return [pair.caption_row], int(pair.matched)
        return [row], None

    def _texts(self, corpus: Corpus, row: int, random: np.random.Generator) -> _Texts:
        if not isinstance(corpus, TaskCorpus):
            caption_rows, matched = self._captions(corpus, row, random)
            return _Texts([self._pieces(corpus.caption(each)) for each in caption_rows], matched)
        text = corpus.text(row)
        lines = (0, 1 + int(random.integers(len(text.following)))) if text.following else (0,)
        pieces = [self._pieces(text.lines[line]) for line in lines]
        match = None if text.fits is None or not self._config.with_match_head else int(text.fits)
        return _Texts(pieces if corpus.as_pair else [np.concatenate(pieces)], match, lines)

    def _aligned(
        self, corpus: Corpus, row: int, texts: _Texts, record: RegionRecord, kept: np.ndarray
    ) -> np.ndarray | None:
        """See `PretrainSample.aligned_words`, of the kept regions; ValueError for a region that is not in the
        record."""
        if self._sampling.aligned_words == "none" or not isinstance(corpus, TaskCorpus) or not corpus.as_pair:
            return None
        words: list[list[int]] = [[] for _ in kept]
        places = {int(region): place for place, region in enumerate(kept)}
        for region, position in self._naming_pieces(self._cut(self._named_pieces(corpus.text(row), texts))):
            _check_region(record, region)
            if region in places:
                words[places[region]].append(position)
        most = max(map(len, words), default=0)
        return np.array([each + [-1] * (most - len(each)) for each in words], np.int64) if most else None

    def notes_of_cuts(self, corpus: Corpus) -> list[str]:
        """A note if words that name a box are cut, so that no piece is aligned with it: of `MOST_TEXTS` texts at even
        distances, each with the longest continuation."""
        if self._sampling.aligned_words == "none" or not isinstance(corpus, TaskCorpus) or not corpus.as_pair:
            return []
        whole = left = 0
        looked_at = evenly(range(len(corpus)), MOST_TEXTS)
        for row in looked_at:
            text = corpus.text(row)
            pairs: list[tuple[int, ...]] = [(0, line) for line in range(1, len(text.lines))]
            for lines in pairs or [(0,)]:
                texts = _Texts([self._pieces(text.lines[line]) for line in lines], None, lines)
                named = self._named_pieces(text, texts)
                whole += sum(int((each[:, 0] >= 0).sum()) for each in named)
                left += sum(1 for _ in self._naming_pieces(self._cut(named)))
        if left == whole:
            return []
        return [
            f"{plural(whole - left, 'word')} of {whole:,} that name a box cut from {plural(len(looked_at), 'text')} "
            f"(sampling.max_pieces {self._sampling.max_pieces}): none of their pieces is aligned with the box"
        ]

    def _named_pieces(self, text: TaskCorpusRow, texts: _Texts) -> list[np.ndarray]:
        """Result of `_named` for each of the texts."""
        return [self._named(text, *each) for each in zip(texts.lines, texts.pieces, strict=True)]

    def _naming_pieces(self, named: list[np.ndarray]) -> Iterator[tuple[int, int]]:
        """Region and position of each piece of cut texts that is aligned with a region."""
        start = 1
        for each in named:
            for piece in np.flatnonzero(each[:, 0] >= 0):
                region, word = map(int, each[piece])
                position = start + (word if self._sampling.aligned_words == "release" else int(piece))
                if position < self._config.max_position_embeddings - 1:
                    yield region, position
            start += len(each) + 1

    def _named(self, text: TaskCorpusRow, line: int, pieces: np.ndarray) -> np.ndarray:
        """(n, 2) of the pieces of a line: the region that each names, -1 for none, and the number of that word."""
        mentions = [mention for mention in text.mentions if mention.line == line]
        named = np.full((len(pieces), 2), -1)
        firsts = self._tokenizer.first_pieces(text.lines[line], [mention.word for mention in mentions])
        for mention, first in zip(mentions, firsts, strict=True):
            if first:
                named[first - 1] = mention.region, mention.word
        return named

    def _select(self, record: RegionRecord, named: tuple[int, ...] | None) -> np.ndarray:
        """(n,) int64, numbers of the record's regions, and `WHOLE_IMAGE`; `named` are those that the texts of a task
        name."""
        sampling = self._sampling
        if not sampling.with_regions:
            return np.arange(0)
        if sampling.shown_boxes == NAMED and named is not None:
            _check_region(record, max(named, default=-1))
            kept = np.array(named, np.int64)
        else:
            kept = strongest_regions(record, sampling.max_regions)
        return np.concatenate([np.full(int(sampling.whole_region), WHOLE_IMAGE), kept])

    def _regions(self, record: RegionRecord, kept: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        """Features and boxes of the kept regions; the whole image has the store's own feature, or a mean of regions."""
        own = kept[kept != WHOLE_IMAGE]
        features, boxes = as_tensor(record.features[own]), record.boxes[own]
        if len(own) < len(kept):
            if record.image_feature is not None:
                whole = whole_image_feature(record, stored=True)
            else:
                whole = features.float().sum(dim=0).div(max(len(features), 1))
            features = torch.cat([whole.to(features.dtype)[None], features])
            boxes = np.concatenate([np.array([[0, 0, record.width, record.height]], np.float32), boxes])
        if self._sampling.box_numbers:
            features = with_box_numbers(features, boxes, record.width, record.height)
        return features, boxes

    def _classes(self, records: list[RegionRecord], kept: list[np.ndarray]) -> np.ndarray | None:
        """(R,) of all images; None for a model that reads no classes."""
        if self._objects is None or not self._sampling.told_classes:
            return None
        # The whole image is the last one there, and of class 0.
        with_whole = (np.append(self._objects.classes(record), 0) for record in records)
        return np.concatenate([classes[own] for classes, own in zip(with_whole, kept, strict=True)])

    def _pieces(self, text: str) -> np.ndarray:
        """(n,) without [CLS] and [SEP]."""
        return self._tokenizer.encode(text).ids[1:-1]

    def _masked(
        self, texts: list[np.ndarray], random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, labels and segments, each (T,) int64, of cut and masked texts."""
        sampling, tokenizer, texts = self._sampling, self._tokenizer, self._cut(texts)
        parts = [np.array([tokenizer.cls_id])]
        for text in texts:
            parts += [text, np.array([tokenizer.sep_id])]
        ids = np.concatenate(parts)
        segments = np.zeros(len(ids), np.int64)
        segments[len(texts[0]) + 2 :] = 1
        words = np.ones(len(ids), bool)
        words[[0, len(texts[0]) + 1, -1]] = False
        masked_ids, labels = mask_pieces(
            ids,
            words,
            random,
            **self._words,
            probability=sampling.word_probability,
            masked_share=sampling.word_masked_share,
        )
        # The release's cut may leave more than the model has positions for, where the release itself stops.
        kept = min(len(ids), self._config.max_position_embeddings)
        masked_ids[kept - 1], labels[kept - 1] = ids[-1], labels[-1]
        return masked_ids[:kept], labels[:kept], segments[:kept]

    def _cut(self, texts: list[np.ndarray]) -> list[np.ndarray]:
        if len(texts) == 1:
            return [texts[0][: self._max_pieces - 2]]
        if self._sampling.cut == "release_front":
            return cut_from_the_front(*texts, limit=self._sampling.max_pieces)
        return cut_the_longer(*texts, limit=self._max_pieces)


def _check_region(record: RegionRecord, region: int) -> None:
    """Raises ValueError if the record has no such region."""
    if region >= record.num_regions:
        raise ValueError(
            f"record {record.image_id!r}: a word names region {region}, the record has {record.num_regions}; "
            f"{GIVE_BOXES}"
        )


def _outlines(objects: ImageObjects, records: list[RegionRecord], kept: list[np.ndarray], side: int) -> np.ndarray:
    """See `ImageSide.outlines`."""
    return np.concatenate([objects.masks(record, own, side) for record, own in zip(records, kept, strict=True)])


def _check_objects(sampling: VisualBertSampling, config: VisualBertConfig, objects: ImageObjects | None) -> None:
    """Raises ValueError if rules, model and objects do not fit together."""
    if sampling.told_classes and objects is None:
        raise ValueError("sampling.told_classes: the classes of regions are read from --objects; name the file")
    if bool(config.num_region_classes) != sampling.told_classes:
        raise ValueError(
            f"VisualBERT: the model is made for {config.num_region_classes} classes of regions (num_region_classes), "
            f"and sampling.told_classes is {str(sampling.told_classes).lower()}; set both, or none"
        )
    if sampling.told_classes and objects is not None and config.num_region_classes != len(objects.class_names) + 1:
        raise ValueError(
            f"VisualBERT: the model is made for {config.num_region_classes} classes of regions, that of the whole "
            f"image among them, --objects has {len(objects.class_names)}; sampling.object_names sets which there are"
        )


def cut_the_longer(first: np.ndarray, second: np.ndarray, *, limit: int) -> list[np.ndarray]:
    """Both without the last pieces of the longer one (of equals, B) until [CLS] A [SEP] B [SEP] fits `limit`."""
    room = max(limit - 3, 0)
    of_second = min(len(second), max(room - len(first), room // 2))
    return [first[: room - of_second], second[:of_second]]


def cut_from_the_front(first: np.ndarray, second: np.ndarray, *, limit: int) -> list[np.ndarray]:
    """Result of uclanlp/visualbert dataloaders/bert_data_utils.py, perform_truncate; one text if B is gone."""
    surplus = len(first) + len(second) + 3 - limit
    if surplus > 0:
        of_first = min((surplus + 1) // 2, max(len(first) - 32, 0))
        # The release adds here what it should take off.
        first, second = first[of_first:], second[surplus + of_first :]
    return [first, second] if len(second) else [first]


def review_captions(corpus: Corpus, sampling: VisualBertSampling) -> list[str]:
    """Notes on images with a single caption, if samples have two. ValueError if no image has two, so that every pair
    would be mismatched; or if samples of a task's texts and captions are mixed up."""
    if isinstance(corpus, TaskCorpus) != (sampling.text_form == TASK_TEXT):
        given = "texts of a task (--task-text)" if isinstance(corpus, TaskCorpus) else "captions"
        raise ValueError(
            f"VisualBERT: {given} with sampling.text_form={sampling.text_form}; texts of a task and "
            f"text_form={TASK_TEXT} belong together"
        )
    if sampling.text_form != "two_captions":
        return []
    single, total = corpus.count_single_captions(), len(corpus)
    if single == total:
        raise ValueError(
            "VisualBERT: no image has two captions, so no second caption could belong to one; add --set "
            "sampling.text_form=one_caption"
        )
    if not single:
        return []
    return [f"{plural(single, 'caption')} of {total:,} without a second one of the image: B is always another image's"]
