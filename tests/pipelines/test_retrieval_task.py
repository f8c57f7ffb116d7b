"""Retrieval as a task: its files, its wrong pairs, pictures that look alike, its losses; and all pairs of a split."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captioned_records import CAPTIONS, FakeStore, make_record, make_store
from safetensors.torch import save_file
from small_files import write_json
from small_pretraining import in_floats_of
from task_groups import batches, small_network

from roibeam.model.common.losses import SumCount
from roibeam.model.task_losses import retrieval_losses
from roibeam.pipelines.data.datasets.karpathy import CaptionedPicture, read_captioned
from roibeam.pipelines.finetuning.metrics.retrieval import (
    PairScores,
    checked_scores,
    folds_of,
    ids_path,
    retrieval_measures,
    retrieval_numbers,
    write_ids,
)
from roibeam.pipelines.finetuning.rows import CHOICE, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.group_task import scores_of
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.run.network import read_network
from roibeam.pipelines.finetuning.run.pair_scores import (
    JointPairs,
    PairParts,
    PairPlan,
    TwoStreamPairs,
    pair_scorer,
    plan_pairs,
)
from roibeam.pipelines.finetuning.run.result_parts import ResultParts, result_lock
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.tasks import retrieval as module
from roibeam.pipelines.finetuning.tasks.retrieval import (
    Distractors,
    RetrievalOptions,
    caption_groups,
    hard_neighbours,
    mean_features,
    mixes_of,
    nearest,
    open_retrieval,
)

CPU = torch.device("cpu")
DIGEST = "0123456789ab"


def karpathy(folder: Path, splits: dict[str, str], captions: int = 2) -> Path:
    """A file of images "a" to "...", by split."""
    images = []
    for number, (name, split) in enumerate(splits.items()):
        texts = [(10 * number + each, f" {name} {each}.") for each in range(captions)]
        sentences = [{"sentid": sentid, "raw": raw, "tokens": [name]} for sentid, raw in texts]
        images.append({"filename": f"{name}.jpg", "imgid": number, "split": split, "sentences": sentences})
    path = folder / "dataset_flickr30k.json"
    path.write_text(json.dumps({"images": images, "dataset": "flickr30k"}))
    return path


def test_captions_of_both_kinds_of_files(tmp_path: Path) -> None:
    path = karpathy(tmp_path, {"a": "train", "b": "test", "c": "restval"}, captions=3)
    found, read = read_captioned(tmp_path, "train", most_captions=2)
    assert read == path
    assert found == [CaptionedPicture("a", ("a 0.", "a 1.")), CaptionedPicture("c", ("c 0.", "c 1."))]
    path.unlink()
    line = {"id": 7, "img_path": "36979.jpg", "sentences": ["a dog ", "two"]}
    (tmp_path / "all_data_final_test_set0_2014.jsonline").write_text(json.dumps(line) + "\n\n")
    (picture,), _ = read_captioned(tmp_path, "test")
    assert (picture, picture.caption_id(1)) == (CaptionedPicture("36979", ("a dog", "two")), "36979#1")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"img_path": "1.jpg", "sentences": []}, "the image 1 has an empty caption, or none"),
        ({"img_path": "1.jpg", "sentences": ["", "a"]}, "the image 1 has an empty caption, or none"),
        ({"sentences": ["a"]}, "line 1: expected an object with img_path"),
        ({"img_path": "1.jpg", "sentences": "a"}, "line 1: sentences must be a list"),
        ({"img_path": "/etc/x.jpg", "sentences": ["a"]}, "line 1: img_path"),
    ],
)
def test_files_that_are_wrong_are_named(line: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "all_data_final_train_2014.jsonline").write_text(json.dumps(line))
    with pytest.raises(ValueError, match=says):
        read_captioned(tmp_path, "train")


def test_a_folder_with_two_data_sets_or_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds none of dataset_flickr30k\.json"):
        read_captioned(tmp_path, "val")
    karpathy(tmp_path, {"a": "train"})
    (tmp_path / "dataset_coco.json").write_text("{}")
    with pytest.raises(ValueError, match="name a folder with one data set"):
        read_captioned(tmp_path, "train")
    (tmp_path / "dataset_coco.json").unlink()
    with pytest.raises(ValueError, match="no image of the split val"):
        read_captioned(tmp_path, "val")


def some_groups(num_images: int = 5, *, per_image: bool = False) -> list[TaskGroup]:
    pictures = [
        CaptionedPicture(f"image-{number}", tuple(f"caption {number} {each}" for each in range(3)))
        for number in range(num_images)
    ]
    return list(caption_groups(pictures, per_image=per_image))


def words_of(row: TaskRow) -> str:
    ((part,),) = (row.parts,)
    return part.text


def test_wrong_pairs_are_of_the_kinds_that_are_named() -> None:
    groups, alike = some_groups(), [[1], [2], [3], [4], [0]]
    mixes = mixes_of(["caption", "image", "hard_caption", "hard_image"])
    distractors = Distractors(groups, mixes, alike)
    seen = set()
    for seed in range(40):
        group = distractors.draw(groups[4], np.random.default_rng(seed))  # the second caption of image-1
        true, caption, image, hard_caption, hard_image = group.rows
        assert (group.id, group.target, group.images[0]) == ("image-1#1", 0, "image-1")
        assert words_of(true) == words_of(image) == words_of(hard_image) == "caption 1 1"
        assert [row.images for row in group.rows] == [(0,), (0,), (1,), (0,), (2,)]
        assert not words_of(caption).startswith("caption 1 ") and group.images[1] != "image-1"
        assert words_of(hard_caption).startswith("caption 2 ") and group.images[2] == "image-2"
        seen |= {words_of(caption), group.images[1]}
    assert len(seen) == 12 + 4  # every caption and every image of the others
    again = distractors.draw(groups[4], np.random.default_rng(39))
    assert again == group


def test_a_group_draws_one_of_several_mixes_and_one_of_its_captions() -> None:
    groups = some_groups(per_image=True)
    assert [group.id for group in groups] == [f"image-{number}" for number in range(5)]
    distractors = Distractors(groups, mixes_of(["caption", "|", "image", "image"]), (), draws_caption=True)
    drawn = [distractors.draw(groups[2], np.random.default_rng(seed)) for seed in range(60)]
    assert {len(group.rows) for group in drawn} == {2, 3}
    assert {words_of(group.rows[0]) for group in drawn} == {f"caption 2 {each}" for each in range(3)}
    assert all(len(group.images) == len(group.rows) for group in drawn if len(group.rows) == 3)


def test_mixes_that_are_none() -> None:
    none = "a mix without a wrong pair"
    for words, says in ((["photo"], "no kind 'photo'"), (["image", "|"], none), ([], none)):
        with pytest.raises(ValueError, match=says):
            RetrievalOptions(distractors=tuple(words))


@pytest.mark.parametrize("spare", [0, 32])
def test_the_nearest_are_those_of_all_distances(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE", spare)
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 37)
    random = np.random.default_rng(0)
    means = (random.standard_normal((200, 16)) * 0.01 + 5).astype(np.float32)
    means[7], means[90] = means[3], means[4]  # two photos under two names
    found = nearest(means, 11)
    for own, numbers in enumerate(found):
        apart = ((means.astype(np.float64) - means[own].astype(np.float64)) ** 2).sum(axis=1)
        others = [number for number in np.argsort(apart, kind="stable") if apart[number] > 0]
        assert numbers.tolist() == others[:11]
    assert 7 not in found[3] and 3 not in found[7]
    assert [len(each) for each in nearest(means[:4], 100)] == [3, 3, 3, 3]


def test_their_file_is_taken_again_for_the_same_images_alone(tmp_path: Path) -> None:
    store, path = make_store(), tmp_path / "hard_negatives.npz"
    images = list(store)[:5]
    found = hard_neighbours(store, images, path, features="f")
    assert np.allclose(mean_features(store, images)[1], store[images[1]].features.mean(axis=0), atol=1e-6)
    written = path.stat().st_mtime_ns
    again = hard_neighbours({}, images, path, features="f")  # no record is read
    assert [each.tolist() for each in again] == [each.tolist() for each in found]
    assert path.stat().st_mtime_ns == written
    hard_neighbours(store, images, path, features="other")
    assert path.stat().st_mtime_ns != written
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match="damaged"):
        hard_neighbours(store, images, path, features="f")


def test_pictures_that_are_all_the_same_have_no_hard_pairs(tmp_path: Path) -> None:
    record = make_record("a", 1)
    with pytest.raises(ValueError, match="2 images such as a have the same mean feature as all others"):
        hard_neighbours({"a": record, "b": record}, ["a", "b"], tmp_path / "h.npz", features="f")


def test_losses_of_groups_are_those_of_the_model_room_and_their_sum_counts_each_as_its_mean() -> None:
    scores, targets = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.zeros(6, dtype=torch.long)
    real, means = torch.ones(6, 4, dtype=torch.bool), []
    for name in ("binary", "multi_class", "triplet"):
        loss = loss_named(CHOICE, name)
        ours, wanted = loss.term(scores, targets, real), retrieval_losses(scores, targets, [name])[name]
        torch.testing.assert_close(ours.mean, wanted.mean)
        assert loss.count(targets, real) == int(ours.count) == int(wanted.count)
        means.append(wanted.mean)
    loss = loss_named(CHOICE, "all_three")
    ours = loss.term(scores, targets, real)
    torch.testing.assert_close(ours.mean, torch.stack(means).sum())
    # A shorter group is read without its padding.
    padded = torch.cat([scores, torch.full((6, 2), float(torch.finfo(scores.dtype).min))], dim=1)
    shorter: SumCount = loss.term(padded, targets, torch.cat([real, ~real[:, :2]], dim=1))
    torch.testing.assert_close(shorter.mean, ours.mean)


def split_groups(*, same_text: bool = True) -> tuple[list[TaskGroup], list[TaskGroup]]:
    """Captions of six images, four of them alike, and a group for each image."""
    captions = []
    for number in range(6):
        for each in range(2):
            text = CAPTIONS[0] if same_text and number in (2, 4) and not each else CAPTIONS[(number + 3 * each) % 8]
            row = TaskRow((TaskText((" ".join(text.split()[: 4 + number + each]) if each else text,)),))
            captions.append(TaskGroup(f"image-{number}#{each}", (f"image-{number}",), (row,), target=0))
    return captions, captions[::2]


def plan_of(system: str, network: Any, folds: int = 1) -> tuple[Any, PairPlan]:
    captions, images = split_groups()
    made = batches(network, system, CHOICE)
    found = folds_of([group.id for group in captions], [group.images[0] for group in images], folds)
    return made, plan_pairs(made, captions, images, found)


def parts_of(network: Any, read: Any, plan: PairPlan, out: Path, at_once: int = 8) -> PairParts:
    return PairParts(pair_scorer(network.module), read, plan, at_once=at_once, device=CPU, out=out, digest=DIGEST)


class DoubleBatches:
    """As `GroupBatches`, in double precision."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def texts(self, groups: Any) -> Any:
        return in_floats_of(self._made.texts(groups), torch.float64)

    def images(self, groups: Any) -> Any:
        return in_floats_of(self._made.images(groups), torch.float64)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(("double", "apart"), [(True, 1e-12), (False, 1e-5)])
