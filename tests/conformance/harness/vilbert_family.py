"""The family "vilbert": ViLBERT of both releases, and masking by overlap (goldens/vilbert/README.md).

The model is told from the parameters: task heads or not, of the first or of the multi-task release. Which outputs are
compared is told by the file's "out/" arrays, so any choice of them makes a case.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.checks import Check
from harness.model_case import ModelArrays, Outputs, check_sizes, model_family
from harness.two_stream_case import batch_checks, batch_outputs, mask_checks, read_batch
from roibeam.model.common.masking import mask_overlapping_regions
from roibeam.model.common.regions import mean_feature
from roibeam.model.common.transformer import computing_padding
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.task_losses import answer_bce, region_bce
from roibeam.model.vilbert.checkpoint import TABLES, config_from_official, release_of, state_from_official
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks, ViLbertWithScores
from roibeam.pipelines.training.model_files.model_checkpoint import build_model


def _run(arrays: ModelArrays) -> Iterable[Check]:
    return mask_checks(arrays, "boxes", _mask_overlaps) if "rule" in arrays.options else _model_checks(arrays)


VILBERT_FAMILY = model_family("vilbert", ("param/bert.encoder.c_layer.", "out/0.overlap_mask"), _run)


def _model_checks(arrays: ModelArrays) -> Iterator[Check]:
    official = arrays.parameters()
    check_sizes(arrays.options, len(official))
    model, release = build_vilbert(
        arrays.options,
        official,
        state_from_official(official, with_co_attention=bool(arrays.options.get("with_coattention", True))),
    )
    config = model.config
    if "in/co_attention_mask" in arrays:
        arrays.take("in/co_attention_mask")  # the releases take it and never apply it
    batch = read_batch(arrays, config, num_task_tokens=config.num_task_tokens)
    output = _encode(arrays, model, batch)
    with computing_padding():
        padded = _encode(arrays, model, batch)
    words = padded.text_states
    if padded.task_state is not None:  # the reference has the task token where it stood
        words = torch.cat([words[:, :1], padded.task_state[:, None], words[:, 1:]], dim=1)
    outputs, losses = batch_outputs(arrays, model, batch, output, padded, words)
    log_odds = model.match_log_odds(output)
    outputs["match_score"] = None if log_odds is None else log_odds.sigmoid()
    if any(name.startswith(("attention_", "co_attention.")) for name in arrays.below("out/")):
        outputs |= _maps(model, batch)
    if isinstance(model, ViLbertWithScores) and "in/refer_target" in arrays:
        rows, regions = batch.region_mask.shape
        target = arrays.floats("in/refer_target", rows, regions + 1, 1)[..., 0]
        real = torch.cat([batch.region_mask.new_ones(rows, 1), batch.region_mask], dim=1)
        scores = model.score_regions(batch, output)
        losses["refer_loss"] = region_bce(scores, target, real, per="rows").mean
    if isinstance(model, ViLbertForTasks):
        outputs["vil_prediction"] = lambda: model.answers(output)
        if "in/vqa_target" in arrays:
            answered = arrays.floats("in/vqa_target", batch.batch_size, config.num_answers)
            losses["vqa_loss"] = answer_bce(model.answers(output), answered).mean
    if isinstance(model, ViLbertForMultiTask):
        outputs |= {
            "vil_binary_prediction": lambda: model.image_pairs(output),
            "vil_tri_prediction": lambda: model.entailment(output),
            "vil_prediction": lambda: model.answers(output),
            "vil_prediction_gqa": lambda: model.gqa_answers(output),
        }
    yield from batch_checks(arrays, model, outputs, losses, TABLES[release].internal)


def build_vilbert(
    options: Mapping[str, Any], official: Mapping[str, Tensor], state: dict[str, Tensor], **sizes: str
) -> tuple[Any, str]:
    """The model that parameters are of, and their release.

    Args:
        state: the parameters by our names.
        sizes: further options that are told by the rows of a parameter.
    """
    release = release_of(official)
    sizes |= {
        "num_answers": "answer_head.decoder.bias",
        "num_gqa_answers": "gqa_answer_head.decoder.bias",
        "num_task_tokens": "vilbert.text_embeddings.tasks.weight",
    }
    told = {name: len(state[key]) if key in state else 0 for name, key in sizes.items()}
    config = config_from_official(options, **told)
    if len(config.text_co_attention) > len(official):
        raise ValueError(f"config: t_biattention_id names {len(config.text_co_attention)} layers")
    kinds = {"release": ViLbertForTasks, "release-mt": ViLbertForMultiTask}
    make = kinds[release] if "pair_score.weight" in state else ViLbertForPreTraining
    return build_model(lambda: make(config), state), release


def _encode(arrays: ModelArrays, model: ViLbertForPreTraining, batch: VLBatch) -> VLOutput:
    """The captions of the file, one of them in a case of fast mode, and its images."""
    captions = len(arrays.take("in/input_ids"))
    tensors: dict[str, Any] = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    texts = VLBatch(**{name: value[:captions] for name, value in tensors.items()})
    return model.vilbert.fuse(model.vilbert.read_text(texts), model.vilbert.read_images(batch))


def _maps(model: ViLbertForPreTraining, batch: VLBatch) -> Outputs:
    with torch.no_grad(), computing_padding():
        maps = model.vilbert(batch, with_attention=True).attention
    assert maps is not None
    named = {
        "attention_t.{}": maps.text,
        "attention_v.{}": maps.image,
        "co_attention.{}.text_to_image": maps.text_to_image,
        "co_attention.{}.image_to_text": maps.image_to_text,
    }
    return {name.format(number): weights for name, found in named.items() for number, weights in enumerate(found)}


def _mask_overlaps(
    boxes: np.ndarray, anchors: np.ndarray, features: Tensor, threshold: float
) -> tuple[Mapping[str, Tensor], Mapping[str, np.ndarray]]:
    """Masked-region bookkeeping of the multi-task release."""
    if len(features) != len(boxes):
        raise ValueError(f"{len(features)} features for {len(boxes)} boxes")
    masked, counted = mask_overlapping_regions(boxes, anchors, anchors, threshold=threshold, hide_overlapping=False)
    left = features.masked_fill(torch.from_numpy(masked)[:, None], 0.0)
    whole = mean_feature(features, torch.from_numpy(~masked), torch.from_numpy(counted))
    values = {"masked_features": left, "global_feature": whole}
    return values, {"image_label": np.where(anchors, 1, -1), "overlap_mask": ~counted}
