"""Fine-tuning steps a second, on a CPU or a GPU: `python bench/task_step_rate.py --device cuda`.

VQA on stored features (ViLBERT and VL-BERT), VCR from photos (VL-BERT: a photo of 600 x 1200 pixels and its masks go
once through ResNet-101 for the four answers of a question). Base size, bfloat16 by autocast, dropout as published,
fused AdamW: zero_grad, forward, the task's loss, backward, step, the batch already on the device. Rows have 12 to 40
pieces and images 10 to 60 regions, uniformly drawn. Arms take turns; memory is the most that torch had allocated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from finetuning import ANSWERS, Drawn, draw, our_batch
from step_rate import STEPS, TYPES, first_turns, machine_name, wait
from store_rounds import MIN_ROUNDS, table, take_turns
from torch import Tensor, nn

from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.region_encoder import RegionEncoder
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import ImageBatch
from roibeam.model.vilbert.encoder import vilbert_config
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vlbert.config import vlbert_base
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL
from roibeam.pipelines.finetuning.run.group_batches import TaskBatch
from roibeam.pipelines.finetuning.run.group_task import scores_of
from roibeam.pipelines.finetuning.run.losses import loss_named, real_scores
from roibeam.pipelines.finetuning.run.network import TaskNetwork, started_network, with_encoder
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec

HEIGHT, WIDTH, CELLS = 600, 1200, 14  # of a photo of VCR, and of the mask of a region
ARMS = {"vqa vilbert": "stored features", "vqa vlbert": "stored features", "vcr vlbert": "end to end"}


def make_network(task: str, system: str) -> TaskNetwork:
    form, head = (LABEL, "release") if task == "vqa" else (CHOICE, "ours")
    asked = OutputSpec(form, ANSWERS if task == "vqa" else 1)
    model: nn.Module = VLBertForPreTraining(vlbert_base())
    if system == "vilbert":
        model = ViLbertForPreTraining(vilbert_config("release"))
    network = started_network(SYSTEMS[system], model, asked, head, source="the bench")
    if task == "vqa":
        return network
    encoder = RegionEncoder(CONFIGS["vg-r101-c4-600"]).to(memory_format=torch.channels_last)
    return with_encoder(network, encoder, EndToEndChoices(whole_image="box"))


def make_images(drawn: Drawn) -> ImageBatch:
    """A photo for each question."""
    questions = len(drawn.boxes)
    pixels = torch.rand(questions, 3, HEIGHT, WIDTH) * 255 - 110
    return ImageBatch(
        pixels=pixels.contiguous(memory_format=torch.channels_last),
        boxes=drawn.boxes,
        blanked_regions=torch.zeros_like(drawn.regions),
        whole_image_boxes=torch.tensor([[0.0, 0.0, WIDTH, HEIGHT]]).expand(questions, 4),
        cell_weights=(torch.rand(*drawn.regions.shape, CELLS, CELLS) > 0.4).float(),
    )


def make_batch(task: str, system: str, questions: int) -> TaskBatch:
    drawn = draw(task, 0, questions)
    batch = our_batch(drawn, system)
    if task == "vqa":
        return batch
    return replace(batch, images=make_images(drawn), placed_boxes=drawn.boxes)


def make_step(arm: str, arguments: argparse.Namespace) -> Callable[[], float]:
    """Questions a second of `STEPS` steps; the step raises ArithmeticError where a loss is no number."""
    task, system = arm.split()
    device, dtype = torch.device(arguments.device), TYPES[arguments.precision]
    torch.manual_seed(0)
    network = make_network(task, system)
    module = network.module.to(device).train()
    questions = arguments.vqa if task == "vqa" else arguments.vcr
    batch = make_batch(task, system, questions).to(device)
    form, named = (LABEL, "bce") if task == "vqa" else (CHOICE, "softmax")
    loss = loss_named(form, named)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)

    def of_batch() -> Tensor:
        assert batch.targets is not None
        real = real_scores(form, batch.inputs, batch.group_sizes, ANSWERS)
        return loss.term(scores_of(module, batch, form), batch.targets, real).mean

    def measure() -> float:
        wait(device)
        start = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                value = of_batch()
            value.backward()
            optimizer.step()
        wait(device)
        taken = time.perf_counter() - start
        if not bool(value.isfinite()):
            raise ArithmeticError(f"{arm}: the loss is {float(value)}")
        return STEPS * questions / taken

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--vqa", type=int, default=64, help="questions of a step of VQA [64]")
    parser.add_argument("--vcr", type=int, default=4, help="questions of a step of VCR, four rows each [4]")
    parser.add_argument("--precision", default="bf16", choices=TYPES)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(f"{machine_name(device)}, torch {torch.__version__}, {arguments.precision}", flush=True)
    arms, memory = first_turns({arm: partial(make_step, arm, arguments) for arm in arguments.arms}, device)
    found = take_turns(arms, arguments.rounds)
    rows = [
        (arm, ARMS[arm], f"{median(rates):,.1f}", f"{min(rates):,.1f}..{max(rates):,.1f}", memory.get(arm, ""))
        for arm, rates in found.items()
    ]
    head = ("task and model", "features", "questions/s, median", "of the rounds", "MB beyond weights and batch")
    print(table(head, rows), flush=True)


if __name__ == "__main__":
    main()
