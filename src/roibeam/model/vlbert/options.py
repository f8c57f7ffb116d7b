"""Official configurations of VL-BERT (jackroos/VL-BERT cfgs/*.yaml, the part NETWORK), and ours."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from roibeam.model.common.checkpoint import BERT_OPTIONS
from roibeam.model.end_to_end_choices import MASKINGS
from roibeam.model.vlbert.config import TASKS, VLBertConfig, VLBertTaskConfig
from roibeam.model.vlbert.fields import MASKING

KINDS = ("pretrain", "pretrain-multitask", "vqa", "vcr", "refcoco")
_SIZES = {
    **BERT_OPTIONS,
    "visual_size": "visual_size",
    "visual_scale_text_init": "visual_norm_text_init",
    "visual_scale_object_init": "visual_norm_region_init",
    "with_pooler": "with_pooler",
    "visual_region_classes": "num_region_labels",
}
# What the release fills in where a file says nothing (pretrain/function/config.py) and ours has another default.
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 512,
        "visual_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "visual_ln": False,
        "with_pooler": True,
        "object_word_embed_mode": 2,
    }
)
# Asking for anything else would be computed as something else.
_ONLY: Mapping[str, Any] = MappingProxyType(
    {
        "obj_pos_id_relative": True,
        "position_padding_idx": -1,
        "word_embedding_frozen": False,
        "pos_embedding_frozen": False,
        "BLIND": False,
        "NO_OBJ_ATTENTION": False,
        "FOR_MASK_VL_MODELING_PRETRAIN": False,
        "IMAGE_SEMANTIC": False,
        "IMAGE_FROZEN_BN": True,
        "OUTPUT_CONV5": False,
    }
)
# How an image element's token is chosen -> how many there are; only VCR's class has more than one.
_WORD_MODES: Mapping[int, int] = MappingProxyType({1: 81, 2: 1})
# Read elsewhere: by the image network, the text, the total of VCR's losses, or by what loads and trains.
_ELSEWHERE = frozenset(
    {
        "input_size",
        "input_transform_type",
        "from_scratch",
        "visual_ln",
        "IMAGE_FEAT_PRECOMPUTED",
        "IMAGE_NUM_LAYERS",
        "IMAGE_C5_DILATED",
        "IMAGE_STRIDE_IN_1x1",
        "IMAGE_FROZEN_BACKBONE_STAGES",
        "IMAGE_FINAL_DIM",
        "IMAGE_PRETRAINED",
        "IMAGE_PRETRAINED_EPOCH",
        "PIXEL_MEANS",
        "PIXEL_STDS",
        "MASK_RAW_PIXELS",
        "NO_GROUNDING",
        "WITH_REL_LOSS",
        "WITH_MLM_LOSS",
        "WITH_MVRC_LOSS",
        "MLM_LOSS_NORM_IN_BATCH_FIRST",
        "MVRC_LOSS_NORM_IN_BATCH_FIRST",
        "CLASSIFIER_TYPE",
        "CLASSIFIER_HIDDEN_SIZE",
        "CLASSIFIER_DROPOUT",
        "CLASSIFIER_PRETRAINED",
        "CLASSIFIER_SIGMOID",
        "CLASSIFIER_SIGMOID_LOSS_POSITIVE_WEIGHT",
        "ENABLE_CNN_REG_LOSS",
        "CNN_LOSS_TOP",
        "CNN_REG_DROPOUT",
        "CNN_LOSS_WEIGHT",
        "ANS_LOSS_WEIGHT",
        "ANSWER_FIRST",
        "QA_ONE_SENT",
        "LOAD_REL_HEAD",
        "PARTIAL_PRETRAIN",
        "PARTIAL_PRETRAIN_PREFIX_CHANGES",
        "PARTIAL_PRETRAIN_SEGMB_INIT",
    }
)


def config_from_official(
    network: Mapping[str, Any], vlbert: Mapping[str, Any], kind: str, **overrides: Any
) -> VLBertConfig:
    """Our configuration for an official one; a `VLBertTaskConfig` for a task.

    Args:
        network, vlbert: NETWORK and NETWORK.VLBERT of a yaml file.
        kind: one of `KINDS`, the class of model.
        overrides: fields that differ from it, such as `num_answers` and `region_feature_size`.
    Raises:
        ValueError: for an option that is unknown or asks for what these classes do not compute.
    """
    if kind not in KINDS:
        raise ValueError(f"no VL-BERT of kind {kind!r}; there are {', '.join(KINDS)}")
    options = dict(_DEFAULTS) | {name: value for name, value in network.items() if name != "VLBERT"} | dict(vlbert)
    for name, value in options.items():
        if name in _ONLY and value != _ONLY[name]:
            raise ValueError(f"VL-BERT option {name} {value!r} is not computed here, only {_ONLY[name]!r} is")
        if (
            name not in (*_ONLY, "object_word_embed_mode")
            and name not in _SIZES
            and name not in _ELSEWHERE
            and not name.startswith("BERT_")
        ):
            raise ValueError(f"VL-BERT has no option {name!r}")
    mode = options["object_word_embed_mode"]
    if mode not in _WORD_MODES or (mode == 1 and kind != "vcr"):
        raise ValueError(
            f"VL-BERT option object_word_embed_mode {mode!r} is not computed here, only 2 is, for VCR 1 too"
        )
    if options.get("IMAGE_FINAL_DIM", options["visual_size"]) != options["visual_size"]:
        raise ValueError(
            f"VL-BERT options IMAGE_FINAL_DIM {options['IMAGE_FINAL_DIM']} and visual_size {options['visual_size']} "
            f"must be equal"
        )
    fields: dict[str, Any] = {ours: options[theirs] for theirs, ours in _SIZES.items() if theirs in options}
    if fields["visual_size"] == fields["hidden_size"]:
        fields["visual_size"] = 0
    fields["num_region_tokens"] = _WORD_MODES[mode]
    fields["visual_norm"] = "layer_norm" if options["visual_ln"] else "scale"
    if kind.startswith("pretrain"):
        return VLBertConfig(**(fields | _pretraining_fields(options, kind) | overrides))
    return VLBertTaskConfig(**(fields | _task_fields(options, kind) | overrides))


def masking_from_official(network: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """`masked_appearance` and `masked_pixels` of an official end-to-end run.

    Source: pretrain/data/build.py and common/fast_rcnn.py. With MASK_RAW_PIXELS it is the masking "release". Without it
    the multi-task class puts a vector in place of the feature, which is "feature"; the class of captions alone replaces
    nothing, and has no name.

    Args:
        network: NETWORK of a yaml file.
        kind: one of `KINDS`.
    """
    if network.get("MASK_RAW_PIXELS", True):
        return MASKING["release"], MASKINGS["release"]
    if kind == "pretrain-multitask":
        return MASKING["feature"], MASKINGS["feature"]
    return "pixels", "shown"


def _pretraining_fields(options: Mapping[str, Any], kind: str) -> dict[str, Any]:
    regions = options.get("WITH_MVRC_LOSS", True)
    stored = options.get("IMAGE_FEAT_PRECOMPUTED", False)
    appearance = "learned" if stored else masking_from_official(options, kind)[0]
    return {
        "with_text_only": kind == "pretrain-multitask",
        "with_relationship_head": options.get("WITH_REL_LOSS", True),
        "with_word_head": options.get("WITH_MLM_LOSS", True),
        "with_region_head": regions,
        "masked_appearance": appearance,
        "masked_region_token": regions,
        "word_loss_mean": "rows" if options.get("MLM_LOSS_NORM_IN_BATCH_FIRST", False) else "items",
        "region_loss_mean": "rows" if options.get("MVRC_LOSS_NORM_IN_BATCH_FIRST", False) else "items",
    }


def _task_fields(options: Mapping[str, Any], kind: str) -> dict[str, Any]:
    fields = dict(TASKS[kind])
    if "CLASSIFIER_DROPOUT" in options:
        fields["answer_dropout"] = options["CLASSIFIER_DROPOUT"]
    if kind == "refcoco":
        return fields
    fields["answer_head"] = options.get("CLASSIFIER_TYPE", "2fc")
    fields["answer_hidden_size"] = options.get("CLASSIFIER_HIDDEN_SIZE", 1024)
    if kind == "vqa":
        # Without grounding VQA's text has no visual feature, VCR's that of the whole image.
        return fields | ({"text_visual": "none"} if options.get("NO_GROUNDING", False) else {})
    fields["text_visual"] = "whole_image" if options.get("NO_GROUNDING", False) else "grounded"
    fields["answer_loss"] = "sigmoid" if options.get("CLASSIFIER_SIGMOID", False) else "softmax"
    fields["positive_weight"] = float(options.get("CLASSIFIER_SIGMOID_LOSS_POSITIVE_WEIGHT", 1.0))
    enabled = options.get("ENABLE_CNN_REG_LOSS", True)
    if enabled and not options.get("CNN_LOSS_TOP", False):
        raise ValueError("VL-BERT option CNN_LOSS_TOP False with ENABLE_CNN_REG_LOSS is not computed here")
    fields["object_loss"] = "all" if enabled else "none"
    if "CNN_REG_DROPOUT" in options:
        fields["object_dropout"] = options["CNN_REG_DROPOUT"]
    return fields
