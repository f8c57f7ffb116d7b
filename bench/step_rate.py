"""Training steps a second of each model, on a CPU or a GPU: `python bench/step_rate.py --device cuda`.

Base size, bfloat16 by autocast, rows of 20 word pieces and 36 regions of width 2048, dropout as published, 15 % of both
predicted, fused AdamW: zero_grad, forward, backward, step, the batch already on the device. `--end-to-end` makes the
features in the step, from photos of 600 x 1000 pixels, through ResNet-101 with the frozen stages of VL-BERT. Arms take
turns; memory is the most that torch had allocated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from store_rounds import MIN_ROUNDS, table, take_turns
from torch import nn

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel, ImageBatch
from roibeam.model.imagebert.model import ImageBertForPreTraining, imagebert_base
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.interbert.model import InterBertForPreTraining, interbert_config
from roibeam.model.vilbert.encoder import vilbert_config
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.model.vlbert.config import vlbert_base
from roibeam.model.vlbert.model import VLBertForPreTraining

WORDS, REGIONS, FEATURES, LABELS, VOCABULARY = 20, 36, 2048, 1601, 30522
HEIGHT, WIDTH = 600, 1000
EVERY = 7  # one of so many is predicted
STEPS = 5  # in one measurement
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "vlbert": lambda: VLBertForPreTraining(vlbert_base()),
    "vilbert": lambda: ViLbertForPreTraining(vilbert_config("release")),
    "visualbert": lambda: VisualBertForPreTraining(VisualBertConfig(region_feature_size=FEATURES)),
    "imagebert": lambda: ImageBertForPreTraining(imagebert_base(num_region_labels=LABELS)),
    "interbert": lambda: InterBertForPreTraining(interbert_config("release")),
}


def make_batch(rows: int) -> VLBatch:
    """Rows without padding."""
    ids = torch.randint(1000, VOCABULARY, (rows, WORDS))
    words, regions = torch.ones(rows, WORDS, dtype=torch.bool), torch.ones(rows, REGIONS, dtype=torch.bool)
    predicted_words = (torch.arange(WORDS) % EVERY == 1).expand(rows, -1)
    predicted = (torch.arange(REGIONS) % EVERY == 1).expand(rows, -1)
    corner = torch.rand(rows, REGIONS, 2) * 300
    boxes = torch.cat([corner, corner + 20 + 200 * torch.rand(rows, REGIONS, 2)], dim=-1)
    return VLBatch(
        text_ids=ids,
        text_mask=words,
        text_segments=torch.zeros_like(ids),
        region_features=torch.rand(rows, REGIONS, FEATURES),
        region_boxes=boxes,
        region_mask=regions,
        image_hw=torch.tensor([[float(HEIGHT), float(WIDTH)]]).expand(rows, 2),
        masked_regions=predicted,
        text_labels=torch.where(predicted_words, ids, IGNORE_INDEX),
        region_targets=torch.rand(rows, REGIONS, LABELS).softmax(-1) * predicted[..., None],
        region_target_mask=predicted,
        match_labels=torch.randint(2, (rows,)),
    )


def make_images(batch: VLBatch, *, whole_image: bool) -> ImageBatch:
    rows = batch.batch_size
    return ImageBatch(
        pixels=torch.rand(rows, 3, HEIGHT, WIDTH) * 255 - 110,
        boxes=batch.region_boxes,
        blanked_regions=batch.masked_regions,
        whole_image_boxes=torch.tensor([[0.0, 0.0, WIDTH, HEIGHT]]).expand(rows, 4) if whole_image else None,
    )


def make_step(name: str, arguments: argparse.Namespace) -> Callable[[], float]:
    """Samples a second of `STEPS` steps; raises ArithmeticError where a loss is no number."""
    device, rows = torch.device(arguments.device), arguments.rows
    torch.manual_seed(0)
    model = MODELS[name]()
    batch = make_batch(rows)
    inputs: tuple[VLBatch | ImageBatch, ...] = (batch,)
    if arguments.end_to_end:
        from_box = name == "vlbert"
        encoder = RegionEncoder(CONFIGS["vg-r101-c4-600"], recompute=arguments.recompute)
        choices = EndToEndChoices(whole_image="box" if from_box else "model")
        model = EndToEndModel(model, encoder, choices)
        inputs = (batch, make_images(batch, whole_image=from_box))
    model.to(device).train()
    if arguments.end_to_end and device.type == "cuda":
        model.region_encoder.to(memory_format=torch.channels_last)
    given = tuple(each.to(device) for each in inputs)
    if arguments.end_to_end:
        images = given[1]
        assert isinstance(images, ImageBatch)
        given = (given[0], replace(images, pixels=images.pixels.contiguous(memory_format=torch.channels_last)))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
    dtype = TYPES[arguments.precision]

    def measure() -> float:
        wait(device)
        start = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = torch.stack([term.mean for term in model(*given).losses.values()]).sum()
            loss.backward()
            optimizer.step()
        wait(device)
        taken = time.perf_counter() - start
        if not bool(loss.isfinite()):
            raise ArithmeticError(f"{name}: the loss is {float(loss)}")
        return STEPS * rows / taken

    return measure


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def first_turns(
    makers: Mapping[str, Callable[[], Callable[[], float]]], device: torch.device
) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    """Makes each arm and takes a first turn of it.

    Returns:
        The arms, and on a GPU the MB that each took beyond weights and batch.
    """
    arms, memory = {}, {}
    for name, make in makers.items():
        arms[name] = make()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        arms[name]()
        if device.type == "cuda":
            memory[name] = f"{(torch.cuda.max_memory_allocated(device) - before) / 2**20:,.0f}"
    return arms, memory


def machine_name(device: torch.device) -> str:
    """The GPU, or how many threads torch has."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--rows", type=int, default=8, help="samples of a step [8]")
    parser.add_argument("--precision", default="bf16", choices=TYPES)
    parser.add_argument("--end-to-end", action="store_true", help="make the features in the step, from photos")
    parser.add_argument("--recompute", action="store_true", help="compute the encoder's activations again")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    way = "end to end" if arguments.end_to_end else "stored features"
    print(
        f"{machine_name(device)}, torch {torch.__version__}, {arguments.precision}, {arguments.rows} rows, {way}",
        flush=True,
    )
    arms, memory = first_turns({name: partial(make_step, name, arguments) for name in arguments.models}, device)
    found = take_turns(arms, arguments.rounds)
    rows = [
        (name, f"{median(rates):,.0f}" if median(rates) > 50 else f"{median(rates):.2f}",
         f"{min(rates):,.1f}..{max(rates):,.1f}", memory.get(name, "")) for name, rates in found.items()
    ]  # fmt: skip
    print(table(("model", "samples/s, median", "of the rounds", "MB beyond weights and batch"), rows), flush=True)


if __name__ == "__main__":
    main()
