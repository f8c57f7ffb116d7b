"""The families "finetune_*": what a file holds says of which kind it is (goldens/finetune_*/README.md).

out/loss_per_micro_step    a trajectory: the training loop does the run again
checkpoint/                start weights: what fine-tuning takes from a pre-trained model
file/                      items of a data set, through the readers that users' files go through
else, predictions_*        result files
"""

import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from harness.checks import Check, Family, unread
from harness.finetuning import referring_items, retrieval_items, vcr_items, visualbert_items, vqa_items
from harness.finetuning.item_files import ItemCase
from harness.finetuning.start_weights import start_weight_checks
from harness.finetuning.trajectory import LOSSES, Trajectory, trajectory_checks
from harness.finetuning.two_stream_trajectories import two_stream_trajectory
from harness.finetuning.visualbert_trajectories import visualbert_trajectory
from harness.finetuning.vlbert_trajectories import vlbert_trajectory
from harness.model_case import ModelArrays, npz_family

ItemChecks = Callable[[ItemCase], Iterable[Check]]
SYSTEMS: dict[str, Callable[[ModelArrays], Trajectory]] = {
    "finetune_interbert": two_stream_trajectory,
    "finetune_vilbert": two_stream_trajectory,
    "finetune_visualbert": visualbert_trajectory,
    "finetune_vlbert": vlbert_trajectory,
}
# By how a file's name begins: what compares its items.
ITEMS: dict[str, ItemChecks] = {
    "data_vqa": vqa_items.checks,
    "data_vcr": vcr_items.checks,
    "data_refer": referring_items.checks,
    "data_refcoco": referring_items.checks,
    "data_nlvr2": visualbert_items.nlvr2_checks,
    "data_retrieval": retrieval_items.checks,
    "data_flickr": visualbert_items.entity_checks,
}
# By how the outputs of result files begin: what compares these.
PREDICTIONS: dict[str, ItemChecks] = {
    "vqa_": vqa_items.prediction_checks,
    "vcr_": vcr_items.prediction_checks,
    "csv_": vcr_items.prediction_checks,
    "submission_": vcr_items.prediction_checks,
    "refer_": referring_items.prediction_checks,
}


def _checks(system: str, path: Path) -> Iterator[Check]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _case_checks(system, ItemCase(path, Path(folder)))


def _case_checks(system: str, arrays: ItemCase) -> Iterator[Check]:
    stem = arrays.path.stem
    if LOSSES in arrays:
        try:
            trajectory = SYSTEMS[system](arrays)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"config: an option is missing or of another kind: {error}") from None
        yield from trajectory_checks(arrays, trajectory)
    elif arrays.below("checkpoint/"):
        yield from start_weight_checks(arrays)
    elif arrays.below("file/"):
        fitting = [checks for start, checks in ITEMS.items() if stem.startswith(start)]
        yield from _known(fitting, stem)[0](arrays)
    else:
        outputs = arrays.below("out/")
        found = [checks for start, checks in PREDICTIONS.items() if any(name.startswith(start) for name in outputs)]
        for checks in dict.fromkeys(_known(found, stem)):
            yield from checks(arrays)
    # One file of results has the logits of tasks that the code wrote no file of.
    inputs = () if LOSSES in arrays or arrays.below("checkpoint/") else ("in/", "file/", "image/", "gt_image/")
    yield from unread(arrays, inputs)


def _known(found: list[ItemChecks], stem: str) -> list[ItemChecks]:
    if not found:
        raise ValueError(f"unknown case: {stem} is of a kind that is not known yet")
    return found


def _family(name: str, mark: str) -> Family:
    """Args: mark: what the parameters of its trajectories, and of no other family's, begin with."""

    def is_own(names: Sequence[str]) -> bool:
        return f"{LOSSES}.npy" in names and any(each.startswith(mark) for each in names)

    return npz_family(name, functools.partial(_checks, name), is_own)


FINETUNING_FAMILIES = (
    _family("finetune_vilbert", "param/bert.encoder.c_layer."),
    _family("finetune_interbert", "param/bert.t_pooler."),
    _family("finetune_visualbert", "param/bert.bert."),
    _family("finetune_vlbert", "param/vlbert."),
)