def test_blocks_score_as_the_plain_loop_does(system: str, double: bool, apart: float, tmp_path: Path) -> None:
    network = small_network(system, CHOICE, double=double)
    captions, images = split_groups()
    made, plan = plan_of(system, network)
    plain = np.zeros((len(captions), len(images)))
    for row, caption in enumerate(captions):
        for column, image in enumerate(images):
            one = made.batch([TaskGroup("one", image.images, caption.rows)])
            inputs = in_floats_of(one.inputs, torch.float64) if double else one.inputs
            with torch.no_grad():
                plain[row, column] = scores_of(network.module, type(one)(inputs, (1,), None, ("one",)), CHOICE)[0, 0]
    assert isinstance(pair_scorer(network.module), TwoStreamPairs if system == "vilbert" else JointPairs)
    (part,) = plan.parts
    read: Any = DoubleBatches(made) if double else made
    found = parts_of(network, read, plan, tmp_path / "scores", at_once=7).block(part)
    for text, rows in enumerate(part.rows):
        for row in rows:
            largest = np.abs(plain).max()
            np.testing.assert_allclose(found[text], plain[row], rtol=0, atol=apart * max(1.0, largest))
    assert [len(rows) for rows in part.rows].count(4) == 1  # four captions are read alike, and scored once


