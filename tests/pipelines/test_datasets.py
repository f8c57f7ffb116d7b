"""Readers of data sets and of json: real samples, made files with every oddity, damaged or hostile ones."""

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_examples import assert_refused, write

from roibeam.pipelines.data.captions.caption_files import read_captions
from roibeam.pipelines.data.datasets import image_boxes, rows
from roibeam.pipelines.data.datasets.caption_lists import read_sbu
from roibeam.pipelines.data.datasets.coco import read_coco, read_coco_boxes, read_coco_instances
from roibeam.pipelines.data.datasets.image_boxes import LabelledImage
from roibeam.pipelines.data.datasets.karpathy import KarpathySentence, read_karpathy
from roibeam.pipelines.data.datasets.rows import BadRow, CaptionRow, read_json_members, read_lines
from roibeam.pipelines.data.datasets.text_sets import TextLine, read_text_corpus
from roibeam.pipelines.data.datasets.visual_genome import (
    NameList,
    SplitRow,
    read_annotation,
    read_names,
    read_split,
    read_visual_genome,
)
from roibeam.pipelines.data.source_kinds import open_source

PIECES = (
    '{"a": [1, "x\\u00e9", {"b": [2, 3]}], "n": 12345, "m": [-1.25, 1e5, -0.5E-7, 0, 12, NaN, -Infinity, false], '
    '"empty": [ ], "f": -1.5e3, "o": {"p": null}, "t": true}'
)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_json_members_are_those_of_json_wherever_the_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(rows, "_CHUNK_CHARACTERS", chunk)
    for text in (PIECES, PIECES.replace(" ", ""), PIECES.replace(" ", "\r\n\t "), "\ufeff" + PIECES + "\n"):
        path = write(tmp_path / "a.json", text)
        found: dict[str, Any] = {}
        for name, index, entry in read_json_members(path, expected="x"):
            assert index is None or index == len(found.setdefault(name, []))
            found[name] = entry if index is None else [*found[name], entry]
        assert repr(found) == repr(json.loads(PIECES))  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not a json file"),
        ("{", 'not a json file (expected ", got the end of the file'),
        (b'{"a": "\xff"}', "not a json file"),
        ('{"a": [1, 2', "expected , or ], got the end of the file"),
        ('{"a": [1 2]}', "expected , or ], got '2' at character 9"),
        ('{"a": [1,]}', "Expecting value at character 9"),
        ('{"a": 1,}', "not a json file"),
        ('{"a": 1', "expected , or }, got the end"),
        ('{"a" 1}', "expected :, got '1'"),
        ("{1: 2}", "expected \", got '1'"),
        ('{"a": 1} {"a": 2}', "something follows the object"),
        ('{"a": 1, "a": [2]}', "two members are called 'a'"),
        ('{"a": ' + "[" * 10 + "9" * 5000 + "]" * 10 + "}", "not a json file"),
        ('{"a": ' + '{"b": ' * 100_000, "not a json file"),
        ("[1, 2]", "expected x, got other json"),
        ('"text"', "expected x, got other json"),
        ("nonsense", "not a json file"),
    ],
)
def test_damaged_json_is_one_error(tmp_path: Path, content: str | bytes, words: str) -> None:
    assert_refused(lambda path: read_json_members(path, expected="x"), write(tmp_path / "a.json", content), words)


def test_an_entry_without_end_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(rows, "MAX_ENTRY_CHARACTERS", 1000)
    short = write(tmp_path / "a.json", {"images": ["x" * 900] * 20})
    assert len(list(read_json_members(short, expected="x"))) == 20  # a list may be long
    long = write(tmp_path / "b.json", {"images": ["y", "x" * 9000]})
    assert_refused(lambda path: read_json_members(path, expected="x"), long, "entry of over 1000 characters")


