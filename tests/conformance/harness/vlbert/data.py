"""VL-BERT's data and training arithmetic against reference arrays (goldens/vlbert/README.md).

`dataset_item`: one record to samples. What was drawn (masked words and regions) is read from the outputs; features,
order, labels and cut must follow from it. `optim_and_losses`: optimiser, schedules and single losses.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.case_files import ArrayError
from harness.checks import Check, apart, equal
from harness.model_case import ModelArrays
from harness.tolerances import VLBERT
from harness.vlbert.case import loss_check
from roibeam.extraction.network.conventions import CONVENTIONS, PUBLISHED_EDGES
from roibeam.extraction.photos.preprocessing import input_size
from roibeam.features.record.region_record import RegionRecord
from roibeam.model.common.losses import soft_cross_entropy
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.task_losses import overlaps
from roibeam.model.vlbert.embeddings import embed_coordinates
from roibeam.pipelines.data.batches.sample import PretrainSample
from roibeam.pipelines.finetuning.metrics.vqa import vlbert_soft_target
from roibeam.pipelines.pretraining.samples.vlbert import make_sample
from roibeam.pipelines.training.optimizer import TransformersAdamW, learning_rate_at
from roibeam.pipelines.training.train_config import TrainConfig

CLS, SEP = 101, 102  # of BERT's vocabulary
MAX_HIDDEN = 16  # regions that were cut off; which of them were masked is searched for
MAX_STEPS = 10_000
MOVED_PX = 7.0  # "out/iou" is with the first two boxes, moved right and down by that
_WORD = re.compile(r"(?:##)?w(\d+)")


def data_checks(arrays: ModelArrays) -> Iterator[Check]:
    if "in/class_scores" in arrays:
        return _item_checks(arrays)
    if "in/adamw_grads" in arrays:
        return _training_checks(arrays)
    raise ValueError("config: no class, and neither in/class_scores nor in/adamw_grads; this case is unknown")


# --- dataset_item ---


def _item_checks(arrays: ModelArrays) -> Iterator[Check]:
    words, limits = arrays.options.get("caption_words"), arrays.options.get("seq_lens")
    if not isinstance(words, list) or not isinstance(limits, list):
        raise ValueError("config: caption_words and seq_lens must be lists")
    pieces = [[int(number) for number in _WORD.findall(str(word))] for word in words]
    samples = [name.removesuffix("_text") for name in arrays.below("out/") if name.endswith("_text")]
    if len(samples) != len(limits) or not all(pieces):
        raise ValueError(f"config: {len(limits)} seq_lens for {len(samples)} samples, or a word without a number")
    record = _record(arrays)
    for prefix, limit in zip(samples, limits, strict=True):
        yield from _sample_checks(arrays, f"out/{prefix}", record, pieces, int(limit))


def _record(arrays: ModelArrays) -> RegionRecord:
    scores = arrays.floats("in/class_scores", None, None).numpy()
    count = len(scores)
    width, height = arrays.whole("in/image_wh", 1, 1 << 16, 2).tolist()
    return RegionRecord(
        image_id="case",
        height=height,
        width=width,
        boxes=arrays.floats("in/boxes", count, 4).numpy(),
        features=arrays.floats("in/features", count, None).numpy(),
        class_ids=np.zeros(count, np.uint16),
        class_scores=scores.max(axis=1),  # regions come by their highest probability, background included
        class_distribution=scores.astype(np.float16),
    )


def _sample_checks(
    arrays: ModelArrays, prefix: str, record: RegionRecord, pieces: list[list[int]], limit: int
) -> Iterator[Check]:
    boxes = arrays.floats(f"{prefix}_boxes_and_features", None, None)
    kept = len(boxes) - 1
    classes = arrays.take("in/class_scores").shape[1]
    targets = arrays.floats(f"{prefix}_mvrc_labels", kept + 1, classes).numpy()
    ops = arrays.mask(f"{prefix}_mvrc_ops", kept + 1).numpy()
    count = len(record.boxes)
    if kept > count:
        raise ArrayError(f"{prefix}_boxes_and_features", f"has {kept} regions of a record with {count}")
    predicted, masked = np.zeros(count, bool), np.zeros(count, bool)
    predicted[:kept], masked[:kept] = targets[1:].sum(axis=1) > 0.5, ops[1:]
    _find_masked(record, masked, kept, boxes[0, 4:].numpy())
    text = np.array([CLS, *(piece for word in pieces for piece in word), SEP])
    sample = make_sample(
        record,
        text,
        np.full(len(text), IGNORE_INDEX),
        masked,
        predicted,
        num_classes=classes - 1,
        max_elements=limit,
        max_text=len(text),
    )
    assert sample.whole_image is not None and sample.targets is not None
    (edges,) = PUBLISHED_EDGES["vlbert-e2e"]
    (height, width), _ = input_size((record.height, record.width), *edges, CONVENTIONS["vlbert-e2e"])
    scale = np.array([width / record.width, height / record.height])
    corners = np.concatenate([[[0, 0, record.width - 1, record.height - 1]], sample.boxes]) * np.tile(scale, 2)
    corners = np.clip(corners, 0, [width - 1, height - 1] * 2)
    made = np.concatenate([corners, np.concatenate([sample.whole_image[None], sample.features])], axis=1)
    yield apart(f"{prefix}_boxes_and_features", made, boxes.numpy(), VLBERT.values)
    info, want = np.array([width, height, *scale, 0.0]), arrays.floats(f"{prefix}_im_info", 5).numpy()
    yield apart(f"{prefix}_im_info", info, want, VLBERT.values)
    yield equal(f"{prefix}_mvrc_ops", np.append(False, sample.masked & sample.predicted), ops)
    want = np.concatenate([np.zeros((1, classes)), sample.targets.numpy()])
    # Stores hold distributions as float16, whose smallest steps are 6e-8.
    yield apart(f"{prefix}_mvrc_labels", want, targets, float(np.finfo(np.float16).smallest_subnormal))
    yield from _word_checks(arrays, prefix, sample, pieces)


def _word_checks(arrays: ModelArrays, prefix: str, sample: PretrainSample, pieces: list[list[int]]) -> Iterator[Check]:
    """Whole words are labelled, with their own pieces; only labelled pieces changed."""
    original = sample.text_ids
    labels = arrays.take(f"{prefix}_mlm_labels", len(original))
    text = arrays.take(f"{prefix}_text", len(original))
    words = np.array([-1, *(number for number, word in enumerate(pieces) for _ in word)])[: len(original) - 1]
    words = np.append(words, -1)
    chosen = np.isin(words, words[(labels != -1) & (words >= 0)])
    yield equal(f"{prefix}_mlm_labels", np.where(chosen, original, -1), labels)
    yield equal(f"{prefix}_text", np.where(chosen, text, original), text)


def _find_masked(record: RegionRecord, masked: np.ndarray, kept: int, whole: np.ndarray) -> None:
    """Fills `masked` behind `kept`: which regions were masked and cut off shows in the whole image's feature alone."""
    features = record.features[np.argsort(-record.class_scores, kind="stable")].astype(np.float64)
    hidden = len(features) - kept
    if hidden > MAX_HIDDEN:
        raise ValueError(f"{hidden} regions were cut off; at most {MAX_HIDDEN} in a case like this")
    for number in range(2**hidden):
        masked[kept:] = [number >> bit & 1 for bit in range(hidden)]
        mean = features[~masked].sum(axis=0) / ((~masked).sum() + 1e-5)
        if np.abs(mean - whole).max() < VLBERT.values:
            return


