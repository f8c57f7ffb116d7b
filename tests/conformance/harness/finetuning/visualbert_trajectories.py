"""Trajectories of VisualBERT's first release: `ModelWrapper.step` (goldens/finetune_visualbert)."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.finetuning.trajectory import Terms, Trajectory, as_double, without_dropout
from harness.model_case import ModelArrays, check_sizes
from harness.visualbert_family import read_batch
from roibeam.model.common.losses import cross_entropy
from roibeam.model.common.transformer import computing_padding
from roibeam.model.inputs import VLBatch
from roibeam.model.task_losses import answer_kl, grounding_loss
from roibeam.model.visualbert.checkpoint import config_from_official, state_from_official
from roibeam.model.visualbert.model import VisualBertForGrounding, VisualBertForLabels
from roibeam.pipelines.training.model_files.model_checkpoint import build_model
from roibeam.pipelines.training.step_policies import release_settings
from roibeam.pipelines.training.train_config import TrainConfig

HEADS = ("vqa", "nlvr", "multichoice", "flickr")
_NAMES = {
    "text_ids": "bert_input_ids",
    "text_mask": "bert_input_mask",
    "text_segments": "bert_input_type_ids",
    "region_features": "image_feat_variable",
    "num_regions": "image_dim_variable",
    "region_images": "visual_embeddings_type",
    "aligned_words": "image_text_alignment",
}
UNKNOWN_ANSWER = 0  # never chosen, when the release says how often it is right


@dataclass(frozen=True, eq=False)
class _Rows:
    batch: VLBatch
    label: Tensor
    positions: Tensor | None
    questions: int


def visualbert_trajectory(arrays: ModelArrays) -> Trajectory:
    """The run of a case of `ModelWrapper`."""
    options = arrays.options
    head = options["args"]["model"]["training_head_type"]
    if head not in HEADS:
        raise ValueError(f"config: training_head_type is {head!r}; it must be {' or '.join(HEADS)}")
    official = arrays.parameters()
    model = _model(options, official)
    names = {name: next(iter(state_from_official({name: tensor})), None) for name, tensor in official.items()}

    def terms(running: nn.Module, rows: _Rows) -> Terms:
        return _terms(running, rows, head)

    return Trajectory(
        model=model,
        config=_train_config(options),
        batch=lambda number: _rows(arrays, number, model.config),
        terms=terms,
        our_name=names.get,
    )


def _model(options: dict[str, Any], official: dict[str, Tensor]) -> Any:
    sizes = dict(options["bert"])
    sizes["vocab_size"] = sizes.pop("vocab_size_or_config_json_file")
    check_sizes(sizes, len(official))
    state = as_double(state_from_official(official))
    labels = len(state["label_head.weight"]) if "label_head.weight" in state else 1
    config = config_from_official(
        sizes,
        num_answers=labels,
        first_region_segment=0,
        padding_piece=0,
        region_feature_size=int(options["args"]["model"]["visual_embedding_dim"]),
        with_match_head="match_head.weight" in state,
    )
    make = VisualBertForGrounding if "grounding_head.query.weight" in state else VisualBertForLabels
    model = build_model(lambda: make(config), state)
    without_dropout(model)
    return model


def _train_config(options: dict[str, Any]) -> TrainConfig:
    given = options["args"]
    steps = int(options["t_total"])
    if int(options["updates"]) != steps:
        raise ValueError(f"config: {options['updates']} updates under a schedule of {steps}")
    return TrainConfig(
        **release_settings("visualbert-ucla-tasks")
        | {
            "steps": steps,
            "learning_rate": float(given["learning_rate"]),
            "warmup_steps": float(given["warmup_proportion"]) * steps,
            "accumulation": int(given["gradient_accumulation_steps"]),
        }
    )


def _rows(arrays: ModelArrays, number: int, config: Any) -> _Rows:
    folder = f"in/{number}."
    batch = read_batch(arrays, config, {field: folder + name for field, name in _NAMES.items()})
    shape = arrays.take(f"{folder}bert_input_ids").shape
    position, most = f"{folder}flickr_position", shape[-1] + batch.region_mask.shape[1]
    return _Rows(
        replace(batch, region_features=batch.region_features.double()),
        arrays.target(f"{folder}label"),
        arrays.whole(position, -1, most, batch.batch_size, None) if position in arrays else None,
        shape[0],
    )


def _terms(model: Any, rows: _Rows, head: str) -> Terms:
    batch, label = rows.batch, rows.label
    # The release looks for a word that is cut behind the text, where a region stands, or padding.
    cut = rows.positions is not None and bool((rows.positions >= batch.text_ids.shape[1]).any())
    with computing_padding() if cut else nullcontext():
        output = model.visualbert(batch)
    if head == "vqa":
        logits = model.from_mask_piece(batch, output)
        known = logits.detach().clone()
        known[:, UNKNOWN_ANSWER] = -torch.inf
        right = label.gather(1, known.argmax(dim=1, keepdim=True)).mean()
        return Terms({"loss": answer_kl(logits, label)}, {"accuracy": right})
    if head == "flickr":
        assert rows.positions is not None
        scores = model.score_regions(batch, output, rows.positions)
        asked, shown = rows.positions >= 0, label.sum(dim=-1) > 0
        seen = scores.detach().masked_fill(~batch.region_mask[:, None], -torch.inf)
        hit = label.gather(2, seen.argmax(dim=-1, keepdim=True)).squeeze(-1) > 0
        number = asked.sum().double()
        return Terms(
            {"loss": grounding_loss(scores, label)},
            {
                "entity_num": number,
                "accuracy": (hit & asked).sum() / number,
                "upperbound_accuracy": (shown & asked).sum() / number,
            },
        )
    logits = model.from_pooled(output).reshape(rows.questions, -1)
    return Terms({"loss": cross_entropy(logits, label)})
