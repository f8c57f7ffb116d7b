"""Each kind of source: which images it gives, with which ids, captions and labels; equal photos give equal stores."""

import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folder_filesystem import PREFIX, FolderFileSystem
from small_files import write_json, write_tar, write_text
from tiny_commands import Cli, ok

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.shard.manifest import DEAD_LETTERS_NAME
from roibeam.features.store import FeatureStore
from roibeam.pipelines.common.locations import SourceGoneError, read_image, read_location
from roibeam.pipelines.data.shard_plan import planned_members, read_plan
from roibeam.pipelines.data.source_kinds import open_source
from roibeam.pipelines.toyworld.rendering import draw_samples


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    draw_samples(folder, count=6)
    return folder / "images"


@pytest.fixture
def testfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that testfs:// is."""
    (tmp_path / "far").mkdir()
    for name, value in (("folder", tmp_path / "far"), ("faults", {}), ("opened", {})):
        monkeypatch.setattr(FolderFileSystem, name, value, raising=False)
    monkeypatch.setattr("roibeam.pipelines.common.remote_files._WAITS_SECONDS", (0.0, 0.0))
    return tmp_path / "far"


def caption_of(photo: Path) -> str:
    return f"picture {photo.stem[-1]} à"


def as_folder(photos: Path, to: Path) -> Path:
    return Path(shutil.copytree(photos, to / "folder"))


def as_tar(photos: Path, to: Path) -> Path:
    with tarfile.open(to / "x.tar", "w") as tar:
        tar.add(photos, ".")
    return to / "x.tar"


