"""What files call an image, as written: ids with dots, photos without extension, the two forms of "é", and the table of
images that joins them."""

import json
import random
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dataset_examples import write
from small_files import write_tar
from tiny_commands import Cli, ok

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.pipelines.common.image_ids import image_id_of
from roibeam.pipelines.common.locations import location_exists, read_location
from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.captions.caption_join import CaptionJoin
from roibeam.pipelines.data.datasets.karpathy import read_retrieval_lines
from roibeam.pipelines.data.datasets.vcr import metadata_path
from roibeam.pipelines.data.given_boxes import give_boxes
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.data.image_table import Ambiguous, Found, ImageFinder, ImageTable
from roibeam.pipelines.data.source_kinds import open_source

DOTTED = ["scene", "scene.1", "scene.2", "IMG 2020.01.02", "a.b/00.07.083@0"]
COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "été/café") for form in ("NFC", "NFD"))


def coco(names: list[str]) -> str:
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    captions = [{"id": 1, "image_id": number, "caption": f"of {name}"} for number, name in enumerate(names)]
    return json.dumps({"images": images, "annotations": captions})


def karpathy(names: list[str]) -> str:
    images = [
        {"filename": name, "imgid": number, "split": "train",
         "sentences": [{"raw": f"of {name}", "tokens": ["of"], "sentid": number}]}
        for number, name in enumerate(names)
    ]  # fmt: skip
    return json.dumps({"images": images})


def sbu(names: list[str]) -> str:
    return json.dumps({"image_urls": names, "user_ids": names, "captions": [f"of {name}" for name in names]})


CAPTIONS: dict[str, Callable[[list[str]], str]] = {
    "list.json": lambda names: json.dumps([{"image": name, "caption": f"of {name}"} for name in names]),
    "rows.tsv": lambda names: "".join(f"of {name}\t{name}\n" for name in names),
    "rows.token": lambda names: "".join(f"{name}#0\tof {name}\n" for name in names),
    "coco.json": coco, "karpathy.json": karpathy, "sbu.json": sbu,
}  # fmt: skip
SOURCES: dict[str, Callable[[list[str]], str]] = {
    **{name: write for name, write in CAPTIONS.items() if name != "list.json"},
    "list.txt": "\n".join,
    "list.csv": lambda names: "\n".join(("image", *names)),
    "list.jsonl": lambda names: "\n".join(json.dumps({"file_name": name}) for name in names),
    "vcr.jsonl": lambda names: "\n".join(json.dumps({"img_fn": name, "objects": ["cat"]}) for name in names),
}  # fmt: skip


def joined(file: str, ids: list[str]) -> list[tuple[str, str]]:
    join = CaptionJoin(ids)
    return [(ids[place], text) for place, text in join.rows(CaptionFile(file).captions())]


# ---- dots


@pytest.mark.parametrize(
    ("path", "image_id"),
    [
        ("a/photo.1", "a/photo.1"), ("IMG 2020.01.02", "IMG 2020.01.02"), ("photo.1.JPG", "photo.1"),
        ("a.HEIC", "a"), ("a.mpo", "a"), ("a.tar.gz", "a.tar.gz"), ("a.png.jpg", "a.png"), ("..jpg", "..jpg"),
    ],
)  # fmt: skip
def test_an_image_extension_is_cut_off_or_nothing(path: str, image_id: str) -> None:
    assert image_id_of(path) == image_id


@pytest.mark.parametrize("extension", ["", ".jpg", ".JPEG", ".heic"])
@pytest.mark.parametrize("kind", CAPTIONS)
def test_captions_of_ids_with_dots_go_to_their_images(tmp_path: Path, kind: str, extension: str) -> None:
    names = [name + extension for name in DOTTED]
    file = write(tmp_path / kind, CAPTIONS[kind](names))
    assert joined(file, DOTTED) == [(image_id, f"of {image_id}{extension}") for image_id in DOTTED]


