"""Photos of stored records: found, read as their boxes mean them, or named with what is wrong."""

import shutil
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from photo_store import HEIGHTS_WIDTHS, PhotoStore, image_id, write_photo_store
from PIL import Image
from store_examples import FINGERPRINT

from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.shard.manifest import LOCATIONS_NAME
from roibeam.features.shard.writer import publish_store
from roibeam.features.store import FeatureStore
from roibeam.features.writing.store_writer import write_store
from roibeam.pipelines.data.id_lists import IdSelection
from roibeam.pipelines.data.record_photos import PhotoError, RecordPhotos
from roibeam.pipelines.data.shard_plan import extend_plan, read_plan
from roibeam.pipelines.data.source_kinds import open_source
from roibeam.pipelines.extract.stores.store_copy import CopyOptions, copy_store

IDS = [image_id(number) for number in range(8)]


@pytest.fixture
def made(tmp_path: Path) -> PhotoStore:
    return write_photo_store(tmp_path, feature_dim=8)


def photos_of(made: PhotoStore, folder: Path | None = None, ids: list[str] = IDS) -> RecordPhotos:
    with FeatureStore(made.path) as store:
        return RecordPhotos(store, ids, None if folder is None else str(folder))


def test_photos_lie_where_the_plan_says(made: PhotoStore) -> None:
    photos = photos_of(made)
    assert photos.missing() == {}
    for number, name in enumerate(IDS):
        read = photos.read(photos.place(name, HEIGHTS_WIDTHS[number]))
        assert np.array_equal(read, cv2.imread(str(made.photo(name))))


def test_photos_lie_in_a_folder_by_id_or_path(made: PhotoStore, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "deep"
    moved.parent.mkdir()
    made.photos.rename(moved)
    assert list(photos_of(made).missing()) == IDS
    photos = photos_of(made, tmp_path / "elsewhere")
    assert photos.missing() == {}
    assert photos.place(IDS[3], (64, 48)).location == str(moved / "photo-3.png")


def test_a_copy_of_stores_that_were_made_of_tars_reads_photos_in_them(made: PhotoStore, tmp_path: Path) -> None:
    """As `store copy` joins the parts of an array's jobs; also where the copy has no locations, with --photos."""
    (tars := tmp_path / "tars").mkdir()
    with tarfile.open(tars / "0.tar", "w") as tar:
        for name in IDS:
            tar.add(made.photo(name), f"{name}.png")
    images = list(open_source(str(tars)).images)
    plan = read_plan(LocalFolder(made.path))
    source = {"kind": "archives", "location": str(tars), "image_root": str(tars), "id_rule": "no-extension"}
    extend_plan(LocalFolder(made.path), None, source=source, settings={}, images=images, shard_size=100, replaced=plan)
    made.photos.rename(tmp_path / "gone")
    selection = IdSelection("taken.txt", frozenset(IDS[:1]), is_without=True)
    copy_store([made.path], tmp_path / "copy", CopyOptions(selection=selection))
    copy_store([tmp_path / "copy"], tmp_path / "copy-of-copy")
    assert IDS[0] not in (tmp_path / "copy-of-copy" / LOCATIONS_NAME).read_text("utf-8")
    with FeatureStore(tmp_path / "copy-of-copy") as store:
        for folder in (None, str(tars)):
            photos = RecordPhotos(store, IDS[1:], folder)
            assert photos.missing() == {}
            read = photos.read(photos.place(IDS[3], HEIGHTS_WIDTHS[3]))
            assert np.array_equal(read, cv2.imread(str(tmp_path / "gone" / f"{IDS[3]}.png")))
        (store.path / LOCATIONS_NAME).write_text("no json\n")
        with pytest.raises(ValueError, match=r"locations\.jsonl: damaged .* copy the store again, or name the folder"):
            RecordPhotos(store, IDS[1:])


def test_ids_with_extensions_find_the_photos_that_they_name(made: PhotoStore, tmp_path: Path) -> None:
    names = ["a.jpg", "a.png"]
    for name in names:
        (tmp_path / "twins").mkdir(exist_ok=True)
        shutil.copy(made.photo(IDS[0]), tmp_path / "twins" / name)
    assert photos_of(made, tmp_path / "twins", names).missing().keys() == set(names)
    publish_store(made.path, [0], fingerprint=FINGERPRINT, config={"source": {"id_rule": "with-extension"}})
    assert photos_of(made, tmp_path / "twins", names).missing() == {}


def test_what_is_missing_is_known_before_anything_is_read(made: PhotoStore, tmp_path: Path) -> None:
    made.photo(IDS[2]).unlink()
    assert photos_of(made).missing().keys() == photos_of(made, made.photos).missing().keys() == {IDS[2]}
    assert photos_of(made, made.photos).missing()[IDS[2]].startswith("no photo of this name in")
    with pytest.raises(PhotoError, match=r"image 'photo-2': no file .*photo-2\.png"):
        photos_of(made).place(IDS[2], (1, 1))
    for folder in "ab":
        (tmp_path / "twice" / folder).mkdir(parents=True)
        shutil.copy(made.photo(IDS[0]), tmp_path / "twice" / folder)
    assert "may both be its photo" in photos_of(made, tmp_path / "twice", IDS[:1]).missing()[IDS[0]]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "truncated"),
        (lambda path: path.write_bytes(b""), "empty file"),
        (lambda path: path.write_text("a photo"), "not an image"),
        (lambda path: cv2.imwrite(str(path), np.zeros((30, 20, 3), np.uint8)), "20 x 30 pixels, the record 'photo-0'"),
        (lambda path: path.unlink(), "No such file or directory"),
    ],
)
def test_a_photo_that_cannot_be_used_is_named(made: PhotoStore, damage, words: str) -> None:
    photos = photos_of(made)
    damage(made.photo(IDS[0]))
    with pytest.raises(PhotoError, match=words) as told:
        photos.read(photos.place(IDS[0], HEIGHTS_WIDTHS[0]))
    assert "photo-0.png" in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("orientation", ["applied", "ignored"])
