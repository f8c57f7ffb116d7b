"""Transformer layers of all models on packed rows: attention, feed-forward, BERT's post-LayerNorm layer.

The layer is that of BERT (arXiv:1810.04805). Layers work on packed states (`Packing`): real positions only, all rows
one after the other.

Shape suffixes: B rows, S sequence with padding, P real positions of all rows, Q of queries, K of keys, H hidden, C
hidden of another stream, N heads, h width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from roibeam.model.common.fields import ACTIVATION_NAMES

_computing_padding = ContextVar("computing_padding", default=False)


@contextmanager
def computing_padding() -> Iterator[None]:
    """Context in which packed tensors keep padding, with states, as in the published codes; nothing attends to it.

    Real positions get the same numbers, up to rounding, for more work. For comparisons with arrays that have numbers at
    padding, and where shapes must not depend on the data (`torch.compile` without graph breaks).
    """
    token = _computing_padding.set(True)
    try:
        yield
    finally:
        _computing_padding.reset(token)


def spare_rows(count: int, device: torch.device) -> int:
    """Rows to compute beside so many. In bfloat16 on a CPU a kernel is compiled for each number of rows, and kept: rows
    in steps of a 16th or less meet few kernels."""
    if device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return 0
    return -count % max(8, 2 ** (count.bit_length() - 5))


class Packing:
    """Real positions of padded tensors (B, S, ...), and conversion to packed tensors (P, ...) and back.

    Real positions may stand anywhere in their row; packed, each row keeps its order. A packed tensor does not depend on
    the padding. Making a `Packing` waits for a device, so make one for each mask of a batch.

    Attributes:
        mask: (B, S) bool, True at real positions; rows without any are allowed.
        keeps_padding: made inside `computing_padding`; then P is B x S.
        places: (P,) long, positions in B x S of the packed ones; None if they are all positions.
        tail: of P, elements at the end that stand for nothing, see `spare_rows`.
    """

    def __init__(self, mask_BS: Tensor) -> None:
        self.mask = mask_BS
        self.keeps_padding = _computing_padding.get()
        self.places: Tensor | None = None
        if not self.keeps_padding:
            places = mask_BS.flatten().nonzero().squeeze(1)
            self.places = None if len(places) == mask_BS.numel() else places
        self.tail = 0
        if self.places is not None:
            self.tail = spare_rows(len(self.places), mask_BS.device)
            self.places = torch.cat([self.places, self.places[:1].expand(self.tail)])

    def __len__(self) -> int:
        return len(self.mask)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Real positions of each row."""
        return tuple(self.mask.sum(dim=1).tolist())

    @cached_property
    def trimmed(self) -> Packing:
        """Packing of the same tensors with the least padding: rows keep their start, and end with the longest of them.
        Results computed from it do not depend on the padding, not even in the last bit."""
        longest = max(self.lengths, default=0)
        lengths = self.mask.sum(dim=1, keepdim=True)
        found = Packing(torch.arange(longest, device=self.mask.device) < lengths)
        if found.tail != self.tail:  # full, or made inside autocast: the tensors were packed by this one
            real = found.mask.flatten().nonzero().squeeze(1)
            found.tail, found.places = self.tail, torch.cat([real, real[:1].expand(self.tail)])
        return found

    @cached_property
    def rows(self) -> Tensor:
        """(P,) long: the row of each packed position."""
        every = torch.arange(len(self.mask), device=self.mask.device)[:, None].expand(self.mask.shape)
        return self.pack(every)

    def chosen(self, chosen_BS: Tensor) -> tuple[Tensor, Packing]:
        """(Q,) long, places of some real positions in a packed tensor, and a packing of these alone."""
        chosen = chosen_BS & self.mask
        counts = chosen.sum(dim=1, keepdim=True)
        most = int(counts.max()) if len(counts) else 0
        alone = Packing(torch.arange(most, device=counts.device) < counts)
        places = chosen.flatten().nonzero().squeeze(1)
        if self.places is not None:
            places = self.mask.flatten().cumsum(dim=0)[places] - 1
        return torch.cat([places, places[:1].expand(alone.tail)]), alone

    def pack(self, padded: Tensor) -> Tensor:
        """(P, ...) from (B, S, ...)."""
        flat = padded.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)

    def pad(self, packed: Tensor) -> Tensor:
        """(B, S, ...) from (P, ...), 0 at padding that was left out."""
        if self.places is not None:
            real = len(self.places) - self.tail
            padded = packed.new_zeros(self.mask.numel(), *packed.shape[1:])
            packed = padded.index_copy(0, self.places[:real], packed[:real])
        return packed.unflatten(0, self.mask.shape)


BERT_NORM_EPS = 1e-12  # google-research/bert modeling.py: inside the root

# Activations that configurations of the published codes can name; "gelu" is the one with the error function.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    dict(zip(ACTIVATION_NAMES, (F.gelu, F.relu, F.silu), strict=True))
)