SIZED = [{"id": 7, "file_name": "b.jpg", "height": 40, "width": 50}, {"id": 2, "file_name": "a.jpg"}]
TWO_CLASSES = [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person", "supercategory": "person"}]


def instances(tmp_path: Path, *annotations: dict[str, Any], **other: Any) -> str:
    # Annotations first: a reader may not rely on the order of the lists.
    content = {"annotations": list(annotations), "categories": TWO_CLASSES, "images": SIZED, **other}
    return write(tmp_path / "i.json", content)


def box(*bbox: float, **other: Any) -> dict[str, Any]:
    return {"image_id": 7, "bbox": list(bbox), "category_id": 90, **other}


def test_instances_of_the_pack(made_data: Path) -> None:
    path = made_data / "coco" / "instances_train2014.json"
    content = json.loads(path.read_text())
    found = read_coco_instances(str(path))
    assert len(found.class_names) == 80 and found.class_names[-1] == "toothbrush"
    by_id = {entry["id"]: entry for entry in content["annotations"]}
    names = {entry["id"]: entry["name"] for entry in content["categories"]}
    assert sum(len(image.boxes) for image in found.images) == len(by_id) == 79
    plain = read_coco_boxes(str(path))
    assert plain.num_crowd == 0
    for image, entry, own in zip(found.images, content["images"], plain.images, strict=True):
        rows = [each["bbox"] for each in content["annotations"] if each["image_id"] == entry["id"]]
        expected = np.array([[x, y, x + width, y + height] for x, y, width, height in rows], np.float32)
        np.testing.assert_array_equal(own.boxes, expected)
        assert own.image_hw == (entry["height"], entry["width"])
        assert image.image_hw == (entry["height"], entry["width"]) and image.left_out == ()
        assert image.file_name == entry["file_name"] and image.attribute_ids.shape == (len(image.boxes), 0)
        assert (image.boxes[:, 2] <= entry["width"]).all() and (image.boxes[:, 3] <= entry["height"]).all()
        for k, number in enumerate(image.annotation_ids.tolist()):
            x, y, width, height = by_id[number]["bbox"]
            np.testing.assert_allclose(image.boxes[k], [x, y, x + width, y + height], atol=0.02)  # clipped by rounding
            assert found.class_names[image.class_ids[k]] == names[by_id[number]["category_id"]]
            assert image.areas[k] == np.float32(by_id[number]["area"]) and not image.ignored[k]


def test_instances_have_contiguous_classes_marks_and_areas(tmp_path: Path) -> None:
    found = read_coco_instances(instances(
        tmp_path, box(1, 2, 3, 4, id=5, area=6.5, iscrowd=0),
        {"image_id": 2, "bbox": [0, 0, 900, 900], "category_id": 1, "iscrowd": 1},
        box(-1, 30, 10.5, 20, category_id=1, ignore=1),
    ))  # fmt: skip
    assert found.class_names == ("person", "toothbrush")
    b, a = found.images
    assert (b.image_id, b.image_hw, a.image_id, a.image_hw) == ("b", (40, 50), "a", None)
    assert b.boxes.tolist() == [[1, 2, 4, 6], [0, 30, 9.5, 40]] and b.boxes.dtype == np.float32
    assert b.class_ids.tolist() == [1, 0] and b.annotation_ids.tolist() == [5, -1] and b.areas.tolist() == [6.5, 95]
    assert b.crowds.tolist() == [False, False] and b.ignored.tolist() == [False, True]
    assert a.crowds.tolist() == [True] and a.ignored.tolist() == [True] and a.boxes.tolist() == [[0, 0, 900, 900]]


def test_boxes_without_area_are_left_out_and_counted(tmp_path: Path) -> None:
    bad = (box(1, 2, 3, 0), box(1, 2, -3, 4), box(50, 0, 3, 4), box(0, -5, 3, 5))
    found = read_coco_instances(instances(tmp_path, *bad, box(1, 1, 1, 1, id=4)))
    assert found.images[0].left_out == ("box without area",) * 2 + ("box outside the image",) * 2
    assert found.images[0].annotation_ids.tolist() == [4]
    assert found.images[1].boxes.shape == (0, 4)  # no annotation: still a row


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (box(0, 0, 1, 1, category_id=3), "annotations[0]: category_id 3 is not among the 2 categories"),
        (box(0, 0, 1, 1, category_id="1"), "category_id must be a whole number"),
        (box(0, 0, 1, 1, id=2**63), "id must be a whole number"),
        (box(0, 0, 1, 1, area="big"), 'area must be a finite number of pixels, got "big"'),
        (box(0, 0, 1, 1, area=float("nan")), "area must be a finite number"),
    ],
)
def test_instances_of_another_shape_are_one_error(tmp_path: Path, annotation: dict[str, Any], words: str) -> None:
    assert_refused(read_coco_instances, instances(tmp_path, annotation), words)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (box(0, 0, 1), "annotations[0], box 0: expected 4 finite numbers, got [0, 0, 1]"),
        (box() | {"bbox": {"x": 1}}, "expected 4 finite numbers, got"),
        (box(0, 0, True, 1), "expected 4 finite numbers"),
        (box(0, 0, float("nan"), 1), "expected 4 finite numbers"),
        (box(0, 0, 10**400, 1), "expected 4 finite numbers"),
        (box(0, 0, 1, 1, image_id=9), "the box names image 9, which is not among the images"),
        ({"bbox": [0, 0, 1, 1]}, "annotations[0] lacks image_id"),
        ({"image_id": 7, "caption": "x"}, "annotations[0] lacks bbox; give the instances file"),
    ],
)
def test_boxes_of_another_shape_are_one_error(tmp_path: Path, annotation: dict[str, Any], words: str) -> None:
    for read in (read_coco_instances, read_coco_boxes):
        assert_refused(read, instances(tmp_path, annotation), words)


