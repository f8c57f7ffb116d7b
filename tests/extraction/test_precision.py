"""The switches that make float32 plain: for the whole time that any thread is inside, and back afterwards."""

from __future__ import annotations

import threading

import pytest
import torch

from roibeam.extraction.network.precision import plain_float32

CPU = torch.device("cpu")


def switches():
    return torch.backends.cudnn.conv.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.fixture
def fast_and_loose():
    """What a caller may have switched on before, as values to expect back."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.deterministic = False
    yield switches()
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.deterministic = before[1]


def test_plain_inside_and_as_before_outside(fast_and_loose):
    assert fast_and_loose != ("ieee", "ieee")
    with plain_float32(CPU), plain_float32(CPU):
        assert switches() == ("ieee", "ieee") and torch.backends.cudnn.deterministic
    assert switches() == fast_and_loose and not torch.backends.cudnn.deterministic


def test_an_error_inside_puts_the_switches_back(fast_and_loose):
    with pytest.raises(ZeroDivisionError), plain_float32(CPU):
        1 / 0  # noqa: B018
    assert switches() == fast_and_loose


def test_the_first_thread_to_leave_changes_nothing_for_the_others(fast_and_loose):
    entered, leave, seen = threading.Event(), threading.Event(), []

    def stay():
        with plain_float32(CPU):
            entered.set()
            leave.wait(10)
            seen.append((switches(), torch.backends.cudnn.deterministic))

    other = threading.Thread(target=stay)
    with plain_float32(CPU):
        other.start()
        assert entered.wait(10)
    assert switches() == ("ieee", "ieee")  # this thread has left, the other is inside
    with plain_float32(CPU):
        pass
    leave.set()
    other.join(10)
    assert seen == [(("ieee", "ieee"), True)]
    assert switches() == fast_and_loose and not torch.backends.cudnn.deterministic


def test_autocast_of_the_caller_ends_at_the_door():
    a = torch.rand(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), plain_float32(CPU):
        assert (a @ a).dtype == torch.float32


def test_tf32_is_for_cuda_and_waits_for_those_who_want_none():
    entered, order = threading.Event(), []

    def round_products():
        entered.set()
        with plain_float32(CPU, tf32=True):
            order.append((torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision))

    other = threading.Thread(target=round_products)
    with plain_float32(CPU):
        other.start()
        assert entered.wait(10)
        other.join(0.2)
        assert not order  # it waits
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    other.join(10)
    assert order[0][0] == "tf32" and order[0][1] in ("ieee", "none")
