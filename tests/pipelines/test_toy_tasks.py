"""Tasks of a toy world: files that stay as they are and that the readers read, rows that an independent reading of the
texts finds right, scores that bound what a model can reach, and pictures that no pre-training has seen."""

import csv
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toytask_judge as judge
from tiny_commands import Cli, ok, one_line

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.datasets.nlvr2 import read_nlvr2
from roibeam.pipelines.data.datasets.photo_folders import list_folder
from roibeam.pipelines.data.datasets.refer import read_refer
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS, GlueCounts, GlueRow, glue_files, read_glue
from roibeam.pipelines.data.datasets.vcr import read_vcr_boxes, read_vcr_questions
from roibeam.pipelines.data.datasets.vqa import read_vqa, read_vqa_labels
from roibeam.pipelines.data.image_table import ImageFinder
from roibeam.pipelines.finetuning.metrics.nlvr2 import group_of
from roibeam.pipelines.finetuning.metrics.vcr import COLUMNS
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.tasks.vcr import open_vcr
from roibeam.pipelines.toyworld.picture import SCENES_NAME, Picture, describe, read_pictures
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.toyworld.tasks.scene_queries import BlindReader
from roibeam.pipelines.toyworld.tasks.vqa import VqaTask
from roibeam.pipelines.toyworld.tasks.write_tasks import ToyTasks
from roibeam.pipelines.toyworld.truth import KnownScene, parse_caption
from roibeam.pipelines.toyworld.world import CATEGORIES
from roibeam.pipelines.toyworld.world_files import WrittenFiles
from roibeam.pipelines.toyworld.write import write_world
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

SEED, IMAGES = 7, 120
DIGESTS = {
    "vqa": "77fb6f282e0d636158f435118748cd0f6256e5c5818acb353547d9c1ea60310e",
    "vcr": "ea27f3cd8132d3a8be202ab57d1ce72ec3ce93f901986a6db682e252240ddc07",
    "refcoco+": "58d70c4c705b21bf85239eab3480c2926f58fef0e6831c6c496a41a267e5e5e2",
    "nlvr2": "8946c64618aa125954dbcdd174f33156d55450c5afd7c98bbd6843b06a6c6778",
    "mrpc": "3a72cbbc30c171e235121845409f0a191c5b60d77659d3494047e28cdfbf9535",
    "rte": "2905917df2b761c09fa910069fe719287aae44ef497093de0fd14fe7de89018e",
}  # fmt: skip
# Every split that results are reported on, with its reader's suffix.
JUDGED = (
    ("vqa", "val", "json"), ("vcr", "val", "csv"), ("refcoco+", "val", "json"), ("refcoco+", "testA", "json"),
    ("refcoco+", "testB", "json"), ("nlvr2", "dev", "csv"), ("nlvr2", "test1", "csv"),
)  # fmt: skip


class Made:
    """A world, its tasks, and its pictures by the path of each, without extension.

    Nothing may be changed there.
    """

    def __init__(self, folder: Path, num_images: int) -> None:
        self.world, self.tasks = folder / "world", folder / "tasks"
        write_world(self.world, seed=SEED, num_images=num_images, workers=1)
        self.files_before = {path: path.read_bytes() for path in self.world.rglob("*.json*")}
        self.written: WrittenFiles = ToyTasks(str(self.tasks), self.world, SEED, num_images).write()
        pictures = read_pictures(self.world / SCENES_NAME)
        self.pictures = {f"{each.place.dataset}/{each.file_name.rpartition('.')[0]}": each for each in pictures}
        self.finder = ImageFinder(self.pictures)
        linked = {path.stat().st_ino: path for path in self.world.rglob("*.jpg")}
        images = (self.tasks / "nlvr2" / "images").rglob("*.png")
        self.statement_files = {path.name: linked[path.stat().st_ino].relative_to(self.world) for path in images}

    def named(self, name: str) -> Picture:
        """The picture that a task's file means, as a store of the world would be asked."""
        found = self.finder.find(name)
        assert found is not None, name
        return self.pictures[found]

    def statement_pictures(self, names: tuple[str, str]) -> list[Picture]:
        """Those of an NLVR2 statement, by the links on the disk."""
        return [self.pictures[self.statement_files[name].with_suffix("").as_posix()] for name in names]

    def vcr_rows(self, split: str) -> Iterator[dict[str, Any]]:
        yield from map(json.loads, (self.tasks / "vcr" / f"{split}.jsonl").read_text("ascii").splitlines())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("toytasks"), IMAGES)


