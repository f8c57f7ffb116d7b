"""Padded rows without their padding, so that layers work on real positions only.

Shape suffixes: B rows, S positions of a padded row, P packed positions of all rows, one row after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

import torch
from torch import Tensor

_computing_padding = ContextVar("computing_padding", default=False)


@contextmanager
def computing_padding() -> Iterator[None]:
    """Inside, padding stays in packed tensors and gets states too, as in the published codes; nothing attends to it.

    Real positions get the same numbers, up to rounding, for more work. For comparisons with arrays that have numbers at
    padding, and where shapes must not depend on the data (`torch.compile` without graph breaks).
    """
    token = _computing_padding.set(True)
    try:
        yield
    finally:
        _computing_padding.reset(token)


class Packing:
    """Which positions of padded tensors (B, S, ...) are real, and the way to packed ones (P, ...) and back.

    Real positions may stand anywhere in their row; packed, each row keeps its order. A packed tensor is the same
    whatever the padding was. Making a `Packing` waits for a device, so make one for each mask of a batch.

    Attributes:
        mask: (B, S) bool, True at real positions; rows without any are allowed.
        keeps_padding: made inside `computing_padding`; then P is B x S.
        places: (P,) long, where packed positions stand in B x S; None where they are all positions.
    """

    def __init__(self, mask_BS: Tensor) -> None:
        self.mask = mask_BS
        self.keeps_padding = _computing_padding.get()
        self.places: Tensor | None = None
        if not self.keeps_padding:
            places = mask_BS.flatten().nonzero().squeeze(1)
            self.places = None if len(places) == mask_BS.numel() else places

    def __len__(self) -> int:
        return len(self.mask)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Real positions of each row."""
        return tuple(self.mask.sum(dim=1).tolist())

    @cached_property
    def trimmed(self) -> Packing:
        """That of the same packed tensors with the least padding there can be: rows begin where they stand, and end
        with the longest of them. What is computed from it does not depend on the padding, not even in its last bit."""
        longest = max(self.lengths, default=0)
        lengths = self.mask.sum(dim=1, keepdim=True)
        return Packing(torch.arange(longest, device=self.mask.device) < lengths)

    @cached_property
    def rows(self) -> Tensor:
        """(P,) long: which row each packed position belongs to."""
        every = torch.arange(len(self.mask), device=self.mask.device)[:, None].expand(self.mask.shape)
        return self.pack(every)

    @cached_property
    def firsts(self) -> Tensor:
        """(B,) long: where each row begins in a packed tensor; every row has a real position, and its first is one."""
        if self.places is None:
            return torch.arange(len(self.mask), device=self.mask.device) * self.mask.shape[1]
        lengths = self.mask.sum(dim=1)
        return lengths.cumsum(dim=0) - lengths

    def places_of(self, positions_B: Tensor) -> Tensor:
        """(B,) long: where one real position (of S) of each row stands in a packed tensor."""
        rows = torch.arange(len(self.mask), device=self.mask.device)
        flat = rows * self.mask.shape[1] + positions_B
        return flat if self.places is None else self.mask.flatten().cumsum(dim=0)[flat] - 1

    def pack(self, padded: Tensor) -> Tensor:
        """(P, ...) of (B, S, ...)."""
        flat = padded.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)

    def pad(self, packed: Tensor) -> Tensor:
        """(B, S, ...) of (P, ...), 0 at padding that was left out."""
        if self.places is not None:
            packed = packed.new_zeros(self.mask.numel(), *packed.shape[1:]).index_copy(0, self.places, packed)
        return packed.unflatten(0, self.mask.shape)
