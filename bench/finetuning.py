"""Fine-tuning: our step beside the official one, and how fast batches are made.

    python bench/finetuning.py steps --vlbert CHECKOUT --vilbert CHECKOUT     # of those that are named
    python bench/finetuning.py loader                                         # questions/s of one process

A step is zero_grad, forward, the task's loss, backward and torch's fused AdamW, in both arms; weights, batches and
losses are the same and compared first, dropout is 0. Base size, float32. A batch has 16 rows, of VQA as many questions,
of VCR four with their four answers each. Rows have 12 to 40 pieces and images 10 to 60 regions, uniformly drawn from a
fixed seed. Both sides pad to the longest, though ViLBERT's own loader always pads
to 100 regions. Region features are given on both sides. In round i all arms take batch i; ratios are taken inside a
round (store_rounds.py). Ours have an image once a question of VCR, as the frame makes its batches; with --unshared a
further arm has it once a row.

The loader's batches are those of `GroupBatches`, ready for a model: see finetuning_loader.py.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from finetuning_loader import loader_rates
from models import FEATURES, NO_DROPOUT, TOLERANCE, VOCABULARY, Trainer
from official_models import without_dropout
from official_task_models import CLS, MASK, SEP, official_vilbert_tasks, official_vlbert_task
from store_rounds import MIN_ROUNDS, Ratio, table, take_turns
from torch import Tensor, nn
from torch.nn import functional as F

from roibeam.model.common.heads import DroppedLinear
from roibeam.model.inputs import VLBatch
from roibeam.model.vilbert import checkpoint as vilbert_checkpoint
from roibeam.model.vilbert.encoder import vilbert_config
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vlbert import checkpoint as vlbert_checkpoint
from roibeam.model.vlbert.config import vlbert_base
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL
from roibeam.pipelines.finetuning.run.group_batches import TaskBatch
from roibeam.pipelines.finetuning.run.group_task import scores_of
from roibeam.pipelines.finetuning.run.losses import loss_named, real_scores
from roibeam.pipelines.finetuning.run.network import TaskNetwork, started_network
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec

ANSWERS = 3129
PIECES, REGIONS = (12, 40), (10, 60)
QUESTIONS = {"vqa": 16, "vcr": 4}
CHOICES = {"vqa": 1, "vcr": 4}
NAMED = 4  # pieces of a row of VCR that name a box
BAR = 1.5
_IMAGE_SIZE = 600.0


@dataclass(frozen=True, eq=False)
class Drawn:
    """Questions of a batch as both sides read them. Q questions, C choices, T pieces, R regions.

    Attributes:
        first, second: (Q, C, T) long, pieces of the question and of what stands behind it, 0 behind their end.
        tags: (Q, C, T) long, the number of the region that a piece of the question names, -1 for none.
        features: (Q, R, D); boxes: (Q, R, 4); regions: (Q, R) bool.
        targets: (Q, A) of VQA, (Q,) the right choice of VCR.
    """

    first: Tensor
    second: Tensor
    tags: Tensor
    features: Tensor
    boxes: Tensor
    regions: Tensor
    targets: Tensor

    @property
    def whole(self) -> Tensor:
        """(Q, D), mean of the regions."""
        return self.features.sum(dim=1) / self.regions.sum(dim=1, keepdim=True)


def draw(task: str, seed: int, questions: int = 0) -> Drawn:
    """A batch of so many questions; 0 for those of `QUESTIONS`."""
    generator = torch.Generator().manual_seed(seed)
    questions, choices = questions or QUESTIONS[task], CHOICES[task]

    def sizes(least: int, most: int, *shape: int) -> Tensor:
        return torch.randint(least, most + 1, shape, generator=generator)

    def pieces(lengths: Tensor) -> Tensor:
        real = torch.arange(int(lengths.max())) < lengths[..., None]
        return torch.randint(1000, VOCABULARY, real.shape, generator=generator).masked_fill(~real, 0)

    total, special = sizes(*PIECES, questions, choices), 4 if task == "vqa" else 3
    # A question and its answers: the question is as long for all of them, and shorter than the shortest row.
    shared = (total.min(dim=1).values - special) // CHOICES[task]
    first = pieces(shared)[:, None].expand(-1, choices, -1)
    second = pieces(total - special - shared[:, None]) if task == "vcr" else first[..., :0]
    if task == "vqa":
        first = pieces(total - special)
    counts = sizes(*REGIONS, questions)
    regions = torch.arange(int(counts.max())) < counts[:, None]
    corner = torch.rand(*regions.shape, 2, generator=generator) * 300
    side = 20 + 200 * torch.rand(*regions.shape, 2, generator=generator)
    tags = torch.full_like(first, -1)
    tags[..., :NAMED] = torch.randint(REGIONS[0], (questions, 1, min(NAMED, tags.shape[-1])), generator=generator)
    scores = (torch.rand(questions, ANSWERS, generator=generator) < 0.001).float()
    return Drawn(
        first,
        second,
        tags.masked_fill(first == 0, -1) if task == "vcr" else torch.full_like(first, -1),
        torch.rand(*regions.shape, FEATURES, generator=generator) * regions[..., None],
        torch.cat([corner, corner + side], dim=-1) * regions[..., None],
        regions,
        scores if task == "vqa" else torch.randint(choices, (questions,), generator=generator),
    )


def rows_of(drawn: Drawn, system: str) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Of every row the pieces with their special ones, the segments, and the regions that pieces name or -1."""
    ids, segments, tags = [], [], []
    for question, answer, named in zip(
        drawn.first.flatten(0, 1), drawn.second.flatten(0, 1), drawn.tags.flatten(0, 1), strict=True
    ):
        start = [CLS, *question[question > 0].tolist(), SEP]
        end = [*answer[answer > 0].tolist(), SEP] if drawn.second.shape[-1] else []
        if not end and system == "vlbert":
            end = [MASK, SEP]
        ids.append(start + end)
        segments.append([0] * len(start) + [int(system == "vlbert")] * len(end))
        tags.append([-1, *named[question > 0].tolist()] + [-1] * (len(end) + 1))
    return ids, segments, tags


