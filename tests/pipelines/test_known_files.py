"""Files that people have for this job: read by their content, or answered with what they are and where they belong."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from dataset_examples import write

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.shard.manifest import STORE_MANIFEST_NAME
from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.datasets.karpathy import read_karpathy
from roibeam.pipelines.data.datasets.known_files import describe_file, kind_of
from roibeam.pipelines.data.download.url_list import UrlList
from roibeam.pipelines.data.given_boxes import give_boxes
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.data.labelled_photos import open_labelled_photos
from roibeam.pipelines.data.source_kinds import open_source
from roibeam.pipelines.data.vocabulary import read_vocabulary
from roibeam.pipelines.extract.stores.store_import import import_features

DOGS, CUP = "Two dogs, one of them black .", 'A "cup" , and a tree'
HUB = (
    "raw,sentids,split,filename,img_id\n"
    '"[""Two dogs, one of them black ."", ""Dogs .""]","[0, 1]",train,a.1.jpg,0\n'
    '"[""A \\""cup\\"" , and a tree""]",[2],test,b.jpg,1\n'
)
# What a file of this name holds, the captions of a.1.jpg and of b.jpg, and its notes. Names say nothing: content does.
LISTS: dict[str, tuple[str, list[str], list[str], list[str]]] = {
    "Flickr8k.token.txt": (f"a.1.jpg#0\t{DOGS}\na.1.jpg#1\tDogs .\n\nb.jpg#0\t{CUP}\n", [DOGS, "Dogs ."], [CUP], []),
    "token.tsv": (f"a.1.jpg#0\t{DOGS}\nb.jpg#0\t{CUP}\nb.jpg\tx\n", [DOGS], [CUP], ["not <photo>.jpg#<number> TAB"]),
    "captions.txt": (
        f'image,caption\r\na.1.jpg,{DOGS}\r\na.1.jpg,Dogs .\r\nb.jpg,"A ""cup"" , and a tree"\r\nb.jpg\r\nb.jpg,\r\n',
        [DOGS, "Dogs ."], [CUP], ["1 empty caption, 1 not <photo>.jpg,caption"],
    ),
    "Image Captions": (f'"Image" , "Caption"\na.1.jpg,{DOGS}\nb.jpg,{CUP}\n', [DOGS], [CUP], []),
    "results.csv": (
        f"image_name| comment_number| comment\na.1.jpg| 0| {DOGS}\na.1.jpg| 1| Left | right\nb.jpg| 0| {CUP}\n"
        f"b.jpg| 4   A dog .\n",
        [DOGS, "Left | right"], [CUP], ["1 not <photo>.jpg| <number>| caption"],
    ),
    "results.txt": (f"image_name|comment_number|comment\na.1.jpg|0|{DOGS}\nb.jpg|0|{CUP}\n", [DOGS], [CUP], []),
    "flickr_annotations_30k.csv": (HUB, [DOGS, "Dogs ."], [], ["1 caption of the splits val and test left out"]),
    "hub.txt": (f'filename,raw\na.1.jpg,"[""{DOGS}""]"\nb.jpg,"[""x""]"\n', [DOGS], ["x"], []),
    "list.json": (
        json.dumps([{"image": "a.1.jpg", "caption": [DOGS, "Dogs ."]}, {"image": "b.jpg", "caption": CUP}, {"id": 1}]),
        [DOGS, "Dogs ."], [CUP], ["1 empty caption"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_a_known_list_is_a_source_and_a_caption_file(tmp_path: Path, name: str) -> None:
    text, of_a, of_b, notes = LISTS[name]
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    for photo in ("a.1.jpg", "b.jpg"):
        (tmp_path / photo).touch()
    source = open_source(str(tmp_path / name))
    assert {image.image_id: list(image.captions) for image in source.images} == {"a.1": of_a, "b": of_b}
    file = CaptionFile(str(tmp_path / name))
    assert [(each.name, each.text) for each in file] == [("a.1.jpg", x) for x in of_a] + [("b.jpg", x) for x in of_b]
    for found in (source.notes, file.notes):
        assert len(found) == len(notes) and all(word in note for word, note in zip(notes, found, strict=True))


def test_the_photos_of_kaggles_flickr8k_are_found(tmp_path: Path) -> None:
    (tmp_path / "captions.txt").write_text(f"image,caption\na.jpg,{DOGS}\n")
    (tmp_path / "Images").mkdir()
    (tmp_path / "Images" / "a.jpg").touch()
    assert open_source(str(tmp_path / "captions.txt")).image_root == str(tmp_path / "Images")


def test_commas_of_a_csv_stand_in_quotes_there_too(tmp_path: Path) -> None:
    """A table of one's own that looks like Kaggle's list keeps the rules of tables."""
    (tmp_path / "own.csv").write_text('image,caption\na.jpg,"A dog, too"\n')
    assert kind_of(str(tmp_path / "own.csv")) == ""
    assert [image.captions for image in open_source(str(tmp_path / "own.csv")).images] == [("A dog, too",)]


def test_the_splits_of_the_hubs_table_are_those_of_karpathy(tmp_path: Path) -> None:
    path = str(tmp_path / "x.csv")
    Path(path).write_text(HUB)
    assert [(each.text, each.name) for each in CaptionFile(path, split="test")] == [(CUP, "b.jpg")]
    assert HeldOut([f"karpathy={path}"]).holds_out("b", None)
    assert not HeldOut([f"karpathy={path}"]).holds_out("a.1", None)
    for text, words in (
        (HUB.replace("[2]", "[2],x"), "line 3: another number of fields than the header"),
        (HUB.replace('"[""A \\""cup\\"" , and a tree""]"', "A cup"), "line 3: raw must be a json list of captions"),
        (HUB.replace("test", "x"), "line 3: split must be one of"),
    ):
        Path(path).write_text(text)
        with pytest.raises(ValueError, match=words):
            list(read_karpathy(path))


def test_a_caption_that_looks_like_a_number_of_one_is_no_token_file(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("we are #1\ta.jpg\nTwo\tb.jpg\n")
    found = [(each.text, each.name) for each in CaptionFile(str(tmp_path / "c.tsv"))]
    assert found == [("we are #1", "a.jpg"), ("Two", "b.jpg")]


# ---- where other files belong

_OBJECT = {"x": 1, "y": 2, "w": 3, "h": 4, "names": ["tree"]}
# Name -> content, and words of the answer. The words are what a user reads; the names are not looked at.
OTHERS: dict[str, tuple[Any, str]] = {
    "objects.json": ([{"image_id": 1, "objects": [_OBJECT], "image_url": "x"}], "Visual Genome's objects"),
    "attributes.json": ([{"image_id": 1, "attributes": [_OBJECT]}], "Visual Genome's attributes"),
    "relationships.json": ([{"relationships": [], "image_id": 1}], "Visual Genome's relationships"),
    "scene_graphs.json": ([{"relationships": [], "objects": [], "image_id": 1}], "Visual Genome's scene_graphs"),
    "regions.json": ([{"regions": [{"phrase": "a tree"}], "id": 1}], "Visual Genome's region_descriptions"),
    "questions.json": ([{"id": 1, "qas": []}], "Visual Genome's question_answers"),
    "vqa.json": ({"info": {}, "questions": [{"question": "x", "image_id": 1}]}, "questions .VQA.*finetune.* --data"),
    "vqa_answers.json": ({"annotations": [{"question_id": 1, "answers": []}]}, "answers .VQA"),
    "vizwiz.json": ([{"image": "a.jpg", "question": "x", "answers": []}], "a list of questions.* a table"),
    "gqa.json": ({"0293": {"imageId": "23", "question": "x", "answer": "no"}}, "GQA"),
    "scenes.json": ({"24": {"width": 6, "height": 4, "objects": {}}}, "GQA"),
    "visdial.json": ({"version": "1.0", "split": "train", "data": {"dialogs": []}}, "VisDial"),
    "textcaps.json": ({"data": [{"caption_str": "x", "image_id": "a"}]}, "TextCaps"),
    "llava.json": ([{"id": "1", "image": "a.jpg", "conversations": []}], "conversations"),
    "detections.json": ([{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}], "as COCO scores them"),
    "dev.json": ('{"sentence": "x", "identifier": "dev-1-0-0"}\n' * 2, "NLVR2"),
    "snli.jsonl": ('{"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}\n', "SNLI-VE"),
    "vinvl3.tsv": (f"1\t2\t{'A' * 100_000}\n", "Oscar or VinVL; .*store import"),
    "vinvl2.tsv": ('1\t{"num_boxes": 2, "features": "AAAA"}\n', "Oscar or VinVL; .*store import"),
    "label.tsv": ('1\t[{"class": "dog", "rect": [1, 2, 3, 4]}]\n', "VinVL's labels.*beside the file of features"),
    "x.lineidx": ("0\n22000\n44000\n", "lineidx"),
    "f.tsv": (f"1\t320\t240\t2\t{'A' * 100}\t{'A' * 100}\n", "region features.*store import"),
    "model.safetensors": ((14).to_bytes(8, "little") + b'{"a":{"b":1}} ', "weights.*--weights"),
    "model.pkl": (pickle.dumps({"model": {}}, 2), "weights"),
    "refs(unc).p": (pickle.dumps([{"ref_id": 1, "split": "val"}], 0), "RefCOCO.*--held-out refcoco"),
}  # fmt: skip
_READ_AS_BOXES = ("f.tsv",)
_IMPORTED = ("f.tsv", "vinvl2.tsv", "vinvl3.tsv")


def boxes(path: str) -> Any:
    (Path(path).parent / "photos").mkdir()
    (Path(path).parent / "photos" / "a.jpg").touch()
    return give_boxes(open_source(f"{Path(path).parent}/photos"), path)


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_belongs_elsewhere_is_called_what_it_is(tmp_path: Path, name: str) -> None:
    content, words = OTHERS[name]
    path = write(tmp_path / name, content)
    readers: list[Callable[[str], Any]] = [open_source, CaptionFile, read_vocabulary, UrlList]
    readers += [] if name in _READ_AS_BOXES else [boxes]
    readers += [] if name in _IMPORTED else [lambda path: import_features(path, str(tmp_path / "out"))]
    for read in readers:
        with pytest.raises(ValueError, match=rf"^'{tmp_path}/.*: this is .*{words}"):
            read(path)
    assert not (tmp_path / "out").exists()


def test_files_that_one_option_reads_are_named_at_the_others(tmp_path: Path) -> None:
    karpathy = write(tmp_path / "k.json", {"images": [{"filename": "a.jpg", "sentences": []}]})
    coco = write(tmp_path / "c.json", {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": []})
    lines = write(tmp_path / "b.jsonl", '{"image_id": "a", "boxes": [[1, 2, 3, 4]]}\n')
    photos = write(tmp_path / "p.txt", "a.jpg\nb.jpg\n")
    urls = write(tmp_path / "u.tsv", "a dog\thttps://x.org/a.jpg\na cat\thttps://x.org/b.jpg\n")
    for read, path, words in (
        (boxes, karpathy, "a Karpathy split of images and captions; it goes to --captions"),
        (CaptionFile, lines, "a list of boxes; it goes to --boxes"),
        (open_source, lines, "a list of boxes; it goes to --boxes"),
        (read_vocabulary, photos, "a list of images; `roibeam extract` takes it as SOURCE"),
        (read_vocabulary, coco, "a COCO file; one of captions goes to --captions"),
        (open_labelled_photos, karpathy, "a Karpathy split"),
        (open_source, urls, "a list of URLs; `roibeam download FILE OUT` fetches its photos"),
        (UrlList, photos, "a list of images"),
        (lambda path: HeldOut([f"karpathy={path}"]), coco, r"images\[0\]: lacks filename.*; this is a COCO file"),
    ):
        with pytest.raises(ValueError, match=words):
            read(path)
    for name, content in (("refs.p", OTHERS["refs(unc).p"][0]), ("x.token", f"a.jpg#0\t{DOGS}\n")):
        with pytest.raises(ValueError, match=r"this is a .* where one image id a line was expected"):
            HeldOut([f"list={write(tmp_path / name, content)}"])  # it would hold out nothing
    write(tmp_path / "k.json", {"images": [{"filename": "a.jpg", "sentences": [], "split": "x"}]})
    with pytest.raises(ValueError, match="split must be one of") as damaged:
        HeldOut([f"karpathy={karpathy}"])
    assert "this is" not in str(damaged.value)  # the right file
    table = write(tmp_path / "u.csv", "url,caption\nhttps://x.org/a.jpg,a dog\n")
    with pytest.raises(ValueError, match="got url, caption; `roibeam download` fetches the photos of a table of URLs"):
        open_source(table)


def test_arrays_of_all_images_in_one_file_are_called_so(tmp_path: Path) -> None:
    path = tmp_path / "train36.hdf5"
    with h5py.File(path, "w") as file:
        file["questions"] = np.ones((2, 3, 4), np.float32)
    for read in (lambda path: import_features(path, str(tmp_path / "out")), open_source, CaptionFile):
        with pytest.raises(ValueError, match=r"this is an HDF5 file of arrays with other names .*image_features"):
            read(str(path))
    for name in ("image_features", "42_features"):
        with h5py.File(path, "w") as file:
            file[name] = np.ones((2, 3, 4), np.float32)
        assert describe_file(str(path)).startswith("this is a file of region features")
    path.write_bytes(path.read_bytes()[:100])  # cut off: its reader says so
    assert describe_file(str(path)).startswith("this is a file of region features")


def test_a_store_in_place_of_photos_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / STORE_MANIFEST_NAME).write_text("{}")
    for read in (open_source, read_vocabulary):
        with pytest.raises(ValueError, match="this is a feature store; --store of other commands takes it"):
            read(str(tmp_path))
    source = open_source(write(tmp_path / "a.txt", "a.jpg\n"))
    assert isinstance(next(iter(source.images)), ImageRef)
    with pytest.raises(ValueError, match="this is a feature store"):
        give_boxes(source, str(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "came"),
    [
        ("a.json", '{"items": [{"file": "a.jpg"}]}', "got an object with items; expected a COCO file"),
        ("a.json", '[{"img": "a.jpg", "cap": "a dog"}]', "got a list whose first entry has img, cap; expected a COCO"),
        ("a.txt", "a.jpg\nb.jpg\n", r"got lines such as 'a.jpg', without captions .* --held-out list=FILE\); expected"),
    ],
)
def test_captions_of_no_known_format_are_refused_with_the_formats(
    tmp_path: Path, name: str, text: str, came: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{came}.*Karpathy.*SBU.*a list of"):
        CaptionFile(str(tmp_path / name))


def test_lists_that_look_like_others_are_what_they_were(tmp_path: Path) -> None:
    for text, kind in (
        ("0\n1\n2\n", ""),  # numbers of images
        ("dog\ncat\n", ""),  # a vocabulary
        ("https://shop.org/x\timages/a.jpg\n", ""),  # a caption that is an address
        ("a dog\timages/a.jpg\n", ""),
        ("a.jpg\n", "image-list"),
        ("BMX_1.jpg\n", "image-list"),  # BM begins a picture, PK an archive
        ("PK\nII\n(lp\n", ""),
        ("VG_100K/1.jpg xml/1.xml\n", "visual-genome-split"),
        ("", ""),
        ("\0\1", ""),
        ("{}", ""),
        ("[1, 2]", ""),
        ('["dog", "cat"]', ""),
    ):
        assert kind_of(write(tmp_path / "x", text)) == kind, text
    assert describe_file(str(tmp_path / "nothing")) == ""
