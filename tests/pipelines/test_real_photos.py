"""The chain of examples/real_photos on 18 photos: what it learned by heart it finds, by the commands of its README."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "real_photos"
SMALL = [
    word
    for name, value in {
        "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2,
        "image_hidden_size": 64, "image_num_attention_heads": 4, "image_intermediate_size": 128,
        "image_num_hidden_layers": 1, "co_attention_size": 64, "co_attention_num_heads": 4,
        "text_co_attention": "[1]", "image_co_attention": "[0]",
    }.items()
    for word in ("--set", f"model.{name}={value}")
]  # fmt: skip


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Karpathy's form: 14 photos to learn, 2 for validation, 2 for testing."""
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
    return folder


def test_what_was_learned_by_heart_is_found(data: Path, shared_data: Path, roibeam: Callable[..., Any]) -> None:
    if not any((REPOSITORY / "build" / "real-models").glob("*.pth")):
        pytest.skip("needs the weights that `make real-models` fetches")
    photos, store, run = shared_data / "images", data / "store", data / "run"
    assert not _script("prepare").main(photos, data / "dataset_coco.json", data / "made")  # not all of COCO
    plug_ins = "centernet.py:detect_and_cells", "efficientnet_lite0.py:describe"
    detector, backbone = (f"python:{EXAMPLE}/{name}" for name in plug_ins)
    of_extraction = ("--set", "selection.min_regions=27", "--image-feature", "region", "--threads", "1")
    assert (
        roibeam(
            "extract", photos / "COCO_*.jpg", store, "--detector", detector, "--backbone", backbone, *of_extraction
        ).code
        == 0
    )

    _script("floor").main(store, data / "made" / "all", data / "floor", "words")
    assert np.load(data / "floor" / "val.npy").shape == (10, 2)

    made = ("--store", store, "--data", data / "made" / "all", "--threads", "1")
    rate = ("--learning-rate", "0.003", "--batch-size", "16", "--warmup-steps", "10")
    captions = (
        "--captions",
        data / "made" / "all" / "dataset_coco.json",
        "--system",
        "vilbert",
        *SMALL,
        "--threads",
        "1",
    )
    assert roibeam("pretrain", data / "first", "--store", store, *captions, *rate, "--steps", "60").code == 0
    of_run = ("--task", "retrieval", "--from", data / "first", "--set", "data.validation_groups=8")
    told = roibeam("finetune", run, *of_run, *made, *rate, "--steps", "120")
    assert told.code == 0, told.err
    assert roibeam("predict", run, *made, "--split", "train", "--out", data / "scores.npy").code == 0
    told = roibeam(
        "score", "retrieval", data / "scores.npy", "--data", data / "made" / "all", "--split", "train", "--json"
    )
    assert told.code == 0, told.err
    figures = json.loads(told.out.splitlines()[-1])
    print(figures)

    search = _script("search")
    sentences = ["a bus in the street", "<two> giraffes"]
    found = search.search(run, store, data / "made" / "all", sentences)
    assert [len(photos) for photos in found] == [2, 2]
    drawn = search.drawing(store, sentences, found)
    assert "&lt;two&gt;" in drawn and drawn.count('class="photo"') == 4
