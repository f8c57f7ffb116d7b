"""Official VisualBERT checkpoints and configurations: their names, and internal names.

The hub's `visualbert-*` files have transformers' names; those of UCLA's `.th` files become these first.
"""

from collections.abc import Mapping
from typing import Any

import transformers
from torch import Tensor

from roibeam.model.common.checkpoint import (
    BERT_OPTIONS,
    BERT_WORD_HEAD,
    KeyTable,
    Readers,
    embedding_rules,
    layer_rules,
    read_options,
    tidy_bert,
    tidy_names,
    with_copies,
    without_copies,
)
from roibeam.model.visualbert.model import VisualBertConfig

_EMBEDDINGS = "visual_bert.embeddings."
TABLE = KeyTable(
    "VisualBERT",
    (
        *embedding_rules(_EMBEDDINGS, "visualbert.embeddings."),
        (f"{_EMBEDDINGS}visual_projection.", "visualbert.embeddings.projection."),
        (f"{_EMBEDDINGS}visual_position_embeddings.", "visualbert.embeddings.region_positions."),
        (f"{_EMBEDDINGS}visual_token_type_embeddings.", "visualbert.embeddings.region_segments."),
        *layer_rules("visual_bert.encoder.layer.{}.", "visualbert.encoder.layers.{}."),
        *layer_rules("visual_bert.additional_layer.", "visualbert.late_layer."),
        ("visual_bert.pooler.dense.", "visualbert.pooler.dense."),
        *BERT_WORD_HEAD,
        ("cls.seq_relationship.", "match_head."),
        ("cls.weight", "label_head.weight"),
        ("cls.bias", "label_head.bias"),
        ("attention.query.", "grounding_head.query."),
        ("attention.key.", "grounding_head.key."),
    ),
)
# Prefix in UCLA's files for VCR: the ResNet-50 that makes their region features, which is no part of VisualBERT.
DETECTOR = "detector."
# Tensors that nothing reads: the grounding head's value layer, and the buffer of position numbers in older files.
INERT = ("attention.value.weight", "attention.value.bias", f"{_EMBEDDINGS}position_ids")
_WORDS = f"{_EMBEDDINGS}word_embeddings.weight"
# Tensors that the files hold twice, and the first of each pair.
_COPIES = {"cls.predictions.decoder.weight": _WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"}
_UCLA_PREFIXES = (
    ("bert.bert.", "visual_bert."),
    ("bert.cls.", "cls."),
    ("bert.classifier.", "cls."),
    ("bert.flickr_attention.", "attention."),
)
_UCLA_PARTS = (
    (".token_type_embeddings_visual.", ".visual_token_type_embeddings."),
    (".position_embeddings_visual.", ".visual_position_embeddings."),
    ("embeddings.projection.", "embeddings.visual_projection."),
)


def _official_names(official: Mapping[str, Any]) -> dict[str, Tensor]:
    """Parameters under the names of the table: `tidy_names`, UCLA's names replaced and its detector left out."""
    names: dict[str, Tensor] = {}
    for old_name, tensor in tidy_names(official).items():
        name = old_name
        if name.startswith(DETECTOR):
            continue
        for old, replacement in _UCLA_PREFIXES:
            if name.startswith(old):
                name = replacement + name.removeprefix(old)
                for part, other in _UCLA_PARTS:
                    name = name.replace(part, other)
                break
        if name in names:
            raise ValueError(f"the checkpoint has two parameters {name!r}, one of them as {old_name!r}")
        names[name] = tensor
    return names


def state_from_official(official: Mapping[str, Any]) -> dict[str, Tensor]:
    """State for `load_state_dict` of the class that has such heads, from a UCLA or a hub checkpoint.

    The `.th` files that UCLA published for VCR hold a `DETECTOR` too; it is left out. Raises ValueError for an unknown
    name, a file of the bare encoder, or when a tensor that is one here differs from its copy in the file."""
    if "embeddings.word_embeddings.weight" in official:
        raise ValueError(
            "these are parameters of transformers' VisualBertModel alone, which has no heads; save "
            "VisualBertForPreTraining, or another class with heads"
        )
    official = without_copies(_official_names(official), _COPIES)
    return {TABLE.internal(name): tensor for name, tensor in official.items() if name not in INERT}


def state_from_bert(bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All parameters of BERT, for `load_start`: the encoder, both heads, and its tables a second time for regions.

    With `copy_text_tables` off, leave `visualbert.embeddings.region_positions.weight` and `region_segments.weight` out.
    """
    renamed = {f"visual_{name}" if name.startswith("bert.") else name: t for name, t in tidy_bert(bert).items()}
    state = {TABLE.internal(name): tensor for name, tensor in renamed.items()}
    for table in ("positions", "segments"):
        state[f"visualbert.embeddings.region_{table}.weight"] = state[f"visualbert.embeddings.{table}.weight"]
    return state


def state_to_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """transformers' names for our parameters, with the tied decoder; `INERT` ones are missing."""
    return with_copies({TABLE.official(name): tensor for name, tensor in state.items()}, _COPIES)


_FIELDS = {
    **BERT_OPTIONS,
    "visual_embedding_dim": "region_feature_size",
    "pad_token_id": "padding_piece",
    "special_visual_initialize": "copy_text_tables",
    "num_labels": "num_answers",
}
# Other fields of a transformers config.json (labels, special pieces, return values), without effect on the result.
_WITHOUT_EFFECT = frozenset(transformers.VisualBertConfig().to_dict()) | {"torch_dtype", "gradient_checkpointing"}


def config_from_official(options: Mapping[str, Any], **overrides: Any) -> VisualBertConfig:
    """Our configuration for a `config.json` of transformers' VisualBERT, which implies region segment 1, with
    `overrides`. Raises ValueError for an option that is unknown or requests a computation that this class lacks."""
    readers: Readers = {"bypass_transformer": lambda late: {"early_fusion": not late}, "layer_norm_eps": _check_epsilon}
    fields = read_options("VisualBERT", options, _FIELDS, readers, _WITHOUT_EFFECT)
    return VisualBertConfig(**({"first_region_segment": 1, "padding_piece": 1} | fields | overrides))


def _check_epsilon(value: float) -> dict[str, Any]:
    if value != 1e-12:
        raise ValueError(f"VisualBERT option layer_norm_eps {value!r} is not computed here, only 1e-12 is")
    return {}
