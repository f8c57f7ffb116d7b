"""BERT's part of every model (arXiv:1810.04805): configuration, sizes, layers and initial weights.

`StrictConfig`, the base of all configurations, is a Hugging Face configuration that refuses names it does not know.
"""

from __future__ import annotations

import dataclasses
from typing import Any, dataclass_transform

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers import initialization as init

from roibeam.messages import name_hint
from roibeam.model.common.fields import BertFields, ConfigFields, TwoStreamFields
from roibeam.model.common.heads import MaskedWordHead, WeightNormedLinear
from roibeam.model.common.transformer import TransformerEncoder, TransformerLayer
from roibeam.model.inputs import OutputWidths

# Arguments that Hugging Face itself adds when it reads a config from a file or a checkpoint. Its other common names
# (id2label, output_attentions, ...) would be ignored by our models, so they are refused like any unknown name.
_LOADING_NAMES = frozenset(
    (
        *("_attn_implementation", "_commit_hash", "_name_or_path", "architectures", "attn_implementation", "dtype"),
        *("model_type", "name_or_path", "torch_dtype", "transformers_version"),
    )
)
_INHERITED = {field.name: field for field in dataclasses.fields(PretrainedConfig)}


@dataclass_transform(kw_only_default=True)
class StrictConfig(ConfigFields, PretrainedConfig):
    """Base of configurations. Subclasses name their fields as a dataclass does, all keywords. Raises ValueError naming
    every unknown field and the known ones that look like it, a field of another type, or a fault found by `check`."""

    def __post_init__(self, **unknown: Any) -> None:
        ignored = [
            name
            for name, field in _INHERITED.items()
            if name not in _LOADING_NAMES and getattr(self, name) != field.default
        ]
        refused = sorted([*(set(unknown) - _LOADING_NAMES), *ignored])
        known = self.own_fields()
        if "end_to_end" in unknown:
            raise ValueError(
                f"{type(self).__name__}: this config.json is of a model with its region encoder, which "
                f"roibeam.load_joint reads"
            )
        if refused:
            raise ValueError(
                f"{type(self).__name__}: "
                + "; ".join(f"unknown field {name!r}; {name_hint(name, sorted(known))}" for name in refused)
            )
        values = {name: getattr(self, name) for name in known}
        self.check_values(values)
        for name, value in values.items():
            if isinstance(value, list):
                setattr(self, name, tuple(value))  # JSON gives lists
        # model_type is a constant of the class; files carry it, and setting it again would shadow the constant.
        unknown.pop("model_type", None)
        PretrainedConfig.__post_init__(self, **unknown)
        self.check()

    @classmethod
    def _fields(cls) -> list[dataclasses.Field[Any]]:
        """The fields without those of Hugging Face's base class."""
        return [field for field in dataclasses.fields(cls) if field.name not in _INHERITED]


class BertSizes(BertFields, StrictConfig):
    """The base of every model's config; its fields are those of `BertFields`."""

    @property
    def output_widths(self) -> OutputWidths:
        """Widths of this model's output: BERT's width throughout, unless a model overrides it."""
        return OutputWidths(self.hidden_size, self.hidden_size, self.hidden_size)


def bert_layer(sizes: BertSizes) -> TransformerLayer:
    return TransformerLayer(
        sizes.hidden_size,
        sizes.num_attention_heads,
        sizes.intermediate_size,
        attention_dropout=sizes.attention_dropout,
        dropout=sizes.hidden_dropout,
        activation=sizes.hidden_activation,
    )


def image_layer_sizes(fields: TwoStreamFields, width: int) -> dict[str, Any]:
    """Arguments of a `TransformerLayer` of the image's own layers."""
    return {
        "hidden_size": width,
        "num_heads": fields.image_num_attention_heads,
        "intermediate_size": fields.image_intermediate_size,
        "attention_dropout": fields.image_attention_dropout,
        "dropout": fields.image_hidden_dropout,
        "activation": fields.image_hidden_activation,
    }


def bert_encoder(sizes: BertSizes) -> TransformerEncoder:
    """BERT's `num_hidden_layers` layers."""
    return TransformerEncoder(bert_layer(sizes) for _ in range(sizes.num_hidden_layers))


def bert_word_head(sizes: BertSizes) -> MaskedWordHead:
    """BERT's masked-word head."""
    return MaskedWordHead(sizes.hidden_size, sizes.vocab_size, activation=sizes.hidden_activation)


@torch.no_grad()
def draw_as_bert(module: nn.Module, initializer_range: float) -> None:
    """New weights of one module: normal matrices and tables, LayerNorms at 1, biases at 0.

    Weight-normed layers start as PyTorch's linear ones: ViLBERT's initialisation writes into a weight that weight_norm
    makes anew.

    By functions that leave loaded weights alone; a model calls it from `_init_weights`.
    """
    if isinstance(module, (nn.Linear, nn.Embedding)):
        init.normal_(module.weight, mean=0.0, std=initializer_range)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
    elif isinstance(module, WeightNormedLinear):
        init.kaiming_uniform_(module.direction, a=5**0.5)
        init.copy_(module.scale, module.direction.norm())
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        init.zeros_(bias)


class VLPreTrainedModel(PreTrainedModel):
    """Hugging Face's requirements, alike for all models: calls take a `VLBatch` and weights start as BERT's.

    A model's own subclass names its config and adds what starts otherwise.
    """

    config_class = BertSizes
    config: BertSizes
    main_input_name = "batch"
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    @property
    def drops(self) -> bool:
        """Whether its layers drop numbers now. What a run drops stays what it was in earlier versions: all states of a
        layer are computed then, read or not."""
        rates = ("hidden_dropout", "attention_dropout", "image_hidden_dropout", "image_attention_dropout")
        return self.training and any(getattr(self.config, rate, 0.0) for rate in rates)

    def _init_weights(self, module: nn.Module) -> None:
        draw_as_bert(module, self.config.initializer_range)
