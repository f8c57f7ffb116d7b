"""The parts of bench/evidence that its verdicts rest on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evidence import mask_patterns, pretraining_runs, run_answers, runs, worlds
from evidence.arms import ARMS, GROUP_ANCHORS, HIDDEN_WORDS, QUICK_ARMS
from evidence.questions import largest_overlap
from evidence.readers import bounds as readers
from evidence.readers import hidden_words as words
from evidence.readers.caption_pairs import PairReader
from evidence.readers.hidden_regions import _RegionReader
from evidence.readers.read_world import ReadWorld, expected_recall
from evidence.tasks import own_arms, repeated_pictures, task_arms, task_runs
from evidence.tasks.head_runs import HeadRuns, of_other_half
from evidence.tasks.own_pictures import OwnPictures, read_text_bounds
from evidence.tasks.task_world import TaskWorld
from evidence.worlds import FULL, QUICK
from photo_store import FINGERPRINT, draw_record, publish_store, write_shard
from small_files import write_json, write_text

from roibeam.features.store import FeatureStore
from roibeam.model.common.masking import mask_segments
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.pipelines.common.console.overrides import apply_overrides
from roibeam.pipelines.data.datasets.entities import EntityCounts, read_entities, split_names
from roibeam.pipelines.data.datasets.karpathy import read_captioned
from roibeam.pipelines.finetuning.run.finetune_request import encoder_sections
from roibeam.pipelines.finetuning.run.finetune_settings import FinetuneData
from roibeam.pipelines.finetuning.systems.options import HeadOptions, LayoutOptions
from roibeam.pipelines.finetuning.tasks.named_tasks import task_named
from roibeam.pipelines.pretraining.systems import system_named
from roibeam.pipelines.toyworld.caption_likelihood import KnownWays, read_wording
from roibeam.pipelines.toyworld.scene import find_relations
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.requests import EncoderRequest
from roibeam.pipelines.training.train_config import TrainConfig


def test_masks_that_tell_are_found_out() -> None:
    random = np.random.default_rng(0)
    matches = random.integers(0, 2, 1200).astype(np.float32)
    blind = (random.random((1200, 20)) < 0.15).astype(np.float32)
    told = blind * matches[:, None]  # what does not belong is never masked
    for seen, low, high in ((blind, 0.42, 0.58), (told, 0.9, 1.0)):
        said = mask_patterns.classify(seen[:600], matches[:600], seen[600:])
        assert low <= float((said == matches[600:]).mean()) <= high


def test_overlap_is_the_largest_iou_with_another_region() -> None:
    boxes = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [0, 0, 10, 9], [50, 50, 60, 60]], np.float32)
    assert largest_overlap(boxes, 0) == pytest.approx(0.9)
    assert largest_overlap(boxes, 1) == pytest.approx(1 / 3)
    assert largest_overlap(boxes, 3) == 0
    assert largest_overlap(boxes[:1], 0) == 0


def test_permuted_captions_are_of_another_picture_each() -> None:
    other = worlds.another_picture(range(100, 140), seed=0)
    assert sorted(other) == sorted(other.values()) == list(range(100, 140))
    assert all(one != another for one, another in other.items())


def test_no_picture_is_in_two_splits() -> None:
    splits = [worlds.FULL.of(name) for name in ("test", "train", "probe", "validation")]
    assert [number for split in splits for number in split] == list(range(worlds.FULL.all))


def test_every_arm_names_what_there_is() -> None:
    seen: set[str] = set()
    for name, arm in ARMS.items():
        assert not arm.needs or arm.needs in seen, f"{name} comes before {arm.needs}"
        seen.add(name)
        assert arm.store == worlds.DETECTOR or arm.store in worlds.PERFECT
        system = system_named(arm.system)
        assert arm.model in system.sizes
        apply_overrides({"sampling": system.sampling()}, arm.sampling)
    assert set(QUICK_ARMS) <= seen


def test_every_task_arm_starts_from_weights_that_are_kept(tmp_path: Path) -> None:
    for arm in (*task_arms.TASK_ARMS.values(), *own_arms.OWN_ARMS.values()):
        assert ARMS[arm.shape].kept and ARMS[arm.shape].system == arm.system and arm.start in ("", arm.shape)
        options = task_named(arm.rules.name).options()
        tables: dict[str, Any] = {"train": TrainConfig(1), "data": FinetuneData(), "layout": LayoutOptions()}
        tables |= {"head": HeadOptions(), arm.rules.name: options}
        if "--end-to-end" in arm.options:
            tables |= encoder_sections(EncoderRequest(detector="toy"), "none", "model")
        fields = [f"{name}={value}" for name, value in (arm.rules.settings | arm.settings).items()]
        apply_overrides(tables, [field for field in fields if not field.startswith("data.batch_size")])
    assert set(task_arms.QUICK_TASK_ARMS) <= set(task_arms.TASK_ARMS)
    assert all(ARMS[arm.shape].kept for arm in own_arms.HEAD_ARMS.values())
    assert set(own_arms.QUICK_HEAD_ARMS) <= set(own_arms.HEAD_ARMS)


def test_each_half_is_judged_by_the_head_of_the_other() -> None:
    """The head that is best on all questions would be lucky on those that it was chosen on."""
    is_first = np.arange(100) < 50
    hit = np.zeros((100, 2, 2), bool)
    hit[:50, 0, 1] = True  # right on the first half alone
    hit[50:, 1, 0] = True  # on the second one
    hit[::5, 1, 1] = True
    found, any_word = of_other_half(hit, ~hit, is_first)
    assert not found.any() and any_word.all()
    hit[:, 1, 1] = True
    hit[::10, 1, 1] = False  # nearly as good as each of the lucky ones, on both halves
    hit[25:50, 0, 1] = hit[50:75, 1, 0] = False
    found, any_word = of_other_half(hit, np.zeros_like(hit), is_first)
    assert found.mean() == 0.9 and not any_word.any()


@pytest.fixture(scope="module")
def own_pictures(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Files of tasks about a few pictures."""
    work = tmp_path_factory.mktemp("own")
    world = worlds.World(work, worlds.Sizes(test=6, train=8, probe=2, validation=4))
    world.make(["perfect"], print)
    made = OwnPictures(world, 80)
    made.make(["perfect"], work / "bounds.json", print)
    return made


