"""Prediction heads that several models share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.transformer import BERT_NORM_EPS


class MaskedWordHead(nn.Module):
    """BERT's masked-word head: dense, GELU, LayerNorm, then a decoder that is the word embedding itself plus a bias."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=BERT_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, states: Tensor, word_embeddings_VH: Tensor) -> Tensor:
        """Logits (..., V) for `states` (..., H). The decoder comes in as an argument, so no file stores it twice."""
        return F.linear(self.norm(F.gelu(self.dense(states))), word_embeddings_VH, self.bias)


class RegionClassHead(nn.Module):
    """Class of a region: dense, GELU (no LayerNorm: jackroos/VL-BERT visual_linguistic_bert.py, MVRC head), linear."""

    def __init__(self, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.decoder = nn.Linear(hidden_size, num_labels)

    def forward(self, states: Tensor) -> Tensor:
        """Logits (..., num_labels) for `states` (..., H)."""
        return self.decoder(F.gelu(self.dense(states)))


class Pooler(nn.Module):
    """tanh(dense(state)), BERT's summary of a pair."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        return torch.tanh(self.dense(states))
