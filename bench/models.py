"""Training steps of the models beside transformers' VisualBERT and the official codes of VL-BERT and ViLBERT.

    python bench/models.py --vlbert CHECKOUT --vilbert CHECKOUT     # those that are named, and VisualBERT
    python bench/models.py --only visualbert --rounds 5

Two arms of a pair have the same weights, batches and losses; the bench compares their losses, printed, before it times
them, and stops where they differ by more than 1e-4. A step is zero_grad, forward, backward and torch's fused AdamW, in
both arms; dropout is 0, so that losses can be compared. Base size, float32, batches of 8 rows with 8 to 30 pieces and
10 to 100 regions, uniformly drawn from a fixed seed, padded to their longest row; 15 % of both are predicted. In round
i all arms take batch i; ratios are taken inside a round (store_rounds.py). A further arm computes activations again
(activation checkpointing), and one is bfloat16 (autocast) where the CPU has instructions for it.

Peak memory is that of a process of its own for each arm, after two steps on one batch of the largest kind (all rows 30
pieces and 100 regions), with weights, gradients and the optimiser's state.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
import transformers
from official_models import official_vilbert, official_vlbert
from store_rounds import MIN_ROUNDS, Ratio, status_mb, table, take_turns
from torch import Tensor, nn

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vilbert import checkpoint as vilbert_checkpoint
from roibeam.model.vilbert.encoder import vilbert_config
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.visualbert import checkpoint as visualbert_checkpoint
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.model.vlbert import checkpoint as vlbert_checkpoint
from roibeam.model.vlbert.config import vlbert_base
from roibeam.model.vlbert.model import VLBertForPreTraining

ROWS, WORDS, REGIONS = 8, (8, 30), (10, 100)
VOCABULARY, FEATURES, LABELS = 30522, 2048, 1601
PREDICTED = 0.15
TOLERANCE = 1e-4  # of the losses of a pair
BAR = 1.5
NO_DROPOUT: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}

Loss = Callable[[nn.Module, VLBatch], Tensor]
Clock = Callable[[], float]


def draw_batch(seed: int, *, largest: bool = False) -> VLBatch:
    """Rows of random sizes; with `largest` all of the most words and regions."""
    generator = torch.Generator().manual_seed(seed)

    def sizes(least: int, most: int) -> Tensor:
        return torch.randint(most if largest else least, most + 1, (ROWS,), generator=generator)

    def chosen(mask: Tensor) -> Tensor:
        """A part of the real ones, and never none of a batch."""
        picked = (torch.rand(mask.shape, generator=generator) < PREDICTED) & mask
        picked[0, 1] = True
        return picked

    lengths, counts = sizes(*WORDS), sizes(*REGIONS)
    text_mask = torch.arange(int(lengths.max())) < lengths[:, None]
    region_mask = torch.arange(int(counts.max())) < counts[:, None]
    text_ids = torch.randint(1000, VOCABULARY, text_mask.shape, generator=generator).masked_fill(~text_mask, 0)
    hidden, predicted = chosen(region_mask), chosen(text_mask)
    corner = torch.rand(*region_mask.shape, 2, generator=generator) * 300
    side = 20 + 200 * torch.rand(*region_mask.shape, 2, generator=generator)
    features = torch.rand(*region_mask.shape, FEATURES, generator=generator) * region_mask[..., None]
    targets = torch.rand(*region_mask.shape, LABELS, generator=generator).pow(8)
    targets = targets / targets.sum(dim=-1, keepdim=True) * hidden[..., None]
    return VLBatch(
        text_ids=text_ids,
        text_mask=text_mask,
        text_segments=torch.zeros_like(text_ids),
        region_features=features,
        region_boxes=torch.cat([corner, corner + side], dim=-1) * region_mask[..., None],
        region_mask=region_mask,
        image_hw=torch.tensor([[600.0, 600.0]]).expand(ROWS, 2),
        masked_regions=hidden,
        whole_image_features=features.sum(dim=1) / counts[:, None],
        text_labels=torch.where(predicted, text_ids, IGNORE_INDEX),
        region_targets=targets,
        region_target_mask=hidden,
        match_labels=torch.randint(2, (ROWS,), generator=generator),
    )


def our_loss(model: nn.Module, batch: VLBatch) -> Tensor:
    """Sum of the mean losses."""
    return torch.stack([term.mean for term in model(batch).losses.values()]).sum()


def transformers_loss(model: nn.Module, batch: VLBatch) -> Tensor:
    assert batch.text_labels is not None
    no_label = torch.full(batch.region_mask.shape, IGNORE_INDEX)
    output = model(
        input_ids=batch.text_ids,
        attention_mask=batch.text_mask.long(),
        token_type_ids=batch.text_segments,
        visual_embeds=batch.region_features,
        visual_attention_mask=batch.region_mask.long(),
        visual_token_type_ids=torch.zeros_like(no_label),
        labels=torch.cat([batch.text_labels, no_label], dim=1),
        sentence_image_labels=batch.match_labels,
    )
    return output.loss


def vlbert_loss(model: nn.Module, batch: VLBatch) -> Tensor:
    """The official training code's; it takes the whole image as the first box, and -2 for padding."""
    assert batch.text_labels is not None and batch.region_targets is not None
    assert batch.whole_image_features is not None
    whole_box = torch.cat([torch.zeros(ROWS, 2), batch.image_hw.flip(-1) - 1], dim=1)
    boxes = torch.cat([batch.region_boxes, batch.region_features], dim=-1)
    boxes = torch.where(batch.region_mask[..., None], boxes, -2.0)
    boxes = torch.cat([torch.cat([whole_box, batch.whole_image_features], dim=1)[:, None], boxes], dim=1)
    _, loss = model(
        None,
        boxes,
        torch.cat([batch.image_hw.flip(-1), torch.ones(ROWS, 2)], dim=1),
        batch.text_ids,
        None,
        batch.text_labels.masked_fill(batch.text_labels == IGNORE_INDEX, -1),
        torch.cat([torch.zeros(ROWS, 1), batch.masked_regions.float()], dim=1).long(),
        torch.cat([torch.zeros(ROWS, 1, LABELS), batch.region_targets], dim=1),
    )
    return loss


