"""How often the processes of a training run add something up."""

import json
from pathlib import Path
from typing import Any

import torch
from small_pretraining import Training
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


def count_reductions(training: Training, folder: Path) -> None:
    """Leaves how many reductions `training` made beside `folder`."""
    counts = {"gradients": 0, "others": 0}
    make, reduce = DistributedDataParallel.__init__, torch.distributed.all_reduce

    def reduce_bucket(group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        counts["gradients"] += 1
        counts["others"] -= 1  # the hook's own call of it
        return allreduce_hook(group, bucket)

    def make_counted(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        self.register_comm_hook(None, reduce_bucket)

    def reduce_counted(*arguments: Any, **options: Any) -> Any:
        counts["others"] += 1
        return reduce(*arguments, **options)

    DistributedDataParallel.__init__ = make_counted  # type: ignore[method-assign]
    torch.distributed.all_reduce = reduce_counted
    training()
    folder.with_name(f"{folder.name}.reductions").write_text(json.dumps(counts))