def test_phrases_of_a_picture_lie_on_its_own_regions(own_pictures: Any) -> None:
    """Pictures have other names there: one number off, and every phrase would be asked of another picture."""
    entities = str(own_pictures.files("flickr30k-entities"))
    names = set(own_pictures.images("flickr30k-entities", "test"))
    assert names == split_names(entities, "test") == {str(index) for index in range(6)}
    images = list(read_entities(entities, EntityCounts(), names=names))
    assert [image.name for image in images] == sorted(names)
    with FeatureStore(own_pictures.store("flickr30k-entities", "perfect")) as store:
        for image in images:
            boxes = store.get(image.name).boxes
            for chain in image.boxes.boxes.values():
                for box in chain:
                    assert np.abs(boxes - np.array(box)).max(axis=1).min() <= 1.5
    told = [line for line in (Path(entities) / "parses.conll").read_text().splitlines() if line.startswith("# sent_id")]
    every = list(read_entities(entities, EntityCounts()))
    wanted = {f"# sent_id = {image.name}#{number}" for image in every for number in image.sentences}
    assert set(told) == wanted and len(every) == 18


def test_retrieval_asks_the_captions_that_zero_shot_is_asked(own_pictures: Any) -> None:
    pictures, _ = read_captioned(own_pictures.files("retrieval"), "test")
    asked = json.loads(own_pictures.world.captions("test").read_text())
    assert [list(each.captions) for each in pictures] == [[each["caption"]] for each in asked["annotations"]]
    assert [each.image for each in pictures] == own_pictures.images("retrieval", "test")
    assert [len(read_captioned(own_pictures.files("retrieval"), split)[0]) for split in ("train", "val")] == [8, 4]


def test_groups_hide_as_many_words_as_single_masks_do(own_pictures: Any) -> None:
    """Else InterBERT's two ways to mask could not be compared. Regions: too few overlap here to count."""
    world = own_pictures.world
    tokenizer, random = load_tokenizer(str(world.tokenizer)), np.random.default_rng(0)
    texts = [each["caption"] for each in json.loads(world.captions("train").read_text())["annotations"]]
    hidden = words = 0
    for caption in (tokenizer.encode(text) for text in texts * 40):
        rule = {"mask_id": tokenizer.mask_id, "vocab_size": tokenizer.vocab_size, "probability": GROUP_ANCHORS}
        _, labels = mask_segments(caption.ids, caption.word_ids, random, **rule)
        hidden, words = hidden + int((labels != IGNORE_INDEX).sum()), words + int((caption.word_ids >= 0).sum())
    assert hidden / words == pytest.approx(HIDDEN_WORDS, abs=0.015)


