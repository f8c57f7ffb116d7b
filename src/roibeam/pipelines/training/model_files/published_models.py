"""Official checkpoints of the five systems: their system, and conversion to and from roibeam's parameters.

ImageBERT was never published. Without an official configuration, sizes are read off the shapes; attention heads have no
shape, so their published widths are taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from roibeam.messages import plural
from roibeam.model.common.bert import BertSizes
from roibeam.model.interbert import checkpoint as interbert_checkpoint
from roibeam.model.interbert.model import InterBertConfig, InterBertForPreTraining, InterBertForTasks, interbert_config
from roibeam.model.vilbert import checkpoint as vilbert_checkpoint
from roibeam.model.vilbert.encoder import ViLbertConfig, vilbert_config
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks
from roibeam.model.visualbert import checkpoint as visualbert_checkpoint
from roibeam.model.visualbert.model import (
    VisualBertConfig,
    VisualBertForGrounding,
    VisualBertForLabels,
    VisualBertForPreTraining,
)
from roibeam.model.vlbert import checkpoint as vlbert_checkpoint
from roibeam.model.vlbert.config import VLBertConfig, vlbert_config, vlbert_task_config
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa

State = Mapping[str, Tensor]
HEAD_WIDTH = 64  # of BERT, base and large
# Size of every released VL-BERT; a file without a learned feature of masked regions only gives the sum of both.
COORDINATE_EMBEDDING_SIZE = 2048
_RELEASE_FEATURE_SIZE = 2048  # the official code takes no other


class Understood(NamedTuple):
    """Model made from an official checkpoint."""

    model_class: type[PreTrainedModel]
    config: BertSizes
    state: dict[str, Tensor]  # by roibeam's names
    changes: tuple[str, ...]  # left-out parts and assumptions, for people


class Renamed(NamedTuple):
    """An official checkpoint by roibeam's names."""

    state: dict[str, Tensor]
    left_out: tuple[str, ...] = ()  # for people


@dataclass(frozen=True)
class PublishedModel:
    """A system with official checkpoints.

    Attributes:
        recognises: whether official names are this system's.
        understand: official parameters, and options of an official configuration or None, to roibeam's.
        rename: official parameters of a model with this roibeam configuration.
        to_official: roibeam's state to official names.
        check_sizes: remarks on a model's sizes, for people; ValueError if its official file, read without options,
            would get other sizes.
    """

    name: str
    recognises: Callable[[Iterable[str]], bool]
    config_class: type[BertSizes]
    understand: Callable[[State, Mapping[str, Any] | None], Understood]
    rename: Callable[[State, Any], Renamed]
    to_official: Callable[[PreTrainedModel], dict[str, Tensor]]
    check_sizes: Callable[[PreTrainedModel], tuple[str, ...]] = lambda _model: ()


def system_of(official: State) -> PublishedModel:
    """The system that official names belong to."""
    for system in SYSTEMS:
        if system.recognises(official):
            return system
    some = ", ".join(sorted(official)[:3]) or "none"
    raise ValueError(
        f"its parameters ({some}, ...) are of no published model; known are "
        f"{', '.join(system.name for system in SYSTEMS)}"
    )


def writer_of(model: PreTrainedModel) -> PublishedModel:
    """The system whose official names a roibeam model can take."""
    for system, classes in _CLASSES:
        if isinstance(model, classes):
            return system
    raise ValueError(f"{type(model).__name__} has no official checkpoints, so there are no official names to write")


def bert_sizes(state: State, embeddings: str, layers: str) -> dict[str, int]:
    """The fields of `BertSizes` that follow from shapes; `embeddings` and `layers` are prefixes of names."""
    vocab_size, hidden = state[f"{embeddings}words.weight"].shape
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": count_layers(state, layers),
        "num_attention_heads": max(hidden // HEAD_WIDTH, 1),
        "intermediate_size": len(state[f"{layers}0.feed_forward.expand.weight"]),
        "max_position_embeddings": len(state[f"{embeddings}positions.weight"]),
        "num_segments": len(state[f"{embeddings}segments.weight"]),
    }


