"""VisualBERT's first release: what a micro-batch of its four tasks is, and their losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from roibeam.model.common.losses import SumCount, cross_entropy
from roibeam.model.inputs import VLBatch
from roibeam.model.task_losses import answer_kl, grounding_loss
from roibeam.model.visualbert.checkpoint import config_from_official, state_from_official
from roibeam.model.visualbert.tasks import VisualBertForGrounding, VisualBertForLabels
from roibeam.pipelines.conformance.case_files import ArrayError
from roibeam.pipelines.conformance.finetuning.trajectory import MicroBatch, Release, in_float64
from roibeam.pipelines.conformance.model_case import ModelArrays, check_sizes
from roibeam.pipelines.model_files.model_checkpoint import build_model
from roibeam.pipelines.training.release_settings import release_settings
from roibeam.pipelines.training.train_config import TrainConfig

UNKNOWN_ANSWER = 0  # never counted as an answer in training


def visualbert_release(arrays: ModelArrays) -> Release:
    official, options = arrays.parameters(), arrays.options
    bert, arguments = dict(options["bert"]), options["args"]
    check_sizes(bert, len(official))
    bert["vocab_size"] = bert.pop("vocab_size_or_config_json_file")
    state = state_from_official(official)
    labels = len(state["label_head.weight"]) if "label_head.weight" in state else 0
    config = config_from_official(
        {**bert, "visual_embedding_dim": arguments["model"]["visual_embedding_dim"]},
        num_answers=labels,
        first_region_segment=0,
        padding_piece=0,
        copy_text_tables=False,
    )
    make: Any = VisualBertForLabels if labels else VisualBertForGrounding
    model = build_model(lambda: make(config), state).double()
    names = {ours: name for name in official for ours in state_from_official({name: official[name]})}
    numbers = sorted({int(name.partition(".")[0]) for name in arrays.names("in/")})
    task = arguments["model"]["training_head_type"]
    batches = {number: _batch(arrays, f"in/{number}.", task, config.vocab_size) for number in numbers}

    def losses(model: nn.Module, batch: MicroBatch) -> tuple[dict[str, SumCount], dict[str, Tensor]]:
        return _losses(model, batch, task)

    return Release(model, batches, losses, _settings(arguments, options["t_total"]), names.__getitem__)


def _settings(arguments: dict[str, Any], steps: int) -> TrainConfig:
    return TrainConfig(
        **release_settings("visualbert-ucla"),
        steps=steps,
        learning_rate=arguments["learning_rate"],
        warmup_share=arguments["warmup_proportion"],
        accumulation=arguments.get("gradient_accumulation_steps", 1),
        loss_mean="micro_batch",
        used_micro_batches="last",
        device="cpu",
    )


def _batch(arrays: ModelArrays, prefix: str, task: str, vocab_size: int) -> MicroBatch:
    """Choices of a question are rows of their own, each with its copy of the regions and its own aligned words."""
    ids = arrays.whole(f"{prefix}bert_input_ids", 0, vocab_size)
    shape, length = tuple(ids.shape[:-1]), ids.shape[-1]
    mask = arrays.mask(f"{prefix}bert_input_mask", *shape, length)
    segments = arrays.whole(f"{prefix}bert_input_type_ids", 0, 2, *shape, length)
    features = arrays.floats(f"{prefix}image_feat_variable", *shape, None, None)
    regions = features.shape[-2]
    counts = arrays.whole(f"{prefix}image_dim_variable", 0, regions + 1, *shape).flatten()
    rows = len(counts)
    more: dict[str, Tensor] = {}
    if f"{prefix}visual_embeddings_type" in arrays:
        more["region_images"] = arrays.whole(f"{prefix}visual_embeddings_type", 0, 2, *shape, regions)
    if f"{prefix}image_text_alignment" in arrays:
        words = arrays.whole(f"{prefix}image_text_alignment", -1, length, *shape, regions, None)
        more["aligned_words"] = words.reshape(rows, regions, -1)
    region_mask = torch.arange(regions) < counts[:, None]
    inputs = in_float64(
        VLBatch(
            text_ids=ids.reshape(rows, length),
            text_mask=mask.reshape(rows, length),
            text_segments=segments.reshape(rows, length),
            region_features=features.reshape(rows, regions, -1),
            region_boxes=torch.zeros(rows, regions, 4),  # read by nothing in VisualBERT
            region_mask=region_mask,
            image_hw=torch.ones(rows, 2),
            masked_regions=torch.zeros_like(region_mask),
            region_images=more.get("region_images"),
            aligned_words=more.get("aligned_words"),
            phrase_positions=arrays.whole(f"{prefix}flickr_position", -1, length, rows, None)
            if task == "flickr"
            else None,
        )
    )
    label = torch.from_numpy(arrays.arrays.take_finite(f"{prefix}label").copy())
    label = label.double() if label.is_floating_point() else label.long()
    return MicroBatch(inputs, label, {"task": len(label)})


def _losses(model: Any, batch: MicroBatch, task: str) -> tuple[dict[str, SumCount], dict[str, Tensor]]:
    inputs, label = batch.inputs, batch.targets
    output = model.visualbert(inputs)
    if task == "flickr":
        scores = model.score_regions(inputs, output, inputs.phrase_positions)
        asked = inputs.phrase_positions >= 0
        best = label.gather(2, scores.argmax(dim=2, keepdim=True)).squeeze(2)
        number = asked.sum().double()
        return {"task": grounding_loss(scores, label * asked[..., None])}, {
            "entity_num": number,
            "accuracy": ((best > 0) & asked).sum() / number,
            "upperbound_accuracy": ((label.sum(dim=2) > 0) & asked).sum() / number,
        }
    if task == "vqa":
        logits = model.from_mask_piece(inputs, output)
        known = logits.clone()
        known[:, UNKNOWN_ANSWER] = -torch.inf
        best = label.gather(1, known.argmax(dim=1, keepdim=True))
        return {"task": answer_kl(logits, label)}, {"accuracy": best.mean()}
    if task not in ("nlvr", "multichoice"):
        raise ArrayError("config", f"training_head_type is {task!r}; expected vqa, nlvr, multichoice or flickr")
    logits = model.from_pooled(output)
    logits = logits.reshape(len(label), -1) if task == "multichoice" else logits
    return {"task": cross_entropy(logits, label)}, {"accuracy": (logits.argmax(dim=1) == label).double().mean()}
