"""The kinds of weight files that are written, by name. No torch until one is: a wrong name is said at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WeightFormat:
    """A kind of file that can be written.

    Attributes:
        suffix: of such files; None of them is told by another.
        family: whose names and layout it has (`FAMILIES`).
        conventions: preset whose order and side rule its anchors are written in.
        needs_anchors: whether its readers want `cell_anchors.0` always: Hugging Face's loader is strict, and MILVLG's
            network computes others than it was trained with.
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
    """The key of `FORMATS` that is asked for, or that the suffix of the file to write says.

    Raises:
        ValueError: for an unknown name or suffix, with those that there are.
    """
    name = to or next((name for name, kind in FORMATS.items() if kind.suffix == out.suffix), "")
    if name not in FORMATS:
        asked = f"--to {name!r}" if name else f"{out}: suffix {out.suffix!r}"
        known = ", ".join(f"{name} ({kind.suffix})" for name, kind in FORMATS.items())
        raise ValueError(f"{asked} is no format that is written; there are {known}")
    return name


def check_written_file(out: Path, to: str) -> None:
    """Raises ValueError where such a file cannot be written: it is there, has no folder, or another suffix.

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
