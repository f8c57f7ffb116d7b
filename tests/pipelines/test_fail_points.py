"""Imports killed while they write: no shard or a whole one, and a rerun that gives the same store."""

from __future__ import annotations

import base64
import functools
from pathlib import Path

import numpy as np
import pytest
from disturbed_runs import Run
from fail_points import COMMIT, SHARD_MANIFEST, STORE_MANIFEST, SYNC, WRITE, FailPoint, kill
from soak_share import share_of

from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.extract.stores.store_import import import_features

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture(scope="module")
def tsv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 images in the six columns of bottom-up attention."""
    path = tmp_path_factory.mktemp("source") / "features.tsv"
    draw = np.random.default_rng(1)
    with path.open("wb") as file:
        for number in range(20):
            corners = draw.random((6, 2), np.float32) * 100
            boxes = np.concatenate([corners, corners + 50], axis=1)
            arrays = [base64.b64encode(array.tobytes()) for array in (boxes, draw.random((6, 16), np.float32))]
            file.write(b"\t".join([f"{number:03}".encode(), b"640", b"480", b"6", *arrays]) + b"\n")
    return path


@pytest.fixture(scope="module")
def imported(tsv: Path) -> Path:
    import_features(tsv, tsv.parent / "wanted", shard_size=4)
    return tsv.parent / "wanted"


@pytest.mark.parametrize(
    ("stage", "counts"),
    [
        (WRITE, [1, 6, 11, 16, 19]),  # in each of the five shards, after its first, second, ... record
        (COMMIT, [1, 2, 3, 4, 5]),
        (SYNC, [1, 2, 3, 4, 5]),
        (SHARD_MANIFEST, [1, 2, 3, 4, 5]),
        (STORE_MANIFEST, [1]),
    ],
)
def test_killed_imports(tsv: Path, imported: Path, tmp_path: Path, stage: str, counts: list[int]) -> None:
    for count in share_of(counts, stage):
        out = tmp_path / str(count)
        work = functools.partial(import_features, tsv, out, shard_size=4)
        ended = Run(work, tmp_path, [FailPoint(stage, count, kill)]).wait()
        assert ended.code == -9 and ended.last_line.startswith(f"fail point: {stage}, number {count}: "), ended
        # No shard or a whole one: whatever has a manifest is sound to its last byte, the rest is named as left over.
        left = verify_store(out, deep=True)
        assert [problem.file for problem in left if not problem.leftover] == ["manifest.json"] and len(left) > 1
        again = Run(work, tmp_path).wait()
        assert again.code == 0, again.said
        assert verify_store(out, deep=True) == []
        with FeatureStore(imported) as want, FeatureStore(out) as got:
            assert got.manifest.content_digest == want.manifest.content_digest
            assert sorted(got.ids()) == sorted(want.ids())