def written(folder: Path, network: Any, *, folds: int = 1, ranks: int = 1) -> tuple[np.ndarray, list[int]]:
    """The joined scores, and how many parts each process made."""
    made, plan = plan_of("vlbert", network, folds)
    counts, out = [], folder / "scores.npy"
    for rank in reversed(range(ranks)):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
        with result_lock(out):
            parts = parts_of(network, made, plan, out)
            counts.append(parts.write())
            if not rank:
                parts.join(12)
    return np.load(out), counts


def test_parts_of_several_calls_and_processes_are_those_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr("roibeam.pipelines.finetuning.run.pair_scores.PART_TEXTS", 4)
    network = small_network("vlbert", CHOICE)
    whole, counts = written(tmp_path / "a", network)
    assert counts == [3] and whole.shape == (12, 6) and np.isfinite(whole).all()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["scores.npy"]
    assert (whole[4] == whole[8]).all()  # one text
    shared, counts = written(tmp_path / "b", network, ranks=2)
    assert counts == [1, 2] and (shared == whole).all()
    monkeypatch.setenv("WORLD_SIZE", "1")
    made, plan = plan_of("vlbert", network)
    (tmp_path / "c").mkdir()
    out = tmp_path / "c" / "scores.npy"
    parts_of(network, made, plan, out).write()
    ResultParts(out, DIGEST, 3, has_array=True).arrays[1].unlink()
    again, counts = written(tmp_path / "c", network)
    assert counts == [1] and (again == whole).all()
    folded, _ = written(tmp_path / "d", network, folds=2)
    assert folded.shape == (12, 3)
    np.testing.assert_allclose(folded[:6], whole[:6, :3], atol=1e-5)
    np.testing.assert_allclose(folded[6:], whole[6:, 3:], atol=1e-5)


