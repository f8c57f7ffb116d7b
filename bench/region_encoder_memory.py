"""What the region encoder keeps for the backward pass: `python bench/region_encoder_memory.py [--regions 36]`.

One forward pass at true size (ResNet-101, 600 x 1000 pixels, float32) for each way of keeping; the sum of the tensors
that autograd holds afterwards, weights and input left out.
"""

from __future__ import annotations

import argparse

import torch

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.region_encoder import RegionEncoder


def kept_megabytes(encoder: RegionEncoder, photos: int, regions: int) -> float:
    """MB that autograd holds between a forward and a backward pass."""
    pixels, boxes = (
        torch.zeros(photos, 3, 600, 1000),
        torch.tensor([10.0, 20.0, 500.0, 400.0]).expand(photos, regions, 4),
    )
    known = {tensor.data_ptr() for tensor in [*encoder.state_dict().values(), pixels, boxes]}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in known:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = encoder(pixels, boxes, torch.ones(photos, regions, dtype=torch.bool))
    assert output.requires_grad
    return sum(kept.values()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=1, help="photos in the batch")
    parser.add_argument("--regions", type=int, default=36, help="regions of each photo")
    arguments = parser.parse_args()
    print("| way | MB kept |\n|---|---|")
    for recompute in (False, True):
        encoder = RegionEncoder(CONFIGS["vg-r101-c4-600"], recompute=recompute)
        kept = kept_megabytes(encoder, arguments.photos, arguments.regions)
        print(f"| {'computed again' if recompute else 'kept'} | {kept:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