@pytest.mark.parametrize("kind", SOURCES)
def test_photos_without_extension_have_whole_names(tmp_path: Path, kind: str) -> None:
    names = ["photo.1", "photo.2", "photo.JPG", "IMG 2020.01.02"]
    if kind == "rows.token":
        names = [name.replace(" ", "_") for name in names]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    source = open_source(write(tmp_path / kind, SOURCES[kind](names)), image_root=str(tmp_path))
    wanted = {name.removesuffix(".JPG"): name for name in names}
    assert {image.image_id: Path(image.location).name for image in source.images} == wanted


def test_an_id_is_taken_as_written_before_anything_is_cut(tmp_path: Path) -> None:
    ids = ["a", "a.jpg", "b.jpg", "b.png", "c.png", "d/e"]
    finder = ImageFinder(ids)
    assert [finder.find(each) for each in ("a", "a.jpg", "a.png", "b.png", "b.jpg")] == [
        "a", "a.jpg", "a", "b.png", "b.jpg",
    ]  # fmt: skip
    assert isinstance(finder.look_up("b.gif"), Ambiguous) and isinstance(finder.look_up("b"), Ambiguous)
    # "c.png.jpg" is the file of the image "c.png".
    assert finder.look_up("c.png.jpg") == Found("c.png", 4, "id")
    names = ["a.jpg", "a", "b.png", "c.png.jpg"]
    rows = joined(write(tmp_path / "rows.tsv", CAPTIONS["rows.tsv"](names)), ids)
    assert rows == [(name.removesuffix(".png.jpg") + ".png" * (name[0] == "c"), f"of {name}") for name in names]


def test_boxes_and_metadata_of_ids_with_dots(tmp_path: Path) -> None:
    for name in ("scene.jpg", "scene.1.jpg"):
        (tmp_path / name).write_bytes(b"x")
    images = [{"id": number, "file_name": name} for number, name in enumerate(("scene", "scene.1"))]
    boxes = [{"image_id": number, "bbox": [number, 0, 9, 9]} for number in range(2)]
    file = write(tmp_path / "boxes.json", json.dumps({"images": images, "annotations": boxes}))
    source, given = give_boxes(open_source(str(tmp_path)), file)
    found = {image.image_id: given.attach(image).boxes for image in source.images}
    assert found == {"scene": ((0.0, 0.0, 9.0, 9.0),), "scene.1": ((1.0, 0.0, 10.0, 9.0),)}
    assert metadata_path("a/scene.1@0") == "a/scene.1@0.json" and metadata_path("a/scene.1.jpg") == "a/scene.1.json"
    lines = write(tmp_path / "lines.jsonline", json.dumps({"id": 1, "img_path": "scene.1", "sentences": ["a"]}))
    assert [image for image, _ in read_retrieval_lines(lines)] == ["scene.1"]


def test_a_text_with_the_name_of_an_image_is_of_that_image_alone(tmp_path: Path, roibeam: Cli) -> None:
    files = {"s.jpg": b"x", "s.1.jpg": b"x", "s.txt": b"of s", "t.1.jpg": b"x", "t.txt": b"of t"}
    images = open_source(str(write_tar(tmp_path / "x.tar", files))).images
    assert {each.image_id: each.captions for each in images} == {"s": ("of s",), "s.1": (), "t.1": ("of t",)}


# ---- Unicode forms