def count_layers(names: Iterable[str], prefix: str) -> int:
    """Layers numbered right after `prefix`."""
    pattern = re.compile(re.escape(prefix) + r"(\d{1,4})\.")
    return len({found[1] for name in names if (found := pattern.match(name))})


# --- VL-BERT ---


def _rename_vlbert(official: State, _config: Any = None) -> Renamed:
    model_part, encoder = vlbert_checkpoint.split_official(official)
    set_aside = (f"{plural(len(encoder), 'parameter')} of its region encoder set aside",) if encoder else ()
    return Renamed(vlbert_checkpoint.state_from_official(model_part), set_aside)


def _understand_vlbert(official: State, options: Mapping[str, Any] | None) -> Understood:
    state, set_aside = _rename_vlbert(official)
    kind = vlbert_checkpoint.kind_of(vlbert_checkpoint.split_official(official)[0])
    sizes: dict[str, Any] = bert_sizes(state, "vlbert.embeddings.", "vlbert.encoder.layers.")
    projected, inputs = state["vlbert.region_projection.linear.weight"].shape
    masked = state.get("vlbert.masked_region_feature.weight")
    features = inputs - COORDINATE_EMBEDDING_SIZE if masked is None else masked.shape[-1]
    if not 0 < features < inputs:
        raise ValueError(
            f"a region's coordinates and feature are {inputs} numbers together; a file like this does not record where "
            f"the feature begins, so {COORDINATE_EMBEDDING_SIZE} of them must be coordinates, as published"
        )
    fields = sizes | {
        "coordinate_embedding_size": inputs - features,
        "region_feature_size": features,
        "visual_size": 0 if projected == sizes["hidden_size"] else projected,
        "visual_norm": "scale" if "vlbert.embeddings.visual_norm_text.scale" in state else "layer_norm",
        "with_pooler": "vlbert.pooler.dense.weight" in state,
    }
    if kind != "pretrain":
        task, _, head = kind.partition("-")
        model_class = _VLBERT_TASKS[task]
        fields |= {"answer_head": head} if head else {}
        if "answer_head.decoder.weight" in state:
            fields["num_answers"] = len(state["answer_head.decoder.weight"])
        if task == "vcr":
            with_objects = "object_head.decoder.weight" in state
            fields["object_loss"] = "all" if with_objects else "none"
            fields |= {"num_object_labels": len(state["object_head.decoder.weight"])} if with_objects else {}
        config = vlbert_task_config(task, **fields) if options is None else _vlbert_config(options, task, fields)
        return Understood(model_class, config, state, set_aside)
    fields |= {
        "masked_appearance": "learned" if "vlbert.masked_region_feature.weight" in state else "pixels",
        "with_text_only": "vlbert.text_only_visual.weight" in state,
        "with_word_head": "masked_word_head.bias" in state,
        "with_region_head": "masked_region_head.decoder.weight" in state,
        "with_relationship_head": "relationship_head.weight" in state,
    }
    if fields["with_region_head"]:
        fields["num_region_labels"] = len(state["masked_region_head.decoder.weight"])
    config = vlbert_config(**fields)
    if options is not None:
        config = _vlbert_config(options, "pretrain-multitask" if fields["with_text_only"] else "pretrain", fields)
    return Understood(VLBertForPreTraining, config, state, set_aside)


def _vlbert_config(options: Mapping[str, Any], kind: str, by_shape: Mapping[str, Any]) -> BertSizes:
    """Config by the part NETWORK of an official yaml file, as JSON; sizes from shapes stay, except attention heads."""
    network = options.get("NETWORK", options)
    vlbert = network.get("VLBERT") if isinstance(network, Mapping) else None
    if not isinstance(vlbert, Mapping):
        raise ValueError("the configuration has no VLBERT; give the part NETWORK of the release's yaml file as JSON")
    fields = {name: value for name, value in by_shape.items() if name != "num_attention_heads"}
    return vlbert_checkpoint.config_from_official(network, vlbert, kind, **fields)


