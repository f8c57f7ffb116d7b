"""InterBERT with the task heads of its release (black4321/InterBERT, InterBertForVLTasks): plain linear layers.

All of them stand in every fine-tuned checkpoint; a task uses one. VCR reads the pair's score, four texts to a question
(section 3.2). Retrieval has no head of its own, "the model reuses the output layer of the pretraining ITM task"
(section 3.4): the paper calls it a choice of four pairs, the release gives each of them the two-way loss of
pre-training, which is `binary_loss` (imagebert/retrieval.py) of `match_log_odds`, and sorts by these. A text alone
(GLUE) is `encode_text`, and a head on its pooled [CLS].
"""

from __future__ import annotations

from torch import Tensor

from roibeam.model.common.heads import DroppedLinear
from roibeam.model.common.score_heads import ScoreHeads
from roibeam.model.inputs import VLOutput
from roibeam.model.interbert.config import InterBertConfig
from roibeam.model.interbert.model import InterBertForPreTraining


class InterBertForTasks(ScoreHeads, InterBertForPreTraining):
    """The pre-training heads, answers, and one score for the pair, each region and each piece."""

    def __init__(self, config: InterBertConfig) -> None:
        super().__init__(config)
        pooled, hidden, dropout = config.pooled_size, config.hidden_size, config.pair_dropout
        self.answer_head = DroppedLinear(pooled, config.num_answers, dropout=dropout)
        self.pair_score = DroppedLinear(pooled, 1, dropout=dropout)
        self.region_score = DroppedLinear(hidden, 1, dropout=dropout)
        self.word_score = DroppedLinear(hidden, 1, dropout=dropout)
        self.post_init()

    def answers(self, output: VLOutput) -> Tensor:
        """(B, num_answers) logits of a label for the pair."""
        return self.answer_head(output.pooled)
