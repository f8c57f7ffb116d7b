"""What the attacks share: a small world with its store and its runs, and a small disk.

All tests of this folder are soaks by cases: `make test-attacks` runs all of them, the slow suite a share.
"""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # lets tests import the modules beside this one

VISUALBERT = ("--system", "visualbert", "--model", "small", "--batch-size", "4", "--set", "train.checkpoint_every=2")
IMPORTED = (
    "torch", "transformers", "roibeam.pipelines.cli.commands", "roibeam.pipelines.extract.beam_extraction",
    "roibeam.pipelines.finetuning.run.finetune_run", "roibeam.pipelines.finetuning.run.predict_run",
    "roibeam.pipelines.pretraining.requested_run",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.soak(cases=True))


class World(NamedTuple):
    """What a user of roibeam has; read only, except for copies that `copied` makes."""

    folder: Path

    @property
    def captions(self) -> Path:
        return self.folder / "world/coco/annotations/captions_train2014.json"

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def copied(self, name: str, to: Path) -> Path:
        """A copy of `store` or `perfect`, of `run` (pre-trained), `labels` or `retrieval` (fine-tuned), in `to`."""
        return shutil.copytree(self.folder / name, to / name, symlinks=True)


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> World:
    """world/, tasks/, perfect/ (a store of the world), own/ (tables of labels), store/, run/, labels/, retrieval/."""
    from forked_command import done

    for name in IMPORTED:  # once, in place of seconds in each fork
        importlib.import_module(name)
    made = World(tmp_path_factory.mktemp("attacked"))
    done("toyworld", made / "world", "--num-images", 140, "--seed", 7, "--perfect-store", made / "perfect")
    done("extract", made / "world/coco/train2014", made / "store", "--detector", "toy", "--captions", made.captions,
         "--shard-size", 4, "--threads", 1)  # fmt: skip
    done("pretrain", made / "run", "--store", made / "store", "--captions", made.captions, *VISUALBERT, "--steps", 4,
         "--tokenizer", made / "world/vocab.txt")  # fmt: skip
    write_labels(made)
    for task, data in (("labels", "own"), ("retrieval", "world/flickr30k")):
        done("finetune", made / task, "--task", task, "--from", "none", "--store", made / "perfect", "--data",
             made / data, *VISUALBERT, "--steps", 4, "--tokenizer", made / "world/vocab.txt")  # fmt: skip
    return made


def write_labels(made: World) -> None:
    """Tables of a task of labels, with text that a terminal or a browser would take for more than text."""
    from roibeam import FeatureStore

    with FeatureStore(made / "perfect") as store:
        images = sorted(record.image_id for record in store)[:36]
    (made / "own").mkdir()
    for split, first, last in (("train", 0, 16), ("val", 16, 24), ("test", 24, 36)):
        rows = [
            {"id": f"{split}-{number}\u202e<script>", "image": image, "text": f"a \x1b[31m red \u202e box {number}",
             "label": ("yes\u202e", "<b>no", "perhaps")[number % 3]}
            for number, image in enumerate(images[first:last])
        ]  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (made / "own" / f"{split}.jsonl").write_text(text)


@pytest.fixture(scope="session")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Gives an empty folder on a disk of so many kilobytes; root only."""
    folder = tmp_path_factory.mktemp("disk")

    def mounted(kilobytes: int) -> Path:
        subprocess.run(["umount", folder], capture_output=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs root, to mount a small disk")
        return folder

    yield mounted  # type: ignore[misc]
    subprocess.run(["umount", folder], capture_output=True)
