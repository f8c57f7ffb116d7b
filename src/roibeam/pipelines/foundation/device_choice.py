"""What `--device` means on a machine."""

from __future__ import annotations

import re


def check_device_name(asked: str) -> None:
    """Raises ValueError for what names no device, without asking torch."""
    if asked != "auto" and not re.fullmatch(r"(cpu|cuda)(:[0-9]+)?", asked):
        raise ValueError(f"--device {asked!r}: expected auto, cpu, cuda or cuda:<n>")


def choose_device(asked: str, *, here: bool = True) -> tuple[str, str]:
    """The device to compute on, and a line that says which it is.

    Args:
        asked: "auto" (a GPU where torch sees one on this machine, else "cpu"), "cpu", "cuda" or "cuda:<n>".
        here: whether this machine computes; other machines' devices are not known, and "auto" is "cpu".
    Raises:
        ValueError: for another device, or one that this machine does not have.
    """
    check_device_name(asked)
    if not here:
        if asked == "auto":
            return "cpu", "on the CPUs of the workers; --device cuda takes their GPUs"
        return asked, f"on {asked} of the workers"
    if asked.startswith("cpu"):
        return asked, f"on {asked}"
    import torch

    count = torch.cuda.device_count()
    if asked == "auto" and not count:
        return "cpu", "on cpu: torch sees no GPU here"
    kind, _, number = asked.replace("auto", "cuda").partition(":")
    if int(number or 0) >= count:
        raise ValueError(f"--device {asked!r}: torch sees {count} CUDA devices here")
    name = torch.cuda.get_device_name(int(number or 0))
    if not number and count > 1:
        return kind, f"on {count} GPUs ({name}), each process on one"
    return f"{kind}:{number}" if number else kind, f"on cuda:{number or 0} ({name})"
