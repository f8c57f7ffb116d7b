"""The plan: shard sizes, growth, given boxes, and that an edit of it is noticed."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import KILLED, in_a_fork

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.pipelines.data.datasets.image_boxes import ImageBoxes
from roibeam.pipelines.data.given_boxes import GivenBoxes
from roibeam.pipelines.data.shard_plan import (
    PLAN_NAME,
    Plan,
    extend_plan,
    members_digest,
    members_name,
    mend_plan,
    plan_of_now,
    planned_members,
    read_members,
    read_plan,
    shard_size_for,
)

SOURCE = {"kind": "folder", "location": "/x", "image_root": "/x", "id_rule": "no-extension"}
SETTINGS = {"feature_space": {"weights": "f"}, "distribution": "full"}


def refs(*names: str) -> list[ImageRef]:
    return [ImageRef(name, f"/x/{name}.jpg") for name in names]


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path)


def planned(
    folder: LocalFolder, before: Plan | None, images: list[ImageRef], *, shard_size: int = 2, **more: Any
) -> Plan:
    return extend_plan(folder, before, source=SOURCE, settings=SETTINGS, images=images, shard_size=shard_size, **more)


@pytest.mark.parametrize(("seconds", "size"), [(1e-12, 4000), (0.01, 4000), (0.2, 3000), (9.0, 66), (700.0, 1)])
def test_a_lost_shard_costs_about_ten_minutes(seconds: float, size: int) -> None:
    assert shard_size_for(seconds) == size


def test_a_grown_source_adds_shards_and_leaves_old_ones(folder: LocalFolder, tmp_path: Path) -> None:
    first = planned(folder, None, refs("a", "b", "é"))
    assert [shard.num_images for shard in first.shards] == [2, 1]
    before = (tmp_path / members_name(0)).read_bytes()
    grown = planned(folder, first, refs("aa"))
    assert read_plan(folder) == grown
    assert grown.shards[:2] == first.shards and grown.num_images == 4
    assert (tmp_path / members_name(0)).read_bytes() == before
    assert list(planned_members(folder, grown)) == refs("a", "b", "é", "aa")
    assert read_members(folder, grown.shards[1]) == refs("é")


def test_a_plan_that_another_run_has_changed_is_read_again(folder: LocalFolder) -> None:
    assert plan_of_now(folder, None) is None
    first = planned(folder, None, refs("a"))
    assert plan_of_now(folder, first) is first
    grown = planned(folder, first, refs("b"))
    assert plan_of_now(folder, first) == plan_of_now(folder, None) == grown != first


def test_a_plan_that_takes_the_place_of_another_leaves_nothing_of_it(folder: LocalFolder, tmp_path: Path) -> None:
    before = planned(folder, None, refs("a", "b", "c"), shard_size=1)
    plan = planned(folder, None, refs("a", "b", "c"), replaced=before)
    assert list(planned_members(folder, plan)) == refs("a", "b", "c")
    names = ["part-00000.jsonl", "part-00001.jsonl", "plan.json"]
    assert [path.name for path in sorted((tmp_path / "plan").iterdir())] == names


def test_images_planned_anew_are_there_or_not_wherever_a_run_is_killed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    folder = LocalFolder(store)
    plan = planned(folder, None, refs("a", "b", "c", "d"))
    moved = ImageRef("d", "/y/d.jpg", captions=("new",))

    def mend() -> None:
        mend_plan(folder, plan, [(0, {"a": None}), (1, {"d": moved})])

    def members_now() -> list[ImageRef]:
        found = read_plan(folder)
        assert found is not None
        return list(planned_members(folder, found))

    shutil.copytree(store, tmp_path / "before")
    status, steps = in_a_fork(mend, store)
    assert status == 0 and members_now() == [*refs("b", "c"), moved]
    assert {path.name for path in (store / "plan").glob("*.jsonl")} == {"part-00000.1.jsonl", "part-00001.1.jsonl"}
    for kill_at in range(1, len(steps) + 1):
        shutil.rmtree(store)
        shutil.copytree(tmp_path / "before", store)
        assert in_a_fork(mend, store, kill_at)[0] == KILLED
        assert members_now() in (refs("a", "b", "c", "d"), [*refs("b", "c"), moved]), steps[kill_at - 1]
        again = mend_plan(folder, read_plan(folder), [(1, {"c": None})])  # type: ignore[arg-type]
        assert members_now()[-1].image_id == "d" and again.num_images in (3, 2)


def test_captions_and_labels_travel_and_count(folder: LocalFolder) -> None:
    plain = ImageRef("a", "/x/a.jpg")
    told = replace(plain, captions=("a dog", "é"), labels=("dog",))
    plan = planned(folder, None, [told, refs("b")[0]])
    assert read_members(folder, plan.shards[0]) == [told, refs("b")[0]]
    changes = ({"labels": ()}, {"captions": ("a dog é",)}, {"captions": ("é", "a dog")})
    swapped = replace(plain, captions=told.labels, labels=told.captions)
    digests = {members_digest([each]) for each in (plain, told, swapped, *(replace(told, **each) for each in changes))}
    assert len(digests) == 6


def test_changed_members_are_noticed(folder: LocalFolder, tmp_path: Path) -> None:
    plan = planned(folder, None, refs("a", "b"))
    path = tmp_path / members_name(0)
    path.write_text(path.read_text().replace('"a"', '"c"'))
    with pytest.raises(ValueError, match=r"part-00000\.jsonl: its images are not those that plan\.json states"):
        read_members(folder, plan.shards[0])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "roibeam-plan", "version": 2, "shards": []}'])
def test_other_files_named_plan_are_refused(folder: LocalFolder, tmp_path: Path, text: str) -> None:
    (tmp_path / PLAN_NAME).write_text(text)
    with pytest.raises(ValueError, match="expected roibeam-plan version 1"):
        read_plan(folder)


def given(*rows: tuple[str, list[list[float]], tuple[int, int] | None]) -> GivenBoxes:
    return GivenBoxes(
        "/x/boxes.json",
        ((name, ImageBoxes(name, np.array(boxes, "f4").reshape(-1, 4), hw)) for name, boxes, hw in rows),
    )


def test_given_boxes_are_planned_with_their_images(folder: LocalFolder, tmp_path: Path) -> None:
    boxes = given(("a", [[187.4, 0.1, 1e-3, 7], [0, 0, 1, 1]], (480, 640)), ("b", [], None))
    plan = planned(folder, None, refs("a", "b"), boxes=boxes)
    a, b = read_members(folder, plan.shards[0])
    assert a.boxes == ((187.4, 0.1, 0.001, 7.0), (0.0, 0.0, 1.0, 1.0)) and a.boxes_hw == (480, 640)
    assert b.boxes == () and b.boxes_hw is None
    assert boxes.are_those_of(a) and boxes.are_those_of(b) and not boxes.are_those_of(refs("b")[0])
    line = (tmp_path / members_name(0)).read_text().splitlines()[0]
    assert '"boxes": [[187.4, 0.1, 0.001, 7.0], [0.0, 0.0, 1.0, 1.0]], "boxes_hw": [480, 640]' in line


def test_the_digest_of_members_covers_their_boxes() -> None:
    (plain,) = refs("a")
    box, other = (0, 0, 1, 1), (0, 0, 1, 2)
    variants = [plain, replace(plain, boxes=(box,), boxes_hw=(1, 2))]
    variants += [replace(plain, boxes=boxes) for boxes in ((), (box,), (other,), (box, box))]
    assert len({members_digest([member]) for member in variants}) == len(variants)
    # Stores whose regions are proposed keep the digest that they were written with.
    assert members_digest([plain]) == hashlib.sha256(b"\x01\0\0\0a\x08\0\0\0/x/a.jpg").hexdigest()


def test_changed_boxes_are_noticed(folder: LocalFolder, tmp_path: Path) -> None:
    plan = planned(folder, None, refs("a"), boxes=given(("a", [[0, 0, 1, 1]], (4, 4))))
    path = tmp_path / members_name(0)
    before = json.loads(path.read_text())
    boxes = ([[0, 0, 1, 2]], [[0, 0, 1]], [["x", 0, 1, 1]], 3)
    for change in (*({"boxes": each} for each in boxes), *({"boxes_hw": hw} for hw in ([7], ["x", "y"], [-1, 10**30]))):
        path.write_text(json.dumps(before | change) + "\n")
        with pytest.raises(ValueError, match=r"part-00000\.jsonl: .*run `roibeam extract` as before"):
            read_members(folder, plan.shards[0])