def test_instances_need_their_lists(tmp_path: Path) -> None:
    twice = [*TWO_CLASSES, {"id": 1, "name": "again"}]
    for other, words in (
        ({"categories": None}, 'lacks "categories"'), ({"categories": {"id": 1}}, 'lacks "categories"'),
        ({"categories": twice}, "two categories have the id 1"), ({"images": None}, "expected a COCO file"),
    ):  # fmt: skip
        assert_refused(read_coco_instances, instances(tmp_path, **other), words)


def test_captions_that_are_no_text_are_one_error(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", {"images": SIZED, "annotations": [{"image_id": 2, "caption": "\ud800"}]})
    assert_refused(read_coco, path, "annotations[0]: the caption holds half a surrogate pair")


OBJECTS = NameList(("stop sign", "tree"), {"stop sign": 0, "stopsign": 0, "tree": 1})
ATTRIBUTES = NameList(("gray", "tall"), {"gray": 0, "grey": 0, "tall": 1})


def xml_object(name: str, sides: tuple[object, ...], *attributes: str, more: str = "") -> str:
    edges = zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=False)
    bounds = "".join(f"<{edge}>{value}</{edge}>" for edge, value in edges)
    tags = "".join(f"<attribute>{each}</attribute>" for each in attributes)
    return f"<object><name>{name}</name>{more}<bndbox>{bounds}</bndbox>{tags}</object>"


def annotation(tmp_path: Path, *objects: str, size: str = "<width>50</width><height>40</height>") -> LabelledImage:
    relation = "<relation><subject_id>1</subject_id><object_id>2</object_id><predicate>on</predicate></relation>"
    text = f"<annotation><folder>VG</folder><size>{size}</size>{''.join(objects)}{relation}</annotation>"
    return annotation_in(write(tmp_path / "1.xml", text))


def annotation_in(path: str) -> LabelledImage:
    return read_annotation(path, "VG/1", "VG/1.jpg", OBJECTS, ATTRIBUTES)


def test_an_annotation_gives_boxes_classes_and_attributes(tmp_path: Path) -> None:
    found = annotation(
        tmp_path,
        xml_object(" StopSign ", (-1, 2, 60, 12.5), "Grey", "gray", "tall", more="<object_id>1058498</object_id>"),
        xml_object("tree", (3, 4, 5, 6), more="<difficult>1</difficult>"),
        xml_object("dog", (3, 4, 5, 6)),
        xml_object("tree", (1, 1, 2, 2), "&#233;t&amp;", "tall"),
    )
    assert (found.image_id, found.file_name, found.image_hw) == ("VG/1", "VG/1.jpg", (40, 50))
    assert found.boxes.tolist() == [[0, 2, 50, 12.5], [3, 4, 5, 6], [1, 1, 2, 2]]
    assert found.class_ids.tolist() == [0, 1, 1] and found.annotation_ids.tolist() == [1058498, -1, -1]
    assert found.attribute_ids.tolist() == [[0, 1], [-1, -1], [1, -1]]
    assert found.areas.tolist() == [525, 4, 1] and found.ignored.tolist() == [False, True, False]
    assert Counter(found.left_out) == {"object not in the vocabulary": 1, "attribute not in the vocabulary": 1}


@pytest.mark.parametrize(
    ("sides", "reason"),
    [
        ((1, 1, 1, 4), "box without area"),
        ((9, 1, 1, 4), "box without area"),
        ((50, 1, 60, 4), "box outside the image"),
        ((1, 1, "x", 4), "object without a box"),
        ((1, 1, "nan", 4), "object without a box"),
        ((1, 1, 4), "object without a box"),
    ],
)
def test_objects_without_a_box_are_left_out(tmp_path: Path, sides: tuple[object, ...], reason: str) -> None:
    found = annotation(tmp_path, xml_object("tree", sides), xml_object("tree", (1, 1, 2, 2), "tall"))
    assert found.left_out == (reason,) and found.attribute_ids.tolist() == [[1]]


