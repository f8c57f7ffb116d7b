"""What every model here has of BERT (arXiv:1810.04805): its sizes, its layers and how new weights are drawn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from roibeam.model.common.config import StrictConfig
from roibeam.model.common.fields import BertFields
from roibeam.model.common.heads import WeightNormedLinear
from roibeam.model.common.transformer import TransformerEncoder, TransformerLayer
from roibeam.model.inputs import OutputWidths


class BertSizes(BertFields, StrictConfig):
    """The base of every model's config; its fields are those of `BertFields`."""

    @property
    def output_widths(self) -> OutputWidths:
        """Of what this model gives: BERT's width throughout, unless a model says otherwise."""
        return OutputWidths(self.hidden_size, self.hidden_size, self.hidden_size)


def bert_layer(sizes: BertSizes) -> TransformerLayer:
    """One layer of BERT."""
    return TransformerLayer(
        sizes.hidden_size,
        sizes.num_attention_heads,
        sizes.intermediate_size,
        attention_dropout=sizes.attention_dropout,
        dropout=sizes.hidden_dropout,
        activation=sizes.hidden_activation,
    )


def bert_encoder(sizes: BertSizes) -> TransformerEncoder:
    """BERT's `num_hidden_layers` layers."""
    return TransformerEncoder(bert_layer(sizes) for _ in range(sizes.num_hidden_layers))


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
    """What Hugging Face asks of a model, alike for all: it is called with a `VLBatch` and its weights start as BERT's.

    A model's own subclass names its config and adds what starts otherwise.
    """

    config_class = BertSizes
    config: BertSizes
    main_input_name = "batch"
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    def _init_weights(self, module: nn.Module) -> None:
        draw_as_bert(module, self.config.initializer_range)
