"""What the cases of ViLBERT and InterBERT share: the arrays of one batch, outputs and losses by their official names,
and regions that are masked with their neighbours."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from harness.checks import Check, close, equal, failed
from harness.model_case import ModelArrays, Outputs, batch_of, computed, gradient_checks, output_checks
from harness.tolerances import MODELS
from roibeam.model.common.masking import overlaps_with_inclusive_sides
from roibeam.model.inputs import IGNORE_INDEX, VLBatch, VLOutput
from roibeam.model.interbert.model import InterBertConfig, InterBertForPreTraining, InterBertForTasks
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForPreTraining, ViLbertWithScores

PRETRAINING_LOSSES = {
    "masked_lm_loss": "masked_words",
    "masked_img_loss": "masked_regions",
    "next_sentence_loss": "matching",
}
# Boxes, anchors, features and threshold of one masking -> what is close to the reference, and what is equal.
MaskRule = Callable[[np.ndarray, np.ndarray, Tensor, float], tuple[Mapping[str, Tensor], Mapping[str, np.ndarray]]]


def read_batch(arrays: ModelArrays, config: ViLbertConfig | InterBertConfig, *, num_task_tokens: int = 0) -> VLBatch:
    """The rows of the file: features are masked already and IMG is given, with the targets that are there.

    One row of text goes with every image.

    Args:
        num_task_tokens: above 0, "in/task_ids" is read.
    Raises:
        ValueError: naming the array, when it holds what cannot be a batch.
    """
    features = arrays.floats("in/image_feat", None, None, config.region_feature_size)
    rows, elements = features.shape[:2]
    if elements < 1:
        raise ValueError("in/image_feat has no IMG token; it comes first")
    ids = arrays.whole("in/input_ids", 0, config.vocab_size, None, None)
    if len(ids) not in (1, rows):
        raise ValueError(f"in/input_ids has {len(ids)} rows for {rows} images; expected as many, or 1")
    captions = tuple(ids.shape)
    locations = arrays.floats("in/image_loc", rows, elements, 5)
    mask = arrays.mask("in/image_attention_mask", rows, elements)
    areas = (locations[..., 2] - locations[..., 0]) * (locations[..., 3] - locations[..., 1])
    # Our batch has boxes; a reference whose area is not that of its corners would be computed as another one.
    if not torch.allclose(areas, locations[..., 4], atol=1e-6) or not mask[:, 0].all():
        raise ValueError("in/image_loc: the fifth number is not the area of the corners, or IMG is masked out")
    tasks = None
    if num_task_tokens:
        tasks = arrays.whole("in/task_ids", 0, num_task_tokens, len(ids), 1)[:, 0].expand(rows)
    labels: dict[str, Any] = {}
    if "in/masked_lm_labels" in arrays:
        words = arrays.whole("in/masked_lm_labels", -1, config.vocab_size, *captions)
        labels["text_labels"] = words.masked_fill(words == -1, IGNORE_INDEX).expand(rows, -1)
    if "in/image_target" in arrays:
        regions = arrays.whole("in/image_label", -1, 2, rows, elements - 1)
        labels["region_target_mask"] = regions == 1
        labels["region_targets"] = arrays.floats("in/image_target", rows, elements - 1, config.region_target_size)
    if "in/next_sentence_label" in arrays:
        random = arrays.whole("in/next_sentence_label", -1, 2, rows)
        labels["match_labels"] = torch.where(random == -1, IGNORE_INDEX, 1 - random)  # 0 = match there
    text_mask = arrays.mask("in/attention_mask", *captions)
    segments = arrays.whole("in/token_type_ids", 0, config.num_segments, *captions)
    ids, text_mask, segments = (part.expand(rows, -1) for part in (ids, text_mask, segments))
    image = features, locations, mask
    return batch_of((ids, text_mask, segments), image, torch.ones(rows, 2), task_ids=tasks, **labels)


def with_img(whole: Tensor | None, regions: Tensor | None) -> Tensor:
    """What a reference has of all elements of the image, IMG first."""
    if whole is None or regions is None:
        raise ValueError("this model gives no such output")
    return torch.cat([whole[:, None], regions], dim=1)


def choice_loss(arrays: ModelArrays, scores_B: Tensor) -> Tensor:
    """Cross-entropy of "in/choice_target" (questions,) with the scores of each question's rows."""
    rows, questions = len(scores_B), len(arrays.take("in/choice_target", None))
    if not questions or rows % questions:
        raise ValueError(f"in/choice_target has {questions} questions for {rows} rows of choices")
    return F.cross_entropy(
        scores_B.reshape(questions, -1), arrays.whole("in/choice_target", 0, rows // questions, questions)
    )


def batch_outputs(
    arrays: ModelArrays,
    model: InterBertForPreTraining | ViLbertForPreTraining,
    batch: VLBatch,
    output: VLOutput,
    padded: VLOutput,
    words: Tensor,
) -> tuple[Outputs, Outputs]:
    """What a reference may hold of one batch by either model, by its official name, and those of it that are losses.

    Args:
        padded: `output` with states of padding, which the reference has; losses are those of the usual way.
        words: states of the text in `padded`, as the reference has them.
    """
    logits = model.logits(padded)
    regions = with_img(logits.whole_image, logits.regions)
    word_logits = model.word_logits(words)
    outputs: Outputs = {
        "sequence_output_t": words,
        "sequence_output_v": with_img(padded.whole_image_state, padded.region_states),
        "pooled_output_t": output.pooled_text,
        "pooled_output_v": output.pooled_image,
        "prediction_scores_t": word_logits,
        "linguisic_prediction": word_logits,
        "prediction_scores_v": regions,
        "vision_prediction": regions,
        "seq_relationship_score": logits.match,
        "vil_binary_prediction": logits.match,
    }
    losses: Outputs = {}
    if any(f"out/{name}" in arrays for name in PRETRAINING_LOSSES):
        scored = model.score(batch, output).losses
        losses = {name: scored[internal].mean for name, internal in PRETRAINING_LOSSES.items()}
        outputs["total_loss"] = torch.stack([term.mean for term in scored.values()]).sum()
    if isinstance(model, InterBertForTasks | ViLbertWithScores):
        pairs = model.score_pairs(output)
        outputs |= {
            "vil_logit": pairs[:, None],
            "vision_logit": model.score_regions(batch, padded)[..., None],
            "linguisic_logit": model.score_words(words)[..., None],
        }
        if "in/choice_target" in arrays:
            losses["choice_loss"] = lambda: choice_loss(arrays, pairs)
    return outputs, losses


def batch_checks(
    arrays: ModelArrays,
    model: InterBertForPreTraining | ViLbertForPreTraining,
    outputs: Outputs,
    losses: Outputs,
    our_name: Callable[[str], str],
) -> Iterator[Check]:
    """Gradients are those of the losses that the file has, all together."""
    yield from output_checks(arrays, outputs | losses)
    wanted = [loss for name, loss in losses.items() if f"out/{name}" in arrays]
    if wanted:
        yield from gradient_checks(
            arrays, model, lambda: torch.stack([computed(loss) for loss in wanted]).sum(), our_name
        )


def mask_checks(arrays: ModelArrays, boxes_name: str, rule: MaskRule) -> Iterator[Check]:
    """A release's bookkeeping of masked regions; case "<n>." for each n."""
    threshold = arrays.options.get("threshold")
    if not isinstance(threshold, float) or not 0 <= threshold <= 1:
        yield failed("config", f"threshold is {threshold!r}; expected a number from 0 to 1")
        return
    for prefix in sorted({name.split(".", 1)[0] for name in arrays.below("in/")}):
        boxes = arrays.take_finite(f"in/{prefix}.{boxes_name}", None, 4)
        anchors = np.zeros(len(boxes), bool)
        anchors[arrays.whole(f"in/{prefix}.anchors", 0, len(boxes), None).numpy()] = True
        features = arrays.floats(f"in/{prefix}.features", None, None)
        values, marks = rule(boxes, anchors, features, threshold)
        for name, got in {"iou": overlaps_with_inclusive_sides(boxes), **values}.items():
            yield close(f"out/{prefix}.{name}", got, arrays.take(f"out/{prefix}.{name}"), MODELS.values)
        for name, found in marks.items():
            want = arrays.take(f"out/{prefix}.{name}")
            yield equal(f"out/{prefix}.{name}", found.astype(np.int64), want)
