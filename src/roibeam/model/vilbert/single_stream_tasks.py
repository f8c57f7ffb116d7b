"""The single-stream baseline with the task heads of its code (jiasenlu/vilbert_beta vilbert/basebert.py).

They are those of ViLBERT's first release on BERT's widths, as BaseBertForVLTasks has them: pooled [CLS] is read without
dropout, states of regions and pieces with it. No weights of it were released.
"""

from __future__ import annotations

from torch import Tensor

from roibeam.model.common.heads import DroppedLinear, WeightNormedClassifier
from roibeam.model.common.score_heads import ScoreHeads
from roibeam.model.inputs import VLOutput
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining


class SingleStreamForTasks(ScoreHeads, SingleStreamForPreTraining):
    """The pre-training heads, answers, and one score for the pair, each region and each piece."""

    def __init__(self, config: SingleStreamConfig) -> None:
        super().__init__(config)
        hidden, dropout = config.hidden_size, config.hidden_dropout
        self.answer_head = WeightNormedClassifier(hidden, 2 * hidden, config.num_answers)
        self.pair_score = DroppedLinear(hidden, 1, dropout=0.0)
        self.region_score = DroppedLinear(hidden, 1, dropout=dropout)
        self.word_score = DroppedLinear(hidden, 1, dropout=dropout)
        self.post_init()

    def answers(self, output: VLOutput) -> Tensor:
        """(B, num_answers) logits of VQA's answers."""
        return self.answer_head(output.pooled)
