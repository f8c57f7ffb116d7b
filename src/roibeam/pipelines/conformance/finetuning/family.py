"""The families "finetune_*": what a file holds says of which kind it is (goldens/finetune_*/README.md).

out/loss_per_micro_step    a trajectory: the training loop does the run again
checkpoint/                start weights: what fine-tuning takes from a pre-trained model
file/                      items of a data set, through the readers that users' files go through
else, predictions_*        result files
"""

from __future__ import annotations

import functools
import importlib
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roibeam.pipelines.conformance.checks import Case, Check, Family, OpenFolder, failed
from roibeam.pipelines.conformance.finetuning.start_weights import start_weight_checks
from roibeam.pipelines.conformance.finetuning.trajectory import LOSSES, Trajectory, trajectory_checks
from roibeam.pipelines.conformance.finetuning.two_stream_trajectories import two_stream_trajectory
from roibeam.pipelines.conformance.finetuning.visualbert_trajectories import visualbert_trajectory
from roibeam.pipelines.conformance.finetuning.vlbert_trajectories import vlbert_trajectory
from roibeam.pipelines.conformance.model_case import ModelArrays

_ROOM = "roibeam.pipelines.conformance.finetuning"
SYSTEMS: dict[str, Callable[[ModelArrays], Trajectory]] = {
    "finetune_interbert": two_stream_trajectory,
    "finetune_vilbert": two_stream_trajectory,
    "finetune_visualbert": visualbert_trajectory,
    "finetune_vlbert": vlbert_trajectory,
}
# By how a file's name begins: the module whose `checks` compares its items.
ITEMS = {
    "data_vqa": "vqa_items",
    "data_vcr": "vcr_items",
    "data_refer": "referring_items",
    "data_refcoco": "referring_items",
    "data_nlvr2": "nlvr2_items",
}
# By how the outputs of result files begin: the module whose `prediction_checks` compares these.
PREDICTIONS = {
    "vqa_": "vqa_items",
    "vcr_": "vcr_items",
    "csv_": "vcr_items",
    "submission_": "vcr_items",
    "refer_": "referring_items",
}


def _checks(system: str, path: Path) -> Iterator[Check]:
    arrays = ModelArrays(path)
    if LOSSES in arrays:
        try:
            trajectory = SYSTEMS[system](arrays)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"config: an option is missing or of another kind: {error}") from None
        yield from trajectory_checks(arrays, trajectory)
    elif arrays.names("checkpoint/"):
        yield from start_weight_checks(arrays)
    elif arrays.names("file/"):
        fitting = [name for name in ITEMS if path.stem.startswith(name)]
        yield from _module(ITEMS[fitting[0]] if fitting else "", path.stem).checks(arrays.arrays)
    else:
        outputs = arrays.names("out/")
        modules = dict.fromkeys(m for start, m in PREDICTIONS.items() if any(n.startswith(start) for n in outputs))
        for module in modules or {"": None}:
            yield from _module(module, path.stem).prediction_checks(arrays.arrays)
    # One file of results has the logits of tasks that the code wrote no file of.
    inputs = () if LOSSES in arrays or arrays.names("checkpoint/") else ("in/", "file/", "image/", "gt_image/")
    for left in arrays.arrays.unread:
        if not left.startswith(inputs):
            yield failed(left, "unknown array: nothing was compared with it")


def _module(name: str, stem: str) -> Any:
    """One of this room; imported here, so that a run of training needs no reader of data sets."""
    if not name or find_spec(f"{_ROOM}.{name}") is None:
        raise ValueError(f"unknown case: {stem} is of a kind that is not known yet")
    return importlib.import_module(f"{_ROOM}.{name}")


def _family(name: str, mark: str) -> Family:
    """Args: mark: what the parameters of its trajectories, and of no other family's, begin with."""

    def open_folder(folder: Path) -> OpenFolder:
        files = sorted(path for path in folder.glob("*.npz") if not path.name.startswith("."))
        return OpenFolder(tuple(Case(path.name, functools.partial(_checks, name, path)) for path in files), frozenset())

    def recognises(folder: Path) -> bool:
        for path in sorted(folder.glob("*.npz")):
            try:
                with zipfile.ZipFile(path) as archive:
                    names = archive.namelist()
            except (zipfile.BadZipFile, OSError):
                continue
            if f"{LOSSES}.npy" in names and any(each.startswith(mark) for each in names):
                return True
        return False

    return Family(name, recognises, open_folder)


FINETUNING_FAMILIES = (
    _family("finetune_vilbert", "param/bert.encoder.c_layer."),
    _family("finetune_interbert", "param/bert.t_pooler."),
    _family("finetune_visualbert", "param/bert.bert."),
    _family("finetune_vlbert", "param/vlbert."),
)
