"""Zero-shot retrieval by match scores: every caption with every image, both ways, in chunks of bounded memory."""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roibeam.messages import plural
from roibeam.model.task_heads import MatchModel
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.evaluation.measures import CaptionMeasure, EvaluationSet
from roibeam.pipelines.common.console.progress import Progress, duration
from roibeam.pipelines.common.statistics.retrieval_ranks import (
    CUTS,
    CaptionedImages,
    Ranks,
    best_possible_ranks,
    median_rank_by_chance,
    recall_by_chance,
    retrieval_ranks,
)
from roibeam.pipelines.finetuning.run.pair_scores import PAIRS, pair_scorer


class AllPairs:
    """The different captions of some images with these images, and their scores.

    Args:
        model: a `PreTrainingModel` with a match head, in evaluation mode.
        images: their numbers in `chosen`, one after the other.
        texts_at_once: pairs in memory at once; more are quicker on an accelerator.
    Attributes:
        captions: places in the rows of `chosen`.
        texts: pieces of each; shorter ones beside each other waste less.
    """

    def __init__(
        self,
        model: Any,
        samples: EvaluationSamples,
        chosen: EvaluationSet,
        images: np.ndarray,
        *,
        texts_at_once: int,
        device: torch.device,
    ) -> None:
        self._scorer, self._samples, self._chosen = pair_scorer(MatchModel(model).eval()), samples, chosen
        self._at_once, self._device = texts_at_once, device
        self.captions = np.flatnonzero(np.isin(chosen.image_of_caption, images))
        rows = chosen.rows[self.captions]
        pieces = [tuple(samples.text(chosen.corpus.caption(int(row))).ids.tolist()) for row in rows]
        # Captions of the same pieces are one text. By length, so that texts in a batch waste little.
        different = sorted(set(pieces), key=lambda ids: (len(ids), ids))
        number = {ids: place for place, ids in enumerate(different)}
        self.texts = [np.array(ids, np.int64) for ids in different]
        of_caption = chosen.image_of_caption[self.captions] - images[0]
        self.captioned = CaptionedImages(
            np.array([number[ids] for ids in pieces]), of_caption, len(different), len(images)
        )
        self._first_rows = rows[np.unique(of_caption, return_index=True)[1]]

    @property
    def count(self) -> int:
        return len(self.texts) * self.captioned.num_images

    @torch.inference_mode()
    def seconds_per_pair(self) -> float:
        """Returns the time per pair, measured on one chunk of texts of middle length."""
        start = len(self.texts) // 2 // self._at_once * self._at_once
        chunk = self.texts[start : start + self._at_once]
        read = self._read(chunk)
        self._scores(read, len(chunk), 0)  # the first call of a kernel takes longer
        begin = time.perf_counter()
        self._scores(read, len(chunk), 0)
        return (time.perf_counter() - begin) / len(chunk)

    @torch.inference_mode()
    def write(self, scores_TI: np.ndarray, progress: Callable[[int], None]) -> None:
        """Fills `scores_TI` (T, I) float32, a file on disk perhaps.

        Args:
            progress: is called with the number of pairs done.
        """
        for start in range(0, len(self.texts), self._at_once):
            chunk = self.texts[start : start + self._at_once]
            read = self._read(chunk)
            block = np.empty((len(chunk), self.captioned.num_images), np.float32)
            for image in range(self.captioned.num_images):
                block[:, image] = self._scores(read, len(chunk), image)
                progress(start * self.captioned.num_images + (image + 1) * len(chunk))
            scores_TI[start : start + len(chunk)] = block

    def _read(self, texts: Sequence[np.ndarray]) -> Any:
        return self._scorer.read_texts(self._samples.texts(texts).to(self._device))

    def _scores(self, read: Any, count: int, number: int) -> np.ndarray:
        """(count,) float32 scores of texts with one image: alone, so that no score depends on a batch."""
        image = self._samples.images([self._chosen.corpus.record(int(self._first_rows[number]))]).to(self._device)
        of_text = torch.arange(count, device=self._device)
        found = self._scorer.score(read, self._scorer.read_images(image), of_text, torch.zeros_like(of_text))
        return found.float().cpu().numpy()


log = logging.getLogger(__name__)
IMAGE_TO_TEXT, TEXT_TO_IMAGE = "image_to_text", "text_to_image"