def questions(made: Made, year: str) -> tuple[str, str]:
    names = (f"v2_OpenEnded_mscoco_{year}_questions.json", f"v2_mscoco_{year}_annotations.json")
    return str(made.tasks / "vqa" / names[0]), str(made.tasks / "vqa" / names[1])


def asked_of_val(made: Made) -> list[dict[str, Any]]:
    return list(json.loads(Path(questions(made, "val2014")[0]).read_text("ascii"))["questions"])


def sentences(made: Made) -> list[Any]:
    folder = made.tasks / "refcoco+"
    return list(read_refer(str(folder / "refs(unc).p"), str(folder / "instances.json")))


def test_the_files_are_the_same_bytes_as_ever_and_the_world_stays_as_it_was(made: Made) -> None:
    changed = "models were compared on these files: raise TASKS_VERSION, then put the new digests here"
    assert made.written.manifest["sha256"] == DIGESTS, changed
    assert {path: path.read_bytes() for path in made.world.rglob("*.json*")} == made.files_before


@pytest.mark.parametrize("name", [name for name, recipe in TASK_RECIPES.items() if recipe.task == "vcr"])
def test_a_vcr_recipe_reads_the_toy_s_files(made: Made, name: str) -> None:
    """One option names the world's classes; without it those that tell a model the classes of boxes stop."""
    folder, options = made.tasks / "vcr", TASK_RECIPES[name].options
    if options.object_loss == "none" and not options.told_classes:
        names: tuple[str, ...] = ()
        task = open_vcr(folder, options, None)
    else:
        with pytest.raises(ValueError, match=r"is no class of COCO .*; vcr.object_names .*object_names\.txt"):
            open_vcr(folder, options, None).read("train")
        task = open_vcr(folder, replace(options, object_names=str(folder / "object_names.txt")), None)
        names = tuple(CATEGORIES)
    for split in ("train", "val", "test"):
        groups = task.read(split).groups
        assert groups
        for classes in (task.beside and task.beside.classes, task.input_classes and task.input_classes.of):
            for group in groups if classes else ():
                assert [names[number - 1] for number in classes(group)] == list(group.facts["objects"])
    assert not names or task.input_classes is None or task.input_classes.num_classes == 1 + len(names)
    assert not names or task.beside is None or task.beside.class_names[1:] == names


def test_every_picture_is_found_in_a_perfect_store_and_in_extractions(made: Made, tmp_path: Path, roibeam: Cli) -> None:
    """Also those of NLVR2, which have names of their own; boxes are those of the regions, in their order."""
    store = tmp_path / "store"
    words = ("toyworld", made.world, "--seed", SEED, "--num-images", IMAGES, "--perfect-store", store)
    assert roibeam(*words).code == 0
    done = roibeam(*words, "--tasks", made.tasks)
    assert done.code == 0 and f"{made.tasks}: all there already" in done.out, done.err
    assert "has NLVR2's pictures of a world's tasks too; name them with --tasks" in one_line(roibeam(*words))
    extracted = {
        task: {each.image_id for each in list_folder(str(made.tasks / task / folder)).images()}
        for task, folder in (("nlvr2", "images"), ("vcr", "vcr1images"))
    }
    with FeatureStore(store) as opened:
        finder = ImageFinder(opened.ids())
        for year in ("train2014", "val2014"):
            assert all(finder.find(each.image) for each in read_vqa(*questions(made, year)))
        for split in ("train", "val", "test"):
            for each in read_vcr_questions(str(made.tasks / "vcr" / f"{split}.jsonl")):
                name = each.image.removesuffix(".jpg")
                assert name in extracted["vcr"]
                boxes = read_vcr_boxes(str(made.tasks / "vcr" / "vcr1images" / f"{name}.json"), name).boxes
                assert boxes.tolist() == opened.meta(str(finder.find(each.image))).boxes.tolist()
        for split in ("train", "dev", "test1"):
            statements = list(read_nlvr2(str(made.tasks / "nlvr2" / f"{split}.json")))
            assert all(finder.find(name) for statement in statements for name in statement.images)
            for statement in statements[:8]:
                for name, picture in zip(statement.images, made.statement_pictures(statement.images), strict=True):
                    found = str(finder.find(name))
                    assert any(each.endswith(name.removesuffix(".png")) for each in extracted["nlvr2"])
                    original = f"{picture.place.dataset}/{picture.file_name.rpartition('.')[0]}"
                    assert (opened[found].features == opened[original].features).all()


