"""Small models of every system with weights that are drawn, to be asked and measured."""

from __future__ import annotations

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
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "region_feature_size": WIDTH,
}
VILBERT = SIZES | {
    "image_hidden_size": 16,
    "image_num_hidden_layers": 1,
    "image_num_attention_heads": 2,
    "image_intermediate_size": 20,
    "co_attention_size": 16,
    "co_attention_num_heads": 2,
    "text_co_attention": (1,),
    "image_co_attention": (0,),
    "region_target_size": 4,
}
INTERBERT = SIZES | {
    "text_num_hidden_layers": 1,
    "image_num_hidden_layers": 1,
    "image_num_attention_heads": 4,
    "image_intermediate_size": 20,
    "pooled_size": 16,
    "region_target_size": 4,
}
VLBERT = SIZES | {"coordinate_embedding_size": 16, "num_region_labels": 4}
MODELS: dict[str, Callable[[], Any]] = {
    "VL-BERT": lambda: VLBertForPreTraining(vlbert_config("release-captions", **VLBERT)),
    "VL-BERT, paper": lambda: VLBertForPreTraining(vlbert_config("paper", **VLBERT)),
    "ViLBERT": lambda: ViLbertForPreTraining(ViLbertConfig(**VILBERT)),
    "single stream": lambda: SingleStreamForPreTraining(SingleStreamConfig(**SIZES, region_target_size=4)),
    "VisualBERT": lambda: VisualBertForPreTraining(VisualBertConfig(**SIZES)),
    "VisualBERT, late fusion": lambda: VisualBertForPreTraining(VisualBertConfig(**SIZES, early_fusion=False)),
    "ImageBERT": lambda: ImageBertForPreTraining(ImageBertConfig(**SIZES, num_region_labels=3)),
    "InterBERT": lambda: InterBertForPreTraining(interbert_config(**INTERBERT)),
    "InterBERT, paper": lambda: InterBertForPreTraining(interbert_config("paper", **INTERBERT)),
}
WITHOUT_MATCH, WITHOUT_REGIONS = ("VL-BERT",), ("VisualBERT", "VisualBERT, late fusion")


def build(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return model
