"""Modes of a detector: departures from float32, one photo at a time, for speed. Each is named in `numerics`.

Boxes, anchors, suppression, the pooling of regions, means and the linear heads are float32 in every mode.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from roibeam.extraction.network.config import CPU_REGION_CHUNK, DetectorConfig

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mode:
    """Arithmetic of a detector's convolutions.

    Attributes:
        name: as in a fingerprint.
        bf16: whether their weights, and the maps between them, are bfloat16 in place of float32.
        tf32: whether a GPU may round the inputs of float32 convolutions to TF32.
        gpu_region_chunk: regions that go through res5 at once on a GPU. Of the numbers that keep an H200 busy, one at
            which the kernels that cuDNN takes do not make a region's last digits a matter of its place in the chunk.
        photos_per_call: photos of one input size that share a call of the backbone and the proposal network. Above
            1, the last digits of a feature depend on the other photos of the call.
    """

    name: str
    bf16: bool = False
    tf32: bool = False
    gpu_region_chunk: int = 160
    photos_per_call: int = 1

    @property
    def conv_dtype(self) -> torch.dtype:
        """Type of the convolutions' weights and of the maps between them."""
        import torch  # here: names of modes are checked without it

        return torch.bfloat16 if self.bf16 else torch.float32

    def regions_at_once(self, config: DetectorConfig, device: torch.device) -> int:
        """`DetectorConfig.region_chunk`, or a number that suits the device."""
        if config.region_chunk is not None:
            return config.region_chunk
        return CPU_REGION_CHUNK if device.type == "cpu" else self.gpu_region_chunk


MODES = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            # Every shape of a kernel call is fixed: a feature depends on its photo and box only, bit for bit.
            Mode("exact"),
            Mode("batched", photos_per_call=8),
            # As exact, the same shapes; the GPU's matrix units, which keep 10 bits of each factor.
            Mode("tf32", tf32=True, gpu_region_chunk=112),
            # As exact, the same shapes; 8 bits of each factor and of every map, sums in float32.
            Mode("bf16", bf16=True),
        )
    }
)


def mode_named(name: str, device: torch.device | str | None = None) -> Mode:
    """The mode of that name.

    Args:
        device: device of the calls, if known.
    """
    if name not in MODES:
        raise ValueError(f"mode {name!r}: choose one of {', '.join(MODES)}")
    if device is not None and MODES[name].tf32 and _kind(device) != "cuda":
        raise ValueError(f"{name} needs a GPU, and the device is {str(device)!r}: choose bf16, or float32 (mode exact)")
    return MODES[name]


def warn_if_slow(mode: Mode, device: torch.device | str) -> None:
    """Warns if a CPU has no instructions for the mode, which is slower than exact then."""
    if mode.bf16 and _kind(device) == "cpu" and bf16_instructions() == "none":
        _log.warning("%s: this CPU has no bfloat16 instructions; float32 (mode exact) is faster here", mode.name)


def bf16_instructions() -> str:
    """This CPU's instructions for bfloat16 products: "amx", "avx512_bf16", or "none": mode bf16 is then slow."""
    import torch

    # Private, but torch has no public name for them.
    if torch.cpu._is_amx_tile_supported():
        return "amx"
    return "avx512_bf16" if torch.cpu._is_avx512_bf16_supported() else "none"


def _kind(device: torch.device | str) -> str:
    """ "cuda" of "cuda:1"."""
    return str(device).partition(":")[0]
