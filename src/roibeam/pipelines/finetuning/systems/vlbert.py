"""VL-BERT on tasks (arXiv:1908.08530, figure 2 and section 4.2).

    [CLS] question [SEP] [MASK] [SEP] regions [END]     labels: the state of [MASK], in the answer's segment
    [CLS] question [SEP] choice [SEP] regions [END]     choices: the state of [CLS] (section 4.2.1; the release pools
                                                        it); words carry the whole image's feature (section 3.2),
                                                        or that of the region that they name (the release)
    [CLS] expression [SEP] regions [END]                regions: their own states, by the release through the
                                                        transform that masked regions had

Two images stand in one row, whose regions are in segments of their own (nothing is published for them):

    [CLS] statement [SEP] [MASK] [SEP] regions regions [END]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.pretraining import count_true
from roibeam.model.task_heads import REGION_CLASSES, AuxiliaryScores, reading
from roibeam.model.vlbert.checkpoint import task_start
from roibeam.model.vlbert.config import PRE_TRAINING_FIELDS, VLBertConfig, VLBertTaskConfig, vlbert_base, vlbert_small
from roibeam.model.vlbert.fields import REGION_SEGMENT, SIZES
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa
from roibeam.pipelines.finetuning.rows import CHOICE, GROUNDED, LABEL, REGION, UNGROUNDED, PartPieces, TaskText
from roibeam.pipelines.finetuning.systems.options import RELEASE
from roibeam.pipelines.finetuning.systems.task_system import (
    Pieces,
    ReleaseHead,
    Span,
    TaskSystem,
    own_fields,
    parts_with_separators,
)
from roibeam.pipelines.finetuning.task import AuxiliaryTargets

_ANSWER = 1  # segment


class VLBertAnswers(VLBertForVqa):
    """Maps a batch to (B, A) logits."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        return self.answers(batch, super().forward(reading(batch, "mask_piece")))


class VLBertChoices(VLBertForVcr):
    """Maps a batch to (B, 1) scores; with `beside` to the classes of regions too, as `AuxiliaryTaskModel`."""

    def forward(self, batch: VLBatch, *, beside: bool = False) -> Tensor | AuxiliaryScores:  # type: ignore[override]
        output = super().forward(batch if beside else reading(batch, "pooled"))
        scores = self.choice_head(output.pooled)
        if not beside:
            return scores
        return AuxiliaryScores(scores, {REGION_CLASSES: self.object_loss(batch, output, _classes(batch))}, {})

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        """`AuxiliaryTaskModel.loss_counts`."""
        has_whole = self.config.object_loss == "all" and self.config.whole_image_element
        return {REGION_CLASSES: count_true(batch.region_target_mask) + has_whole * batch.batch_size}


class VLBertRegions(VLBertForReferring):
    """Maps a batch to (B, E) scores, the whole image first where it is an element."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        return self.score_regions(batch, super().forward(batch))


def _classes(batch: VLBatch) -> Tensor:
    """(B, R) long, the class of each region whose class is predicted."""
    predicted = batch.region_target_mask
    assert predicted is not None
    labels = torch.full(predicted.shape, IGNORE_INDEX, device=predicted.device)
    labels[predicted] = batch.targets_of(predicted).argmax(dim=-1)
    return labels


def _text(pieces: Pieces, parts: Sequence[TaskText | PartPieces], form: str, _num_images: int) -> list[Span]:
    spans = parts_with_separators(pieces, parts, last_segment=_ANSWER if form == CHOICE else 0, join_context=True)
    return [*spans, pieces.mask(_ANSWER), pieces.sep(_ANSWER)] if form == LABEL else spans


def _task_config(config: VLBertConfig, **changes: Any) -> VLBertTaskConfig:
    """Configuration of a model with the heads of a task and none of pre-training."""
    fields = {name: value for name, value in own_fields(config).items() if name not in PRE_TRAINING_FIELDS}
    return VLBertTaskConfig(**{**fields, **changes})


_UNMASKED = {"masked_appearance": "none", "masked_region_token": False}


def _answers_config(config: VLBertConfig, num_labels: int) -> VLBertTaskConfig:
    """Settings of cfgs/vqa of the release: nothing is masked, and there is no pre-training head."""
    return _task_config(config, **_UNMASKED, num_answers=num_labels, with_pooler=False)


def _choices_config(config: VLBertConfig, _num_labels: int) -> VLBertTaskConfig:
    """Settings of cfgs/vcr of the release, without the classes of regions."""
    return _task_config(config, **_UNMASKED, answer_head="1fc", with_pooler=True)


def _regions_config(config: VLBertConfig, _num_labels: int) -> VLBertTaskConfig:
    """Settings of cfgs/refcoco of the release, where nothing is dropped before the score."""
    return _task_config(config, **_UNMASKED, answer_dropout=0.0, with_pooler=False)


def _choices_beside(config: VLBertConfig, beside: AuxiliaryTargets) -> VLBertTaskConfig:
    """Settings of choices with classes: of all regions as in the release, or of hidden ones as in the paper."""
    if beside.hidden_words:
        raise ValueError("hidden_words: the head of VL-BERT's release learns none; set head.kind to 'ours'")
    changes = {"answer_head": "1fc", "with_pooler": True, "num_object_labels": len(beside.class_names)}
    if beside.hidden_regions:
        return _task_config(config, **changes, object_loss="masked")
    return _task_config(config, **changes, **_UNMASKED, object_loss="all")


def _pair_start(model: VLBertForPreTraining) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One more segment, for the second image; it starts as that of the first."""
    state, name = model.state_dict(), "vlbert.embeddings.segments.weight"
    segments = state[name][: REGION_SEGMENT + 1]
    return {"num_segments": REGION_SEGMENT + 2}, {**state, name: torch.cat([segments, segments[-1:]])}


def _class_tokens(model: VLBertForPreTraining, count: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A token for each class in place of [IMG], from which they start."""
    state, name = model.state_dict(), "vlbert.region_token.weight"
    return {"num_region_tokens": count}, {**state, name: state[name][:1].repeat(count, 1)}


SYSTEM = TaskSystem(
    name="vlbert",
    model_class=VLBertForPreTraining,
    sizes={"tiny": partial(vlbert_small, **SIZES["tiny"]), "small": vlbert_small, "base": vlbert_base},
    text=_text,
    positions=lambda config: config.max_position_embeddings - 2,
    reads={LABEL: "mask_piece", CHOICE: "cls"},
    pair_reads="mask_piece",
    joins_images=True,
    pair_start=_pair_start,
    class_input_start=_class_tokens,
    reads_input_classes=lambda config: config.num_region_tokens > 1,
    joins_context=True,
    classifies_whole_image=True,
    grounding={GROUNDED: {"text_visual": "grounded"}, UNGROUNDED: {"text_visual": "whole_image"}},
    photo_whole_image="box",
    has_whole_image=lambda config: config.whole_image_element,
    classifier="two_layers",
    alone={"with_text_only": True, "with_pooler": True},
    unread_alone=(
        ".region_projection.",
        ".region_token.",
        ".masked_region_",
        ".visual_norm_region.",
        ".visual_widen_region.",
    ),
    release_heads={
        RELEASE: {
            LABEL: ReleaseHead(VLBertAnswers, "VLBertForVqa", _answers_config, partial(task_start, "vqa")),
            CHOICE: ReleaseHead(
                VLBertChoices, "VLBertForVcr", _choices_config, partial(task_start, "vcr"), beside=_choices_beside
            ),
            REGION: ReleaseHead(VLBertRegions, "VLBertForReferring", _regions_config, partial(task_start, "refcoco")),
        }
    },
)
