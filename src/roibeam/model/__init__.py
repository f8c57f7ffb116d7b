"""Tensors in, tensors out: five vision-language models, their heads, losses and masking.

Imports no other roibeam package, reads no files of runs; the region encoder is known as a protocol. Shared parts are in
common/, each model has a folder. Read inputs.py first, then one model beside its paper.
"""

# First, so that a clone without an installation reports it too.
if __name__ != "roibeam.model":
    raise ImportError(f"{__name__!r} is a link to roibeam.model, or a copy of it: import roibeam.model")

from typing import TYPE_CHECKING

from roibeam.lazy_names import lazy_names

if TYPE_CHECKING:
    from roibeam.model.common.fields import EndToEndChoices as EndToEndChoices
    from roibeam.model.common.transformer import computing_padding as computing_padding
    from roibeam.model.end_to_end import EndToEndModel as EndToEndModel
    from roibeam.model.end_to_end import ImageBatch as ImageBatch
    from roibeam.model.imagebert.model import ImageBertConfig as ImageBertConfig
    from roibeam.model.imagebert.model import ImageBertForPreTraining as ImageBertForPreTraining
    from roibeam.model.imagebert.model import imagebert_base as imagebert_base
    from roibeam.model.imagebert.model import imagebert_small as imagebert_small
    from roibeam.model.inputs import AttentionMaps as AttentionMaps
    from roibeam.model.inputs import VLBatch as VLBatch
    from roibeam.model.inputs import VLOutput as VLOutput
    from roibeam.model.interbert.model import InterBertConfig as InterBertConfig
    from roibeam.model.interbert.model import InterBertForPreTraining as InterBertForPreTraining
    from roibeam.model.interbert.model import InterBertForTasks as InterBertForTasks
    from roibeam.model.interbert.model import interbert_config as interbert_config
    from roibeam.model.interbert.model import interbert_small as interbert_small
    from roibeam.model.task_heads import GroundingHead as GroundingHead
    from roibeam.model.task_heads import GroundingHeadConfig as GroundingHeadConfig
    from roibeam.model.task_heads import ImagePairHead as ImagePairHead
    from roibeam.model.task_heads import ImagePairHeadConfig as ImagePairHeadConfig
    from roibeam.model.task_heads import LabelHead as LabelHead
    from roibeam.model.task_heads import LabelHeadConfig as LabelHeadConfig
    from roibeam.model.task_heads import RegionHead as RegionHead
    from roibeam.model.task_heads import RegionHeadConfig as RegionHeadConfig
    from roibeam.model.task_heads import TaskModel as TaskModel
    from roibeam.model.task_heads import TextTaskModel as TextTaskModel
    from roibeam.model.task_heads import load_task_head as load_task_head
    from roibeam.model.task_losses import answer_bce as answer_bce
    from roibeam.model.vilbert.encoder import ViLbertConfig as ViLbertConfig
    from roibeam.model.vilbert.encoder import vilbert_config as vilbert_config
    from roibeam.model.vilbert.encoder import vilbert_small as vilbert_small
    from roibeam.model.vilbert.model import ViLbertForMultiTask as ViLbertForMultiTask
    from roibeam.model.vilbert.model import ViLbertForPreTraining as ViLbertForPreTraining
    from roibeam.model.vilbert.model import ViLbertForTasks as ViLbertForTasks
    from roibeam.model.vilbert.single_stream import SingleStreamConfig as SingleStreamConfig
    from roibeam.model.vilbert.single_stream import SingleStreamForPreTraining as SingleStreamForPreTraining
    from roibeam.model.vilbert.single_stream import SingleStreamForTasks as SingleStreamForTasks
    from roibeam.model.visualbert.model import VisualBertConfig as VisualBertConfig
    from roibeam.model.visualbert.model import VisualBertForGrounding as VisualBertForGrounding
    from roibeam.model.visualbert.model import VisualBertForLabels as VisualBertForLabels
    from roibeam.model.visualbert.model import VisualBertForPreTraining as VisualBertForPreTraining
    from roibeam.model.visualbert.model import visualbert_config as visualbert_config
    from roibeam.model.visualbert.model import visualbert_small as visualbert_small
    from roibeam.model.vlbert.config import VLBertConfig as VLBertConfig
    from roibeam.model.vlbert.config import vlbert_base as vlbert_base
    from roibeam.model.vlbert.config import vlbert_config as vlbert_config
    from roibeam.model.vlbert.config import vlbert_small as vlbert_small
    from roibeam.model.vlbert.config import vlbert_task_config as vlbert_task_config
    from roibeam.model.vlbert.model import VLBertForPreTraining as VLBertForPreTraining
    from roibeam.model.vlbert.tasks import VLBertForReferring as VLBertForReferring
    from roibeam.model.vlbert.tasks import VLBertForVcr as VLBertForVcr
    from roibeam.model.vlbert.tasks import VLBertForVqa as VLBertForVqa

