"""Batches that other processes make are those of one process, wherever the run begins."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from captioned_records import make_store, run_pretrain
from safetensors.torch import load_file
from toy_training import log_of

from roibeam.pipelines.data.batches.batch_workers import batches_ahead
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
    done = subprocess.run(
        [sys.executable, "-c", STREAM], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
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
    helped = DataConfig(batch_size=3, workers=2)
    run_pretrain(store, tmp_path / "helped", data=helped, stop_at_step=2, **settings)
    other = DataConfig(batch_size=3, workers=1)
    goes_on = run_pretrain(store, tmp_path / "helped", data=other, resume=True, **settings)
    left, right = (load_file(run.training.checkpoint / "model" / "model.safetensors") for run in (alone, goes_on))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert log_of(tmp_path / "alone") == log_of(tmp_path / "helped") and len(log_of(tmp_path / "alone")) == 5