_VLBERT_TASKS: Mapping[str, type[PreTrainedModel]] = {
    "vqa": VLBertForVqa,
    "vcr": VLBertForVcr,
    "refcoco": VLBertForReferring,
}


def _vlbert_to_official(model: PreTrainedModel) -> dict[str, Tensor]:
    kind = "pretrain"
    if not isinstance(model, VLBertForPreTraining):
        task = next(name for name, model_class in _VLBERT_TASKS.items() if isinstance(model, model_class))
        kind = task if task == "refcoco" else f"{task}-{model.config.answer_head}"
    return vlbert_checkpoint.state_to_official(model.state_dict(), kind)


def _vlbert_sizes_kept(model: PreTrainedModel) -> tuple[str, ...]:
    coordinates, features = model.config.coordinate_embedding_size, model.config.region_feature_size
    with_feature = "vlbert.masked_region_feature.weight" in model.state_dict()
    if coordinates != COORDINATE_EMBEDDING_SIZE and not with_feature:
        raise ValueError(
            f"{type(model).__name__} has coordinate_embedding_size {coordinates}; without a learned feature of masked "
            f"regions VL-BERT's official layout holds {COORDINATE_EMBEDDING_SIZE} alone; keep our folder (--to roibeam)"
        )
    if (coordinates, features) == (COORDINATE_EMBEDDING_SIZE, _RELEASE_FEATURE_SIZE):
        return ()
    return (
        f"roibeam reads the file, the official code does not: it takes coordinates of {COORDINATE_EMBEDDING_SIZE} and "
        f"features of {_RELEASE_FEATURE_SIZE} numbers, here are {coordinates} and {features}",
    )


# --- ViLBERT ---


def _rename_vilbert(official: State, joined: bool) -> Renamed:
    inert = [name for name in official if any(part in name for part in vilbert_checkpoint.INERT)]
    left_out = (f"{plural(len(inert), 'parameter')} that nothing reads left out (biOutput.q_dense)",) if inert else ()
    return Renamed(vilbert_checkpoint.state_from_official(official, with_co_attention=joined), left_out)


def _understand_vilbert(official: State, options: Mapping[str, Any] | None) -> Understood:
    joined = options is None or bool(options.get("with_coattention", True))
    state, left_out = _rename_vilbert(official, joined)
    model_class: type[PreTrainedModel] = ViLbertForPreTraining
    by_shape: dict[str, Any] = {"with_match_head": "match_head.weight" in state}
    if "entailment_head.weight" in state:
        model_class = ViLbertForMultiTask
        for head, field in (("answer_head", "num_answers"), ("gqa_answer_head", "num_gqa_answers")):
            by_shape[field] = len(state[f"{head}.decoder.weight"]) if f"{head}.decoder.weight" in state else 0
    elif "pair_score.weight" in state:
        model_class = ViLbertForTasks
        by_shape["num_answers"] = len(state["answer_head.decoder.direction"])
    if not by_shape["with_match_head"]:
        by_shape["masked_loss_pairs"] = "all"
    if any(name.endswith("query_gate.weight") for name in state):
        by_shape["dynamic_attention"] = True
    if options is not None:
        config = vilbert_checkpoint.config_from_official(options, **by_shape)
    else:
        config = vilbert_config(vilbert_checkpoint.release_of(official), **(_vilbert_sizes(state) | by_shape))
    return Understood(model_class, config, state, left_out)


