"""Where regions mean nothing: what is known of a detector and of its photos, and what is said."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roibeam.extraction.weights.detector_choice import SHIPPED, read_detector_folder
from roibeam.pipelines.data.datasets.photo_folders import (
    DRAWN_WORLD,
    TASKS_FORMAT,
    WEB_FORMAT,
    WORLD_FORMAT,
    WORLD_NAME,
    are_toy_photos,
    list_folder,
    world_of,
)
from roibeam.pipelines.extract.store_page import RANDOM_WEIGHTS, TOY_ON_PHOTOS, warning_of_config, warning_of_store

TOY = str(SHIPPED["toy"] / "model.safetensors")
CLASSES = read_detector_folder("toy").class_names


def config(weights: str, photos: Path | str, **more: Any) -> dict[str, Any]:
    return {"detector": {"weights": weights}, "source": {"location": str(photos), "image_root": str(photos)}, **more}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder of photos in a toy world."""
    photos = tmp_path / "world" / "coco" / "train2014"
    photos.mkdir(parents=True)
    (tmp_path / "world" / WORLD_NAME).write_text(json.dumps({"format": WORLD_FORMAT}))
    return photos


def test_a_world_is_known_by_its_file_alone(world: Path, tmp_path: Path) -> None:
    assert world_of(str(world)) == tmp_path / "world" == world_of(str(world / "COCO_train2014_*.jpg"))
    assert world_of(str(tmp_path)) is None and world_of("s3://bucket/world/coco") is None
    for name in ("world/contact_sheet.jpg", "world/coco/a.jpg", "contact_sheet.jpg"):
        (tmp_path / name).touch()
    found = {image.image_id for image in list_folder(str(tmp_path)).images()}
    assert "world/contact_sheet" not in found and found >= {"world/coco/a", "contact_sheet"}
    for content in ("[1]", '{"format": "another"}', "{", "\0"):
        (tmp_path / "world" / WORLD_NAME).write_text(content)
        assert world_of(str(world)) is None


@pytest.mark.parametrize(
    ("name", "content", "photo"),
    [
        ("tasks.json", {"format": TASKS_FORMAT}, "vcr/vcr1images/movie/a.jpg"),
        ("web.json", {"format": WEB_FORMAT}, "site/site-01/img/a.jpg"),
        ("collection.json", {"format": "roibeam-collection", DRAWN_WORLD: True}, "photos/3f/a.jpg"),
        ("download.json", {"format": "roibeam-download", DRAWN_WORLD: True}, "images/00000/a.jpg"),
    ],
)
def test_all_pictures_of_a_world_are_known(tmp_path: Path, name: str, content: dict[str, Any], photo: str) -> None:
    """Of its tasks and its web, and of what was fetched from that web; each also as members of archives."""
    place = tmp_path / "drawn" / photo
    assert world_of(str(place)) is None
    place.parent.mkdir(parents=True)
    (tmp_path / "drawn" / name).write_text(json.dumps(content))
    assert world_of(str(place)) == tmp_path / "drawn"
    archive = tmp_path / "drawn" / "all.zip"
    assert are_toy_photos([str(place), f"zip://a/b/c/d/e/f/g.jpg::{archive}", f"id-too-long:{place}"])
    elsewhere = str(tmp_path / "holiday" / "b.jpg")
    assert not are_toy_photos([str(place), elsewhere]) and not are_toy_photos([str(place), "gs://bucket/a.jpg"])
    assert not are_toy_photos([]) and not are_toy_photos([f"zip://a.jpg::{tmp_path / 'all.zip'}"])
    for other in (content | {"format": "another", DRAWN_WORLD: False}, [1]):
        (tmp_path / "drawn" / name).write_text(json.dumps(other))
        assert world_of(str(place)) is None


def test_the_toy_detector_means_something_on_its_world_alone(world: Path, tmp_path: Path) -> None:
    assert warning_of_config(config(TOY, world), CLASSES) is None
    assert warning_of_config(config(TOY, tmp_path), CLASSES) == TOY_ON_PHOTOS
    assert warning_of_config(config(TOY, "gs://bucket/photos"), None) == TOY_ON_PHOTOS  # without names too
    # Another detector that was trained on the world has its classes; one with others is none of ours to judge.
    assert warning_of_config(config("run/model/model.safetensors", tmp_path), CLASSES) == TOY_ON_PHOTOS
    assert warning_of_config(config("run/model/model.safetensors", tmp_path), ("cat", "dog")) is None
    # A store that was written or imported records no detector: its regions are its owner's.
    assert warning_of_config({"source": {"location": "features.tsv"}}, CLASSES) is None


def test_random_weights_mean_nothing_anywhere(world: Path) -> None:
    assert warning_of_config(config("random:1", world), CLASSES) == RANDOM_WEIGHTS
    assert warning_of_config({}, None) is None and warning_of_config({"detector": 3, "source": []}, None) is None


def test_what_the_run_recorded_holds_after_the_world_has_moved(world: Path, tmp_path: Path) -> None:
    """A store of before its folder was known is looked at again."""
    assert warning_of_config(config(TOY, world, **{DRAWN_WORLD: False}), CLASSES) is None
    recorded = config(TOY, world, **{DRAWN_WORLD: True})
    (tmp_path / "world").rename(tmp_path / "elsewhere")
    assert warning_of_config(recorded, CLASSES) is None
    assert warning_of_config(config(TOY, world), CLASSES) == TOY_ON_PHOTOS


def test_a_merged_store_is_as_good_as_its_worst_part(tmp_path: Path) -> None:
    def warning_of(content: dict[str, Any]) -> str | None:
        manifest: Any = SimpleNamespace(classes=("cat", "dog"), config=content)
        return warning_of_store(manifest)

    parts = [{"config": config("good.pkl", tmp_path)}, {"config": config("random:7", tmp_path)}]
    told = {"max_failures": 0.1, "copy": {"sources": parts}}
    assert warning_of(told) == warning_of({"copy": {"sources": [{"config": told}]}}) == RANDOM_WEIGHTS
    assert warning_of({**config("good.pkl", tmp_path), "copy": {"sources": parts[:1]}}) is None
