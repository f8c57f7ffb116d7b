"""The perfect store: regions from the scene graph that stay as they are bit for bit, faults that do not touch one
another, and the command that writes it beside a world."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import KILLED, in_a_fork
from tiny_commands import Cli, digest, extract, one_line

from roibeam.features.record.region_record import record_digest
from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.pipelines.data.batches.image_batch import stored_photos
from roibeam.pipelines.data.captions.caption_files import read_captions
from roibeam.pipelines.data.captions.caption_join import CaptionJoin
from roibeam.pipelines.extract.store_page import warning_of_store
from roibeam.pipelines.toyworld.perfect_store import Perception, image_id, perceive, write_perfect_store
from roibeam.pipelines.toyworld.scene import Scene, generate
from roibeam.pipelines.toyworld.write import write_world

IMAGES = 40
FAULTS = Perception(noise=0.5, missed=0.2, doubled=0.3, box_jitter=0.1)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [generate(7, index).scene for index in range(20)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn world without a store. Nothing may be changed there."""
    out = tmp_path_factory.mktemp("perfect") / "world"
    write_world(out, seed=3, num_images=IMAGES, workers=1)
    return out


def ask(roibeam: Cli, world: Path, store: object, *more: object, seed: int = 3) -> Any:
    words = ("toyworld", world, "--seed", seed, "--num-images", IMAGES, "--workers", 1, "--perfect-store", store)
    return roibeam(*words, *more)


@pytest.mark.parametrize(
    ("perception", "expected"),
    [
        (Perception(), "18e8323327901c2b75a35587ccea1d00906c3630fa48ada7939121fcc5989bef"),
        (FAULTS, "0556128ab980a9092fef25511e26be314d7100d43de806e0a69e0de16effbcc2"),
    ],
)
def test_records_are_the_same_bits_as_ever(scenes: list[Scene], perception: Perception, expected: str) -> None:
    """Results were measured on these records."""
    found = hashlib.sha256()
    for index, scene in enumerate(scenes):
        found.update(record_digest(perceive(scene, f"picture{index}", perception)))
    assert found.hexdigest() == expected, "models were trained on these records; make a new feature space of others"


def test_without_faults_every_object_is_a_region_in_its_box(scenes: list[Scene]) -> None:
    for scene in scenes:
        record = perceive(scene, "a", Perception(noise=0))
        corners = [(x, y, x + width, y + height) for x, y, width, height in (thing.box for thing in scene.objects)]
        np.testing.assert_array_equal(record.boxes, corners)
        kinds: dict[tuple[str, ...], np.ndarray] = {}
        for thing, feature in zip(scene.objects, record.features, strict=True):
            np.testing.assert_array_equal(kinds.setdefault((thing.category, *thing.attributes), feature), feature)


def test_noise_has_the_deviation_that_was_asked_for_and_changes_nothing_else(scenes: list[Scene]) -> None:
    errors = []
    for scene in scenes:
        clean = perceive(scene, "a", Perception(0, FAULTS.missed, FAULTS.doubled, FAULTS.box_jitter))
        noisy = perceive(scene, "a", Perception(0.6, FAULTS.missed, FAULTS.doubled, FAULTS.box_jitter))
        np.testing.assert_array_equal(clean.boxes, noisy.boxes)
        np.testing.assert_array_equal(clean.class_ids, noisy.class_ids)
        errors.append(noisy.features.astype(np.float64) - clean.features)
    every = np.concatenate(errors)
    assert abs(every.std() - 0.6) < 0.02 and abs(every.mean()) < 0.02


def test_what_few_faults_miss_or_double_more_of_them_do_too(scenes: list[Scene]) -> None:
    def rows(scene: Scene, **faults: float) -> set[bytes]:
        """Regions by their features, which have noise and are therefore all different."""
        return {feature.tobytes() for feature in perceive(scene, "a", Perception(**faults)).features}

    counts = np.zeros(5, int)
    for scene in scenes:
        every, few, many = rows(scene), rows(scene, missed=0.1), rows(scene, missed=0.3)
        assert many <= few <= every
        some, more = rows(scene, doubled=0.1), rows(scene, doubled=0.3)
        assert every <= some <= more
        counts += [len(every), len(few), len(many), len(some), len(more)]
    assert counts[2] < counts[1] < counts[0] < counts[3] < counts[4]  # else nothing was asked


