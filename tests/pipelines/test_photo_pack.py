"""The main job on real photos and on files that commonly break it.

Every decodable file becomes a record, every other one a dead letter with a true reason. Needs the data pack; the larger
networks are slow tests.
"""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tiny_commands import Cli, ok

from roibeam.features.store import FeatureStore

REASONS = {
    "awkward/html_404_named": ("decode", "not an image"),
    "awkward/text_named": ("decode", "not an image"),
    "awkward/truncated": ("decode", "truncated"),
    "awkward/zero_bytes": ("decode", "empty file"),
}


def expected_sizes(images: Path) -> dict[str, tuple[int, int]]:
    """Image id -> (height, width) of everything that the pack's indexes call decodable, upright."""
    sizes = {}
    for entry in json.loads((images / "index.json").read_text()):
        sizes[entry["file_name"].rsplit(".", 1)[0]] = (entry["height"], entry["width"])
    for entry in json.loads((images / "awkward" / "index.json").read_text()):
        if entry["decodes"]:
            size = (entry["height"], entry["width"])
            upright = size[::-1] if entry["file"] == "exif_orientation_6.jpg" else size
            sizes["awkward/" + entry["file"].rsplit(".", 1)[0]] = upright
    return sizes


def check_pack(roibeam: Cli, images: Path, out: Path, *options: str) -> None:
    ok(roibeam("extract", images, out, "--max-failures", "0.2", *options))
    with FeatureStore(out) as store:
        sizes = {record.image_id: (record.height, record.width) for record in store}
    assert sizes == expected_sizes(images)
    letters = pq.read_table(out / "dead_letters.parquet").to_pylist()
    assert {row["image_id"]: (row["stage"], row["reason"]) for row in letters} == REASONS
    assert roibeam("store", "verify", out, "--deep").code == 0


def test_every_file_of_the_pack(roibeam: Cli, shared_data: Path, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    check_pack(roibeam, shared_data / "images", tmp_path / "store", *tiny_network)


@pytest.mark.slow
def test_every_file_of_the_pack_with_the_golden_network(roibeam: Cli, shared_data: Path, tmp_path: Path) -> None:
    check_pack(roibeam, shared_data / "images", tmp_path / "store", "--detector", "small", "--weights", "random:1")


@pytest.mark.slow
def test_a_photo_at_true_size(roibeam: Cli, shared_data: Path, tmp_path: Path) -> None:
    """The network that a user gets without a word, but for the number of boxes that it describes."""
    photos, out = tmp_path / "photos", tmp_path / "store"
    photos.mkdir()
    shutil.copy(min((shared_data / "images").glob("*.jpg")), photos)
    fewer = ("--set", "detector.proposals_after_nms=100")
    ok(roibeam("extract", photos, out, "--weights", "random:1", "--vocab", shared_data / "vg", *fewer))
    with FeatureStore(out) as store:
        assert len(store) == 1
        for record in store:
            assert 10 <= record.num_regions <= 100
            assert record.features.shape == (record.num_regions, 2048)
            assert record.attribute_ids is not None and int(record.attribute_ids.max()) < 400
            assert record.class_distribution.shape == (record.num_regions, 1601)
    assert roibeam("store", "verify", out, "--deep").code == 0


def test_coco_and_tsv_of_pack(roibeam: Cli, shared_data: Path, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    captions = shared_data / "coco" / "captions_train2014.json"
    root = ("--photos", shared_data / "images")
    assert roibeam("extract", captions, tmp_path / "coco", *root, *tiny_network).code == 0
    with FeatureStore(tmp_path / "coco") as store:
        assert len(store) == 8
    tsv = shared_data / "cc" / "local.tsv"
    limit = ("--max-failures", "0.3")
    assert roibeam("extract", tsv, tmp_path / "tsv", "--photos", shared_data, *limit, *tiny_network).code == 0
    rows = pq.read_table(tmp_path / "tsv" / "dead_letters.parquet").to_pylist()
    letters = {row["image_id"]: row["reason"] for row in rows}
    assert letters == {
        "images/awkward/truncated": "truncated",
        "images/awkward/zero_bytes": "empty file",
        "images/awkward/text_named": "not an image",
        "images/awkward/does_not_exist": "not found",
    }