_FILES = {
    "ImageBatch": "roibeam.model.end_to_end",
    "computing_padding": "roibeam.model.common.transformer",
    "EndToEndChoices": "roibeam.model.common.fields",
    "EndToEndModel": "roibeam.model.end_to_end",
    "ImageBertConfig": "roibeam.model.imagebert.model",
    "ImageBertForPreTraining": "roibeam.model.imagebert.model",
    "imagebert_base": "roibeam.model.imagebert.model",
    "imagebert_small": "roibeam.model.imagebert.model",
    "VLBatch": "roibeam.model.inputs",
    "VLOutput": "roibeam.model.inputs",
    "AttentionMaps": "roibeam.model.inputs",
    "InterBertConfig": "roibeam.model.interbert.model",
    "interbert_config": "roibeam.model.interbert.model",
    "interbert_small": "roibeam.model.interbert.model",
    "InterBertForPreTraining": "roibeam.model.interbert.model",
    "InterBertForTasks": "roibeam.model.interbert.model",
    "GroundingHead": "roibeam.model.task_heads",
    "GroundingHeadConfig": "roibeam.model.task_heads",
    "ImagePairHead": "roibeam.model.task_heads",
    "ImagePairHeadConfig": "roibeam.model.task_heads",
    "LabelHead": "roibeam.model.task_heads",
    "LabelHeadConfig": "roibeam.model.task_heads",
    "RegionHead": "roibeam.model.task_heads",
    "RegionHeadConfig": "roibeam.model.task_heads",
    "TaskModel": "roibeam.model.task_heads",
    "TextTaskModel": "roibeam.model.task_heads",
    "load_task_head": "roibeam.model.task_heads",
    "answer_bce": "roibeam.model.task_losses",
    "ViLbertConfig": "roibeam.model.vilbert.encoder",
    "vilbert_config": "roibeam.model.vilbert.encoder",
    "vilbert_small": "roibeam.model.vilbert.encoder",
    "ViLbertForPreTraining": "roibeam.model.vilbert.model",
    "SingleStreamConfig": "roibeam.model.vilbert.single_stream",
    "SingleStreamForPreTraining": "roibeam.model.vilbert.single_stream",
    "SingleStreamForTasks": "roibeam.model.vilbert.single_stream",
    "ViLbertForMultiTask": "roibeam.model.vilbert.model",
    "ViLbertForTasks": "roibeam.model.vilbert.model",
    "VisualBertConfig": "roibeam.model.visualbert.model",
    "VisualBertForPreTraining": "roibeam.model.visualbert.model",
    "visualbert_config": "roibeam.model.visualbert.model",
    "visualbert_small": "roibeam.model.visualbert.model",
    "VisualBertForGrounding": "roibeam.model.visualbert.model",
    "VisualBertForLabels": "roibeam.model.visualbert.model",
    "VLBertConfig": "roibeam.model.vlbert.config",
    "vlbert_base": "roibeam.model.vlbert.config",
    "vlbert_config": "roibeam.model.vlbert.config",
    "vlbert_small": "roibeam.model.vlbert.config",
    "vlbert_task_config": "roibeam.model.vlbert.config",
    "VLBertForPreTraining": "roibeam.model.vlbert.model",
    "VLBertForReferring": "roibeam.model.vlbert.tasks",
    "VLBertForVcr": "roibeam.model.vlbert.tasks",
    "VLBertForVqa": "roibeam.model.vlbert.tasks",
}
__all__ = list(_FILES)
__getattr__, __dir__ = lazy_names(__name__, _FILES)
