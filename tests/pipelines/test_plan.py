"""The plan: shard sizes, growth, and that nobody edits it unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from extraction.images import ImageRef
from pipelines.plan import extend_plan, members_path, plan_path, planned_ids, read_members, read_plan, shard_size_for

SOURCE = {"kind": "folder", "location": "/x", "image_root": "/x", "id_rule": "no-extension"}
SETTINGS = {"feature_space": {"weights": "f"}, "distribution": "full"}


def refs(*names: str) -> list[ImageRef]:
    return [ImageRef(name, f"/x/{name}.jpg") for name in names]


@pytest.mark.parametrize(("seconds", "size"), [(1e-12, 4000), (0.01, 4000), (0.2, 3000), (9.0, 66), (700.0, 1)])
def test_a_lost_shard_costs_about_ten_minutes(seconds: float, size: int) -> None:
    assert shard_size_for(seconds) == size


def test_a_grown_source_adds_shards_and_leaves_old_ones(tmp_path: Path) -> None:
    first = extend_plan(tmp_path, None, source=SOURCE, settings=SETTINGS, images=refs("a", "b", "é"), shard_size=2)
    assert [shard.num_images for shard in first.shards] == [2, 1]
    before = members_path(tmp_path, 0).read_bytes()
    grown = extend_plan(tmp_path, first, source=SOURCE, settings=SETTINGS, images=refs("aa"), shard_size=2)
    assert read_plan(tmp_path) == grown
    assert grown.shards[:2] == first.shards and grown.num_images == 4
    assert members_path(tmp_path, 0).read_bytes() == before
    assert planned_ids(tmp_path, grown) == {"a", "b", "é", "aa"}
    assert read_members(tmp_path, grown.shards[1]) == refs("é")


def test_changed_members_are_noticed(tmp_path: Path) -> None:
    plan = extend_plan(tmp_path, None, source=SOURCE, settings=SETTINGS, images=refs("a", "b"), shard_size=2)
    path = members_path(tmp_path, 0)
    path.write_text(path.read_text().replace('"a"', '"c"'))
    with pytest.raises(ValueError, match=r"part-00000\.jsonl: its images are not those that plan\.json states"):
        read_members(tmp_path, plan.shards[0])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "roibeam-plan", "version": 2, "shards": []}'])
def test_other_files_named_plan_are_refused(tmp_path: Path, text: str) -> None:
    plan_path(tmp_path).write_text(text)
    with pytest.raises(ValueError, match="expected roibeam-plan version 1"):
        read_plan(tmp_path)
