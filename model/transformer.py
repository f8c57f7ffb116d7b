"""The bricks all models share: attention, feed-forward, and the post-LayerNorm layer of BERT (arXiv:1810.04805).

Shape suffixes: B rows, S sequence, H hidden, N heads.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

BERT_NORM_EPS = 1e-12  # google-research/bert modeling.py: inside the root


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, with output projection and dropout, without the residual.

    Args:
        hidden_size: must be a multiple of `num_heads`.
        attention_dropout: on the attention weights.
        dropout: on the projected output.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, attention_dropout: float, dropout: float) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size {hidden_size} is not a multiple of {num_heads} attention heads")
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states_BSH: Tensor, mask_BS: Tensor) -> Tensor:
        """`mask_BS` is bool, True where a position may be attended to; every row needs one such position."""
        context_BNSh = F.scaled_dot_product_attention(
            self._heads(self.query(states_BSH)),
            self._heads(self.key(states_BSH)),
            self._heads(self.value(states_BSH)),
            attn_mask=mask_BS[:, None, None, :],
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        return self.dropout(self.output(context_BNSh.transpose(1, 2).flatten(2)))

    def _heads(self, states_BSH: Tensor) -> Tensor:
        return states_BSH.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with the erf GELU between them, and dropout; without the residual."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Linear(hidden_size, intermediate_size)
        self.contract = nn.Linear(intermediate_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        return self.dropout(self.contract(F.gelu(self.expand(states))))


class TransformerLayer(nn.Module):
    """One layer of BERT: each block's output is added to its input, then normalised."""

    def __init__(
        self, hidden_size: int, num_heads: int, intermediate_size: int, *, attention_dropout: float, dropout: float
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden_size, num_heads, attention_dropout=attention_dropout, dropout=dropout)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=BERT_NORM_EPS)
        self.feed_forward = FeedForward(hidden_size, intermediate_size, dropout=dropout)
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=BERT_NORM_EPS)

    def forward(self, states_BSH: Tensor, mask_BS: Tensor) -> Tensor:
        states_BSH = self.attention_norm(states_BSH + self.attention(states_BSH, mask_BS))
        return self.feed_forward_norm(states_BSH + self.feed_forward(states_BSH))


class TransformerEncoder(nn.Module):
    """A stack of equal `TransformerLayer`s."""

    def __init__(
        self,
        num_layers: int,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        *,
        attention_dropout: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(
                hidden_size, num_heads, intermediate_size, attention_dropout=attention_dropout, dropout=dropout
            )
            for _ in range(num_layers)
        )

    def forward(self, states_BSH: Tensor, mask_BS: Tensor) -> Tensor:
        for layer in self.layers:
            states_BSH = layer(states_BSH, mask_BS)
        return states_BSH
