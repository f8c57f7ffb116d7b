"""InterBERT on tasks (arXiv:2003.13198, section 3.2; black4321/InterBERT vilbert/datasets/vcr_dataset.py).

IMG regions [CLS] question [SEP] choice [SEP]     the choice is segment 1; the pair's pooled vector is read
IMG regions [CLS] text [SEP]                      labels: the pair; regions: their own states
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from roibeam.model.inputs import VLBatch
from roibeam.model.interbert.config import interbert_config, interbert_small
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.interbert.tasks import InterBertForTasks
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, PartPieces, TaskText
from roibeam.pipelines.finetuning.systems.row_text import Pieces, Span
from roibeam.pipelines.finetuning.systems.task_system import (
    ReleaseHead,
    TaskSystem,
    parts_with_separators,
    shared_parameters,
    with_labels,
)


class InterBertAnswers(InterBertForTasks):
    """Called with a batch, it gives (B, A) logits."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        return self.answers(self.encode(batch))


class InterBertChoices(InterBertForTasks):
    """Called with a batch, it gives (B, 1) scores."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        return self.score_pairs(self.encode(batch))[:, None]


def _text(pieces: Pieces, parts: Sequence[TaskText | PartPieces], form: str, num_images: int) -> list[Span]:
    return parts_with_separators(pieces, parts, last_segment=1 if form == CHOICE else 0)


SYSTEM = TaskSystem(
    name="interbert",
    model_class=InterBertForPreTraining,
    sizes={"small": interbert_small, "base": interbert_config},
    text=_text,
    positions=lambda config: config.max_position_embeddings,
    unread_alone=(".region_embeddings.", "interbert.image.", ".pooler.image."),
    release_heads={
        LABEL: ReleaseHead(InterBertAnswers, "InterBertForTasks", with_labels, shared_parameters, "answer_head."),
        CHOICE: ReleaseHead(InterBertChoices, "InterBertForTasks", with_labels, shared_parameters, "pair_score."),
    },
)
