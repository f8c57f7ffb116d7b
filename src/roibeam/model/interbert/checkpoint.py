"""Official InterBERT checkpoints and configurations (black4321/InterBERT): their names, and internal names.

The release numbers the joint layers and those of the text through, as one list, so that one BERT fills both. The number
of joint ones is in no file: the caller gives it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from roibeam.model.common.checkpoint import (
    SENTENCE_PAIRS,
    TWO_STREAM_OPTIONS,
    TWO_STREAM_READERS,
    WORD_DECODER_COPY,
    KeyTable,
    Readers,
    layer_rules,
    names_with_bert,
    read_options,
    start_from_bert,
    tidy_bert,
    two_stream_rules,
    with_copies,
    without_copies,
)
from roibeam.model.interbert.model import InterBertConfig

RELEASE_JOINT_LAYERS = 6  # config/bert_base_6layer_interbert.json
_RULES = (
    *two_stream_rules("interbert"),
    *layer_rules("bert.encoder.v_layer.{}.", "interbert.image.layers.{}."),
    ("vil_prediction.", "answer_head."),
)


def key_table(num_joint_layers: int, num_text_layers: int) -> KeyTable:
    """Official layer k is joint layer k, or layer k - `num_joint_layers` of the text."""
    layers = [f"joint.layers.{k}" for k in range(num_joint_layers)]
    layers += [f"text.layers.{k}" for k in range(num_text_layers)]
    rules = [*_RULES]
    for number, layer in enumerate(layers):
        rules += layer_rules(f"bert.encoder.layer.{number}.", f"interbert.{layer}.")
    return KeyTable("InterBERT's release", rules)


def state_from_official(
    official: Mapping[str, Tensor], num_joint_layers: int = RELEASE_JOINT_LAYERS
) -> dict[str, Tensor]:
    """State for `load_state_dict` of `InterBertForPreTraining` or, with `pair_score.weight`, `InterBertForTasks`.

    No parameter of an official checkpoint is left out but the second copy of the word embedding.

    Args:
        official: the state dict of a checkpoint, also of the streams alone.
        num_joint_layers: `num_hidden_layers` of its configuration.
    Raises:
        ValueError: for an unknown name, for fewer layers than are joint, or if the file's masked-word decoder
            differs from its word embedding.
    """
    official = without_copies(names_with_bert(official), WORD_DECODER_COPY)
    count = _count(official, "bert.encoder.layer.")
    if count < num_joint_layers:
        raise ValueError(f"the checkpoint has {count} layers of BERT, but {num_joint_layers} should be joint")
    table = key_table(num_joint_layers, count - num_joint_layers)
    return {table.internal(name): tensor for name, tensor in official.items()}


def state_from_bert(bert: Mapping[str, Tensor], num_joint_layers: int = RELEASE_JOINT_LAYERS) -> dict[str, Tensor]:
    """Text embeddings, joint layers, layers of the text and the masked-word head, for `load_start`.

    With the release's 6 joint layers BERT-base fills these and the 6 of the text; with the paper's 12 (appendix 6.2)
    it fills the joint ones alone, and those of the text stay as drawn. BERT's pooler and next-sentence head have no
    place in InterBERT.

    Args:
        num_joint_layers: `num_hidden_layers` of the model.
    """
    count = _count(tidy_bert(bert), "bert.encoder.layer.")
    table = key_table(num_joint_layers, max(count - num_joint_layers, 0))
    return start_from_bert(table, bert, "bert.pooler.", SENTENCE_PAIRS)


def state_to_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Official names for the parameters of a whole model, with the tied decoder. Raises ValueError for a parameter that
    the release does not have, such as the paper's segment of regions."""
    table = key_table(_count(state, "interbert.joint.layers."), _count(state, "interbert.text.layers."))
    return with_copies({table.official(name): tensor for name, tensor in state.items()}, WORD_DECODER_COPY)


def _count(names: Iterable[str], prefix: str) -> int:
    """Number of layers numbered right after `prefix`, by the largest number."""
    pattern = re.compile(re.escape(prefix) + r"(\d{1,4})\.")
    return max((int(found[1]) + 1 for name in names if (found := pattern.match(name))), default=0)


_FIELDS = {**TWO_STREAM_OPTIONS, "t_num_hidden_layers": "text_num_hidden_layers", "bi_hidden_size": "pooled_size"}
# Values of the release's config class for options that a file leaves out, where the default here differs.
_OFFICIAL_DEFAULTS: Mapping[str, Any] = {
    "num_hidden_layers": 12,
    "v_num_hidden_layers": 3,
    "v_num_attention_heads": 12,
    "v_hidden_dropout_prob": 0.1,
}
# Options that nothing reads there, or of a ViLBERT that the code derives from: `fusion_method` counts, not
# `pooling_method`; `max_*_length` cut the input.
_WITHOUT_EFFECT = frozenset(
    {
        "bi_num_attention_heads",
        "conv_layer",
        "fast_mode",
        "fixed_t_layer",
        "fixed_v_layer",
        "in_batch_pairs",
        "intra_gate",
        "max_region_length",
        "max_seq_length",
        "pooling_method",
        "t_biattention_id",
        "v_biattention_id",
        "v_initializer_range",
        "with_coattention",
    }
)


def config_from_official(options: Mapping[str, Any], **overrides: Any) -> InterBertConfig:
    """Our configuration for an official JSON one (config/bert_base_6layer_interbert.json), with `overrides`. Raises
    ValueError for an option that is unknown, missing, or requests a computation that these classes lack."""
    if "t_num_hidden_layers" not in options:
        raise ValueError("InterBERT's configuration lacks t_num_hidden_layers, which has no default in the release")

    def check_width(width: int) -> dict[str, Any]:
        hidden = options.get("hidden_size", 768)
        if width != hidden:
            raise ValueError(
                f"InterBERT option v_hidden_size is {width!r}, hidden_size {hidden!r}; joint layers need one width"
            )
        return {}

    readers: Readers = {**TWO_STREAM_READERS, "v_hidden_size": check_width}
    fields = read_options("InterBERT", {**_OFFICIAL_DEFAULTS, **options}, _FIELDS, readers, _WITHOUT_EFFECT)
    return InterBertConfig(**(fields | overrides))
