"""Official checkpoints and configurations of VL-BERT (jackroos/VL-BERT): their names, and internal names.

Configurations are cfgs/*.yaml, the part NETWORK. `state_from_bert` starts pre-training from a published BERT,
`task_start` a task from a pre-trained VL-BERT. All states have internal names, for `load_start`, which returns the
unfilled parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from roibeam.model.common.checkpoint import (
    BERT_OPTIONS,
    SENTENCE_PAIRS,
    KeyTable,
    Rules,
    bert_table,
    layer_rules,
    start_from_bert,
    tidy_names,
    with_copies,
    without_copies,
)
from roibeam.model.common.fields import MASKINGS
from roibeam.model.vlbert.config import TASKS, VLBertConfig, VLBertTaskConfig
from roibeam.model.vlbert.fields import MASKING


def _encoder_rules(inner: str) -> Rules:
    """Rules that every model has; `inner` is the official prefix of the encoder's module."""
    return (
        ("image_feature_extractor.obj_downsample.1.", "vlbert.region_projection.linear."),
        ("object_linguistic_embeddings.", "vlbert.region_token."),
        (f"{inner}word_embeddings.", "vlbert.embeddings.words."),
        (f"{inner}end_embedding.", "vlbert.embeddings.end."),
        (f"{inner}position_embeddings.", "vlbert.embeddings.positions."),
        (f"{inner}token_type_embeddings.", "vlbert.embeddings.segments."),
        (f"{inner}visual_1x1_text.", "vlbert.embeddings.visual_widen_text."),
        (f"{inner}visual_1x1_object.", "vlbert.embeddings.visual_widen_region."),
        (f"{inner}visual_ln_text.", "vlbert.embeddings.visual_norm_text."),
        (f"{inner}visual_ln_object.", "vlbert.embeddings.visual_norm_region."),
        (f"{inner}visual_scale_text", "vlbert.embeddings.visual_norm_text.scale"),
        (f"{inner}visual_scale_object", "vlbert.embeddings.visual_norm_region.scale"),
        (f"{inner}embedding_LayerNorm.", "vlbert.embeddings.norm."),
        *layer_rules(f"{inner}encoder.layer.{{}}.", "vlbert.encoder.layers.{}."),
        (f"{inner}pooler.", "vlbert.pooler."),
    )


_PRE_TRAINING = (
    *_encoder_rules("vlbert."),
    ("object_mask_visual_embedding.", "vlbert.masked_region_feature."),
    ("object_mask_word_embedding.", "vlbert.masked_region_token."),
    ("aux_text_visual_embedding.", "vlbert.text_only_visual."),
    ("vlbert.relationsip_head.caption_image_relationship.", "relationship_head."),  # sic
    ("vlbert.mlm_head.predictions.bias", "masked_word_head.bias"),
    ("vlbert.mlm_head.predictions.transform.dense.", "masked_word_head.dense."),
    ("vlbert.mlm_head.predictions.transform.LayerNorm.", "masked_word_head.norm."),
    ("vlbert.mvrc_head.transform.dense.", "masked_region_head.dense."),
    ("vlbert.mvrc_head.region_cls_pred.", "masked_region_head.decoder."),
)
# `final_mlp` of each kind of classifier, internal names below "answer_head." or "choice_head.".
_CLASSIFIERS = {
    "mlm": (("final_mlp.0.dense.", "dense."), ("final_mlp.0.LayerNorm.", "norm."), ("final_mlp.2.", "decoder.")),
    "1fc": (("final_mlp.1.", "decoder."),),
    "2fc": (("final_mlp.1.", "expand."), ("final_mlp.4.", "decoder.")),
}
_OBJECT_HEAD = (("cnn_loss_reg.0.dense.", "object_head.dense."), ("cnn_loss_reg.2.", "object_head.decoder."))
_REGION_HEAD = (("final_mlp.0.dense.", "region_head.dense."), ("final_mlp.2.", "region_head.decoder."))


def _classifier(kind: str, internal: str) -> Rules:
    return tuple((official, f"{internal}.{name}") for official, name in _CLASSIFIERS[kind])


