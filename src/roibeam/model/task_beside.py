"""What a task's model learns beside its task, from the same rows: classes of regions and hidden words.

VL-BERT does both on VCR (arXiv:1908.08530v1, section 4.2.1; jackroos/VL-BERT vcr/modules). Here any model can.

Shapes: B rows, R regions, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from roibeam.model.common.heads import RegionClassHead
from roibeam.model.common.losses import SumCount, accuracy, cross_entropy
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.pretraining import PreTrainingTerms, count_labels, count_true
from roibeam.model.task_heads import Encoder, TaskHead, TaskModel

REGION_CLASSES, WORDS = "region_classes", "masked_words"
_WHOLE_IMAGE = 0  # its class


@dataclass(frozen=True, eq=False)
class ScoresBeside:
    """What the head says, and losses and metrics of what is learned beside, by name."""

    scores: Tensor
    losses: Mapping[str, SumCount]
    metrics: Mapping[str, SumCount]


class TaskModelBeside(TaskModel):
    """As `TaskModel`, with losses beside.

    Args:
        num_classes: C, of regions; class 0 is that of the whole image. 0 asks nothing of regions.
        with_whole_image: whether its state is asked too.
        with_words: whether hidden words are asked, of the model's own pre-training head, which then is trained.
    Raises:
        ValueError: when the model has no such head.
    """

    def __init__(
        self,
        model: Encoder,
        head: TaskHead,
        *,
        num_classes: int = 0,
        with_whole_image: bool = False,
        with_words: bool = False,
    ) -> None:
        super().__init__(model, head)
        self.with_whole_image, self.with_words = with_whole_image, with_words
        self.region_class_head = None
        if num_classes:
            self.region_class_head = RegionClassHead(model.config.output_widths.region, num_classes)
            own = getattr(model, "masked_region_head", None)
            # VL-BERT's release starts the transform from that of pre-training.
            if isinstance(own, RegionClassHead):
                self.region_class_head.dense.load_state_dict(own.dense.state_dict())
        if with_words and getattr(model, "masked_word_head", None) is None:
            raise ValueError(f"{type(model).__name__} has no head for hidden words; leave hidden_words at 0")

    def beside(self, batch: VLBatch) -> ScoresBeside:
        """The scores and the losses of a batch that has something to ask, see `loss_counts`."""
        output = self.model.encode(batch)
        terms = PreTrainingTerms()
        if self.region_class_head is not None:
            logits, labels = self._region_logits(batch, output)
            terms.losses[REGION_CLASSES] = cross_entropy(logits, labels)
            terms.metrics["region_class_accuracy"] = accuracy(logits, labels, torch.ones_like(labels, dtype=torch.bool))
        if self.with_words:
            assert batch.text_labels is not None
            terms.masked_words(self.model.word_logits, output.text_states, batch.text_labels)  # type: ignore[attr-defined]
        return ScoresBeside(self.head(batch, output), terms.losses, terms.metrics)

    def forward(self, batch: VLBatch, *, beside: bool = False) -> Tensor | ScoresBeside:  # type: ignore[override]
        """The scores alone, or as `beside`."""
        return self.beside(batch) if beside else super().forward(batch)

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        """What each loss is averaged over, before the model runs.

        Regions in `region_target_mask` are asked for the class that `region_targets` are 1 at, and each row's whole
        image; words for `text_labels`.
        """
        counts = {}
        if self.region_class_head is not None:
            counts[REGION_CLASSES] = count_true(batch.region_target_mask) + self.with_whole_image * batch.batch_size
        if self.with_words:
            counts[WORDS] = count_labels(batch.text_labels)
        return counts

    def _region_logits(self, batch: VLBatch, output: VLOutput) -> tuple[Tensor, Tensor]:
        """(n, C) and (n,), of all that is asked."""
        asked = batch.region_target_mask
        assert asked is not None and self.region_class_head is not None
        states, labels = output.region_states[asked], batch.targets_of(asked).argmax(dim=-1)
        if self.with_whole_image:
            assert output.whole_image_state is not None
            states = torch.cat([output.whole_image_state, states])
            labels = torch.cat([labels.new_full((batch.batch_size,), _WHOLE_IMAGE), labels])
        return self.region_class_head(states), labels
