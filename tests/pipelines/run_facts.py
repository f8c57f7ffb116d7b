"""What a built model holds, read from its parts: not from the configuration that made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from roibeam.model.common.heads import DroppedLinear
from roibeam.model.common.transformer import Attention

Read = Callable[[Any], Any]


def parameters(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in model.state_dict().items()}


def attributes(model: nn.Module) -> dict[str, Any]:
    """Plain values that its modules keep, by module and name."""
    plain = (bool, int, float, str, tuple, frozenset, type(None))
    found = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_") and isinstance(value, plain):
                found[f"{name}.{key}"] = value
    return found


def _has(*names: str) -> Read:
    return lambda model: any(each.startswith(name) for each in model.state_dict() for name in names)


def _rows(ending: str) -> Read:
    return lambda model: next(each.shape[0] for name, each in model.state_dict().items() if name.endswith(ending))


def _dropouts(model: Any) -> set[float]:
    plain = {each.p for each in model.modules() if isinstance(each, nn.Dropout)}
    return plain | {each.dropout for each in model.modules() if isinstance(each, DroppedLinear)}


def _attention(part: str, name: str) -> Read:
    """A value that all attentions below a part have."""

    def read(model: Any) -> Any:
        modules = model.get_submodule(part).modules() if part else model.modules()
        (value,) = {getattr(each, name) for each in modules if isinstance(each, Attention)}
        return value

    return read


def _appearance_of_vlbert(model: Any) -> str:
    inner = model.vlbert
    if inner.masked_region_embedding is not None:
        return "embedding"
    return "learned" if inner.masked_region_feature is not None else "pixels"


COMMON: Mapping[str, Read] = {
    "vocab_size": lambda model: _words(model)[0],
    "hidden_size": lambda model: _words(model)[1],
}
# system -> field of the configuration -> how it is read from the parts
HELD: Mapping[str, Mapping[str, Read]] = {
    "vlbert": {
        **COMMON,
        "num_hidden_layers": lambda model: len(model.vlbert.encoder.layers),
        "num_attention_heads": _attention("", "num_heads"),
        "attention_dropout": _attention("", "attention_dropout"),
        "max_position_embeddings": lambda model: model.vlbert.embeddings.positions.num_embeddings,
        "num_segments": lambda model: model.vlbert.embeddings.segments.num_embeddings,
        "hidden_dropout": lambda model: model.vlbert.embeddings.dropout.p,
        "region_dropout": lambda model: model.vlbert.region_projection.dropout.p,
        "coordinate_embedding_size": lambda model: model.vlbert.region_projection.coordinate_embedding_size,
        "box_numbers": lambda model: model.vlbert.region_projection.box_numbers,
        "masked_appearance": _appearance_of_vlbert,
        "masked_region_token": _has("vlbert.masked_region_token."),
        "num_region_tokens": _rows("vlbert.region_token.weight"),
        "visual_norm": lambda model: {"VisualNorm": "layer_norm", "VisualScale": "scale", "Identity": "none"}[
            type(model.vlbert.embeddings.visual_norm_text).__name__
        ],
        "visual_norm_text_init": lambda model: model.vlbert.embeddings.visual_norm_text.start,
        "visual_norm_region_init": lambda model: model.vlbert.embeddings.visual_norm_region.start,
        "visual_start": lambda model: {"UntouchedLinear": "release", "Linear": "normal"}[
            type(model.vlbert.region_projection.linear).__name__
        ],
        "with_text_only": _has("vlbert.text_only_visual."),
        "with_pooler": _has("vlbert.pooler."),
        "with_region_head": _has("masked_region_head."),
        "with_word_head": _has("masked_word_head."),
        "with_relationship_head": _has("relationship_head."),
        "relationship_loss": lambda model: (
            "sigmoid"
            if model.relationship_head is not None and _rows("relationship_head.weight")(model) == 1
            else "softmax"
        ),
    },
    "visualbert": {
        **COMMON,
        "num_attention_heads": _attention("", "num_heads"),
        "with_match_head": _has("match_head."),
        "early_fusion": lambda model: model.visualbert.late_layer is None,
    },
    "imagebert": {
        **COMMON,
        "num_attention_heads": _attention("", "num_heads"),
        "masked_appearance": lambda model: model.get_submodule("imagebert.embeddings").masked_appearance,
        "with_region_feature_head": _has("region_feature_head."),
        "with_region_class_head": _has("region_class_head."),
        "with_match_head": _has("match_head."),
        "with_word_head": _has("masked_word_head."),
        "global_feature_size": lambda model: (
            0
            if model.imagebert.embeddings.global_feature is None
            else model.imagebert.embeddings.global_feature.in_features
        ),
        "dummy_position": lambda model: model.imagebert.embeddings.dummy_position,
        "final_separator": lambda model: model.imagebert.embeddings.final_separator,
    },
    "vilbert": {
        **COMMON,
        "masked_appearance": lambda model: _one_attribute(model, "masked_appearance"),
        "with_match_head": _has("match_head."),
        "whole_image_count": lambda model: _one_attribute(model, "whole_image_count"),
        "fusion": lambda model: _one_attribute(model, "fusion"),
    },
    "vilbert-single-stream": {**COMMON, "masked_appearance": lambda model: _one_attribute(model, "masked_appearance")},
    "interbert": {
        **COMMON,
        "masked_appearance": lambda model: _one_attribute(model, "masked_appearance"),
        "fusion": lambda model: _one_attribute(model, "fusion"),
        "pair_from": lambda model: {"TwoStreamPooler": "pooled", "StatePairPooler": "states"}[
            type(model.interbert.pooler).__name__
        ],
        "region_projection": lambda model: {"FeatureMlp": "mlp", "Linear": "linear"}[
            type(model.interbert.region_embeddings.features).__name__
        ],
        "with_region_segment": _has("interbert.region_embeddings.segment."),
        "with_region_positions": _has("interbert.region_embeddings.positions."),
        "with_image_sep": _has("interbert.region_embeddings.sep."),
    },
}


def _words(model: Any) -> tuple[int, ...]:
    (shape,) = {
        tuple(each.shape) for name, each in model.state_dict().items() if name.endswith("embeddings.words.weight")
    }
    return shape


def _one_attribute(model: Any, name: str) -> Any:
    (value,) = {vars(each)[name] for each in model.modules() if name in vars(each)}
    return value


def held(system: str, model: Any) -> dict[str, Any]:
    """The fields that can be read from parts, as the parts have them."""
    return {name: read(model) for name, read in HELD[system].items()}
