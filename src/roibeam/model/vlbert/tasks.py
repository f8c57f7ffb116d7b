"""Task models of VL-BERT (arXiv:1908.08530, section 4.2; jackroos/VL-BERT vqa/, vcr/ and refcoco/ modules).

Inputs follow figure 2 of the paper. Rows of VCR are the choices of a question, one after the other. A question with an
answer is [CLS] question [SEP] answer [SEP], as `prepare_text_from_qa` makes it.

Shapes: B rows, R regions, E image elements (whole image first, where it is one), H hidden width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from roibeam.model.common.heads import PADDED_SCORE, RegionClassHead
from roibeam.model.common.losses import SumCount, cross_entropy, precise, soft_cross_entropy
from roibeam.model.common.transformer import ACTIVATIONS, BERT_NORM_EPS
from roibeam.model.inputs import VLBatch, VLOutput, image_elements_of
from roibeam.model.task_heads import read_summary
from roibeam.model.task_losses import answer_bce, region_bce
from roibeam.model.vlbert.config import VLBertTaskConfig
from roibeam.model.vlbert.model import VLBertModel, VLBertPreTrainedModel


class GlorotLinear(nn.Linear):
    """Linear layer that starts uniform as Glorot and Bengio have it, its bias at 0: the release's classifiers."""


class MaskedWordClassifier(nn.Module):
    """BERT's masked-word transform, dropout, linear (`CLASSIFIER_TYPE: mlm`)."""

    def __init__(self, config: VLBertTaskConfig, num_labels: int) -> None:
        super().__init__()
        self.dense = GlorotLinear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_activation]
        self.norm = nn.LayerNorm(config.hidden_size, eps=BERT_NORM_EPS)
        self.dropout = nn.Dropout(config.answer_dropout)
        self.decoder = GlorotLinear(config.hidden_size, num_labels)

    def forward(self, states: Tensor) -> Tensor:
        return self.decoder(self.dropout(self.norm(self.activation(self.dense(states)))))


class DroppedClassifier(nn.Module):
    """Dropout and linear ("1fc"), or twice with ReLU between ("2fc")."""

    def __init__(self, config: VLBertTaskConfig, num_labels: int) -> None:
        super().__init__()
        deep = config.answer_head == "2fc"
        self.dropout = nn.Dropout(config.answer_dropout)
        self.expand = GlorotLinear(config.hidden_size, config.answer_hidden_size) if deep else None
        self.decoder = GlorotLinear(config.answer_hidden_size if deep else config.hidden_size, num_labels)

    def forward(self, states: Tensor) -> Tensor:
        states = self.dropout(states)
        if self.expand is not None:
            states = self.dropout(torch.relu(self.expand(states)))
        return self.decoder(states)


class RegionScorer(RegionClassHead):
    """One number for each state: dense, activation, dropout, linear."""

    def __init__(self, config: VLBertTaskConfig) -> None:
        hidden = config.hidden_size
        super().__init__(hidden, 1, activation=config.hidden_activation, dropout=config.answer_dropout)
        self.dense, self.decoder = GlorotLinear(hidden, hidden), GlorotLinear(hidden, 1)


def _classifier(config: VLBertTaskConfig, num_labels: int) -> MaskedWordClassifier | DroppedClassifier:
    kind = MaskedWordClassifier if config.answer_head == "mlm" else DroppedClassifier
    return kind(config, num_labels)


class VLBertTaskModel(VLBertPreTrainedModel):
    """Encoder and initial weights of the task models."""

    config_class = VLBertTaskConfig
    config: VLBertTaskConfig

    def __init__(self, config: VLBertTaskConfig) -> None:
        super().__init__(config)
        self.vlbert = VLBertModel(config)

    def forward(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """See `VLBertModel.forward`."""
        return self.vlbert(batch, with_attention=with_attention, with_states=with_states)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, GlorotLinear):
            init.xavier_uniform_(module.weight)
            init.zeros_(module.bias)
        else:
            super()._init_weights(module)


