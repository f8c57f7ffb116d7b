"""Samples beside those of the official data codes, as `bench/sample_parity.py` recorded them (a few numbers of each).

    python bench/sample_parity.py --vilbert vilbert_beta/ --vilbert-mt vilbert-multi-task/ \\
        --interbert InterBERT/ --record tests/pipelines/data/official_samples.npz
"""

from pathlib import Path

import numpy as np
import sample_parity as parity

GOLDEN = Path(__file__).parent / "data" / "official_samples.npz"


def test_samples_are_those_of_the_official_codes(tmp_path: Path) -> None:
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
