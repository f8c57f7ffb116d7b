"""Names of VL-BERT's parameters in the official checkpoints (jackroos/VL-BERT) and here."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from model.key_table import BERT_LAYER, KeyTable

TABLE = KeyTable(
    "VL-BERT",
    (
        ("image_feature_extractor.obj_downsample.1.", "vlbert.region_projection.linear."),
        ("object_linguistic_embeddings.", "vlbert.region_token."),
        ("object_mask_visual_embedding.", "vlbert.masked_region_feature."),
        ("object_mask_word_embedding.", "vlbert.masked_region_token."),
        ("vlbert.word_embeddings.", "vlbert.embeddings.words."),
        ("vlbert.end_embedding.", "vlbert.embeddings.end."),
        ("vlbert.position_embeddings.", "vlbert.embeddings.positions."),
        ("vlbert.token_type_embeddings.", "vlbert.embeddings.segments."),
        ("vlbert.visual_ln_text.", "vlbert.embeddings.visual_norm_text."),
        ("vlbert.visual_ln_object.", "vlbert.embeddings.visual_norm_region."),
        ("vlbert.embedding_LayerNorm.", "vlbert.embeddings.norm."),
        *((f"vlbert.encoder.layer.{{}}.{a}", f"vlbert.encoder.layers.{{}}.{b}") for a, b in BERT_LAYER),
        ("vlbert.pooler.", "vlbert.pooler."),
        ("vlbert.relationsip_head.caption_image_relationship.", "relationship_head."),
        ("vlbert.mlm_head.predictions.bias", "masked_word_head.bias"),
        ("vlbert.mlm_head.predictions.transform.dense.", "masked_word_head.dense."),
        ("vlbert.mlm_head.predictions.transform.LayerNorm.", "masked_word_head.norm."),
        ("vlbert.mvrc_head.transform.dense.", "masked_region_head.dense."),
        ("vlbert.mvrc_head.region_cls_pred.", "masked_region_head.decoder."),
    ),
)
# The image network of an end-to-end checkpoint. It is no part of `model`; who builds it reads these names.
_ENCODER = ("image_feature_extractor.backbone.", "image_feature_extractor.roi_head_feature_extractor.")
_ENCODER_AGAIN = ("image_feature_extractor.head.0.", "image_feature_extractor.roi_head_feature_extractor.")
_TIED_DECODER = "vlbert.mlm_head.predictions.decoder.weight"  # the word embedding a second time


def name_from_official(name: str) -> str:
    """The name here of an official pre-training parameter.

    Raises:
        ValueError: for a name that no rule covers.
    """
    try:
        return TABLE.ours(name)
    except ValueError as error:
        raise ValueError(
            f"{error} in a pre-training checkpoint; split_official takes the image network out of an end-to-end one"
        ) from None


def state_from_official(official: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State for `VLBertForPreTraining.load_state_dict` from official parameters without their "module." prefix.

    Raises:
        ValueError: for an unknown name, or when the file's masked-word decoder differs from its word embedding.
    """
    decoder = official.get(_TIED_DECODER)
    if decoder is not None and not decoder.equal(official["vlbert.word_embeddings.weight"]):
        raise ValueError(f"{_TIED_DECODER} differs from vlbert.word_embeddings.weight; here the two are one tensor")
    return {name_from_official(name): tensor for name, tensor in official.items() if name != _TIED_DECODER}


def state_to_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official names for our parameters, with the tied decoder, without a "module." prefix.

    Raises:
        ValueError: for a parameter that VL-BERT does not have.
    """
    official = {TABLE.official(name): tensor for name, tensor in state.items()}
    if "vlbert.mlm_head.predictions.bias" in official:
        official[_TIED_DECODER] = official["vlbert.word_embeddings.weight"]
    return official


def split_official(official: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """An end-to-end checkpoint's parameters: those of VL-BERT, for `state_from_official`, and of the region encoder.

    Args:
        official: without the "module." prefix.
    Returns:
        Two dicts with official names; the second is empty for a checkpoint on stored features. The release saves the
        encoder's last stage twice, as `roi_head_feature_extractor` and as `head.0`; here it is once, under the first.

    Raises:
        ValueError: when the two differ.
    """
    encoder = {name: tensor for name, tensor in official.items() if name.startswith(_ENCODER)}
    again, first = _ENCODER_AGAIN
    copies = {name: first + name.removeprefix(again) for name in official if name.startswith(again)}
    for name, original in copies.items():
        if original not in official or not official[name].equal(official[original]):
            raise ValueError(f"{name} differs from {original}; in an official checkpoint the two are one tensor")
    model = {name: tensor for name, tensor in official.items() if name not in encoder and name not in copies}
    return model, encoder
