"""Devices, processes and threads of a run, known before torch is imported.

`--device` is chosen here. A GPU that is there must never be denied: `most_gpus` leaves every doubt to torch, and to the
seconds that torch takes. Of the processes of a launcher the first one logs; errors are logged by all.

An OpenMP thread that waits for work spins for about a millisecond. On free cores that is fastest: small models train
1.3 to 2.6 times as fast as with threads that sleep at once. Beside some ten other programs a step with threads that
sleep took 0.44 of the time (BENCHMARKS.md). So it is decided when a training begins. Results are the same bit for bit.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from roibeam.messages import plural


def is_main_process() -> bool:
    """Whether this is the first process of a run, by the rank that torchrun and accelerate set; without torch."""
    return int(os.environ.get("RANK", "0")) == 0


def num_processes() -> int:
    """Number of processes of a run, before `train`."""
    return int(os.environ.get("WORLD_SIZE", "1"))


# `extra` of a log record that only this process has, such as on a photo that it could not read.
OF_THIS_PROCESS: Mapping[str, object] = MappingProxyType({"of_this_process": True})


def main_process_only(record: logging.LogRecord) -> bool:
    """Log filter that keeps records of the main process, errors, and records marked `OF_THIS_PROCESS`."""
    return record.levelno >= logging.ERROR or is_main_process() or hasattr(record, "of_this_process")


# With these, torch's "cuda" may be a GPU without files of NVIDIA's: AMD's on Linux, any in WSL.
_OTHER_WAYS = ("dev/kfd", "dev/dxg")
_NOT_OF_NVIDIA = ("nvme", "nvram")  # of the entries of /dev that begin with nv


def _driver_loads() -> bool:
    """Whether CUDA's driver library is here; the kernel's part is loaded by it, as late as CUDA's start."""
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
    """Upper bound of torch's count of GPUs; None where it is not certain. `root` is that of the file system."""
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


@dataclass(frozen=True)
class DeviceChoice:
    """Device of a command.

    Attributes:
        name: for torch: "cpu", "cuda" (torch's current one, or of several each process its own) or "cuda:<n>".
        words: a line for people: the device, and the option for another one where there is one.
        is_here: False for a GPU of other machines: of a cluster, or one that this machine lacks while a run is only
            planned.
    """

    name: str
    words: str
    is_here: bool = True


def check_device_name(device: str) -> None:
    """Raises ValueError for an unknown device name, without torch."""
    if device != "auto" and not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise ValueError(f"--device {device!r}: expected auto, cpu, cuda or cuda:<n>")


def check_device(device: str) -> None:
    """Raises ValueError for an unknown device name, and for a GPU that this machine surely lacks, without torch."""
    check_device_name(device)
    most = most_gpus() if device.startswith("cuda") else None
    if most is not None and _number(device) >= most:
        raise ValueError(_lacking(device, f"at most {plural(most, 'GPU')}" if most else "no GPU"))


def choose_device(
    device: str, *, threads: int | None = None, processes: int = 1, spreads: bool = False, to_plan: bool = False
) -> DeviceChoice:
    """Returns the device to compute on, on this machine.

    Args:
        device: "auto" (a GPU where torch sees one, else "cpu"), "cpu", "cuda" or "cuda:<n>".
        threads: CPU threads of each process; None for torch's choice.
        processes: that compute at once.
        spreads: whether they share out several GPUs among themselves.
        to_plan: nothing is computed but an estimate: a GPU that this machine lacks is no error.
    """
    check_device_name(device)
    import torch

    count = torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and not count):
        gpu = "a GPU" if count > 1 else "the GPU"
        cure = f"; --device cuda takes {gpu} ({torch.cuda.get_device_name(0)})" if count else ""
        several = "" if processes == 1 else f"{processes} processes of "
        return DeviceChoice("cpu", f"on the CPU, {several}{plural(threads or torch.get_num_threads(), 'thread')}{cure}")
    kind, _, number = device.replace("auto", "cuda").partition(":")
    if _number(device) >= count:
        sees = plural(count, "GPU") if count else "no GPU"
        if not to_plan:
            raise ValueError(_lacking(device, sees))
        return DeviceChoice(device, f"planned for {device}; torch sees {sees} here", is_here=False)
    name = torch.cuda.get_device_name(int(number or 0))
    if spreads and not number and count > 1:
        used = f"{min(processes, count)} of {count} GPUs" if processes < count else f"{count} GPUs"
        cure = f"; --workers {count} takes all" if processes < count else ""
        return DeviceChoice(kind, f"on {used} ({name}), each process on one{cure}")
    return DeviceChoice(f"{kind}:{number}" if number else kind, f"on cuda:{number or 0} ({name})")


def workers_device(device: str) -> DeviceChoice:
    """Returns the device of the workers of a cluster. Their GPUs are not known here, so "auto" is "cpu"."""
    check_device_name(device)
    if device == "auto":
        return DeviceChoice("cpu", "on the CPUs of the workers; --device cuda takes their GPUs")
    if device == "cpu":
        return DeviceChoice("cpu", "on the CPUs of the workers")
    return DeviceChoice(device, f"on {device} of the workers", is_here=False)


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _lacking(device: str, sees: str) -> str:
    return f"--device {device}: torch sees {sees} here; --device cpu takes the CPU"


logger = logging.getLogger(__name__)
POLICY = "OMP_WAIT_POLICY"
_CHOSEN = (POLICY, "GOMP_SPINCOUNT", "OMP_NUM_THREADS")  # set by the user
_BUSY = 0.3  # cores: less is what a machine does by itself
_LEAST_SECONDS = 0.05  # ticks of the processor's clock are 0.01 s


class CoreTimes(NamedTuple):
    """Seconds since some start: CPU time of all cores, CPU time of this process with its children, and wall time."""

    all_cores: float
    own: float
    passed: float

    @classmethod
    def now(cls) -> CoreTimes | None:
        """Returns the present times; None where the system does not provide them."""
        try:
            words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        except OSError:
            return None
        user, nice, system = (int(word) for word in words[:3])
        own = os.times()
        ticks = os.sysconf("SC_CLK_TCK")
        return cls((user + nice + system) / ticks, own.user + own.system, own.elapsed)


def busy_elsewhere(before: CoreTimes, after: CoreTimes) -> float:
    """Average number of cores that other programs kept busy between two moments; 0 if too little time has passed."""
    passed = after.passed - before.passed
    if passed < _LEAST_SECONDS:
        return 0.0
    return max(0.0, (after.all_cores - before.all_cores) - (after.own - before.own)) / passed


_STARTED = CoreTimes.now()  # commands import this first of all


def sleep_beside_others() -> None:
    """Lets waiting threads of this process and its children sleep, if other programs have kept a core busy since the
    command began. Must be called before torch is loaded, which reads the setting once."""
    now = CoreTimes.now()
    if _STARTED is None or now is None or "torch" in sys.modules or any(name in os.environ for name in _CHOSEN):
        return
    busy = busy_elsewhere(_STARTED, now)
    if busy < _BUSY:
        return
    os.environ[POLICY] = "PASSIVE"
    message = "other programs keep %.1f of %s cores busy: threads that wait sleep (%s=PASSIVE)"
    logger.info(message, busy, os.cpu_count(), POLICY)
