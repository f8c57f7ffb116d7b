"""Scores of all pairs of texts and images, part by part on disk, so that a call can go on and processes share the work.

    OUT.parts-<digest>/part-00003.npy   (texts, images of the fold) float32, of 256 texts; there whole or not at all
    OUT                                 all of them, a row a caption in the split's order; then the parts go

Work on one side alone is done once for that side: most of the text of a two-stream model (arXiv:1908.02265, section
3.2). Others read both sides in one row; their rows share texts and images (`VLBatch.row_texts`, `row_images`). Texts
that a model reads alike are scored once, so that they tie to the last bit. Parts have texts of like lengths, and images
by their number of regions: little padding. Shapes: C texts, I images, N pairs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roibeam.features.exchange.export_output import atomic_path
from roibeam.features.folders.durable_files import naming_file
from roibeam.messages import plural
from roibeam.model.inputs import VLBatch
from roibeam.model.task_heads import MatchModel
from roibeam.model.vilbert.encoder import Stream
from roibeam.model.vilbert.model import ViLbertForPreTraining, ViLbertWithScores
from roibeam.pipelines.common.console.progress import Progress, Unit, duration
from roibeam.pipelines.data.batches.sample import in_float32
from roibeam.pipelines.finetuning.metrics.retrieval import FoldPairs
from roibeam.pipelines.finetuning.rows import TaskGroup
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.result_parts import ResultParts

_OF_TEXTS = ("text_ids", "text_mask", "text_segments", "task_ids")


class JointPairs:
    """Scorer of texts and images that were read once, for models that read both sides in one row, and any other.

    Args:
        network: called with a batch it gives (N, 1) scores.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def read_texts(self, texts: VLBatch) -> Any:
        """Reads the C texts of a batch; its images are not read."""
        return texts

    def read_images(self, images: VLBatch) -> Any:
        """Reads the I images of a batch; its texts are not read."""
        return in_float32(images)

    def score(self, texts: Any, images: Any, of_text: Tensor, of_image: Tensor) -> Tensor:
        """(N,) scores.

        Args:
            of_text, of_image: (N,) long, numbers of text and image of each pair.
        """
        return self._network(shared_batch(texts, images, of_text, of_image)).squeeze(-1)


class TwoStreamPairs(JointPairs):
    """Scorer for ViLBERT: runs each side up to the first co-attention once, and of the last layers only pooled vectors.

    Args:
        model: in whose `vilbert` the streams are; head: (batch, output) -> (N, 1) scores of pooled vectors.
    """

    def __init__(self, model: ViLbertForPreTraining, head: Any) -> None:
        self._model, self._head = model.vilbert, head

    def read_texts(self, texts: VLBatch) -> Stream:
        return self._model.read_text(texts)

    def read_images(self, images: VLBatch) -> Stream:
        return self._model.read_images(in_float32(images))

    def score(self, texts: Stream, images: Stream, of_text: Tensor, of_image: Tensor) -> Tensor:
        output = self._model.fuse_firsts(texts.take(of_text), images.take(of_image))
        return self._head(output).squeeze(-1)


def pair_scorer(network: Any) -> JointPairs:
    """The quickest scorer of a network.

    Args:
        network: `TaskModel` of a choice, or a model with the head of its release; in evaluation mode.
    """
    model = getattr(network, "model", network)
    if not isinstance(model, ViLbertForPreTraining):
        return JointPairs(network)
    if isinstance(network, MatchModel):
        return TwoStreamPairs(model, network.scores)
    if isinstance(network, ViLbertWithScores):
        return TwoStreamPairs(network, lambda output: network.score_pairs(output)[:, None])
    return TwoStreamPairs(model, lambda output: network.head(_NO_BATCH, output))


_NO_BATCH: Any = None  # heads on pooled vectors read none


def shared_batch(texts: VLBatch, images: VLBatch, of_text: Tensor, of_image: Tensor) -> VLBatch:
    """Rows with the texts of one batch and the images of another."""
    of_texts: dict[str, Any] = {name: getattr(texts, name) for name in _OF_TEXTS}
    words = None if images.aligned_words is None else images.aligned_words[of_image]  # that name nothing
    return replace(images, **of_texts, aligned_words=words, sample_ids=(), row_texts=of_text, row_images=of_image)