class VLBertForVqa(VLBertTaskModel):
    """Answers from the state of [MASK], the only piece of the answer section (section 4.2.2)."""

    def __init__(self, config: VLBertTaskConfig) -> None:
        super().__init__(config)
        self.answer_head = _classifier(config, config.num_answers)
        self.post_init()

    def answers(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, num_answers) logits, read at the piece before the last real one: the text ends with `[MASK] [SEP]`."""
        return self.answer_head(read_summary(batch, output, "mask_piece"))

    def loss(self, logits: Tensor, scores: Tensor) -> SumCount:
        """Mean over rows, by `answer_loss`.

        Args:
            logits, scores: (B, num_answers); scores from 0 to 1 (VQA's soft accuracy of each answer).
        Returns:
            "sigmoid": the binary cross-entropies of a row added up, as the release (mean times their number).
            "softmax": cross-entropy with the scores made a distribution; a row whose scores are all 0 does not count.
        """
        if self.config.answer_loss == "softmax":
            total = scores.sum(dim=-1, keepdim=True)
            return soft_cross_entropy(logits, scores / total.clamp(min=1e-6), total.squeeze(-1) > 0)
        return answer_bce(logits, scores)

    @torch.no_grad()
    def start_from_words(self, answer_pieces: Sequence[Sequence[int]]) -> None:
        """The last layer starts as the mean word embedding of each answer's pieces (`CLASSIFIER_PRETRAINED`). Raises
        ValueError if there are not as many answers as labels, or an answer has no piece."""
        words, decoder = self.vlbert.embeddings.words.weight, self.answer_head.decoder
        if len(answer_pieces) != len(decoder.weight) or words.shape[1] != decoder.weight.shape[1]:
            raise ValueError(
                f"VLBertForVqa: {len(answer_pieces)} answers of width {words.shape[1]} for a layer of "
                f"{tuple(decoder.weight.shape)}"
            )
        for label, pieces in enumerate(answer_pieces):
            if not pieces:
                raise ValueError(f"VLBertForVqa: answer {label} has no word piece")
            decoder.weight[label] = words[list(pieces)].mean(dim=0)


class VLBertForVcr(VLBertTaskModel):
    """One score for each choice from the pooled [CLS], and the class of regions (section 4.2.1). Raises ValueError if
    the config has no pooler, or a masked-word classifier."""

    def __init__(self, config: VLBertTaskConfig) -> None:
        super().__init__(config)
        if not config.with_pooler or config.answer_head == "mlm":
            raise ValueError("VLBertForVcr: set with_pooler=True and answer_head '1fc' or '2fc'")
        self.choice_head = _classifier(config, 1)
        self.object_head = (
            RegionClassHead(
                config.hidden_size,
                config.num_object_labels,
                activation=config.hidden_activation,
                dropout=config.object_dropout,
            )
            if config.object_loss != "none"
            else None
        )
        self.post_init()

    def choices(self, output: VLOutput, num_choices: int) -> Tensor:
        """(B / num_choices, num_choices) scores; rows of one question follow each other."""
        return self.choice_head(output.pooled).reshape(-1, num_choices)

    def choice_loss(self, scores_QC: Tensor, right: Tensor) -> SumCount:
        """Loss by `answer_loss`; `right` (Q,) long is the number of the right choice.

        "sigmoid" has one term for each choice, "softmax" one for each question.
        """
        if self.config.answer_loss == "softmax":
            return cross_entropy(scores_QC, right)
        weight = self.config.positive_weight
        scores_QC = precise(scores_QC)
        targets = F.one_hot(right, scores_QC.shape[1]).to(scores_QC.dtype)
        each = F.binary_cross_entropy_with_logits(scores_QC, targets, 1 + (weight - 1) * targets, reduction="sum")
        # For any weight, an undecided model has the same loss (vcr/modules, `rescale`).
        return SumCount(each * (weight + 1) / (2 * weight), torch.tensor(targets.numel()).to(each.device))

    def object_loss(self, batch: VLBatch, output: VLOutput, labels_BR: Tensor) -> SumCount:
        """Cross-entropy of the classes of real regions, "all" with the whole image (class 0), or of "masked" ones.

        Args:
            labels_BR: long, the class of each region.
        """
        if self.object_head is None:
            raise ValueError("VLBertForVcr: this model was made with object_loss='none'")
        if self.config.object_loss == "masked":
            chosen = batch.images_to_rows(batch.masked_regions & batch.region_mask)
            return cross_entropy(self.object_head(output.region_states[chosen]), labels_BR[chosen])
        states, mask = image_elements_of(batch, output)
        if output.whole_image_state is not None:
            labels_BR = torch.cat([labels_BR.new_zeros(len(labels_BR), 1), labels_BR], dim=1)
        return cross_entropy(self.object_head(states[mask]), labels_BR[mask])


class VLBertForReferring(VLBertTaskModel):
    """Scores of the regions that the expression refers to (RefCOCO+, section 4.2.3)."""

    def __init__(self, config: VLBertTaskConfig) -> None:
        super().__init__(config)
        self.region_head = RegionScorer(config)
        self.post_init()

    def score_regions(self, batch: VLBatch, output: VLOutput) -> Tensor:
        """(B, E), `PADDED_SCORE` at padding. The largest is the answer; the whole image takes part."""
        states, mask = image_elements_of(batch, output)
        return self.region_head(states).squeeze(-1).masked_fill(~mask, PADDED_SCORE)

    def loss(self, batch: VLBatch, scores_BE: Tensor, targets_BE: Tensor) -> SumCount:
        """Binary cross-entropy, mean over real elements; a target is 1 where the IoU with the object is above 0.5."""
        mask = batch.rows_region_mask
        if scores_BE.shape[1] > mask.shape[1]:
            mask = torch.cat([mask.new_ones(len(mask), 1), mask], dim=1)
        return region_bce(scores_BE, targets_BE, mask, per="regions")
