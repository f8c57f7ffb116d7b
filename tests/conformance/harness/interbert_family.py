"""The family "interbert": pre-training, the release's task heads, and masking by groups (goldens/interbert/README.md).

Task heads or not is told from the parameters; which outputs are compared is told by the file's "out/" arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from harness.case_files import ArrayError
from harness.checks import Check, close, equal, failed
from harness.model_case import (
    ModelArrays,
    Outputs,
    check_sizes,
    constant,
    gradient_checks,
    model_family,
    output_checks,
)
from harness.tolerances import MODELS
from harness.two_stream_case import PRETRAINING_LOSSES, choice_loss, read_batch, with_img
from roibeam.model.common.losses import binary_cross_entropy
from roibeam.model.common.masking import overlaps_with_inclusive_sides, regions_around
from roibeam.model.common.regions import mean_feature
from roibeam.model.common.transformer import computing_padding
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.interbert.checkpoint import config_from_official, key_table, state_from_official
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks
from roibeam.pipelines.training.model_files.model_checkpoint import build_model


def _run(arrays: ModelArrays) -> Iterable[Check]:
    return _group_checks(arrays) if "rule" in arrays.options else _model_checks(arrays)


INTERBERT_FAMILY = model_family("interbert", ("in/multimodal_mask", "out/0.masked_set"), _run)


def _model_checks(arrays: ModelArrays) -> Iterator[Check]:
    official = arrays.parameters()
    check_sizes(arrays.options, len(official))
    config = config_from_official(arrays.options, num_answers=len(official.get("vil_prediction.bias", ())))
    state = state_from_official(official, config.num_hidden_layers)
    make = InterBertForTasks if "pair_score.weight" in state else InterBertForPreTraining
    model = build_model(lambda: make(config), state)
    outputs, losses = _outputs(arrays, model)
    yield from output_checks(arrays, outputs)
    wanted = [loss for name, loss in losses.items() if f"out/{name}" in arrays]
    if wanted:
        table = key_table(config.num_hidden_layers, config.text_num_hidden_layers)
        yield from gradient_checks(
            arrays, model, lambda: torch.stack([loss() for loss in wanted]).sum(), table.internal
        )


def _outputs(arrays: ModelArrays, model: InterBertForPreTraining) -> tuple[Outputs, Outputs]:
    """Everything a reference may hold of one batch, by its official name, and those of it that are losses."""
    batch = read_batch(arrays, model.config)
    rows, length = batch.text_mask.shape
    joint = arrays.mask("in/multimodal_mask", rows, 1 + batch.region_mask.shape[1] + length)
    if not joint.equal(torch.cat([torch.ones(rows, 1, dtype=torch.bool), batch.region_mask, batch.text_mask], dim=1)):
        raise ArrayError("in/multimodal_mask", "must be the mask of the image, then that of the text")
    output = model.encode(batch)
    with computing_padding():  # the reference has states of padding; losses are those of the usual way
        padded = model.encode(batch)
    logits = model.logits(padded)
    regions = constant(with_img(logits.whole_image, logits.regions))
    outputs: Outputs = {
        "sequence_output_t": constant(padded.text_states),
        "sequence_output_v": constant(with_img(padded.whole_image_state, padded.region_states)),
        "pooled_output_t": constant(output.pooled_text),
        "pooled_output_v": constant(output.pooled_image),
        "prediction_scores_t": constant(logits.words),
        "linguisic_prediction": constant(logits.words),
        "prediction_scores_v": regions,
        "vision_prediction": regions,
        "seq_relationship_score": constant(logits.match),
        "vil_binary_prediction": constant(logits.match),
    }
    if any(name.startswith("attention_single_stream.") for name in arrays.names("out/")):
        with torch.no_grad(), computing_padding():
            maps = model.encode(batch, with_attention=True).attention
        assert maps is not None
        outputs |= {f"attention_single_stream.{layer}": constant(found) for layer, found in enumerate(maps.joint)}
    losses = _losses(arrays, model, batch, output)
    if any(f"out/{name}" in arrays for name in PRETRAINING_LOSSES):
        scored = model.score(batch, output).losses
        losses |= {name: constant(scored[internal].mean) for name, internal in PRETRAINING_LOSSES.items()}
        outputs["total_loss"] = constant(torch.stack([term.mean for term in scored.values()]).sum())
    if isinstance(model, InterBertForTasks):
        outputs |= {
            "vil_prediction": constant(model.answers(output)),
            "vil_logit": constant(model.score_pairs(output)[:, None]),
            "vision_logit": constant(model.score_regions(batch, padded)[..., None]),
            "linguisic_logit": constant(model.score_words(padded.text_states)[..., None]),
        }
    return outputs | losses, losses


def _losses(arrays: ModelArrays, model: InterBertForPreTraining, batch: VLBatch, output: VLOutput) -> Outputs:
    """Of the tasks."""
    losses: Outputs = {}
    if not isinstance(model, InterBertForTasks):
        return losses
    if "in/choice_target" in arrays:
        losses["choice_loss"] = lambda: choice_loss(arrays, model.score_pairs(output))
    if "in/retrieval_target" in arrays:
        random = arrays.whole("in/retrieval_target", 0, 2, batch.batch_size)  # 0 = match, as everywhere in the release
        every = torch.ones_like(random, dtype=torch.bool)
        losses["retrieval_loss"] = lambda: binary_cross_entropy(model.match_log_odds(output), 1.0 - random, every).mean
    return losses


def _group_checks(arrays: ModelArrays) -> Iterator[Check]:
    """Regions hidden in groups by the release's rule; case "<n>." for each n."""
    threshold = arrays.options.get("threshold")
    if not isinstance(threshold, float) or not 0 <= threshold <= 1:
        yield failed("config", f"threshold is {threshold!r}; expected a number from 0 to 1")
        return
    for prefix in sorted({name.split(".", 1)[0] for name in arrays.names("in/")}):
        boxes = arrays.arrays.take_finite(f"in/{prefix}.boxes_pixel", None, 4)
        count = len(boxes)
        anchors = np.zeros(count, bool)
        anchors[arrays.whole(f"in/{prefix}.anchors", 0, count, None).numpy()] = True
        features = arrays.floats(f"in/{prefix}.features", None, None)
        _check_padding(arrays, prefix, boxes, len(features))
        masked = regions_around(boxes, anchors, threshold=threshold, at_threshold=True)
        predicted = masked | ~features[:count].numpy().any(axis=1)
        visible = torch.zeros(len(features), dtype=torch.bool)
        visible[:count] = torch.from_numpy(~masked)
        counted = torch.arange(len(features)) < count
        for name, got in (
            ("iou", overlaps_with_inclusive_sides(boxes)),
            ("masked_features", features.masked_fill(~visible[:, None], 0.0)),
            ("global_feature", mean_feature(features, visible, counted)),
        ):
            yield close(f"out/{prefix}.{name}", got, arrays.arrays.take(f"out/{prefix}.{name}"), MODELS.values)
        for name, marks in (("image_label", np.where(predicted, 1, -1)), ("masked_set", np.flatnonzero(predicted))):
            yield equal(f"out/{prefix}.{name}", marks.astype(np.int64), arrays.arrays.take(f"out/{prefix}.{name}"))


def _check_padding(arrays: ModelArrays, prefix: str, boxes: np.ndarray, slots: int) -> None:
    """Says the same thing twice: boxes in pixels, and normalised with zeros after them. Refuses a file that differs."""
    count = int(arrays.whole(f"in/{prefix}.num_boxes", 0, slots + 1))
    if count != len(boxes):
        raise ArrayError(f"in/{prefix}.num_boxes", f"is {count}, but there are {len(boxes)} boxes")
    width, height = arrays.arrays.take_finite(f"in/{prefix}.width_height", 2)
    locations = arrays.arrays.take_finite(f"in/{prefix}.image_loc", slots, 5)
    if min(width, height) <= 0 or not np.allclose(
        locations[:count, :4] * [width, height, width, height], boxes, rtol=1e-4, atol=1e-3
    ):
        raise ArrayError(f"in/{prefix}.image_loc", "is not the boxes in pixels over the image's width and height")