def vilbert_loss(model: nn.Module, batch: VLBatch) -> Tensor:
    """The official training code's; masked features are zero already, and IMG comes first."""
    assert batch.text_labels is not None and batch.match_labels is not None
    assert batch.whole_image_features is not None
    corners = batch.region_boxes / batch.image_hw.flip(-1).repeat(1, 2)[:, None]
    area = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]).expand(ROWS, 1, -1)
    features = batch.region_features.masked_fill(batch.masked_regions[..., None], 0.0)
    losses = model(
        batch.text_ids,
        torch.cat([batch.whole_image_features[:, None], features], dim=1),
        torch.cat([whole, torch.cat([corners, area[..., None]], dim=-1)], dim=1),
        batch.text_segments,
        batch.text_mask.float(),
        torch.cat([torch.ones(ROWS, 1), batch.region_mask.float()], dim=1),
        batch.text_labels.masked_fill(batch.text_labels == IGNORE_INDEX, -1),
        batch.region_target_mask,
        batch.region_targets,
        1 - batch.match_labels,
    )
    return torch.cat(losses).sum()


@dataclass(frozen=True)
class Pair:
    """One model here and the other code for it.

    Attributes:
        theirs: makes the other model, with dropout 0.
        ours: makes the model here, with the weights of a state dict of theirs.
        bar: what the ratio of step rates should reach; None for no bar.
    """

    theirs: Callable[[], nn.Module]
    their_loss: Loss
    ours: Callable[[dict[str, Tensor] | None], nn.Module]
    bar: float | None