def score_block(
    scorer: JointPairs, texts: Any, images: Any, num: tuple[int, int], at_once: int, device: torch.device
) -> Tensor:
    """(C, I) scores of all pairs, on the CPU.

    Args:
        num: C and I.
        at_once: pairs in one call.
    """
    found = []
    for rows, columns in _tiles(*num, at_once):
        of_text = torch.arange(rows.start, rows.stop, device=device).repeat_interleave(len(columns))
        of_image = torch.arange(columns.start, columns.stop, device=device).repeat(len(rows))
        found.append((rows, columns, scorer.score(texts, images, of_text, of_image)))
    scores = torch.empty(num, dtype=found[0][2].dtype)
    for rows, columns, part in found:  # an accelerator is waited for once
        scores[rows.start : rows.stop, columns.start : columns.stop] = part.view(len(rows), len(columns)).cpu()
    return scores


def _tiles(captions: int, pictures: int, at_once: int) -> Iterator[tuple[range, range]]:
    """Rectangles of at most `at_once` pairs, as square as they can be: neighbours are of like length."""
    high = max(1, min(captions, int(at_once**0.5)))
    wide = max(1, at_once // high)
    for top in range(0, captions, high):
        for left in range(0, pictures, wide):
            yield range(top, min(top + high, captions)), range(left, min(left + wide, pictures))


PAIRS = Unit("pair", "pairs")
PART_TEXTS = 256
_IMAGES_AT_ONCE = 64
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Part:
    """Texts of a fold that are scored together.

    Attributes:
        rows: for each text the rows of the scores that it fills: captions that are read alike.
    """

    fold: int
    texts: Sequence[TaskGroup]
    rows: Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class PairPlan:
    """
    Attributes:
        images: of each fold a group for each image, by the number of regions.
        columns: of each fold the column of each of these.
    """

    parts: Sequence[Part]
    images: Sequence[Sequence[TaskGroup]]
    columns: Sequence[np.ndarray]

    @property
    def num_pairs(self) -> int:
        return sum(self.pairs_of(part) for part in self.parts)

    def pairs_of(self, part: Part) -> int:
        return len(part.texts) * len(self.images[part.fold])


def plan_pairs(
    batches: GroupBatches, captions: Sequence[TaskGroup], images: Sequence[TaskGroup], folds: Sequence[FoldPairs]
) -> PairPlan:
    """Plans the parts of all pairs.

    Args:
        captions, images: a group for each, in the order of the split.
    """
    parts: list[Part] = []
    of_fold, columns = [], []
    for number, fold in enumerate(folds):
        rows_of: dict[tuple[int, ...], list[int]] = {}
        for row in fold.captions:
            rows_of.setdefault(tuple(batches.row_text(captions[row]).ids.tolist()), []).append(int(row))
        texts = sorted(rows_of.items(), key=lambda item: (len(item[0]), item[1][0]))
        for start in range(0, len(texts), PART_TEXTS):
            rows = [each for _, each in texts[start : start + PART_TEXTS]]
            parts.append(Part(number, [captions[each[0]] for each in rows], rows))
        regions = np.array([batches.num_regions(images[image]) for image in fold.images])
        order = np.argsort(regions, kind="stable")
        of_fold.append([images[fold.images[place]] for place in order])
        columns.append(order)
    return PairPlan(parts, of_fold, columns)


class PairParts:
    """Scores the pairs of a plan.

    Args:
        at_once: pairs in one call of the model.
    """

    def __init__(
        self,
        scorer: JointPairs,
        batches: GroupBatches,
        plan: PairPlan,
        *,
        at_once: int,
        device: torch.device,
        out: Path,
        digest: str,
    ) -> None:
        self._scorer, self._batches, self._plan = scorer, batches, plan
        self._at_once, self._device, self._out = at_once, device, out
        self._parts = ResultParts(out, digest, len(plan.parts), has_array=True)

    @torch.inference_mode()
    def seconds_per_pair(self) -> float:
        """Seconds of a pair, measured on texts and images of middle length and size."""
        part = self._plan.parts[len(self._plan.parts) // 2]
        side = max(1, int(self._at_once**0.5))
        texts, pictures = part.texts[:side], self._plan.images[part.fold]
        middle = max(0, len(pictures) // 2 - side)
        chosen = pictures[middle : middle + max(1, self._at_once // len(texts))]
        read_texts, images = self._read_texts(texts), self._batches.images(chosen)
        size = (len(texts), len(chosen))
        for _ in range(2):  # the first call of a kernel takes longer
            begin = time.perf_counter()
            read_images = self._scorer.read_images(images.to(self._device))
            score_block(self._scorer, read_texts, read_images, size, self._at_once, self._device)
        return (time.perf_counter() - begin) / (size[0] * size[1])

    def write(self) -> int:
        """Writes the missing parts of this process; returns their number. The cost is logged first."""
        with self._parts.missing() as left:
            if left:
                self._write(left)
        return len(left)

    def _write(self, left: Sequence[int]) -> None:
        total = sum(self._plan.pairs_of(self._plan.parts[number]) for number in left)
        logger.info(
            "retrieval: %s in %s, about %s", plural(total, "pair"), plural(len(left), "part"),
            duration(total * self.seconds_per_pair()),
        )  # fmt: skip
        done = 0
        with Progress("retrieval", total, PAIRS) as progress:
            for number in left:
                part = self._plan.parts[number]
                scores = self.block(part, lambda pairs, before=done: progress.to(before + pairs))  # type: ignore[misc]
                done += self._plan.pairs_of(part)
                self._parts.write(number, scores.astype(np.float32))

    @torch.inference_mode()
    def block(self, part: Part, progress: Callable[[int], None] = lambda _pairs: None) -> np.ndarray:
        """Scores (texts, images of the fold) in the type of the model, in the order of the fold's images. Raises
        ValueError where a score is not a finite number."""
        texts, count = self._read_texts(part.texts), len(part.texts)
        found = []
        start = 0
        for batch, images in self._ahead(self._plan.images[part.fold]):
            size = (count, images)
            read = self._scorer.read_images(batch.to(self._device))
            block = score_block(self._scorer, texts, read, size, self._at_once, self._device)
            found.append(block.numpy() if block.itemsize > 2 else block.float().numpy())
            start += images
            progress(start * count)
        scores = np.empty((count, start), found[0].dtype)
        scores[:, self._plan.columns[part.fold]] = np.concatenate(found, axis=1)
        if not np.isfinite(scores).all():
            raise ValueError("the model gave a score that is not a finite number; are its weights damaged?")
        return scores

    def _read_texts(self, texts: Sequence[TaskGroup]) -> object:
        return self._scorer.read_texts(self._batches.texts(texts).to(self._device))

    def _ahead(self, images: Sequence[TaskGroup]) -> Iterator[tuple[VLBatch, int]]:
        """Batches of images; a thread reads the next one while one is scored."""
        chunks = [images[start : start + _IMAGES_AT_ONCE] for start in range(0, len(images), _IMAGES_AT_ONCE)]
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(self._batches.images, chunks[0])
            for place, chunk in enumerate(chunks):
                batch = coming.result()
                if place + 1 < len(chunks):
                    coming = reader.submit(self._batches.images, chunks[place + 1])
                yield batch, len(chunk)

    def join(self, num_captions: int) -> None:
        """Waits for the parts of all processes, and writes OUT from them, a part in memory at a time."""
        self._parts.wait()
        shape = (num_captions, max(len(columns) for columns in self._plan.columns))
        with atomic_path(self._out, replaces=True) as aside:
            scores = np.lib.format.open_memmap(aside, "w+", np.float32, shape)
            with naming_file(self._out), aside.open("r+b") as file:
                # A full disk is an error here; later, in a file with holes, it would end the process.
                os.posix_fallocate(file.fileno(), 0, aside.stat().st_size)
            for part, array in zip(self._plan.parts, self._parts.arrays, strict=True):
                found = np.load(array, allow_pickle=False)
                for rows, row_scores in zip(part.rows, found, strict=True):
                    scores[rows, : len(row_scores)] = row_scores
                    scores[rows, len(row_scores) :] = np.nan
            scores.flush()
            del scores
