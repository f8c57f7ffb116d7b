"""What a masked box leaves in the network's input beside it: `python bench/blank_leaks.py PHOTOS [--boxes 20]`.

Under one box at a time the photo gets other pixels (noise), and both photos go the way of a training sample, mirrored
every other time. Counted are pixels of the network's input, outside the blank, that tell the two apart. Blanked after
the resize, as VL-BERT's release does, those along the edge do; blanked before it, none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.photos.decode import decode_image
from roibeam.model.common.fields import BLANK_PIXELS, EndToEndChoices
from roibeam.pipelines.data.batches.image_batch import prepare_input


def changed_outside(
    photo: np.ndarray, box: np.ndarray, blank_pixels: str, config: DetectorConfig, random: np.random.Generator
) -> tuple[int, float]:
    """How many network-input pixels outside the blank show what stands under the box, and the largest change of one.

    Args:
        photo: (height, width, 3) uint8.
        box: (4,) x1 y1 x2 y2, pixels of the photo.
        blank_pixels: one of `BLANK_PIXELS`.
    """
    other = photo.copy()
    x1, y1, x2, y2 = box.astype(int).tolist()
    other[y1 : y2 + 1, x1 : x2 + 1] = random.integers(0, 256, other[y1 : y2 + 1, x1 : x2 + 1].shape)
    choices, flip = EndToEndChoices(blank_pixels=blank_pixels), bool(random.random() < 0.5)
    conventions, masked = CONVENTIONS["vlbert-e2e"], np.array([True])
    ours, theirs = (
        prepare_input(each, box[None], masked, config, conventions, choices, flip=flip) for each in (photo, other)
    )
    change = (ours.photo.pixels - theirs.photo.pixels).abs().amax(dim=0)
    return int((change > 0).sum()), float(change.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder of photos")
    parser.add_argument("--boxes", type=int, default=20, help="of each photo, a tenth to a half of its sides [20]")
    parser.add_argument("--detector", default="vg-r101-c4-600", choices=CONFIGS, help="gives the edges")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| blank_pixels | boxes | with a trace | pixels beside a box: median | most | largest change (0 to 255) |")
    print("|---|---|---|---|---|---|")
    for way in BLANK_PIXELS:
        random, counts, largest = np.random.default_rng(0), [], 0.0
        for path in sorted(each for each in arguments.photos.iterdir() if each.suffix in (".jpg", ".png")):
            photo = decode_image(path.read_bytes())
            height, width = photo.shape[:2]
            for _ in range(arguments.boxes):
                sides = random.uniform(0.1, 0.5, 2) * [width, height]
                corner = random.uniform(0, 1, 2) * ([width - 1, height - 1] - sides)
                box = np.concatenate([corner, corner + sides]).astype(np.float32)
                count, change = changed_outside(photo, box, way, CONFIGS[arguments.detector], random)
                counts.append(count)
                largest = max(largest, change)
        traces = sum(count > 0 for count in counts)
        print(f"| {way} | {len(counts)} | {traces} | {np.median(counts):,.0f} | {max(counts):,} | {largest:.0f} |")


if __name__ == "__main__":
    main()
