"""`roibeam extract` with a network of detectron2's: its store says which one, goes on, and is repaired."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_fpn import WIDTH, fpn_yaml
from tiny_commands import Cli, ok
from with_detectron2 import detectron2_importable

from roibeam.features.store import FeatureStore
from roibeam.pipelines.toyworld.rendering import draw_samples


@pytest.fixture(scope="module", autouse=True)
def detectron2() -> Iterator[None]:
    with detectron2_importable():
        yield


@pytest.mark.slow
def test_a_store_of_box_head_features(roibeam: Cli, tmp_path: Path) -> None:
    draw_samples(tmp_path / "samples", count=3)
    photos, out, config = tmp_path / "samples" / "images", tmp_path / "store", fpn_yaml(tmp_path)
    asked = ("extract", photos, out, "--detector", config, "--weights", "random:1", "--selection", "visualbert-nlvr2")
    done = ok(roibeam(*asked))
    assert "of detectron2, visualbert-nlvr2" in done.err and "3 records" in done.out
    with FeatureStore(out) as store:
        assert (store.feature_dim, len(store)) == (WIDTH, 3)
        details = store.fingerprint.details
        assert details["detector"]["conventions"]["region_feature"] == "fc6"
        assert details["regions"]["max_regions"] == 144
        space = store.fingerprint.feature_space
    recorded = json.loads((out / "manifest.json").read_text())["config"]["detector"]["config"]
    assert recorded == {"file": str(config.resolve()), "layer": ""}
    assert "detectron2, fpn.yaml" in (out / "report.html").read_text()
    assert roibeam(*asked).code == 0  # nothing to do
    other = roibeam(*asked, "--set", "detector.layer=fc7")
    assert other.code == 1 and "made with other settings" in other.err and "fc7" in other.err
    names = tmp_path / "names.txt"
    names.write_text("a\nb\n")
    short = roibeam("extract", photos, tmp_path / "other", *asked[3:], "--vocab", names)
    assert short.code == 1 and "2 classes, but the detector has 5" in short.err
    next(out.glob("part-*.lmdb")).unlink()
    ok(roibeam("store", "repair", out, "--photos", photos))
    with FeatureStore(out) as store:
        assert store.fingerprint.feature_space == space and len(store) == 3