def padded(rows: list[list[int]], fill: int = 0) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)


def our_batch(drawn: Drawn, system: str) -> TaskBatch:
    """As `GroupBatches` makes it: an image once a question."""
    ids, segments, tags = rows_of(drawn, system)
    questions, choices = drawn.first.shape[:2]
    rows = torch.arange(questions).repeat_interleave(choices)
    words = torch.full((len(ids), drawn.regions.shape[1], NAMED), -1)
    for row, named in enumerate(tags):
        for place, region in enumerate(named):
            if region >= 0:
                words[row, region, int((words[row, region] >= 0).sum())] = place
    inputs = VLBatch(
        text_ids=padded(ids),
        text_mask=padded([[1] * len(row) for row in ids]).bool(),
        text_segments=padded(segments),
        region_features=drawn.features,
        region_boxes=drawn.boxes,
        region_mask=drawn.regions,
        image_hw=torch.full((questions, 2), _IMAGE_SIZE),
        masked_regions=torch.zeros_like(drawn.regions),
        whole_image_features=drawn.whole,
        aligned_words=words if system == "vlbert" and choices > 1 else None,
        row_images=rows if choices > 1 else None,
    )
    return TaskBatch(inputs, (choices,) * questions, drawn.targets, ("",) * questions)


@dataclass(frozen=True)
class Pair:
    """A system on a task, here and in its official code.

    Attributes:
        theirs: makes the official model, from a number of answers.
        their_loss: of the official model.
        loss: name of ours.
    """

    system: str
    task: str
    theirs: Callable[[], nn.Module]
    their_loss: Callable[[nn.Module, Drawn], Tensor]
    loss: str

    @property
    def form(self) -> str:
        return LABEL if self.task == "vqa" else CHOICE

    def our_loss(self, drawn: Drawn, *, share: bool) -> Callable[[nn.Module], Tensor]:
        batch, loss = our_batch(drawn, self.system), loss_named(self.form, self.loss)
        if not share:
            batch = replace(batch, inputs=batch.inputs.without_sharing())

        def of(model: nn.Module) -> Tensor:
            assert batch.targets is not None
            real = real_scores(self.form, batch.inputs, batch.group_sizes, ANSWERS)
            return loss.term(scores_of(model, batch, self.form), batch.targets, real).mean

        return of

    def ours(self, theirs: nn.Module) -> nn.Module:
        """The network of a fine-tuning run with the weights of the official model."""
        official: Mapping[str, Tensor] = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
        network = self._network()
        module: Any = without_dropout(network.module)
        for part in module.modules():
            if isinstance(part, DroppedLinear):
                part.dropout = 0.0
        if self.system == "vlbert":
            state = vlbert_checkpoint.state_from_official(official)
        else:
            state = vilbert_checkpoint.state_from_official(official)
        if self._has_release_head:
            module.load_state_dict({name: state[name] for name in module.state_dict()})
            return module
        module.model.load_state_dict(
            {name: state.get(name, tensor) for name, tensor in module.model.state_dict().items()}
        )
        module.head.load_state_dict({f"classifier.{part}": state[f"pair_score.{part}"] for part in ("weight", "bias")})
        return module

    @property
    def _has_release_head(self) -> bool:
        """VCR's of ViLBERT is ours: the release's is one layer of its model of all tasks."""
        return (self.system, self.task) != ("vilbert", "vcr")

    def _network(self) -> TaskNetwork:
        asked = OutputSpec(self.form, ANSWERS if self.task == "vqa" else 1)
        if self.system == "vlbert":
            model: nn.Module = VLBertForPreTraining(vlbert_base(region_dropout=0.0, **NO_DROPOUT))
        else:
            rates = ("image_hidden_dropout", "image_attention_dropout", "region_embedding_dropout", "pair_dropout")
            model = ViLbertForPreTraining(vilbert_config("release", **NO_DROPOUT, **dict.fromkeys(rates, 0.0)))
        head = "release" if self._has_release_head else "ours"
        return started_network(SYSTEMS[self.system], model, asked, head, source="the bench")


