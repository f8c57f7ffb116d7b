"""The family "visualbert": pre-training, late fusion and the task heads (goldens/visualbert/README.md).

The model is told from the parameters, the task from the shapes of what goes in. Gradients belong to "out/loss".
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.case_files import ArrayError
from harness.checks import Check
from harness.model_case import ModelArrays, Outputs, check_sizes, gradient_checks, model_family, output_checks
from roibeam.model.common.transformer import Packing, computing_padding
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.task_losses import answer_kl, grounding_loss
from roibeam.model.visualbert.checkpoint import TABLE, config_from_official, state_from_official
from roibeam.model.visualbert.model import (
    VisualBertConfig,
    VisualBertForGrounding,
    VisualBertForLabels,
    VisualBertForPreTraining,
)
from roibeam.pipelines.training.model_files.model_checkpoint import build_model

_NAMES = {
    "text_ids": "in/input_ids",
    "text_mask": "in/attention_mask",
    "text_segments": "in/token_type_ids",
    "region_features": "in/visual_embeds",
    "region_mask": "in/visual_attention_mask",
    "region_images": "in/visual_token_type_ids",
    "aligned_words": "in/image_text_alignment",
}


def _run(arrays: ModelArrays) -> Iterator[Check]:
    official = arrays.parameters()
    check_sizes(arrays.options, len(official))
    state = state_from_official(official)
    labels = len(state["label_head.weight"]) if "label_head.weight" in state else 0
    config = config_from_official(arrays.options, num_answers=labels, first_region_segment=0)
    batch = read_batch(arrays, config, _NAMES)
    if labels:
        model: Any = build_model(lambda: VisualBertForLabels(config), state)
        outputs = _label_outputs(arrays, model, batch)
    elif "grounding_head.query.weight" in state:
        model = build_model(lambda: VisualBertForGrounding(config), state)
        outputs = _grounding_outputs(arrays, model, batch)
    else:
        model = build_model(lambda: VisualBertForPreTraining(config), state)
        outputs = _pretraining_outputs(arrays, model, batch)
    yield from output_checks(arrays, outputs)
    if "out/loss" in arrays:
        yield from gradient_checks(arrays, model, outputs["loss"], TABLE.internal)


VISUALBERT_FAMILY = model_family("visualbert", ("param/visual_bert.",), _run)


def read_batch(arrays: ModelArrays, config: VisualBertConfig, names: Mapping[str, str]) -> VLBatch:
    """Rows of the file; the choices of a question are rows of their own.

    Args:
        names: of a field's array; "num_regions" stands for "region_mask", "region_images" and "aligned_words" may lack.
    """
    ids = arrays.whole(names["text_ids"], 0, config.vocab_size)
    if ids.ndim not in (2, 3):
        raise ArrayError(
            names["text_ids"], f"has shape {tuple(ids.shape)}; expected rows and pieces, or choices between"
        )
    rows, length = ids.shape[:-1], ids.shape[-1]
    features = arrays.floats(names["region_features"], *rows, None, config.region_feature_size)
    regions = features.shape[-2]
    if "num_regions" in names:
        mask = torch.arange(regions) < arrays.whole(names["num_regions"], 0, regions + 1, *rows)[..., None]
    else:
        mask = arrays.mask(names["region_mask"], *rows, regions)
    fields: dict[str, Tensor] = {
        "text_ids": ids,
        "text_mask": arrays.mask(names["text_mask"], *rows, length),
        "text_segments": arrays.whole(names["text_segments"], 0, config.num_segments, *rows, length),
        "region_features": features,
        "region_mask": mask,
    }
    if names["region_images"] in arrays:
        fields["region_images"] = arrays.whole(names["region_images"], 0, config.num_segments, *rows, regions)
    if names["aligned_words"] in arrays:
        longest = config.max_position_embeddings
        fields["aligned_words"] = arrays.whole(names["aligned_words"], -1, longest, *rows, regions, None)
    flat: dict[str, Any] = {name: part.flatten(0, len(rows) - 1) for name, part in fields.items()}
    count = len(flat["text_ids"])
    return VLBatch(
        region_boxes=torch.zeros(count, regions, 4),  # read by nothing in VisualBERT
        image_hw=torch.ones(count, 2),
        masked_regions=torch.zeros_like(flat["region_mask"]),
        **flat,
    )


def _pretraining_outputs(arrays: ModelArrays, model: VisualBertForPreTraining, batch: VLBatch) -> Outputs:
    rows, length = batch.text_ids.shape
    labels = arrays.whole("in/labels", IGNORE_INDEX, model.config.vocab_size, rows, None)
    if labels.shape[1] != length + batch.region_mask.shape[1] or not (labels[:, length:] < 0).all():
        raise ArrayError("in/labels", "must cover text and regions, and predict no region")
    more: dict[str, Any] = {"text_labels": labels[:, :length].masked_fill(labels[:, :length] < 0, IGNORE_INDEX)}
    if "in/sentence_image_labels" in arrays:
        more["match_labels"] = arrays.whole("in/sentence_image_labels", 0, 2, rows)
    output = model.visualbert(batch)
    with computing_padding():  # the reference has states of padding; losses are those of the usual way
        padded = model.visualbert(batch)
    scored = dataclasses.replace(batch, **more)
    losses = {name: term.mean for name, term in model.score(scored, output).losses.items()}
    states = torch.cat([padded.text_states, padded.region_states], dim=1)
    outputs = {
        "loss": torch.stack(list(losses.values())).sum(),
        "masked_lm_loss": losses["masked_words"],
        "sentence_image_loss": losses.get("matching"),
        "prediction_logits": lambda: model.word_logits(states),
        "seq_relationship_logits": None if model.match_head is None else model.match_head(output.pooled),
        "sequence_output": states,
        "pooled_output": output.pooled,
        "embedding_output": lambda: _embedded(model, batch),
    }
    if any(name.startswith("attention.") for name in arrays.below("out/")):
        with torch.no_grad(), computing_padding():
            maps = model.visualbert(batch, with_attention=True).attention
        assert maps is not None
        found = [*maps.text, *maps.joint]
        outputs |= {f"attention.{number}": weights for number, weights in enumerate(found)}
    return outputs


def _label_outputs(arrays: ModelArrays, model: VisualBertForLabels, batch: VLBatch) -> Outputs:
    """Told apart by the labels: a distribution over answers, a class of a row, or a choice among rows."""
    output = model.visualbert(batch)
    choices = arrays.take("in/input_ids")
    labels = arrays.take("in/labels")
    if labels.ndim == 2:
        logits = model.from_mask_piece(batch, output)
        targets = arrays.floats("in/labels", *logits.shape)
        loss = answer_kl(logits, targets).mean
        return {"loss": loss, "logits": logits, "log_probs": lambda: logits.log_softmax(dim=-1)}
    logits = model.from_pooled(output)
    if choices.ndim == 3:
        logits = logits.reshape(choices.shape[:2])
    wanted = arrays.whole("in/labels", 0, logits.shape[1], len(logits))
    return {"loss": F.cross_entropy(logits, wanted), "logits": logits}


def _grounding_outputs(arrays: ModelArrays, model: VisualBertForGrounding, batch: VLBatch) -> Outputs:
    rows, length = batch.text_ids.shape
    positions = arrays.whole("in/region_to_phrase_position", -1, length, rows, None)
    targets = arrays.floats("in/labels", rows, positions.shape[1], batch.region_mask.shape[1])
    scores = model.score_regions(batch, model.visualbert(batch), positions)
    return {
        "loss": grounding_loss(scores, targets).mean,
        "logits_valid_regions": lambda: scores.masked_fill(~batch.region_mask[:, None], 0.0),
    }


def _embedded(model: VisualBertForPreTraining, batch: VLBatch) -> Tensor:
    with computing_padding():
        packing = Packing(torch.cat([batch.text_mask, batch.region_mask], dim=1))
        return packing.pad(model.visualbert.embeddings(batch, packing))
