"""What every model here has of BERT (arXiv:1810.04805): its sizes, its layers and how new weights are drawn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from roibeam.model.common.config import StrictConfig
from roibeam.model.common.transformer import ACTIVATIONS, TransformerEncoder, TransformerLayer
from roibeam.model.inputs import OutputWidths


class BertSizes(StrictConfig):
    """The base of every model's config; defaults are those of BERT-base.

    Fields:
        vocab_size: word pieces of the tokenizer.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_activation: of the encoder.
        max_position_embeddings: rows of the position table.
        num_segments: rows of the segment table.
        hidden_dropout, attention_dropout: rates, on states and on attention weights.
        initializer_range: standard deviation of new weights.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 512
    num_segments: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02

    @property
    def output_widths(self) -> OutputWidths:
        """Of what this model gives: BERT's width throughout, unless a model says otherwise."""
        return OutputWidths(self.hidden_size, self.hidden_size, self.hidden_size)

    def check_batch_size(self, rows: int) -> None:
        """Raises ValueError when a loss of this model does not work on batches of so many rows."""

    def check(self) -> None:
        super().check()
        self.check_multiple("hidden_size", "num_attention_heads")
        self.check_choice("hidden_activation", tuple(ACTIVATIONS))


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
    """New weights of one module: normal matrices and tables, LayerNorms at 1, everything else at 0.

    By functions that leave loaded weights alone; a model calls it from `_init_weights`.
    """
    if isinstance(module, (nn.Linear, nn.Embedding)):
        init.normal_(module.weight, mean=0.0, std=initializer_range)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
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
