"""Retrieval by its commands, from captions and a store to figures and a page; and that it learns."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_store import FINGERPRINT, draw_record, publish_store, write_shard
from tiny_commands import Cli, ok, one_line

WORDS = ("red", "blue", "small", "old", "round", "wet", "tall", "dark")
THINGS = ("dog", "boat", "tree", "house", "ball", "road", "tower", "horse")
WEIGHTS = Path(__file__).parents[2] / "bench" / "evidence" / "weights" / "perfect" / "vilbert"
SPLITS = {"train": range(1, 9), "val": range(9, 13), "test": range(13, 17)}


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Path]:
    """A store of sixteen images, each of features of its own, and Karpathy's file with two captions of each."""
    store, data = tmp_path / "store", tmp_path / "flickr30k"
    store.mkdir()
    data.mkdir()
    random, records = np.random.default_rng(0), []
    for number in range(1, 17):
        drawn = draw_record(number % 8, 16)
        features = random.standard_normal(drawn.features.shape).astype(drawn.features.dtype)
        records.append(replace(drawn, image_id=str(number), features=features, class_distribution=None))
    write_shard(store, 0, iter(records))
    publish_store(store, [0], fingerprint=FINGERPRINT, config={}, classes=[f"class {each}" for each in range(6)])
    images = []
    for split, numbers in SPLITS.items():
        for number in numbers:
            first, second = WORDS[number % 8], THINGS[number % 8]
            texts = (f"a {first} {second}", f"the {second} is {first}")
            sentences = [{"sentid": 2 * number + n, "raw": t, "tokens": t.split()} for n, t in enumerate(texts)]
            images.append({"filename": f"{number}.jpg", "imgid": number, "split": split, "sentences": sentences})
    (data / "dataset_flickr30k.json").write_text(json.dumps({"images": images, "dataset": "flickr30k"}))
    return store, data


def told(done: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok(done).out.strip().splitlines()[-1])
    return found


@pytest.mark.slow
def test_eight_images_are_told_apart_after_training(roibeam: Cli, world: tuple[Path, Path], tmp_path: Path) -> None:
    """On what it was trained on: that draws, loss, scores, ranks and files belong together; and what is refused."""
    store, data = world
    run: tuple[Any, ...] = ("finetune", tmp_path / "run", "--task", "retrieval", "--from", "none")
    run = (*run, "--system", "imagebert", "--store", store, "--data", data, "--device", "cpu", "--threads", 1)
    shared = (*run, "--steps", 220, "--batch-size", 8, "--learning-rate", 0.001, "--json")
    result = told(roibeam(*shared, "--set", 'retrieval.distractors=["image","caption","hard_image"]'))
    assert list(result["evaluation"]) == ["R@1_of_4"]
    assert sorted(np.load(tmp_path / "run" / "hard_negatives.npz")["counts"].tolist()) == [7] * 8
    asked: tuple[Any, ...] = ("predict", tmp_path / "run", "--store", store, "--data", data, "--device", "cpu")
    page = tmp_path / "page.html"
    told(roibeam(*asked, "--split", "train", "--out", tmp_path / "train.npy", "--page", page, "--json"))
    score: tuple[Any, ...] = ("score", "retrieval", tmp_path / "train.npy", "--data", data, "--split", "train")
    scored = told(roibeam(*score, "--json"))
    figures = {each["name"]: each["value"] for each in scored["figures"]}
    assert figures["image R@1"] > 0.8 and figures["sentence R@1"] > 0.8 and figures["image R@5"] == 1.0
    assert scored["card"]["numbers"][str(tmp_path / "train.npy")]["rsum"] > 560
    assert scored["card"]["predicted"][0]["leaks"]["trained_on"] == 8
    text = page.read_text("utf-8")
    assert text.count('class="right"') == text.count('class="query"') > 5 and "the right one" in text
    _folds_and_some_images(roibeam, asked, data, tmp_path)
    _what_is_refused(roibeam, asked, score, tmp_path)


@pytest.mark.slow
def test_a_pretrained_model_retrieves_toy_pictures_better_after_fine_tuning(roibeam: Cli, tmp_path: Path) -> None:
    """From weights that the evidence keeps, on pictures of another toy world, none of which is trained on."""
    world, store, data = tmp_path / "world", tmp_path / "store", tmp_path / "world" / "coco"
    told(roibeam("toyworld", world, "--num-images", 1600, "--perfect-store", store, "--seed", 5, "--json"))
    run: tuple[Any, ...] = ("--task", "retrieval", "--from", WEIGHTS, "--store", store, "--data", data, "--json")
    run = (*run, "--device", "cpu", "--threads", 1, "--set", "head.kind=match", "--set", "data.validation_groups=40")
    found = {}
    for name, more in (
        ("zero-shot", ("--steps", 1, "--batch-size", 2, "--learning-rate", 1e-12)),
        ("tuned", ("--steps", 120, "--batch-size", 16, "--learning-rate", 0.0001)),
    ):
        told(roibeam("finetune", tmp_path / name, *run, *more))
        scores = tmp_path / f"{name}.npy"
        asked: tuple[Any, ...] = ("--store", store, "--data", data, "--split", "test", "--device", "cpu", "--json")
        told(roibeam("predict", tmp_path / name, *asked, "--out", scores))
        card = told(roibeam("score", "retrieval", scores, "--data", data, "--json"))["card"]
        found[name] = card["numbers"][str(scores)]
    chance = 100 * (1 + 5 + 10) / 40  # of captions, among forty pictures
    assert found["zero-shot"]["rsum"] > 2 * chance + 100
    assert found["tuned"]["rsum"] > found["zero-shot"]["rsum"] + 15
    assert found["tuned"]["image mean rank"] < found["zero-shot"]["image mean rank"]


def _folds_and_some_images(roibeam: Cli, asked: tuple[Any, ...], data: Path, folder: Path) -> None:
    told(roibeam(*asked, "--split", "test", "--out", folder / "whole.npy", "--json"))
    told(roibeam(*asked, "--split", "test", "--out", folder / "halves.npy", "--folds", 2, "--json"))
    told(roibeam(*asked, "--split", "test", "--out", folder / "some.npy", "--max-images", 2, "--json"))
    whole, halves = np.load(folder / "whole.npy"), np.load(folder / "halves.npy")
    np.testing.assert_allclose(halves[:4], whole[:4, :2], atol=1e-4)
    ids = json.loads((folder / "some.npy.ids.json").read_text())
    assert len(ids["images"]) == 2 and len(ids["captions"]) == 4
    of_test: tuple[Any, ...] = ("--data", data, "--split", "test")
    assert "--rules" not in one_line(roibeam("score", "retrieval", folder / "some.npy", *of_test))
    found = told(roibeam("score", "retrieval", folder / "some.npy", *of_test, "--rules", "subset", "--json"))
    assert found["figures"][1]["value"] == 1.0  # R@5 of two images


def _what_is_refused(roibeam: Cli, asked: tuple[Any, ...], score: tuple[Any, ...], folder: Path) -> None:
    out = ("--out", folder / "no.npy")
    assert "scores every caption with every image already" in one_line(roibeam(*asked, *out, "--permute-images"))
    assert "3 folds of 4 images" in one_line(roibeam(*asked, *out, "--split", "test", "--folds", 3))
    assert "retrieval has no split 'dev'" in one_line(roibeam(*asked, *out, "--split", "dev"))
    assert "retrieval has no rules 'uniter'" in one_line(roibeam(*score, "--rules", "uniter"))
    (folder / "train.npy.ids.json").unlink()
    assert "it names the rows and columns of the scores" in one_line(roibeam(*score))
