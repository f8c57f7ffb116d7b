"""Images of a task that must not be trained on: its own judged files, other tasks' files, and what a run saw, under
whatever name."""

import csv
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_files import write_json
from tiny_commands import Cli, one_line

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.held_out import HeldOut, reported_files
from roibeam.pipelines.data.image_identity import Key
from roibeam.pipelines.finetuning.held_out_images import PhotoNames, check_own_splits, other_tasks_leaks, seen_before
from roibeam.pipelines.training.run_folder.training_data import known_keys, trained_report, write_trained_images


def coco(number: int, year: str = "val2014") -> str:
    return f"COCO_{year}_{number:012}"


def write_questions(folder: Path, year: str, images: list[int]) -> None:
    questions = [{"question_id": 1000 * image, "image_id": image, "question": "Why?"} for image in images]
    write_json(folder / f"v2_OpenEnded_mscoco_{year}_questions.json", {"questions": questions})


def write_table(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("image", "text", "label"), *((image, "a thing", label) for image, label in rows)])


def keys(*names: str, data_set: str | None = None) -> Iterator[Key]:
    return (key for name in names for key in known_keys(name, data_set))


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A folder of several tasks' official files, about COCO's images 1 to 6."""
    folder = tmp_path / "official"
    write_questions(folder / "vqa", "train2014", [1, 2])
    write_questions(folder / "vqa", "val2014", [3, 4])
    write_questions(folder / "vqa", "test2015", [5])
    refs = [{"image_id": 1, "split": "testA"}, {"image_id": 2, "split": "train"}]
    (folder / "refcoco+").mkdir()
    (folder / "refcoco+" / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))
    write_json(folder / "coco" / "instances_minival2014.json", {"images": [{"id": 6, "file_name": "x.jpg"}]})
    write_json(folder / "image_data.json", [{"image_id": 77, "coco_id": 3}, {"image_id": 78, "coco_id": None}])
    return folder


def test_a_folder_stands_for_the_files_that_results_are_reported_on(official: Path) -> None:
    report = HeldOut([f"vqa={official}", f"refcoco+={official}"]).scan([coco(n) for n in range(1, 7)], None)
    assert report.leaked == tuple(coco(n) for n in (1, 3, 4, 5))
    assert [rule.line() for rule in report.rules] == [
        f"vqa, v2_OpenEnded_mscoco_val2014_questions.json: 2 of 2 held-out images inside: {coco(3)} (COCO 3), "
        f"{coco(4)} (COCO 4)",
        f"vqa, v2_OpenEnded_mscoco_test2015_questions.json: 1 of 1 held-out image inside: {coco(5)} (COCO 5)",
        f"refcoco+: 1 of 1 held-out image inside: {coco(1)} (COCO 1)",
    ]
    minival = HeldOut([f"coco={official}/coco/instances_minival2014.json", f"vqa-minival={official}"])
    assert minival.scan([coco(6), coco(4), coco(1)], None).leaked == (coco(6), coco(4))
    with pytest.raises(ValueError, match=r"the folder holds no val.jsonl or test.jsonl$"):
        HeldOut([f"vcr={official}"])


def test_a_run_is_asked_for_held_out_images_by_any_of_their_names(official: Path, tmp_path: Path, roibeam: Cli) -> None:
    """Visual Genome's 77 is COCO's 3; a bare 4 is COCO's where the run knew whose number it was."""
    run = tmp_path / "run"
    run.mkdir()
    write_trained_images(run, [*keys("VG_100K/77", "5"), *keys("4", data_set="coco")])
    rules = [f"vqa={official}/vqa", f"visual-genome={official}/image_data.json"]
    assert trained_report(run, rules).leaked == ("COCO 3", "COCO 4")
    assert trained_report(run, rules[:1]).leaked == ("COCO 4",)
    done = roibeam("leaks", run, "--held-out", rules[0], "--held-out", rules[1])
    assert done.code == 1 and "val2014_questions.json: 2 of 2 held-out images inside: COCO 3, COCO 4" in done.out


def test_what_a_model_has_seen_is_told_as_sure_or_as_possible(official: Path, tmp_path: Path) -> None:
    write_trained_images(tmp_path, keys(coco(1), "2", "VG_100K/77"))
    asked = [coco(1, "train2014"), coco(2), coco(3), "row-9"]
    seen = seen_before(tmp_path, asked, PhotoNames(called={"row-9": "000000000001.jpg"}))
    assert seen.trained == (asked[0], "row-9") and seen.perhaps == (coco(2),)
    notes = seen.notes("run/", "validation")
    assert notes[0].startswith("run/ was trained on 2 of 4 validation images, such as COCO_train2014")
    assert notes[1].endswith("such as COCO_val2014_000000000002: it knew images by bare numbers")
    write_json(tmp_path / "config.json", {"task": {"captions": "0a"}})
    before = "in pre-training, with captions and not with the task's questions"
    assert seen_before(tmp_path, asked, PhotoNames()).notes("run/", "x")[0].endswith(f" ({before})")
    (tuned := tmp_path / "tuned").mkdir()
    write_trained_images(tuned, keys(coco(3)), before=tmp_path)
    write_json(tuned / "config.json", {"task": {"kind": "finetuning"}})
    again = seen_before(tuned, asked, PhotoNames())
    assert again.notes("t", "x")[0].endswith(f" (1 of them in fine-tuning; the others {before})")
    assert seen_before(tuned, [coco(3)], PhotoNames()).words() == ""
    genome = HeldOut([f"refcoco+={official}", f"visual-genome={official}/image_data.json"])
    assert coco(3) in (seen_before(tmp_path, asked, PhotoNames(rules=genome)).trained or ())
    assert seen_before(None, asked, PhotoNames()).to_json()["trained_on"] is None