def test_no_picture_that_is_judged_on_has_a_caption_for_pre_training_or_a_training_row(made: Made) -> None:
    captioned = set()
    for name in ("coco/dataset_coco.json", "conceptual_captions/Train_GCC-training.tsv", "sbu/sbu-captions-all.json",
                 "flickr30k/dataset_flickr30k.json"):  # fmt: skip
        captioned |= {made.finder.find(str(each.name)) for each in CaptionFile(str(made.world / name))}
    assert len(captioned) > IMAGES / 3 and None not in captioned
    used: dict[bool, set[int]] = {True: set(), False: set()}  # numbers of pictures, by whether they are trained on
    for year in ("train2014", "val2014"):
        used[year == "train2014"] |= {made.named(each.image).number for each in read_vqa(*questions(made, year))}
    for split in ("train", "val", "test"):
        used[split == "train"] |= {made.named(row["img_fn"]).number for row in made.vcr_rows(split)}
    for each in sentences(made):
        used[each.split == "train"].add(each.image_id)
    for split in ("train", "dev", "test1"):
        for statement in read_nlvr2(str(made.tasks / "nlvr2" / f"{split}.json")):
            used[split == "train"] |= {each.number for each in made.statement_pictures(statement.images)}
    numbers = {made.pictures[str(name)].number for name in captioned}
    assert used[True] and used[False] and not used[True] & used[False] and not numbers & used[False]


def seen_answers(made: Made) -> dict[str, Any]:
    """Result files, as texts, of who reads the official files and sees the scene graph."""
    found: dict[str, Any] = {}
    found["vqa_val.json"] = json.dumps(
        [
            {"question_id": each["question_id"],
             "answer": judge.answer(made.named(f"COCO_val2014_{each['image_id']:012d}"), each["question"])}
            for each in asked_of_val(made)
        ]
    )  # fmt: skip
    lines = [",".join(COLUMNS)]
    for row in made.vcr_rows("val"):
        picture = made.named(row["img_fn"])
        answers = judge.true_choices(picture, row["question"], row["answer_choices"])
        rationales = judge.true_choices(picture, (), row["rationale_choices"])
        lines.append(",".join([row["annot_id"], *map(str, map(int, answers + rationales * 4))]))
    found["vcr_val.csv"] = "\n".join(lines) + "\n"
    for split in ("val", "testA", "testB"):
        boxes = [
            {"sent_id": each.sent_id,
             "box": list(judge.meant(made.named(f"{each.image_id:012d}"), each.sentence).box)}
            for each in sentences(made) if each.split == split
        ]  # fmt: skip
        found[f"refcoco+_{split}.json"] = json.dumps(boxes)
    for split in ("dev", "test1"):
        found[f"nlvr2_{split}.csv"] = "".join(
            f"{each.identifier},{judge.is_true(*made.statement_pictures(each.images), each.sentence)}\n"
            for each in read_nlvr2(str(made.tasks / "nlvr2" / f"{split}.json"))
        )
    return found


def scored(roibeam: Cli, made: Made, task: str, split: str, results: Path) -> dict[str, float]:
    done = ok(roibeam("score", task, results, "--data", made.tasks / task, "--split", split, "--json"))
    return {each["name"]: each["value"] for each in json.loads(done.out)["figures"]}


