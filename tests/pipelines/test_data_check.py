"""`roibeam data check`: what a data set lacks is named, with the published counts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from glue_files import write_task
from tiny_commands import Cli, ok

from roibeam.pipelines.finetuning.scored_tasks import DETECTIONS_NAME, SplitCheck, check_data
from roibeam.pipelines.toyworld.entities import ToyEntities
from roibeam.pipelines.toyworld.tasks.write_tasks import ToyTasks
from roibeam.pipelines.toyworld.write import write_world


def test_a_cut_split_and_a_missing_one_are_named(roibeam: Cli, tmp_path: Path) -> None:
    write_task(tmp_path, "wnli", rows=71, test_rows=146)
    (tmp_path / "WNLI" / "train.tsv").rename(tmp_path / "kept")
    lines = ok(roibeam("data", "check", "wnli", tmp_path)).out.splitlines()
    found = {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines[1:]}
    assert found["dev"] == ["71", "71", "0 .. 70"] and found["test"] == ["146", "146", "0 .. 145"]
    assert found["train"][:2] == ["-", "635"] and "has no train.tsv" in found["train"][2]
    (tmp_path / "WNLI" / "train.tsv").write_bytes(b"\xff\xfe")
    assert roibeam("data", "check", "wnli", tmp_path).code == 1  # there, and cannot be read
    (tmp_path / "kept").rename(tmp_path / "WNLI" / "train.tsv")
    result = roibeam("data", "check", "wnli", tmp_path)
    assert result.code == 1 and "564 rows fewer: cut, or another version" in result.out


def test_tables_of_one_s_own_have_no_published_count(roibeam: Cli, tmp_path: Path) -> None:
    (tmp_path / "val.csv").write_text("id,image,question,answer\n7,a,what?,cat\n9,b,who?,dog\n")
    lines = ok(roibeam("data", "check", "vqa", tmp_path)).out.splitlines()
    assert [line.split(maxsplit=3)[1:] for line in lines if line.startswith("val ")] == [["2", "not", "known  7 .. 9"]]
    assert [line.split()[0] for line in lines[1:-1]] == ["val", "train", "test"]


def test_nothing_there_is_a_failure(roibeam: Cli, tmp_path: Path) -> None:
    result = roibeam("data", "check", "vcr", tmp_path)
    assert result.code == 1 and result.out.count("no ") >= 3
    unknown = roibeam("data", "check", "vqq", tmp_path)
    assert unknown.code and "no task 'vqq': did you mean vqa" in unknown.err


SEED, NUM_IMAGES = 0, 200


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Official files of each task, with photos, of a small world."""
    folder, world = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("world")
    write_world(world, seed=SEED, num_images=NUM_IMAGES, workers=1)
    ToyTasks(str(folder), world, SEED, NUM_IMAGES).write()
    ToyEntities(str(folder / "flickr30k-entities"), world, SEED, NUM_IMAGES).write()
    images = json.loads((folder / "refcoco+" / "instances.json").read_text())["images"]
    boxes = [{"box": [1, 2, 3, 4], "image_id": each["id"], "category_id": 1, "score": 0.9} for each in images]
    (folder / "refcoco+" / DETECTIONS_NAME).write_text(json.dumps(boxes))
    (folder / "retrieval").symlink_to(world / "coco")
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def few_questions(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "questions": content["questions"][:10]}))


def without_photos(path: Path) -> None:
    for photo in sorted((*path.rglob("*.jpg"), *path.rglob("*.png")))[:2]:
        photo.unlink()


def first_in(folder: Path, damage: Callable[[Path], object]) -> None:
    damage(sorted(folder.iterdir())[0])


def without_boxes(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_text("<annotation></annotation>")


QUESTIONS = "v2_OpenEnded_mscoco_{}_questions.json"


@pytest.mark.parametrize(
    "task, part, damage, split, words",
    [
        ("vqa", QUESTIONS.format("train2014"), few_questions, "train", "without a row (first: "),
        ("vqa", QUESTIONS.format("val2014"), cut, "val", "val2014_questions.json"),
        ("vqa", "v2_mscoco_val2014_annotations.json", cut, "val", "annotations.json"),
        ("refcoco+", DETECTIONS_NAME, cut, "", DETECTIONS_NAME),
        ("refcoco+", DETECTIONS_NAME, lambda at: at.write_text("[]"), "", "have no detection in it"),
        ("flickr30k-entities", "Annotations", without_boxes, "", "images without a box"),
        ("vcr", "vcr1images", shutil.rmtree, "photos of ", "vcr1images"),
        ("flickr30k-entities", "Sentences", lambda at: first_in(at, Path.unlink), "", "1 image cannot be read"),
        ("flickr30k-entities", "Annotations", lambda at: first_in(at, Path.unlink), "", "1 image cannot be read"),
        (
            "flickr30k-entities",
            "Annotations",
            lambda at: first_in(at, lambda x: x.write_text("<a")),
            "",
            "1 image cannot be read",
        ),
        ("vcr", "vcr1images", without_photos, "photos of ", "2 files not below "),
        ("vcr", "vcr1images", lambda at: next(at.rglob("*.json")).unlink(), "photos of ", "1 file not below "),
        ("nlvr2", "images", without_photos, "photos of ", "2 files not below "),
    ],
)
def test_damage_is_named(
    data: Path, tmp_path: Path, task: str, part: str, damage: Callable[[Path], object], split: str, words: str
) -> None:
    def faults() -> dict[str, SplitCheck]:
        return {each.split: each for each in check_data(task, tmp_path / task)}

    shutil.copytree(data / task, tmp_path / task)
    before = faults()
    assert not any(words in each.fault for each in before.values())
    damage(tmp_path / task / part)
    found = [each for each in faults().values() if each.fault != before[each.split].fault]
    assert [each for each in found if words in each.fault and not each.is_missing], found
    assert all(each.split.startswith(split) or each.split == "minival" for each in found)
    assert not any("--data" in each.fault or "--entities" in each.fault for each in found)


@pytest.mark.parametrize("task", ["vqa", "vcr", "nlvr2", "refcoco+", "flickr30k-entities", "retrieval"])
def test_nothing_there_is_missing_and_names_no_option_that_the_command_has_not(
    roibeam: Cli, tmp_path: Path, task: str
) -> None:
    result = roibeam("data", "check", task, tmp_path)
    assert result.code == 1 and "--" not in result.out.replace(" - ", "")
    assert result.out.splitlines()[-1].startswith("not checked: ")
    assert all(each.is_missing for each in check_data(task, tmp_path))


@pytest.mark.parametrize("name, count", [("dataset_coco.json", 25_010), ("dataset_flickr30k.json", 5_000)])
def test_a_count_is_known_by_the_name_of_a_file_that_cannot_be_read(tmp_path: Path, name: str, count: int) -> None:
    (tmp_path / name).write_text('{"images": [')
    found = {each.split: (each.published, each.is_missing) for each in check_data("retrieval", tmp_path)}
    assert found["test"] == (count, False)
