"""The official fine-tuning models of VL-BERT and ViLBERT on stored features, from checkouts; nothing of theirs is here.

Their own modules, losses and heads; dropout is 0. VL-BERT's VCR code reads photos: what it calls to make region
features is their own module for stored ones (`IMAGE_FEAT_PRECOMPUTED`); the second loss, classes of boxes, is off.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from official_models import Tree, import_from, stand_in, vilbert_code, without_dropout
from torch import Tensor, nn

CLS, SEP, MASK = 101, 102, 103  # BERT's
_SPECIAL = {"[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
_CONFIGS = {"vqa": "base_4x16G_fp32.yaml", "vcr": "base_q2a_4x16G_fp32.yaml"}
# What vqa/function/config.py and vcr/function/config.py have by default.
_NETWORK = {
    "BLIND": False, "NO_GROUNDING": False, "NO_OBJ_ATTENTION": False, "FOR_MASK_VL_MODELING_PRETRAIN": False,
    "ANSWER_FIRST": False, "QA_ONE_SENT": False, "REPLACE_OBJECT_CHANGE_LABEL": False, "CNN_LOSS_TOP": False,
    "CLASSIFIER_SIGMOID_LOSS_POSITIVE_WEIGHT": 1.0, "ANS_LOSS_WEIGHT": 1.0,
}  # fmt: skip
_VLBERT = {
    "word_embedding_frozen": False, "obj_pos_id_relative": True, "position_padding_idx": -1, "with_pooler": False,
    "object_word_embed_mode": 2,
}  # fmt: skip


class _Stored(nn.Module):
    """Their module for stored features where their VCR code expects the one for photos: `images` are features."""

    def __init__(self, extractor: nn.Module) -> None:
        super().__init__()
        self.obj_downsample = extractor.obj_downsample
        self._extractor = [extractor]  # its parameters stand under their own name already

    def forward(self, images: Tensor, boxes: Tensor, box_mask: Tensor, im_info: Tensor, **_: Any) -> dict[str, Tensor]:
        features = images[:, : boxes.shape[1]]
        return self._extractor[0](None, torch.cat([boxes, features], dim=-1), box_mask, im_info)

    def bn_eval(self) -> None:
        """There is no batch normalisation."""


def official_vlbert_task(checkout: Path, task: str, num_answers: int) -> nn.Module:
    """The base model of vqa/ or vcr/ with the settings of cfgs/.

    Args:
        checkout: of jackroos/VL-BERT.
        task: "vqa" or "vcr".
    """
    stand_in("common.lib.roi_pooling.C_ROIPooling")
    module = import_from(checkout, f"{task}.modules.resnet_vlbert_for_{task}")
    tokenizer = SimpleNamespace(convert_tokens_to_ids=lambda names: [_SPECIAL[name] for name in names])
    module.BertTokenizer = SimpleNamespace(from_pretrained=lambda name: tokenizer)
    network = _NETWORK | yaml.safe_load((checkout / "cfgs" / task / _CONFIGS[task]).read_text())["NETWORK"]
    network |= {"BERT_MODEL_NAME": "", "IMAGE_FEAT_PRECOMPUTED": True, "ENABLE_CNN_REG_LOSS": False}
    network |= {"CLASSIFIER_DROPOUT": 0.0}
    network["VLBERT"] = _VLBERT | network["VLBERT"]
    network["VLBERT"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "with_pooler": task == "vcr"}
    kind = module.ResNetVLBERT
    if task == "vqa":  # its classifier would start from a file of BERT's
        kind.init_weight = lambda model: None
    model = kind(Tree({"NETWORK": network, "DATASET": {"ANSWER_VOCAB_SIZE": num_answers}}))
    model.image_feature_extractor.obj_downsample[0].p = 0.0
    encoder = model.vlbert
    if task == "vcr":
        model.image_feature_extractor = _Stored(model.image_feature_extractor)
        encoder = encoder._module
    # The released start of 0 would hide the regions from the states, and from their comparison.
    for norm in (encoder.visual_ln_text, encoder.visual_ln_object):
        nn.init.ones_(norm.weight)
    return model


def official_vilbert_tasks(checkout: Path, num_answers: int) -> nn.Module:
    """The base model with all its task heads (VILBertForVLTasks).

    Args:
        checkout: of jiasenlu/vilbert_beta.
    """
    module, config = vilbert_code(checkout)
    return without_dropout(module.VILBertForVLTasks(config, num_labels=num_answers))
