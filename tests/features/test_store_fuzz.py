"""Stores hurt by thousands of seeds, read in child processes: an error or the truth, never a crash, a hang or a lie."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_child import in_a_child, limit_memory, soak_seeds, traced_peak, watch, watched
from store_mutations import FAMILIES, Original, examine, hurt, write_original


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return write_original(tmp_path_factory.mktemp("fuzz") / "store")


@pytest.mark.parametrize("seeds", [range(6), pytest.param(soak_seeds(2500), marks=pytest.mark.soak)], ids=len)
@pytest.mark.parametrize("family", FAMILIES)
def test_hurt_stores(original: Original, family: str, seeds: range) -> None:
    try:
        marks = Counter(in_a_child(lambda tell: _examine_all(original, family, seeds, tell), seeds))
    finally:
        for name, data in original.files.items():
            _write(original.folder / name, data)
    print(f"{family}: {len(seeds)} mutations, noticed by {dict(marks)}")
    assert marks.total() == len(seeds)
    assert len(seeds) < 100 or marks["f"] + marks["d"] > len(seeds) // 4, marks  # of a few perhaps none


def _examine_all(original: Original, family: str, seeds: range, tell: Callable[[str], object]) -> None:
    seen = watch(original.folder)
    assert examine(original, {}) == "."
    unhurt = traced_peak(lambda: examine(original, {}))
    limit_memory(2 * original.num_bytes)
    for seed in seeds:
        changed = hurt(original, family, seed)
        for name, data in changed.items():
            _write(original.folder / name, data)
        most = unhurt + 2 * max(sum(map(len, changed.values())), original.num_bytes)
        tell(watched(lambda changed=changed: examine(original, changed), seed, most, seen))
        for name in changed:
            _write(original.folder / name, original.files[name])


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # a new file: maps of the one before stay whole
    path.write_bytes(data)
