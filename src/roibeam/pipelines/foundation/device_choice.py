"""What `--device` means on a machine."""

from __future__ import annotations

import torch


def choose_device(asked: str, *, here: bool = True) -> tuple[str, str]:
    """The device to compute on, and a line that says which it is.

    Args:
        asked: "auto" (a GPU where torch sees one on this machine, else "cpu"), "cpu", "cuda" or "cuda:<n>".
        here: whether this machine computes; other machines' devices are not known, and "auto" is "cpu".
    Raises:
        ValueError: for another device, or one that this machine does not have.
    """
    if asked == "auto":
        if not here:
            return "cpu", "on the CPUs of the workers; --device cuda takes their GPUs"
        if not torch.cuda.is_available():
            return "cpu", "on cpu: torch sees no GPU here"
        asked = "cuda"
    try:
        parsed = torch.device(asked)
    except RuntimeError:
        parsed = None
    if parsed is None or parsed.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {asked!r}: expected auto, cpu, cuda or cuda:<n>")
    if parsed.type == "cpu" or not here:
        return asked, f"on {asked}" if here else f"on {asked} of the workers"
    count = torch.cuda.device_count()
    if (parsed.index or 0) >= count:
        raise ValueError(f"--device {asked!r}: torch sees {count} CUDA devices here")
    name = torch.cuda.get_device_name(parsed.index or 0)
    if parsed.index is None and count > 1:
        return asked, f"on {count} GPUs ({name}), each process on one"
    return asked, f"on cuda:{parsed.index or 0} ({name})"