def test_an_annotation_without_size_or_objects_is_still_read(tmp_path: Path) -> None:
    found = annotation(tmp_path, xml_object("tree", (1, 1, 999, 2)), size="<width>x</width><height>0</height>")
    assert found.image_hw is None and found.boxes.tolist() == [[1, 1, 999, 2]] and found.attribute_ids.shape == (1, 0)
    assert annotation(tmp_path).boxes.shape == (0, 4)


def test_no_more_than_sixteen_attributes_are_kept(tmp_path: Path) -> None:
    names = tuple(f"a{k}" for k in range(20))
    path = write(tmp_path / "1.xml", f"<annotation>{xml_object('tree', (1, 1, 2, 2), *names)}</annotation>")
    found = read_annotation(path, "1", "1.jpg", OBJECTS, NameList(names, {name: k for k, name in enumerate(names)}))
    assert found.attribute_ids.tolist() == [list(range(16))]
    assert Counter(found.left_out) == {"attribute after the 16th": 4}


BOMB = '<!DOCTYPE annotation [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]><annotation>&b;</annotation>'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (BOMB, "declares a document type"),
        (BOMB.encode("utf-16"), "declares a document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "declares a document type"),
        ("<annotation>&other;</annotation>", "undefined entity"),
        ("<annotation><object></annotation>", "mismatched tag"),
        ("", "no element found"),
        (b"\xff\x00", "not an xml annotation"),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "unknown encoding"),
        ("<scene/>", "expected <annotation> as in Visual Genome's xml files, got <scene>"),
    ],
)
def test_xml_damaged_or_with_entities_is_one_error(tmp_path: Path, content: str | bytes, words: str) -> None:
    assert_refused(annotation_in, write(tmp_path / "1.xml", content), words)


def test_xml_of_any_depth_and_length_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = write(tmp_path / "1.xml", "<annotation>" + "<a>" * 100_000 + "</a>" * 100_000 + "</annotation>")
    assert len(annotation_in(deep).boxes) == 0
    monkeypatch.setattr(image_boxes, "MAX_XML_BYTES", 1000)
    assert_refused(annotation_in, deep, "over 1000 bytes")


def test_a_split_gives_its_images_and_counts_what_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "xml").mkdir()
    write(tmp_path / "xml" / "1.xml", f"<annotation>{xml_object('tree', (1, 1, 2, 2))}</annotation>")
    write(tmp_path / "xml" / "2.xml", "<annotation>")
    lines = ["VG_100K/1.jpg xml/1.xml", "", "VG_100K/2.jpg xml/2.xml\r", "VG_100K/3.jpg xml/3.xml", "VG/4.jpg"]
    path = write(tmp_path / "train.txt", "\n".join([*lines, "../5.jpg xml/1.xml", "a.jpg ../../etc/passwd"]))
    image, *bad = read_visual_genome(path, OBJECTS, ATTRIBUTES)
    assert isinstance(image, LabelledImage) and (image.image_id, image.file_name) == ("VG_100K/1", "VG_100K/1.jpg")
    leaves = "path leaves the image folder"
    reasons = [(3, "damaged xml file"), (4, "no xml file"), (5, "not two paths"), (6, leaves), (7, leaves)]
    assert bad == [BadRow(*reason) for reason in reasons]


def test_a_list_without_its_xml_files_is_an_error(made_data: Path) -> None:
    path = str(made_data / "vg" / "train_head50.txt")
    read = partial(read_visual_genome, objects=OBJECTS, attributes=ATTRIBUTES)
    assert_refused(read, path, "none of its 50 lines names an xml file")


def test_lists_of_photos(made_data: Path) -> None:
    folder = made_data / "vg"
    for split in ("train", "val", "test"):
        found = list(read_split(str(folder / f"{split}_head50.txt")))
        assert len(found) == 50 and all(isinstance(row, SplitRow) for row in found)
    first = next(read_split(str(folder / "train_head50.txt")))
    assert first == SplitRow(1, "VG_100K_2/2415417", "VG_100K_2/2415417.jpg", "xml/2415417.xml")


def test_vocabularies_of_the_pack(shared_data: Path) -> None:
    folder = shared_data / "vg"
    objects = read_names(str(folder / "objects_vocab.txt"))
    attributes = read_names(str(folder / "attributes_vocab.txt"))
    assert len(objects.names) == 1600 and len(attributes.names) == 400
    assert objects.names[16] == "stop sign" and objects.ids["stopsign"] == objects.ids["stop sign"] == 16
    assert attributes.names[0] == "gray" and attributes.ids["grey"] == 0
    assert all(objects.ids[name.lower()] == k for k, name in enumerate(objects.names))


