"""The average of weights against its formula, and that a model gets its own weights back."""

import pytest
import torch
from torch import nn

from roibeam.model.common.exponential_average import INITIAL, STARTS, ExponentialAverage
from roibeam.pipelines.training.train_config import AVERAGE_STARTS


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(self.linear(x))


def train(model, steps, seed=0):
    """A few steps, yielding after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=generator)).square().sum().backward()
        optimizer.step()
        yield


@pytest.mark.parametrize("start", STARTS)
def test_it_is_the_sum_that_the_rule_unrolls_to(start):
    """(1 - rate) rate^(n - k) of the weights after step k; what is missing to 1 is the start, or shared out; buffers
    too."""
    torch.manual_seed(0)
    model, rate, steps = Net(), 0.9, 6
    average = ExponentialAverage(model, rate=rate, start=start)
    assert torch.equal(average.state_dict()["linear.weight"], model.linear.weight)
    seen = [{name: t.clone() for name, t in model.state_dict().items()}]
    for _ in train(model, steps):
        average.update(model)
        seen.append({name: t.clone() for name, t in model.state_dict().items()})
    found = average.state_dict()
    assert found.keys() == model.state_dict().keys()
    shares = [rate**steps] + [(1 - rate) * rate ** (steps - k) for k in range(1, steps + 1)]
    if start != INITIAL:
        shares = [0.0, *(share / sum(shares[1:]) for share in shares[1:])]
    for name in ("linear.weight", "linear.bias", "norm.weight", "norm.running_mean", "norm.running_var"):
        expected = sum(share * state[name].double() for share, state in zip(shares, seen, strict=True))
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found[name], seen[-1][name], atol=1e-3)
    assert found["norm.num_batches_tracked"] == steps


@pytest.mark.parametrize("rate", [0.0, 0.9999])
def test_after_the_first_update_it_is_these_weights(rate):
    torch.manual_seed(0)
    model = Net()
    average = ExponentialAverage(model, rate=rate)
    for _ in train(model, 1):
        average.update(model)
    torch.testing.assert_close(average.state_dict(), dict(model.state_dict()), rtol=1e-6, atol=1e-8)


def test_settings_name_the_same_starts():
    assert AVERAGE_STARTS == STARTS


def test_a_model_has_the_average_inside_the_block_only():
    torch.manual_seed(0)
    model = Net()
    average = ExponentialAverage(model, rate=0.99)
    for _ in train(model, 3):
        average.update(model)
    own = {name: t.clone() for name, t in model.state_dict().items()}
    with average.applied(model):
        assert all(torch.equal(t, average.state_dict()[name]) for name, t in model.state_dict().items())
    assert all(torch.equal(t, own[name]) for name, t in model.state_dict().items())
    with pytest.raises(RuntimeError, match="in the middle"), average.applied(model):
        raise RuntimeError("in the middle")
    assert all(torch.equal(t, own[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("start", STARTS)
def test_stopped_and_resumed_it_is_the_same(start):
    def run(stops):
        torch.manual_seed(0)
        model = Net()
        average = ExponentialAverage(model, rate=0.9, start=start)
        for step, _ in enumerate(train(model, 6)):
            average.update(model)
            if step in stops:
                saved, updates = average.state_dict(), average.updates
                average = ExponentialAverage(Net(), rate=0.9, start=start)
                average.load_state_dict(saved, updates=updates)
        return average.state_dict()

    whole, resumed = run(()), run((1, 3))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_small_steps_are_not_lost_in_a_model_of_bfloat16():
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    average = ExponentialAverage(model, start=INITIAL)
    nn.init.constant_(model.weight, 2.0)
    for _ in range(100):
        average.update(model)
    torch.testing.assert_close(average.state_dict()["weight"], torch.full((4, 4), 2 - 0.9999**100), rtol=1e-5, atol=0)
    with average.applied(model):
        assert model.weight.dtype == torch.bfloat16
    assert (model.weight == 2).all()


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"from 0 to below 1, got 1\.0"):
        ExponentialAverage(Net(), rate=1.0)
    with pytest.raises(ValueError, match=r"starts from first_update or initial, got 'zero'"):
        ExponentialAverage(Net(), start="zero")
    average = ExponentialAverage(Net())
    state = average.state_dict()
    with pytest.raises(ValueError, match=r"linear\.weight: the file has \(2, 4\), the model \(2, 3\)"):
        average.load_state_dict(state | {"linear.weight": torch.zeros(2, 4)}, updates=1)
    with pytest.raises(ValueError, match=r"of more: the file has \(1,\), the model none"):
        average.load_state_dict(state | {"more": torch.zeros(1)}, updates=1)
    counter = "norm.num_batches_tracked"
    with pytest.raises(ValueError, match=rf"{counter}: the file has none, the model \(\)"):
        average.load_state_dict({name: t for name, t in state.items() if name != counter}, updates=1)
