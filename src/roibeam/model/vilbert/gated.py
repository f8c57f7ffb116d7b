"""The image layer of ViLBERT's "dynamic attention" (facebookresearch/vilbert-multi-task vilbert.py).

Regions attend to regions in the light of the text: its mean state scales every number of the queries and keys.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from roibeam.model.common.packing import Packing
from roibeam.model.common.transformer import TransformerLayer
from roibeam.model.vilbert.config import ViLbertConfig


class TextGatedLayer(TransformerLayer):
    """An image layer whose queries and keys are multiplied by 1 + sigmoid(linear(mean state of the text))."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(
            config.image_hidden_size,
            config.image_num_attention_heads,
            config.image_intermediate_size,
            attention_dropout=config.image_attention_dropout,
            dropout=config.image_hidden_dropout,
            activation=config.image_hidden_activation,
        )
        self.query_gate = nn.Linear(config.hidden_size, config.image_hidden_size)
        self.key_gate = nn.Linear(config.hidden_size, config.image_hidden_size)

    def gate(self, mean_text: Tensor) -> Tensor:
        """(B, I) for the mean text states (B, H).

        A number of a query only ever meets the same number of a key, so both gates may act on the query.
        """
        return (1 + torch.sigmoid(self.query_gate(mean_text))) * (1 + torch.sigmoid(self.key_gate(mean_text)))

    def forward(  # type: ignore[override]
        self, states_PI: Tensor, packing: Packing, maps: list[Tensor] | None, query_factor: Tensor
    ) -> Tensor:
        """As `TransformerLayer.forward`; `query_factor` (P, I) is the `gate` of each region's row."""
        self.check_maps(maps)
        found = self.attention(states_PI, packing, maps=maps, query_factor=query_factor)
        states_PI = self.attention_norm(states_PI + found)
        return self.feed_forward_norm(states_PI + self.feed_forward(states_PI))
