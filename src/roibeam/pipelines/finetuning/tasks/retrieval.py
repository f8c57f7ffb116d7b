"""Retrieval as a task: a caption, its image and wrong pairs beside; all pairs of a split are scored.

Wrong pairs are mixed as each source mixes them, drawn anew in every epoch; "|" parts mixes of which each group draws
one:

    caption         the same image with a caption of another one
    image           another image with the same caption
    hard_caption    the same image with a caption of a similar image
    hard_image      a similar image with the same caption

Similar images are the nearest by the mean of their region features, exactly, in Euclidean distance (ViLBERT;
e-bug/volta scripts/generate_pool.py). Unlike there, an image with the same mean to the last bit is never a neighbour.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from roibeam.messages import plural
from roibeam.pipelines.common.compute import is_main_process
from roibeam.pipelines.common.console.progress import IMAGES, Progress
from roibeam.pipelines.data.captions.corpus import RecordStore, reader
from roibeam.pipelines.data.compatibility import check_choices, check_least
from roibeam.pipelines.data.datasets.karpathy import RETRIEVAL_SPLITS, CaptionedPicture, read_captioned
from roibeam.pipelines.finetuning.metrics.measure import Measure
from roibeam.pipelines.finetuning.rows import CHOICE, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.task import SPLITS as OF_SPLITS
from roibeam.pipelines.finetuning.task import DownstreamTask, Prediction, TaskSplit
from roibeam.pipelines.training.run_folder.files import check_run_file, write_run_file

CAPTION, IMAGE, HARD_CAPTION, HARD_IMAGE = "caption", "image", "hard_caption", "hard_image"
KINDS = (CAPTION, IMAGE, HARD_CAPTION, HARD_IMAGE)
EITHER = "|"
# Per image the numbers of those that look like it, the nearest first.
Neighbours = Sequence[Sequence[int]]


class RandomDraws:
    """Draws of a generator, all equally likely; a subclass may have those of a published code."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def mix(self, count: int) -> int:
        """One of `count` mixes."""
        return int(self._generator.integers(count))

    def other(self, own: int, count: int) -> int:
        """One of `count` images, not this one."""
        other = int(self._generator.integers(count - 1))
        return other + int(other >= own)

    def hard(self, own: int, neighbours: Sequence[int]) -> int:
        """One of the images that look like this one."""
        return int(neighbours[int(self._generator.integers(len(neighbours)))])

    def caption(self, image: int, count: int) -> int:
        return int(self._generator.integers(count))


def mixes_of(words: Sequence[str]) -> list[list[str]]:
    """The mixes that a setting names, one or several. Raises ValueError for an unknown kind, or an empty mix."""
    mixes: list[list[str]] = [[]]
    for word in words:
        if word == EITHER:
            mixes.append([])
        elif word in KINDS:
            mixes[-1].append(word)
        else:
            raise ValueError(f"distractors: no kind {word!r}; there are {', '.join(KINDS)}, and {EITHER} between mixes")
    if not all(mixes):
        raise ValueError("distractors: a mix without a wrong pair; name one or more kinds")
    return mixes


