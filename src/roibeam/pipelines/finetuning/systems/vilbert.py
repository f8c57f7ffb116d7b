"""ViLBERT and its single-stream baseline on tasks (arXiv:1908.02265, section 3.2; vilbert_beta, vilbert-multi-task).

    [CLS] question [SEP] | IMG regions               labels: the product of the pooled streams
    [CLS] question [SEP] choice [SEP] | IMG regions  choices: the same; the choice is segment 1
    [CLS] expression [SEP] | IMG regions             regions: their own states

Two images make two rows, whose pooled vectors stand side by side (vilbert-multi-task, NLVR2). The baseline reads its
pooled [CLS].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from roibeam.model.inputs import VLBatch
from roibeam.model.vilbert.config import vilbert_config, vilbert_small
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining, single_stream_small
from roibeam.model.vilbert.tasks import ViLbertForTasks
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, PartPieces, TaskText
from roibeam.pipelines.finetuning.systems.row_text import Pieces, Span
from roibeam.pipelines.finetuning.systems.task_system import (
    ReleaseHead,
    TaskSystem,
    parts_with_separators,
    shared_parameters,
    with_labels,
)


class ViLbertAnswers(ViLbertForTasks):
    """Called with a batch, it gives (B, A) logits."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        return self.answers(self.encode(batch))


class ViLbertChoices(ViLbertForTasks):
    """Called with a batch, it gives (B, 1) scores."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        return self.score_pairs(self.encode(batch))[:, None]


def _text(pieces: Pieces, parts: Sequence[TaskText | PartPieces], form: str, num_images: int) -> list[Span]:
    return parts_with_separators(pieces, parts, last_segment=1 if form == CHOICE else 0)


SYSTEM = TaskSystem(
    name="vilbert",
    model_class=ViLbertForPreTraining,
    sizes={"small": vilbert_small, "base": vilbert_config},
    text=_text,
    positions=lambda config: config.max_position_embeddings - config.first_position,
    classifier="two_layers",
    unread_alone=(".region_embeddings.", ".image_", ".text_attention.", ".pooler.image."),
    release_heads={
        LABEL: ReleaseHead(ViLbertAnswers, "ViLbertForTasks", with_labels, shared_parameters, "answer_head."),
        CHOICE: ReleaseHead(ViLbertChoices, "ViLbertForTasks", with_labels, shared_parameters, "pair_score."),
    },
)
SINGLE_STREAM = replace(
    SYSTEM,
    name="vilbert-single-stream",
    model_class=SingleStreamForPreTraining,
    sizes={"small": single_stream_small, "base": SingleStreamConfig},
    positions=lambda config: config.max_position_embeddings,
    release_heads={},
    parts=("embeddings.", "encoder.", "pooler."),
    unread_alone=("embeddings.features.", "embeddings.locations.", "embeddings.region_"),
)
