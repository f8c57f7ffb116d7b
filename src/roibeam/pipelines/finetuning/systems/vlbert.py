"""VL-BERT on tasks (arXiv:1908.08530, figure 2 and section 4.2).

    [CLS] question [SEP] [MASK] [SEP] regions [END]     labels: the state of [MASK], in the answer's segment
    [CLS] question [SEP] choice [SEP] regions [END]     choices: pooled; words that name a region carry its feature
    [CLS] expression [SEP] regions [END]                regions: their own states

Two images make two rows: nothing is published for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from roibeam.model.inputs import VLBatch
from roibeam.model.vlbert.config import PRE_TRAINING_FIELDS, TASKS, VLBertConfig, VLBertTaskConfig, vlbert_base, vlbert_small
from roibeam.model.vlbert.model import VLBertForPreTraining
from roibeam.model.vlbert.start import task_start
from roibeam.model.vlbert.tasks import VLBertForReferring, VLBertForVcr, VLBertForVqa, VLBertTaskModel
from roibeam.pipelines.finetuning.rows import CHOICE, LABEL, REGION, TaskText
from roibeam.pipelines.finetuning.systems.row_text import Pieces, Span
from roibeam.pipelines.finetuning.systems.task_system import ReleaseHead, TaskSystem, parts_with_separators

_ANSWER = 1  # segment


class VLBertAnswers(VLBertForVqa):
    """Called with a batch, it gives (B, A) logits."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        return self.answers(batch, super().forward(batch))


class VLBertChoices(VLBertForVcr):
    """Called with a batch, it gives (rows, 1) scores."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        return self.choice_head(super().forward(batch).pooled)


class VLBertRegions(VLBertForReferring):
    """Called with a batch, it gives (B, R) scores, without that of the whole image."""

    def forward(self, batch: VLBatch) -> Tensor:  # type: ignore[override]
        scores = self.score_regions(batch, super().forward(batch))
        return scores[:, -batch.rows_region_mask.shape[1] :]


def _text(pieces: Pieces, parts: Sequence[TaskText], form: str, num_images: int) -> list[Span]:
    spans = parts_with_separators(pieces, parts, last_segment=_ANSWER if form == CHOICE else 0, join_context=True)
    return [*spans, pieces.mask(_ANSWER), pieces.sep(_ANSWER)] if form == LABEL else spans


def _task_config(config: VLBertConfig, task: str, **fields: Any) -> VLBertTaskConfig:
    """As cfgs/ of the release: nothing is masked, and there is no pre-training head."""
    left_out = (*PRE_TRAINING_FIELDS, "with_pooler")
    own = {name: value for name, value in config.to_diff_dict().items() if name in config.own_fields()}
    kept = {name: value for name, value in own.items() if name not in left_out}
    return VLBertTaskConfig(**{**kept, **TASKS[task], **fields})


def _release_head(network: type[VLBertTaskModel], official: str, task: str, **fields: Any) -> ReleaseHead:
    def config(model: VLBertConfig, num_labels: int) -> VLBertTaskConfig:
        return _task_config(model, task, num_answers=num_labels, **fields)

    def start(state: Mapping[str, Tensor], names: Sequence[str]) -> Mapping[str, Tensor]:
        return task_start(task, state, names)

    return ReleaseHead(network, official, config, start)


SYSTEM = TaskSystem(
    name="vlbert",
    model_class=VLBertForPreTraining,
    sizes={"small": vlbert_small, "base": vlbert_base},
    text=_text,
    positions=lambda config: config.max_position_embeddings - 2,
    reads={LABEL: "mask_piece", CHOICE: "pooled"},
    pair_reads="mask_piece",
    grounds_words=True,
    classifier="two_layers",
    changes={CHOICE: {"with_pooler": True, "text_visual": "grounded"}},
    release_heads={
        LABEL: _release_head(VLBertAnswers, "VLBertForVqa", "vqa"),
        CHOICE: _release_head(VLBertChoices, "VLBertForVcr", "vcr", object_loss="none"),
        REGION: _release_head(VLBertRegions, "VLBertForReferring", "refcoco"),
    },
)
