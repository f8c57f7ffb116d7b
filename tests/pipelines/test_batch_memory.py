"""Batches that travel in memory that is used again are what was written, as long as anything of them is alive."""

import gc
import pickle
from dataclasses import dataclass

import pytest
import torch

from roibeam.pipelines.data.batches import batch_workers
from roibeam.pipelines.data.batches.batch_workers import BatchReader, BatchWriter, empty_tensor


@dataclass(frozen=True)
class Batch:
    name: str
    large: torch.Tensor
    small: torch.Tensor | None


@pytest.fixture
def pair():
    yield BatchWriter(), BatchReader()
    batch_workers._writer = None  # else other tests of this process would write into its blocks


def sent(writer, reader, value, rows=3, dtype=torch.float16):
    """A batch of that value, in the memory of the writer, as the reader gets it."""
    writer.begin()
    large = empty_tensor((rows, 5), dtype)
    large.fill_(value)
    written = writer.write(Batch(f"batch {value}", large, torch.full((2, 3), value).T))
    rest = pickle.loads(pickle.dumps(written.rest))  # what does not lie in the block goes through a pipe
    assert len(rest) < 500
    return reader.read(written), written


def is_of(batch, value):
    large, small = batch.large == value, batch.small == value
    return batch.name == f"batch {value}" and bool(large.all()) and bool(small.all()) and batch.small.shape == (3, 2)


def test_a_batch_that_is_gone_makes_room_for_the_next(pair):
    batch, first = sent(*pair, 1)
    assert is_of(batch, 1) and first.memory is not None
    del batch
    gc.collect()
    batch, second = sent(*pair, 2)
    assert is_of(batch, 2) and (second.block, second.memory) == (first.block, None)


@pytest.mark.parametrize("kept", ["large", "small", "a row", "numbers"])
def test_what_is_alive_is_not_written_over(pair, kept):
    batch, first = sent(*pair, 1)
    keep = {"large": batch.large, "small": batch.small, "a row": batch.large[1:2], "numbers": batch.large[0].numpy()}
    held = keep[kept]
    del batch, keep
    others = [sent(*pair, value) for value in (2, 3)]
    assert (torch.as_tensor(held) == 1).all() and first.block not in {written.block for _, written in others}
    assert all(is_of(batch, value) for (batch, _), value in zip(others, (2, 3), strict=True))
    del held
    gc.collect()
    assert sent(*pair, 4)[1].block == first.block


def test_a_batch_that_does_not_fit_gets_a_larger_block(pair):
    _, reader = pair
    first = sent(*pair, 1)[1]
    batch, second = sent(*pair, 2, rows=400)
    assert is_of(batch, 2) and batch.large.shape == (400, 5) and second.given_up == first.block
    assert list(reader._blocks) == [second.block]
    del batch
    batch, third = sent(*pair, 3, rows=2, dtype=torch.bfloat16)
    assert is_of(batch, 3) and batch.large.dtype == torch.bfloat16 and third.block == second.block


def test_empty_tensors_and_none_travel_too(pair):
    writer, reader = pair
    for _ in range(2):  # in a new block, then in one that is there
        writer.begin()
        batch = reader.read(writer.write(Batch("", empty_tensor((4, 0, 7), torch.float32), None)))
        assert batch.large.shape == (4, 0, 7) and batch.small is None


def test_without_a_writer_memory_is_ordinary():
    assert batch_workers._writer is None and empty_tensor((2, 3), torch.float64).shape == (2, 3)
