"""What `make lint` gives mypy: every model is a `PreTrainingModel` in its parameters and results, which nothing checks
at run time. test_invariances.py sees to it that no model is left out."""

from __future__ import annotations

from roibeam.model.imagebert.model import ImageBertForPreTraining
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.pretraining import PreTrainingModel
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamForPreTraining
from roibeam.model.visualbert.model import VisualBertForPreTraining
from roibeam.model.vlbert.model import VLBertForPreTraining


class Other:
    pass


def check_imagebert(model: ImageBertForPreTraining) -> PreTrainingModel:
    return model


def check_interbert(model: InterBertForPreTraining) -> PreTrainingModel:
    return model


def check_vilbert(model: ViLbertForPreTraining) -> PreTrainingModel:
    return model


def check_single_stream(model: SingleStreamForPreTraining) -> PreTrainingModel:
    return model


def check_visualbert(model: VisualBertForPreTraining) -> PreTrainingModel:
    return model


def check_vlbert(model: VLBertForPreTraining) -> PreTrainingModel:
    return model


def check_other(model: Other) -> PreTrainingModel:
    return model  # type: ignore[return-value]  # mypy says so where there is nothing to ignore
