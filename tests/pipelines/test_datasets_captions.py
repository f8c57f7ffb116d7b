"""Readers of captions and text: real samples, made files with every oddity, damaged or hostile ones."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dataset_examples import assert_refused, write

from roibeam.pipelines.data.captions.caption_files import read_captions
from roibeam.pipelines.data.datasets import rows
from roibeam.pipelines.data.datasets.caption_lists import read_sbu
from roibeam.pipelines.data.datasets.coco import read_coco
from roibeam.pipelines.data.datasets.karpathy import KarpathySentence, read_karpathy
from roibeam.pipelines.data.datasets.rows import BadRow, CaptionRow, read_lines
from roibeam.pipelines.data.datasets.text_sets import TextLine, read_text_corpus
from roibeam.pipelines.data.source_kinds import open_source


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
