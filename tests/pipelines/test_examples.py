"""The short scripts of examples/, each run once as a newcomer does; what they write is as they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from roibeam.features.store import FeatureStore

EXAMPLES = Path(__file__).parents[2] / "examples"
PHOTOS = 40  # of toy/coco/train2014


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


def run(folder: Path, name: str, *arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ids(store: Path) -> list[str]:
    with FeatureStore(store) as opened:
        return list(opened.ids())


def test_examples_are_short_and_say_what_they_do() -> None:
    scripts = {path.name: path.read_text("utf-8").splitlines() for path in EXAMPLES.glob("*.py")}
    assert len(scripts) == 5
    for name, lines in scripts.items():
        assert len(lines) <= 60 and lines[0].startswith('"""') and f"python examples/{name}" in "\n".join(lines), name
        assert f"`{name}`" in (EXAMPLES / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_own_photos_are_stored_and_one_is_drawn(folder: Path) -> None:
    assert f"{PHOTOS} records" in run(folder, "own_photos.py")
    assert len(ids(folder / "own_photos/store")) == PHOTOS and (folder / "own_photos/drawn.png").stat().st_size > 1000


@pytest.mark.slow
def test_an_own_detector_and_backbone_make_the_records(folder: Path) -> None:
    run(folder, "own_detector.py")
    with FeatureStore(folder / "own_detector.store") as store:
        assert (len(store), store.feature_dim) == (PHOTOS, 64)
        assert store.num_regions > PHOTOS and store.vocabulary["classes"] == ["small", "large"]


@pytest.mark.slow
def test_new_rows_of_a_table_are_answered(folder: Path) -> None:
    run(folder, "own_table.py")
    rows = [json.loads(line) for line in (folder / "own_table/test.jsonl").read_text("utf-8").splitlines()]
    answers = json.loads((folder / "own_table/answers.json").read_text("utf-8"))
    assert [int(each["question_id"]) for each in answers] == [row["id"] for row in rows]
    assert len(rows) == PHOTOS // 5 * 4
    assert {each["answer"] for each in answers} <= {"yes", "no"} and not any(row["answer"] for row in rows)


@pytest.mark.slow
def test_photos_are_searched_by_a_sentence(folder: Path) -> None:
    world = ("toy/coco/annotations/captions_train2014.json", "toy/coco/train2014")
    printed = run(folder, "search_photos.py", *world, "a red ball", "toy", "2")
    found = [line.split()[1] for line in printed.splitlines() if "COCO_train2014" in line]
    assert len(set(found)) == 5 and set(found) <= set(ids(folder / "search_photos/store"))
    assert all(name in (folder / "search_photos/found.html").read_text("utf-8") for name in found)


@pytest.mark.slow
def test_jobs_make_one_store_and_ranks_read_different_images_of_it(folder: Path) -> None:
    assert "no problem found" in run(folder, "cluster_job.py")
    first, second = ((folder / f"cluster.store.parts/rank-{rank}.txt").read_text("utf-8").split() for rank in range(2))
    assert sorted(first + second) == ids(folder / "cluster.store") and len(first) == len(second) == PHOTOS // 2
