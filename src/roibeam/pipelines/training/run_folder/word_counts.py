"""RUN/word_counts.npz: how often the words of a run's captions stood between which others, counted once in a run.

triples: (n, 3) int32, numbers of pieces in the run's tokenizer; times: (n,) int32. See `NeighbourCounts`.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from roibeam.features.folders.full_disk import naming_file
from roibeam.pipelines.common.statistics.neighbour_counts import MOST_PIECES, NeighbourCounts
from roibeam.pipelines.training.run_folder.checkpoint_sums import check_run_file, put_run_file

WORD_COUNTS = "word_counts.npz"


def write_word_counts(run_dir: Path, counts: NeighbourCounts) -> None:
    """Written aside and renamed."""
    aside = run_dir / f".writing-{WORD_COUNTS}"
    with naming_file(run_dir / WORD_COUNTS), aside.open("wb") as file:
        np.savez_compressed(file, triples=counts.triples, times=counts.times)
    put_run_file(aside, run_dir / WORD_COUNTS)


def read_word_counts(run_dir: Path) -> NeighbourCounts | None:
    """None of a run that has not counted.

    Raises:
        ValueError: when the file is damaged.
    """
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
