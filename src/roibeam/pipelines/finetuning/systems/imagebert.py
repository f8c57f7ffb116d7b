"""ImageBERT on tasks, which its paper (arXiv:2001.07966) does not have: rows as in pre-training, its pooled [CLS] read.

[CLS] text [SEP] regions      several parts of a text have a [SEP] each; regions: their own states
"""

from __future__ import annotations

from collections.abc import Sequence

from roibeam.model.imagebert.model import ImageBertForPreTraining, imagebert_base, imagebert_small
from roibeam.pipelines.finetuning.rows import PartPieces, TaskText
from roibeam.pipelines.finetuning.systems.row_text import Pieces, Span
from roibeam.pipelines.finetuning.systems.task_system import TaskSystem, parts_with_separators


def _text(pieces: Pieces, parts: Sequence[TaskText | PartPieces], form: str, num_images: int) -> list[Span]:
    return parts_with_separators(pieces, parts)


SYSTEM = TaskSystem(
    name="imagebert",
    model_class=ImageBertForPreTraining,
    sizes={"small": imagebert_small, "base": imagebert_base},
    text=_text,
    positions=lambda config: config.max_position_embeddings - int(config.final_separator != "none"),
    has_whole_image=lambda config: config.global_feature_size > 0,
    second_segment=0,  # its segments tell text from image
    unread_alone=(".features.", ".locations.", ".region_norm.", ".global_feature."),
)
