"""Models that start from other weights: from a published BERT, or from a model with other fields in its configuration.

A BERT gives its sizes, and fills a part of a model. A changed model keeps the weights that still fit.
"""

from __future__ import annotations

import logging
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from roibeam.extraction.weights.files import read_tensors
from roibeam.extraction.weights.sources import fetch_from_hub
from roibeam.messages import plural, short_repr
from roibeam.model.common.bert import BertSizes
from roibeam.model.common.checkpoint import BERT_OPTIONS, load_start
from roibeam.model.imagebert import model as imagebert_checkpoint
from roibeam.model.imagebert.model import ImageBertForPreTraining
from roibeam.model.interbert import checkpoint as interbert_checkpoint
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.vilbert import checkpoint as vilbert_checkpoint
from roibeam.model.vilbert import single_stream as vilbert_single_stream
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.visualbert import checkpoint as visualbert_checkpoint
from roibeam.model.visualbert.model import VisualBertForPreTraining
from roibeam.model.vlbert import checkpoint as vlbert_start
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.training.model_files.model_folder import BERT_WEIGHTS, CONFIG, MAX_CONFIG_BYTES, bert_files
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

# Fields of BERT's config.json. Left out: segments (models have more of them than BERT), rates, which are of a
# training, and the spread of new weights.
_OPTIONS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
)
# Parameters whose shape gives a size: the end of a name, the option and the side.
_SHAPES = MappingProxyType(
    {
        "embeddings.word_embeddings.weight": ("vocab_size", 0),
        "embeddings.position_embeddings.weight": ("max_position_embeddings", 0),
        "encoder.layer.0.attention.self.query.weight": ("hidden_size", 0),
        "encoder.layer.0.intermediate.dense.weight": ("intermediate_size", 0),
    }
)


@dataclass(frozen=True, eq=False)
class PublishedBert:
    """A BERT as it was read: its name, which names a tokenizer too, fields of `BertSizes`, parameters by the file's
    names."""

    spec: str
    sizes: Mapping[str, Any]
    state: Mapping[str, Tensor]

    __repr__ = short_repr


def read_bert(spec: str) -> PublishedBert:
    """A BERT of the hub (hf:<repository>), or of a folder with config.json and model.safetensors or
    pytorch_model.bin."""
    if spec.startswith("hf:"):
        config, weights = fetch_from_hub(spec, (CONFIG,)), fetch_from_hub(spec, BERT_WEIGHTS)
    else:
        config, weights = bert_files(spec)
    options = read_json_object(config, max_bytes=MAX_CONFIG_BYTES)
    missing = [name for name in _OPTIONS if name not in options]
    if missing:
        raise ValueError(f"{config}: no BERT configuration, {', '.join(missing)} missing")
    state = {name: value for name, value in read_tensors(weights).items() if isinstance(value, Tensor)}
    _check_sizes(options, state, config)
    return PublishedBert(spec, {BERT_OPTIONS[name]: options[name] for name in _OPTIONS}, state)


def _check_sizes(options: Mapping[str, Any], state: Mapping[str, Tensor], config: Path) -> None:
    """Raises ValueError if the sizes that a model is made with are not those of the parameters."""
    layers = {match[1] for name in state if (match := re.search(r"\bencoder\.layer\.(\d+)\.", name))}
    there = {"num_hidden_layers": len(layers)}
    for ending, (field, side) in _SHAPES.items():
        shape = next((tuple(value.shape) for name, value in state.items() if name.endswith(ending)), ())
        there[field] = shape[side] if len(shape) == 2 else 0
    for name, size in there.items():
        if options[name] != size:
            raise ValueError(f"{config}: {name} is {reprlib.repr(options[name])}, the parameters have {size:,}")


