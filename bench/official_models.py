"""Runs the official training codes of VL-BERT and ViLBERT from checkouts; nothing of theirs is copied here.

Both run on today's torch as they are. What they import beside it and never use in a training step on stored features is
a stand-in: VL-BERT's compiled RoI pooling and its tokenizer, ViLBERT's TensorBoard writer. Without apex both take the
LayerNorm of their own, as they say when they start.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import yaml
from torch import nn


class Tree(SimpleNamespace):
    """What VL-BERT's code reads of easydict: attributes all the way down."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(**{name: Tree(value) if isinstance(value, dict) else value for name, value in values.items()})


def stand_in(name: str, **contents: Any) -> None:
    """A module of that name."""
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def import_from(checkout: Path, name: str) -> Any:
    """A module of a checkout.

    Raises:
        FileNotFoundError: when the checkout has no such file.
    """
    if not (checkout / Path(*name.split("."))).with_suffix(".py").is_file():
        raise FileNotFoundError(f"{checkout}: no {name.replace('.', '/')}.py there; is it a checkout of that code?")
    sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(checkout))


def official_vlbert(checkout: Path) -> nn.Module:
    """Base model on stored features (cfgs/pretrain/base_prec_4x16G_fp32.yaml), dropout 0.

    Args:
        checkout: of jackroos/VL-BERT.
    """
    stand_in("common.lib.roi_pooling.C_ROIPooling")
    module = import_from(checkout, "pretrain.modules.resnet_vlbert_for_pretraining")
    module.BertTokenizer = SimpleNamespace(from_pretrained=lambda name: None)
    settings = yaml.safe_load((checkout / "cfgs/pretrain/base_prec_4x16G_fp32.yaml").read_text())["NETWORK"]
    settings["BERT_MODEL_NAME"] = ""
    # What pretrain/function/config.py has by default.
    defaults = {"word_embedding_frozen": False, "obj_pos_id_relative": True, "position_padding_idx": -1}
    defaults |= {"from_scratch": True, "visual_region_classes": 1601}
    settings["VLBERT"] = defaults | settings["VLBERT"]
    settings["VLBERT"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = module.ResNetVLBERTForPretraining(Tree({"NETWORK": settings}))
    model.image_feature_extractor.obj_downsample[0].p = 0.0
    # The released start of 0 would hide the regions from the states, and from their comparison.
    for norm in (model.vlbert.visual_ln_text, model.vlbert.visual_ln_object):
        nn.init.ones_(norm.weight)
    return model


def official_vilbert(checkout: Path) -> nn.Module:
    """Base model with six co-attentions (config/bert_base_6layer_6conect.json), dropout 0.

    Args:
        checkout: of jiasenlu/vilbert_beta.
    """
    module, config = vilbert_code(checkout)
    return without_dropout(module.BertForMultiModalPreTraining(config))


def vilbert_code(checkout: Path) -> tuple[Any, Any]:
    """Their module of models and the configuration of the base model."""
    stand_in("tensorboardX", SummaryWriter=None)
    module = import_from(checkout, "vilbert.vilbert")
    options = json.loads((checkout / "config/bert_base_6layer_6conect.json").read_text())
    known = inspect.signature(module.BertConfig).parameters
    options = {name: 0.0 if "dropout" in name else value for name, value in options.items() if name in known}
    return module, module.BertConfig(30522, **options)


def without_dropout(model: nn.Module) -> nn.Module:
    """Some rates are written into the codes."""
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model