def as_zip(photos: Path, to: Path) -> Path:
    with zipfile.ZipFile(to / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for photo in photos.iterdir():
            archive.write(photo, photo.name)
    return to / "x.zip"


def as_webdataset(photos: Path, to: Path) -> Path:
    """img2dataset's webdataset output: two shards, with what lies beside them."""
    names = sorted(photos.iterdir())
    for shard, part in enumerate((names[:4], names[4:])):
        files: dict[str, bytes] = {}
        for photo in part:
            of_it = json.dumps({"caption": caption_of(photo), "status": "success"}).encode()
            files |= {photo.name: photo.read_bytes(), f"{photo.stem}.json": of_it}
            files[f"{photo.stem}.txt"] = caption_of(photo).encode()
        write_tar(to / "wds" / f"{shard:05d}.tar", files)
        pq.write_table(pa.table({"key": [photo.stem for photo in part]}), to / "wds" / f"{shard:05d}.parquet")
        (to / "wds" / f"{shard:05d}_stats.json").write_text("{}")
    return to / "wds"


def rows_of(photos: Path) -> dict[str, list[Any]]:
    names = sorted(photos.iterdir())
    return {"image_path": [str(each) for each in names], "caption": [caption_of(each) for each in names]}


def as_parquet(photos: Path, to: Path) -> Path:
    pq.write_table(pa.table(rows_of(photos)), to / "list.parquet")
    return to / "list.parquet"


def as_csv(photos: Path, to: Path) -> Path:
    rows = rows_of(photos)
    lines = [",".join(rows), *(",".join(row) for row in zip(*rows.values(), strict=True))]
    (to / "list.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    return to / "list.csv"


def as_text(photos: Path, to: Path) -> Path:
    lines = [f" {each}\r" for each in sorted(photos.iterdir())]
    (to / "list.txt").write_text("\n\n".join(lines), encoding="utf-8-sig")
    return to / "list.txt"


FORMS = {
    "folder": (as_folder, "folder", False), "tar": (as_tar, "tar", False), "zip": (as_zip, "zip", False),
    "webdataset": (as_webdataset, "archives", True), "parquet": (as_parquet, "image-list", True),
    "csv": (as_csv, "image-list", True), "text": (as_text, "image-list", False),
}  # fmt: skip


def test_the_same_photos_in_any_form_are_the_same_images(photos: Path, tmp_path: Path) -> None:
    wanted = {photo.stem: photo.read_bytes() for photo in photos.iterdir()}
    for name, (write, kind, has_captions) in FORMS.items():
        (tmp_path / name).mkdir()
        root = str(photos) if kind == "image-list" else None
        source = open_source(str(write(photos, tmp_path / name)), image_root=root)
        assert source.kind == kind
        assert {image.image_id: read_location(image.location) for image in source.images} == wanted
        assert all(bool(image.captions) == has_captions for image in source.images)


@pytest.mark.slow
def test_any_form_gives_one_store(roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    digests = {}
    for name, (write, kind, has_captions) in FORMS.items():
        (tmp_path / name).mkdir()
        location, store = write(photos, tmp_path / name), tmp_path / f"store-{name}"
        root = ("--photos", photos) if kind == "image-list" else ()
        ok(roibeam("extract", location, store, *root, *tiny_network, "--shard-size", 4))
        plan = read_plan(LocalFolder(store))
        assert plan is not None and plan.source["kind"] == kind
        wanted = {photo.stem: (caption_of(photo),) if has_captions else () for photo in photos.iterdir()}
        assert {each.image_id: each.captions for each in planned_members(LocalFolder(store), plan)} == wanted
        with FeatureStore(store) as opened:
            digests[name] = opened.manifest.content_digest
        again = roibeam("extract", location, store, *root, *tiny_network)
        assert again.code == 0 and "nothing to do" in again.out, again.err
    assert len(set(digests.values())) == 1, digests


def told(location: Path, **options: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {image.image_id: (image.captions, image.labels) for image in open_source(str(location), **options).images}


def test_what_stands_beside_an_image_of_a_sample(tmp_path: Path) -> None:
    files = {
        "a/1.jpg": b"x", "a/1.txt": b" a cat \n", "a/1.json": b'{"caption": "other"}', "a/1.cls": b"7",
        "2.png": b"x", "2.json": b'{"caption": ["one", "", "two"]}',
        "3.left.jpg": b"x", "3.right.jpg": b"x", "3.txt": b"both", "3.left.cls": b"l",
        "4.webp": b"x", "4.txt": b"\xff", "5.jpg": b"x", "5.json": b"no json", "6.jpg": b"x",
        "6.json": b'{"caption": null}', "7.jpg": b"x", "8.bin": b"x", "7.txt": b"too late",
        "9.jpg": b"x", "9.json": b'{"caption": "\\ud800"}', "10.jpg": b"x", "10.txt": b"x" * 2**21,
    }  # fmt: skip
    source = open_source(str(write_tar(tmp_path / "x.tar", files)))
    found = {image.image_id: (image.captions, image.labels) for image in source.images}
    assert found == {
        "a/1": (("a cat",), ("7",)), "2": (("one", "two"), ()), "3.left": (("both",), ("l",)),
        "3.right": (("both",), ()), "4": ((), ()), "5": ((), ()), "6": ((), ()), "7": ((), ()), "9": ((), ()),
        "10": ((), ()),
    }  # fmt: skip
    assert source.notes == [
        "1 file without an image extension left out",
        "5 captions or labels left out: 1 empty caption, 1 longer than 1048576 bytes, 2 not UTF-8, 1 not json",
        "1 caption or label left out: no image of that name is beside",
    ]
    kept = open_source(str(tmp_path / "x.tar"), id_rule="with-extension").images
    assert [image.image_id for image in kept][-1] == "a/1.jpg" and kept[-1].captions == ("a cat",)


def test_masks_beside_photos_are_left_out_of_archives(tmp_path: Path) -> None:
    photo = b"photo"
    files = {
        "a.jpg": photo, "a.seg.png": photo, "a.txt": b"a dog", "a.Mask.PNG": photo,
        "b.left.jpg": photo, "b.left.seg.png": photo, "b.seg.png": photo,
        "c.seg.png": photo, "d.mask.jpg": photo, "d.seg.png": photo,  # no photo is beside
        "v1.0/e.f.jpg": photo, "v1.0/e.f.mask.png": photo, "g_mask.png": photo, "seg.png": photo,
    }  # fmt: skip
    kept = ["a", "b.left", "c.seg", "d.mask", "d.seg", "g_mask", "seg", "v1.0/e.f"]
    note = "5 masks beside photos left out (.seg, .segm, .segmentation, .mask, .masks, .depth in the name)"
    write_tar(tmp_path / "x.tar", files)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    for name in ("x.tar", "x.zip"):
        source = open_source(str(tmp_path / name))
        assert [image.image_id for image in source.images] == kept
        assert note in source.notes
        assert source.images[0].captions == ("a dog",)


def test_img2datasets_files_are_samples_and_its_parquet_images_are_refused(tmp_path: Path) -> None:
    for number in range(3):
        key = f"files/00000/{number:09d}"
        write_text(tmp_path / f"{key}.jpg", "x")
        write_text(tmp_path / f"{key}.txt", f"caption {number}")
        write_json(tmp_path / f"{key}.json", {"caption": "y"})
    assert told(tmp_path / "files") == {f"00000/00000000{i}": ((), ()) for i in range(3)}  # a folder as any other
    (tmp_path / "files" / "00000_stats.json").write_text("{}")
    (tmp_path / "files" / "00000.parquet").write_bytes(b"")
    source = open_source(str(tmp_path / "files"))
    assert source.kind == "img2dataset" and source.notes == []
    assert told(tmp_path / "files") == {f"00000/00000000{i}": ((f"caption {i}",), ()) for i in range(3)}
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table({"key": ["0"], "jpg": [b"x"]}), tmp_path / "parquet" / "00000.parquet")
    for location in (tmp_path / "parquet", tmp_path / "parquet" / "00000.parquet"):
        with pytest.raises(ValueError, match=r"'jpg' holds binary, not paths; images inside parquet files are not re"):
            open_source(str(location))


def test_lists_name_images_below_the_root_and_tell_of_them(tmp_path: Path) -> None:
    rows = [
        {"File_Name": "b.jpg", "text": "one", "labels": ["x", 3]},
        {"File_Name": f"{tmp_path}/sub/a.jpg", "image_id": 12, "text": None},
        {"File_Name": "b.jpg", "text": "two", "labels": "x"},
        *({"File_Name": bad} for bad in ("/etc/x.jpg", "gs://elsewhere/c.jpg", "https://x/c.jpg", "../c.jpg", "")),
        {"File_Name": "d.jpg", "text": 3},
        {"File_Name": "d.jpg", "image_id": [1]},
    ]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = open_source(str(tmp_path / "l.jsonl"))
    assert list(source.images) == [
        ImageRef("12", f"{tmp_path}/sub/a.jpg"),
        ImageRef("b", f"{tmp_path}/b.jpg", captions=("one", "two"), labels=("x", "3")),
    ]
    assert source.notes == [
        "7 rows left out: 1 URL outside the image folder: give the one that it begins with as --photos, "
        "1 URL: download it and give the local path, 1 caption is no text, "
        "1 image_id is neither text nor a whole number, 1 no image path, 1 path leaves the image folder, "
        "1 path outside the image folder: give the one that it begins with as --photos "
        "(lines 4, 5, 6, 7, 8, 9, 10)"
    ]


def test_a_quote_that_is_not_closed_costs_its_own_row_of_a_csv(tmp_path: Path) -> None:
    def notes(*rows: str) -> list[str]:
        (tmp_path / "l.csv").write_text("\n".join(("path,caption", *rows)) + "\n")
        source = open_source(str(tmp_path / "l.csv"))
        assert [image.image_id for image in source.images] == ["a", "b", "d", "e"]
        captions = {image.image_id: image.captions for image in source.images}
        assert captions["a"] == ('two "lines"\nof one',) and captions["b"] == ('12" wide',)
        return source.notes

    first = ('a.jpg,"two ""lines""', 'of one"', 'b.jpg,12" wide', "", 'c.jpg,"not closed')
    reason = "quote that is opened there and not closed"
    told = f"1 row left out: 1 {reason} (line 6)"
    assert notes(*first, "d.jpg,plain", "e.jpg,plain") == [told]
    assert notes(*first, 'd.jpg,"a caption, in quotes"', "e.jpg,plain") == [told]
    many = ["d.jpg,plain"] * 20_000  # more letters than any field has
    told = f"2 rows left out: 2 {reason} (lines 6, 20008)"
    assert notes(*first, *many, "e.jpg,plain", 'f.jpg,"x', "e.jpg,plain") == [told]
    (tmp_path / "l.csv").write_text('path,"caption\na.jpg,x\n')
    with pytest.raises(ValueError, match=f"line 1: not a csv file .{reason}"):
        open_source(str(tmp_path / "l.csv"))


def test_lists_of_several_files_and_lists_without_an_image(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for part in range(2):
        table = pa.table({"path": [f"{part}/{i}.jpg" for i in range(2)], "caption": [["a", f"b{i}"] for i in range(2)]})
        pq.write_table(table, tmp_path / "parts" / f"{part}.parquet")
    wanted = {f"{part}/{i}": (("a", f"b{i}"), ()) for part in range(2) for i in range(2)}
    assert told(tmp_path / "parts") == wanted == told(tmp_path / "parts" / "*.parquet", image_root=str(tmp_path))
    for name, text in (("l.csv", "url,caption\nx,y\n"), ("l.jsonl", '{"url": "x", "caption": "y"}\n')):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match="got url, caption"):
            open_source(str(tmp_path / name))
    table = pa.table({"path": pa.array(["a.jpg", "b.jpg"]).dictionary_encode(), "label": [3.0, float("nan")]})
    pq.write_table(table, tmp_path / "pandas.parquet")
    assert told(tmp_path / "pandas.parquet") == {"a": ((), ("3.0",)), "b": ((), ())}
    (tmp_path / "l.txt").write_bytes(b"./a b.jpg\n\xff.jpg\n../c.jpg\n/d.jpg\n")
    listed = open_source(str(tmp_path / "l.txt"))
    assert [image.image_id for image in listed.images] == ["a b"]
    assert "3 rows left out" in listed.notes[0] and "lines 2, 3, 4" in listed.notes[0]
    (tmp_path / "bad.csv").write_bytes(b'path,caption\na.jpg,"' + b"x" * 200_000)
    with pytest.raises(ValueError, match=r"line 2: not a csv file \(field larger"):
        open_source(str(tmp_path / "bad.csv"))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(ValueError, match="not a parquet file, or damaged"):
        open_source(str(tmp_path / "bad.parquet"))
    (tmp_path / "latin.csv").write_bytes(b"path,caption\na.jpg,\xe9t\xe9\nb.jpg,ok\n")
    assert told(tmp_path / "latin.csv") == {"b": (("ok",), ())}


def test_annotation_files_of_the_pack_tell_of_their_images(made_data: Path) -> None:
    formats, images = made_data / "formats", str(made_data / "images")
    captions = told(made_data / "coco" / "captions_train2014.json", image_root=images)
    assert all(len(texts) == 5 for texts, _ in captions.values())
    content = json.loads((made_data / "coco" / "instances_train2014.json").read_text())
    names = {each["id"]: each["name"] for each in content["categories"]}
    labels = told(made_data / "coco" / "instances_train2014.json", image_root=images)
    for image in content["images"]:
        wanted = [names[each["category_id"]] for each in content["annotations"] if each["image_id"] == image["id"]]
        assert labels[image["file_name"][:-4]] == ((), tuple(dict.fromkeys(wanted)))
    for name in ("dataset_coco.json", "dataset_flickr30k.json"):
        split = told(formats / "karpathy" / name, image_root=images)
        splits = [each["split"] for each in json.loads((formats / "karpathy" / name).read_text())["images"]]
        counts = sorted(len(texts) for texts, _ in split.values())
        assert counts == sorted(5 if each in ("train", "restval") else 0 for each in splits)
    local = told(made_data / "cc" / "local.tsv", image_root=str(made_data))
    assert sum(len(texts) for texts, _ in local.values()) == 68
    assert any("person" in names for _, names in told(formats / "vcr" / "train.jsonl").values())


def test_flickr30k_of_the_pack(made_data: Path, tmp_path: Path) -> None:
    entities = made_data / "formats" / "flickr30k_entities"
    source = open_source(str(entities / "Sentences"))
    assert (source.kind, len(source.images)) == ("flickr30k", 8)
    assert all(Path(image.location).is_file() and len(image.captions) == 5 for image in source.images)
    first = next(image for image in source.images if image.image_id == "134206")
    assert first.captions[2] == "A blue team plays in a large park ."
    assert not any("[" in caption for image in source.images for caption in image.captions)
    # The same ids as Karpathy's split and a folder of the photos give.
    assert set(told(entities / "Sentences")) == set(told(entities / "flickr30k-images"))
    (tmp_path / "r.token").write_text("1.jpg#0\tA dog .\n\n1.jpg#1\tA cat .\n2.jpg\tno number\n3.jpg#0\t\nnothing\n")
    source = open_source(str(tmp_path / "r.token"))
    assert list(source.images) == [ImageRef("1", f"{tmp_path}/1.jpg", captions=("A dog .", "A cat ."))]
    assert source.notes[0].startswith("3 rows left out: 1 empty caption, 2 not <photo>.jpg#<number> TAB caption")


def test_visual_genome(made_data: Path, tmp_path: Path) -> None:
    shutil.copy(made_data / "vg" / "test_head50.txt", tmp_path / "test.txt")
    images = told(tmp_path / "test.txt")
    assert len(images) == 50 and not any(labels for _, labels in images.values())
    (tmp_path / "xml").mkdir()
    objects = "".join(f"<object><name>{name}</name></object>" for name in ("Tree", "dog", "tree"))
    (tmp_path / "xml" / "1749.xml").write_text(f"<annotation>{objects}</annotation>")
    source = open_source(str(tmp_path / "test.txt"))
    assert {image.labels for image in source.images if image.image_id == "VG_100K_2/1749"} == {("tree", "dog")}
    assert source.notes == ["49 images without labels: no xml file, or a damaged one"]
    urls = [f"https://cs.stanford.edu/people/rak248/VG_100K{part}/{i}.jpg" for i, part in ((1, "_2"), (2, ""))]
    (tmp_path / "image_data.json").write_text(json.dumps([{"image_id": 1, "url": url, "width": 8} for url in urls]))
    source = open_source(str(tmp_path / "image_data.json"))
    assert [image.location for image in source.images] == [f"{tmp_path}/VG_100K/2.jpg", f"{tmp_path}/VG_100K_2/1.jpg"]
    (tmp_path / "image_data.json").write_text('[{"url": "https://x/y.jpg"}]')
    with pytest.raises(ValueError, match=r"entry 0: expected a url that ends in VG_100K/<number>\.jpg"):
        open_source(str(tmp_path / "image_data.json"))


def test_coco_labels_and_captions_whichever_list_is_first(tmp_path: Path) -> None:
    parts = {
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 9},
            {"id": 2, "image_id": 2, "category_id": 3},
            {"id": 3, "image_id": 1, "category_id": 9},
            {"id": 4, "image_id": 1, "caption": "a"},
        ],
        "categories": [{"id": 9, "name": "cup"}, {"id": 3, "name": "dog"}],
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in (1, 2, 1)],
    }
    for order in (sorted(parts), sorted(parts, reverse=True)):
        (tmp_path / "c.json").write_text(json.dumps({name: parts[name] for name in order}))
        assert told(tmp_path / "c.json") == {"1": (("a",), ("cup",)), "2": ((), ("dog",))}
    parts["annotations"][1]["category_id"] = 4
    (tmp_path / "c.json").write_text(json.dumps(parts))
    left_out = "1 annotation left out: 1 category_id that is not among the categories (annotations[1])"
    assert open_source(str(tmp_path / "c.json")).notes == [left_out]