# --- optim_and_losses ---


def _training_checks(arrays: ModelArrays) -> Iterator[Check]:
    yield from _optimiser_checks(arrays, _group(arrays, "adamw"), _group(arrays, "triangle"))
    rise, fall = _group(arrays, "triangle"), _group(arrays, "step")
    if fall.get("warmup_factor", 0.0) != 0.0:
        raise ValueError(f"config: step.warmup_factor is {fall['warmup_factor']!r}; here a rate rises from 0")
    steps = TrainConfig(
        steps=MAX_STEPS,
        learning_rate=1.0,
        warmup_steps=int(fall["warmup_iters"]),
        schedule="steps",
        decay_steps=tuple(int(milestone) - 1 for milestone in fall["milestones"]),
        decay_factor=float(fall["gamma"]),
    )
    for kind, config in {"triangle": _train_config(rise, 1.0), "step": steps}.items():
        name = f"out/{kind}_schedule_lr_after_k_scheduler_steps"
        want = arrays.take(name, None)
        after = [learning_rate_at(done, config) for done in range(len(want))]  # 0, 1, 2, ... steps of the schedule
        yield apart(name, np.array(after), want, VLBERT.optimiser)
    yield from _loss_checks(arrays)
    yield from _answer_checks(arrays)
    boxes = arrays.floats("in/coord_boxes", None, 6)
    want = arrays.take("out/coord_embed", len(boxes), 4, None)
    made = embed_coordinates(boxes[:, None, :4], boxes[:, 4:].flip(-1), 4 * want.shape[2])
    yield apart("out/coord_embed", made.view(want.shape), want, VLBERT.values)
    iou = overlaps(boxes[:, :4], boxes[:2, :4] + MOVED_PX, inclusive_sides=True)
    yield apart("out/iou", iou, arrays.take("out/iou"), VLBERT.optimiser)