def their_vlbert_boxes(drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
    """Whole image first: boxes (Q, R + 1, 4), -2 at padding, features (Q, R + 1, D), sizes (Q, 4)."""
    questions = len(drawn.boxes)
    whole = torch.tensor([0.0, 0.0, _IMAGE_SIZE - 1, _IMAGE_SIZE - 1]).expand(questions, 1, 4)
    boxes = torch.where(drawn.regions[..., None], drawn.boxes, -2.0)
    info = torch.tensor([_IMAGE_SIZE, _IMAGE_SIZE, 1.0, 1.0]).expand(questions, 4)
    return torch.cat([whole, boxes], dim=1), torch.cat([drawn.whole[:, None], drawn.features], dim=1), info


def vlbert_vqa_loss(model: nn.Module, drawn: Drawn) -> Tensor:
    boxes, features, info = their_vlbert_boxes(drawn)
    _, loss = model(None, torch.cat([boxes, features], dim=-1), info, drawn.first[:, 0], drawn.targets)
    return loss


def vlbert_vcr_loss(model: nn.Module, drawn: Drawn) -> Tensor:
    """Classes of boxes are not read. A piece that names no box names the whole image, number 0."""
    boxes, features, info = their_vlbert_boxes(drawn)
    question = torch.stack([drawn.first[:, 0], drawn.tags[:, 0] + 1], dim=-1)
    answers = torch.stack([drawn.second, torch.zeros_like(drawn.second)], dim=-1)
    boxes = torch.cat([boxes, torch.ones_like(boxes[..., :1])], dim=-1)
    masks = torch.zeros(*boxes.shape[:2], 1, 1)
    _, loss = model(features, boxes, masks, question, None, answers, None, drawn.targets, info)
    return loss


def vilbert_outputs(model: nn.Module, drawn: Drawn) -> Any:
    """Of vilbert_beta/train_tasks.py: features are expanded to a copy for each choice."""
    ids, segments, _ = rows_of(drawn, "vilbert")
    questions, choices = drawn.first.shape[:2]
    corners = drawn.boxes / _IMAGE_SIZE
    area = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]).expand(questions, 1, -1)
    features = torch.cat([drawn.whole[:, None], drawn.features], dim=1)
    places = torch.cat([whole, torch.cat([corners, area[..., None]], dim=-1)], dim=1)
    real = torch.cat([torch.ones(questions, 1), drawn.regions.float()], dim=1)
    of_rows = [each.repeat_interleave(choices, dim=0) for each in (features, places, real)]
    text_mask = padded([[1] * len(row) for row in ids]).float()
    return model(padded(ids), of_rows[0], of_rows[1], padded(segments), text_mask, of_rows[2])


def vilbert_vqa_loss(model: nn.Module, drawn: Drawn) -> Tensor:
    logits = vilbert_outputs(model, drawn)[0]
    return F.binary_cross_entropy_with_logits(logits, drawn.targets) * logits.shape[1]


def vilbert_vcr_loss(model: nn.Module, drawn: Drawn) -> Tensor:
    return F.cross_entropy(vilbert_outputs(model, drawn)[1].view(drawn.first.shape[:2]), drawn.targets)