def test_who_sees_reaches_the_ceiling_and_the_blind_reader_the_floor(made: Made, tmp_path: Path, roibeam: Cli) -> None:
    levels, seen = made.written.manifest["levels"], seen_answers(made)
    assert {f"{task}_{split}.{suffix}" for task, split, suffix in JUDGED} == set(seen)
    for task, split, suffix in JUDGED:
        name = f"{task}_{split}.{suffix}"
        (tmp_path / name).write_text(seen[name], "ascii")
        for reader, results in (("perfect", tmp_path / name), ("blind", made.tasks / "readers" / "blind" / name)):
            expected = {measure: reached[reader] for measure, reached in levels[task][split].items()}
            assert scored(roibeam, made, task, split, results) == expected, (task, split, reader)
        if task != "vqa":
            assert all(reached["perfect"] == 1 for reached in levels[task][split].values())
    assert 0.9 < levels["vqa"]["val"]["overall"]["perfect"] < 1  # people are mistaken now and then


def test_training_rows_are_right_too(made: Made) -> None:
    for each in read_vqa(*questions(made, "train2014")):
        assert len(each.answers) == 10
    paths = questions(made, "train2014")
    right = [
        labels.multiple_choice_answer == judge.answer(made.named(each.image), each.question)
        for each, labels in zip(read_vqa(*paths), read_vqa_labels(paths[1]), strict=True)
    ]
    assert sum(right) > 0.9 * len(right) > 90
    for split in ("train", "val"):
        for row in made.vcr_rows(split):
            picture = made.named(row["img_fn"])
            answers = judge.true_choices(picture, row["question"], row["answer_choices"])
            rationales = judge.true_choices(picture, (), row["rationale_choices"])
            assert [sum(answers), answers.index(True)] == [1, row["answer_label"]], row
            assert [sum(rationales), rationales.index(True)] == [1, row["rationale_label"]], row
    for each in sentences(made):
        assert judge.meant(made.named(f"{each.image_id:012d}"), each.sentence).box == each.box
        # RefCOCO+ has no words for places in the picture.
        assert not {"left", "right", "above", "below"} & set(each.sentence.split())
    for each in read_nlvr2(str(made.tasks / "nlvr2" / "train.json")):
        assert judge.is_true(*made.statement_pictures(each.images), each.sentence) is each.is_true


def test_a_statement_is_as_often_false_as_true_and_a_test_file_of_vcr_tells_nothing(made: Made) -> None:
    groups: dict[str, list[bool]] = defaultdict(list)
    for split in ("train", "dev", "test1"):
        for each in read_nlvr2(str(made.tasks / "nlvr2" / f"{split}.json")):
            groups[group_of(each.identifier)].append(each.is_true)
    assert {tuple(sorted(group)) for group in groups.values()} == {(False, False, True, True)}
    assert not any("answer_label" in row or "rationale_label" in row for row in made.vcr_rows("test"))


def test_every_word_but_the_question_mark_is_made_of_pieces_of_the_world_s_vocabulary(made: Made) -> None:
    """A model that read the captions has never seen "what", but all of its pieces."""
    tokenizer = load_tokenizer(str(made.world / "vocab.txt"))
    texts = [each.question for year in ("train2014", "val2014") for each in read_vqa(*questions(made, year))]
    texts += [each.sentence for each in sentences(made)]
    texts += [each.sentence for each in read_nlvr2(str(made.tasks / "nlvr2" / "train.json"))]
    for each in read_vcr_questions(str(made.tasks / "vcr" / "train.jsonl")):
        texts += [text.words for choice in each.choices for text in (choice.context, choice.choice)]
    words = {word for text in texts for word in text.removesuffix("?").replace("?", " ").split()}
    unknown = {word for word in words if "[UNK]" in map(tokenizer.piece, tokenizer.encode(word).ids.tolist())}
    assert len(words) > 60 and not unknown


def test_a_blind_reader_takes_the_level_above_for_what_it_hardly_knows() -> None:
    reader = BlindReader()
    for answer in "aaaaab":
        reader.learn([("how",)], answer)
    reader.learn([("how",), ("how", "balls")], "b")
    assert reader.best([("how",), ("how", "hats")], 1) == "a"  # never seen: as any "how"
    assert reader.best([("how",), ("how", "balls")], 0.1) == "b"
    assert reader.best([("how",), ("how", "balls")], 8) == "a"
    assert reader.best([("why",)], 1) is None
    assert sum(reader.chances([("how",), ("how", "balls")], 3).values()) == pytest.approx(1)


