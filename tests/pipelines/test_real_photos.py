"""The chain of examples/real_photos and `make evidence-real` on 18 photos: what is learned by heart is found."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "real_photos"
SMALL = [
    word
    for field in (
        "model.hidden_size=64", "model.num_attention_heads=4", "model.intermediate_size=128",
        "model.num_hidden_layers=2", "model.hidden_dropout=0", "model.attention_dropout=0",
    )
    for word in ("--set", field)
]  # fmt: skip


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def world(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """14 photos to learn, 2 for validation, 2 for testing; as the runner of bench/real_photos makes them in `work`."""
    if not any((REPOSITORY / "build" / "real-models").glob("*.pth")):
        pytest.skip("needs the weights that `make real-models` fetches")
    folder = tmp_path_factory.mktemp("real")
    names, captions = dict[int, str](), dict[int, list[str]]()
    for file in ("captions_train2014.json", "captions_train2014_written.json"):
        told = json.loads((shared_data / "coco" / file).read_text("utf-8"))
        names |= {each["id"]: each["file_name"] for each in told["images"]}
        for each in told["annotations"]:
            captions.setdefault(each["image_id"], []).append(each["caption"])
    images = [
        {
            "filename": names[number], "imgid": row, "split": ["val", "test"][row % 2] if row < 4 else "train",
            "sentences": [
                {"raw": text, "tokens": text.split(), "sentid": place} for place, text in enumerate(captions[number])
            ],
        }
        for row, number in enumerate(sorted(names))
    ]  # fmt: skip
    assert len(images) == 18
    (folder / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": images}), "utf-8")
    (folder / "photos").mkdir()
    for name in names.values():
        (folder / "photos" / name).symlink_to(shared_data / "images" / name)
    shutil.copy(REPOSITORY / "docs" / "real-photos.md", folder / "page.md")
    run_rows(folder, "store")
    return folder


def run_rows(world: Path, *rows: str) -> str:
    """`make evidence-real` for some rows, with a few steps in place of thousands."""
    places = (
        "--work",
        world / "work",
        "--results",
        world / "results",
        "--docs",
        world / "page.md",
        "--share",
        "0.0005",
    )
    command = [sys.executable, "-m", "real_photos", world / "photos", world / "dataset_coco.json", *places]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "bench"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run([*command, "--only", *rows], env=environment, capture_output=True, text=True, check=False)
    logs = "".join(path.read_text() for path in (world / "work").rglob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs[-3000:]
    return done.stdout


def test_rows_of_the_evidence_are_made_once(world: Path) -> None:
    told = run_rows(world, "reranked/words", "heads/imagebert-0")
    assert "failed" not in told and "8 of 8 rows are there" in told
    page = (world / "page.md").read_text("utf-8")
    assert "VisualBERT, fine-tuned" in page and "own photo, another photo" in page
    assert run_rows(world, "reranked/words").startswith("6 of 6 rows are there")  # nothing is made again
    (world / "results" / "reranked" / "words.json").unlink()
    (world / "work" / "made" / "floor" / "words.json").unlink()
    told = run_rows(world, "reranked/words")  # what it needs is made again where its files are lost, and is the same
    assert told.startswith("floor/words: ") and "reranked/words: " in told and "other figures" not in told


def test_what_was_learned_by_heart_is_found(world: Path, roibeam: Callable[..., Any]) -> None:
    store, data, run = world / "work" / "store", world / "work" / "data" / "all", world / "run"
    made = ("--store", store, "--data", data, "--threads", "1")
    rate = ("--set", "train.clip_norm=1", "--learning-rate", "0.002", "--batch-size", "16", "--warmup-steps", "20")
    captions = ("--captions", data / "dataset_coco.json", "--system", "imagebert", *SMALL, "--threads", "1")
    assert roibeam("pretrain", world / "first", "--store", store, *captions, *rate, "--steps", "100").code == 0
    quick = ("--set", "data.validation_groups=8", "--set", "model.dropout=0", "--set", "train.evaluate_every=500")
    of_run = ("--task", "retrieval", "--from", world / "first", *quick)
    told = roibeam("finetune", run, *of_run, *made, *rate, "--steps", "500")
    assert told.code == 0, told.err
    assert roibeam("predict", run, *made, "--split", "train", "--out", world / "scores.npy").code == 0
    told = roibeam("score", "retrieval", world / "scores.npy", "--data", data, "--split", "train", "--json")
    assert told.code == 0, told.err
    figures = {each["name"]: each["value"] for each in json.loads(told.out.splitlines()[-1])["figures"]}
    assert figures["image R@1"] > 0.6 and figures["sentence R@1"] > 0.6, figures

    search = _script("search")
    sentences = ["a bus in the street", "<two> giraffes"]
    found = search.search(run, store, data, sentences)
    assert [len(photos) for photos in found] == [2, 2]
    drawn = search.drawing(store, data, sentences, found)
    assert "&lt;two&gt;" in drawn and drawn.count('class="photo"') == 4
