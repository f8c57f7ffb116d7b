"""Device, precision and processes of a run, by its settings."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs

from roibeam.pipelines.common.device_choice import choose_device
from roibeam.pipelines.common.launched import num_processes
from roibeam.pipelines.training.train_config import TrainConfig


def make_accelerator(config: TrainConfig) -> Accelerator:
    """Device, precision and processes of a run, by its settings; ValueError where the machine has no such device."""
    if config.device.startswith("cuda"):
        name = choose_device(config.device).name
        if ":" in name and num_processes() > 1:
            raise ValueError(
                f"--device {name} is for one process; of several each takes a GPU of its own: --device cuda"
            )
        if ":" in name:
            torch.cuda.set_device(name)
    # accelerate keeps device and precision in a process-wide state and refuses a second, different one; a process may
    # train twice (tests, a notebook).
    AcceleratorState._reset_state(reset_partial_state=True)
    if config.precision == "fp16" and not torch.accelerator.is_available():
        raise ValueError("precision fp16 needs an accelerator, and this machine has none; choose bf16 or fp32")
    return Accelerator(
        # Without being told so, accelerate does not join processes of a machine that has no accelerator.
        cpu=config.device == "cpu" or not torch.accelerator.is_available(),
        mixed_precision="no" if config.precision == "fp32" else config.precision,
        # A loss, and with it a head, may have no sample in one process and some in another.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