@pytest.mark.parametrize(
    ("content", "words"),
    [("a\n\nb", "line 2: no name"), ("a\n,b\n", "line 2: no name"), (b"a\n\xff", "line 2: not UTF-8")],
)
def test_vocabularies_with_nameless_lines_are_refused(tmp_path: Path, content: str | bytes, words: str) -> None:
    assert_refused(read_names, write(tmp_path / "objects_vocab.txt", content), words)


def test_karpathy_splits_of_the_pack(made_data: Path) -> None:
    folder = made_data / "formats" / "karpathy"
    coco = list(read_karpathy(str(folder / "dataset_coco.json")))
    assert Counter(image.split for image in coco) == {"train": 3, "restval": 1, "val": 2, "test": 2}
    own = Counter(name for name, _ in read_coco(str(made_data / "coco" / "captions_train2014.json")).captions)
    assert {image.image_id: len(image.sentences) for image in coco} == own  # the same ids as COCO's own file
    first = coco[0]
    assert (first.file_name, first.number, first.coco_id) == ("train2014/COCO_train2014_000000000790.jpg", 0, 790)
    words = ("a", "red", "cloth", "lies", "on", "table", "790", "beside", "a", "cup")
    assert first.sentences[0] == KarpathySentence(0, "a red cloth lies on table 790 beside a cup", words)
    flickr = list(read_karpathy(str(folder / "dataset_flickr30k.json"), id_rule="with-extension"))
    assert Counter(image.split for image in flickr) == {"train": 4, "val": 2, "test": 2}
    assert (flickr[0].image_id, flickr[0].file_name, flickr[0].coco_id) == ("36979.jpg", "36979.jpg", None)


def test_karpathy_sources_and_captions(made_data: Path) -> None:
    coco, flickr = (made_data / "formats" / "karpathy" / f"dataset_{name}.json" for name in ("coco", "flickr30k"))
    source = open_source(str(coco), image_root=str(made_data / "images"))  # which has no folder train2014
    assert source.kind == "karpathy" and len(source.images) == 8
    assert all(Path(image.location).is_file() for image in source.images)
    photos = made_data / "formats" / "flickr30k_entities" / "flickr30k-images"
    assert all(Path(image.location).is_file() for image in open_source(str(flickr), image_root=str(photos)).images)
    rows_of_coco, notes = read_captions(str(coco))
    assert len(rows_of_coco) == 20 and len({row.name for row in rows_of_coco}) == 4
    assert notes == ["20 captions of the splits val and test left out: evaluation data"]


SENTENCE = {"raw": " A b. ", "tokens": ["a", "b"], "sentid": 3}
KARPATHY = {"filename": "a.jpg", "imgid": 0, "split": "train", "sentences": [SENTENCE]}


def test_karpathy_paths_have_the_folder_where_it_is_there(tmp_path: Path) -> None:
    images = [KARPATHY | {"filepath": "val2014"}, KARPATHY | {"filename": "b.jpg", "filepath": "train2014"}]
    path = write(tmp_path / "d.json", {"dataset": "coco", "images": images})
    assert [image.location for image in open_source(path).images] == [f"{tmp_path}/a.jpg", f"{tmp_path}/b.jpg"]
    (tmp_path / "val2014").mkdir()
    found = [image.location for image in open_source(path).images]
    assert found == [f"{tmp_path}/val2014/a.jpg", f"{tmp_path}/train2014/b.jpg"]


