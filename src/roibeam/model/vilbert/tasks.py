"""ViLBERT with the task heads of its two releases, as their fine-tuned checkpoints hold them.

The first release (jiasenlu/vilbert_beta, VILBertForVLTasks) has one answer classifier, the multi-task release
(facebookresearch/vilbert-multi-task, arXiv:1912.02315) classifiers of another kind, more of them, and a head for pairs
of images. All heads stand in every checkpoint; a task uses one or two.
"""

from __future__ import annotations

from torch import Tensor, nn

from roibeam.model.common.heads import DroppedLinear, NormedClassifier, WeightNormedClassifier
from roibeam.model.common.score_heads import ScoreHeads
from roibeam.model.inputs import VLOutput
from roibeam.model.task_heads import join_row_pairs
from roibeam.model.vilbert.config import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForPreTraining

IMAGE_PAIR_LABELS = 2  # of NLVR2: false, true


class ViLbertWithScores(ScoreHeads, ViLbertForPreTraining):
    """The pre-training heads, and one score for the pair, each region and each piece (section 3.2): both releases."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(config)
        dropout = config.pair_dropout
        self.pair_dropout = nn.Dropout(dropout)
        self.pair_score = DroppedLinear(config.co_attention_size, 1, dropout=dropout)
        self.region_score = DroppedLinear(config.image_hidden_size, 1, dropout=dropout)
        self.word_score = DroppedLinear(config.hidden_size, 1, dropout=dropout)


class ViLbertForTasks(ViLbertWithScores):
    """The first release: one classifier of answers."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(config)
        pooled = config.co_attention_size
        self.answer_head = WeightNormedClassifier(pooled, 2 * pooled, config.num_answers)
        self.post_init()

    def answers(self, output: VLOutput) -> Tensor:
        """(B, num_answers) logits of VQA's answers (section 3.2, "a two layer MLP")."""
        return self.answer_head(self.pair_dropout(output.pooled))


class ViLbertForMultiTask(ViLbertWithScores):
    """The multi-task release: answers of two data sets, statements about two images, entailment."""

    def __init__(self, config: ViLbertConfig) -> None:
        super().__init__(config)
        pooled = config.co_attention_size
        self.answer_head = NormedClassifier(pooled, 2 * pooled, config.num_answers) if config.num_answers else None
        self.gqa_answer_head = (
            NormedClassifier(pooled, 2 * pooled, config.num_gqa_answers) if config.num_gqa_answers else None
        )
        self.image_pair_head = NormedClassifier(2 * pooled, 2 * pooled, IMAGE_PAIR_LABELS)
        self.entailment_head = DroppedLinear(pooled, 3, dropout=config.pair_dropout)
        self.post_init()

    def answers(self, output: VLOutput) -> Tensor:
        """(B, num_answers) logits of VQA's answers."""
        return self._classify(self.answer_head, "num_answers", output)

    def gqa_answers(self, output: VLOutput) -> Tensor:
        """(B, num_gqa_answers) logits of GQA's answers."""
        return self._classify(self.gqa_answer_head, "num_gqa_answers", output)

    def image_pairs(self, output: VLOutput) -> Tensor:
        """(B / 2, 2) logits of NLVR2: rows 2i and 2i + 1 of the batch are one statement with its two images.

        Raises:
            ValueError: for an odd number of rows.
        """
        assert output.pooled is not None
        return self.image_pair_head(join_row_pairs(self.pair_dropout(output.pooled)))

    def entailment(self, output: VLOutput) -> Tensor:
        """(B, 3) logits of visual entailment."""
        return self.entailment_head(output.pooled)

    def _classify(self, head: NormedClassifier | None, field: str, output: VLOutput) -> Tensor:
        if head is None:
            raise ValueError(f"ViLBERT: this model was made with {field}=0 and has no such head")
        return head(self.pair_dropout(output.pooled))