def test_photos_are_turned_as_the_records_were(tmp_path: Path, orientation: str) -> None:
    """A photo that lies upside down keeps its size: only the store's settings tell which way up the boxes are."""
    made = write_photo_store(tmp_path, feature_dim=8, exif_orientation=orientation)
    exif = Image.Exif()
    exif[0x0112] = 3  # rotated by 180 degrees
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:24] = 255
    Image.fromarray(pixels).save(made.photo(IDS[0]), exif=exif)
    photos = photos_of(made)
    read = photos.read(photos.place(IDS[0], (48, 64)))
    assert bool(read[0, 0, 0]) == (orientation == "ignored")


def test_a_written_store_says_where_photos_lie_if_it_was_told(made: PhotoStore, tmp_path: Path) -> None:
    with FeatureStore(made.path) as store:
        write_store(tmp_path / "own", list(store), feature_space="own", photos=made.photos)
    with FeatureStore(tmp_path / "own") as store:
        photos = RecordPhotos(store, IDS)
        assert photos.missing() == {}
        assert photos.place(IDS[3], (64, 48)).location == str(made.photo(IDS[3]))
        made.photos.rename(tmp_path / "moved")
        with pytest.raises(ValueError, match=r"were here when it was written; name where they are now"):
            RecordPhotos(store, IDS)


def test_a_store_that_does_not_say_where_photos_lie(made: PhotoStore) -> None:
    (made.path / "plan.json").unlink()
    (made.path / "plan" / "plan.json").unlink()
    with pytest.raises(ValueError, match=r"does not record where its photos are .* name their folder with --photos"):
        photos_of(made)
    assert photos_of(made, made.photos).missing() == {}
    with pytest.raises(ValueError, match="no such folder"):
        photos_of(made, made.photos / "nowhere")