def test_blind_answers_follow_from_the_texts_alone(made: Made) -> None:
    told = {each["question_id"]: each["answer"]
            for each in json.loads((made.tasks / "readers" / "blind" / "vqa_val.json").read_text("ascii"))}  # fmt: skip
    asked = asked_of_val(made)
    by_text: dict[str, set[str]] = defaultdict(set)
    for each in asked:
        by_text[each["question"]].add(told[each["question_id"]])
    assert len(asked) > len(by_text) and all(len(answers) == 1 for answers in by_text.values())


def test_the_command_writes_and_finds_tasks_and_says_their_levels(made: Made, tmp_path: Path, roibeam: Cli) -> None:
    """Also after a run that was stopped, which leaves a folder beside."""
    tasks = tmp_path / "tasks"
    shutil.copytree(made.tasks / "vqa", tmp_path / ".tasks.tmp" / "vqa")
    words = ("toyworld", made.world, "--seed", SEED, "--num-images", IMAGES, "--tasks", tasks)
    done = roibeam(*words)
    assert done.code == 0 and f"{tasks}: written in" in done.out, done.err
    assert "ceiling, %" in done.out and "nlvr2 dev, accuracy" in done.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tasks"]
    again = json.loads(roibeam(*words, "--json").out.splitlines()[-1])["tasks"]
    assert again["sha256"] == DIGESTS and again["levels"] == made.written.manifest["levels"]


def test_what_cannot_be_is_refused_in_one_line(made: Made, tmp_path: Path, roibeam: Cli) -> None:
    def refused(world: Path, tasks: object, seed: int = SEED) -> str:
        return one_line(roibeam("toyworld", world, "--seed", seed, "--num-images", IMAGES, "--tasks", tasks))

    new, foreign = tmp_path / "new", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear reader")
    assert "holds tasks with world" in refused(new, made.tasks, seed=4)
    assert "is not empty and holds no tasks of a toy world" in refused(new, foreign)
    assert "lie in one another" in refused(new, new / "tasks") and "lie in one another" in refused(new, tmp_path)
    assert "is a URL" in refused(new, "s3://bucket/tasks")
    assert "is a file" in refused(new, foreign / "letter.txt")
    assert not new.exists() and [path.name for path in foreign.iterdir()] == ["letter.txt"]


def test_a_world_with_too_few_pictures_is_refused(tmp_path: Path) -> None:
    world = tmp_path / "world"
    world.mkdir()
    lines = (describe(generate(SEED, index)).to_line() for index in range(40))
    (world / SCENES_NAME).write_text("".join(lines), "ascii")
    with pytest.raises(ValueError, match=r"40 pictures give nothing to ask for .*--num-images 400"):
        ToyTasks(str(tmp_path / "tasks"), world, SEED, 40).write()
    assert [path.name for path in tmp_path.iterdir()] == ["world"]


@pytest.mark.slow
def test_more_pictures_leave_questions_as_they_were() -> None:
    few, many = VqaTask(), VqaTask()
    pictures = [describe(generate(SEED, index)) for index in range(200)]
    for task, count in ((few, 100), (many, 200)):
        for picture in pictures[:count]:
            task.add(picture)
    for split, asked in few._questions.items():
        assert many._questions[split][: len(asked)] == asked


