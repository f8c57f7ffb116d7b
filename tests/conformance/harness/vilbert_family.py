"""The family "vilbert": ViLBERT of both releases, and masking by overlap (goldens/vilbert/README.md).

The model is told from the parameters: task heads or not, of the first or of the multi-task release. Which outputs are
compared is told by the file's "out/" arrays, so any choice of them makes a case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from roibeam.model.common.masking import mask_overlapping_regions, overlaps_with_inclusive_sides
from roibeam.model.common.regions import mean_feature
from roibeam.model.common.transformer import computing_padding
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.task_losses import answer_bce, region_bce
from roibeam.model.vilbert.checkpoint import TABLES, config_from_official, release_of, state_from_official
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks, ViLbertWithScores
from roibeam.pipelines.training.model_files.model_checkpoint import build_model


def _run(arrays: ModelArrays) -> Iterable[Check]:
    return _overlap_checks(arrays) if "rule" in arrays.options else _model_checks(arrays)


VILBERT_FAMILY = model_family("vilbert", ("param/bert.encoder.c_layer.", "out/0.overlap_mask"), _run)


def _model_checks(arrays: ModelArrays) -> Iterator[Check]:
    official = arrays.parameters()
    check_sizes(arrays.options, len(official))
    state = state_from_official(official, with_co_attention=bool(arrays.options.get("with_coattention", True)))
    release = release_of(official)
    config = config_from_official(
        arrays.options,
        num_answers=_rows(state, "answer_head.decoder.bias"),
        num_gqa_answers=_rows(state, "gqa_answer_head.decoder.bias"),
        num_task_tokens=_rows(state, "vilbert.text_embeddings.tasks.weight"),
    )
    if len(config.text_co_attention) > len(official):
        raise ValueError(f"config: t_biattention_id names {len(config.text_co_attention)} layers")
    kinds = {"release": ViLbertForTasks, "release-mt": ViLbertForMultiTask}
    make = kinds[release] if "pair_score.weight" in state else ViLbertForPreTraining
    model = build_model(lambda: make(config), state)
    run = _ForwardPass(arrays, model, config)
    yield from output_checks(arrays, run.outputs)
    losses = [loss for name, loss in run.losses.items() if f"out/{name}" in arrays]
    if losses:
        yield from gradient_checks(
            arrays,
            model,
            lambda: torch.stack([loss() for loss in losses]).sum(),
            TABLES[release].internal,
        )


def _rows(state: dict[str, Tensor], name: str) -> int:
    return len(state[name]) if name in state else 0


class _ForwardPass:
    """One batch through the model, and everything a reference may hold of it, by its official name."""

    def __init__(self, arrays: ModelArrays, model: ViLbertForPreTraining, config: ViLbertConfig) -> None:
        self.arrays, self.model, self.config = arrays, model, config
        if "in/co_attention_mask" in arrays:
            arrays.arrays.take("in/co_attention_mask")  # the releases take it and never apply it
        self.batch = read_batch(arrays, config, num_task_tokens=config.num_task_tokens)
        captions = int(arrays.arrays.take("in/input_ids").shape[0])
        self.output = self._encode(captions)
        with computing_padding():  # the reference has states of padding; losses are those of the usual way
            self.padded = self._encode(captions)
        self.logits = model.logits(self.padded)
        self.losses: Outputs = {}
        self.outputs: Outputs = {}
        self._shared()
        if isinstance(model, ViLbertWithScores):
            self._scores(model)
        if isinstance(model, ViLbertForTasks):
            self._first_release(model)
        if isinstance(model, ViLbertForMultiTask):
            self._multi_task(model)
        self.outputs |= self.losses

    def _encode(self, captions: int) -> VLOutput:
        model = self.model.vilbert
        return model.fuse(model.read_text(self._first_rows(captions)), model.read_images(self.batch))

    def _first_rows(self, count: int) -> VLBatch:
        """The captions of the file: one of them in a case of fast mode."""
        tensors: dict[str, Any] = {name: value for name, value in vars(self.batch).items() if isinstance(value, Tensor)}
        return VLBatch(**{name: value[:count] for name, value in tensors.items()})

    def _shared(self) -> None:
        model, output, logits = self.model, self.output, self.logits
        words = self._words(self.padded)
        regions = constant(with_img(logits.whole_image, logits.regions))
        word_logits, log_odds = constant(model.word_logits(words)), model.match_log_odds(output)
        self.outputs |= {
            "sequence_output_t": constant(words),
            "sequence_output_v": constant(with_img(self.padded.whole_image_state, self.padded.region_states)),
            "pooled_output_t": constant(output.pooled_text),
            "pooled_output_v": constant(output.pooled_image),
            "prediction_scores_t": word_logits,
            "linguisic_prediction": word_logits,
            "prediction_scores_v": regions,
            "vision_prediction": regions,
            "seq_relationship_score": constant(logits.match),
            "match_score": constant(None if log_odds is None else log_odds.sigmoid()),
        }
        if any(name.startswith(("attention_", "co_attention.")) for name in self.arrays.names("out/")):
            self._maps()
        if any(f"out/{name}" in self.arrays for name in PRETRAINING_LOSSES):
            scored = model.score(self.batch, output).losses
            self.losses |= {name: constant(scored[internal].mean) for name, internal in PRETRAINING_LOSSES.items()}
            self.outputs["total_loss"] = constant(torch.stack([term.mean for term in scored.values()]).sum())

    def _words(self, output: VLOutput) -> Tensor:
        """Text states as the reference has them: the task token stays where it stood."""
        words = output.text_states
        if output.task_state is None:
            return words
        return torch.cat([words[:, :1], output.task_state[:, None], words[:, 1:]], dim=1)

    def _maps(self) -> None:
        with torch.no_grad(), computing_padding():
            maps = self.model.vilbert(self.batch, with_attention=True).attention
        assert maps is not None
        for name, found in (
            ("attention_t.{}", maps.text),
            ("attention_v.{}", maps.image),
            ("co_attention.{}.text_to_image", maps.text_to_image),
            ("co_attention.{}.image_to_text", maps.image_to_text),
        ):
            self.outputs |= {name.format(number): constant(weights) for number, weights in enumerate(found)}

    def _scores(self, model: ViLbertWithScores) -> None:
        output, batch, arrays = self.output, self.batch, self.arrays
        self.outputs |= {
            "vil_logit": lambda: model.score_pairs(output)[:, None],
            "vision_logit": lambda: model.score_regions(batch, self.padded)[..., None],
            "linguisic_logit": lambda: model.score_words(self._words(self.padded))[..., None],
        }
        rows, elements = batch.batch_size, batch.region_mask.shape[1] + 1
        if "in/refer_target" in arrays:
            target = arrays.floats("in/refer_target", rows, elements, 1)[..., 0]
            real = torch.cat([batch.region_mask.new_ones(rows, 1), batch.region_mask], dim=1)
            self.losses["refer_loss"] = lambda: (
                region_bce(model.score_regions(batch, output), target, real, per="rows").mean
            )
        if "in/choice_target" in arrays:
            self.losses["choice_loss"] = lambda: choice_loss(arrays, model.score_pairs(output))

    def _first_release(self, model: ViLbertForTasks) -> None:
        self.outputs["vil_prediction"] = lambda: model.answers(self.output)
        self.outputs["vil_binary_prediction"] = self.outputs["seq_relationship_score"]
        if "in/vqa_target" in self.arrays:
            target = self.arrays.floats("in/vqa_target", self.batch.batch_size, self.config.num_answers)
            self.losses["vqa_loss"] = lambda: answer_bce(model.answers(self.output), target).mean

    def _multi_task(self, model: ViLbertForMultiTask) -> None:
        self.outputs |= {
            "vil_binary_prediction": lambda: model.image_pairs(self.output),
            "vil_tri_prediction": lambda: model.entailment(self.output),
            "vil_prediction": lambda: model.answers(self.output),
            "vil_prediction_gqa": lambda: model.gqa_answers(self.output),
        }


def _overlap_checks(arrays: ModelArrays) -> Iterator[Check]:
    """Masked-region bookkeeping of the multi-task release; case "<n>." for each n."""
    threshold = arrays.options.get("threshold")
    if not isinstance(threshold, float) or not 0 <= threshold <= 1:
        yield failed("config", f"threshold is {threshold!r}; expected a number from 0 to 1")
        return
    for prefix in sorted({name.split(".", 1)[0] for name in arrays.names("in/")}):
        boxes = arrays.arrays.take_finite(f"in/{prefix}.boxes", None, 4)
        anchors = np.zeros(len(boxes), bool)
        anchors[arrays.whole(f"in/{prefix}.anchors", 0, len(boxes), None).numpy()] = True
        features = arrays.floats(f"in/{prefix}.features", len(boxes), None)
        masked, counted = mask_overlapping_regions(boxes, anchors, anchors, threshold=threshold, hide_overlapping=False)
        left = features.masked_fill(torch.from_numpy(masked)[:, None], 0.0)
        whole = mean_feature(features, torch.from_numpy(~masked), torch.from_numpy(counted))
        for name, got in (
            ("iou", overlaps_with_inclusive_sides(boxes)),
            ("masked_features", left),
            ("global_feature", whole),
        ):
            yield close(f"out/{prefix}.{name}", got, arrays.arrays.take(f"out/{prefix}.{name}"), MODELS.values)
        for name, marks in (("image_label", np.where(anchors, 1, -1)), ("overlap_mask", ~counted)):
            yield equal(f"out/{prefix}.{name}", marks.astype(np.int64), arrays.arrays.take(f"out/{prefix}.{name}"))