@pytest.mark.parametrize("kind", CAPTIONS)
@pytest.mark.parametrize(("called", "image_id"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_names_of_one_nfc_form_meet(tmp_path: Path, kind: str, called: str, image_id: str) -> None:
    file = write(tmp_path / kind, CAPTIONS[kind]([f"{called}.jpg"]))
    assert joined(file, ["a", image_id]) == [(image_id, f"of {called}.jpg")]


def test_exact_names_go_before_those_of_another_form() -> None:
    finder = ImageFinder([COMPOSED, DECOMPOSED, "x/ö", "K"])
    assert (finder.find(COMPOSED), finder.find(DECOMPOSED)) == (COMPOSED, DECOMPOSED)
    mixed = COMPOSED.split("/")[0] + "/" + DECOMPOSED.split("/")[1]
    assert isinstance(finder.look_up(mixed), Ambiguous)
    assert finder.look_up("o\u0308.png") == Found("x/ö", 2, "Unicode form")  # by path
    assert finder.find("o") is None and finder.find("\u212a") == "K"  # the sign of kelvin is K


def test_two_images_that_differ_in_their_form_are_refused(tmp_path: Path) -> None:
    refs = [ImageRef(name, f"/x/{name}.jpg") for name in (COMPOSED, DECOMPOSED, "ö", "a")]
    with pytest.raises(ValueError, match=r"the Unicode form of their ids, 'e\\u0301.*' and '\\xe9t\\xe9"):
        ImageTable(refs)
    assert len(ImageTable([*refs[1:], refs[1]])) == 3
    for name in (COMPOSED, DECOMPOSED):
        (tmp_path / f"{name.replace('/', '-')}.jpg").write_bytes(b"x")
    with pytest.raises(ValueError, match="rename one, or remove it"):
        open_source(str(tmp_path))


@pytest.mark.parametrize(("held_out", "image_id"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_held_out_lists_and_boxes_meet_images_of_another_form(tmp_path: Path, held_out: str, image_id: str) -> None:
    rules = HeldOut([f"list={write(tmp_path / 'list.txt', held_out)}"])
    assert rules.scan(["a", image_id], None).leaked == (image_id,)
    photo = tmp_path / "photos" / f"{image_id}.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"x")
    file = write(tmp_path / "boxes.jsonl", json.dumps({"image_id": held_out, "boxes": [[0, 0, 5, 5]]}))
    _, given = give_boxes(open_source(str(tmp_path / "photos")), file)
    assert image_id in given


def test_rows_and_texts_in_archives_find_files_of_another_form(tmp_path: Path) -> None:
    photo = tmp_path / "photos" / f"{DECOMPOSED}.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"the photo")
    (tmp_path / "photos" / "plain.jpg").write_bytes(b"x")
    rows = [f"{COMPOSED}.jpg", f"{tmp_path}/photos/plain.jpg"]
    source = open_source(write(tmp_path / "l.csv", "\n".join(("path", *rows))), image_root=str(tmp_path / "photos"))
    locations = [image.location for image in source.images]
    assert len(locations) == 2 and all(map(location_exists, locations)) and not location_exists(locations[0] + "x")
    assert {read_location(each) for each in locations} == {b"the photo", b"x"}
    with pytest.raises(FileNotFoundError):
        read_location(locations[1].replace("é", "ö").replace("plain", "ö"))
    files = {f"{DECOMPOSED}.jpg": photo.read_bytes(), f"{COMPOSED}.txt": b"its caption"}
    write_tar(tmp_path / "x.tar", files)
    assert [image.captions for image in open_source(str(tmp_path / "x.tar")).images] == [("its caption",)]


# ---- stores that were begun


def test_planned_images_keep_the_ids_of_an_earlier_rule_or_form() -> None:
    now = [ImageRef("photo.1", "/x/photo.1"), ImageRef("photo.2", "/x/photo.2"), ImageRef("v.1", "/x/v.1"),
           ImageRef(DECOMPOSED, f"/x/{DECOMPOSED}.jpg"), ImageRef("same", "/x/same.jpg")]  # fmt: skip
    planned = [replace(now[0], image_id="photo"), ImageRef("v", "/x/v.jpg"), ImageRef(COMPOSED, f"/x/{COMPOSED}.jpg"),
               now[-1], ImageRef("gone", "/x/gone.jpg")]  # fmt: skip
    for _ in range(2):
        found = ImageTable(now).compared_with((0, image) for image in planned)
        assert [image.image_id for image in found.new] == ["photo.2", "v.1"]
        assert found.renamed() == [(DECOMPOSED, COMPOSED), ("photo.1", "photo")]
        assert (found.num_gone, sorted(found.gone()), list(found.changed())) == (2, ["gone", "v"], [])


def test_a_rerun_plans_no_photo_under_a_second_id(roibeam: Cli, extract: Cli, made_data: Path, tmp_path: Path) -> None:
    photos, store = tmp_path / "photos", tmp_path / "store"
    photos.mkdir()
    for name, photo in zip(("é.jpg", "b.jpg"), sorted((made_data / "images").rglob("*.jpg")), strict=False):
        shutil.copy(photo, photos / name)
    ok(extract(photos, store))
    (photos / "é.jpg").rename(photos / "e\u0301.jpg")  # as a copy by way of a Mac
    again = ok(extract(photos, store))
    assert "nothing to do" in again.out
    assert "1 image of earlier runs has another id in the source now" in again.out + again.err
    assert sorted(roibeam("store", "ids", store).out.split()) == ["b", "é"]


# --- the table of a source's images ---


def told(name: str, *captions: str, labels: tuple[str, ...] = ()) -> ImageRef:
    return ImageRef(name, f"/x/{name}.jpg", captions=captions, labels=labels)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_sorted_list(seed: int) -> None:
    random_order = random.Random(seed)
    names = [f"{'é🐱zZ/'[i % 5]}{i:03d}" for i in range(200)]
    wanted = [told(name, name * 2, labels=("a",)) for name in sorted(names, key=str.encode)]
    shuffled = random_order.sample(wanted, len(wanted))
    for given in (shuffled, wanted):
        table = ImageTable(iter(given))
        assert list(table) == wanted and len(table) == 200
        for bounds in ((None,), (3, 9), (190, 999), (5, 2), (1, None, 50), (None, None, -7)):
            assert table[slice(*bounds)] == wanted[slice(*bounds)]
        assert [table[0], table[-1], table[77]] == [wanted[0], wanted[-1], wanted[77]]
        with pytest.raises(IndexError):
            table[200]


def test_rows_of_one_image_add_up_in_their_order() -> None:
    rows = [told("b", "2", labels=("y", "x")), told("a"), told("b"), told("b", "1", "2", labels=("x", "z"))]
    assert list(ImageTable(rows)) == [told("a"), told("b", "2", "1", "2", labels=("y", "x", "z"))]
    assert not ImageTable([])


def test_two_locations_of_one_id_are_an_error_that_names_both() -> None:
    other = ImageRef("a", "/y/a.png")
    with pytest.raises(ValueError, match=r"two images have the id 'a': '/x/a\.jpg' and '/y/a\.png'; rename one"):
        ImageTable([told("b"), told("a"), other])
    tars = [ImageRef(key, f"tar://{key}.jpg::/{name}/0.tar#0+9") for name in ("cc3m", "cc12m") for key in "ab"]
    with pytest.raises(
        ValueError, match=r"two archives have the key 'a': .*/cc12m/.* \(2 ids .*\); .* --id-prefix cc3m/ "
    ):
        ImageTable(tars)


def test_planned_images_are_compared_with_those_of_now() -> None:
    table = ImageTable([*map(told, "abc"), told("d", "new"), replace(told("e"), location="/y/e.jpg"), told("f")])
    planned = [(7, told("e")), (0, told("d", "old")), (0, told("c")), (1, told("gone")), (2, told("a"))]
    for _ in range(2):  # the table stays as it is
        found = table.compared_with(iter(planned))
        assert list(found.new) == [told("b"), told("f")]
        assert (found.num_gone, list(found.gone())) == (1, ["gone"])
        assert list(found.changed()) == [(0, table[3]), (7, table[4])]
    assert len(table.compared_with((0, image) for image in table).new) == 0


def test_two_walks_at_once_do_not_disturb_each_other() -> None:
    table = ImageTable(map(told, "abc"))
    assert [(x.image_id, y.image_id) for x in table for y in table] == [(x, y) for x in "abc" for y in "abc"]


def test_a_full_disk_is_one_line_that_says_where() -> None:
    table = ImageTable(map(told, "ab"))
    ((pages,),) = table._database.rows("PRAGMA page_count")
    table._database.rows(f"PRAGMA max_page_count={pages}")
    with pytest.raises(OSError, match=r"database or disk is full; is there room in TMPDIR"):
        table.compared_with((0, told(str(number))) for number in range(9999))
