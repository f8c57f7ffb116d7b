"""The families finetune_*: the kind of a case is told by its content, the release by the code that it names.

out/loss_per_micro_step     a run of training          trajectory.py, <system>_trajectory.py
checkpoint/                 weights to start from      vlbert_start.py
file/ or predictions alone  items of data sets, and result files made of logits: ITEMS, by the name of the file
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from roibeam.pipelines.conformance.case_files import Arrays
from roibeam.pipelines.conformance.checks import Check, failed
from roibeam.pipelines.conformance.finetuning import nlvr2_items, referring_items, vcr_items, vqa_items
from roibeam.pipelines.conformance.finetuning.trajectory import LOSS_STEPS, Release, trajectory_checks
from roibeam.pipelines.conformance.finetuning.vilbert_trajectory import interbert_release, vilbert_release
from roibeam.pipelines.conformance.finetuning.visualbert_trajectory import visualbert_release
from roibeam.pipelines.conformance.finetuning.vlbert_start import start_checks
from roibeam.pipelines.conformance.finetuning.vlbert_trajectory import vlbert_release
from roibeam.pipelines.conformance.model_case import ModelArrays, model_family

RELEASES: Mapping[str, Callable[[ModelArrays], Release]] = MappingProxyType(
    {
        "jiasenlu/vilbert_beta": vilbert_release,
        "facebookresearch/vilbert-multi-task": vilbert_release,
        "black4321/InterBERT": interbert_release,
        "uclanlp/visualbert": visualbert_release,
        "VL-BERT": vlbert_release,
    }
)
# By the start of a file's name.
ITEMS: Mapping[str, Callable[[Arrays], Iterable[Check]]] = MappingProxyType(
    {
        "data_refcoco": referring_items.checks,
        "data_refer": referring_items.checks,
        "data_nlvr2": nlvr2_items.checks,
        "data_vcr": vcr_items.checks,
        "data_vqa": vqa_items.checks,
    }
)
PREDICTIONS: tuple[Callable[[Arrays], Iterable[Check]], ...] = (
    referring_items.prediction_checks,
    vcr_items.prediction_checks,
    vqa_items.prediction_checks,
)


def _run(arrays: ModelArrays) -> Iterator[Check]:
    if LOSS_STEPS in arrays:
        yield from trajectory_checks(arrays, _release(arrays)(arrays))
    elif arrays.names("checkpoint/"):
        yield from start_checks(arrays)
    elif arrays.names("file/"):
        yield from _items(arrays.arrays)
    else:
        for checks in PREDICTIONS:
            yield from checks(arrays.arrays)


def _release(arrays: ModelArrays) -> Callable[[ModelArrays], Release]:
    official = str(arrays.options.get("official", ""))
    for code, release in RELEASES.items():
        if official.startswith(code):
            return release
    raise ValueError(f"config: official is {official!r}; expected the code of {', '.join(RELEASES)}")


def _items(arrays: Arrays) -> Iterator[Check]:
    for start, checks in ITEMS.items():
        if arrays.path.name.startswith(start):
            yield from checks(arrays)
            return
    yield failed("file/", f"items of a data set that is not known here; known are {', '.join(ITEMS)}")


# A folder of another name is taken for ViLBERT's; which release a case is of says the case.
FINETUNING_FAMILIES = tuple(
    model_family(f"finetune_{system}", marks, _run)
    for system, marks in (
        ("vilbert", (LOSS_STEPS, "checkpoint/", "file/")),
        ("vlbert", ()),
        ("visualbert", ()),
        ("interbert", ()),
    )
)
