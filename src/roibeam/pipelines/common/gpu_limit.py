"""How many GPUs a process can have at most, as far as that is certain without torch.

A GPU that is there must never be denied. So whatever leaves a doubt is left to torch, and takes the seconds that torch
takes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

# With these, torch's "cuda" may be a GPU that no file of NVIDIA's tells of: AMD's on Linux, any in WSL.
_OTHER_WAYS = ("dev/kfd", "dev/dxg")
_NOT_OF_NVIDIA = ("nvme", "nvram")  # of the entries of /dev that begin with nv


def _driver_loads() -> bool:
    """Whether CUDA's driver library is here. What loads the kernel's part does so by it, as late as CUDA's start."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def most_gpus(
    root: Path = Path("/"),
    environment: Mapping[str, str] = os.environ,
    *,
    platform: str = sys.platform,
    driver_loads: Callable[[], bool] = _driver_loads,
) -> int | None:
    """A number that torch's count of GPUs does not exceed; None where that is not certain.

    Args:
        root: of the file system.
    """
    if platform != "linux" or any((root / way).exists() for way in _OTHER_WAYS):
        return None
    limits = [_named(environment.get("CUDA_VISIBLE_DEVICES")), _there(root, environment, driver_loads)]
    return min((limit for limit in limits if limit is not None), default=None)


def _named(visible: str | None) -> int | None:
    """GPUs that CUDA_VISIBLE_DEVICES names; what CUDA does not understand in it makes them fewer."""
    if visible is None:
        return None
    return 0 if not visible or visible.startswith("-") else len(visible.split(","))


def _there(root: Path, environment: Mapping[str, str], driver_loads: Callable[[], bool]) -> int | None:
    """GPUs of the machine or container."""
    driver = root / "proc/driver/nvidia"
    listed = len(list(driver.glob("gpus/*")))
    if listed:
        in_parts = any(driver.glob("capabilities/gpu*/mig/gi*")) or "MIG" in environment.get("CUDA_VISIBLE_DEVICES", "")
        # A container may list the GPUs of its host, or have only some of their files: the larger number is safe.
        return None if in_parts else max(listed, len(list(root.glob("dev/nvidia[0-9]*"))))
    files = [each.name for each in root.glob("dev/nv*") if not each.name.startswith(_NOT_OF_NVIDIA)]
    return None if driver.exists() or files or driver_loads() else 0
