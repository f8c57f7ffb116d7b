"""An exponential moving average of a model's weights, to be validated and saved beside them.

arXiv:2003.13198, appendix 6.2: "we apply exponential moving average with a rate of 0.9999 on the finetuned models";
black4321/InterBERT train_tasks.py, `--use_ema`. It starts from the initial weights and is not corrected for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ExponentialAverage:
    """Averages of everything in a model's state dict, buffers too; whole numbers in it are copied, not averaged.

    Args:
        model: gives the starting values; the average does not hold on to it.
        rate: what is kept of the average at each update, from 0 to below 1.
    Raises:
        ValueError: for another rate.
    """

    def __init__(self, model: nn.Module, *, rate: float = 0.9999) -> None:
        if not 0 <= rate < 1:
            raise ValueError(f"the rate of an exponential average must be from 0 to below 1, got {rate}")
        self.rate = rate
        self._average = {name: _averaged(tensor) for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Call it after each step of the optimiser: average -= (1 - rate) * (average - weight)."""
        for name, tensor in model.state_dict().items():
            average = self._average[name]
            if average.is_floating_point():
                average.lerp_(tensor.to(average.dtype), 1 - self.rate)
            else:
                average.copy_(tensor)

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
        """By the model's own names, at least float32; loads into the model too. The rate is not in it."""
        return {name: tensor.clone() for name, tensor in self._average.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """
        Raises:
            ValueError: naming a tensor that is missing, too much, or of another shape.
        """
        for name in [*self._average, *state]:
            got, want = (str(tuple(part[name].shape)) if name in part else "none" for part in (state, self._average))
            if got != want:
                raise ValueError(f"exponential average of {name}: the file has {got}, the model {want}")
        for name, average in self._average.items():
            average.copy_(state[name])


def _averaged(tensor: Tensor) -> Tensor:
    """A copy, in float32 where it has less: a step of 1e-4 is lost in bfloat16."""
    precise = torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(precise, copy=True)
