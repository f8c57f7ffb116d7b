"""Official ViLBERT checkpoints and configurations: their names, and internal names.

Two releases share most names: jiasenlu/vilbert_beta ("release") and facebookresearch/vilbert-multi-task ("release-mt").
Their task checkpoints differ in the answer heads, `main.*` and `logit_fc.*`.
"""

from collections.abc import Mapping
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
    two_stream_rules,
    with_copies,
    without_copies,
)
from roibeam.model.vilbert.encoder import ViLbertConfig

# In a co-attention 1 is the image and 2 the text. One stream gives the query, the other key and value, so the parts
# here cross: the text attends with query2, key1 and value1, and dense2 brings the result back to the text's width.
_CO_LAYER = (
    ("biattention.query2.", "text_attention.query."),
    ("biattention.key1.", "text_attention.key."),
    ("biattention.value1.", "text_attention.value."),
    ("biOutput.dense2.", "text_attention.output."),
    ("biOutput.LayerNorm2.", "text_attention_norm."),
    ("t_intermediate.dense.", "text_feed_forward.expand."),
    ("t_output.dense.", "text_feed_forward.contract."),
    ("t_output.LayerNorm.", "text_feed_forward_norm."),
    ("biattention.query1.", "image_attention.query."),
    ("biattention.key2.", "image_attention.key."),
    ("biattention.value2.", "image_attention.value."),
    ("biOutput.dense1.", "image_attention.output."),
    ("biOutput.LayerNorm1.", "image_attention_norm."),
    ("v_intermediate.dense.", "image_feed_forward.expand."),
    ("v_output.dense.", "image_feed_forward.contract."),
    ("v_output.LayerNorm.", "image_feed_forward_norm."),
)
_SHARED = (
    *two_stream_rules("vilbert"),
    ("bert.embeddings.task_embeddings.", "vilbert.text_embeddings.tasks."),
    *layer_rules("bert.encoder.layer.{}.", "vilbert.encoder.text_layers.{}."),
    *layer_rules("bert.encoder.v_layer.{}.", "vilbert.encoder.image_layers.{}."),
    ("bert.encoder.v_layer.{}.attention.self.dyLinear_q.", "vilbert.encoder.image_layers.{}.query_gate."),
    ("bert.encoder.v_layer.{}.attention.self.dyLinear_k.", "vilbert.encoder.image_layers.{}.key_gate."),
    *((f"bert.encoder.c_layer.{{}}.{a}", f"vilbert.encoder.co_layers.{{}}.{b}") for a, b in _CO_LAYER),
)
_RELEASE_HEADS = tuple(
    (f"vil_prediction.main.{place}.{official}", f"answer_head.{part}.{internal}")
    for place, part in ((0, "expand"), (3, "decoder"))
    for official, internal in (("weight_g", "scale"), ("weight_v", "direction"), ("bias", "bias"))
)
_MT_HEADS = (
    *(
        (f"{official}.logit_fc.{place}.", f"{internal}.{part}.")
        for official, internal in (
            ("vil_prediction", "answer_head"),
            ("vil_prediction_gqa", "gqa_answer_head"),
            ("vil_binary_prediction", "image_pair_head"),
        )
        for place, part in ((0, "dense"), (2, "norm"), (3, "decoder"))
    ),
    ("vil_tri_prediction.", "entailment_head."),
)
TABLES: Mapping[str, KeyTable] = {
    "release": KeyTable("ViLBERT's first release", (*_SHARED, *_RELEASE_HEADS)),
    "release-mt": KeyTable("ViLBERT's multi-task release", (*_SHARED, *_MT_HEADS)),
}
# Layers in every checkpoint that nothing reads: BertBiOutput makes them and never calls them.
INERT = (".biOutput.q_dense1.", ".biOutput.q_dense2.")


def release_of(official: Mapping[str, Tensor]) -> str:
    """The key of `TABLES` that official names belong to; "release" for pre-training alone, where both are the same."""
    marks = (".logit_fc.", "vil_tri_prediction.", "embeddings.task_embeddings.")
    return "release-mt" if any(mark in name for name in official for mark in marks) else "release"


def state_from_official(official: Mapping[str, Any], *, with_co_attention: bool = True) -> dict[str, Tensor]:
    """State for `load_state_dict` of `ViLbertForPreTraining`, `ViLbertForTasks` or `ViLbertForMultiTask`.

    Which of them: task models hold `pair_score.weight`, those of the multi-task release `entailment_head.weight` too.

    Args:
        official: a checkpoint of either release: a state dict, or one beside other things.
        with_co_attention: of the model's config. A file of a run without co-attention holds its layers untrained.
    Raises:
        ValueError: for an unknown name, or if the file's masked-word decoder differs from its word embedding.
    """
    official = without_copies(names_with_bert(official), WORD_DECODER_COPY)
    table, inert = TABLES[release_of(official)], INERT if with_co_attention else (*INERT, ".c_layer.")
    return {
        table.internal(name): tensor for name, tensor in official.items() if not any(part in name for part in inert)
    }


