"""Retrieval: pairs a second of our blocks beside the official evaluation loop of ViLBERT.

    python bench/retrieval.py --vilbert CHECKOUT                        # CPU, float32: ours over theirs
    python bench/retrieval.py --device cuda --precision fp32 bf16       # ours alone, and the time of COCO 5k from it

Theirs is the loop of vilbert_beta/eval_retrieval.py, fine-tuned: for each caption one call of VILBertForVLTasks with
all images of a part, `fast_mode` on, so that the text is read once up to the first co-attention. As its data set gives
them, images are padded to 100 regions and IMG, captions to 30 pieces. Ours are the blocks that `roibeam predict` scores
(run/pair_scores.py). Both have the same weights; scores are compared first, and nothing is timed where they
differ. Base size, dropout 0; images of 10 to 100 regions and captions of 8 to 24 pieces, uniformly drawn from a fixed
seed. In round i both arms score block i, C captions with I images; ratios are taken inside a round (store_rounds.py).
Features are given on both sides, on the device.

The time of COCO 5k, 25,010 captions with 5,000 images, is that many pairs at the measured rate.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from finetuning import Pair, vilbert_vcr_loss
from models import FEATURES, TOLERANCE, VOCABULARY
from official_models import vilbert_code, without_dropout
from official_task_models import CLS, SEP
from store_rounds import MIN_ROUNDS, Ratio, table, take_turns
from torch import Tensor, nn

from roibeam.model.inputs import VLBatch
from roibeam.model.vilbert.encoder import vilbert_config
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.pipelines.finetuning.rows import CHOICE
from roibeam.pipelines.finetuning.run.network import started_network
from roibeam.pipelines.finetuning.run.pair_scores import pair_scorer, score_block
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec

PIECES, REGIONS = (8, 24), (10, 100)
MOST_PIECES, MOST_REGIONS = 30, 100  # that theirs pads to
BAR = 1.8
COCO_5K = 25_010 * 5_000
_IMAGE_SIZE = 600.0


@dataclass(frozen=True, eq=False)
class Block:
    """C captions and I images.

    Attributes:
        ids: (C, T) long, 0 at padding.
        features: (I, R, D); boxes: (I, R, 4); regions: (I, R) bool.
    """

    ids: Tensor
    features: Tensor
    boxes: Tensor
    regions: Tensor

    @property
    def num(self) -> tuple[int, int]:
        return len(self.ids), len(self.regions)

    @property
    def whole(self) -> Tensor:
        """(I, D), mean of the regions."""
        return self.features.sum(dim=1) / self.regions.sum(dim=1, keepdim=True)


def draw(seed: int, captions: int, images: int, device: torch.device) -> Block:
    """Captions by length and images by regions, as a split is scored."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(PIECES[0], PIECES[1] + 1, (captions,), generator=generator).sort().values
    ids = torch.randint(1000, VOCABULARY, (captions, int(lengths.max())), generator=generator)
    places = torch.arange(ids.shape[1])
    ids = torch.where(places == 0, CLS, torch.where(places == lengths[:, None] - 1, SEP, ids))
    ids = ids.masked_fill(places >= lengths[:, None], 0)
    counts = torch.randint(REGIONS[0], REGIONS[1] + 1, (images,), generator=generator).sort().values
    regions = torch.arange(int(counts.max())) < counts[:, None]
    corner = torch.rand(*regions.shape, 2, generator=generator) * 300
    side = 20 + 200 * torch.rand(*regions.shape, 2, generator=generator)
    parts = (
        ids,
        torch.rand(*regions.shape, FEATURES, generator=generator) * regions[..., None],
        torch.cat([corner, corner + side], dim=-1) * regions[..., None],
        regions,
    )
    return Block(*(part.to(device) for part in parts))


def texts_of(block: Block) -> VLBatch:
    """The captions, with the first image."""
    rows = torch.zeros(len(block.ids), dtype=torch.long, device=block.ids.device)
    return _batch(block, slice(0, 1), block.ids, row_images=rows)


def images_of(block: Block, images: slice) -> VLBatch:
    """The images, without the padding that none of them needs, with the first caption."""
    count = len(block.regions[images])
    rows = torch.zeros(count, dtype=torch.long, device=block.ids.device)
    return _batch(block, images, block.ids[:1], row_texts=rows)


def _batch(block: Block, images: slice, ids: Tensor, **rows: Tensor) -> VLBatch:
    regions = block.regions[images]
    most = int(regions.sum(dim=1).max())
    return VLBatch(
        text_ids=ids,
        text_mask=ids > 0,
        text_segments=torch.zeros_like(ids),
        region_features=block.features[images, :most],
        region_boxes=block.boxes[images, :most],
        region_mask=regions[:, :most],
        image_hw=torch.full((len(regions), 2), _IMAGE_SIZE, device=ids.device),
        masked_regions=torch.zeros_like(regions[:, :most]),
        whole_image_features=block.whole[images],
        **rows,
    )


def our_scores(network: nn.Module, block: Block, at_once: int) -> Tensor:
    """(C, I)."""
    scorer = pair_scorer(network)
    texts, images = scorer.read_texts(texts_of(block)), scorer.read_images(images_of(block, slice(None)))
    return score_block(scorer, texts, images, block.num, at_once, block.ids.device)