def _group(arrays: ModelArrays, name: str) -> Mapping[str, Any]:
    group = arrays.options.get(name)
    if not isinstance(group, dict):
        raise ValueError(f"config: {name} must be an object of options, got {group!r}")
    return group


def _train_config(rise: Mapping[str, Any], rate: float) -> TrainConfig:
    return TrainConfig(steps=int(rise["t_total"]), learning_rate=rate, warmup_steps=int(rise["warmup_steps"]))


def _optimiser_checks(arrays: ModelArrays, options: Mapping[str, Any], rise: Mapping[str, Any]) -> Iterator[Check]:
    """Rate, clip and step, in the release's order, under the linear schedule."""
    start = arrays.floats("in/p0")
    gradients = arrays.floats("in/adamw_grads", None, *start.shape)
    if len(gradients) > MAX_STEPS:
        raise ArrayError("in/adamw_grads", f"has {len(gradients)} steps; at most {MAX_STEPS} are run")
    parameter = nn.Parameter(start.clone())
    config = _train_config(rise, float(options["lr"]))
    optimiser = TransformersAdamW(
        [parameter],
        lr=config.learning_rate,
        betas=(float(options["betas"][0]), float(options["betas"][1])),
        eps=float(options["eps"]),
        weight_decay=float(options["weight_decay"]),
        correct_bias=bool(options["correct_bias"]),
    )
    made: dict[str, list[Any]] = {"adamw_p": [], "adamw_lr_used": [], "adamw_grad_norms": []}
    for step, gradient in enumerate(gradients, 1):
        rate = optimiser.param_groups[0]["lr"] = learning_rate_at(step, config)
        parameter.grad = gradient.clone()
        norm = nn.utils.clip_grad_norm_([parameter], float(options["clip"]))
        optimiser.step()
        for name, value in zip(made, (parameter.detach().clone().numpy(), rate, float(norm)), strict=True):
            made[name].append(value)
    for name, values in made.items():
        yield apart(f"out/{name}", np.array(values), arrays.take(f"out/{name}"), VLBERT.optimiser)


def _loss_checks(arrays: ModelArrays) -> Iterator[Check]:
    """Soft cross-entropy: a row counts where its target sums to about 1 (common/utils/misc.py)."""
    logits = arrays.floats("in/soft_logits", None, None)
    targets = arrays.floats("in/soft_target", *logits.shape)
    valid = (targets.sum(dim=-1) - 1).abs() < 0.1
    term = soft_cross_entropy(logits, targets, valid)
    each = [soft_cross_entropy(*(part[row, None] for part in (logits, targets, valid))) for row in range(len(valid))]
    losses = {"mean": term.mean, "sum": term.total, "none": torch.stack([row.total for row in each])}
    for name, got in losses.items():
        yield loss_check(arrays, f"out/soft_ce_{name}", got)


def _answer_checks(arrays: ModelArrays) -> Iterator[Check]:
    """VQA's soft targets; the first answer of the vocabulary stands for all others and is never right."""
    vocabulary, answers = arrays.options.get("vqa_answer_vocab"), arrays.options.get("vqa_answers")
    if not isinstance(vocabulary, list) or not isinstance(answers, list):
        raise ValueError("config: vqa_answer_vocab and vqa_answers must be lists")
    scores = [vlbert_soft_target(given, vocabulary) for given in answers]
    rows = [[each.get(place, 0.0) if place else 0.0 for place in range(len(vocabulary))] for each in scores]
    want = arrays.take("out/vqa_soft_targets")
    yield apart("out/vqa_soft_targets", np.array(rows), want, VLBERT.optimiser)
