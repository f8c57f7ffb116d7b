"""`roibeam demo`, what `make demo` runs: the whole chain with numbers that only a working chain gives."""

import re
from pathlib import Path

import pytest
from tiny_commands import Cli, ok

from roibeam.features.store import FeatureStore


@pytest.mark.slow
def test_demo_learns_its_pairs_and_runs_again(roibeam: Cli, tmp_path: Path) -> None:
    done = ok(roibeam("demo", tmp_path / "demo"))
    with FeatureStore(tmp_path / "demo" / "store") as store:
        assert len(store) == 40
    words, regions = (
        float(re.search(rf"masked {kind} accuracy +([\d.]+)", done.out)[1]) for kind in ("word", "region")
    )
    assert words > 0.95 and regions > 0.9
    for page in ("store", "pretraining"):
        report = tmp_path / "demo" / page / "report.html"
        assert report.is_file() and f": {report}\n" in done.out.replace(":  ", ": ")
    assert roibeam("demo", tmp_path / "demo").code == 0
