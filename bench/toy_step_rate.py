"""Training steps of toy-size models on one CPU thread, float32 against bf16: `python bench/toy_step_rate.py`.

The models of `make evidence`, of width 128 or what `--width` says, on rows as the toy world has them (5 to 20 words, 20
to 45 regions of width 96). A step: zero_grad, forward, backward, fused AdamW. Arms take turns; the clock is the
processor's, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from evidence.arms import SMALL
from store_rounds import MIN_ROUNDS, Ratio, table, take_turns
from torch import nn

from roibeam.model.imagebert.model import ImageBertForPreTraining, imagebert_small
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.interbert.model import InterBertForPreTraining, interbert_small
from roibeam.model.vilbert.encoder import vilbert_small
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.visualbert.model import VisualBertForPreTraining, visualbert_small
from roibeam.model.vlbert.config import vlbert_small
from roibeam.model.vlbert.model import VLBertForPreTraining

ROWS, WORDS, REGIONS, FEATURES, LABELS, VOCABULARY = 64, (5, 20), (20, 45), 96, 25, 267
STEPS = 4  # in one measurement
WAYS = ("float32", "bf16")


def make_batch(draw: torch.Generator) -> VLBatch:
    """Rows of different lengths; 40 % of the words and 15 % of the regions are asked for."""

    def lengths(low: int, high: int) -> torch.Tensor:
        found = torch.randint(low, high + 1, (ROWS, 1), generator=draw)
        return torch.arange(high) < found

    words, regions = lengths(*WORDS), lengths(*REGIONS)
    ids = torch.randint(110, VOCABULARY, words.shape, generator=draw) * words
    asked_words = words & (torch.rand(words.shape, generator=draw) < 0.4)
    asked = regions & (torch.rand(regions.shape, generator=draw) < 0.15)
    corner = torch.rand(*regions.shape, 2, generator=draw) * 200
    boxes = torch.cat([corner, corner + 20 + 80 * torch.rand(*regions.shape, 2, generator=draw)], dim=-1)
    targets = torch.rand(*regions.shape, LABELS, generator=draw).softmax(-1)
    return VLBatch(
        text_ids=ids,
        text_mask=words,
        text_segments=torch.zeros_like(ids),
        region_features=torch.rand(*regions.shape, FEATURES, generator=draw),
        region_boxes=boxes,
        region_mask=regions,
        image_hw=torch.tensor([[300.0, 384.0]]).expand(ROWS, 2),
        masked_regions=asked,
        text_labels=torch.where(asked_words, ids, IGNORE_INDEX),
        region_targets=targets * asked[..., None],
        region_target_mask=asked,
        match_labels=torch.randint(2, (ROWS,), generator=draw),
    )


def make_model(system: str, width: int) -> nn.Module:
    sizes = {name: size if size != 128 else width for name, size in SMALL[system].items()}
    sizes |= {name: 4 * width for name in sizes if name.endswith("intermediate_size")}
    words = {"vocab_size": VOCABULARY, "region_feature_size": FEATURES}
    match system:
        case "vlbert":
            return VLBertForPreTraining(vlbert_small(**sizes, **words, num_region_labels=LABELS))
        case "vilbert":
            return ViLbertForPreTraining(vilbert_small(**sizes, **words, region_target_size=LABELS))
        case "visualbert":
            return VisualBertForPreTraining(visualbert_small(**sizes, **words))
        case "imagebert":
            return ImageBertForPreTraining(imagebert_small(**sizes, **words, num_region_labels=LABELS))
        case _:
            return InterBertForPreTraining(interbert_small(**sizes, **words, region_target_size=LABELS))


def make_step(system: str, width: int, way: str) -> Callable[[], float]:
    """Processor seconds of a step; raises ArithmeticError where a loss is no number."""
    torch.manual_seed(0)
    model = make_model(system, width).train()
    batch = make_batch(torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=way != "float32"):
            loss = torch.stack([term.mean for term in model(batch).losses.values()]).sum()
        loss.backward()
        optimizer.step()
        return loss

    def measure() -> float:
        start = time.process_time()
        for _ in range(STEPS):
            loss = step()
        if not bool(loss.isfinite()):
            raise ArithmeticError(f"{system}: the loss is {float(loss)}")
        return (time.process_time() - start) / STEPS

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=["vlbert", "vilbert", "visualbert", "imagebert", "interbert"])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for system in arguments.systems:
        arms = {way: partial(make_step, system, arguments.width, way)() for way in WAYS}
        found = take_turns(arms, arguments.rounds)
        for way in WAYS:
            gain = Ratio(found["float32"], found[way])
            rows.append((system, way, f"{1000 * median(found[way]):.1f}", f"{gain}"))
    print(table(("model", "way", "ms a step", "steps/s over float32"), rows), flush=True)


if __name__ == "__main__":
    main()
