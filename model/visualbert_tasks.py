"""VisualBERT's task models (arXiv:1908.03557, section 4; uclanlp/visualbert and transformers models/visual_bert)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from model.heads import DroppedLinear
from model.inputs import VLBatch, VLOutput
from model.losses import SumCount, kl_divergence
from model.visualbert import VisualBertConfig, VisualBertForPreTraining, VisualBertModel, VisualBertPreTrainedModel


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
        place = (batch.text_mask.sum(dim=1) - 2).clamp(min=0)
        rows = torch.arange(len(place), device=place.device)
        return self.label_head(output.text_states[rows, place])


class PhraseToRegions(nn.Module):
    """Scores of regions for phrases: one attention head without its softmax (UCLA FlickrAttention).

    Its width is that of one head of the encoder. The released weights have a value layer that nothing reads.
    """

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size // num_heads)
        self.key = nn.Linear(hidden_size, hidden_size // num_heads)

    def forward(self, phrases_BPH: Tensor, regions_BRH: Tensor, region_mask_BR: Tensor) -> Tensor:
        """(B, P, R); the lowest finite number at padded regions."""
        query, key = self.query(phrases_BPH), self.key(regions_BRH)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return scores.masked_fill(~region_mask_BR[:, None], torch.finfo(scores.dtype).min)


class VisualBertForGrounding(VisualBertForPreTraining):
    """Which regions a phrase means (Flickr30k Entities); it keeps the pre-training heads, as its checkpoints do."""

    def __init__(self, config: VisualBertConfig) -> None:
        super().__init__(config)
        self.grounding_head = PhraseToRegions(config.hidden_size, config.num_attention_heads)
        self.post_init()

    def score_regions(self, batch: VLBatch, output: VLOutput, phrase_positions: Tensor) -> Tensor:
        """
        Args:
            phrase_positions: (B, P) long, the text piece that stands for each phrase; -1 for no phrase, whose scores
                have no meaning.
        Returns:
            (B, P, R), before the softmax.
        """
        places = phrase_positions.clamp(min=0)[..., None].expand(-1, -1, output.text_states.shape[-1])
        phrases = output.text_states.gather(1, places)
        return self.grounding_head(phrases, output.region_states, batch.region_mask)


def grounding_loss(scores_BPR: Tensor, targets_BPR: Tensor) -> SumCount:
    """KL divergence from the target distributions over regions; a phrase without a target has a row of zeros.

    Both codes divide by the number of rows of the batch, not of phrases (KLDivLoss "batchmean"), so rows are counted.
    """
    every = torch.ones(scores_BPR.shape[:2], dtype=torch.bool, device=scores_BPR.device).flatten()
    term = kl_divergence(scores_BPR.flatten(0, 1), targets_BPR.flatten(0, 1), every)
    return SumCount(term.total, torch.tensor(len(scores_BPR), device=scores_BPR.device))
