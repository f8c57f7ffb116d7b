"""Given boxes: every published form of them is read, joined to its images, and described in number and order."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from small_files import write_text
from tiny_commands import Cli, Pictures, digest, ok

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.photos.image_ref import IMAGE_EXTENSIONS
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.exchange.butd_tsv import ButdTsv
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.image_ids import short_name
from roibeam.pipelines.data.datasets.coco import read_coco_boxes
from roibeam.pipelines.data.datasets.vcr import read_vcr_boxes
from roibeam.pipelines.data.given_boxes import give_boxes, read_box_lines
from roibeam.pipelines.data.image_table import ImageFinder
from roibeam.pipelines.data.source_kinds import open_source

TINY = replace(CONFIGS["small"], short_edge=48, long_edge=80, proposals_after_nms=16, base_channels=4)


@pytest.fixture
def photos(pictures: Pictures) -> Path:
    """Eight pictures of at least 200 x 200 pixels; shared: read only."""
    return pictures.photos


def write_rows(path: Path, rows: dict[str, list[list[float]]]) -> Path:
    path.write_text("".join(json.dumps({"image_id": name, "boxes": boxes}) + "\n" for name, boxes in rows.items()))
    return path


def some_boxes(count: int) -> list[list[float]]:
    """Boxes inside 200 x 200 pixels, by no order a detector would give them."""
    rng = np.random.default_rng(count)
    corners = rng.uniform(0, 150, (count, 2))
    return np.hstack([corners, corners + rng.uniform(0, 50, (count, 2))]).tolist()


def one_line(result: Any) -> str:
    lines = [line for line in result.err.splitlines() if line.startswith("roibeam: ")]
    assert result.code == 1 and len(lines) == 1 and "Traceback" not in result.err, result.err
    return lines[0]


# ---- readers


def test_coco_images_without_annotations_and_crowds_are_there(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "b.jpg"}, {"id": 2, "file_name": "a.jpg", "height": 4, "width": 5}]
    boxes = [{"image_id": 1, "bbox": [1, 2, 0, 3], "iscrowd": 1}, {"image_id": 1, "bbox": [0.5, 0, 2, 2], "iscrowd": 0}]
    (tmp_path / "c.json").write_text(json.dumps({"images": images, "annotations": boxes}))
    found = read_coco_boxes(str(tmp_path / "c.json"))
    assert found.num_crowd == 1
    read = [(image.name, image.boxes.tolist(), image.image_hw) for image in found.images]
    assert read == [("b", [[1, 2, 1, 5], [0.5, 0, 2.5, 2]], None), ("a", [], (4, 5))]


def test_vcr_metadata_of_the_pack(made_data: Path) -> None:
    path = made_data / "formats" / "vcr" / "vcr1images" / "pack" / "000000196393.json"
    found = read_vcr_boxes(str(path), "cat")
    content = json.loads(path.read_text())
    assert found.name == "cat" and found.image_hw == (480, 640)
    np.testing.assert_array_equal(found.boxes, np.array(content["boxes"], np.float32)[:, :4])


def test_box_lines_take_numbers_and_names(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"image_id": 7, "boxes": [], "height": 3, "width": 4}\r\n\n'
        b'{"image_id": "\xc3\xa9", "boxes": [[0, 0.1, 2, 3]], "score": 1}'
    )
    first, second = read_box_lines(str(path))
    assert (first.name, first.boxes.shape, first.image_hw) == ("7", (0, 4), (3, 4))
    assert (second.name, second.image_hw) == ("é", None)
    np.testing.assert_array_equal(second.boxes, np.array([[0, 0.1, 2, 3]], np.float32))


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("vcr.json", "{", "not a json file"),
        ("vcr.json", "[" * 100_000, "not a json file"),
        ("vcr.json", "[]", 'expected VCR metadata with "boxes"'),
        ("vcr.json", '{"boxes": [[0, 0, 1, 1]]}', "box 0: expected 5 finite numbers"),
        ("vcr.json", '{"boxes": 3}', "expected a list of boxes, got 3"),
        ("lines", '{"image_id": 1}', "line 1 lacks boxes; expected"),
        ("lines", '{"boxes": []}', "line 1 lacks image_id; expected"),
        ("lines", '{"img_fn": "a.jpg", "metadata_fn": "a.json"}', "for VCR give the folder vcr1images"),
        ("lines", '{"image_id": true, "boxes": []}', "image_id must be text or a whole number, got true"),
        ("lines", '{"image_id": 1, "boxes": [[0, 0, 1, 1e10]]}', "line 1, box 0: expected 4 finite numbers"),
        ("lines", '{"image_id": 1, "boxes": [[0, 0, 1, Infinity]]}', "box 0: expected 4 finite numbers"),
        ("lines", json.dumps({"image_id": 1, "boxes": [[0, 0, 1, 1]] * 65536}), "65536 boxes, at most 65535 fit"),
        ("lines", '{"image_id": ' + " " * 2**24 + "1}", "longer than 16777216 bytes"),
    ],
)
def test_boxes_of_another_shape_are_one_error(tmp_path: Path, file: str, text: str, words: str) -> None:
    path = tmp_path / file
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_vcr_boxes(str(path), "a") if file == "vcr.json" else list(read_box_lines(str(path)))


# ---- which boxes belong to which image


def test_entries_are_found_by_id_then_name_then_coco_number() -> None:
    ids = [
        "a/x", "b/x", "b/y.1", "w.jpg", "c/d/v", "d/v", "COCO_train2014_000000000042", "val/000000000007",
        "z_000000000007",
    ]  # fmt: skip
    finder = ImageFinder(ids)
    coco = "COCO_train2014_000000000042"
    expected = {
        "b/x": "b/x", "data/b/x.png": "b/x", "a/" * 5000 + "x": "a/x",
        "x": None,  # two images have this name
        "c/x": None,  # a folder that neither image is in
        "y": None,  # only an image extension comes off
        "y.1.jpg": "b/y.1", "elsewhere/y.1.jpg": None, "b\\y.1.JPG": "b/y.1", "./b//y.1.webp": "b/y.1", "bb/y.1": None,
        "w.png": "w.jpg", "any/where/w": "w.jpg", "d/v.jpg": "d/v", "c/d/v.jpg": "c/d/v", "e/d/v": "d/v",
        "42": coco, f"{coco}.jpg": coco, "-42": None, "٤٢": None, "": None, "1" * 5000: None,
        "7": None,  # two images have this number
    }  # fmt: skip
    assert {name: finder.find(name) for name in expected} == expected


def test_ids_with_dots_keep_them_and_their_folder(tmp_path: Path) -> None:
    """VCR names frames by their times, written with dots: what follows the last one is no extension."""
    first, second = "1054_Harry_00.00.05.905-00.00.07.083@0", "1054_Harry_00.01.10.000-00.01.12.500@0"
    for name in (first, second):
        write_text(tmp_path / "vcr1images" / "lsmdc_1" / f"{name}.jpg", "")
    rows = {
        f"lsmdc_1/{first[:-1]}1": [[1, 2, 30, 40]],  # another frame
        f"lsmdc_1/{second[:-5]}777@3": [[5, 6, 70, 80]],
        f"other_movie/{first}": [[5, 6, 70, 80]],
        f"vcr1images/lsmdc_1/{second}.jpg": [[0, 0, 1, 1]],
    }
    path = write_rows(tmp_path / "b.jsonl", rows)
    source, boxes = give_boxes(open_source(str(tmp_path / "vcr1images")), str(path))
    assert [image.image_id for image in source.images] == [f"lsmdc_1/{second}"]
    assert boxes.attach(source.images[0]).boxes == ((0, 0, 1, 1),)
    assert f"3 entries of {path} name no image of the source, such as 'lsmdc_1/{first[:-1]}1'" in source.notes
    assert {short_name(f"a/00.07@0{extension}") for extension in IMAGE_EXTENSIONS} == {"00.07@0"}


def test_images_and_entries_without_each_other_are_counted(photos: Path, tmp_path: Path) -> None:
    rows = {"sample_00003": [[0, 0, 1, 1]], "images/sample_00001.jpg": [], "stranger": [], "other": []}
    source, boxes = give_boxes(open_source(str(photos)), str(write_rows(tmp_path / "b.jsonl", rows)))
    assert [image.image_id for image in source.images] == ["sample_00001", "sample_00003"]
    assert len(boxes) == 2 and boxes.attach(source.images[0]).boxes == ()
    assert source.notes == [
        f"6 images left out: {tmp_path}/b.jsonl does not name them",
        f"2 entries of {tmp_path}/b.jsonl name no image of the source, such as 'stranger'",
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("b.jsonl", "", "it names no image; the source has 'sample_00000'"),
        ("b.jsonl", '{"image_id": "x", "boxes": []}', "it names 1 image, such as 'x'; the source has 'sample_00000'"),
        (
            "b.jsonl",
            '{"image_id": "sample_00001", "boxes": []}\n{"image_id": "sample_00001.jpg", "boxes": [[0, 0, 1, 1]]}',
            "two entries with different boxes for the image 'sample_00001'",
        ),
        (
            "b.jsonl",
            '{"image_id": "sample_00001", "boxes": [0, 0, 9, 9]}',
            "boxes is a list of lists, one of 4 numbers",
        ),
        ("b.txt", "x", "expected boxes as COCO instances"),
        ("b.tsv", "x", "b.tsv"),
        ("b.json", "{}", "expected a COCO file"),
        ("b.json", '[{"image_id": 5}]', "entry 0: expected box, of type list"),
    ],
)
def test_unusable_box_files_are_one_error(photos: Path, tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        give_boxes(open_source(str(photos)), str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_detections_of_mattnet_are_joined_by_the_number_of_coco(tmp_path: Path) -> None:
    for number in (5, 6):
        write_text(tmp_path / "images" / f"COCO_train2014_{number:012d}.jpg", "")
    rows = [(5, [1, 2, 3, 4]), (7, [0, 0, 1, 1]), (5, [0.5, 0, 10, 20])]
    path = tmp_path / "dets.json"
    path.write_text(json.dumps([{"image_id": number, "box": box, "score": 0.9} for number, box in rows]))
    source, boxes = give_boxes(open_source(str(tmp_path / "images")), str(path))
    (image,) = source.images
    assert boxes.attach(image).boxes == ((1, 2, 4, 6), (0.5, 0, 10.5, 20))


def test_a_repeated_entry_is_one_entry(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"image_id": "sample_00001", "boxes": [[0, 0, 1, 1]]}\n' * 2)
    assert len(give_boxes(open_source(str(photos)), str(tmp_path / "b.jsonl"))[1]) == 1


@pytest.mark.parametrize(("file", "count"), [("six_columns.tsv", 3), ("train2014_obj36.tsv", 10)])
def test_boxes_of_a_published_tsv_join_its_photos(shared_data: Path, file: str, count: int) -> None:
    path = shared_data / "formats" / "butd_tsv" / file
    source, boxes = give_boxes(open_source(str(shared_data / "images" / "COCO*.jpg")), str(path))
    assert len(source.images) == count
    with ButdTsv(path) as tsv:
        for record in tsv.outcomes():
            assert isinstance(record, RegionRecord)
            (image,) = [each for each in source.images if each.image_id.endswith(record.image_id[-6:])]
            np.testing.assert_array_equal(np.array(boxes.attach(image).boxes, np.float32), record.boxes)
            assert boxes.attach(image).boxes_hw == (record.height, record.width)


def test_bad_entries_of_a_tsv_are_counted(shared_data: Path, tmp_path: Path) -> None:
    data = (shared_data / "formats" / "butd_tsv" / "six_columns.tsv").read_bytes()
    (tmp_path / "b.tsv").write_bytes(data + b"573\t1\n")
    source, _ = give_boxes(open_source(str(shared_data / "images" / "COCO*.jpg")), str(tmp_path / "b.tsv"))
    assert f"1 line of {tmp_path}/b.tsv left out: 1 wrong columns" in source.notes


# ---- whole runs


@pytest.mark.parametrize("conventions", ["hf", "caffe"])
def test_stored_regions_are_those_that_the_detector_gives_for_the_boxes(
    roibeam: Cli, extract: Cli, photos: Path, tmp_path: Path, conventions: str
) -> None:
    rows = {f"sample_{i:05d}": some_boxes(count) for i, count in enumerate([1, 3, 0, 36, 300])}
    out = tmp_path / "store"
    options = ("--boxes", write_rows(tmp_path / "b.jsonl", rows), "--dtype", "float32", "--image-feature", "region")
    done = ok(extract(photos, out, *options, "--conventions", conventions))
    assert "5 records with 340 regions" in done.out and "3 images left out" in done.out
    assert "note: --selection does nothing with --boxes" in done.err
    detector = build_detector(TINY, weights="random:1", conventions=CONVENTIONS[conventions])
    with FeatureStore(out) as store:
        for image_id, boxes in rows.items():
            pixels = cv2.imread(str(photos / f"{image_id}.jpg"))
            assert pixels is not None
            wanted = np.array(boxes, np.float32).reshape(-1, 4)
            (regions,) = detector([pixels], boxes=[wanted], whole_image=True)
            record = store[image_id]
            np.testing.assert_array_equal(record.boxes, wanted)
            np.testing.assert_array_equal(record.features, regions.features)
            np.testing.assert_array_equal(record.class_ids, regions.class_ids)
            np.testing.assert_array_equal(record.image_feature, regions.image_feature)
        details = store.fingerprint.details
        assert details["regions"] == "given" and details["image_feature"] == "region"
        assert store.manifest.config["source"]["boxes"] == str(tmp_path / "b.jsonl")
    ok(roibeam("store", "verify", out, "--deep"))


def many_boxes(folder: Path) -> Path:
    return write_rows(folder / "b.jsonl", {f"sample_{i:05d}": some_boxes(1 + 7 * i) for i in range(6)})


def test_boxes_give_one_store_for_any_shard_size_and_reruns_mend_it(extract: Cli, photos: Path, tmp_path: Path) -> None:
    boxes, one, many = ("--boxes", many_boxes(tmp_path)), tmp_path / "one", tmp_path / "many"
    run = (photos, many, *boxes, "--shard-size", 2, "--decode-threads", 3)
    ok(extract(photos, one, *boxes))
    ok(extract(*run))
    assert digest(one) == digest(many)
    next(many.glob("part-00001.*.lmdb")).unlink()
    assert "2 images extracted" in ok(extract(*run)).out
    assert digest(one) == digest(many)
    assert "nothing to do" in extract(*run).out


@pytest.mark.slow
def test_given_boxes_give_one_store_for_any_number_of_workers(extract: Cli, photos: Path, tmp_path: Path) -> None:
    run = ("--boxes", many_boxes(tmp_path), "--threads", 1, "--shard-size", 2, "--image-feature", "resnet18=random:1")
    ok(extract(photos, tmp_path / "one", *run))
    workers = ("--", "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    ok(extract(photos, tmp_path / "many", *run, *workers))
    assert digest(tmp_path / "one") == digest(tmp_path / "many")


def test_a_store_holds_the_regions_of_one_set_of_boxes(extract: Cli, pictures: Pictures, tmp_path: Path) -> None:
    rows = {f"sample_{i:05d}": some_boxes(3) for i in range(4)}
    out, boxes = tmp_path / "store", write_rows(tmp_path / "b.jsonl", rows)
    run = (pictures.photos, out, "--boxes", boxes)
    ok(extract(*run))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    other = write_rows(tmp_path / "other.jsonl", rows)
    assert f"source: boxes was {boxes}, is now {other}" in one_line(extract(*run[:-1], other))
    assert "source: boxes was" in one_line(extract(*run[:-2]))
    changed = "feature_space.image_feature was none, is now region"
    assert changed in one_line(extract(*run, "--image-feature", "region"))
    write_rows(boxes, rows | {"sample_00002": [[0, 0, 1, 1]]})
    line = one_line(extract(*run))
    assert f"was made with other boxes than {boxes} holds now for 1 image, such as 'sample_00002'" in line
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    write_rows(boxes, rows | {"sample_00005": [[0, 0, 2, 2]]})
    assert "1 image extracted" in ok(extract(*run)).out
    with FeatureStore(out) as store:
        assert len(store) == 5 and len(store.manifest.shards) == 2

    proposed = shutil.copytree(pictures.store, tmp_path / "proposed")
    assert "source: boxes was None, is now" in one_line(extract(pictures.photos, proposed, *run[2:]))


def test_boxes_of_another_photo_are_dead_letters_that_name_the_box(extract: Cli, photos: Path, tmp_path: Path) -> None:
    rows = {
        "sample_00000": [[0, 0, 9, 9], [10, 10, 5, 90]],  # x, y, width, height
        "sample_00001": [[0, 0, 9, 9], [0, 0, 5, 900]],
        "sample_00002": [[0, 0, 200, 200]],
    }
    boxes = write_rows(tmp_path / "b.jsonl", rows)
    with boxes.open("a") as file:
        file.write('{"image_id": "sample_00003", "boxes": [[0, 0, 9, 9]], "height": 20, "width": 20}\n')
    ok(extract(photos, tmp_path / "out", "--boxes", boxes, "--max-failures", 1))
    letters = pq.read_table(tmp_path / "out" / "dead_letters.parquet").to_pylist()
    assert [(letter["image_id"], letter["stage"], letter["reason"]) for letter in letters] == [
        ("sample_00000", "detect", "not a box"),
        ("sample_00001", "detect", "box outside the photo"),
        ("sample_00003", "detect", "boxes of another image size"),
    ]
    assert letters[0]["detail"].startswith("box 1 of 2 (from 0) is 10 10 5 90; expected finite x1 y1 x2 y2")
    with FeatureStore(tmp_path / "out") as store:
        assert list(store.ids()) == ["sample_00002"]


def test_vcr_questions_and_their_metadata(extract: Cli, made_data: Path, tmp_path: Path) -> None:
    vcr = Path(shutil.copytree(made_data / "formats" / "vcr", tmp_path / "vcr"))
    (vcr / "vcr1images" / "pack" / "000000215657.json").unlink()
    done = ok(extract(vcr / "val.jsonl", tmp_path / "out", "--boxes", vcr / "vcr1images"))
    assert "1 image left out" in done.out
    with FeatureStore(tmp_path / "out") as store:
        assert "pack/000000215657" not in store
        metadata = json.loads((vcr / "vcr1images" / "pack" / "000000330993.json").read_text())
        expected = np.array(metadata["boxes"], np.float32)[:, :4]
        np.testing.assert_allclose(store["pack/000000330993"].boxes, expected, atol=1)


def test_the_network_of_the_whole_photo_is_part_of_the_feature_space(
    roibeam: Cli, extract: Cli, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    ok(extract(photos, out, "--image-feature", "resnet18=random:1"))
    assert "image feature   resnet18, 512 wide, weights random:1\n" in roibeam("store", "info", out).out
    with FeatureStore(out) as store:
        assert store.fingerprint.details["image_feature"]["network"] == "resnet18"
        feature = store["sample_00000"].image_feature
        assert feature is not None and feature.shape == (512,)
    line = one_line(extract(photos, out, "--image-feature", "resnet18=random:2"))
    assert "feature_space.image_feature.weights was" in line


def test_exif_orientation_as_the_conventions_say(extract: Cli, shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    shutil.copy(shared_data / "images" / "awkward" / "exif_orientation_6.jpg", tmp_path / "photos" / "a.jpg")
    for value, name, height_width in (
        ("applied", "hf", (640, 407)), ("ignored", "hf, but exif_orientation ignored", (407, 640)),
    ):  # fmt: skip
        ok(extract(tmp_path / "photos", tmp_path / value, "--set", f"conventions.exif_orientation={value}"))
        with FeatureStore(tmp_path / value) as store:
            assert store.manifest.config["conventions"] == name
            assert (store["a"].height, store["a"].width) == height_width


def test_another_input_size_than_the_published_one_is_noted(roibeam: Cli, photos: Path, tmp_path: Path) -> None:
    # Stops after the notes, before the network is built.
    (tmp_path / "one_name.txt").write_text("dog\n")
    command = ("extract", photos, tmp_path / "out", "--weights", "random:1", "--vocab", tmp_path / "one_name.txt")
    assert "note: photos" not in roibeam(*command).err
    assert "note: photos" not in roibeam(*command, "--conventions", "hf", "--detector", "vg-r101-c4").err
    noted = roibeam(*command, "--conventions", "hf").err
    assert "note: photos are resized to 600/1000 pixels" in noted and "--detector vg-r101-c4 has" in noted