# Kinds of checkpoints: pre-training, and the tasks with their classifiers.
TABLES: Mapping[str, KeyTable] = {
    "pretrain": KeyTable("VL-BERT", _PRE_TRAINING),
    **{
        f"vqa-{kind}": KeyTable("VL-BERT for VQA", (*_encoder_rules("vlbert."), *_classifier(kind, "answer_head")))
        for kind in _CLASSIFIERS
    },
    **{
        f"vcr-{kind}": KeyTable(
            "VL-BERT for VCR", (*_encoder_rules("vlbert._module."), *_classifier(kind, "choice_head"), *_OBJECT_HEAD)
        )
        for kind in ("1fc", "2fc")
    },
    "refcoco": KeyTable("VL-BERT for RefCOCO+", (*_encoder_rules("vlbert."), *_REGION_HEAD)),
}
# The image network of an end-to-end checkpoint. It is no part of `model`; its builder reads these names.
# The release saves its last stage twice, under these two names.
LAST_STAGE, LAST_STAGE_AGAIN = "image_feature_extractor.roi_head_feature_extractor.", "image_feature_extractor.head.0."
_ENCODER = ("image_feature_extractor.backbone.", LAST_STAGE)
# Tensors that files hold twice: the decoder of masked words is the word embedding.
_COPIES = {"vlbert.mlm_head.predictions.decoder.weight": "vlbert.word_embeddings.weight"}


def kind_of(official: Mapping[str, Tensor]) -> str:
    """The key of `TABLES` that official names belong to."""
    names = {name.removeprefix("module.") for name in official}
    if "final_mlp.0.LayerNorm.weight" in names:
        head = "mlm"
    elif "final_mlp.4.weight" in names:
        head = "2fc"
    else:
        head = "1fc"
    if any(name.startswith("vlbert._module.") for name in names):
        return f"vcr-{head}"
    if not any(name.startswith("final_mlp.") for name in names):
        return "pretrain"
    return "refcoco" if "final_mlp.0.dense.weight" in names and head != "mlm" else f"vqa-{head}"


def name_from_official(name: str, kind: str = "pretrain") -> str:
    """The name here of an official parameter; `kind` is a key of `TABLES`."""
    try:
        return TABLES[kind].internal(name)
    except ValueError as error:
        raise ValueError(
            f"{error} in a checkpoint of kind {kind!r}; split_official takes the image network out of an end-to-end one"
        ) from None


