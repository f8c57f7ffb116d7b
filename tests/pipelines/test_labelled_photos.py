"""Labels that would teach a detector wrong things without a word: each is one line before the first step."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from labelled_world import write_instances, write_labelled
from PIL import Image
from tiny_commands import ok

from roibeam.pipelines.data.datasets.coco import read_coco_boxes
from roibeam.pipelines.data.labelled_photos import LabelledPhotos, look_at_photos, open_labelled_photos, read_photo


@pytest.fixture
def coco(tmp_path: Path) -> SimpleNamespace:
    """Five photos, and COCO's file of them to change."""
    folder = tmp_path / "photos"
    path = write_instances(write_labelled(folder), folder / "instances.json")
    return SimpleNamespace(path=path, folder=folder, content=json.loads(path.read_text()))


def opened(coco: SimpleNamespace, **looked: str) -> LabelledPhotos:
    """The photos of the file as it was changed; with `exif` their headers are looked at, too."""
    coco.path.write_text(json.dumps(coco.content))
    photos = open_labelled_photos(str(coco.path))
    return look_at_photos(photos, looked["exif"], is_needed=lambda image: (~image.ignored).any()) if looked else photos


def error_of(coco: SimpleNamespace, **looked: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        opened(coco, **looked)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- two photos of one id


@pytest.mark.parametrize(("second", "named"), [("labelled-0.jpg", "labelled-0.jpg"), ("labelled-0.png",) * 2])
def test_two_photos_of_one_id_are_refused_by_name(coco: SimpleNamespace, second: str, named: str) -> None:
    """Guards against one photo that gets the boxes of another: ids are names without extension."""
    coco.content["images"][1]["file_name"] = second
    message = error_of(coco)
    assert "two images have the id 'labelled-0': 'labelled-0.png' (number 0)" in message
    assert f"{named!r} (number 1)" in message
    with pytest.raises(ValueError, match="two images have the id 'labelled-0'"):
        read_coco_boxes(str(coco.path))
    if second != "labelled-0.png":
        assert len(read_coco_boxes(str(coco.path), id_rule="with-extension").images) == 5


def test_an_entry_written_twice_is_one_photo(coco: SimpleNamespace) -> None:
    before = opened(coco)
    coco.content["images"].append(coco.content["images"][0])
    assert opened(coco).digest == before.digest


# ---- boxes that are no pixels of their photos


def test_corners_in_place_of_sides_are_refused(coco: SimpleNamespace) -> None:
    """Guards against x1 y1 x2 y2 taken for x y width height, and clipped without a word."""
    for annotation in coco.content["annotations"]:
        x, y, width, height = annotation["bbox"]
        annotation["bbox"] = [x, y, x + width, y + height]
    message = error_of(coco)
    assert "reach over 1 % and 1 pixel outside their photos, first those of 'labelled-" in message
    assert "are these x1 y1 x2 y2? Expected are COCO's x y width height" in message


def test_shares_in_place_of_pixels_are_refused(coco: SimpleNamespace) -> None:
    for annotation in coco.content["annotations"]:
        annotation["bbox"] = [edge / 100 for edge in annotation["bbox"]]
    assert "lie in 0..1; expected COCO's x y width height in pixels" in error_of(coco)
    with pytest.raises(ValueError, match=r"lie in 0\.\.1"):
        read_coco_boxes(str(coco.path))


def test_a_few_boxes_a_little_outside_are_clipped_and_told(coco: SimpleNamespace) -> None:
    """Visual Genome's own reach outside now and then: no more than 5 % of them, and as `extract --boxes` measures."""
    inside = [{**coco.content["annotations"][0], "bbox": [5, 5, 20, 20]}] * 100
    on_edge = {**coco.content["annotations"][0], "bbox": [0, 0, 64 + 1.6, 48]}  # 1 % of 64 and a pixel are 1.64
    outside = {**coco.content["annotations"][0], "bbox": [0, 0, 64 + 1.7, 48]}
    coco.content["annotations"] = [*inside, on_edge, *[outside] * 4]
    photos = opened(coco)
    assert photos.facts()["boxes_clipped"] == 4 and photos.images[0].boxes[:, 2].max() == 64
    assert photos.notes() == ["4 boxes over 1 % and 1 pixel outside the photo: clipped to it"]
    coco.content["annotations"] += [outside] * 2
    assert "6 of 107 boxes reach over 1 %" in error_of(coco)


# ---- labels without sizes


def test_sizes_that_the_labels_lack_are_those_of_the_photos(coco: SimpleNamespace) -> None:
    """Without a size nothing was clipped or left out: photos became pure background. The digest stays the file's, so
    that runs of before go on."""
    for entry in coco.content["images"]:
        del entry["height"], entry["width"]
    boxes = [[10, 10, 20, 20]] * 60 + [[50, 30, 40, 40], [500, 500, 20, 20]]
    known = coco.content["annotations"][0]
    coco.content["annotations"] = [{**known, "bbox": box, "area": 100} for box in boxes]
    before = opened(coco)
    photos = opened(coco, exif="applied")
    image = photos.images[0]
    assert before.images[0].image_hw is None and image.image_hw == (48, 64)
    assert len(before.images[0].boxes) == 62 and len(image.boxes) == 61 and image.boxes[-1].tolist() == [50, 30, 64, 48]
    assert image.areas[-1] == 14 * 18 and image.areas[0] == 100
    assert photos.left_out == {"box outside the image": 1} and photos.digest == before.digest
    assert photos.facts() == {
        "left_out": {"box outside the image": 1}, "boxes_clipped": 2, "sizes_of_photos": 1, "named_again": 0,
    }  # fmt: skip
    assert "labels without width and height: those of 1 photo are from the photos" in photos.notes()


# ---- photos that are not there, are broken or of another size


def test_all_missing_photos_are_told_at_once(coco: SimpleNamespace) -> None:
    assert len(opened(coco, exif="applied").images) == 5
    for number in (1, 3):
        (coco.folder / f"labelled-{number}.png").unlink()
    message = error_of(coco, exif="applied")
    assert f"2 of the 5 photos of {coco.path} are not in {coco.folder}: labelled-1.png, labelled-3.png;" in message
    assert "--photos names the folder of the photos" in message


def test_photos_without_an_object_need_not_be_there(coco: SimpleNamespace) -> None:
    coco.content["annotations"] = [each for each in coco.content["annotations"] if each["image_id"] != 1]
    (coco.folder / "labelled-1.png").unlink()
    assert len(opened(coco, exif="applied").images) == 5


def test_a_broken_photo_is_told_with_what_may_be_done(coco: SimpleNamespace) -> None:
    """A run whose labels lost a photo is another run: the way out may not be to change the list."""
    (coco.folder / "labelled-2.png").write_bytes(b"no photo")
    message = error_of(coco, exif="applied")
    assert "labelled-2.png: no known image format; put a whole copy of it there, then a run goes on" in message


def turned(path: Path, *, pixels_hw: tuple[int, int]) -> None:
    """A photo whose EXIF tag asks for a quarter turn."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((*pixels_hw, 3), np.uint8)).save(path, exif=exif)


def test_a_photo_of_another_size_names_its_exif_tag(coco: SimpleNamespace) -> None:
    """Guards the way out where labels were made of the pixels as they are stored, and the other way round."""
    entry = coco.content["images"][0]
    entry["file_name"] = "labelled-0.jpg"
    turned(coco.folder / "labelled-0.jpg", pixels_hw=(48, 64))
    message = error_of(coco, exif="applied")
    told = "48x64 pixels, its labels were made for 64x48; its EXIF tag turned it: --set conventions.exif_orie"
    assert told in message
    assert "conventions.exif_orientation=ignored" in message
    assert opened(coco, exif="ignored").images[0].image_hw == (48, 64)
    entry["height"], entry["width"] = 64, 48
    coco.content["annotations"] = [{**coco.content["annotations"][0], "bbox": [5, 5, 20, 20]}]
    assert "--set conventions.exif_orientation=applied" in error_of(coco, exif="ignored")
    assert opened(coco, exif="applied").images[0].image_hw == (64, 48)
    del entry["height"], entry["width"]
    assert [opened(coco, exif=way).images[0].image_hw for way in ("applied", "ignored")] == [(64, 48), (48, 64)]
    cv2.imwrite(str(coco.folder / "labelled-0.jpg"), np.zeros((10, 12, 3), np.uint8))
    entry["height"], entry["width"] = 64, 48
    assert "boxes would not fit the photo" in error_of(coco, exif="applied")


# ---- names, ids, crowds


def test_two_categories_of_one_name_are_refused(coco: SimpleNamespace) -> None:
    coco.content["categories"][2]["name"] = "ball"
    assert "the categories 1 and 3 are both named 'ball'; rename one" in error_of(coco)


@pytest.mark.parametrize(
    ("number", "way_out"), [("1", "write it without quotes"), ("a", "number what it names from 1 on")]
)
def test_ids_that_are_texts_have_a_way_out(coco: SimpleNamespace, number: str, way_out: str) -> None:
    for image in coco.content["images"]:
        image["id"] = number
    assert f'id must be a whole number, got "{number}"; {way_out}' in error_of(coco)


def test_a_file_of_crowds_alone_is_told_as_such(coco: SimpleNamespace) -> None:
    for annotation in coco.content["annotations"]:
        annotation["iscrowd"] = 1
    assert "none of its 5 photos has an object to learn from: all of its 12 boxes are crowds or" in error_of(coco)


def test_a_photo_listed_twice_counts_once_in_an_evaluation(coco: SimpleNamespace) -> None:
    photos = opened(coco)
    twice = LabelledPhotos((*photos.images, photos.images[1]), photos.root, photos.class_names, (), {})
    assert twice.num_repeats == 1 and "1 row of the list name a photo again; each counts" in twice.notes()
    assert twice.once().images == photos.images and twice.once(2).images == photos.images[:2]


# ---- the commands


def test_the_commands_tell_it_before_the_first_step(roibeam: Any, coco: SimpleNamespace, tmp_path: Path) -> None:
    """Notes come first and stay in the run's configuration; a missing photo leaves no run behind."""
    known = coco.content["annotations"][0]
    coco.content["annotations"] += [{**known, "bbox": [5, 5, 0, 10]}]
    opened(coco)
    options = [
        "--detector", "toy", "--device", "cpu", "--steps", 1, "--batch-size", 1, "--set", "detector.base_channels=4",
        "--set", "detector.short_edge=48", "--set", "detector.long_edge=64", "--set", "train.checkpoint_every=0",
        "--set", "detector.proposals_before_nms=60", "--set", "detector.proposals_after_nms=20",
    ]  # fmt: skip
    done = ok(roibeam("detector", "train", tmp_path / "run", "--labels", coco.path, *options, "--json"))
    assert "left out of the labels: 1 x box without area" in done.err
    assert json.loads(done.out)["labels"]["left_out"] == {"box without area": 1}
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["recorded"]
    assert recorded["left_out"] == {"box without area": 1} and recorded["boxes_clipped"] == 0
    model = json.loads(done.out)["detector"]
    name = coco.folder / "labelled-0.png"
    name.unlink()
    for command in (["train", tmp_path / "second"], ["evaluate", model]):
        failed = roibeam("detector", *command, "--labels", coco.path, *(options if command[0] == "train" else ()))
        assert failed.code == 1 and "1 of the 5 photos of" in failed.err
    assert not (tmp_path / "second").exists()
    assert roibeam("detector", "evaluate", model, "--labels", coco.path, "--set", "conventions.x=1").code == 1


def test_read_photo_names_no_option_of_another_command(coco: SimpleNamespace) -> None:
    photos = opened(coco)
    words = r"gone/labelled-0\.png: No such file or directory; put the photo there"
    with pytest.raises(ValueError, match=words) as said:
        read_photo(photos.images[0], str(coco.folder / "gone"), "applied")
    assert "pretrain" not in str(said.value)