def make_pairs(vlbert: Path | None, vilbert: Path | None) -> list[Pair]:
    pairs = []
    if vilbert is not None:
        make = lambda: official_vilbert_tasks(vilbert, ANSWERS)  # noqa: E731
        pairs += [
            Pair("vilbert", "vqa", make, vilbert_vqa_loss, "bce"),
            Pair("vilbert", "vcr", make, vilbert_vcr_loss, "softmax"),
        ]
    if vlbert is not None:
        pairs += [
            Pair("vlbert", "vqa", lambda: official_vlbert_task(vlbert, "vqa", ANSWERS), vlbert_vqa_loss, "bce"),
            Pair("vlbert", "vcr", lambda: official_vlbert_task(vlbert, "vcr", 1), vlbert_vcr_loss, "sigmoid"),
        ]
    return pairs


def compare(pair: Pair, rounds: int, clock: Callable[[], float], *, unshared: bool = False) -> list[tuple[str, ...]]:
    """Rows of the table.

    Args:
        unshared: takes steps of ours with an image for each row too.
    Raises:
        SystemExit: when the two have different losses.
    """
    torch.manual_seed(0)
    theirs = pair.theirs()
    theirs.train()
    ours = pair.ours(theirs)
    for seed in range(2):
        drawn = draw(pair.task, seed)
        with torch.no_grad():
            wanted, got = float(pair.their_loss(theirs, drawn)), float(pair.our_loss(drawn, share=True)(ours))
        print(f"{pair.system} {pair.task}: loss {got:.6f}, theirs {wanted:.6f}", flush=True)
        if not abs(got - wanted) <= TOLERANCE * max(1.0, abs(wanted)):
            raise SystemExit(f"{pair.system} {pair.task}: the losses differ by more than {TOLERANCE}; nothing to time")
    of_theirs, of_ours = (
        Trainer(theirs, pair.their_loss, clock),
        Trainer(ours, lambda model, loss: loss(model), clock),
    )
    arms: dict[str, Callable[[Drawn], float]] = {
        "theirs": of_theirs.step,
        "ours": lambda drawn: of_ours.step(pair.our_loss(drawn, share=True)),
    }
    if pair.task == "vcr" and unshared:
        arms["ours, an image for each row"] = lambda drawn: of_ours.step(pair.our_loss(drawn, share=False))

    def arm(step: Callable[[Drawn], float]) -> Callable[[], float]:
        seeds = count()

        def timed() -> float:
            seconds = step(draw(pair.task, next(seeds)))
            for trainer in (of_theirs, of_ours):
                trainer.optimizer.zero_grad()  # two models of base size are large enough without them
            return seconds

        return timed

    seconds = take_turns({name: arm(step) for name, step in arms.items()}, rounds)
    rows = []
    for name, times in seconds.items():
        ratio = Ratio(seconds["theirs"], times)
        bar = f"{BAR}: {ratio.at_least(BAR)}" if name == "ours" else ""
        rows.append((pair.system, pair.task, name, f"{sorted(times)[len(times) // 2]:.2f}", str(ratio), bar))
        print(" | ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "loader"))
    parser.add_argument("--vlbert", type=Path, help="checkout of jackroos/VL-BERT")
    parser.add_argument("--vilbert", type=Path, help="checkout of jiasenlu/vilbert_beta")
    parser.add_argument("--unshared", action="store_true", help="time our VCR step with an image for each row too")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch (default: all cores)")
    parser.add_argument("--cpu-time", action="store_true", help="seconds of CPU time: for a machine that is busy")
    parser.add_argument("--images", type=int, default=5000, help="of the loader's store")
    parser.add_argument("--folder", type=Path, help="where that store goes [default: the temporary folder]")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    if arguments.what == "loader":
        print(loader_rates(arguments.images, arguments.rounds, arguments.folder, clock))
        return
    pairs = make_pairs(arguments.vlbert, arguments.vilbert)
    if not pairs:
        parser.error("name a checkout with --vlbert or --vilbert")
    print(f"torch {torch.__version__}, {arguments.threads} threads")
    rows = [row for pair in pairs for row in compare(pair, arguments.rounds, clock, unshared=arguments.unshared)]
    print(table(("model", "task", "arm", "s/step", "step rate over theirs, median [95 %]", "bar"), rows))


if __name__ == "__main__":
    main()
