"""Batches that other processes make are those of one process, wherever the run begins; the memory that they travel in
is used again, and stays as it was written as long as anything of them is alive."""

import gc
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from captioned_records import make_store, run_pretrain
from safetensors.torch import load_file
from toy_training import log_of

from roibeam.pipelines.data.batches import batch_workers
from roibeam.pipelines.data.batches.batch_workers import BatchReader, BatchWriter, batches_ahead, empty_tensor
from roibeam.pipelines.pretraining.samples.sampling import DataConfig
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.training.train_config import TrainConfig


def first(stream, count):
    return [next(stream) for _ in range(count)]


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_come_in_order(workers):
    stream = batches_ahead(lambda: iter(range(1000)), lambda place: torch.full((2,), place), workers=workers)
    assert [int(made[0]) for made in first(stream, 20)] == list(range(20))


def test_an_error_is_raised_in_its_turn_as_it_was():
    def make(place):
        if place == 3:
            raise ValueError("record 'x': its features are gone")
        return place

    stream = batches_ahead(lambda: iter(range(100)), make, workers=2)
    assert first(stream, 3) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"^record 'x': its features are gone$"):
        next(stream)


STREAM = """
from itertools import count
from roibeam.pipelines.data.batches.batch_workers import batches_ahead
stream = batches_ahead(lambda: count(), lambda place: place, workers=2)
print(next(stream), flush=True)
1 / 0
"""


@pytest.mark.slow
def test_a_script_that_fails_with_a_stream_in_use_ends():
    """At exit the interpreter tells its children to end, and waits for them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command, options = [sys.executable, "-c", STREAM], {"capture_output": True, "text": True, "env": environment}
    done = subprocess.run(command, check=False, timeout=120, **options)
    assert (done.returncode, done.stdout) == (1, "0\n") and "ZeroDivisionError" in done.stderr, done.stderr


def test_the_generators_of_the_run_are_left_alone():
    torch.manual_seed(7)
    np.random.seed(7)
    before = torch.get_rng_state()
    first(batches_ahead(lambda: iter(range(100)), lambda place: torch.rand(1), workers=2), 4)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("system", ["vlbert", "imagebert"])
def test_a_run_with_workers_is_the_run_without_also_after_a_stop(tmp_path, system):
    store = make_store()
    settings = {"train_config": TrainConfig(steps=5, learning_rate=1e-3, device="cpu"), "system": SYSTEMS[system]}
    alone = run_pretrain(store, tmp_path / "alone", data=DataConfig(batch_size=3), **settings)
    run_pretrain(store, tmp_path / "helped", data=DataConfig(batch_size=3, workers=2), stop_at_step=2, **settings)
    other = DataConfig(batch_size=3, workers=1)
    goes_on = run_pretrain(store, tmp_path / "helped", data=other, resume=True, **settings)
    left, right = (load_file(run.training.checkpoint / "model" / "model.safetensors") for run in (alone, goes_on))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert log_of(tmp_path / "alone") == log_of(tmp_path / "helped") and len(log_of(tmp_path / "alone")) == 5


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
