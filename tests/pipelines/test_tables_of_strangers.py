"""Rows as people and other tools write them: what would be read wrong without a word is a bad row, counted, named."""

import json
import logging
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_files import write_text

from roibeam.pipelines.collection.judging.training_rows import read_labelled_texts
from roibeam.pipelines.data.captions.caption_files import read_captions
from roibeam.pipelines.data.datasets.rows import BadRow, UrlRow
from roibeam.pipelines.data.datasets.tables import UrlColumns, read_table
from roibeam.pipelines.data.download import download_folder
from roibeam.pipelines.data.download.download_folder import Journal, StoredImage, image_id
from roibeam.pipelines.data.download.url_list import UrlList
from roibeam.pipelines.data.given_boxes import give_boxes
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.data.labelled_photos import open_labelled_photos
from roibeam.pipelines.data.record_regions import ImageObjects
from roibeam.pipelines.data.source_kinds import open_source
from roibeam.pipelines.finetuning.tasks.referring import referring_files
from roibeam.pipelines.finetuning.tasks.vcr_rules import read_people_names

Told = dict[str, tuple[str, ...]]


def captions_of(path: Path, **options: Any) -> tuple[Told, list[str]]:
    source = open_source(str(path), **options)
    return {image.image_id: image.captions for image in source.images}, source.notes


def written(path: Path, content: str | bytes) -> Path:
    write_text(path, content)
    return path


# ---- the number of fields, the names of columns, encodings


def test_a_row_with_more_or_fewer_fields_than_the_header_is_a_bad_row(tmp_path: Path) -> None:
    rows = [
        'a.jpg,"A ball, red",x', "b.jpg,A dog, on grass,y", 'c.jpg, "A cup, and a tree",z', "d.jpg,short",
        'e.jpg,"open,x', 'f.jpg,"A" cup,x',
    ]  # fmt: skip
    found, notes = captions_of(written(tmp_path / "list.csv", "\n".join(["image,caption,label", *rows])))
    assert found == {"a": ("A ball, red",), "f": ("A cup",)}
    fields, quote = "3 another number of fields than the header", "1 quote that is opened there and not closed"
    assert notes == [f"4 rows left out: {fields}, {quote} (lines 3, 4, 5, 6)"]


@pytest.mark.parametrize("header", ["image,text,label,text", "image,Text,label, text "])
def test_two_columns_of_one_name_are_refused_by_every_reader(tmp_path: Path, header: str) -> None:
    path = written(tmp_path / "train.csv", f"{header}\na.jpg,x,1,y\n")
    readers: list[Callable[[], object]] = [
        lambda: open_source(str(path)), lambda: UrlList(str(path), UrlColumns(url="image")),
        lambda: list(read_table(path)), lambda: read_labelled_texts(path), lambda: read_people_names(str(path)),
    ]  # fmt: skip
    for read in readers:
        with pytest.raises(ValueError, match="two columns are called 'text'; rename one or take it out"):
            read()


def test_two_columns_of_one_name_of_a_parquet_table_are_refused(tmp_path: Path) -> None:
    texts = pa.array(["http://a/b.jpg"])
    pq.write_table(pa.Table.from_arrays([texts] * 4, names=["image", "url", "text", "text"]), tmp_path / "t.parquet")
    path = tmp_path / "t.parquet"
    for read in (lambda: open_source(str(path)), lambda: UrlList(str(path)), lambda: list(read_table(path))):
        with pytest.raises(ValueError, match="two columns are called 'text'"):
            read()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["list.csv", "list.tsv", "list.jsonl"])
def test_windows_lines_are_read_and_its_encodings_are_named(tmp_path: Path, name: str) -> None:
    texts = {
        "list.csv": "image,caption\r\na.jpg,A dog\r\nb.jpg,Un café\r\n",
        "list.tsv": "A dog\ta.jpg\r\nUn café\tb.jpg\r\n",
        "list.jsonl": '{"image": "a.jpg", "caption": "A dog"}\r\n{"image": "b.jpg", "caption": "Un café"}\r\n',
    }
    path = written(tmp_path / name, texts[name].encode("utf-8-sig"))
    assert captions_of(path) == ({"a": ("A dog",), "b": ("Un café",)}, [])
    path.write_bytes(texts[name].encode("cp1252"))
    found, (note, cure) = captions_of(path)
    assert found == {"a": ("A dog",)} and note.startswith("1 row left out: 1 not UTF-8 (line ")
    assert cure == "what is not UTF-8 is perhaps cp1252, as Windows writes it: save the file as UTF-8"
    path.write_bytes(texts[name].encode("utf-16"))
    with pytest.raises(ValueError, match=r"UTF-16|UTF-8"):
        open_source(str(path))


