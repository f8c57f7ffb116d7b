"""Retrieval: R@1, R@5, R@10, median and mean rank of both directions, and the file of all pairs' scores.

    FILE            .npy, (captions, images) float32; larger is better
    FILE.ids.json   {"captions": ["36979#0", ...], "images": ["36979", ...], "folds": 1}

Ranks are those of `retrieval_ranks`, from 1, ties against us. A score that is not a number is refused: fartashf/vsepp
ranks it first, jiasenlu/vilbert_beta last. A caption is called by its image and its number there, from 0. With folds,
images are cut into so many parts of their order, as equal as can be; a row has the images of its caption's own part,
the first ones of the columns, and NaN behind them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.features.folders.durable_files import write_bytes_atomically
from roibeam.messages import printable
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.common.statistics.retrieval_ranks import (
    CUTS,
    CaptionedImages,
    Ranks,
    recall_by_chance,
    retrieval_ranks,
)
from roibeam.pipelines.common.statistics.verdict import floor_median
from roibeam.pipelines.finetuning.metrics.measure import Measure, check_row_ids

IMAGE, TEXT = "image", "sentence"  # what is found: as the papers name their columns


@dataclass(frozen=True)
class RankFigures:
    """Figures of one direction.

    Attributes:
        r1, r5, r10: percent of queries whose right candidate is among the first 1, 5 and 10.
        median_rank: from 1, rounded down between two ranks, as the published codes do.
        mean_rank: from 1.
    """

    r1: float
    r5: float
    r10: float
    median_rank: float
    mean_rank: float


def rank_figures(ranks: np.ndarray) -> RankFigures:
    """
    Args:
        ranks: (queries,) int, from 1.
    """
    r1, r5, r10 = (100.0 * int(np.count_nonzero(ranks <= cut)) / len(ranks) for cut in CUTS)
    return RankFigures(r1, r5, r10, float(floor_median(ranks)), float(np.mean(ranks)))


def mean_figures(folds: Sequence[RankFigures]) -> RankFigures:
    """Plain mean over folds of every number, the median rank too (vsepp, "COCO 1k")."""
    return RankFigures(*(sum(getattr(fold, each.name) for fold in folds) / len(folds) for each in fields(RankFigures)))


def rsum(image_to_text: RankFigures, text_to_image: RankFigures) -> float:
    """The sum of the six recalls, in percent; 600 is all."""
    return sum(each.r1 + each.r5 + each.r10 for each in (image_to_text, text_to_image))


def recall_measures(
    ranks_of: Mapping[str, tuple[np.ndarray, Sequence[str]]], folds: Sequence[CaptionedImages]
) -> dict[str, Measure]:
    """R@K of each direction as means over queries, 0..1.

    Args:
        ranks_of: by `IMAGE` or `TEXT`, ranks from 1 and the image that each query is about.
        folds: searched each by itself; chance is the mean over them.
    """
    found = {}
    for what, (ranks, images) in ranks_of.items():
        for cut in CUTS:
            name = f"{what} R@{cut}"
            hits = (np.asarray(ranks) <= cut).astype(float).tolist()
            found[name] = Measure(name, hits, images, guess=partial(_chance, what, cut, folds))
    return found


def _chance(what: str, cut: int, folds: Sequence[CaptionedImages]) -> float:
    """R@K of candidates in random order."""
    recalls = []
    for fold in folds:
        captions = len(fold.image_of_caption)
        if what == IMAGE:
            recalls.append(recall_by_chance(np.ones(captions, np.int64), fold.num_images, cut))
        else:
            recalls.append(recall_by_chance(np.bincount(fold.image_of_caption), captions, cut))
    return sum(recalls) / len(recalls)


SUFFIX = ".ids.json"


@dataclass(frozen=True, eq=False)
class PairScores:
    """
    Attributes:
        scores: (captions, images of the widest fold) float32, on disk.
    """

    scores: np.ndarray
    captions: Sequence[str]
    images: Sequence[str]
    folds: int


@dataclass(frozen=True, eq=False)
class FoldPairs:
    """One fold.

    Attributes:
        captions: (T,) rows of the scores; images: (I,) numbers of the images, in their order.
        image_of_caption: (T,) number within the fold.
    """

    captions: np.ndarray
    images: np.ndarray
    image_of_caption: np.ndarray

    @property
    def captioned(self) -> CaptionedImages:
        count = len(self.captions)
        return CaptionedImages(np.arange(count), self.image_of_caption, count, len(self.images))


def ids_path(path: Path) -> Path:
    return path.with_name(f"{path.name}{SUFFIX}")


def image_of(caption: str) -> str:
    """The image that a caption's id names."""
    return caption.rpartition("#")[0]


def folds_of(captions: Sequence[str], images: Sequence[str], folds: int) -> list[FoldPairs]:
    """The folds of a split, each with the captions of its images in their order. Raises ValueError for a caption of no
    image, and folds of less than two images."""
    if folds < 1 or len(images) < 2 * folds:
        raise ValueError(f"{folds} folds of {len(images)} images: each needs two images or more")
    number = {image: place for place, image in enumerate(images)}
    unknown = [caption for caption in captions if image_of(caption) not in number]
    if unknown:
        raise ValueError(f"the caption {printable(unknown[0], 80)} is of no image that is searched")
    of_caption = np.array([number[image_of(caption)] for caption in captions])
    found = []
    for part in np.array_split(np.arange(len(images)), folds):
        rows = np.flatnonzero((of_caption >= part[0]) & (of_caption <= part[-1]))
        if len(np.unique(of_caption[rows])) < len(part):
            raise ValueError("an image without a caption; it cannot be searched for")
        found.append(FoldPairs(rows, part, of_caption[rows] - part[0]))
    return found


