"""The bricks all models share: attention, feed-forward, and the post-LayerNorm layer of BERT (arXiv:1810.04805).

Shape suffixes: B rows, S sequence, Q positions that ask, K positions that are asked, H hidden, C hidden of another
stream, N heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BERT_NORM_EPS = 1e-12  # google-research/bert modeling.py: inside the root

# The activations that configurations of the published codes can name; "gelu" is the one with the error function.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"gelu": F.gelu, "relu": F.relu, "swish": F.silu}
)


class Attention(nn.Module):
    """Multi-head attention of a sequence to itself or to another stream, without the residual.

    Args:
        hidden_size: of the states that ask, and of what comes out.
        context_size: of the states that are asked, when they are another stream's; default `hidden_size`.
        inner_size: of queries, keys and values, all heads together, a multiple of `num_heads`; default `hidden_size`.
        attention_dropout: on the attention weights.
        dropout: on the projected output.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        attention_dropout: float,
        dropout: float,
        context_size: int | None = None,
        inner_size: int | None = None,
    ) -> None:
        super().__init__()
        context_size, inner_size = context_size or hidden_size, inner_size or hidden_size
        if inner_size % num_heads:
            raise ValueError(f"hidden_size {inner_size} is not a multiple of {num_heads} attention heads")
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.query = nn.Linear(hidden_size, inner_size)
        self.key = nn.Linear(context_size, inner_size)
        self.value = nn.Linear(context_size, inner_size)
        self.output = nn.Linear(inner_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        states_BQH: Tensor,
        mask_BK: Tensor,
        context_BKC: Tensor | None = None,
        maps: list[Tensor] | None = None,
        query_factor: Tensor | None = None,
    ) -> Tensor:
        """(B, Q, H).

        Args:
            mask_BK: bool, True where a position may be attended to; a row without one gets a context of zeros.
            context_BKC: what is attended to; None for the states themselves.
            maps: where given, the weights (B, N, Q, K) are appended to it; asking for them costs their memory.
            query_factor: (B, 1, inner), multiplies the queries before they are cut into heads.
        """
        context = states_BQH if context_BKC is None else context_BKC
        queries = self.query(states_BQH)
        if query_factor is not None:
            queries = queries * query_factor
        query, key, value = (
            self._heads(queries),
            self._heads(self.key(context)),
            self._heads(self.value(context)),
        )
        mask = mask_BK[:, None, None, :]
        dropout = self.attention_dropout if self.training else 0.0
        if maps is None:
            found_BNQh = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        else:
            scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
            weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~mask, 0.0)
            maps.append(weights)
            found_BNQh = F.dropout(weights, dropout) @ value
        return self.dropout(self.output(found_BNQh.transpose(1, 2).flatten(2)))

    def _heads(self, states_BSH: Tensor) -> Tensor:
        return states_BSH.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, and dropout; without the residual."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, dropout: float, activation: str = "gelu") -> None:
        super().__init__()
        self.expand = nn.Linear(hidden_size, intermediate_size)
        self.activation = ACTIVATIONS[activation]
        self.contract = nn.Linear(intermediate_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        return self.dropout(self.contract(self.activation(self.expand(states))))


class TransformerLayer(nn.Module):
    """One layer of BERT: each block's output is added to its input, then normalised."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        *,
        attention_dropout: float,
        dropout: float,
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        self.attention = Attention(hidden_size, num_heads, attention_dropout=attention_dropout, dropout=dropout)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=BERT_NORM_EPS)
        self.feed_forward = FeedForward(hidden_size, intermediate_size, dropout=dropout, activation=activation)
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=BERT_NORM_EPS)

    def forward(self, states_BSH: Tensor, mask_BS: Tensor, maps: list[Tensor] | None = None) -> Tensor:
        """As `Attention.forward`: `maps` takes the attention weights (B, N, S, S)."""
        states_BSH = self.attention_norm(states_BSH + self.attention(states_BSH, mask_BS, maps=maps))
        return self.feed_forward_norm(states_BSH + self.feed_forward(states_BSH))


class TransformerEncoder(nn.Module):
    """A stack of `TransformerLayer`s."""

    def __init__(self, layers: Iterable[TransformerLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, states_BSH: Tensor, mask_BS: Tensor, maps: list[Tensor] | None = None) -> Tensor:
        for layer in self.layers:
            states_BSH = layer(states_BSH, mask_BS, maps)
        return states_BSH
