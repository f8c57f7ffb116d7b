"""What training through the region encoder costs: `python bench/region_encoder.py memory` or `seconds`.

memory    what autograd holds between a forward and a backward pass at true size (ResNet-101, 600 x 1000 pixels,
          float32) for each way of keeping; the sum of its tensors, weights and input left out
seconds   processor seconds of a forward and a backward pass of the toy detector's encoder on one thread
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.region_encoder import RegionEncoder, started_encoder
from roibeam.extraction.weights.detector_choice import read_detector_folder

TOY_SIZE = (352, 464)  # pixels of a photo of the toy world in the toy detector's network
PASSES = 3  # in one measurement, after one that is left out


def kept_megabytes(encoder: RegionEncoder, photos: int, regions: int) -> float:
    """MB that autograd holds between a forward and a backward pass."""
    pixels, boxes, mask = inputs(photos, regions, (600, 1000))
    known = {tensor.data_ptr() for tensor in [*encoder.state_dict().values(), pixels, boxes]}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in known:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = encoder(pixels, boxes, mask)
    assert output.requires_grad
    return sum(kept.values()) / 1e6


def inputs(photos: int, regions: int, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pixels, boxes and their mask."""
    boxes = torch.tensor([10.0, 20.0, 0.5 * size[1], 0.6 * size[0]]).expand(photos, regions, 4)
    return torch.zeros(photos, 3, *size), boxes, torch.ones(photos, regions, dtype=torch.bool)


def seconds_of_a_pass(photos: int, regions: int) -> float:
    """Processor seconds, the mean of some passes."""
    torch.set_num_threads(1)
    toy = read_detector_folder("toy")
    encoder = started_encoder(toy.config, toy.conventions, toy.weights)
    pixels, boxes, mask = inputs(photos, regions, TOY_SIZE)
    pixels.normal_(0, 50, generator=torch.Generator().manual_seed(0))
    for number in range(PASSES + 1):
        if number == 1:
            start = time.process_time()
        encoder(pixels, boxes, mask).square().mean().backward()
    return (time.process_time() - start) / PASSES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "seconds"))
    parser.add_argument("--photos", type=int, help="photos in the batch [default: memory 1, seconds 16]")
    parser.add_argument("--regions", type=int, default=36, help="regions of each photo")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    photos = arguments.photos or (1 if arguments.what == "memory" else 16)
    if arguments.what == "seconds":
        found = [seconds_of_a_pass(photos, arguments.regions) for _ in range(arguments.rounds)]
        print(f"{median(found):.2f} s a pass, {min(found):.2f} to {max(found):.2f} of the rounds")
        return
    print("| way | MB kept |\n|---|---|")
    for recompute in (False, True):
        encoder = RegionEncoder(CONFIGS["vg-r101-c4-600"], recompute=recompute)
        kept = kept_megabytes(encoder, photos, arguments.regions)
        print(f"| {'computed again' if recompute else 'kept'} | {kept:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