def test_a_table_of_ones_own_names_its_encoding_and_its_short_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"row 0 \(line 2\): not UTF-8; perhaps cp1252.* save the file as UTF-8"):
        list(read_table(written(tmp_path / "a.csv", "image,text,label\na.jpg,café,x\n".encode("cp1252"))))
    with pytest.raises(ValueError, match=r"row 1 \(line 3\): 2 fields, the header has 3"):
        list(read_table(written(tmp_path / "b.csv", "image,text,label\na,x,y\nb,x\n")))


class _AllStored:
    """A journal of a run that got every image."""

    def outcome(self, row: int) -> StoredImage:
        return StoredImage(f"{image_id(row)}.jpg", 1, "")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.text(), st.sampled_from(["http://a/b.jpg", "\ufeffa", "image", "a\tb"])), min_size=1))
def test_a_download_writes_what_its_own_reader_reads_back(texts: list[str]) -> None:
    """Whatever captions hold, those that look like an address, a path, a header or several cells among them."""
    with tempfile.TemporaryDirectory() as folder:
        urls = [f"http://a/{number}" for number in range(len(texts))]
        path = written(Path(folder) / "sbu.json", json.dumps({"image_urls": urls, "captions": texts}))
        try:
            url_list = UrlList(str(path))
        except ValueError:  # none of its captions can be used
            return
        local = Path(folder) / "local.tsv"
        download_folder._write_captions(local, url_list, cast(Journal, _AllStored()))
        rows = [(index, row.caption) for index, row in url_list.rows() if isinstance(row, UrlRow)]
        wanted = [(image_id(index), re.sub("[\t\r\n]+", " ", caption)) for index, caption in rows]
        captions, notes = read_captions(str(local))
        assert [(each.name, each.text) for each in captions] == [(f"{name}.jpg", text) for name, text in wanted]
        assert notes == []
        assert captions_of(local) == ({name: (text,) for name, text in wanted}, [])