def state_from_bert(bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The text stream and the masked-word head, for `load_start`: BERT's part in both releases (section 3.1).

    BERT's pooler and next-sentence head have no place in ViLBERT.
    """
    return start_from_bert(TABLES["release"], bert, "bert.pooler.", SENTENCE_PAIRS)


_ROBERTA = (
    ("roberta.", "bert."),
    ("lm_head.dense.", "cls.predictions.transform.dense."),
    ("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm."),
    ("lm_head.decoder.", "cls.predictions.decoder."),
    ("lm_head.bias", "cls.predictions.bias"),
)


def state_from_roberta(roberta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same from RoBERTa's masked-word model, for a config with `first_position` 2 and `num_segments` 1.

    The multi-task release has the settings for it, but looks for BERT's names in the file and so loads nothing.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in roberta.items():
        old, new = next(((old, new) for old, new in _ROBERTA if name.startswith(old)), ("", ""))
        renamed[new + name.removeprefix(old)] = tensor
    return state_from_bert(renamed)


def state_to_official(state: Mapping[str, Tensor], release: str) -> dict[str, Tensor]:
    """Official names of this release, with the tied decoder, without the `INERT` ones, as their code allows."""
    return with_copies({TABLES[release].official(name): tensor for name, tensor in state.items()}, WORD_DECODER_COPY)


_FIELDS = {
    **TWO_STREAM_OPTIONS,
    "v_hidden_size": "image_hidden_size",
    "bi_hidden_size": "co_attention_size",
    "bi_num_attention_heads": "co_attention_num_heads",
    "t_biattention_id": "text_co_attention",
    "v_biattention_id": "image_co_attention",
    "num_negative": "num_negatives",
    "with_coattention": "with_co_attention",
    "dynamic_attention": "dynamic_attention",
    "fixed_t_layer": "fixed_text_layers",
    "fixed_v_layer": "fixed_image_layers",
}
# Values of the releases' config class for sizes that a file leaves out, where the default here differs.
_OFFICIAL_DEFAULTS: Mapping[str, Any] = {
    "v_hidden_size": 768,
    "v_num_hidden_layers": 3,
    "v_num_attention_heads": 12,
    "v_intermediate_size": 3072,
    "bi_num_attention_heads": 16,
    "v_biattention_id": [0, 1],
    "t_biattention_id": [10, 11],
}
# Options that nothing reads there, or without effect on the result: `fusion_method` counts, not `pooling_method`;
# fast mode is `ViLbertModel.fuse` here and `in_batch_pairs` `fuse_all_pairs`; maps are an argument of the call.
_WITHOUT_EFFECT = frozenset(
    (
        "layer_norm_eps",  # 1e-12 is written into the code
        *("bi_attention_type", "bi_intermediate_size", "fast_mode", "finetuning_task", "in_batch_pairs", "intra_gate"),
        *("objective", "output_attentions", "output_hidden_states", "pooling_method", "torchscript", "visualization"),
        "v_initializer_range",
    )
)
_VISUAL_TARGETS = {0: "kl", 1: "regression", 2: "contrastive"}
_TEXT_MODELS = ("bert", "roberta")  # the same computation with other sizes: RoBERTa's positions are dropped there


def _visual_target(value: int) -> dict[str, Any]:
    if value not in _VISUAL_TARGETS:
        raise ValueError(f"ViLBERT option visual_target is {value!r}; it must be 0 (KL), 1 (MSE) or 2 (NCE)")
    return {"region_loss": _VISUAL_TARGETS[value]}


def _check_text_model(name: str) -> dict[str, Any]:
    if name not in _TEXT_MODELS:
        raise ValueError(f"ViLBERT option model is {name!r}; it must be {' or '.join(_TEXT_MODELS)}")
    return {}


_READERS: Readers = {
    **TWO_STREAM_READERS,
    "visual_target": _visual_target,
    "task_specific_tokens": lambda value: {"num_task_tokens": 20 if value else 0},
    "model": _check_text_model,
}


def config_from_official(options: Mapping[str, Any], **overrides: Any) -> ViLbertConfig:
    """Our configuration for an official JSON one (vilbert_beta and vilbert-multi-task config/*.json), with `overrides`.
    Raises ValueError for an option that is unknown or requests a computation that these classes lack."""
    fields = read_options("ViLBERT", {**_OFFICIAL_DEFAULTS, **options}, _FIELDS, _READERS, _WITHOUT_EFFECT)
    return ViLbertConfig(**(fields | overrides))