def _vilbert_sizes(state: State) -> dict[str, Any]:
    sizes = bert_sizes(state, "vilbert.text_embeddings.", "vilbert.encoder.text_layers.")
    tasks = state.get("vilbert.text_embeddings.tasks.weight")
    image, features = state["vilbert.region_embeddings.features.weight"].shape
    co_attentions = count_layers(state, "vilbert.encoder.co_layers.")
    layers = sizes["num_hidden_layers"]
    return sizes | {
        "num_task_tokens": 0 if tasks is None else len(tasks),
        "region_feature_size": features,
        **_region_head(state, features),
        "image_hidden_size": image,
        "image_num_hidden_layers": count_layers(state, "vilbert.encoder.image_layers."),
        "image_num_attention_heads": 8,
        "image_intermediate_size": len(state["vilbert.encoder.image_layers.0.feed_forward.expand.weight"]),
        "co_attention_size": len(state["vilbert.pooler.text.weight"]),
        "co_attention_num_heads": 8,
        "text_co_attention": tuple(range(layers - co_attentions, layers)),
        "image_co_attention": tuple(range(co_attentions)),
    }


def _vilbert_to_official(model: PreTrainedModel) -> dict[str, Tensor]:
    if not model.config.with_co_attention:
        raise ValueError("a ViLBERT without co-attention: its official file would look like InterBERT's")
    release = "release-mt" if isinstance(model, ViLbertForMultiTask) or model.config.num_task_tokens else "release"
    return vilbert_checkpoint.state_to_official(model.state_dict(), release)


# --- VisualBERT ---


def _understand_visualbert(official: State, options: Mapping[str, Any] | None) -> Understood:
    state = visualbert_checkpoint.state_from_official(official)
    of_ucla = any("token_type_embeddings_visual" in name for name in official)
    model_class: type[PreTrainedModel] = VisualBertForPreTraining
    by_shape: dict[str, Any] = {
        "with_match_head": "match_head.weight" in state,
        "early_fusion": "visualbert.late_layer.attention.query.weight" not in state,
        "first_region_segment": 0 if of_ucla else 1,
    }
    if "label_head.weight" in state:
        model_class, by_shape["num_answers"] = VisualBertForLabels, len(state["label_head.weight"])
    elif "grounding_head.query.weight" in state:
        model_class = VisualBertForGrounding
    if options is not None:
        config = visualbert_checkpoint.config_from_official(options, **by_shape)
    else:
        sizes: dict[str, Any] = bert_sizes(state, "visualbert.embeddings.", "visualbert.encoder.layers.")
        sizes["region_feature_size"] = state["visualbert.embeddings.projection.weight"].shape[1]
        config = VisualBertConfig(**(sizes | by_shape))
    whose = "UCLA's code counts" if of_ucla else "transformers counts"
    return Understood(
        model_class, config, state, (f"regions are segment {by_shape['first_region_segment']}, as {whose}",)
    )


# --- InterBERT ---


def _understand_interbert(official: State, options: Mapping[str, Any] | None) -> Understood:
    changes = []
    if options is not None:
        config = interbert_checkpoint.config_from_official(options)
        state = interbert_checkpoint.state_from_official(official, config.num_hidden_layers)
    else:
        joint = interbert_checkpoint.RELEASE_JOINT_LAYERS
        changes.append(f"the first {joint} layers taken as joint ones, as released")
        state = interbert_checkpoint.state_from_official(official, joint)
        config = interbert_config(**_interbert_sizes(state))
    tasks = "pair_score.weight" in state
    return Understood(InterBertForTasks if tasks else InterBertForPreTraining, config, state, tuple(changes))


def _interbert_sizes(state: State) -> dict[str, Any]:
    sizes: dict[str, Any] = bert_sizes(state, "interbert.text_embeddings.", "interbert.joint.layers.")
    features = state["interbert.region_embeddings.features.weight"].shape[1]
    by_shape = {
        "text_num_hidden_layers": count_layers(state, "interbert.text.layers."),
        "image_num_hidden_layers": count_layers(state, "interbert.image.layers."),
        "region_feature_size": features,
        **_region_head(state, features),
        "pooled_size": len(state["interbert.pooler.text.weight"]),
    }
    if by_shape["image_num_hidden_layers"]:
        by_shape["image_intermediate_size"] = len(state["interbert.image.layers.0.feed_forward.expand.weight"])
    if "answer_head.weight" in state:
        by_shape["num_answers"] = len(state["answer_head.weight"])
    return sizes | by_shape


