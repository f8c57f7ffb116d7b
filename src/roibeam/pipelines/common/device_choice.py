"""What `--device` means on a machine, and the line that says which device a command took."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roibeam.features.counted import counted
from roibeam.pipelines.common.gpu_limit import most_gpus


@dataclass(frozen=True)
class DeviceChoice:
    """Where a command computes.

    Attributes:
        name: for torch: "cpu", "cuda" (torch's current one, or of several each process its own) or "cuda:<n>".
        words: for people, a line: which device it is, and how to take another one where there is one.
        is_here: False for a GPU of other machines: those of a cluster, or one that this machine lacks where only the
            plan of a run is made.
    """

    name: str
    words: str
    is_here: bool = True


def check_device_name(asked: str) -> None:
    """Raises ValueError for what names no device, without asking torch."""
    if asked != "auto" and not re.fullmatch(r"cpu|cuda(:[0-9]+)?", asked):
        raise ValueError(f"--device {asked!r}: expected auto, cpu, cuda or cuda:<n>")


def check_device(asked: str) -> None:
    """Raises ValueError for what names no device, and for a GPU that this machine surely lacks. Asks no torch;
    `choose_device` does, where it is not certain.
    """
    check_device_name(asked)
    most = most_gpus() if asked.startswith("cuda") else None
    if most is not None and _number(asked) >= most:
        raise ValueError(_lacking(asked, f"at most {counted(most, 'GPU')}" if most else "no GPU"))


def choose_device(
    asked: str, *, threads: int | None = None, processes: int = 1, spreads: bool = False, to_plan: bool = False
) -> DeviceChoice:
    """The device to compute on, on this machine.

    Args:
        asked: "auto" (a GPU where torch sees one, else "cpu"), "cpu", "cuda" or "cuda:<n>".
        threads: CPU threads of each process; None for torch's choice.
        processes: that compute at once.
        spreads: whether they share out several GPUs among themselves.
        to_plan: nothing is computed but an estimate: a GPU that this machine lacks is no error.
    Raises:
        ValueError: for another device, or one that this machine does not have.
    """
    check_device_name(asked)
    import torch

    count = torch.cuda.device_count()
    if asked == "cpu" or (asked == "auto" and not count):
        gpu = "a GPU" if count > 1 else "the GPU"
        cure = f"; --device cuda takes {gpu} ({torch.cuda.get_device_name(0)})" if count else ""
        return DeviceChoice("cpu", f"on the CPU, {_cpu_words(threads, processes)}{cure}")
    kind, _, number = asked.replace("auto", "cuda").partition(":")
    if _number(asked) >= count:
        sees = counted(count, "GPU") if count else "no GPU"
        if not to_plan:
            raise ValueError(_lacking(asked, sees))
        return DeviceChoice(asked, f"planned for {asked}; torch sees {sees} here", is_here=False)
    name = torch.cuda.get_device_name(int(number or 0))
    if spreads and not number and count > 1:
        used = f"{min(processes, count)} of {count} GPUs" if processes < count else f"{count} GPUs"
        cure = f"; --workers {count} takes all" if processes < count else ""
        return DeviceChoice(kind, f"on {used} ({name}), each process on one{cure}")
    return DeviceChoice(f"{kind}:{number}" if number else kind, f"on cuda:{number or 0} ({name})")


def workers_device(asked: str) -> DeviceChoice:
    """Where the workers of a cluster compute: their devices are not known here, and "auto" is "cpu"."""
    check_device_name(asked)
    if asked == "auto":
        return DeviceChoice("cpu", "on the CPUs of the workers; --device cuda takes their GPUs")
    if asked == "cpu":
        return DeviceChoice("cpu", "on the CPUs of the workers")
    return DeviceChoice(asked, f"on {asked} of the workers", is_here=False)


def _number(asked: str) -> int:
    return int(asked.partition(":")[2] or 0)


def _lacking(asked: str, sees: str) -> str:
    return f"--device {asked}: torch sees {sees} here; --device cpu takes the CPU"


def _cpu_words(threads: int | None, processes: int) -> str:
    import torch

    each = counted(threads or torch.get_num_threads(), "thread")
    return each if processes == 1 else f"{processes} processes of {each}"