def test_a_caption_that_is_an_address_stays_a_caption(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = ["a red ball\timages/0.jpg", "https://shop.example/x\timages/1.jpg", "HTTP://a.org\timages/2.jpg"]
    path = written(tmp_path / "local.tsv", "\n".join(rows))
    with caplog.at_level(logging.INFO):
        assert captions_of(path)[0]["images/1"] == ("https://shop.example/x",)
    (line,) = caplog.messages
    assert line.startswith("local.tsv: captions are read from column 1, images from column 2: 2 URLs in column 1")
    assert line.endswith("--caption-column 2 reads it the other way round")
    assert [caption.name for caption in read_captions(str(path))[0]] == ["images/0.jpg", "images/1.jpg", "images/2.jpg"]


def test_many_rows_say_where_the_captions_of_a_list_of_urls_stand(tmp_path: Path) -> None:
    rows = [f"http://a/{number}.jpg\ta dog" for number in range(5)]
    odd = ["https://b/x.jpg\tphoto.jpg", "http://c/y.jpg\thttp://d/z"]
    path = written(tmp_path / "cc12m.tsv", "\n".join([*odd, *rows]))
    found = [row for _, row in UrlList(str(path)).rows()]
    assert found[:2] == [UrlRow(1, "photo.jpg", "https://b/x.jpg"), UrlRow(2, "http://d/z", "http://c/y.jpg")]
    captions, _ = read_captions(str(path))
    assert [caption.text for caption in captions] == ["photo.jpg", "http://d/z", *["a dog"] * 5]
    other = [row for _, row in UrlList(str(path), UrlColumns(caption="1")).rows()]
    assert other[1] == UrlRow(2, "http://c/y.jpg", "http://d/z") and isinstance(other[2], BadRow)


def test_photos_that_are_there_say_which_column_names_them(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.tsv", "p/a.jpg\tA dog.\np/b.jpg\tb.jpg\n")
    assert captions_of(path)[0] == {"A dog.": ("p/a.jpg",), "b": ("p/b.jpg",)}  # nothing speaks for the other order
    for name in ("a", "b"):
        written(tmp_path / "p" / f"{name}.jpg", b"")
    assert captions_of(path)[0] == {"p/a": ("A dog.",), "p/b": ("b.jpg",)}
    assert captions_of(path, caption_column="1")[0]["A dog."] == ("p/a.jpg",)


def test_a_header_says_the_order_and_is_no_row(tmp_path: Path) -> None:
    path = written(tmp_path / "list.tsv", "url\tcaption\nhttp://a/1\tone\nhttp://a/2\ttwo\n")
    plain = written(tmp_path / "plain.tsv", "http://a/1\tone\nhttp://a/2\ttwo\n")
    rows = [(index, row.caption) for index, row in UrlList(str(path)).rows() if isinstance(row, UrlRow)]
    assert rows == [(0, "one"), (1, "two")]
    # img2dataset, which such headers are for, numbers what stands below it.
    assert read_captions(str(path)) == read_captions(str(plain))
    with pytest.raises(ValueError, match=r"--caption-column 'text': expected 1 or 2.* name of its first line: url"):
        UrlList(str(path), UrlColumns(caption="text"))


def test_the_column_of_captions_can_be_set_where_there_are_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv", "image,caption,alt\na.jpg,one,two\n")
    assert captions_of(path, caption_column="alt")[0] == {"a": ("two",)}
    with pytest.raises(ValueError, match="--caption-column 'title': no such column"):
        open_source(str(path), caption_column="title")
    rows = written(tmp_path / "list.jsonl", '{"image": "a.jpg", "alt": "two"}\n{"image": "b.jpg"}\n')
    assert captions_of(rows, caption_column="alt")[0] == {"a": ("two",), "b": ()}
    with pytest.raises(ValueError, match="--caption-column 'title': no row has such a column"):
        open_source(str(rows), caption_column="title")
    written(tmp_path / "photos" / "a.jpg", b"")
    with pytest.raises(ValueError, match=r"--caption-column 2 is for a list with columns or a caption \.tsv"):
        open_source(str(tmp_path / "photos"), caption_column="2")


def test_empty_captions_are_counted_alike_and_never_kept(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "a.jpg"}
    sentences = [{"raw": text, "tokens": [], "sentid": 1} for text in ("A dog", " ", None)]
    karpathy = {"filename": "a.jpg", "imgid": 1, "split": "train", "sentences": sentences}
    files = {
        "coco.json": json.dumps({
            "images": [image],
            "annotations": [{"id": k, "image_id": 1, "caption": text} for k, text in enumerate(("A dog", " ", None))],
        }),
        "karpathy.json": json.dumps({"images": [karpathy]}),
        "sbu.json": json.dumps({"image_urls": ["http://x/a.jpg"] * 3, "captions": ["A dog", "", None]}),
        "list.tsv": "A dog\ta.jpg\n \ta.jpg\n\ta.jpg\n",
        "r.token": "a.jpg#0\tA dog\na.jpg#1\t \na.jpg#2\t\n",
        "list.csv": "image,caption\na.jpg,A dog\na.jpg,\na.jpg,  \n",
        "list.jsonl": '{"image": "a.jpg", "caption": ["A dog", "", " "]}\n',
    }  # fmt: skip
    for name, content in files.items():
        found, notes = captions_of(written(tmp_path / name, content))
        assert found == {"a": ("A dog",)}, name
        assert len(notes) == 1 and "2 empty caption" in notes[0], (name, notes)
    own = written(tmp_path / "own.json", json.dumps([{"image": "a.jpg", "caption": ["A dog", "", None]}]))
    for name in (*list(files)[:5], own.name):
        captions, notes = read_captions(str(tmp_path / name))
        assert [caption.text for caption in captions] == ["A dog"], name
        assert len(notes) == 1 and "2 empty caption" in notes[0], (name, notes)


# ---- bad annotations

GOOD = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 12}
BAD: list[tuple[Any, str]] = [
    (GOOD | {"bbox": []}, "bbox that is not 4 finite numbers"),
    (GOOD | {"bbox": None}, "bbox that is not 4 finite numbers"),
    (GOOD | {"bbox": ["1", "2", "3", "4"]}, "bbox that is not 4 finite numbers"),
    (GOOD | {"bbox": [1, 2, float("nan"), 4]}, "bbox that is not 4 finite numbers"),
    ({"id": 1, "image_id": 1, "category_id": 3}, "no bbox"),
    (GOOD | {"image_id": 9}, "image_id that is not among the images"),
    (GOOD | {"image_id": "0"}, "image_id that is not a whole number"),
    (GOOD | {"image_id": float("nan")}, "image_id that is not a whole number"),
    (None, "no object"),
]
BAD_LABELS: list[tuple[Any, str]] = [
    *BAD,
    (GOOD | {"category_id": 4}, "category_id that is not among the categories"),
    (GOOD | {"area": float("nan")}, "area that is no finite number"),
]
BAD_OBJECTS: list[tuple[Any, str]] = [
    *BAD_LABELS,
    (GOOD | {"segmentation": [[1, 2, 3]]}, "broken segmentation"),
    (GOOD | {"segmentation": [[1, 2, 3, 4, 5, float("inf")]]}, "broken segmentation"),
    (GOOD | {"segmentation": "1 2 3 4 5 6"}, "broken segmentation"),
    (GOOD | {"segmentation": [1, 2, 3, 4, 5, 6]}, "broken segmentation"),
]


def coco(path: Path, *annotations: Any) -> str:
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 20, "width": 30}],
        "annotations": annotations,
        "categories": [{"id": 3, "name": "dog"}],
    }
    return str(written(path, json.dumps(content)))


