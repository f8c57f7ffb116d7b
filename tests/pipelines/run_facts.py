"""What a run of a recipe builds, without data; and what a built model holds, read from its parts: not from the
configuration that made it."""

import dataclasses
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.model.common.transformer import Attention
from roibeam.pipelines.data.record_regions import ImageObjects
from roibeam.pipelines.data.vocabulary import StoreClasses
from roibeam.pipelines.pretraining.end_to_end_encoder import EndToEnd
from roibeam.pipelines.pretraining.pretrain_run import run_model
from roibeam.pipelines.pretraining.recipes.published import RECIPES
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedEncoder, RequestedModel, RequestedTraining
from roibeam.pipelines.pretraining.requested_run import requested_parts
from roibeam.pipelines.pretraining.run_setup import RunModel, RunSettings
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

Read = Callable[[Any], Any]
CLASSES, BATCH = 1600, 8


@cache
def tokenizer() -> CaptionTokenizer:
    return load_tokenizer("captions", ["a dog and a cat"])


def requested(name: str, *, toy: bool, end_to_end: bool, settings: tuple[str, ...] = ()) -> PretrainRequest:
    """As the command line makes it. New weights: a BERT of the recipe's has the recipe's sizes, see below."""
    encoder = RequestedEncoder(weights=None if toy else "random:1") if end_to_end else RequestedEncoder()
    return PretrainRequest(
        out=Path("nowhere"), model=RequestedModel(recipe=name, toy=toy, from_bert="none"),
        training=RequestedTraining(batch_size=BATCH, device="cpu", set=settings), encoder=encoder,
        end_to_end=end_to_end,
    )  # fmt: skip


@cache
def _objects() -> ImageObjects:
    """Classes of VCR's objects, of no image."""
    with TemporaryDirectory() as folder:
        return ImageObjects([folder], ())


@cache
def _pickled(name: str, *, toy: bool) -> bytes:
    return pickle.dumps(built(name, toy=toy, end_to_end=RECIPES[name].end_to_end)[1].model)


def built_model(name: str, *, toy: bool) -> nn.Module:
    """The model of a run of the recipe on the meta device, a new one each time: pickle makes it in a tenth of the time
    of a constructor."""
    model: nn.Module = pickle.loads(_pickled(name, toy=toy))
    return model


def built(
    name: str, *, toy: bool, end_to_end: bool, settings: tuple[str, ...] = (), device: str = "meta"
) -> tuple[RunSettings, RunModel, EndToEnd | None]:
    """What a run of the recipe has; on the meta device weights are neither drawn nor read."""
    run, choice, encoder = requested_parts(requested(name, toy=toy, end_to_end=end_to_end, settings=settings))
    recipe, width = RECIPES[name], 2048
    with torch.device(device):
        if encoder is not None:
            width = encoder.config.feature_dim
            encoder = dataclasses.replace(encoder, start=RegionEncoder(encoder.config, encoder.conventions))
        made = run_model(
            choice, run.sampling, tokenizer(), width=width, known=StoreClasses(CLASSES),
            reads_texts=recipe.text_corpus,
            objects=_objects() if getattr(run.sampling, "told_classes", False) else None, end_to_end=encoder,
        )  # fmt: skip
    return run, made, encoder


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
    """0 without such a parameter."""
    return lambda model: next((len(each) for name, each in model.state_dict().items() if name.endswith(ending)), 0)


def _attention(name: str) -> Read:
    """A value that all attentions have."""

    def read(model: Any) -> Any:
        (value,) = {getattr(each, name) for each in model.modules() if isinstance(each, Attention)}
        return value

    return read


def _kind(part: str, **names: str) -> Read:
    """What the class of a part stands for."""
    return lambda model: names[type(model.get_submodule(part)).__name__]


def _one_attribute(name: str) -> Read:
    """What all modules that keep it have."""

    def read(model: Any) -> Any:
        (value,) = {vars(each)[name] for each in model.modules() if name in vars(each)}
        return value

    return read