def their_scores(model: nn.Module, block: Block) -> Tensor:
    """(C, I), a caption at a time, as eval_retrieval.py."""
    images = len(block.regions)
    corners = block.boxes / _IMAGE_SIZE
    area = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    places = torch.cat([corners, area[..., None]], dim=-1)
    features, locations = torch.zeros(images, MOST_REGIONS + 1, FEATURES), torch.zeros(images, MOST_REGIONS + 1, 5)
    mask = torch.zeros(images, MOST_REGIONS + 1, dtype=torch.long)
    most = block.regions.shape[1]
    features[:, 0], locations[:, 0], mask[:, 0] = block.whole, torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]), 1
    features[:, 1 : most + 1], locations[:, 1 : most + 1] = block.features, places
    mask[:, 1 : most + 1] = block.regions.long()
    found = []
    for ids in block.ids:
        text = torch.zeros(1, MOST_PIECES, dtype=torch.long)
        text[0, : len(ids)] = ids
        found.append(model(text, features, locations, torch.zeros_like(text), (text > 0).long(), mask)[1].view(-1))
    return torch.stack(found)


def official(checkout: Path) -> nn.Module:
    module, config = vilbert_code(checkout)
    config.fast_mode = True
    return without_dropout(module.VILBertForVLTasks(config, num_labels=1)).eval()


def new_network() -> nn.Module:
    """A network of a fine-tuning run of base size, new weights."""
    model: Any = ViLbertForPreTraining(vilbert_config("release"))
    return started_network(SYSTEMS["vilbert"], model, OutputSpec(CHOICE), "ours", source="the bench").module


def beside_theirs(arguments: argparse.Namespace, clock: Callable[[], float]) -> None:
    torch.manual_seed(0)
    theirs = official(arguments.vilbert)
    ours = Pair("vilbert", "vcr", lambda: theirs, vilbert_vcr_loss, "softmax").ours(theirs).eval()
    device = torch.device("cpu")
    size = (arguments.captions, arguments.images)
    for seed in range(2):
        block = draw(seed, *size, device)
        wanted, got = their_scores(theirs, block), our_scores(ours, block, arguments.at_once)
        apart = float((got - wanted).abs().max())
        print(f"scores of {wanted.numel()} pairs: largest difference {apart:.2e}, of {float(wanted.std()):.2e} spread")
        if not apart <= TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise SystemExit(f"the scores differ by more than {TOLERANCE}; nothing to time")

    def arm(scores: Callable[[Block], Tensor]) -> Callable[[], float]:
        seeds = count()

        def rate() -> float:
            block = draw(next(seeds), *size, device)
            start = clock()
            scores(block)
            return size[0] * size[1] / (clock() - start)

        return rate

    arms = {
        "theirs": arm(lambda block: their_scores(theirs, block)),
        "ours": arm(lambda block: our_scores(ours, block, arguments.at_once)),
    }
    rates = take_turns(arms, arguments.rounds)
    ratio = Ratio(rates["ours"], rates["theirs"])
    rows = []
    for name, found in rates.items():
        told = (str(ratio), f"{BAR}: {ratio.at_least(BAR)}") if name == "ours" else ("1", "")
        rows.append((name, f"{_middle(found):.2f}", *told))
    print(table(("arm", "pairs/s", "over theirs, median [95 %]", "bar"), rows))
    _tell_coco(_middle(rates["ours"]), "ours, this machine")


def alone(arguments: argparse.Namespace) -> None:
    device = torch.device(arguments.device)
    network = new_network().to(device).eval()
    for precision in arguments.precision:
        tf32 = precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        half = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
        rates = []
        for seed in range(arguments.rounds + 1):
            block = draw(seed, arguments.captions, arguments.images, device)
            _wait(device)
            start = time.perf_counter()
            with half:
                our_scores(network, block, arguments.at_once)
            _wait(device)
            rates.append(block.num[0] * block.num[1] / (time.perf_counter() - start))
        found = sorted(rates[1:])  # the first one warms up
        memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device.type == "cuda" else ""
        print(f"{precision}: {_middle(found):,.0f} pairs/s, {found[0]:,.0f} to {found[-1]:,.0f}{memory}")
        _tell_coco(_middle(found), precision)


def _tell_coco(rate: float, what: str) -> None:
    print(f"COCO 5k, {COCO_5K:,} pairs, {what}: {COCO_5K / rate / 3600:,.2f} hours")


def _middle(rates: list[float]) -> float:
    return sorted(rates)[len(rates) // 2]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--vilbert", type=Path, help="checkout of jiasenlu/vilbert_beta; without it ours alone is timed"
    )
    parser.add_argument("--device", default="cpu", help="of ours alone: cpu or cuda [cpu]")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "tf32", "bf16"), default=["fp32"])
    parser.add_argument("--captions", type=int, help="of a block [cpu 2, cuda 256]")
    parser.add_argument("--images", type=int, help="of a block [cpu 8, cuda 200]")
    parser.add_argument("--at-once", type=int, help="pairs in one call [cpu 16, cuda 2048]")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch (default: all cores)")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of CPU time: for a machine that is busy")
    arguments = parser.parse_args()
    on_gpu = arguments.device != "cpu"
    arguments.captions = arguments.captions or (256 if on_gpu else 2)
    arguments.images = arguments.images or (200 if on_gpu else 8)
    arguments.at_once = arguments.at_once or (2048 if on_gpu else 16)
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads")
    with torch.inference_mode():
        if arguments.vilbert is not None:
            beside_theirs(arguments, time.process_time if arguments.cpu_time else time.perf_counter)
        else:
            alone(arguments)


if __name__ == "__main__":
    main()
