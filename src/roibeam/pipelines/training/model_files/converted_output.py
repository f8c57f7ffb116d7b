"""What a model is converted to, and whether it can be written there; looked at before torch is imported."""

from __future__ import annotations

from pathlib import Path

DIRECTIONS = ("roibeam", "official", "detector")
OF_VLBERT = ".model"
OFFICIAL_SUFFIXES = (".bin", ".th", ".pth", OF_VLBERT, ".safetensors")


def settings_beside(weights: Path) -> Path:
    """The JSON beside an official file with the settings that the file does not show: x.bin.json of x.bin."""
    return weights.with_name(f"{weights.name}.json")


def check_converted_output(out: Path, to: str) -> None:
    """
    Args:
        out: for "roibeam" and "detector" a folder, for "official" a file.
        to: one of `DIRECTIONS`.
    Raises:
        ValueError: for another direction; where OUT is there already, or cannot be written.
    """
    if to not in DIRECTIONS:
        raise ValueError(f"a model is not written as {to!r}; there are {', '.join(DIRECTIONS)}")
    for path in (out, settings_beside(out)) if to == "official" else (out,):
        if path.exists():
            raise ValueError(f"{path} is there already; name another one")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: there is no folder {out.parent}")
    if to == "official" and out.suffix not in OFFICIAL_SUFFIXES:
        raise ValueError(f"{out}: official checkpoints end in {', '.join(OFFICIAL_SUFFIXES)}; rename it")