def test_texts_have_a_floor_and_a_ceiling(own_pictures: Any) -> None:
    bounds = read_text_bounds(own_pictures.world.work / "bounds.json")
    assert set(bounds) == {"mrpc", "rte"} and bounds["rte"].ceiling == 1
    assert all(bound.floor < bound.ceiling for bound in bounds.values())
    assert read_text_bounds(own_pictures.world.work / "none.json") == {}


def test_only_what_is_missing_or_of_another_command_is_run(tmp_path: Path) -> None:
    asked = ["perfect/text-only", "perfect/vilbert"]
    made = all_runs(tmp_path, worlds.World(tmp_path, worlds.QUICK), asked, seeds=[0, 1])
    commands = {0: made.command(ARMS["perfect/vilbert"]), 1: "roibeam pretrain with other steps"}
    for seed, command in commands.items():
        write_json(made.result(made.all[2 + seed]), {"command": command, "seconds": 100.0})
    assert [run.name for run in made.missing()] == ["perfect/text-only-0", "perfect/text-only-1", "perfect/vilbert-1"]
    text = made.all[0].arm
    assert made.seconds() == pytest.approx(2 * runs.SECONDS_A_STEP * text.steps + 100)


def test_what_a_missing_run_starts_from_is_made_first(tmp_path: Path) -> None:
    """Its start is packed among the answers, but the run itself and its weights are gone."""
    before, after, task = "perfect/imagebert-noisy", "perfect/imagebert-two-stages", "tasks-perfect/vqa-vlbert"
    weights, world = runs.ALL_ARMS[task].shape, worlds.World(tmp_path, worlds.QUICK)
    made = all_runs(tmp_path, world, [before, weights], seeds=[0])
    for run in made.all:
        store, name = run.arm.id.split("/")
        answers = {"store": store, "arm": name, "seed": 0, "command": made.command(run.arm), "seconds": 1.0}
        write_json(made.result(run), answers)
    run_answers.pack(tmp_path / "results")
    assert [path.name for path in (tmp_path / "results").rglob("*")] == ["perfect.jsonl.xz"]
    made = all_runs(tmp_path, world, [before, after, task, weights], seeds=[0])
    assert [run.name for run in made.missing()] == [f"{after}-0", f"{task}-0"]
    assert [run.arm.id for run in made.to_make()] == [before, weights, after, task]
    named = all_runs(tmp_path, world, [weights], seeds=[0], with_weights=True)
    assert [run.arm.id for run in named.missing()] == [weights]
    (tmp_path / "weights" / weights).mkdir(parents=True)
    write_text(tmp_path / "runs" / f"{before}-0" / "trained", "")
    assert made.to_make() == made.missing() and named.missing() == []


@pytest.mark.parametrize(("exact", "short", "chosen"), [(0.02, 0.03, "float32"), (0.02, 0.01, "bf16")])
def test_the_faster_precision_is_taken_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, exact: float, short: float, chosen: str
) -> None:
    monkeypatch.setattr(task_runs, "_seconds", {torch.float32: exact, torch.bfloat16: short}.__getitem__)
    task_runs.is_bf16_faster.cache_clear()
    found = [task_runs.precision_here(*asked) for asked in (("bf16", "cpu"), ("bf16", "cuda"), ("float32", "cpu"))]
    task_runs.is_bf16_faster.cache_clear()  # it was not measured
    assert found == [chosen, "bf16", "float32"]


def all_runs(
    work: Path, world: Any, arms: Sequence[str], *, seeds: Sequence[int], quick: bool = False, **more: bool
) -> Any:
    """Runs of these arms; weights are kept beside."""
    own = OwnPictures(world, 200)
    kept = {"weights": work / "weights", "quick": quick}
    parts = (
        pretraining_runs.PretrainingRuns(world, **kept),
        task_runs.TaskRuns(TaskWorld(work, 120), own, **kept),
        HeadRuns(own, weights=work / "weights"),
    )
    return runs.Runs(*parts, work / "results", arms=arms, seeds=seeds, **more)