def check_words_of_bert(bert: PublishedBert, tokenizer: CaptionTokenizer) -> None:
    """Checks that the word embeddings are of these pieces."""
    named = f"the tokenizer ({tokenizer.description})"
    try:
        own = load_tokenizer(bert.spec)
    except ValueError:
        rows = bert.sizes["vocab_size"]
        if tokenizer.vocab_size == rows:
            return
        raise ValueError(
            f"{named} has {tokenizer.vocab_size:,} pieces, BERT {bert.spec} has embeddings of {rows:,} and no "
            f"vocabulary that can be read beside it; give its vocab.txt with --tokenizer"
        ) from None
    others = own.vocabulary.items() ^ tokenizer.vocabulary.items()
    if others:
        number = min(number for _, number in others)
        raise ValueError(
            f"{named} is not that of BERT {bert.spec}, whose word embeddings would be of other words: number {number} "
            f"is {tokenizer.piece(number)!r} here and {own.piece(number)!r} there; leave --tokenizer out, and BERT's "
            f"own is taken"
        )


def start_from_bert(model: nn.Module, bert: PublishedBert) -> list[str]:
    """Fills the parts of a model that it takes from BERT; returns the names of the parameters that stay as drawn."""
    try:
        state = _state_for(model, bert.state)
        own = model.state_dict()
        # A BERT without its heads, or a model without one of them, is no error; a part of another size is.
        heads = {name.split(".")[0] for name in state if name.split(".")[0].endswith("_head")}
        absent = {head for head in heads if not any(name.startswith(f"{head}.") for name in own)}
        return load_start(model, {n: t.float() for n, t in state.items() if n.split(".")[0] not in absent})
    except ValueError as error:
        raise ValueError(f"BERT {bert.spec}: {error}") from None


def _state_for(model: nn.Module, bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(model, VLBertForPreTraining):
        return vlbert_start.state_from_bert(
            bert,
            with_pooler=model.config.with_pooler,
            with_relationship_head=model.config.with_relationship_head and model.config.relationship_loss == "softmax",
        )
    if isinstance(model, ViLbertForPreTraining):
        return vilbert_checkpoint.state_from_bert(bert)
    if isinstance(model, vilbert_single_stream.SingleStreamForPreTraining):
        return vilbert_single_stream.state_from_bert(bert)
    if isinstance(model, VisualBertForPreTraining):
        state = visualbert_checkpoint.state_from_bert(bert)
        if not model.config.copy_text_tables:
            state = {n: t for n, t in state.items() if not n.startswith("visualbert.embeddings.region_")}
        return state
    if isinstance(model, ImageBertForPreTraining):
        return imagebert_checkpoint.state_from_bert(bert)
    if isinstance(model, InterBertForPreTraining):
        return interbert_checkpoint.state_from_bert(bert, model.config.num_hidden_layers)
    raise ValueError(f"{type(model).__name__} starts from no BERT")


logger = logging.getLogger(__name__)


def changed_model(
    model: Any, overrides: Mapping[str, Any], *, source: object, state: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """A new model of the same class: new parameters keep their initial values, unused ones are dropped."""
    config: Any = type(model.config)
    fields = {**model.config.to_diff_dict(), **overrides}
    fields = {name: value for name, value in fields.items() if name not in ("model_type", "transformers_version")}
    changed: nn.Module = type(model)(built_config(config, fields, overrides))
    kept, wanted = dict(model.state_dict() if state is None else state), changed.state_dict()
    for name in sorted(kept.keys() & wanted.keys()):
        if kept[name].shape != wanted[name].shape:
            raise ValueError(
                f"{source}: {name} is {tuple(kept[name].shape)}, these settings make it "
                f"{tuple(wanted[name].shape)}: {dict(overrides)}"
            )
    new, dropped = sorted(wanted.keys() - kept.keys()), sorted(kept.keys() - wanted.keys())
    changed.load_state_dict({name: tensor for name, tensor in kept.items() if name in wanted}, strict=False)
    for names, what in ((new, "drawn anew"), (dropped, "dropped")):
        if names:
            logger.info("%s: %s %s: %s", source, plural(len(names), "parameter"), what, ", ".join(names))
    return changed


def built_config(build: Callable[..., BertSizes], fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> BertSizes:
    """A model's configuration from all of its fields; errors name those that a user set."""
    try:
        return build(**fields)
    except Exception as error:  # transformers checks types with exceptions of its own
        raise ValueError(f"model settings {dict(overrides)}: {' '.join(str(error).split())}") from None