class Distractors:
    """Draws the wrong pairs of groups from captions and images of their split.

    Args:
        groups: of the split, joined with the store; each has its true pair alone, `facts["captions"]` are all captions
            of its image.
        mixes: see `mixes_of`.
        neighbours: by number of an image, in the order in which groups name them first; empty where no mix needs them.
        draws_caption: whether a group is of an image, with one of its captions drawn.
    Raises:
        ValueError: for fewer than two images.
    """

    def __init__(
        self,
        groups: Sequence[TaskGroup],
        mixes: Sequence[Sequence[str]],
        neighbours: Neighbours,
        *,
        draws_caption: bool = False,
    ) -> None:
        captions = {group.images[0]: tuple(group.facts["captions"]) for group in groups}
        if len(captions) < 2:
            raise ValueError(f"retrieval: {plural(len(captions), 'image')}; wrong pairs need two or more")
        self._images, self._captions = list(captions), list(captions.values())
        self._number = {image: place for place, image in enumerate(self._images)}
        self._mixes, self._neighbours, self._draws_caption = mixes, neighbours, draws_caption

    def draw(self, group: TaskGroup, generator: np.random.Generator) -> TaskGroup:
        """The group with its wrong pairs behind the true one."""
        return self.drawn(group, RandomDraws(generator))

    def drawn(self, group: TaskGroup, draws: RandomDraws) -> TaskGroup:
        """`draw` with draws of any source, taken in the order of the mix, image before caption."""
        own = self._number[group.images[0]]
        if self._draws_caption:
            text = self._a_caption(own, draws)
        else:
            ((text,),) = (row.parts for row in group.rows)
        mix = self._mixes[0] if len(self._mixes) == 1 else self._mixes[draws.mix(len(self._mixes))]
        images, rows = [group.images[0]], [TaskRow((text,))]
        for kind in mix:
            is_hard = kind in (HARD_CAPTION, HARD_IMAGE)
            other = draws.hard(own, self._neighbours[own]) if is_hard else draws.other(own, len(self._images))
            if kind in (CAPTION, HARD_CAPTION):
                rows.append(TaskRow((self._a_caption(other, draws),)))
            else:
                rows.append(TaskRow((text,), (len(images),)))
                images.append(self._images[other])
        return replace(group, images=tuple(images), rows=tuple(rows), target=0)

    def _a_caption(self, image: int, draws: RandomDraws) -> TaskText:
        captions = self._captions[image]
        return TaskText((captions[draws.caption(image, len(captions))],))


_REMEDY = "delete it, and it is made anew"
NEIGHBOURS, FILE_NAME = 100, "hard_negatives.npz"
_FORMAT = 1
_ROWS_AT_ONCE = 1024
_SPARE = 32  # more are found in float32; the order is that of float64
_ROUNDING = 1e-5  # of float32 products of 2,048 numbers, as a share of the longest vector's square
logger = logging.getLogger(__name__)


def mean_features(store: RecordStore, image_ids: Sequence[str]) -> np.ndarray:
    """(n, D) float32, mean over the regions of each image; zeros of an image without any."""
    means: np.ndarray | None = None
    read = reader(store)
    with Progress("mean features", len(image_ids), IMAGES) as progress:
        for place, image_id in enumerate(image_ids):
            features = np.asarray(read(image_id).features, np.float32)
            if means is None:
                means = np.zeros((len(image_ids), features.shape[1]), np.float32)
            if len(features):
                means[place] = features.mean(axis=0)
            progress.one_more()
    assert means is not None
    return means


def nearest(means_ND: np.ndarray, count: int = NEIGHBOURS) -> list[np.ndarray]:
    """Numbers of the nearest other rows for each row, the nearest first; of equally near ones the lower number.

    Args:
        count: most of each; fewer where rows are few, or equal.
    """
    means = means_ND.astype(np.float32) - means_ND.mean(axis=0, dtype=np.float64).astype(np.float32)
    lengths = np.einsum("nd,nd->n", means, means, dtype=np.float64)
    most_alike = max(Counter(row.tobytes() for row in means_ND).values())
    kept = count + most_alike + _SPARE
    found: list[np.ndarray] = []
    for start in range(0, len(means), _ROWS_AT_ONCE):
        block = means[start : start + _ROWS_AT_ONCE]
        rough = lengths + lengths[start : start + len(block), None] - 2.0 * (block @ means.T)
        for row, distances in enumerate(rough):
            own = start + row
            found.append(_nearest_of(own, distances, means_ND, count, kept, _ROUNDING * float(lengths.max())))
    return found