@pytest.mark.parametrize(("annotation", "reason"), BAD)
def test_a_bad_annotation_costs_its_own_box(tmp_path: Path, annotation: Any, reason: str) -> None:
    path = coco(tmp_path / "i.json", GOOD, annotation, GOOD | {"bbox": [5, 6, 7, 8]})
    written(tmp_path / "photos" / "a.jpg", b"")
    source, boxes = give_boxes(open_source(str(tmp_path / "photos")), path)
    assert boxes.attach(source.images[0]).boxes == ((1.0, 2.0, 4.0, 6.0), (5.0, 6.0, 12.0, 14.0))
    assert source.notes == [f"{path}: 1 annotation left out: 1 {reason} (annotations[1])"]


@pytest.mark.parametrize(("annotation", "reason"), BAD_LABELS)
def test_a_bad_annotation_costs_its_own_label(tmp_path: Path, annotation: Any, reason: str) -> None:
    photos = open_labelled_photos(coco(tmp_path / "i.json", annotation, GOOD))
    (image,) = photos.images
    assert image.boxes.tolist() == [[1, 2, 4, 6]] and image.class_ids.tolist() == [0]
    assert photos.notes() == [f"left out of the labels: 1 x {reason} (first annotations[0])"]


@pytest.mark.parametrize(("annotation", "reason"), BAD_OBJECTS)
def test_a_bad_annotation_costs_its_own_object(
    tmp_path: Path, annotation: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = coco(tmp_path / "i.json", annotation, GOOD | {"segmentation": [[1, 2, 3, 2, 3, 4]]})
    record = SimpleNamespace(
        image_id="a", num_regions=1, height=20, width=30, boxes=np.array([[1, 2, 4, 6]], np.float32)
    )
    assert ImageObjects([path], ["a"]).classes(cast(Any, record)).tolist() == [1]
    assert caplog.messages == [f"{path}: 1 annotation left out: 1 {reason} (annotations[0])"]


def test_a_bad_annotation_costs_its_own_caption_or_label_of_a_source(tmp_path: Path) -> None:
    captions = [{"id": 1, "image_id": image, "caption": "a dog"} for image in (1, 9, "1")]
    found = open_source(coco(tmp_path / "c.json", *captions, GOOD, GOOD | {"category_id": None}))
    assert [(image.captions, image.labels) for image in found.images] == [(("a dog",), ("dog",))]
    assert len(found.notes) == 1 and found.notes[0].startswith("3 annotations left out: 1 category_id that is not a")
    assert "(annotations[2], annotations[4], annotations[1])" in found.notes[0]


def test_a_file_whose_annotations_are_all_bad_is_refused(tmp_path: Path) -> None:
    path = coco(tmp_path / "i.json", GOOD | {"bbox": []}, GOOD | {"image_id": 7})
    words = r"annotations\[0\], box 0: expected 4 finite numbers, got \[\]; none of its 2 annotations can be used"
    with pytest.raises(ValueError, match=words):
        open_labelled_photos(path)


def test_a_bad_line_of_boxes_costs_its_own_image(tmp_path: Path) -> None:
    lines = [
        json.dumps({"image_id": name, "boxes": boxes})
        for name, boxes in (("a", [[1, 2, 3, 4]]), ("b", [[1, 2, None, 4]]), ("b", None), (None, []))
    ]
    path = written(tmp_path / "b.jsonl", "\n".join([*lines, "{", ""]))
    for name in "ab":
        written(tmp_path / "photos" / f"{name}.jpg", b"")
    source, boxes = give_boxes(open_source(str(tmp_path / "photos")), str(path))
    assert [image.image_id for image in source.images] == ["a"] and len(boxes) == 1
    assert any("4 rows left out" in note and "(lines 2, 3, 4, 5)" in note for note in source.notes)


def test_a_bad_detection_and_bad_metadata_cost_themselves(tmp_path: Path) -> None:
    entries = [{"image_id": 1, "box": [1, 2, 3, 4]}, {"image_id": 1, "box": [1, 2, 3]}, {"image_id": "1", "box": []}]
    path = written(tmp_path / "dets.json", json.dumps(entries))
    photos = tmp_path / "photos"
    for name in ("a", "COCO_train2014_000000000001"):
        written(photos / f"{name}.jpg", b"")
    source, boxes = give_boxes(open_source(str(photos)), str(path))
    assert len(boxes) == 1 and any("2 rows left out" in note and "(entries 1, 2)" in note for note in source.notes)
    written(photos / "a.json", '{"boxes": [[1, 2, 3, 4, 0.5]]}')
    written(photos / "COCO_train2014_000000000001.json", '{"boxes": [[1, 2, "3", 4, 0.5]]}')
    source, boxes = give_boxes(open_source(str(photos)), str(photos))
    assert "a" in boxes and len(boxes) == 1
    assert any("1 metadata file" in note and "box 0: expected 5 finite numbers" in note for note in source.notes)


def test_bad_entries_of_referring_expressions_are_counted(tmp_path: Path) -> None:
    objects = [{"id": 5, "image_id": 1, "bbox": [1, 2, 3, 4]}, {"id": 6, "image_id": 1, "bbox": None}]
    image = {"id": 1, "height": 9, "width": 9}
    instances = written(tmp_path / "instances.json", json.dumps({"images": [image], "annotations": objects}))
    sentence = {"sent_id": 1, "sent": "left dog"}
    refs = [
        {"ref_id": number, "ann_id": found, "image_id": 1, "split": "train", "sentences": [sentence]}
        for number, found in enumerate((5, 6, "5"))
    ]
    path = written(tmp_path / "refs.json", json.dumps(refs))
    files = referring_files(str(path), str(instances))
    assert [each.ref_id for each in files.sentences] == [0] and list(files.instances.objects) == [5]
    first, second = files.notes
    assert "1 annotation left out" in first and "(annotations[1])" in first
    assert "2 references left out" in second and "(references 1, 2)" in second


def test_bad_rows_of_vcr_and_visual_genome_are_counted(tmp_path: Path) -> None:
    lines = [{"img_fn": "m/a.jpg", "objects": ["person"]}, {"img_fn": None}, {"img_fn": "b.jpg", "objects": 3}]
    path = written(tmp_path / "train.jsonl", "\n".join(map(json.dumps, lines)))
    assert captions_of(path)[1] == ["2 rows left out: 1 no img_fn, 1 objects is no list of names (lines 2, 3)"]
    entries = [{"url": "https://x/VG_100K/1.jpg"}, {"url": None}, 5]
    path = written(tmp_path / "image_data.json", json.dumps(entries))
    found, notes = captions_of(path)
    assert list(found) == ["VG_100K/1"] and len(notes) == 1 and notes[0].endswith("(entries 2, 3)")


def test_bad_entries_of_a_karpathy_file_are_counted_and_the_others_taken(tmp_path: Path) -> None:
    """Sentences one by one; what is held out by such a file is held out whole, or not at all."""
    good = {"raw": "A dog.", "tokens": ["a", "dog"], "sentid": 0}
    sentences = [good, {**good, "tokens": None}, {**good, "raw": ""}]
    entry = {"filename": "f.jpg", "imgid": 5, "split": "train", "sentences": [good]}
    images: list[object] = [
        entry | {"filename": "a.jpg", "imgid": 0, "sentences": sentences},
        entry | {"filename": "b.jpg", "imgid": 1, "split": "x"},
        entry | {"filename": "c.jpg", "imgid": "2"},
        "d.jpg",
        entry | {"filename": "../e.jpg", "imgid": 4},
        entry,
    ]
    path = written(tmp_path / "dataset.json", json.dumps({"images": images}))
    of_source, notes = captions_of(path)
    assert of_source == {"a": ("A dog.",), "f": ("A dog.",)}
    captions, said = read_captions(str(path))
    assert [(each.name, each.text) for each in captions] == [("a.jpg", "A dog."), ("f.jpg", "A dog.")]
    for (note,) in (notes, said):
        assert note.startswith("6 items left out: ") and "1 empty caption" in note and "images[0], images[0]" in note
        assert "1 split must be one of train, restval, val, test" in note and "1 imgid must be a whole number" in note
    with pytest.raises(ValueError, match=r"images\[0\]: sentences\[1\]: tokens must be a list, got null"):
        HeldOut([f"karpathy={path}"])
