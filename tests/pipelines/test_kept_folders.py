"""What earlier versions wrote stays good: a store is read and extended, a run is resumed, a model is loaded.

The folders in tests/data/kept were written before the four packages became one. This file as a script writes such
folders again. Do that only beside the old ones: they are what proves that old folders are still read.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from roibeam.features.store import FeatureStore
from roibeam.features.verify import verify_store
from roibeam.model.visualbert.model import VisualBertForPreTraining
from roibeam.pipelines.toyworld.rendering import draw_samples
from roibeam.pipelines.training.model_files.model_checkpoint import load_model

Cli = Callable[..., Any]
KEPT = Path(__file__).parents[1] / "data" / "kept"
# A plan names its photos by their whole path; one test alone uses it.
PHOTOS = Path("/tmp/roibeam-kept-folders")
NETWORK = (
    "--detector", "small", "--weights", "random:1", "--device", "cpu",
    "--set", "detector.short_edge=48", "--set", "detector.long_edge=80", "--set", "detector.proposals_after_nms=16",
    "--set", "detector.base_channels=4", "--set", "selection.max_regions=12", "--shard-size", "2",
)  # fmt: skip
RUN = (
    "--steps", "6", "--batch-size", "2", "--threads", "1", "--device", "cpu",
    "--set", "model.hidden_size=8", "--set", "model.num_hidden_layers=1", "--set", "model.num_attention_heads=2",
    "--set", "model.intermediate_size=16", "--set", "train.checkpoint_every=2", "--set", "train.keep=0",
)  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "digests.json")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy of the folders, untouched."""
    copy = shutil.copytree(KEPT, tmp_path / "kept")
    assert digests(copy) == json.loads((KEPT / "digests.json").read_text())["files"]
    return copy


@pytest.fixture
def photos() -> Iterator[Path]:
    """Two pictures more than the store was made of."""
    draw_samples(PHOTOS, count=6)
    yield PHOTOS
    shutil.rmtree(PHOTOS)


def test_a_kept_store_is_read_and_extended(kept: Path, photos: Path, roibeam: Cli) -> None:
    store, expected = kept / "store", json.loads((KEPT / "digests.json").read_text())
    assert not verify_store(store, deep=True)
    with FeatureStore(store) as opened:
        assert opened.manifest.content_digest == expected["content"]
        before = {record.image_id: record for record in opened}
    assert len(before) == 4
    done = roibeam("extract", photos / "images", store, *NETWORK)
    assert done.code == 0 and "2 images extracted" in done.out, done.out + done.err
    assert not verify_store(store, deep=True)
    after = digests(store)
    assert all(after[name] == told for name, told in digests(KEPT / "store").items() if name.startswith("part-"))
    with FeatureStore(store) as opened:
        assert {record.image_id for record in opened} == {f"sample_{number:05d}" for number in range(6)}
        np.testing.assert_array_equal(opened["sample_00003"].features, before["sample_00003"].features)


@pytest.mark.parametrize("newest", [4, 2])
def test_a_kept_run_is_resumed(newest: int, kept: Path, roibeam: Cli) -> None:
    run, expected = kept / "run", json.loads((KEPT / "digests.json").read_text())
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]
    if newest == 2:
        shutil.rmtree(run / "checkpoints" / "step-00000004")
    told = ("--store", kept / "store", "--captions", kept / "captions.json")
    done = roibeam("pretrain", run, *told, *RUN, "--resume", "--json")
    assert done.code == 0, done.err
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [1, 2, 3, 4, 5, 6]
    # Float32 kernels of another processor differ in the last digits.
    np.testing.assert_allclose([line["loss"] for line in log], expected["losses"], rtol=1e-5)
    weights = load_file(run / "checkpoints" / "step-00000006" / "model" / "model.safetensors")
    for name, norm in expected["norms"].items():
        np.testing.assert_allclose(np.linalg.norm(weights[name]), norm, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_kept_model_is_loaded(kept: Path) -> None:
    loaded = load_model(str(kept / "model")).model
    assert isinstance(loaded, VisualBertForPreTraining)
    # What the file holds is what the model has.
    state = loaded.state_dict()
    for name, value in load_file(kept / "model" / "model.safetensors").items():
        np.testing.assert_array_equal(state[name].numpy(), value, err_msg=name)


def write(folder: Path) -> None:
    """The folders and their digests, by the commands that users call."""
    roibeam = [str(Path(sys.executable).parent / "roibeam")]
    draw_samples(PHOTOS, count=4)
    folder.mkdir(parents=True)
    subprocess.run([*roibeam, "extract", PHOTOS / "images", "store", *NETWORK], cwd=folder, check=True)
    shutil.copy(PHOTOS / "captions.json", folder / "captions.json")
    told = ("--store", "store", "--captions", "captions.json")
    subprocess.run([*roibeam, "pretrain", "run", *told, *RUN], cwd=folder, check=True)
    losses = [json.loads(line)["loss"] for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    last = folder / "run" / "checkpoints" / "step-00000006"
    norms = {name: float(np.linalg.norm(value)) for name, value in load_file(last / "model/model.safetensors").items()}
    shutil.rmtree(last)  # as a run leaves it that was killed before its last checkpoint
    for page in ("store/report.html", "store/run_summary.json", "run/report.html", "run/summary.json"):
        (folder / page).unlink()
    from roibeam.model.visualbert.model import VisualBertConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = VisualBertConfig(vocab_size=30, region_feature_size=6, max_position_embeddings=16, **sizes)
    VisualBertForPreTraining(config).save_pretrained(folder / "model")
    with FeatureStore(folder / "store") as opened:
        content = opened.manifest.content_digest
    facts = {"content": content, "losses": losses, "norms": norms, "files": digests(folder)}
    (folder / "digests.json").write_text(json.dumps(facts, indent=1) + "\n")
    shutil.rmtree(PHOTOS)


if __name__ == "__main__":
    write(KEPT)
