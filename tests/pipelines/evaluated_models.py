"""Small models of every system with weights that are drawn, to be asked and measured."""

from collections.abc import Callable
from typing import Any

import torch

from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.interbert.model import InterBertForPreTraining, interbert_config
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.model.vlbert.config import vlbert_config
from roibeam.model.vlbert.model import VLBertForPreTraining

WIDTH = 12
SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
    "max_position_embeddings": 24, "region_feature_size": WIDTH,
}  # fmt: skip
VILBERT = SIZES | {
    "image_hidden_size": 16, "image_num_hidden_layers": 1, "image_num_attention_heads": 2,
    "image_intermediate_size": 20, "co_attention_size": 16, "co_attention_num_heads": 2,
    "text_co_attention": (1,), "image_co_attention": (0,), "region_target_size": 4,
}  # fmt: skip
INTERBERT = SIZES | {
    "text_num_hidden_layers": 1, "image_num_hidden_layers": 1, "image_num_attention_heads": 4,
    "image_intermediate_size": 20, "pooled_size": 16, "region_target_size": 4,
}  # fmt: skip
VLBERT = SIZES | {"coordinate_embedding_size": 16, "num_region_labels": 4}
JOINT = SIZES | {"region_target_size": 4}
# Each takes other sizes by their names.
MODELS: dict[str, Callable[..., Any]] = {
    "VL-BERT": lambda **own: VLBertForPreTraining(vlbert_config("release-captions", **VLBERT | own)),
    "VL-BERT, paper": lambda **own: VLBertForPreTraining(vlbert_config("paper", **VLBERT | own)),
    "ViLBERT": lambda **own: ViLbertForPreTraining(ViLbertConfig(**VILBERT | own)),
    "single stream": lambda **own: SingleStreamForPreTraining(SingleStreamConfig(**JOINT | own)),
    "VisualBERT": lambda **own: VisualBertForPreTraining(VisualBertConfig(**SIZES | own)),
    "VisualBERT, late fusion": lambda **own: VisualBertForPreTraining(
        VisualBertConfig(**SIZES | {"early_fusion": False} | own)
    ),
    "ImageBERT": lambda **own: ImageBertForPreTraining(ImageBertConfig(**SIZES | {"num_region_labels": 3} | own)),
    "InterBERT": lambda **own: InterBertForPreTraining(interbert_config(**INTERBERT | own)),
    "InterBERT, paper": lambda **own: InterBertForPreTraining(interbert_config("paper", **INTERBERT | own)),
}
WITHOUT_MATCH, WITHOUT_REGIONS = ("VL-BERT",), ("VisualBERT", "VisualBERT, late fusion")


def build(name: str, **own: Any) -> Any:
    """With weights far from a start, where all regions look alike."""
    torch.manual_seed(0)
    model = MODELS[name](**own).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return model