def transformers_visualbert() -> nn.Module:
    config = transformers.VisualBertConfig(
        visual_embedding_dim=FEATURES, pad_token_id=0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = transformers.VisualBertForPreTraining(config)
    model.tie_weights()
    return model


def _loaded(model: nn.Module, state: dict[str, Tensor] | None) -> nn.Module:
    if state is not None:
        model.load_state_dict(state)
    return model


def our_visualbert(state: dict[str, Tensor] | None) -> nn.Module:
    config = VisualBertConfig(region_feature_size=FEATURES, **NO_DROPOUT)
    return _loaded(VisualBertForPreTraining(config), state and visualbert_checkpoint.state_from_official(state))


def our_vlbert(state: dict[str, Tensor] | None) -> nn.Module:
    config = vlbert_base(region_dropout=0.0, **NO_DROPOUT)
    return _loaded(VLBertForPreTraining(config), state and vlbert_checkpoint.state_from_official(state))


def our_vilbert(state: dict[str, Tensor] | None) -> nn.Module:
    names = ("image_hidden_dropout", "image_attention_dropout", "region_embedding_dropout", "pair_dropout")
    config = vilbert_config("release", **NO_DROPOUT, **dict.fromkeys(names, 0.0))
    return _loaded(ViLbertForPreTraining(config), state and vilbert_checkpoint.state_from_official(state))


def make_pairs(vlbert: Path | None, vilbert: Path | None) -> dict[str, Pair]:
    """What can be compared: transformers' is always there, the official codes by their checkouts."""
    pairs = {"visualbert": Pair(transformers_visualbert, transformers_loss, our_visualbert, BAR)}
    if vlbert is not None:
        pairs["vlbert"] = Pair(lambda: official_vlbert(vlbert), vlbert_loss, our_vlbert, BAR)
    if vilbert is not None:
        pairs["vilbert"] = Pair(lambda: official_vilbert(vilbert), vilbert_loss, our_vilbert, None)
    return pairs


class Trainer:
    """A model with its optimiser."""

    def __init__(
        self, model: nn.Module, loss: Loss, clock: Clock = time.perf_counter, *, bfloat16: bool = False
    ) -> None:
        self.model, self.loss, self.clock, self.bfloat16 = model, loss, clock, bfloat16
        model.train()  # VL-BERT's gives nothing back
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step(self, batch: VLBatch) -> float:
        """Seconds of one step."""
        start = self.clock()
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if self.bfloat16 else nullcontext():
            loss = self.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        return self.clock() - start


def has_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def compare(name: str, pair: Pair, rounds: int, clock: Clock) -> list[tuple[str, ...]]:
    """Rows of the table of step times.

    Raises:
        SystemExit: when the two have different losses.
    """
    torch.manual_seed(0)
    theirs = pair.theirs()
    ours = pair.ours(dict(theirs.state_dict()))
    for seed in range(3):
        batch = draw_batch(seed)
        with torch.no_grad():
            wanted, got = float(pair.their_loss(theirs, batch)), float(our_loss(ours, batch))
        print(f"{name}: loss {got:.6f}, theirs {wanted:.6f}", flush=True)
        if not abs(got - wanted) <= TOLERANCE:
            raise SystemExit(f"{name}: the losses differ by more than {TOLERANCE}; nothing to time")
    plain = Trainer(ours, our_loss, clock)
    trainers = {"theirs": Trainer(theirs, pair.their_loss, clock), "ours": plain}

    def recomputing(batch: VLBatch) -> float:
        ours.activation_checkpointing_enable()
        try:
            return plain.step(batch)
        finally:
            ours.activation_checkpointing_disable()

    steps = {arm: trainer.step for arm, trainer in trainers.items()} | {"ours, activations again": recomputing}
    if has_bfloat16():
        steps["ours, bfloat16"] = Trainer(ours, our_loss, clock, bfloat16=True).step

    def arm(step: Callable[[VLBatch], float]) -> Callable[[], float]:
        seeds = count()
        return lambda: step(draw_batch(next(seeds)))

    seconds = take_turns({label: arm(step) for label, step in steps.items()}, rounds)
    rows = []
    for label, times in seconds.items():
        ratio = Ratio(seconds["theirs"], times)
        by_round = [theirs / ours for theirs, ours in zip(seconds["theirs"], times, strict=True)]
        bar = ratio.at_least(pair.bar) if label == "ours" and pair.bar else ""
        median = sorted(times)[len(times) // 2]
        spread = f"{min(by_round):.2f}..{max(by_round):.2f}"
        rows.append((name, label, f"{median:.2f}", str(ratio), spread, f"{pair.bar}: {bar}" if bar else ""))
        print(" | ".join(rows[-1]), flush=True)
    return rows


def peak_memory(name: str, arm: str, pair: Pair) -> None:
    """Prints by how many MB two steps raise what this process has needed at most.

    From /proc: ru_maxrss of a child begins at what its parent had needed when it started it.
    """
    before = status_mb("VmHWM")
    if arm == "theirs":
        trainer = Trainer(pair.theirs(), pair.their_loss)
    else:
        trainer = Trainer(pair.ours(None), our_loss)
    if arm == "ours, activations again":
        trainer.model.activation_checkpointing_enable()
    batch = draw_batch(0, largest=True)
    for _ in range(2):
        trainer.step(batch)
    print(f"{name} | {arm} | {status_mb('VmHWM') - before:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlbert", type=Path, help="checkout of jackroos/VL-BERT")
    parser.add_argument("--vilbert", type=Path, help="checkout of jiasenlu/vilbert_beta")
    parser.add_argument("--only", choices=("visualbert", "vlbert", "vilbert"), help="this pair alone")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch (default: all cores)")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of CPU time: for a machine that is busy")
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out")
    parser.add_argument("--memory", metavar="ARM", help="only the peak memory of one arm, in this process")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pairs = make_pairs(arguments.vlbert, arguments.vilbert)
    if arguments.only:
        if arguments.only not in pairs:
            parser.error(f"--only {arguments.only} needs --{arguments.only} CHECKOUT")
        pairs = {arguments.only: pairs[arguments.only]}
    if arguments.memory:
        for name, pair in pairs.items():
            peak_memory(name, arguments.memory, pair)
        return
    for missing in ("vlbert", "vilbert"):
        if getattr(arguments, missing) is None:
            print(f"the official {missing} is left out: name its checkout with --{missing}")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {arguments.threads} threads")
    if not has_bfloat16():
        print("bfloat16 is left out: this CPU has neither avx512_bf16 nor amx")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    rows = [row for name, pair in pairs.items() for row in compare(name, pair, arguments.rounds, clock)]
    head = ("model", "arm", "s/step", "step rate over theirs, median [95 %]", "of the rounds", "bar")
    print(table(head, rows))
    if arguments.no_memory:
        return
    print("peak memory of two steps on the largest batch, beyond a process with the imports, MB:")
    for name in pairs:
        for arm in ("theirs", "ours", "ours, activations again"):
            command = [sys.executable, __file__, "--only", name, "--memory", arm, "--threads", str(arguments.threads)]
            for option in ("vlbert", "vilbert"):
                if getattr(arguments, option) is not None:
                    command += [f"--{option}", str(getattr(arguments, option))]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(done.stdout.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