def _interbert_sizes_kept(model: PreTrainedModel) -> tuple[str, ...]:
    joint = interbert_checkpoint.RELEASE_JOINT_LAYERS
    if model.config.num_hidden_layers != joint:
        raise ValueError(
            f"{type(model).__name__} has {model.config.num_hidden_layers} joint layers (num_hidden_layers); "
            f"InterBERT's official layout does not record how many are joint, {joint} are taken; keep our folder "
            f"(--to roibeam)"
        )
    return ()


def _region_head(state: State, features: int) -> dict[str, Any]:
    """Fields that follow from the head of masked regions; one as wide as a feature is taken to predict features."""
    head = state.get("masked_region_head.decoder.weight")
    if head is None:
        return {"region_loss": "none"}
    return {"region_target_size": len(head), "region_loss": "regression" if len(head) == features else "kl"}


# --- all of them ---

# Fields that follow from no shape.
_ASSUMED = (
    "num_attention_heads",
    "image_num_attention_heads",
    "co_attention_num_heads",
    "text_co_attention",
    "image_co_attention",
)


def assumed(config: BertSizes) -> str:
    """Settings taken as published for a file without its configuration, for people."""
    fields = [f"{name} {getattr(config, name)}" for name in _ASSUMED if hasattr(config, name)]
    return f"taken as published, since a file lacks them: {', '.join(fields)}; --config sets others"


def _has(*marks: str) -> Callable[[Iterable[str]], bool]:
    return lambda names: any(mark in name for name in names for mark in marks)


VLBERT = PublishedModel(
    "VL-BERT",
    _has("object_linguistic_embeddings."),
    VLBertConfig,
    _understand_vlbert,
    _rename_vlbert,
    _vlbert_to_official,
    _vlbert_sizes_kept,
)
VILBERT = PublishedModel(
    "ViLBERT",
    _has(".c_layer."),
    ViLbertConfig,
    _understand_vilbert,
    lambda official, config: _rename_vilbert(official, config.with_co_attention),
    _vilbert_to_official,
)
VISUALBERT = PublishedModel(
    "VisualBERT",
    _has("token_type_embeddings_visual", "visual_token_type_embeddings"),
    VisualBertConfig,
    _understand_visualbert,
    lambda official, _config: Renamed(visualbert_checkpoint.state_from_official(official)),
    lambda model: visualbert_checkpoint.state_to_official(model.state_dict()),
)
INTERBERT = PublishedModel(
    "InterBERT",
    # Names are ViLBERT's but for the co-attentions.
    lambda names: _has("v_embeddings.image_embeddings")(names) and not _has(".c_layer.")(names),
    InterBertConfig,
    _understand_interbert,
    lambda official, config: Renamed(interbert_checkpoint.state_from_official(official, config.num_hidden_layers)),
    lambda model: interbert_checkpoint.state_to_official(model.state_dict()),
    _interbert_sizes_kept,
)
SYSTEMS = (VLBERT, VILBERT, VISUALBERT, INTERBERT)
_CLASSES: tuple[tuple[PublishedModel, tuple[type[PreTrainedModel], ...]], ...] = (
    (VLBERT, (VLBertForPreTraining, VLBertForVqa, VLBertForVcr, VLBertForReferring)),
    (VILBERT, (ViLbertForPreTraining,)),
    (VISUALBERT, (VisualBertForPreTraining, VisualBertForLabels)),
    (INTERBERT, (InterBertForPreTraining,)),
)
