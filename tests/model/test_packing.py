"""Packed states: the way there and back, and layers that give each row what it gets alone, whatever the padding."""

import pytest
import torch

from roibeam.model.common import transformer
from roibeam.model.common.transformer import (
    Packing,
    TransformerEncoder,
    TransformerLayer,
    mapped_attention,
    padded_attention,
    row_attention,
)

HIDDEN, HEADS = 12, 3
MASKS = {
    "ragged, with a gap": [[1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1]],
    "an empty row": [[1, 1, 1], [0, 0, 0], [1, 0, 0]],
    "nothing at all": [[0, 0], [0, 0]],
    "all full": [[1, 1, 1, 1], [1, 1, 1, 1]],
}


def bools(rows):
    return torch.tensor(rows).bool()


def draw(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(seed=0):
    torch.manual_seed(seed)
    return TransformerLayer(HIDDEN, HEADS, 20, attention_dropout=0.1, dropout=0.1).double().eval()


@pytest.mark.parametrize("rows", MASKS.values(), ids=MASKS.keys())
def test_pack_and_pad(rows):
    mask = bools(rows)
    packing = Packing(mask)
    states = draw((*mask.shape, 5)).requires_grad_()
    packed = packing.pack(states)
    assert torch.equal(packed, states[mask])
    assert packing.lengths == tuple(mask.sum(dim=1).tolist()) and (packing.places is None) == bool(mask.all())
    assert packing.rows.tolist() == [row for row, length in enumerate(packing.lengths) for _ in range(length)]
    padded = packing.pad(packed)
    assert torch.equal(padded, states * mask[..., None])
    (padded * 2).sum().backward()
    assert torch.equal(states.grad, 2.0 * mask[..., None].expand_as(states))


@pytest.mark.parametrize("rows", MASKS.values(), ids=MASKS.keys())
def test_a_row_gets_what_it_gets_alone(rows):
    """Against each row by itself without its padding, with and without maps."""
    mask = bools(rows)
    encoder = TransformerEncoder([layer(0), layer(1)]).eval()
    states = draw((*mask.shape, HIDDEN))
    got = encoder(states, mask)
    maps = []
    mapped = encoder(states, mask, maps)
    assert [tuple(weights.shape) for weights in maps] == [(len(mask), HEADS, mask.shape[1], mask.shape[1])] * 2
    for row in range(len(mask)):
        real = mask[row]
        if real.any():
            alone = encoder(states[row, real][None], mask.new_ones(1, int(real.sum())))[0]
            torch.testing.assert_close(got[row, real], alone, rtol=0, atol=1e-12)
            torch.testing.assert_close(mapped[row, real], alone, rtol=0, atol=1e-12)
    assert not got[~mask].any() and not mapped[~mask].any()


def with_maps(*args):
    maps = []
    found = mapped_attention(*args, maps)
    asked = args[4]
    assert not maps[0].masked_select(~asked.mask[:, None, None]).any()
    return found


@pytest.mark.parametrize("attend", [padded_attention, with_maps])
@pytest.mark.parametrize("full", [False, True])
def test_all_ways_to_attend_are_equal(attend, full):
    """Row by row against all rows at once, outputs and gradients, for two ragged streams.

    Unless all are full, the second row has no keys, the third no queries.
    """
    packing = Packing(bools([[1, 1, 1], [1, 1, full], [full, full, full]]))
    asked = Packing(bools([[1, full, 1, 1], [full] * 4, [1, 1, 1, 1]]))

    def outcome(attend):
        query, key, value = (
            draw((sum(side.lengths), HEADS, 4), seed).requires_grad_()
            for seed, side in enumerate((packing, asked, asked))
        )
        found = attend(query, key, value, packing, asked, 0.0)
        (found * draw(found.shape, 3)).sum().backward()
        return found.detach(), query.grad, key.grad, value.grad

    by_row = outcome(row_attention)
    if not full:
        assert not by_row[0][3:].any()
    for one, other in zip(by_row, outcome(attend), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("attend", [padded_attention, row_attention])
@pytest.mark.parametrize("autocast", [False, True])
def test_training_in_bfloat16_attends_as_in_float64(attend, autocast):
    """Weights are written out there, or rows are asked in float32: outputs and gradients, with rows of no key and none
    that asks."""
    packing, asked = (
        Packing(bools([[1, 1, 1], [1, 1, 0], [0, 0, 0]])),
        Packing(bools([[1, 0, 1], [0, 0, 0], [1, 1, 1]])),
    )

    def outcome(dtype):
        parts = [
            draw((sum(side.lengths), HEADS, 4), seed).to(dtype).requires_grad_()
            for seed, side in enumerate((packing, asked, asked))
        ]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast and dtype == torch.bfloat16):
            found = attend(*parts, packing, asked, 0.0)
        assert found.dtype == dtype and not found[3:].any()
        (found * draw(found.shape, 3).to(dtype)).sum().backward()
        return [found.detach(), *(part.grad for part in parts)]

    for one, other in zip(outcome(torch.bfloat16), outcome(torch.float64), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=0.03)


@pytest.mark.parametrize("rows", [[[0, 1, 1, 0, 1], [1, 1, 1, 1, 0], [0] * 5], [[1, 0, 1, 1], [0, 1, 1, 1]]])
@pytest.mark.parametrize("bound", [0, 1 << 40])  # one row after the other, all at once
def test_spare_rows_in_bfloat16_change_neither_results_nor_gradients(bound, rows, monkeypatch):
    """Padding has no number there, so that a gradient that it reached would have none."""
    monkeypatch.setattr(transformer, "_PAYS_IN_BFLOAT16", bound)
    mask = bools(rows)
    states = draw((*mask.shape, HIDDEN)).float().masked_fill(~mask[..., None], torch.nan)

    def outcome():
        encoder = TransformerEncoder([layer(0), layer(1)]).float()
        with torch.autocast("cpu", torch.bfloat16):
            found = encoder(states, mask)
        found.square().sum().backward()
        return [found, *(each.grad for each in encoder.parameters())]

    with torch.autocast("cpu", torch.bfloat16):
        assert Packing(mask).tail == 8 - mask.sum()
    spared = outcome()
    monkeypatch.setattr(transformer, "spare_rows", lambda count, device: 0)
    for one, other in zip(spared, outcome(), strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_padding_changes_no_bit(dtype):
    encoder = TransformerEncoder([layer(0), layer(1)]).to(dtype).eval()
    mask = bools(MASKS["ragged, with a gap"])
    states = draw((*mask.shape, HIDDEN)).to(dtype)
    wider = torch.cat([mask, mask.new_zeros(len(mask), 7)], dim=1)
    noise = torch.full((len(mask), 7, HIDDEN), torch.nan, dtype=dtype)
    got = encoder(torch.cat([states, noise], dim=1), wider)
    assert torch.equal(got[:, : mask.shape[1]], encoder(states, mask))