# Queries x keys x width of a row with padding, in float32 and in bfloat16; measured: BENCHMARKS.md
_PAYS_FOR_A_KERNEL, _PAYS_IN_BFLOAT16 = 300_000, 1_000_000


class Attention(nn.Module):
    """Multi-head attention of a sequence to itself or to another stream, without the residual.

    Args:
        hidden_size: width of the queries' states, and of the output.
        context_size: width of the keys' states, if they are another stream's; default `hidden_size`.
        inner_size: of queries, keys and values, all heads together, a multiple of `num_heads`; default `hidden_size`.
        attention_dropout: on the attention weights; dropout: on the projected output.
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
        states_QH: Tensor,
        packing: Packing,
        context_KC: Tensor | None = None,
        context_packing: Packing | None = None,
        maps: list[Tensor] | None = None,
        query_factor: Tensor | None = None,
    ) -> Tensor:
        """(Q, H).

        Args:
            packing: of the states; each row attends to its own row of the context, and one of length 0 gets zeros.
            context_KC, context_packing: states of the keys; None for the states themselves.
            maps: if given, the weights (B, N, S, S of the context) are appended to it, at the cost of their memory;
                0 at padding of the keys, without meaning at padding of the queries.
            query_factor: (Q, inner), multiplies the queries before they are cut into heads.
        """
        context, of_keys = states_QH, packing
        if context_KC is not None and context_packing is not None:
            context, of_keys = context_KC, context_packing
        queries = self.query(states_QH)
        if query_factor is not None:
            queries = queries * query_factor
        query, key, value = (self._heads(queries), self._heads(self.key(context)), self._heads(self.value(context)))
        dropout = self.attention_dropout if self.training else 0.0
        if maps is not None:
            found_QNh = mapped_attention(query, key, value, packing, of_keys, dropout, maps)
        else:
            found_QNh = packed_attention(query, key, value, packing, of_keys, dropout)
        return self.dropout(self.output(found_QNh.flatten(1)))

    def _heads(self, states_PH: Tensor) -> Tensor:
        return states_PH.unflatten(-1, (self.num_heads, -1))


def packed_attention(
    query_QNh: Tensor, key_KNh: Tensor, value_KNh: Tensor, packing: Packing, of_keys: Packing, dropout: float
) -> Tensor:
    """(Q, N, h), the faster of the two ways below.

    That is `row_attention` on a CPU, if there is padding to leave out and rows are long or wide enough to pay for a
    kernel each.
    """
    if query_QNh.device.type != "cpu" or packing.keeps_padding or of_keys.keeps_padding:
        return padded_attention(query_QNh, key_KNh, value_KNh, packing, of_keys, dropout)
    packing, of_keys = packing.trimmed, of_keys.trimmed
    padded = packing.places is not None or of_keys.places is not None
    width = query_QNh.shape[1] * query_QNh.shape[2]
    bound = _PAYS_IN_BFLOAT16 if _is_trained_in_bfloat16(query_QNh) else _PAYS_FOR_A_KERNEL
    pays = packing.mask.shape[1] * of_keys.mask.shape[1] * width > bound
    attend = row_attention if padded and pays else padded_attention
    return attend(query_QNh, key_KNh, value_KNh, packing, of_keys, dropout)


def row_attention(
    query_QNh: Tensor, key_KNh: Tensor, value_KNh: Tensor, packing: Packing, of_keys: Packing, dropout: float
) -> Tensor:
    """(Q, N, h), one row after the other: at base size half the time of `padded_attention`, and no sum sees padding."""
    found, kind = [], query_QNh.dtype
    parts = query_QNh, key_KNh, value_KNh
    narrow = _is_trained_in_bfloat16(query_QNh)
    if narrow:
        parts = query_QNh.float(), key_KNh.float(), value_KNh.float()
    kinds = zip(parts, (packing, of_keys, of_keys), strict=True)
    rows = zip(*(part[: sum(of.lengths)].split(of.lengths) for part, of in kinds), strict=True)
    for query, key, value in rows:
        if not len(query) or not len(key):
            found.append(torch.zeros_like(query))
            continue
        query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not narrow):
            attended = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        found.append(attended[0].transpose(0, 1))
    return torch.cat([*found, parts[0][len(query_QNh) - packing.tail :]]).to(kind)  # spare rows mean nothing


def padded_attention(
    query_QNh: Tensor, key_KNh: Tensor, value_KNh: Tensor, packing: Packing, of_keys: Packing, dropout: float
) -> Tensor:
    """(Q, N, h), all rows at once: few kernels, as accelerators prefer."""
    query, key, value = _pad_heads(packing, query_QNh), _pad_heads(of_keys, key_KNh), _pad_heads(of_keys, value_KNh)
    mask = of_keys.mask[:, None, None] if of_keys.keeps_padding or of_keys.places is not None else None
    if not _is_trained_in_bfloat16(query):
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return packing.pack(found.transpose(1, 2))
    scores = torch.matmul(query, key.transpose(-1, -2)).float() / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = F.dropout(scores.softmax(dim=-1), dropout).to(query.dtype)
    return packing.pack(torch.matmul(weights, value).transpose(1, 2))


def _is_trained_in_bfloat16(states: Tensor) -> bool:
    """Whether torch's kernel of attention on a CPU takes six times longer for its backward pass, in bfloat16."""
    return states.device.type == "cpu" and states.dtype == torch.bfloat16 and torch.is_grad_enabled()


