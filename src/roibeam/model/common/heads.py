"""Prediction heads that several models share, of pre-training and of tasks.

`ScoreHeads` are the task heads of ViLBERT's and InterBERT's releases: scores of a pair, of its regions and its pieces.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roibeam.model.common.transformer import ACTIVATIONS, BERT_NORM_EPS
from roibeam.model.inputs import VLBatch, VLOutput, image_elements_of


class MaskedWordHead(nn.Module):
    """BERT's masked-word head: dense, activation, LayerNorm, then a decoder: the word embedding itself plus a bias."""

    def __init__(self, hidden_size: int, vocab_size: int, *, activation: str = "gelu") -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(hidden_size, eps=BERT_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, states: Tensor, word_embeddings_VH: Tensor) -> Tensor:
        """Logits (..., V) for `states` (..., H). The decoder is an argument, so no file stores it twice."""
        return F.linear(self.norm(self.activation(self.dense(states))), word_embeddings_VH, self.bias)


class RegionClassHead(nn.Module):
    """Class of a region: dense, activation, dropout, linear.

    No LayerNorm: jackroos/VL-BERT visual_linguistic_bert.py, MVRC head; its task models put dropout between.
    """

    def __init__(self, hidden_size: int, num_labels: int, *, activation: str = "gelu", dropout: float = 0.0) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(hidden_size, num_labels)

    def forward(self, states: Tensor) -> Tensor:
        """Logits (..., num_labels) for `states` (..., H)."""
        return self.decoder(self.dropout(self.activation(self.dense(states))))


class Pooler(nn.Module):
    """tanh(dense(state)), BERT's summary of a pair."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        return torch.tanh(self.dense(states))


class TwoStreamPooler(nn.Module):
    """ReLU(dense(first state)) of each stream, and the pair: their product or sum, element by element.

    The paper of ViLBERT (section 2.2) multiplies the states of IMG and CLS; these have different widths, so the release
    projects both to one width first.
    """

    def __init__(self, text_size: int, image_size: int, pooled_size: int, *, fusion: str) -> None:
        super().__init__()
        self.text = nn.Linear(text_size, pooled_size)
        self.image = nn.Linear(image_size, pooled_size)
        self.fusion = fusion

    def forward(self, text_state: Tensor, image_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, P) of the text, of the image and of the pair."""
        text, image = self.pool_text(text_state), torch.relu(self.image(image_state))
        return text, image, text * image if self.fusion == "product" else text + image

    def pool_text(self, text_state: Tensor) -> Tensor:
        """(B, P) of the text alone."""
        return torch.relu(self.text(text_state))


class DroppedLinear(nn.Linear):
    """Dropout, then a linear layer: the match head and the score heads on pooled vectors or states. Under autocast too
    it computes in the type of its weights: scores of bfloat16 tie by the hundred where a caption meets 1,000 images."""

    def __init__(self, input_size: int, output_size: int, *, dropout: float) -> None:
        super().__init__(input_size, output_size)
        self.dropout = dropout

    def forward(self, states: Tensor) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            return super().forward(F.dropout(states.to(self.weight.dtype), self.dropout, self.training))


class PhraseToRegions(nn.Module):
    """Scores of regions for phrases: one attention head without its softmax (UCLA's FlickrAttention).

    Args:
        inner_size: of queries and keys; that of one head of the encoder in VisualBERT. The released weights have a
            value layer that nothing reads.
    """

    def __init__(self, text_size: int, region_size: int, inner_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(text_size, inner_size)
        self.key = nn.Linear(region_size, inner_size)

    def forward(self, phrases_BPH: Tensor, regions_BRI: Tensor, region_mask_BR: Tensor) -> Tensor:
        """(B, P, R); the lowest finite number at padded regions."""
        query, key = self.query(phrases_BPH), self.key(regions_BRI)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return scores.masked_fill(~region_mask_BR[:, None], torch.finfo(scores.dtype).min)


class WeightNormedLinear(nn.Module):
    """Linear layer whose weight is `scale` * `direction` / (norm of all of `direction`) (arXiv:1602.07868).

    One scale for the whole matrix: torch's weight_norm with dim=None.
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(output_size, input_size))
        self.scale = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.zeros(output_size))

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(states, self.direction * (self.scale / self.direction.norm()), self.bias)


class WeightNormedClassifier(nn.Module):
    """Answers from a pooled vector, by two weight-normed layers, ReLU and dropout between (ViLBERT's first release)."""

    def __init__(self, input_size: int, hidden_size: int, num_labels: int, *, dropout: float = 0.5) -> None:
        super().__init__()
        self.expand = WeightNormedLinear(input_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.decoder = WeightNormedLinear(hidden_size, num_labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """Logits (..., num_labels)."""
        return self.decoder(self.dropout(torch.relu(self.expand(pooled))))


class NormedClassifier(nn.Module):
    """Linear, activation, LayerNorm, linear, without dropout.

    Labels from a pooled vector (ViLBERT's multi-task release); class distribution or feature of a region (ViLBERT and
    its heirs).
    """

    def __init__(self, input_size: int, hidden_size: int, num_labels: int, *, activation: str = "gelu") -> None:
        super().__init__()
        self.dense = nn.Linear(input_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(hidden_size, eps=BERT_NORM_EPS)
        self.decoder = nn.Linear(hidden_size, num_labels)

    def forward(self, states: Tensor) -> Tensor:
        """Logits (..., num_labels)."""
        return self.decoder(self.norm(self.activation(self.dense(states))))


# Of padded regions (vilbert.py, vision_logit; VL-BERT's refcoco/modules): finite, so that a loss over all rows is too.
PADDED_SCORE = -10_000.0


class ScoreHeads(nn.Module):
    """Scores of pairs, regions and words from the states of a model with pre-training heads."""

    pair_score: DroppedLinear
    region_score: DroppedLinear
    word_score: DroppedLinear

    def score_pairs(self, output: VLOutput) -> Tensor:
        """(B,) fit of each text to its image: choices of VCR, candidates of retrieval."""
        return self.pair_score(output.pooled).squeeze(-1)

    def score_regions(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, R + 1) fit of IMG and each region to the text (RefCOCO+); `PADDED_SCORE` is added at padding.

        IMG takes part, in the releases' losses and in their choice of the best.
        """
        states, mask = image_elements_of(batch, output)
        return self.region_score(states).squeeze(-1) + (~mask).to(states.dtype) * PADDED_SCORE

    def score_words(self, states: Tensor) -> Tensor:
        """(...) one number for each of `states` (..., H)."""
        return self.word_score(states).squeeze(-1)