def test_a_score_that_is_no_number_is_refused(tmp_path: Path) -> None:
    network = small_network("vlbert", CHOICE)
    with torch.no_grad():
        next(iter(network.module.head.parameters())).fill_(float("nan"))
    made, plan = plan_of("vlbert", network)
    with pytest.raises(ValueError, match="a score that is not a finite number"):
        parts_of(network, made, plan, tmp_path / "scores").write()


CAPTION_IDS, IMAGE_IDS = [f"i{number}#0" for number in range(4)], [f"i{number}" for number in range(4)]


def saved_scores(folder: Path, scores: np.ndarray, folds: int = 1) -> Path:
    path = folder / "scores.npy"
    np.save(path, scores.astype(np.float32))
    write_ids(path, CAPTION_IDS, IMAGE_IDS, folds)
    return path


def test_measures_of_folds_are_the_mean_of_their_own(tmp_path: Path) -> None:
    scores = np.array([[1, 2, 0, 0], [0, 5, 0, 9], [0, 0, 3, 3], [0, 0, 1, 4.0]])
    every = checked_scores(saved_scores(tmp_path, scores), CAPTION_IDS, IMAGE_IDS, subset=False)
    assert retrieval_measures(every)["image R@1"].values == [0.0, 0.0, 0.0, 1.0]  # the third one ties
    folds = retrieval_measures(every, 2)
    assert folds["image R@1"].mean == 0.5 and folds["sentence R@1"].mean == 1.0
    numbers = retrieval_numbers(every, 2)
    assert numbers["image mean rank"] == 1.5 and numbers["rsum"] < numbers["rsum, ties in favour"]
    with pytest.raises(ValueError, match="other folds need the scores of all pairs"):
        retrieval_measures(PairScores(scores[:, :2], CAPTION_IDS, IMAGE_IDS, 2), 4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: ids_path(path).unlink(), r"scores\.npy\.ids\.json"),
        (lambda path: ids_path(path).write_text('{"captions": ["i0#0"]}'), "expected captions and images"),
        (lambda path: path.write_bytes(b"no array"), "no array of numpy"),
        (lambda path: np.save(path, np.zeros((4, 3))), r"an array \(4, 3\) of float64, expected numbers of 4 captions"),
        (lambda path: write_ids(path, ["x#0"] * 4, IMAGE_IDS, 1), "of no image that is searched"),
        (lambda path: write_ids(path, ["i0#0"] * 4, IMAGE_IDS, 1), "an image without a caption"),
    ],
)
def test_files_of_scores_that_do_not_fit(change: Any, says: str, tmp_path: Path) -> None:
    path = saved_scores(tmp_path, np.zeros((4, 4)))
    change(path)
    with pytest.raises(ValueError, match=says):
        checked_scores(path, CAPTION_IDS, IMAGE_IDS, subset=False)