def mapped_attention(
    query_QNh: Tensor,
    key_KNh: Tensor,
    value_KNh: Tensor,
    packing: Packing,
    of_keys: Packing,
    dropout: float,
    maps: list[Tensor],
) -> Tensor:
    """(Q, N, h), with the weights (B, N, S, S) written out and appended to `maps`."""
    query, key, value = _pad_heads(packing, query_QNh), _pad_heads(of_keys, key_KNh), _pad_heads(of_keys, value_KNh)
    mask = of_keys.mask[:, None, None]
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~mask, 0.0)
    maps.append(weights)
    return packing.pack((F.dropout(weights, dropout) @ value).transpose(1, 2))


def _pad_heads(packing: Packing, packed_PNh: Tensor) -> Tensor:
    """(B, N, S, h)."""
    return packing.pad(packed_PNh).transpose(1, 2)


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


class CheckpointedLayer(GradientCheckpointingLayer):
    """A layer that `model.activation_checkpointing_enable()` lets compute its activations again in the backward pass.

    Same numbers, dropout included, for less memory and about a third more work.
    """

    def check_maps(self, maps: object | None) -> None:
        """
        Raises:
            ValueError: if attention weights are requested that the backward pass would collect a second time.
        """
        if maps is not None and self.gradient_checkpointing and self.training:
            raise ValueError("no attention maps while training with activation checkpointing; call eval() first")


class TransformerLayer(CheckpointedLayer):
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

    def forward(
        self,
        states_PH: Tensor,
        packing: Packing,
        maps: list[Tensor] | None = None,
        read_BS: Tensor | None = None,
    ) -> Tensor:
        """(P, H).

        Args:
            maps: as in `Attention.forward`.
            read_BS: bool, positions that are read of a last layer: it leaves out most work of the others, which get 0.
                With `maps` all are computed.
        """
        self.check_maps(maps)
        if read_BS is None or maps is not None or packing.keeps_padding:
            states_PH = self.attention_norm(states_PH + self.attention(states_PH, packing, maps=maps))
            return self.feed_forward_norm(states_PH + self.feed_forward(states_PH))
        places, alone = packing.chosen(read_BS)
        asking = states_PH.index_select(0, places)
        asking = self.attention_norm(asking + self.attention(asking, alone, states_PH, packing))
        found = self.feed_forward_norm(asking + self.feed_forward(asking))
        real = len(places) - alone.tail
        return found.new_zeros(states_PH.shape).index_copy(0, places[:real], found[:real])


class TransformerEncoder(nn.Module):
    """A stack of `TransformerLayer`s."""

    def __init__(self, layers: Iterable[TransformerLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(
        self,
        states_BSH: Tensor,
        mask_BS: Tensor,
        maps: list[Tensor] | None = None,
        read_BS: Tensor | None = None,
        passed: list[Tensor] | None = None,
    ) -> Tensor:
        """(B, S, H) for padded states, 0 at padding; packed on the way. `passed` collects padded states too, else as
        `packed`."""
        packing = Packing(mask_BS)
        states_PH = packing.pack(states_BSH)
        if passed is None:
            return packing.pad(self.packed(states_PH, packing, maps, read_BS))
        packed: list[Tensor] = []
        self.packed(states_PH, packing, maps, read_BS, packed)
        passed += map(packing.pad, packed)
        return passed[-1]

    def packed(
        self,
        states_PH: Tensor,
        packing: Packing,
        maps: list[Tensor] | None = None,
        read_BS: Tensor | None = None,
        passed: list[Tensor] | None = None,
    ) -> Tensor:
        """(P, H).

        Args:
            maps: collects the attention weights (B, N, S, S) of each layer.
            read_BS: bool, positions whose last states are read, see `TransformerLayer.forward`. With `maps` or `passed`
                all are computed.
            passed: collects the input states (P, H), then those of each layer.
        """
        if passed is not None:
            passed.append(states_PH)
        for number, layer in enumerate(self.layers, 1):
            is_read_in_part = number == len(self.layers) and passed is None
            states_PH = layer(states_PH, packing, maps, read_BS if is_read_in_part else None)
            if passed is not None:
                passed.append(states_PH)
        return states_PH
