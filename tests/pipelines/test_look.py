"""`roibeam look` and `roibeam store show --draw`, the pictures that they write."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from tiny_commands import Cli, Pictures, ok, one_line

from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.plot import write_picture
from roibeam.pipelines.extract.one_photo import detect_photo
from roibeam.pipelines.extract.request import RequestedDetector


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def photo(pictures: Pictures) -> Path:
    return sorted(pictures.photos.iterdir())[0]


def test_one_photo(photo: Path, folder: Path, roibeam: Cli, tiny_network: tuple[str, ...]) -> None:
    """The regions are those that `extract` stores; the picture is the photo but for what was drawn."""
    done = ok(roibeam("look", photo, "--max-regions", 3, *tiny_network))
    assert f"{photo.stem}.regions.png   the photo with the best regions" in done.out
    assert "note: Random weights. The detector was not trained: boxes, names and scores mean nothing" in done.out
    drawn, pixels = cv2.imread(str(folder / f"{photo.stem}.regions.png")), cv2.imread(str(photo))
    changed = (drawn != pixels).any(axis=2).mean()
    assert drawn.shape == pixels.shape and 0.002 < changed < 0.6
    again = roibeam("look", photo, "--out", "out.png", "--json", "--max-regions", 12, *tiny_network)
    said = json.loads(again.out)
    assert said["photo"] == str(photo) and said["picture"] == "out.png" and said["note"].startswith("Random weights.")
    assert len(said["regions"]) == said["num_regions"] > 3 and said["regions"][0].keys() >= {"box", "class", "score"}


def test_the_regions_are_those_that_a_store_of_the_photo_has(pictures: Pictures, photo: Path) -> None:
    settings = ("detector.short_edge=48", "detector.long_edge=80", "detector.proposals_after_nms=16")
    settings = (*settings, "detector.base_channels=4", "selection.max_regions=12")  # TINY_NETWORK
    found = detect_photo(photo, RequestedDetector("small", weights="random:1", set=settings))
    with FeatureStore(pictures.store) as store:
        assert (found.record.features == store[photo.stem].features).all()
    assert repr(found).startswith("DetectedPhoto(record=RegionRecord") and "\n" not in repr(found)
    shown = found._repr_html_()
    assert "data:image/jpeg;base64," in shown and "mean nothing" in shown and len(shown) < 200_000


def test_the_toy_detector_is_the_default_and_says_what_it_knows(photo: Path, folder: Path, roibeam: Cli) -> None:
    done = ok(roibeam("look", photo, "--out", "out.png"))
    (note,) = [line for line in done.out.splitlines() if line.startswith("note: ")]
    assert "The toy detector knows the drawn world only" in note and "scores mean nothing" in note


@pytest.mark.parametrize(
    "words, message",
    [
        (("PHOTO", "PHOTO"), "one argument too many"),  # what a shell makes of *.jpg
        (("PHOTO", "-o", "a.jpg"), "the picture to write must end in .png"),
        (("PHOTO", "-o", "taken.png"), "taken.png: is there already, and roibeam did not draw it"),
        (("PHOTO", "-o", "folder.png"), "folder.png: is there already"),
        (("PHOTO", "-o", "no/a.png"), "no/a.png: there is no folder no"),
        (("nosuch.jpg", "-o", "a.png"), "no such file or folder: PHOTO 'nosuch.jpg'"),
        ((".", "-o", "a.png"), "PHOTO '.' is a folder; name a file"),
        (("broken.jpg", "-o", "a.png"), "broken.jpg: not an image (decode)"),
        (("PHOTO", "-o", "a.png", "--detector", "vg-r101-c4"), "weights are missing"),
        (("PHOTO", "-o", "a.png", "--detector", "nobody"), "no such folder; there are toy, "),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(
    words: tuple[str, ...], message: str, photo: Path, folder: Path, roibeam: Cli
) -> None:
    cv2.imwrite("taken.png", np.zeros((9, 9, 3), np.uint8))
    Path("folder.png").mkdir()
    Path("broken.jpg").write_bytes(b"no image at all")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    done = roibeam("look", *(photo if word == "PHOTO" else word for word in words))
    assert message in one_line(done)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_picture_takes_the_place_of_one_of_ours_only(folder: Path) -> None:
    ours = folder / "a.png"
    for grey in (10, 20):
        write_picture(ours, np.full((4, 5, 3), grey, np.uint8))
    assert (cv2.imread(str(ours)) == 20).all() and [path.name for path in folder.iterdir()] == ["a.png"]
    write_picture(folder / "b.PNG", np.dstack([np.full((2, 2), each, np.uint8) for each in (1, 2, 3)]))
    assert cv2.imread("b.PNG")[0, 0].tolist() == [1, 2, 3]
    Path("link.png").symlink_to(folder / "nowhere.png")
    with pytest.raises(ValueError, match=r"link\.png: is there already"):
        write_picture(Path("link.png"), np.zeros((1, 1, 3), np.uint8))


def test_store_show_draws_on_the_photo_of_its_plan(pictures: Pictures, photo: Path, folder: Path, roibeam: Cli) -> None:
    done = ok(roibeam("store", "show", pictures.store, photo.stem, "--draw", "a.png"))
    assert done.out.splitlines()[-1] == "a.png   the photo with its regions"
    with FeatureStore(pictures.store) as store:
        assert (cv2.imread("a.png") == store.draw(photo.stem, photo, max_regions=10)).all()
    moved = shutil.copytree(pictures.store, folder / "moved", ignore=shutil.ignore_patterns("plan*"))
    show = ("store", "show", moved, photo.stem)
    assert "d.png   a blank page with" in roibeam(*show, "--draw", "d.png", "--photo", "none").out
    assert f"no image 'x' in {moved}; the first is " in one_line(roibeam("store", "show", moved, "x"))
    assert photo.stem in roibeam("store", "ids", moved).out.splitlines()
    unnamed = one_line(roibeam(*show, "--draw", "b.png"))
    assert "does not record where its photos are; name the photo with --photo" in unnamed
    done = roibeam(*show, "--draw", "b.png", "--photo", photo, "--json")
    assert json.loads(done.out)["picture"] == "b.png" and Path("b.png").read_bytes() == Path("a.png").read_bytes()
    assert "--photo is for --draw" in one_line(roibeam(*show, "--photo", photo))
    other = sorted(pictures.photos.iterdir())[1]
    assert "is of a photo of" in one_line(roibeam(*show, "--draw", "c.png", "--photo", other))
    assert not Path("c.png").exists()