def state_from_official(official: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State for `load_state_dict` of `VLBertForPreTraining` or of a task model, by the kind of the file (`kind_of`).

    Args:
        official: with or without "module." before the names.
    Raises:
        ValueError: for an unknown name, or if the file's masked-word decoder differs from its word embedding.
    """
    official = without_copies(tidy_names(official), _COPIES)
    kind = kind_of(official)
    return {name_from_official(name, kind): tensor for name, tensor in official.items()}


def state_to_official(state: Mapping[str, Tensor], kind: str = "pretrain") -> dict[str, Tensor]:
    """Official names for our parameters, with the tied decoder, without a "module." prefix; `kind` as in `TABLES`."""
    official = {TABLES[kind].official(name): tensor for name, tensor in state.items()}
    return with_copies(official, _COPIES, head="vlbert.mlm_head.predictions.bias")


def split_official(official: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """An end-to-end checkpoint's parameters: those of VL-BERT, for `state_from_official`, and of the region encoder.

    Args:
        official: with or without "module." before the names.
    Returns:
        Two dicts with official names; the second is empty for a checkpoint on stored features. The release saves the
        encoder's last stage twice, as `roi_head_feature_extractor` and as `head.0`; here it is once, under the first.
    Raises:
        ValueError: if the two differ.
    """
    official = tidy_names(official)
    encoder = {name: tensor for name, tensor in official.items() if name.startswith(_ENCODER)}
    copies = {
        name: LAST_STAGE + name.removeprefix(LAST_STAGE_AGAIN) for name in official if name.startswith(LAST_STAGE_AGAIN)
    }
    for name, original in copies.items():
        if original not in official or not official[name].equal(official[original]):
            raise ValueError(f"{name} differs from {original}; in an official checkpoint the two are one tensor")
    model = {name: tensor for name, tensor in official.items() if name not in encoder and name not in copies}
    return model, encoder


KINDS = ("pretrain", "pretrain-multitask", "vqa", "vcr", "refcoco")
_SIZES = {
    **BERT_OPTIONS,
    "visual_size": "visual_size",
    "visual_scale_text_init": "visual_norm_text_init",
    "visual_scale_object_init": "visual_norm_region_init",
    "with_pooler": "with_pooler",
    "visual_region_classes": "num_region_labels",
}
# Values of the release for options that a file omits (pretrain/function/config.py), if the default here differs.
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
# Options whose other values would be computed wrongly.
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
# Options read elsewhere: by the image network, the text, the total of VCR's losses, or by loading and training.
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
        ValueError: for an option that is unknown or requests a computation that these classes lack.
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
    fields: dict[str, Any] = {
        internal: options[official] for official, internal in _SIZES.items() if official in options
    }
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


# Which pre-training head's transform a task's head starts from (PARTIAL_PRETRAIN_PREFIX_CHANGES in cfgs/).
_HEADS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vqa": {"masked_word_head.dense.": "answer_head.dense.", "masked_word_head.norm.": "answer_head.norm."},
        "vcr": {"masked_region_head.dense.": "object_head.dense."},
        "refcoco": {"masked_region_head.dense.": "region_head.dense."},
    }
)
_SEGMENTS = "vlbert.embeddings.segments.weight"
_RELATIONSHIP = "relationship_head."


def state_from_bert(
    bert: Mapping[str, Tensor], *, with_pooler: bool = False, with_relationship_head: bool = False
) -> dict[str, Tensor]:
    """The text's embeddings, the encoder and the masked-word head (section 4.1).

    BERT has two segments; the third, of image elements, stays as drawn.

    Args:
        with_pooler, with_relationship_head: whether the model has these parts, the latter with two logits. The
            release copies BERT's next-sentence head unchanged, although there the first logit means "belongs together".
    """
    table = bert_table("vlbert.", others=((SENTENCE_PAIRS, _RELATIONSHIP),))
    used = {"bert.pooler.": with_pooler, SENTENCE_PAIRS: with_relationship_head}
    return start_from_bert(table, bert, *(prefix for prefix, is_used in used.items() if not is_used))


def task_start(
    task: str, pretrained: Mapping[str, Tensor], names: Collection[str], *, copy_segment: bool = True
) -> dict[str, Tensor]:
    """Initial state of a task model from a pre-trained VL-BERT (vqa/, vcr/, refcoco/function/train.py).

    Args:
        task: "vqa" (with the "mlm" classifier), "vcr" (with "1fc") or "refcoco".
        pretrained: state of a `VLBertForPreTraining`, or `state_from_bert` for a task without pre-training.
        names: of the task model's parameters; others are left out.
        copy_segment: VCR's answers are segment 1, which captions never trained: it starts as segment 0.
    Returns:
        State for `load_start`. VCR's score starts as the difference of the two relationship logits, if there is such a
        head.
    """
    if task not in _HEADS:
        raise ValueError(f"no VL-BERT task {task!r}; there are {', '.join(_HEADS)}")
    state: dict[str, Tensor] = {}
    for name, tensor in pretrained.items():
        if name.startswith("vlbert."):
            state[name] = tensor
        for source, target in _HEADS[task].items():
            if name.startswith(source):
                state[target + name.removeprefix(source)] = tensor
        if task == "vcr" and name.startswith(_RELATIONSHIP):
            score = tensor if len(tensor) == 1 else tensor[1:2].float() - tensor[0:1].float()
            state["choice_head.decoder." + name.removeprefix(_RELATIONSHIP)] = score
    if task == "vcr" and copy_segment and _SEGMENTS in state:
        segments = state[_SEGMENTS].clone()
        segments[1] = segments[0]
        state[_SEGMENTS] = segments
    return {name: tensor for name, tensor in state.items() if name in names}
