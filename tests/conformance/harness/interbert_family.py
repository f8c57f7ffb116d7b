"""The family "interbert": pre-training, the release's task heads, and masking by groups (goldens/interbert/README.md).

Task heads or not is told from the parameters; which outputs are compared is told by the file's "out/" arrays.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.case_files import ArrayError
from harness.checks import Check
from harness.model_case import ModelArrays, check_sizes, model_family
from harness.two_stream_case import batch_checks, batch_outputs, mask_checks, read_batch
from roibeam.model.common.losses import binary_cross_entropy
from roibeam.model.common.masking import regions_around
from roibeam.model.common.regions import mean_feature
from roibeam.model.common.transformer import computing_padding
from roibeam.model.interbert.checkpoint import config_from_official, key_table, state_from_official
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks
from roibeam.pipelines.training.model_files.model_checkpoint import build_model


def _run(arrays: ModelArrays) -> Iterable[Check]:
    if "rule" not in arrays.options:
        return _model_checks(arrays)
    for prefix in sorted({name.split(".", 1)[0] for name in arrays.below("in/")}):
        _check_padding(arrays, prefix)
    return mask_checks(arrays, "boxes_pixel", _mask_groups)


INTERBERT_FAMILY = model_family("interbert", ("in/multimodal_mask", "out/0.masked_set"), _run)


def _model_checks(arrays: ModelArrays) -> Iterator[Check]:
    official = arrays.parameters()
    check_sizes(arrays.options, len(official))
    model, our_name = build_interbert(arrays.options, official)
    batch = read_batch(arrays, model.config)
    rows, length = batch.text_mask.shape
    joint = arrays.mask("in/multimodal_mask", rows, 1 + batch.region_mask.shape[1] + length)
    if not joint.equal(torch.cat([torch.ones(rows, 1, dtype=torch.bool), batch.region_mask, batch.text_mask], dim=1)):
        raise ArrayError("in/multimodal_mask", "must be the mask of the image, then that of the text")
    output = model.encode(batch)
    with computing_padding():
        padded = model.encode(batch)
    outputs, losses = batch_outputs(arrays, model, batch, output, padded, padded.text_states)
    if any(name.startswith("attention_single_stream.") for name in arrays.below("out/")):
        with torch.no_grad(), computing_padding():
            maps = model.encode(batch, with_attention=True).attention
        assert maps is not None
        outputs |= {f"attention_single_stream.{layer}": found for layer, found in enumerate(maps.joint)}
    if isinstance(model, InterBertForTasks):
        outputs["vil_prediction"] = model.answers(output)
        if "in/retrieval_target" in arrays:
            random = arrays.whole("in/retrieval_target", 0, 2, rows)  # 0 = match, as everywhere in the release
            every = torch.ones_like(random, dtype=torch.bool)
            odds = model.match_log_odds(output)
            assert odds is not None
            term = binary_cross_entropy(odds, 1.0 - random, every)
            losses["retrieval_loss"] = term.mean
    yield from batch_checks(arrays, model, outputs, losses, our_name)


def build_interbert(
    options: Mapping[str, Any],
    official: dict[str, Tensor],
    cast: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict,
) -> tuple[Any, Callable[[str], str]]:
    """The model that parameters are of, as `cast` gives them, and our names of them."""
    config = config_from_official(options, num_answers=len(official.get("vil_prediction.bias", ())))
    state = state_from_official(official, config.num_hidden_layers)
    make = InterBertForTasks if "pair_score.weight" in state else InterBertForPreTraining
    table = key_table(config.num_hidden_layers, config.text_num_hidden_layers)
    return build_model(lambda: make(config), cast(state)), table.internal


def _mask_groups(
    boxes: np.ndarray, anchors: np.ndarray, features: Tensor, threshold: float
) -> tuple[Mapping[str, Tensor], Mapping[str, np.ndarray]]:
    """Regions hidden in groups by the release's rule; `features` are padded."""
    count = len(boxes)
    masked = regions_around(boxes, anchors, threshold=threshold, at_threshold=True)
    predicted = masked | ~features[:count].numpy().any(axis=1)
    visible = torch.zeros(len(features), dtype=torch.bool)
    visible[:count] = torch.from_numpy(~masked)
    left = features.masked_fill(~visible[:, None], 0.0)
    whole = mean_feature(features, visible, torch.arange(len(features)) < count)
    values = {"masked_features": left, "global_feature": whole}
    return values, {"image_label": np.where(predicted, 1, -1), "masked_set": np.flatnonzero(predicted)}


def _check_padding(arrays: ModelArrays, prefix: str) -> None:
    """A file says the same thing twice: boxes in pixels, and normalised with zeros after them. Refuses one that
    differs."""
    boxes = arrays.take_finite(f"in/{prefix}.boxes_pixel", None, 4)
    slots = len(arrays.floats(f"in/{prefix}.features", None, None))
    count = int(arrays.whole(f"in/{prefix}.num_boxes", 0, slots + 1))
    if count != len(boxes):
        raise ArrayError(f"in/{prefix}.num_boxes", f"is {count}, but there are {len(boxes)} boxes")
    width, height = arrays.take_finite(f"in/{prefix}.width_height", 2)
    locations = arrays.take_finite(f"in/{prefix}.image_loc", slots, 5)
    if min(width, height) <= 0 or not np.allclose(
        locations[:count, :4] * [width, height, width, height], boxes, rtol=1e-4, atol=1e-3
    ):
        raise ArrayError(f"in/{prefix}.image_loc", "is not the boxes in pixels over the image's width and height")
