"""Formats of weight files: the container of a file by its first bytes, and the kinds that are written, by name.

No torch until a file is written: a wrong name or file is reported before seconds are spent on importing it. The suffix
only decides for `.caffemodel`, which has no signature.

| container | recognised by | read by |
|---|---|---|
| safetensors | a length, then `{` | safetensors |
| torch | a zip archive, or torch's older signature | `torch.load(weights_only=True)` |
| pickle | a pickle's first opcodes | roibeam.features.safe_pickle, which runs nothing |
| caffe | `.caffemodel` | `read_caffemodel` in files.py |
"""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".safetensors", ".pth", ".pt", ".th", ".bin", ".model", ".pkl", ".caffemodel")
# torch/serialization.py MAGIC_NUMBER as pickle writes it: the files of torch before 1.6.
_OLD_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
_MOST_HEADER = 100_000_000  # bytes, as safetensors itself allows
_SHORTEST = 8  # bytes of a safetensors file: the length of its header


def container_of(path: Path) -> str:
    """The container of a file: safetensors, torch, pickle or caffe.

    Raises:
        ValueError: one line, if the file is of no known kind, or is cut off.
        OSError: if it cannot be read.
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
    """Raises ValueError or OSError for a local file that cannot be weights; other weights are not checked."""
    path = Path(spec or "").expanduser()
    if spec is not None and path.exists():
        container_of(path)


def _check_safetensors(path: Path) -> None:
    """Raises ValueError if the header is invalid, or promises other bytes than the file has."""
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


@dataclass(frozen=True)
class WeightFormat:
    """A kind of file for writing.

    Attributes:
        suffix: of such files; None if another one decides.
        family: of its names and layout (`FAMILIES`).
        conventions: preset of the order and side rule of its anchors.
        needs_anchors: whether its readers always need `cell_anchors.0`: Hugging Face's loader is strict, and
            MILVLG's network computes others than it was trained with.
        counted: prefixes of the norms that have `num_batches_tracked` in such files.
        write: tensors, file -> None.
    """

    suffix: str
    family: str
    conventions: str
    needs_anchors: bool
    counted: tuple[str, ...]
    write: Callable[[dict[str, Tensor], Path], None]


def format_named(to: str | None, out: Path) -> str:
    """The requested key of `FORMATS`, else that of the suffix of the file to write.

    Raises:
        ValueError: for an unknown name or suffix, with the known ones.
    """
    name = to or next((name for name, kind in FORMATS.items() if kind.suffix == out.suffix), "")
    if name not in FORMATS:
        requested = f"--to {name!r}" if name else f"{out}: suffix {out.suffix!r}"
        known = ", ".join(f"{name} ({kind.suffix})" for name, kind in FORMATS.items())
        raise ValueError(f"{requested} is no format that is written; there are {known}")
    return name


def check_written_file(out: Path, to: str) -> None:
    """Raises ValueError if such a file cannot be written: it exists, has no folder, or another suffix.

    Args:
        to: key of `FORMATS`.
    """
    suffix = FORMATS[to].suffix
    if out.suffix != suffix:
        raise ValueError(f"{out}: {to} files end in {suffix}; rename it, or choose another --to")
    if out.exists():
        raise ValueError(f"{out}: is there already; name another file, or remove it")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: there is no folder {out.parent}; make it, or name a file in another one")


def _write_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: value.clone() for name, value in tensors.items()}, path)  # it refuses shared memory


def _write_torch(tensors: dict[str, Tensor], path: Path) -> None:
    import torch

    torch.save(tensors, path)


def _write_torch_model(tensors: dict[str, Tensor], path: Path) -> None:
    import torch

    torch.save({"model": tensors}, path)


def _write_pickle(tensors: Mapping[str, Tensor], path: Path) -> None:
    content = {"model": {name: value.numpy() for name, value in tensors.items()}, "__author__": "roibeam"}
    data = pickle.dumps(content, protocol=3)
    # numpy 2 writes a module name that numpy 1, which detectron2 of that time runs on, lacks; both know the older one.
    # In protocol 3 it stands once, as a line of its own, before the first array.
    path.write_bytes(data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n", 1))


_RESNET = ("backbone.", "roi_heads.res5.")
FORMATS = {
    "safetensors": WeightFormat(".safetensors", "detectron2", "hf", False, (), _write_safetensors),
    "detectron2": WeightFormat(".pkl", "detectron2", "hf", False, (), _write_pickle),
    "hf": WeightFormat(".bin", "hf", "hf", True, _RESNET, _write_torch),
    "milvlg": WeightFormat(".pth", "milvlg", "milvlg", True, ("backbone.res4.", "roi_heads.res5."), _write_torch_model),
    "vlbert": WeightFormat(".model", "vlbert", "hf", False, _RESNET, _write_torch),
}
