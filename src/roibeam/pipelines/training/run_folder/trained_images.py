"""Which images a run was trained on, kept in its folder, so that an evaluation can tell that it is none.

trained_images.npy: (n,) uint64 in rising order, 8 bytes a key. Ids that name one photo of COCO, Flickr or Visual Genome
share a key (`image_identity.image_keys`), however they are spelled; other ids are compared as they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import xxhash

from roibeam.pipelines.sources.image_identity import image_keys

TRAINED_IMAGES = "trained_images.npy"


def write_trained_images(run_dir: Path, image_ids: Iterable[str], *, before: Path | None = None) -> None:
    """Replaces the file of a run that goes on.

    Args:
        before: folder of the run whose weights this one starts from; what that was trained on is in them too.
    """
    own = np.array([key for image_id in image_ids for key in _keys(image_id)], np.uint64)
    keys = np.unique(own if before is None else np.concatenate([own, _read(before / TRAINED_IMAGES)]))
    aside = run_dir / f".writing-{TRAINED_IMAGES}"
    with aside.open("wb") as file:
        np.save(file, keys, allow_pickle=False)
    aside.replace(run_dir / TRAINED_IMAGES)


def trained_among(run_dir: Path, image_ids: Sequence[str]) -> list[str] | None:
    """Those of the ids that the run was trained on; None where its folder does not tell.

    Raises:
        ValueError: when the file is damaged.
    """
    path = run_dir / TRAINED_IMAGES
    if not path.is_file():
        return None
    trained = _read(path)
    return [image_id for image_id in image_ids if np.isin(_keys(image_id), trained, kind="sort").any()]


def _read(path: Path) -> np.ndarray:
    """(n,) uint64; none where there is no file."""
    if not path.is_file():
        return np.empty(0, np.uint64)
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path}: {error}; it is damaged, remove it to evaluate without a look at it") from None


def _keys(image_id: str) -> list[int]:
    return [xxhash.xxh3_64_intdigest(f"{name}\0{value}".encode()) for name, value in image_keys(image_id, None)]