def _nearest_of(
    own: int, rough_N: np.ndarray, means_ND: np.ndarray, count: int, kept: int, rounding: float
) -> np.ndarray:
    """The nearest of one row: the `kept` best by rough distances, ordered by exact ones; all rows, where the rounding
    of the rough ones could have lost one."""
    chosen = np.arange(len(means_ND))
    if kept < len(means_ND):
        chosen = np.sort(np.argpartition(rough_N, kept)[:kept])
    while True:
        apart = means_ND[chosen].astype(np.float64) - means_ND[own].astype(np.float64)
        exact = np.einsum("nd,nd->n", apart, apart)
        order = np.argsort(exact, kind="stable")
        order = order[exact[order] > 0][:count]
        is_all = len(chosen) == len(means_ND)
        if is_all or (len(order) == count and exact[order[-1]] + rounding < rough_N[chosen].max()):
            return chosen[order]
        chosen = np.arange(len(means_ND))


def hard_neighbours(store: RecordStore, image_ids: Sequence[str], path: Path, *, features: str) -> list[np.ndarray]:
    """`nearest` of the images of a run, from its file if that is of the same images and features, else written there.

    Args:
        path: of the file; a second start of the run takes it.
        features: feature space of the store.
    """
    digest = hashlib.sha256(json.dumps([_FORMAT, features, list(image_ids)]).encode()).hexdigest()
    if path.is_file():
        kept = _read(path, digest, len(image_ids))
        if kept is not None:
            return kept
    found = nearest(mean_features(store, image_ids))
    alone = [image_ids[place] for place, each in enumerate(found) if not len(each)]
    if alone:
        raise ValueError(
            f"hard distractors: {plural(len(alone), 'image')} such as {alone[0]} have the same mean feature as all "
            f"others; are these features? Take distractors without hard ones"
        )
    if is_main_process():
        _write(path, digest, image_ids, found)
    return found


def _write(path: Path, digest: str, image_ids: Sequence[str], found: Sequence[np.ndarray]) -> None:
    lengths, neighbours = np.array([len(each) for each in found]), np.concatenate(found).astype(np.int32)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_run_file(
        path,
        lambda aside: np.savez(aside, digest=digest, images=list(image_ids), counts=lengths, neighbours=neighbours),
    )
    logger.info("hard distractors: %s, %d to %d each", path, lengths.min(), lengths.max())