def write_ids(path: Path, captions: Sequence[str], images: Sequence[str], folds: int) -> None:
    """Writes the ids beside the scores, whole or not at all."""
    content = {"captions": list(captions), "images": list(images), "folds": folds}
    write_bytes_atomically(ids_path(path), json.dumps(content).encode("utf-8"))


def read_pair_scores(path: Path) -> PairScores:
    beside = ids_path(path)
    ids = read_json_object(beside, hint="it names the rows and columns of the scores")
    captions, images, folds = ids.get("captions"), ids.get("images"), ids.get("folds", 1)
    lists = (captions, images)
    if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in lists):
        raise ValueError(f"{beside}: expected captions and images, each a list of ids")
    if not isinstance(folds, int) or isinstance(folds, bool):
        raise ValueError(f"{beside}: folds must be a whole number")
    try:
        scores = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, OverflowError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path}: no array of numpy: {' '.join(str(error).split())}") from None
    assert isinstance(captions, list) and isinstance(images, list)
    try:
        widest = max(len(fold.images) for fold in folds_of(captions, images, folds))
    except ValueError as error:
        raise ValueError(f"{beside}: {error}") from None
    if scores.ndim != 2 or scores.shape != (len(captions), widest) or scores.dtype.kind != "f":
        raise ValueError(
            f"{path}: an array {scores.shape} of {scores.dtype}, expected numbers of {len(captions)} captions with "
            f"{widest} images"
        )
    return PairScores(scores, captions, images, folds)


def checked_scores(path: Path, captions: Sequence[str], images: Sequence[str], *, subset: bool) -> PairScores:
    """The scores of a split, or of some of its images with all of their captions.

    Args:
        subset: whether some images will do.
    """
    found = read_pair_scores(path)
    if subset:
        kept = set(found.images)
        captions = [each for each in captions if image_of(each) in kept]
        images = [each for each in images if each in kept]
    check_row_ids(repr(str(path)), found.images, images, unit="image")
    check_row_ids(repr(str(path)), found.captions, captions, unit="caption")
    return found


def fold_ranks(
    found: PairScores, folds: int | None = None, *, ties_count: bool = True
) -> list[tuple[FoldPairs, Ranks]]:
    """Ranks of each fold.

    Args:
        folds: other ones than those that were scored, of scores of all pairs; None for those.
    Raises:
        ValueError: for scores that are not finite, and for other folds of scores that have only some pairs.
    """
    if folds not in (None, found.folds) and found.folds != 1:
        raise ValueError(f"these scores are of {found.folds} folds; other folds need the scores of all pairs")
    ranks = []
    for fold in folds_of(found.captions, found.images, folds or found.folds):
        columns = fold.images if found.folds == 1 else np.arange(len(fold.images))
        whole = len(fold.captions) == len(found.captions)
        scores = found.scores if whole else found.scores[fold.captions][:, columns]
        ranks.append((fold, retrieval_ranks(scores, fold.captioned, ties_count=ties_count)))
    return ranks


def retrieval_measures(found: PairScores, folds: int | None = None) -> dict[str, Measure]:
    """R@K of both directions; of several folds the plain mean, for any number of queries in each."""
    ranks = fold_ranks(found, folds)
    images = [found.images[number] for fold, _ in ranks for number in fold.images]
    of_captions = [image_of(found.captions[row]) for fold, _ in ranks for row in fold.captions]
    measures = recall_measures(
        {
            IMAGE: (np.concatenate([each.text_to_image for _, each in ranks]), of_captions),
            TEXT: (np.concatenate([each.image_to_text for _, each in ranks]), images),
        },
        [fold.captioned for fold, _ in ranks],
    )
    if len(ranks) == 1:
        return measures
    counts = {
        IMAGE: np.array([len(each.text_to_image) for _, each in ranks]),
        TEXT: np.array([len(each.image_to_text) for _, each in ranks]),
    }
    weighted = {}
    for name, measure in measures.items():
        sizes = counts[name.partition(" ")[0]]
        weights = np.repeat(sizes.sum() / (len(sizes) * sizes), sizes)
        weighted[name] = replace(measure, values=(np.array(measure.values) * weights).tolist())
    return weighted


def retrieval_numbers(found: PairScores, folds: int | None = None) -> dict[str, float]:
    """Numbers that are not hit rates: median and mean ranks, and the sum of recalls, also with ties in favour."""
    figures = _figures(fold_ranks(found, folds))
    total = rsum(figures[TEXT], figures[IMAGE])
    best = _figures(fold_ranks(found, folds, ties_count=False))
    numbers: dict[str, float] = {}
    for what, each in figures.items():
        numbers |= {f"{what} {name.replace('_', ' ')}": asdict(each)[name] for name in ("median_rank", "mean_rank")}
    return {**numbers, "rsum": total, "rsum, ties in favour": rsum(best[TEXT], best[IMAGE])}


def _figures(ranks: Sequence[tuple[FoldPairs, Ranks]]) -> Mapping[str, RankFigures]:
    return {
        IMAGE: mean_figures([rank_figures(each.text_to_image) for _, each in ranks]),
        TEXT: mean_figures([rank_figures(each.image_to_text) for _, each in ranks]),
    }


def best_images(found: PairScores, fold: FoldPairs, row: int, count: int) -> list[tuple[int, float]]:
    """The numbers of the images that score best with the caption of a row, and their scores; the right one behind all
    that are as good."""
    columns = fold.images if found.folds == 1 else np.arange(len(fold.images))
    scores: Any = np.asarray(found.scores[fold.captions[row]])[columns]
    is_right = np.arange(len(columns)) == fold.image_of_caption[row]
    order = np.lexsort((is_right, -scores))[:count]
    return [(int(fold.images[place]), float(scores[place])) for place in order]