@dataclass(frozen=True, eq=False)
class Direction:
    """One way of retrieval, over all folds.

    Attributes:
        name: `IMAGE_TO_TEXT` or `TEXT_TO_IMAGE`.
        ranks, best_possible: (queries,) int64.
        image_of_query: (queries,) int64, numbers of `EvaluationSet`.
        recall_by_chance: of each of `CUTS`.
        median_by_chance: mean over folds.
    """

    name: str
    ranks: np.ndarray
    best_possible: np.ndarray
    image_of_query: np.ndarray
    recall_by_chance: tuple[float, ...]
    median_by_chance: float

    def measures(self, num_images: int) -> list[CaptionMeasure]:
        """R@1, R@5 and R@10."""
        queries = np.bincount(self.image_of_query, minlength=num_images).astype(np.float64)
        found = []
        for cut, chance in zip(CUTS, self.recall_by_chance, strict=True):
            hits = np.bincount(self.image_of_query, self.ranks <= cut, minlength=num_images)
            best = float(np.mean(self.best_possible <= cut))
            found.append(CaptionMeasure(f"{self.name}_r{cut}", hits, queries, chance, best))
        return found


def retrieve(
    model: Any,
    samples: EvaluationSamples,
    chosen: EvaluationSet,
    *,
    folds: int,
    batch_size: int,
    device: torch.device,
    scratch: Path,
) -> tuple[Direction, Direction]:
    """Retrieves image to text, and text to image. Logs the cost first, then the progress.

    Args:
        model: a `PreTrainingModel` with a match head, in evaluation mode, on `device`.
        folds: the images, in order, are cut into so many parts, each searched by itself ("COCO 1K" is 5 of 1,000).
        batch_size: pairs at once.
        scratch: folder with room for 4 bytes a pair of one fold.
    Raises:
        ValueError: where a score is not a finite number, or a fold would have less than two images.
    """
    if len(chosen.image_ids) < 2 * folds:
        raise ValueError(
            f"retrieval needs two images or more in each of {plural(folds, 'fold')}, there are "
            f"{plural(len(chosen.image_ids), 'image')}"
        )
    parts = [
        AllPairs(model, samples, chosen, images, texts_at_once=batch_size, device=device)
        for images in np.array_split(np.arange(len(chosen.image_ids)), folds)
    ]
    total = sum(part.count for part in parts)
    seconds = total * parts[0].seconds_per_pair()
    log.info(
        "retrieval: %s (%s with %s), about %s", plural(total, "pair"), plural(len(chosen.image_ids), "image"),
        plural(sum(len(part.texts) for part in parts), "different text"), duration(seconds),
    )  # fmt: skip
    ranks, done = [], 0
    with Progress("retrieval", total, PAIRS) as progress:
        for part in parts:
            shape = (len(part.texts), part.captioned.num_images)
            with tempfile.TemporaryFile(dir=scratch) as file:
                # A full disk is an error here; later, in a file with holes, it would end the process.
                os.posix_fallocate(file.fileno(), 0, 4 * part.count)
                scores = np.memmap(file, np.float32, "r+", shape=shape)
                part.write(scores, lambda count, before=done: progress.to(before + count))  # type: ignore[misc]
                ranks.append(retrieval_ranks(scores, part.captioned))
                del scores
            done += part.count
    of_captions = np.concatenate([chosen.image_of_caption[part.captions] for part in parts])
    by_image = [(np.bincount(part.captioned.image_of_caption), len(part.captions)) for part in parts]
    by_caption = [(np.ones(len(part.captions), np.int64), part.captioned.num_images) for part in parts]
    best = [best_possible_ranks(part.captioned) for part in parts]
    return (
        _direction(IMAGE_TO_TEXT, ranks, best, np.arange(len(chosen.image_ids)), by_image),
        _direction(TEXT_TO_IMAGE, ranks, best, of_captions, by_caption),
    )


@torch.inference_mode()
def has_match_head(model: Any, samples: EvaluationSamples, chosen: EvaluationSet, device: torch.device) -> bool:
    """Whether a model predicts which pairs match; arguments as of `retrieve`."""
    row = int(chosen.rows[0])
    batch = samples.batch([samples.pair(chosen.corpus, row, row)]).to(device)
    return model.match_log_odds(model.encode(batch)) is not None


def _direction(
    name: str,
    ranks: list[Ranks],
    best_possible: list[Ranks],
    image_of_query: np.ndarray,
    queries: list[tuple[np.ndarray, int]],
) -> Direction:
    """
    Args:
        queries: of each fold: right candidates of each query, and how many candidates there are.
    """
    sizes = [len(num_true) for num_true, _ in queries]
    return Direction(
        name,
        np.concatenate([getattr(each, name) for each in ranks]),
        np.concatenate([getattr(each, name) for each in best_possible]),
        image_of_query,
        tuple(float(np.average([recall_by_chance(*each, cut) for each in queries], weights=sizes)) for cut in CUTS),
        float(np.average([median_rank_by_chance(*each) for each in queries], weights=sizes)),
    )