# Filesystems of Beam


def far_sources(photos: Path, bucket: Path, tmp_path: Path) -> dict[str, str]:
    """The photos in each form at URLs, and the image root to give with it."""
    as_webdataset(photos, bucket)
    shutil.copytree(photos, bucket / "photos")
    as_zip(photos, bucket)
    lines = "".join(f"{caption_of(photo)}\t{photo.name}\n" for photo in photos.iterdir())
    (bucket / "photos" / "list.tsv").write_text(lines)
    rows = [f"{PREFIX}bucket/photos/{photo.name}" for photo in photos.iterdir()]
    (tmp_path / "list.csv").write_text("\n".join(["path", *rows]))
    locations = ("photos", "photos/*.jpg", "photos/list.tsv", "x.zip", "wds", "wds/0000*.tar")
    return {f"{PREFIX}bucket/{each}": "" for each in locations} | {f"{tmp_path}/list.csv": f"{PREFIX}bucket/photos"}


def test_images_at_urls_are_those_of_the_folder(photos: Path, tmp_path: Path, testfs: Path) -> None:
    wanted = {photo.stem: photo.read_bytes() for photo in photos.iterdir()}
    for location, root in far_sources(photos, testfs / "bucket", tmp_path).items():
        source = open_source(location, image_root=root or None)
        assert {image.image_id: read_image(source.image_root, image.location) for image in source.images} == wanted
    one = open_source(f"{PREFIX}bucket/photos/{next(photos.iterdir()).name}")
    assert [image.image_id for image in one.images] == [next(photos.iterdir()).stem]
    # A worker opens an archive once, not once for each of its images.
    assert FolderFileSystem.opened[f"{PREFIX}bucket/x.zip"] == 2


