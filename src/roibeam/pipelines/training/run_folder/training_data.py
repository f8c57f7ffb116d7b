"""Training data of a run, recorded in its folder: keys of its images, and counts of its words.

An evaluation compares them with its own images and captions.
trained_images.npy: (n,) uint64 in rising order, 8 bytes a key. Ids that name one photo of COCO, Flickr or Visual Genome
share a key (`image_identity.image_keys`), however they are spelled; other ids are compared as they stand. A bare number
has the key of its data set where the run knew that, and its own as it stands.
word_counts.npz: how often the words of the captions stood between which others, counted once in a run. triples: (n, 3)
int32, numbers of pieces in the run's tokenizer; times: (n,) int32. See `NeighbourCounts`.
"""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import xxhash

from roibeam.pipelines.common.statistics.neighbour_counts import MOST_PIECES, NeighbourCounts
from roibeam.pipelines.data.held_out import HeldOut, LeakReport
from roibeam.pipelines.data.image_identity import Key, image_keys
from roibeam.pipelines.training.run_folder.files import check_run_file, write_run_file

TRAINED_IMAGES, OWN_IMAGES = "trained_images.npy", "own_images.npy"
_REMEDY = "restore it from a copy of the run, or remove it to evaluate without it"
logger = logging.getLogger(__name__)


def known_keys(image_id: str, data_set: str | None = None) -> list[Key]:
    """Keys of an image: its data set's id, and its plain file name."""
    keys = image_keys(image_id, None)
    return keys if data_set is None else list(dict.fromkeys([*keys, *image_keys(image_id, data_set)]))


def write_trained_images(run_dir: Path, keys: Iterable[Key], *, before: Path | None = None) -> None:
    """Replaces the file of a resumed run; keys: of all images, as `known_keys`. The images of the run in `before`,
    whose weights this one starts from, are included; `OWN_IMAGES` then has those without them."""
    own = np.array([_number(key) for key in keys], np.uint64)
    numbers = np.unique(own if before is None else np.concatenate([own, _read(before / TRAINED_IMAGES)]))
    if before is not None and not has_trained_images(before):
        logger.warning("%s has no %s: the training data of this run are not known", before, TRAINED_IMAGES)
    if before is not None:
        write_run_file(run_dir / OWN_IMAGES, lambda aside: np.save(aside, np.unique(own), allow_pickle=False))
    write_run_file(run_dir / TRAINED_IMAGES, lambda aside: np.save(aside, numbers, allow_pickle=False))


def trained_among(
    run_dir: Path,
    image_ids: Sequence[str],
    keys_of: Callable[[str], Iterable[Key]] = known_keys,
    file: str = TRAINED_IMAGES,
) -> list[str] | None:
    """The ids whose image's keys (`keys_of`) the run was trained on; None if its folder does not record them.

    Args:
        file: `OWN_IMAGES` leaves out the runs that it started from.
    """
    path = run_dir / file
    if not path.is_file():
        return None
    trained = _read(path)
    return [image_id for image_id in image_ids if _is_among(keys_of(image_id), trained)]


def has_trained_images(folder: Path) -> bool:
    """Whether this is the folder of a run that records its training images."""
    return (folder / TRAINED_IMAGES).is_file()


def trained_report(run_dir: Path, held_out: Sequence[str]) -> LeakReport:
    """Report of the held-out images, by rules of `HeldOut`, that a run was trained on."""
    trained = _read(run_dir / TRAINED_IMAGES)
    if not len(trained):
        lacks = "names no image" if has_trained_images(run_dir) else "is missing"
        raise ValueError(f"{run_dir / TRAINED_IMAGES}: {lacks}: the run does not record its training images")
    return HeldOut(held_out).images_among(lambda keys: _is_among(keys, trained), len(trained))


def _read(path: Path) -> np.ndarray:
    """(n,) uint64, in rising order; empty without a file."""
    check_run_file(path, _REMEDY)
    if not path.is_file():
        return np.empty(0, np.uint64)
    try:
        found = np.asarray(np.load(path, allow_pickle=False))
        if found.ndim != 1 or found.dtype != np.uint64 or (found[1:] <= found[:-1]).any():
            raise ValueError(f"expected (n,) uint64 in rising order, got {found.dtype} {found.shape}")
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path}: it is damaged: {error}; {_REMEDY}") from None
    return found


def _is_among(keys: Iterable[Key], trained: np.ndarray) -> bool:
    numbers = np.array([_number(key) for key in keys], np.uint64)
    places = np.searchsorted(trained, numbers)
    return bool((trained[np.minimum(places, len(trained) - 1)] == numbers).any()) if len(trained) else False


def _number(key: Key) -> int:
    name, value = key
    return xxhash.xxh3_64_intdigest(f"{name}\0{value}".encode())


WORD_COUNTS = "word_counts.npz"


def write_word_counts(run_dir: Path, counts: NeighbourCounts) -> None:
    triples, times = counts.triples, counts.times
    write_run_file(run_dir / WORD_COUNTS, lambda aside: np.savez_compressed(aside, triples=triples, times=times))


def read_word_counts(run_dir: Path) -> NeighbourCounts | None:
    """The counts; None for a run that has not counted."""
    path = run_dir / WORD_COUNTS
    if not path.exists():
        return None
    check_run_file(path, "remove it; the command of the run counts anew")
    try:
        with np.load(path, allow_pickle=False) as saved:
            triples, times = saved["triples"], saved["times"]
        if triples.shape != (len(times), 3) or triples.dtype.kind != "i" or times.dtype.kind != "i":
            raise ValueError(f"expected (n, 3) and (n,) whole numbers, got {triples.shape} and {times.shape}")
        if len(triples) and not 0 <= triples.min() <= triples.max() < MOST_PIECES:
            raise ValueError(f"expected numbers of pieces, got {triples.min()} to {triples.max()}")
    except (ValueError, OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: {error}; it is damaged; the command of the run counts anew") from None
    return NeighbourCounts(triples, times)
