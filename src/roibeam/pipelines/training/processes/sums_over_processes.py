"""Numbers by name, added up over all processes of a run in one reduction."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor


class SumsOverProcesses:
    """Adds up rows of `width` numbers by name.

    A process may have names that others lack, such as the loss of a kind of sample that its batch has none of. The
    list of names is agreed on when one of them has a new name; after that it takes one reduction, whatever is in it.
    """

    def __init__(self, accelerator: Accelerator, width: int) -> None:
        self._accelerator, self._width = accelerator, width
        self._names: list[str] = []

    def __call__(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """
        Args:
            own: by name (width,) numbers of this process, exact in float64.
        Returns:
            by name (width,) float64 on the accelerator's device, for all names that any process has; every process
            calls it, and gets the same.
        """
        device = self._accelerator.device
        mine = {name: row.to(device, torch.float64) for name, row in own.items()}
        if self._accelerator.num_processes == 1:
            return mine
        sums = self._reduce(mine)
        if sums[-1, 0] > 0:  # somebody has a name that is not in the list
            known = set(self._names)
            self._names += sorted({name for name in gather_object(list(own)) if name not in known})
            sums = self._reduce(mine)
        place = {name: index for index, name in enumerate(self._names)}
        present = sums[:, -1].tolist()
        found = [*own, *(name for name in self._names if name not in own and present[place[name]])]
        return {name: sums[place[name], :-1] for name in found}

    def _reduce(self, mine: Mapping[str, Tensor]) -> Tensor:
        """(names + 1, width + 1): sums and how many processes have the name; last, how many names are not listed."""
        rows = torch.zeros(len(self._names) + 1, self._width + 1, dtype=torch.float64, device=self._accelerator.device)
        for index, name in enumerate(self._names):
            if name in mine:
                rows[index, :-1] = mine[name]
                rows[index, -1] = 1
        rows[-1, 0] = len(mine.keys() - set(self._names))
        return self._accelerator.reduce(rows, "sum")
