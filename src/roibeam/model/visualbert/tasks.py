"""VisualBERT's task models (arXiv:1908.03557, section 4; uclanlp/visualbert and transformers models/visual_bert)."""

from __future__ import annotations

from torch import Tensor

from roibeam.model.common.heads import DroppedLinear, PhraseToRegions
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.task_heads import phrase_states, read_summary
from roibeam.model.visualbert.model import (
    VisualBertConfig,
    VisualBertForPreTraining,
    VisualBertModel,
    VisualBertPreTrainedModel,
)


class VisualBertForLabels(VisualBertPreTrainedModel):
    """One linear layer on a state: answers of VQA, two classes of NLVR2, one score for each choice of VCR."""

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__(config)
        self.visualbert = VisualBertModel(config)
        self.label_head = DroppedLinear(config.hidden_size, config.num_answers, dropout=config.hidden_dropout)
        self.post_init()

    def from_pooled(self, output: VLOutput) -> Tensor:
        """(B, num_answers) from the pooled [CLS] (NLVR2, VCR)."""
        return self.label_head(output.pooled)

    def from_mask_piece(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, num_answers) from the piece before the last real one (VQA: the text ends with "? [MASK] [SEP]")."""
        return self.label_head(read_summary(batch, output, "mask_piece"))


class VisualBertForGrounding(VisualBertForPreTraining):
    """Which regions a phrase means (Flickr30k Entities); it keeps the pre-training heads, as its checkpoints do."""

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.grounding_head = PhraseToRegions(hidden, hidden, hidden // config.num_attention_heads)
        self.post_init()

    def score_regions(self, batch: VLBatch, output: VLOutput, phrase_positions: Tensor) -> Tensor:
        """
        Args:
            phrase_positions: (B, P) long, the text piece that stands for each phrase, or T + n for region n, which is
                where the release looks for a word that is cut; -1 for no phrase, whose scores have no meaning.
        Returns:
            (B, P, R), before the softmax.
        """
        return self.grounding_head(
            phrase_states(output, phrase_positions), output.region_states, batch.rows_region_mask
        )