def test_an_object_seen_twice_has_other_noise_and_another_box(scenes: list[Scene]) -> None:
    for scene in scenes:
        record = perceive(scene, "a", Perception(doubled=1, box_jitter=0.1))
        half = len(scene.objects)
        assert record.num_regions == 2 * half
        np.testing.assert_array_equal(record.class_ids[:half], record.class_ids[half:])
        apart = (record.features[:half].astype(np.float64) - record.features[half:]).std()
        assert abs(apart - 0.3 * 2**0.5) < 0.05
        assert (record.boxes[:half] != record.boxes[half:]).any(axis=1).all()


def test_boxes_stay_inside_the_picture_and_all_may_be_missed(scenes: list[Scene]) -> None:
    for jitter in (0.3, 100):
        for scene in scenes:
            boxes = perceive(scene, "a", Perception(box_jitter=jitter)).boxes
            assert (boxes[:, 2:] - boxes[:, :2] >= 1).all() and (boxes >= 0).all()
            assert (boxes <= [scene.width, scene.height] * 2).all()
    record = perceive(scenes[0], "a", Perception(missed=1))
    assert record.num_regions == 0 and record.features.shape == (0, 96)


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"missed": 1.1}, "missed 1.1: expected a share of the objects, 0 to 1"),
        ({"box_jitter": -1}, "box jitter -1: expected a standard deviation, 0 to 100"),
        ({"noise": float("nan")}, "noise nan: expected a standard deviation, 0 to 100"),
        ({"noise": 0.12345678}, "noise 0.12345678: give at most six digits, such as 0.123457"),
    ],
)
def test_what_no_perception_can_have_is_refused(faults: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Perception(**faults)


def test_a_name_tells_its_perception() -> None:
    for one in (Perception(), FAULTS, Perception(noise=1e-5), Perception(noise=2.4, missed=0.123456)):
        assert Perception.of_feature_space(one.feature_space) == one
    assert Perception.of_feature_space("my-detector") is None
    assert Perception.of_feature_space("toyworld-perfect-noisex-missed0-doubled0-jitter0") is None


def test_the_order_of_scenes_changes_nothing(scenes: list[Scene], tmp_path: Path) -> None:
    named = [(f"picture{index}", scene) for index, scene in enumerate(scenes)]
    made = [write_perfect_store(tmp_path / name, order, FAULTS) for name, order in (("a", named), ("b", named[::-1]))]
    assert made[0].content_digest == made[1].content_digest


def test_the_command_writes_a_store_of_a_drawn_world_and_finds_it(world: Path, tmp_path: Path, roibeam: Cli) -> None:
    """Under the ids of `roibeam extract WORLD`: paths below it, so that captions of every data set find them."""
    store = tmp_path / "store"
    done = ask(roibeam, world, store, "--doubled", 0.5)
    assert done.code == 0, done.err
    assert "all there already" in done.out and "40 written now" in done.out  # the world, then the store
    assert "seen with noise 0.3, missed 0, doubled 0.5, box jitter 0" in done.out
    photos = {path.relative_to(world).with_suffix("").as_posix() for path in world.rglob("*/*.jpg")}
    with FeatureStore(store) as opened:
        ids = list(opened.ids())
        shown = stored_photos([opened], ids[:2])
        assert warning_of_store(opened.manifest) is None
        assert opened.manifest.config["source"]["location"] == str(world)
    assert set(ids) == photos and len(ids) == IMAGES
    assert all(pixels is not None for pixels, _ in shown.values()), shown
    for file in ("coco/dataset_coco.json", "coco/annotations/captions_train2014.json",
                 "conceptual_captions/Train_GCC-training.tsv", "sbu/sbu-captions-all.json",
                 "flickr30k/dataset_flickr30k.json"):  # fmt: skip
        captions, _ = read_captions(str(world / file))
        join = CaptionJoin(ids)
        places = [place for place, _ in join.rows(captions)]
        assert join.report().found_share == 1 and {ids[place].split("/")[0] for place in places} == {file.split("/")[0]}
    again = ask(roibeam, world, store, "--doubled", 0.5, "--json")
    told = json.loads(again.out.splitlines()[-1])["perfect_store"]
    assert (told["written"], told["records"], told["perception"]["doubled"]) == (0, IMAGES, 0.5)
    facts = roibeam("store", "info", store).out
    assert "perfect perception" in facts and "noise 0.3, missed 0, doubled 0.5, box jitter 0" in facts
    assert "warning" not in facts
    drawn = roibeam("store", "show", store, ids[0], "--draw", tmp_path / "regions.png")
    assert drawn.code == 0 and (tmp_path / "regions.png").exists(), drawn.err


def test_another_store_is_refused_before_anything_is_drawn(world: Path, tmp_path: Path, roibeam: Cli) -> None:
    store, new = tmp_path / "store", tmp_path / "new"
    named = [(image_id(index), generate(3, index).scene) for index in range(2)]
    write_perfect_store(store, named, Perception())
    before = digest(store)

    def refused(world: Path, store: object, *more: object, seed: int = 3) -> str:
        said = one_line(ask(roibeam, world, store, *more, seed=seed))
        assert not new.exists()
        return said

    assert "holds a perfect store with noise 0.3, missed 0, " in refused(new, store, "--noise", 0.6)
    assert "is of another toy world than" in refused(new, store, seed=4)
    assert "lie in one another; name a folder beside the world" in refused(new, new / "store")
    assert "lie in one another" in refused(new, tmp_path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear reader")
    assert "is not empty" in refused(new, tmp_path / "foreign")
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["letter.txt"]
    write_perfect_store(tmp_path / "large", [(image_id(IMAGES), generate(3, IMAGES).scene)], Perception())
    assert "is of another toy world than" in refused(new, tmp_path / "large")
    assert digest(store) == before
    assert ask(roibeam, world, store).code == 0 and verify_store(store, deep=True) == []


def test_a_killed_writer_goes_on(scenes: list[Scene], tmp_path: Path) -> None:
    named = [(f"picture{index}", scene) for index, scene in enumerate(scenes)]
    whole, store = write_perfect_store(tmp_path / "whole", named, FAULTS), tmp_path / "store"
    write_perfect_store(store, named[:5], FAULTS)

    def write() -> None:
        write_perfect_store(store, named, FAULTS)

    copy = shutil.copytree(store, tmp_path / "copy")
    _, steps = in_a_fork(lambda: write_perfect_store(copy, named, FAULTS), copy)
    publishes = next(place for place, step in enumerate(steps, 1) if re.match(r"os\.rename .*part-00001\.json", step))
    assert in_a_fork(write, store, publishes)[0] == KILLED
    write()
    assert digest(store) == whole.content_digest and verify_store(store, deep=True) == []


@pytest.mark.slow
def test_an_extraction_of_the_world_has_the_same_ids(world: Path, tmp_path: Path, roibeam: Cli) -> None:
    """But for the contact sheet, which lies in the world's folder too."""
    assert ask(roibeam, world, tmp_path / "perfect").code == 0
    extract(world, tmp_path / "detector", "--detector", "toy")
    with FeatureStore(tmp_path / "perfect") as perfect, FeatureStore(tmp_path / "detector") as detector:
        assert set(perfect.ids()) == set(detector.ids()) - {"contact_sheet"}
        for name in perfect.ids():
            seen, found = perfect.meta(name), detector.meta(name)
            assert (seen.height, seen.width) == (found.height, found.width)
    done = roibeam("store", "diff", tmp_path / "detector", tmp_path / "perfect")
    assert f"images on both sides   {IMAGES}" in done.out and "Traceback" not in done.err
