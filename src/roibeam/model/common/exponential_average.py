"""An exponential moving average of a model's weights, to be validated and saved beside them.

arXiv:2003.13198, appendix 6.2: "we apply exponential moving average with a rate of 0.9999 on the finetuned models".
Two rules for n updates, w(k) being the weights after update k:

    "first_update"  the mean of w(1) to w(n), w(k) weighing rate^(n - k): Adam's correction of its means, for weights
    "initial"       rate^n of w(0), the rest of w(1) to w(n): black4321/InterBERT train_tasks.py, `--use_ema`

The first is right: an average of trained weights has no share of those from before training. The second has rate^n of
them, at 0.9999 still nine tenths after 1,000 updates; only much later are both alike.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

FIRST_UPDATE, INITIAL = "first_update", "initial"
STARTS = (FIRST_UPDATE, INITIAL)


class ExponentialAverage:
    """Averages of everything in a model's state dict, buffers too; whole numbers in it are copied, not averaged.

    Args:
        model: gives the values before the first update; the average does not hold on to it.
        rate: share of the average that is kept at each update, from 0 to below 1.
        start: whether the weights from before the "first_update" count nothing, or the "initial" ones are averaged too.
    """

    def __init__(self, model: nn.Module, *, rate: float = 0.9999, start: str = FIRST_UPDATE) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"the rate of an exponential average must be from 0 to below 1, got {rate}")
        if start not in STARTS:
            raise ValueError(f"an exponential average starts from {' or '.join(STARTS)}, got {start!r}")
        self.rate, self.start, self.updates = rate, start, 0
        self._average = {name: _averaged(tensor) for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Call it after each step of the optimiser: average -= share * (average - weight)."""
        self.updates += 1
        share = self._share()
        for name, tensor in model.state_dict().items():
            average = self._average[name]
            if average.is_floating_point():
                average.lerp_(tensor.to(average.dtype), share)
            else:
                average.copy_(tensor)

    def _share(self) -> float:
        """Share of the newest weights in the average: 1 - rate, over the sum of all shares without the initial ones."""
        if self.start == INITIAL or self.rate == 0:
            return 1 - self.rate
        return (1 - self.rate) / -math.expm1(self.updates * math.log(self.rate))

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model has the average's values inside the block, and its own again afterwards, bit for bit."""
        own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(self._average)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def state_dict(self) -> dict[str, Tensor]:
        """Averages by the model's own names, at least float32; loads into the model too. Without other attributes."""
        return {name: tensor.clone() for name, tensor in self._average.items()}

    def load_state_dict(self, state: Mapping[str, Tensor], *, updates: int) -> None:
        """Raises ValueError naming a tensor that is missing, too much, or of another shape."""
        for name in [*self._average, *state]:
            got, want = (str(tuple(part[name].shape)) if name in part else "none" for part in (state, self._average))
            if got != want:
                raise ValueError(f"exponential average of {name}: the file has {got}, the model {want}")
        for name, average in self._average.items():
            average.copy_(state[name])
        self.updates = updates


def _averaged(tensor: Tensor) -> Tensor:
    """A copy, in float32 where it has less: a step of 1e-4 is lost in bfloat16."""
    precise = torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(precise, copy=True)