def test_a_file_that_is_trained_on_as_a_whole_is_told_and_not_refused(official: Path) -> None:
    """VL-BERT and VisualBERT train on VQA's validation questions too; its test images are refused all the same."""
    val, test = (Path(path) for path in reported_files("vqa", str(official)))
    names = PhotoNames()
    (note,) = check_own_splits("vqa", official, [val], [coco(3)], names, allowed=False)
    assert note == f"{val.name} is trained on: nothing that is measured on it is held out"
    with pytest.raises(ValueError, match=rf"1 image of the training split .* vqa: 1 of 1 .*{coco(5)}.*shared_images"):
        check_own_splits("vqa", official, [val], [coco(5)], names, allowed=False)
    assert check_own_splits("vqa", official, [val, test], [coco(5)], names, allowed=False)[1].startswith(test.name)
    test.write_text('{"questions": [{"image_id": "x"}]}')
    (_, damaged) = check_own_splits("vqa", official, [val], [coco(3)], names, allowed=False)
    assert damaged.startswith("held-out images of vqa cannot be looked for: ")


def test_files_of_other_tasks_beside_the_tasks_own_are_looked_at(official: Path) -> None:
    """RefCOCO+'s are read too, the own ones not again, one that cannot be read says nothing."""
    (official / "vcr").mkdir()
    (official / "vcr" / "val.jsonl").write_text("no json\n")
    train = official / "vqa" / "v2_OpenEnded_mscoco_train2014_questions.json"
    trained = [coco(1, "train2014"), coco(2, "train2014"), coco(3)]
    by_name, referring = other_tasks_leaks("vqa", official, [train], trained, PhotoNames())
    assert by_name.startswith("1 image of validation and test splits, as its name says: 1 of COCO's val2014")
    assert referring == (
        f"refcoco+/refs(unc).p, refcoco: 1 of 1 held-out image inside: {trained[0]} (COCO 1): results on them are not "
        "held-out results"
    )
    assert other_tasks_leaks("vqa", official, [train], trained[1:2], PhotoNames()) == []


def test_finetuning_refuses_or_drops_images_of_tests(roibeam: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    with FeatureStore(store[0]) as opened:
        images = list(opened.ids())
    data, out = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    write_table(data / "train.csv", [(image, "ab"[n % 2]) for n, image in enumerate(images[:4])])
    write_table(data / "val.csv", [(images[4], "a")])
    write_table(data / "test.csv", [(f"folder/{images[5]}.jpg", "a"), (images[0], "b")])
    words = ("finetune", out, "--task", "labels", "--from", "none", "--system", "visualbert", "--store", store[0],
             "--data", data, "--device", "cpu", "--steps", 1, "--batch-size", 2)  # fmt: skip
    done = roibeam(*words)
    assert done.code == 1 and f"labels, test.csv: 1 of 2 held-out images inside: {images[0]}; take" in one_line(done)
    write_table(data / "test.csv", [(images[5], "a")])
    (tmp_path / "others.txt").write_text(f"{images[1]}\n{images[6]}\n")
    rule = ("--held-out", f"list={tmp_path}/others.txt")
    refused = roibeam(*words, *rule)
    assert refused.code == 1 and "labels, train: 1 image of 4 must not be trained on: list" in one_line(refused)
    wrong = roibeam(*words, "--drop-held-out")
    assert wrong.code == 1 and "--drop-held-out: name what is held out" in one_line(wrong)
    assert not out.exists()
    tested = {"filename": f"{images[2]}.jpg", "imgid": 2, "split": "test", "sentences": []}
    write_json(data / "dataset_coco.json", {"images": [tested]})
    done = roibeam(*words, *rule, "--drop-held-out", "--set", "layout.max_pieces=5")
    assert done.code == 0 and "1 group of held-out images left out" in done.err
    assert f"dataset_coco.json, karpathy: 1 of 1 held-out image inside: {images[2]}: results on them" in done.err
    assert "3 training texts longer than a row: 5 pieces are read of each" in done.err
    assert "1 validation text longer than a row" in done.err
    (tmp_path / "all.txt").write_text("\n".join(images))
    told = roibeam("leaks", out, "--held-out", f"list={tmp_path}/all.txt")
    assert told.out.splitlines()[0].startswith(f"list: 3 of {len(images)} held-out images inside: {images[0]}, ")
