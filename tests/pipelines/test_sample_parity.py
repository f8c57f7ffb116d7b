"""Samples beside those of the official data codes, as `bench/sample_parity.py` recorded them (a few numbers of each).

    python bench/sample_parity.py --vilbert vilbert_beta/ --vilbert-mt vilbert-multi-task/ \\
        --interbert InterBERT/ --record tests/pipelines/data/official_samples.npz
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
GOLDEN = Path(__file__).parent / "data" / "official_samples.npz"


@pytest.fixture(scope="module")
def parity() -> Iterator[Any]:
    sys.path.insert(0, str(BENCH))
    spec = importlib.util.spec_from_file_location("sample_parity", BENCH / "sample_parity.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sample_parity"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(BENCH))


def test_samples_are_those_of_the_official_codes(parity: Any, tmp_path: Path) -> None:
    with np.load(GOLDEN) as golden:
        assert {name.split("/")[0] for name in golden.files} == {case.name for case in parity.CASES}
        for case in parity.CASES:
            (batch,) = parity.make_samples(case, parity.BATCH, tmp_path).batches()
            for name, values in parity.fields_here(case, batch).items():
                found, wanted = parity.golden_part(values), golden[f"{case.name}/{name}"]
                if name == "image_target" and case.model.get("region_loss") != "contrastive":
                    # Of the others the official batch has some too, which no loss reads.
                    predicted = np.broadcast_to(parity.padded(batch.region_target_mask)[..., None], values.shape)
                    wanted = wanted * parity.golden_part(predicted.astype(np.float32))
                # The order in which float32 numbers are added differs.
                np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6, err_msg=f"{case.name}: {name}")
