"""The families finetune_*: the kind of a case is told by its content, the release by the code that it names.

    out/loss_per_micro_step     a run of training          trajectory.py, <system>_trajectory.py
    checkpoint/                 weights to start from      vlbert_start.py
    file/ or predictions alone  items of data sets, and result files made of logits: ITEMS, by the name of the file
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from roibeam.pipelines.conformance.checks import Check, Family
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