def _words(model: Any) -> Any:
    (shape,) = {each.shape for name, each in model.state_dict().items() if name.endswith("embeddings.words.weight")}
    return shape


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
        "num_attention_heads": _attention("num_heads"),
        "attention_dropout": _attention("attention_dropout"),
        "max_position_embeddings": lambda model: model.vlbert.embeddings.positions.num_embeddings,
        "num_segments": lambda model: model.vlbert.embeddings.segments.num_embeddings,
        "hidden_dropout": lambda model: model.vlbert.embeddings.dropout.p,
        "region_dropout": lambda model: model.vlbert.region_projection.dropout.p,
        "coordinate_embedding_size": lambda model: model.vlbert.region_projection.coordinate_embedding_size,
        "box_numbers": lambda model: model.vlbert.region_projection.box_numbers,
        "masked_appearance": _appearance_of_vlbert,
        "masked_region_token": _has("vlbert.masked_region_token."),
        "num_region_tokens": _rows("vlbert.region_token.weight"),
        "visual_norm": _kind(
            "vlbert.embeddings.visual_norm_text", VisualNorm="layer_norm", VisualScale="scale", Identity="none"
        ),
        "visual_norm_text_init": lambda model: model.vlbert.embeddings.visual_norm_text.start,
        "visual_norm_region_init": lambda model: model.vlbert.embeddings.visual_norm_region.start,
        "visual_start": _kind("vlbert.region_projection.linear", UntouchedLinear="release", Linear="normal"),
        "with_text_only": _has("vlbert.text_only_visual."),
        "with_pooler": _has("vlbert.pooler."),
        "with_region_head": _has("masked_region_head."),
        "with_word_head": _has("masked_word_head."),
        "with_relationship_head": _has("relationship_head."),
        "relationship_loss": lambda model: (
            "softmax" if model.relationship_head is None or len(model.relationship_head.weight) > 1 else "sigmoid"
        ),
    },
    "visualbert": {
        **COMMON,
        "num_attention_heads": _attention("num_heads"),
        "with_match_head": _has("match_head."),
        "num_region_classes": _rows("classed.classes.weight"),
        "early_fusion": lambda model: model.visualbert.late_layer is None,
    },
    "imagebert": {
        **COMMON,
        "num_attention_heads": _attention("num_heads"),
        "masked_appearance": lambda model: model.get_submodule("imagebert.embeddings").masked_appearance,
        "with_region_feature_head": _has("region_feature_head."),
        "with_region_class_head": _has("region_class_head."),
        "with_match_head": _has("match_head."),
        "with_word_head": _has("masked_word_head."),
        "global_feature_size": lambda model: getattr(model.imagebert.embeddings.global_feature, "in_features", 0),
        "dummy_position": lambda model: model.imagebert.embeddings.dummy_position,
        "final_separator": lambda model: model.imagebert.embeddings.final_separator,
    },
    "vilbert": {
        **COMMON,
        "masked_appearance": _one_attribute("masked_appearance"),
        "with_match_head": _has("match_head."),
        "whole_image_count": _one_attribute("whole_image_count"),
        "fusion": _one_attribute("fusion"),
    },
    "vilbert-single-stream": {**COMMON, "masked_appearance": _one_attribute("masked_appearance")},
    "interbert": {
        **COMMON,
        "masked_appearance": _one_attribute("masked_appearance"),
        "fusion": _one_attribute("fusion"),
        "pair_from": _kind("interbert.pooler", TwoStreamPooler="pooled", StatePairPooler="states"),
        "region_projection": _kind("interbert.region_embeddings.features", FeatureMlp="mlp", Linear="linear"),
        "with_region_segment": _has("interbert.region_embeddings.segment."),
        "with_region_positions": _has("interbert.region_embeddings.positions."),
        "with_image_sep": _has("interbert.region_embeddings.sep."),
    },
}


def held(system: str, model: Any) -> dict[str, Any]:
    """The fields that can be read from parts, as the parts have them."""
    return {name: read(model) for name, read in HELD[system].items()}