@pytest.mark.slow
def test_a_larger_world_leaves_room(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, roibeam: Cli) -> None:
    """And all rows are right there too. Blind is more than chance: words alone tell something."""
    made = Made(tmp_path_factory.mktemp("larger"), 1200)
    test_training_rows_are_right_too(made)
    test_who_sees_reaches_the_ceiling_and_the_blind_reader_the_floor(made, tmp_path, roibeam)
    test_no_picture_that_is_judged_on_has_a_caption_for_pre_training_or_a_training_row(made)
    levels = made.written.manifest["levels"]
    floor = levels["vqa"]["val"]["overall"]["blind"]
    assert levels["nlvr2"]["dev"]["accuracy"]["blind"] == 0.5 and 0.3 < floor < 0.5
    assert 0.25 < levels["vcr"]["val"]["Q->A"]["blind"] < 0.5
    assert 0.25 < levels["vcr"]["val"]["QA->R"]["blind"] < 0.55
    things = levels["refcoco+"]["val"]["accuracy"]["things"]
    assert levels["refcoco+"]["val"]["accuracy"]["blind"] < things < 0.55  # relations are needed
    # The commonest answer of each question type is a guess that the blind reader beats.
    common: dict[str, Counter[str]] = defaultdict(Counter)
    for each in read_vqa_labels(questions(made, "train2014")[1]):
        common[each.question_type][each.multiple_choice_answer] += 1
    simple = tmp_path / "simple.json"
    labels = read_vqa_labels(questions(made, "val2014")[1])
    guessed = [(each.question_id, common[each.question_type].most_common(1)[0][0]) for each in labels]
    simple.write_text(json.dumps([{"question_id": number, "answer": answer} for number, answer in guessed]))
    assert scored(roibeam, made, "vqa", "val", simple)["overall"] < floor
    rows = list(csv.reader((made.tasks / "readers" / "blind" / "vcr_val.csv").read_text("ascii").splitlines()))
    assert len(rows) == 1 + sum(1 for _ in made.vcr_rows("val"))


def text_pairs(made: Made, name: str, split: str) -> list[GlueRow]:
    task = GLUE_TASKS[name]
    return list(read_glue(glue_files(made.tasks / name, task, split), task, split, GlueCounts()))


def test_captions_said_to_be_of_one_scene_are_and_no_picture_is_in_two_splits(made: Made) -> None:
    pictures = [{each.text for each in picture.captions} for picture in made.pictures.values()]
    seen: dict[str, set[int]] = {}
    for split in ("train", "dev"):
        rows = text_pairs(made, "mrpc", split)
        assert 0.3 < sum(row.label == "1" for row in rows) / len(rows) < 0.7
        for row in rows:
            one = [number for number, own in enumerate(pictures) if set(row.texts) <= own]
            assert bool(one) == (row.label == "1") or row.label == "0", row  # two scenes may have one caption in common
        unlike = [row for row in rows if row.label == "0" and any(set(row.texts) <= own for own in pictures)]
        assert len(unlike) < len(rows) / 20
        alike = [row.texts for row in rows if row.label == "1"]
        seen[split] = {n for texts in alike for n, own in enumerate(pictures) if set(texts) <= own}
    assert not seen["train"] & seen["dev"]
    assert all(row.label is None for row in text_pairs(made, "mrpc", "test"))


def test_what_follows_is_true_wherever_the_first_text_is(made: Made) -> None:
    """Read by the truth of captions, which knows scenes, and not by the reader of claims that made the rows."""
    scenes = [KnownScene(picture.scene, picture.relations) for picture in made.pictures.values()]
    rows = [row for split in ("train", "dev") for row in text_pairs(made, "rte", split)]
    assert {row.label for row in rows} == {"entailment", "not_entailment"}
    broken = 0
    for row in rows:
        first, second = map(parse_caption, row.texts)
        holds = [second.is_true_of(scene) for scene in scenes if first.is_true_of(scene)]
        assert holds, row
        if row.label == "entailment":
            assert all(holds), row
        broken += row.label != "entailment" and not all(holds)
    others = sum(row.label != "entailment" for row in rows)
    assert broken > 0.8 * others  # the rest may be true of the few scenes that there are, and does not follow


def test_texts_alone_can_be_read_right_by_who_knows_the_scenes(made: Made) -> None:
    levels = made.written.manifest["levels"]
    assert levels["rte"]["dev"]["accuracy"]["perfect"] == 1.0
    assert levels["mrpc"]["dev"]["accuracy"]["perfect"] > 0.9 > levels["mrpc"]["dev"]["accuracy"]["blind"]
    assert set(levels["mrpc"]["dev"]) == {"accuracy and F1", "F1", "accuracy"}
