"""What `make lint` gives mypy: every model is a `PreTrainingModel` in its parameters and results, which nothing checks
at run time. test_invariances.py sees to it that no model is left out."""

from roibeam.model.imagebert.model import ImageBertForPreTraining
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.pretraining import PreTrainingModel
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamForPreTraining
from roibeam.model.visualbert.model import VisualBertForPreTraining
from roibeam.model.vlbert.model import VLBertForPreTraining


class Other:
    pass


def check_models(
    imagebert: ImageBertForPreTraining,
    interbert: InterBertForPreTraining,
    vilbert: ViLbertForPreTraining,
    single_stream: SingleStreamForPreTraining,
    visualbert: VisualBertForPreTraining,
    vlbert: VLBertForPreTraining,
) -> tuple[PreTrainingModel, ...]:
    return imagebert, interbert, vilbert, single_stream, visualbert, vlbert


def check_other(other: Other) -> PreTrainingModel:
    return other  # type: ignore[return-value]  # mypy says so where there is nothing to ignore