# --- small runs of the arms that `make evidence-quick` leaves out ---


@pytest.fixture(scope="module")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = worlds.World(tmp_path_factory.mktemp("evidence"), worlds.Sizes(test=20, train=50, probe=10, validation=10))
    made.make(["perfect", worlds.DETECTOR], print)
    return made


@pytest.mark.soak(cases=True)
@pytest.mark.parametrize(
    "arm",
    [
        "perfect/vlbert-base", "perfect/visualbert-from-text", "perfect/imagebert-no-matching",
        "perfect/imagebert-two-stages", "perfect/interbert-plain", "perfect/vilbert-shallow",
        "perfect/interbert-from-text",
        "detector/vlbert-stored", "detector/vlbert-frozen", "detector/vlbert-trained",
        "detector/vlbert-joint",
    ],
)  # fmt: skip
def test_an_arm_is_trained_and_answers(small_world: Any, monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    monkeypatch.setattr(pretraining_runs, "QUICK_STEPS", 2)
    made = all_runs(small_world.work, small_world, [arm], seeds=[0], quick=True)
    made.one(runs.Run(ARMS[arm], 0))  # and what it goes on from
    answers = json.loads(made.result(made.all[0]).read_text())
    asked = {name.split()[0].split("_")[0] for name, tally in answers["tallies"].items() if sum(tally["asked"])}
    asked |= {word for name in answers["tallies"] for word in name.split()[1:]}
    assert asked >= {measure.split()[0] for measure in ARMS[arm].measures if measure != "retrieval"}


def test_a_picture_of_several_names_is_stored_under_each(tmp_path: Path) -> None:
    """Detected once: NLVR2 has four names for each of its pictures."""
    images = tmp_path / "images"
    for name in ("train/a.png", "dev/c.png"):
        write_text(images / name, name)
    (images / "train" / "b.png").hardlink_to(images / "train" / "a.png")
    names = repeated_pictures.names_of_pictures(images)
    assert sorted(names.values()) == [["dev/c"], ["train/a", "train/b"]]
    repeated_pictures.link_files(images, names, tmp_path / "photos" / "nlvr2")
    found = [str(each) for each in repeated_pictures.files_below(tmp_path / "photos")]
    assert found == ["nlvr2/dev/c.png", "nlvr2/train/a.png"]
    once, out = tmp_path / "once", tmp_path / "out"
    records = [replace(draw_record(number, 8), image_id=named[0]) for number, named in enumerate(names.values())]
    once.mkdir()
    write_shard(once, 0, iter(sorted(records, key=lambda each: each.image_id)))
    publish_store(once, [0], fingerprint=FINGERPRINT, config={}, classes=[f"class {each}" for each in range(6)])
    repeated_pictures.write_repeated(once, out, names.values())
    with FeatureStore(once) as found, FeatureStore(out) as stored:
        assert list(stored.ids()) == ["dev/c", "train/a", "train/b"] and stored.fingerprint == found.fingerprint
        for name, source in (("dev/c", "dev/c"), ("train/a", "train/a"), ("train/b", "train/a")):
            assert replace(stored[name], image_id=source).equals(found[source])


def test_a_task_run_of_another_command_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Otherwise its answers would be listed under a command that never ran."""
    forget = task_runs.TaskRuns._forget_others
    folder = tmp_path / "runs" / "vqa-vilbert-0"
    forget(folder, "finetune --steps 20")
    write_text(folder / "trained", "")
    forget(folder, "finetune --steps 20")
    assert (folder / "trained").exists()
    forget(folder, "finetune --steps 10")
    assert not folder.exists()


# --- blind and perfect readers, which say what answers of a model are worth ---


@pytest.fixture(scope="module")
def world() -> Any:
    return ReadWorld(test=25, scenes=200)


def test_recall_counts_equal_scores_as_lots() -> None:
    scores = np.array([[2.0, 1, 1], [3, 1, 0], [1, 1, 1]])  # first; second; one of three
    assert expected_recall(scores, 1) == pytest.approx((1 + 0 + 1 / 3) / 3)
    assert expected_recall(scores, 2) == pytest.approx((1 + 1 + 2 / 3) / 3)


def test_matching_counts_own_and_other_pictures_alike() -> None:
    scores = np.array([[2.0, 0, 0], [0, 2, 2], [0, 0, 0]])
    assert readers.matching_right(scores, 1) == pytest.approx((2 / 3 + 5 / 6) / 2)


def test_a_word_is_hidden_and_only_sentences_stand_for_it() -> None:
    found = dict(words.hidden_words("a striped red ball"))
    assert sorted(found) == ["ball", "red", "striped"]
    assert len(found["ball"]) == 24 and found["ball"]["cup"] == "a striped red cup"
    assert "orange" in found["red"] and "small" not in found["red"]  # the writer says size first
    chances = {"red": 0.25, "blue": 0.25, "green": 0.1}
    texts = {word: word for word in chances}
    assert [words.share_right(word, texts, chances.__getitem__) for word in chances] == [0.5, 0.5, 0]


def test_what_a_caption_says_of_a_hidden_region_is_the_mean_over_what_it_may_look_like(world: Any) -> None:
    """Held against the likelihood of every scene that has some look of some class in its place."""
    reader = _RegionReader(world)
    kinds = {}
    for picture in world.pictures:
        kinds.setdefault(picture.captions[0].kind, picture)
    assert len(kinds) >= 5
    for picture in kinds.values():
        scene, text = picture.scene, picture.captions[0].text
        number = picture.captions[0].objects[0]
        thing = scene.objects[number]
        sizes = [name for name in thing.attributes if name in ("small", "large")]
        found = reader.by_caption(picture, number)
        assert found[reader.names.index(thing.category)] > 0
        for name in (thing.category, "ball", "hoop", "moon", "frame"):
            expected, opening = 0.0, read_wording(text).chance
            for look, share in reader.looks[name].shares.items():
                other = replace(thing, category=name, attributes=(*look, *sizes))
                variant = replace(scene, objects=(*scene.objects[:number], other, *scene.objects[number + 1 :]))
                expected += share * KnownWays([(variant, find_relations(variant))]).likelihood(text)[0]
            said = opening * found[reader.names.index(name)]
            assert said == pytest.approx(expected, rel=0.01), (text, name)


def test_two_captions_of_one_picture_are_told_without_seeing_it(world: Any) -> None:
    reader = PairReader(world, 80)
    asked = ["two hats", "a red ball and a key", "a boat on the water"]
    odds = reader.odds(asked, ["a boat on the sand", "two hats", "a boat on the water"])
    assert odds[0, 1] == odds[2, 2] == -np.inf  # the writer says nothing twice
    texts = [picture.captions[0].text for picture in world.pictures]
    odds = reader.odds(texts, [picture.captions[1].text for picture in world.pictures])
    assert readers.matching_right(odds, 0) > 0.6


def test_bounds_of_all_questions_are_kept_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "QUICK_SCENES", 150)
    monkeypatch.setattr(readers, "_QUICK_FITTED", 60)
    few, path = replace(QUICK, test=8), tmp_path / "results" / "bounds.json"
    found = readers.bounds(few, path)
    for name, bound in found.items():
        assert 0 <= bound.floor <= bound.ceiling <= 1, (name, bound)
    recalls = {f"{way}_r{cut}{how}" for way in ("text_to_image", "image_to_text") for cut in (1, 5, 10)
               for how in ("", " beside")}  # fmt: skip
    regions = {f"regions {text} text{how}" for text in ("with", "without")
               for how in ("", " alone", " touching", " covered")}  # fmt: skip
    others = {"words true", "words wrong", "words alone", "matching", "patterns", "matching beside"}
    assert {name for name in {*recalls, *regions, *others} - set(found) if "covered" not in name} == set()
    assert set(found) <= {*recalls, *regions, *others}
    written = json.loads(path.read_text())
    written["bounds"]["matching"]["ceiling"] = 0.75
    path.write_text(json.dumps(written))
    assert readers.bounds(few, path)["matching"].ceiling == 0.75
    assert readers.origin(few) != readers.origin(replace(QUICK, test=9))  # then they are made anew


def test_the_committed_bounds_are_of_the_full_sizes() -> None:
    written = json.loads(readers.BOUNDS.read_text())
    assert written["computed_from"] == readers.origin(FULL)
