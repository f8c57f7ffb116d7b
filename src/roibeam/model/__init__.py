"""Tensors in, tensors out: five vision-language models, their heads, losses and masking.

Imports nothing of ours and reads no files of runs; the region encoder is known as a protocol. What several models share
is in common/, each model has a room. Read inputs.py first, then one model beside its paper.
"""

from typing import TYPE_CHECKING

from roibeam.lazy_names import lazy_names

if __name__ != "roibeam.model":
    raise ImportError(f"{__name__!r} is a link to roibeam.model, or a copy of it: import roibeam.model")

if TYPE_CHECKING:
    from roibeam.model.end_to_end import EndToEndChoices as EndToEndChoices
    from roibeam.model.end_to_end import EndToEndModel as EndToEndModel
    from roibeam.model.imagebert.model import ImageBertConfig as ImageBertConfig
    from roibeam.model.imagebert.model import ImageBertForPreTraining as ImageBertForPreTraining
    from roibeam.model.inputs import VLBatch as VLBatch
    from roibeam.model.inputs import VLOutput as VLOutput
    from roibeam.model.interbert.config import InterBertConfig as InterBertConfig
    from roibeam.model.interbert.model import InterBertForPreTraining as InterBertForPreTraining
    from roibeam.model.task_heads import LabelHead as LabelHead
    from roibeam.model.task_heads import LabelHeadConfig as LabelHeadConfig
    from roibeam.model.task_heads import TaskModel as TaskModel
    from roibeam.model.vilbert.config import ViLbertConfig as ViLbertConfig
    from roibeam.model.vilbert.model import ViLbertForPreTraining as ViLbertForPreTraining
    from roibeam.model.visualbert.model import VisualBertConfig as VisualBertConfig
    from roibeam.model.visualbert.model import VisualBertForPreTraining as VisualBertForPreTraining
    from roibeam.model.vlbert.config import VLBertConfig as VLBertConfig
    from roibeam.model.vlbert.model import VLBertForPreTraining as VLBertForPreTraining

_FILES = {
    "EndToEndChoices": "roibeam.model.end_to_end",
    "EndToEndModel": "roibeam.model.end_to_end",
    "ImageBertConfig": "roibeam.model.imagebert.model",
    "ImageBertForPreTraining": "roibeam.model.imagebert.model",
    "VLBatch": "roibeam.model.inputs",
    "VLOutput": "roibeam.model.inputs",
    "InterBertConfig": "roibeam.model.interbert.config",
    "InterBertForPreTraining": "roibeam.model.interbert.model",
    "LabelHead": "roibeam.model.task_heads",
    "LabelHeadConfig": "roibeam.model.task_heads",
    "TaskModel": "roibeam.model.task_heads",
    "ViLbertConfig": "roibeam.model.vilbert.config",
    "ViLbertForPreTraining": "roibeam.model.vilbert.model",
    "VisualBertConfig": "roibeam.model.visualbert.model",
    "VisualBertForPreTraining": "roibeam.model.visualbert.model",
    "VLBertConfig": "roibeam.model.vlbert.config",
    "VLBertForPreTraining": "roibeam.model.vlbert.model",
}
__getattr__, __dir__ = lazy_names(__name__, _FILES)
