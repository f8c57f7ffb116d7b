"""Files of a run's folder: its newest checkpoint, and what is surely on the disk. No torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

CHECKPOINTS = "checkpoints"  # folder of a run


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint folder with the highest step, or None. Every folder of that name is complete."""
    found = sorted((Path(run_dir) / CHECKPOINTS).glob("step-*"))
    return found[-1] if found else None


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    return run_dir / CHECKPOINTS / f"step-{step:08d}"


def checkpoint_step(folder: Path) -> int:
    """The step that a folder of `checkpoint_folder` is of."""
    return int(folder.name.removeprefix("step-"))


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def sync_to_disk(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
