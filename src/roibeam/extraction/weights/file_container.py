"""Which container a weight file is, by its first bytes, and whether it is whole as far as they tell.

No torch: what is no weight file is said before seconds are spent on importing it.

The suffix only decides for `.caffemodel`, which has no signature.

| container | recognised by | read by |
|---|---|---|
| safetensors | a length, then `{` | safetensors |
| torch | a zip archive, or torch's older signature | `torch.load(weights_only=True)` |
| pickle | a pickle's first opcodes | roibeam.features.safe_pickle.read, which runs nothing |
| caffe | `.caffemodel` | caffemodel.py |
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

SUFFIXES = (".safetensors", ".pth", ".pt", ".th", ".bin", ".model", ".pkl", ".caffemodel")
# torch/serialization.py MAGIC_NUMBER as pickle writes it: the files of torch before 1.6.
_OLD_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
_MOST_HEADER = 100_000_000  # bytes, as safetensors itself allows
_SHORTEST = 8  # bytes of a safetensors file: the length of its header


def container_of(path: Path) -> str:
    """safetensors, torch, pickle or caffe.

    Raises:
        ValueError: one line, when the file is of no known kind, or is cut off.
        OSError: when it cannot be read.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        raise ValueError(f"weights {path}: is a folder; name the .safetensors or .pth file itself")
    if suffix not in SUFFIXES:
        raise ValueError(f"weights {path}: unknown suffix {path.suffix!r}; readable are {', '.join(SUFFIXES)}")
    if suffix == ".caffemodel":
        return "caffe"
    with path.open("rb") as file:
        head = file.read(16)
    if suffix == ".safetensors" or head[8:9] == b"{":
        _check_safetensors(path)
        return "safetensors"
    if head.startswith(b"PK\x03\x04") or head.startswith(_OLD_TORCH):
        if head.startswith(b"PK") and not zipfile.is_zipfile(path):
            raise ValueError(f"weights {path}: not a complete torch file: its end is missing; fetch it again")
        return "torch"
    if suffix == ".pkl" or (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 1):
        return "pickle"
    raise ValueError(
        f"weights {path}: not a complete torch file, safetensors file or pickle; it starts with {head[:12]!r}"
    )


def check_weight_file(spec: str | os.PathLike[str] | None) -> None:
    """Raises ValueError or OSError for a local file that cannot be weights; no other weights are looked at."""
    path = Path(spec or "").expanduser()
    if spec is not None and path.exists():
        container_of(path)


def _check_safetensors(path: Path) -> None:
    """Raises ValueError where the header is none, or promises other bytes than the file has."""
    there = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(_SHORTEST)
        length = int.from_bytes(first, "little")
        if there < _SHORTEST or length > min(_MOST_HEADER, there):
            what = "it is text" if first.isascii() and first.strip(b"\0") and b"\0" not in first else "it is cut off"
            raise ValueError(f"weights {path}: not a complete safetensors file: {what}; fetch or write it again")
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        promised = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if any(not isinstance(size, int) or size < 0 for entry in header.values() for size in entry["shape"]):
            raise ValueError
        is_whole = _SHORTEST + length + promised == there
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise ValueError(
            f"weights {path}: not a complete safetensors file: its header is damaged; fetch or write it again"
        ) from None
    if not is_whole:
        raise ValueError(
            f"weights {path}: not a complete safetensors file: {there:,} bytes, its header promises "
            f"{_SHORTEST + length + promised:,}; fetch or write it again"
        )