def test_some_of_the_images_are_scored_by_their_own_rule(tmp_path: Path) -> None:
    path = saved_scores(tmp_path, np.eye(4))
    captions, images = [*CAPTION_IDS, "i4#0"], [*IMAGE_IDS, "i4"]
    with pytest.raises(ValueError, match="image"):
        checked_scores(path, captions, images, subset=False)
    assert retrieval_measures(checked_scores(path, captions, images, subset=True))["image R@1"].mean == 1.0


@pytest.mark.parametrize("system", ["vilbert", "imagebert"])
def test_the_match_head_scores_pairs_as_in_pre_training(system: str, tmp_path: Path) -> None:
    network = small_network(system, CHOICE, head="match")
    module: Any = network.module.eval()
    captions, _ = split_groups()
    batch = batches(network, system, CHOICE).batch(captions[:3])
    with torch.no_grad():
        wanted = module.model.match_log_odds(module.model.encode(batch.inputs))
        torch.testing.assert_close(scores_of(module, batch, CHOICE)[:, 0], wanted)
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert "model.match_head.weight" in trained and not any("masked_word" in name for name in trained)
    folder = tmp_path / "model"
    write_json(folder / "config.json", network.described)
    save_file({name: tensor.clone() for name, tensor in module.state_dict().items()}, folder / "model.safetensors")
    again = read_network(folder, SYSTEMS[system], OutputSpec(CHOICE))
    with torch.no_grad():
        torch.testing.assert_close(scores_of(again.module, batch, CHOICE)[:, 0], wanted)


def test_a_model_without_that_head_says_so() -> None:
    with pytest.raises(ValueError, match=r"head\.kind 'match': a test: .*without a match head"):
        small_network("vlbert", CHOICE, head="match")


def test_a_run_draws_anew_in_every_epoch_and_once_for_its_validation(tmp_path: Path) -> None:
    karpathy(tmp_path, {"image-0": "train", "image-1": "train", "image-2": "train", "image-3": "val", "image-4": "val"})
    task = open_retrieval(tmp_path, RetrievalOptions(), None)
    groups = task.read("train").groups
    assert task.drawn_from is not None
    draw = task.drawn_from(groups, FakeStore(make_store()), tmp_path)
    epochs = [draw(groups[0], np.random.default_rng(epoch)) for epoch in range(12)]
    assert len({tuple(map(words_of, group.rows)) + group.images for group in epochs}) > 3
    assert all([len(row.images) for row in group.rows] == [1] * 4 for group in epochs)
    assert (tmp_path / "hard_negatives.npz").is_file()
    val = task.read("val").groups
    asked = task.drawn_from(val, FakeStore(make_store()), None)(val[0], np.random.default_rng(0))
    assert [row.images for row in asked.rows] == [(0,), (1,), (2,), (3,)]
