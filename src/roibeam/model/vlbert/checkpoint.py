"""Names of VL-BERT's parameters in the official checkpoints (jackroos/VL-BERT) and here, of pre-training and tasks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from roibeam.model.common.checkpoint import BERT_LAYER, KeyTable, tidy_names, with_copies, without_copies


def _encoder_rules(inner: str) -> tuple[tuple[str, str], ...]:
    """Rules of what every model has; `inner` is the official prefix of the encoder's module."""
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
        *((f"{inner}encoder.layer.{{}}.{a}", f"vlbert.encoder.layers.{{}}.{b}") for a, b in BERT_LAYER),
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
# `final_mlp` of each kind of classifier, ours below "answer_head." or "choice_head.".
_CLASSIFIERS = {
    "mlm": (("final_mlp.0.dense.", "dense."), ("final_mlp.0.LayerNorm.", "norm."), ("final_mlp.2.", "decoder.")),
    "1fc": (("final_mlp.1.", "decoder."),),
    "2fc": (("final_mlp.1.", "expand."), ("final_mlp.4.", "decoder.")),
}
_OBJECT_HEAD = (("cnn_loss_reg.0.dense.", "object_head.dense."), ("cnn_loss_reg.2.", "object_head.decoder."))
_REGION_HEAD = (("final_mlp.0.dense.", "region_head.dense."), ("final_mlp.2.", "region_head.decoder."))


def _classifier(kind: str, ours: str) -> tuple[tuple[str, str], ...]:
    return tuple((official, f"{ours}.{name}") for official, name in _CLASSIFIERS[kind])


# Kinds of checkpoints: pre-training, and the tasks with their classifiers.
TABLES: Mapping[str, KeyTable] = {
    "pretrain": KeyTable("VL-BERT", _PRE_TRAINING),
    **{
        f"vqa-{kind}": KeyTable("VL-BERT for VQA", (*_encoder_rules("vlbert."), *_classifier(kind, "answer_head")))
        for kind in _CLASSIFIERS
    },
    **{
        f"vcr-{kind}": KeyTable(
            "VL-BERT for VCR",
            (*_encoder_rules("vlbert._module."), *_classifier(kind, "choice_head"), *_OBJECT_HEAD),
        )
        for kind in ("1fc", "2fc")
    },
    "refcoco": KeyTable("VL-BERT for RefCOCO+", (*_encoder_rules("vlbert."), *_REGION_HEAD)),
}
# The image network of an end-to-end checkpoint. It is no part of `model`; who builds it reads these names.
# The release saves its last stage twice, under these two names.
LAST_STAGE, LAST_STAGE_AGAIN = "image_feature_extractor.roi_head_feature_extractor.", "image_feature_extractor.head.0."
_ENCODER = ("image_feature_extractor.backbone.", LAST_STAGE)
# What files hold twice: the decoder of masked words is the word embedding.
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
    """The name here of an official parameter.

    Args:
        kind: a key of `TABLES`.
    Raises:
        ValueError: for a name that no rule covers.
    """
    try:
        return TABLES[kind].ours(name)
    except ValueError as error:
        raise ValueError(
            f"{error} in a checkpoint of kind {kind!r}; split_official takes the image network out of an end-to-end one"
        ) from None


def state_from_official(official: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State for `load_state_dict` of `VLBertForPreTraining` or of a task model, whichever the file is of (`kind_of`).

    Args:
        official: with or without "module." before the names.
    Raises:
        ValueError: for an unknown name, or when the file's masked-word decoder differs from its word embedding.
    """
    official = without_copies(tidy_names(official), _COPIES)
    kind = kind_of(official)
    return {name_from_official(name, kind): tensor for name, tensor in official.items()}


def state_to_official(state: Mapping[str, Tensor], kind: str = "pretrain") -> dict[str, Tensor]:
    """Official names for our parameters, with the tied decoder, without a "module." prefix.

    Args:
        kind: a key of `TABLES`.
    Raises:
        ValueError: for a parameter that this kind of checkpoint does not have.
    """
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
        ValueError: when the two differ.
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