def test_karpathy_captions_of_test_images_alone_are_no_training_set(tmp_path: Path) -> None:
    path = write(tmp_path / "d.json", {"images": [KARPATHY | {"split": "test"}], "dataset": "coco"})
    assert_refused(read_captions, path, "no captions in it", "1 caption of the splits val and test left out")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": "trian"}, 'split must be one of train, restval, val, test, got "trian"'),
        ({"filename": "../a.jpg"}, "path leaves the image folder"),
        ({"filepath": "../.."}, "path leaves the image folder"),
        ({"filepath": "/etc"}, "path leaves the image folder"),
        ({"filename": 3}, "filename must be text, got 3"),
        ({"imgid": True}, "imgid must be a whole number, got true"),
        ({"sentences": {}}, "sentences must be a list"),
        ({"sentences": ["x"]}, 'sentences[0]: expected an object, got "x"'),
        ({"sentences": [{"raw": "x", "tokens": [1], "sentid": 1}]}, "tokens must be a list of words"),
        ({"sentences": [{"raw": "\ud800", "tokens": [], "sentid": 1}]}, "half a surrogate pair"),
        ({"sentences": [{"tokens": [], "sentid": 1}]}, "sentences[0]: lacks raw"),
    ],
)
def test_karpathy_entries_of_another_shape_are_one_error(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = write(tmp_path / "d.json", {"images": [KARPATHY, KARPATHY | change]})
    assert_refused(read_karpathy, path, words, "images[1]")


def test_sbu_of_the_pack(made_data: Path, tmp_path: Path) -> None:
    path = made_data / "formats" / "sbu" / "sbu-captions-all.json"
    found = list(read_sbu(str(path)))
    assert len(found) == 21 and all(isinstance(row, CaptionRow) for row in found)
    name = "4385058960_b0f291553e"
    assert found[0] == CaptionRow(1, "A chair in room 0", f"{name}.jpg", name)
    for number in (84002, 131486):
        photo = made_data / "images" / f"COCO_train2014_{number:012}.jpg"
        shutil.copyfile(photo, tmp_path / f"{number}.jpg")
    source = open_source(str(path), image_root=str(tmp_path))
    assert source.kind == "sbu" and len(source.images) == 11 and source.notes == []
    assert sum(Path(image.location).is_file() for image in source.images) == 2
    assert len(read_captions(str(path))[0]) == 21


def test_bad_sbu_rows_are_counted_with_their_reason(tmp_path: Path) -> None:
    one = "http://a.com/1/x.jpg?size=2"
    urls = [one, "http://b.com/2/x.jpg", one, "HTTPS://c.com/", "http://[/y.jpg", "images/z.jpg", "../z.jpg", None,
            "http://a.com/w.jpg", "http://a.com/v.jpg"]  # fmt: skip
    captions = [" one ", "two", "three", "four", "five", "six", "seven", "eight", " ", "\ud800"]
    path = write(tmp_path / "s.json", {"captions": captions, "image_urls": urls})  # any order, no user_ids
    assert list(read_sbu(path)) == [
        CaptionRow(1, "one", "x.jpg", "x"),
        BadRow(2, "another URL ends in the same file name"),
        CaptionRow(3, "three", "x.jpg", "x"),
        BadRow(4, "URL names no file"),
        BadRow(5, "not a URL"),
        CaptionRow(6, "six", "images/z.jpg", "images/z"),
        BadRow(7, "path leaves the image folder"),
        BadRow(8, "no URL"),
        BadRow(9, "empty caption"),
        BadRow(10, "caption is not valid UTF-8"),
    ]
    assert "(entries 2, 4, 5, 7, 8, 9, 10)" in open_source(path).notes[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"image_urls": ["http://a/b.jpg"], "captions": []}, "1 image_urls, 0 user_ids and 0 captions"),
        ({"image_urls": [], "captions": [], "user_ids": ["x"]}, "0 image_urls, 1 user_ids and 0 captions"),
        ({"image_urls": ["http://a/b.jpg"]}, "expected an SBU file"),
        ({"captions": "x", "image_urls": []}, "expected an SBU file"),
    ],
)
def test_sbu_lists_of_other_lengths_are_one_error(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    assert_refused(open_source, write(tmp_path / "s.json", content), words)


def test_a_corpus_is_lines_in_documents(tmp_path: Path) -> None:
    content = "\ufeff\n\n First one.\r\nSecond\u2028one.\n \n\nThird.\n".encode() + b"\xff\nFourth."
    assert list(read_text_corpus(write(tmp_path / "t.txt", content))) == [
        TextLine(3, 0, "First one."), TextLine(4, 0, "Second\u2028one."), TextLine(7, 1, "Third."),
        BadRow(8, "not UTF-8"), TextLine(9, 1, "Fourth."),
    ]  # fmt: skip
    assert list(read_text_corpus(write(tmp_path / "empty.txt", ""))) == []


def test_a_line_without_end_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_LINE_BYTES", 10)
    path = write(tmp_path / "t.txt", "x" * 10 + "\n" + "x" * 9 + "\n" + "y" * 95 + "\nz\n" + "w" * 40)
    long = "longer than 10 bytes"
    assert list(read_lines(path)) == [BadRow(1, long), (2, "x" * 9), BadRow(3, long), (4, "z"), BadRow(5, long)]
