"""InterBERT on tasks (arXiv:2003.13198, section 3.2; black4321/InterBERT bertmodel/datasets/vcr_dataset.py).

IMG regions [CLS] question [SEP] choice [SEP]     the choice is segment 1; the pair's pooled vector is read
IMG regions [CLS] text [SEP]                      labels: the pair; regions: their own states
"""

from __future__ import annotations

from collections.abc import Sequence

from roibeam.model.interbert.config import interbert_config, interbert_small
from roibeam.model.interbert.model import InterBertForPreTraining
from roibeam.model.interbert.tasks import InterBertForTasks
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION, PartPieces, TaskText
from roibeam.pipelines.finetuning.systems.head_options import RELEASE
from roibeam.pipelines.finetuning.systems.row_text import Pieces, Span
from roibeam.pipelines.finetuning.systems.score_calls import CalledForAnswers, CalledForChoices, CalledForRegions
from roibeam.pipelines.finetuning.systems.task_system import (
    ReleaseHead,
    TaskSystem,
    parts_with_separators,
    shared_parameters,
    with_labels,
)


class InterBertAnswers(CalledForAnswers, InterBertForTasks): ...


class InterBertChoices(CalledForChoices, InterBertForTasks): ...


class InterBertRegions(CalledForRegions, InterBertForTasks): ...


def _head(network: type[InterBertForTasks], head: str) -> ReleaseHead:
    return ReleaseHead(network, "InterBertForTasks", with_labels, shared_parameters, head)


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
        RELEASE: {
            LABEL: _head(InterBertAnswers, "answer_head."),
            CHOICE: _head(InterBertChoices, "pair_score."),
            REGION: _head(InterBertRegions, "region_score."),
        }
    },
)