def _read(path: Path, digest: str, count: int) -> list[np.ndarray] | None:
    """Neighbours in a file; None for one of other images or features."""
    check_run_file(path, _REMEDY)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if str(arrays["digest"]) != digest:
                return None
            counts, neighbours = arrays["counts"], arrays["neighbours"].astype(np.int64)
        if len(counts) != count or counts.min(initial=1) < 1 or counts.sum() != len(neighbours):
            raise ValueError(f"neighbours of {len(counts)} images, expected those of {count}")
        if len(neighbours) and not 0 <= neighbours.min() <= neighbours.max() < count:
            raise ValueError(f"neighbours up to {neighbours.max()} of {count} images")
        return np.split(neighbours, np.cumsum(counts)[:-1])
    except (OSError, KeyError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged: {error}; {_REMEDY}") from None


MULTI_CLASS, BINARY, TRIPLET, ALL_THREE = "multi_class", "binary", "triplet", "all_three"
LOSSES = (MULTI_CLASS, BINARY, TRIPLET, ALL_THREE)
PER_CAPTION, PER_IMAGE = "caption", "image"
_VALIDATION_MIX = ((IMAGE, IMAGE, IMAGE),)


@dataclass(frozen=True)
class RetrievalOptions:
    """
    Attributes:
        distractors: kinds of the wrong pairs of a group, see `mixes_of`; "|" between mixes of which each group
            draws one. ViLBERT's release, as here: a caption, an image, the caption of an image that looks alike.
        loss: over the scores of a group: "multi_class", which pair is right (ViLBERT); "binary", every pair by itself
            (ImageBERT's best; InterBERT's release); "triplet", with the hardest wrong pair; "all_three", their sum.
        per: whether an epoch has a group for each "caption", or for each "image" with one of its captions drawn
            (ImageBERT's epochs are too many for captions).
        most_captions: of an image that is trained on, the first ones; 0 for all. vsepp takes 5 of COCO's, which are 5
            to 7.
    """

    distractors: tuple[str, ...] = (CAPTION, IMAGE, HARD_CAPTION)
    loss: str = MULTI_CLASS
    per: str = PER_CAPTION
    most_captions: int = 0

    def __post_init__(self) -> None:
        check_choices(self, loss=LOSSES, per=(PER_CAPTION, PER_IMAGE))
        object.__setattr__(self, "distractors", tuple(self.distractors))  # a file of json has a list
        mixes_of(self.distractors)
        check_least(self, most_captions=0)

    @property
    def mixes(self) -> list[list[str]]:
        return mixes_of(self.distractors)


def open_retrieval(folder: Path, options: RetrievalOptions, _labels: Sequence[str] | None) -> DownstreamTask:
    """Retrieval with the files of one data set in `folder`, found by their names.

    While it trains, a run is judged by which of four images a caption of the validation split means; how it retrieves
    is measured on all pairs, by `roibeam predict` and `roibeam score`.
    """

    def read(split: str) -> TaskSplit:
        is_trained = split == "train"
        pictures, path = read_captioned(folder, split, most_captions=options.most_captions if is_trained else 0)
        per_image = options.per == PER_IMAGE and is_trained
        return TaskSplit(list(caption_groups(pictures, per_image=per_image)), (path,))

    def drawn_from(
        groups: Sequence[TaskGroup], store: Any, run: Path | None
    ) -> Callable[[TaskGroup, np.random.Generator], TaskGroup]:
        if run is None:
            return Distractors(groups, _VALIDATION_MIX, ()).draw
        neighbours: Sequence[Sequence[int]] = ()
        if {HARD_CAPTION, HARD_IMAGE} & set(options.distractors):
            images = list(dict.fromkeys(group.images[0] for group in groups))
            features = store.fingerprint.feature_space
            neighbours = hard_neighbours(store, images, run / FILE_NAME, features=features)  # type: ignore[assignment]
        return Distractors(groups, options.mixes, neighbours, draws_caption=options.per == PER_IMAGE).draw

    return DownstreamTask(
        name="retrieval",
        form=CHOICE,
        loss=options.loss,
        read=read,
        train="train",
        validation="val",
        judge=judge_choice,
        answers=_no_answers,
        write=_no_answers,
        splits=RETRIEVAL_SPLITS,
        drawn_from=drawn_from,
        reported_by=OF_SPLITS,
    )


def caption_groups(pictures: Sequence[CaptionedPicture], *, per_image: bool) -> Iterator[TaskGroup]:
    """A group for each caption, or image, with its true pair alone."""
    for picture in pictures:
        facts = {"captions": picture.captions}
        for number, caption in enumerate(picture.captions[: 1 if per_image else None]):
            name = picture.image if per_image else picture.caption_id(number)
            yield TaskGroup(name, (picture.image,), (TaskRow((TaskText((caption,)),)),), target=0, facts=facts)


def judge_choice(groups: Sequence[TaskGroup], predictions: Sequence[Prediction]) -> Mapping[str, Measure]:
    """ "R@1 of 4": how many captions score their own image above all others of the group; a tie is a miss."""
    right = [float(each.scores[0] > each.scores[1:].max()) for each in predictions]
    name = f"R@1 of {max((len(group.rows) for group in groups), default=0)}"
    by_lot = [1 / len(group.rows) for group in groups]
    images = [group.images[0] for group in groups]
    return {name: Measure(name, right, images, guess=lambda: sum(by_lot) / len(by_lot))}


def _no_answers(*_given: object) -> NoReturn:
    raise ValueError("retrieval has no answers of single groups; its scores are of all pairs")
