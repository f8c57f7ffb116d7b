"""Which images look like each other: the nearest by the mean of their region features, exactly.

As ViLBERT's file of hard negatives: Euclidean distance (e-bug/volta scripts/generate_pool.py). There an image is the
first of its own neighbours, or a later one where another image has the same features; here it is never among them, nor
is an image whose mean is the same to the last bit, which is the same photo under another name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roibeam.features.counted import counted
from roibeam.features.folders.full_disk import naming_file
from roibeam.pipelines.common.console.progress import IMAGES, Progress
from roibeam.pipelines.common.launched import is_main_process
from roibeam.pipelines.data.captioned.corpus import RecordStore, reader
from roibeam.pipelines.training.run_folder.checkpoint_sums import check_run_file, put_run_file

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
    """For each row the numbers of the nearest others, the nearest first; of equally near ones the lower number.

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
    """`nearest` of the images of a run, from its file where that is of the same images and features, else put there.

    Args:
        path: of the file; a second start of the run takes it.
        features: what the store's features are called.
    Raises:
        ValueError: when some image has none that looks different, or the file is damaged.
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
            f"hard distractors: {counted(len(alone), 'image')} such as {alone[0]} have the same mean feature as all "
            f"others; are these features? Take distractors without hard ones"
        )
    if is_main_process():
        _write(path, digest, image_ids, found)
    return found


def _write(path: Path, digest: str, image_ids: Sequence[str], found: Sequence[np.ndarray]) -> None:
    lengths = np.array([len(each) for each in found])
    aside = path.with_name(f".writing-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming_file(path), aside.open("wb") as file:
        np.savez(
            file, digest=np.array(digest), images=np.array(list(image_ids)), counts=lengths,
            neighbours=np.concatenate(found).astype(np.int32),
        )  # fmt: skip
    put_run_file(aside, path)
    logger.info("hard distractors: %s, %d to %d each", path, lengths.min(), lengths.max())


def _read(path: Path, digest: str, count: int) -> list[np.ndarray] | None:
    """None for a file of other images or features."""
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