@pytest.mark.slow
def test_a_source_at_a_url_gives_the_store_of_the_folder(
    roibeam: Cli, photos: Path, tmp_path: Path, testfs: Path, tiny_network: tuple[str, ...]
) -> None:
    digests = {}
    sources = far_sources(photos, testfs / "bucket", tmp_path) | {str(photos): ""}
    for number, (location, root) in enumerate(sources.items()):
        store = tmp_path / f"store{number}"
        options = ("--photos", root) if root else ()
        done = roibeam("extract", location, store, *options, *tiny_network)
        assert done.code == 0, (location, done.err)
        with FeatureStore(store) as opened:
            digests[location] = opened.manifest.content_digest
    assert len(set(digests.values())) == 1, digests


def test_faults_of_a_filesystem(testfs: Path) -> None:
    (testfs / "b").mkdir()
    (testfs / "b" / "a.jpg").write_bytes(b"photo")
    url, root = f"{PREFIX}b/a.jpg", f"{PREFIX}b"
    FolderFileSystem.faults[url] = 2
    assert read_image(root, url) == b"photo"  # the third try
    FolderFileSystem.faults[url] = 99
    with pytest.raises(OSError, match=r"testfs://b/a\.jpg: the far side hung up"):
        read_image(root, url)
    FolderFileSystem.faults.clear()
    with pytest.raises(FileNotFoundError):
        read_image(root, f"{PREFIX}b/gone.jpg")
    shutil.rmtree(testfs / "b")
    with pytest.raises(SourceGoneError, match="testfs://b has gone"):
        read_image(root, url)
    for location, words in (
        ("azfs://account/bucket/a", r"pip install 'apache-beam\[azure\]', on the workers too"),
        ("hdfs://name/a", r"pip install 'apache-beam\[hadoop\]'"),
        ("nonsense://a/b", "Beam has no filesystem for nonsense://"),
        ("https://host/photos", "images of the web are fetched by `roibeam download`"),
        (f"{PREFIX}b/gone.tsv", r"no such file: testfs://b/gone\.tsv"),
        (f"{PREFIX}b", "no images in"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            open_source(location)


def test_a_changed_member_is_dead(roibeam: Cli, photos: Path, tmp_path: Path, tiny_network: tuple[str, ...]) -> None:
    """The archive is written anew between the plan and the work."""
    wds, store = as_webdataset(photos, tmp_path), tmp_path / "store"
    assert roibeam("extract", wds, store, *tiny_network, "--shard-size", 3).code == 0
    with FeatureStore(store) as opened:
        wanted = opened.manifest.content_digest
    whole = (wds / "00001.tar").read_bytes()
    write_tar(wds / "00001.tar", {"other.bin": b"x" * 9999})
    for path in store.glob("part-*"):
        path.unlink()
    plan = read_plan(LocalFolder(store))
    assert plan is not None
    changed = [each for each in planned_members(LocalFolder(store), plan) if "00001.tar" in each.location]
    assert len(changed) == 2
    done = roibeam("extract", wds, store, *tiny_network)
    assert done.code == 1, done.err
    letters = pq.read_table(store / DEAD_LETTERS_NAME).to_pylist()
    assert {(each["stage"], each["reason"]) for each in letters} == {("read", "changed since planning")}
    assert [each["image_id"] for each in letters] == [each.image_id for each in changed]
    (wds / "00001.tar").write_bytes(whole)
    assert roibeam("extract", wds, store, *tiny_network, "--retry-dead-letters").code == 0
    with FeatureStore(store) as opened:
        assert opened.manifest.content_digest == wanted
    assert read_location(changed[0].location)
