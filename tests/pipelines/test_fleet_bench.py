"""bench/fleet.py in small: a rank is lost in mid-epoch, and what counts has every image once, by every reader.

Other tests look at one reader, one state or one number of workers; this one at a whole fleet with all of them.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_module import BENCH

SHARDS, RECORDS = 12, 250
IMAGES = SHARDS * RECORDS


@pytest.fixture(scope="module")
def fleet() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        made = importlib.import_module("fleet")
        patch.setattr(made, "RECORDS", RECORDS)
        yield made
        sys.modules.pop("fleet")


@pytest.fixture(scope="module")
def folder(fleet: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fleet") / "store"
    fleet.build(made, SHARDS, RECORDS)
    return made


@pytest.mark.parametrize("left", [4, 3], ids=["restarted", "one rank less"])
@pytest.mark.parametrize("kind", ["store", "numbers", "order"])
def test_every_image_comes_once_though_a_rank_was_lost(fleet: Any, folder: Path, kind: str, left: int) -> None:
    before, after = (fleet.Fleet(ranks, 2, 16, saved_at=18, lost_at=23) for ranks in (4, left))
    with fleet.FeatureStore(folder) as store:
        state = fleet.saved_state(store, before)
    assert state["next_sample"] == 18 * 4 * 16
    take = fleet.TAKES[kind]
    first = take(folder, before, before.places(kind), None, IMAGES)
    assert first.counts.sum() == 18 * 4 * 16 and first.counts.max() == 1
    rest = take(folder, after, after.places(kind), state, IMAGES)
    fleet.Taken(first.counts + rest.counts, [], []).check()
    assert len(rest.first_batch) == len(after.places(kind))
    # From another place than the saved one some come twice, and the check says so.
    late = take(folder, after, after.places(kind), state | {"next_sample": 17 * 4 * 16}, IMAGES)
    with pytest.raises(SystemExit, match="0 images never came, 64 more than once"):
        fleet.Taken(first.counts + late.counts, [], []).check()
    assert np.count_nonzero(late.counts) == IMAGES - 17 * 64
