"""VisualBERT (arXiv:1908.03557, section 4; uclanlp/visualbert modeling.py) and ImageBERT on tasks.

[CLS] question ? [MASK] [SEP] regions         labels: the state of [MASK]; all in one text
[CLS] question [SEP] choice [SEP] regions     choices: pooled
[CLS] statement [SEP] regions regions         labels for two images, in one row: pooled
[CLS] expression [SEP] regions                regions: their own states
[CLS] caption [SEP] regions                   phrases: the states of their last pieces, and of regions

ImageBERT's paper (arXiv:2001.07966) has no tasks. Its rows are those of pre-training, with a [SEP] behind each part of
a text; its pooled [CLS] is read, and for regions their own states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from roibeam.model.common.fields import TINY_SIZES
from roibeam.model.imagebert.model import ImageBertForPreTraining, imagebert_base, imagebert_small
from roibeam.model.inputs import VLBatch
from roibeam.model.task_heads import reading
from roibeam.model.visualbert.model import (
    VisualBertForGrounding,
    VisualBertForLabels,
    VisualBertForPreTraining,
    visualbert_config,
    visualbert_small,
)
from roibeam.pipelines.finetuning.rows import CHOICE, GROUNDED, LABEL, PHRASE, UNGROUNDED, PartPieces, TaskText
from roibeam.pipelines.finetuning.systems.options import RELEASE
from roibeam.pipelines.finetuning.systems.task_system import (
    Pieces,
    ReleaseHead,
    Span,
    TaskSystem,
    parts_with_separators,
    shared_parameters,
    with_labels,
)


class VisualBertAnswers(VisualBertForLabels):
    """Maps a batch to (B, A) logits."""

    def forward(self, batch: VLBatch) -> Tensor:
        return self.from_mask_piece(batch, self.visualbert(reading(batch, "mask_piece")))


class VisualBertChoices(VisualBertForLabels):
    """Maps a batch to (B, 1) scores."""

    def forward(self, batch: VLBatch) -> Tensor:
        return self.from_pooled(self.visualbert(reading(batch, "pooled")))


class VisualBertPhrases(VisualBertForGrounding):
    """Maps a batch to (B, P, R) scores."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        assert batch.phrase_positions is not None
        return self.score_regions(batch, self.encode(batch), batch.phrase_positions)


def _text(pieces: Pieces, parts: Sequence[TaskText | PartPieces], form: str, num_images: int) -> list[Span]:
    if form != LABEL or num_images > 1:
        return parts_with_separators(pieces, parts, last_segment=1 if form == CHOICE else 0, join_context=True)
    spans = parts_with_separators(pieces, parts)[:-1]
    return [*spans, pieces.question_mark(spans[-1]), pieces.mask(), pieces.sep()]


def _class_embedding(model: VisualBertForPreTraining, count: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """R2C's layer before the projection of regions, which is then of its width and drawn anew."""
    state = {name: each for name, each in model.state_dict().items() if ".embeddings.projection." not in name}
    return {"num_region_classes": count}, state


SYSTEM = TaskSystem(
    name="visualbert",
    model_class=VisualBertForPreTraining,
    sizes={"tiny": partial(visualbert_small, **TINY_SIZES), "small": visualbert_small, "base": visualbert_config},
    text=_text,
    positions=lambda config: config.max_position_embeddings,
    reads={LABEL: "mask_piece", CHOICE: "pooled"},
    joins_images=True,
    joins_context=True,
    grounding={GROUNDED: {}, UNGROUNDED: {}},
    reads_cut_phrases=True,
    class_input_start=_class_embedding,
    reads_input_classes=lambda config: config.num_region_classes > 0,
    has_whole_image=lambda _config: False,
    unread_alone=(".projection.", ".region_positions.", ".region_segments.", ".classed."),
    release_heads={
        RELEASE: {
            LABEL: ReleaseHead(VisualBertAnswers, "VisualBertForLabels", with_labels, shared_parameters),
            CHOICE: ReleaseHead(VisualBertChoices, "VisualBertForLabels", with_labels, shared_parameters),
            PHRASE: ReleaseHead(
                VisualBertPhrases, "VisualBertForGrounding", lambda config, _: config, shared_parameters,
                "grounding_head.",
            ),
        }
    },
)  # fmt: skip


IMAGEBERT_SYSTEM = TaskSystem(
    name="imagebert",
    model_class=ImageBertForPreTraining,
    sizes={"tiny": partial(imagebert_small, **TINY_SIZES), "small": imagebert_small, "base": imagebert_base},
    text=lambda pieces, parts, _form, _num_images: parts_with_separators(pieces, parts),
    positions=lambda config: config.max_position_embeddings - int(config.final_separator != "none"),
    has_whole_image=lambda config: config.global_feature_size > 0,
    second_segment=0,  # its segments tell text from image
    unread_alone=(".features.", ".locations.", ".region_norm.", ".global_feature."),
)
