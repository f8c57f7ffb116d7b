"""Base of models with pre-training heads, and their shared tasks, each as (loss, accuracy).

Logits are computed at masked positions only: over all positions they would be most of a head's work and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roibeam.model.common.bert import VLPreTrainedModel
from roibeam.model.common.heads import NormedClassifier
from roibeam.model.common.losses import (
    PreTrainingOutput,
    SumCount,
    accuracy,
    binary_cross_entropy,
    contrastive,
    cross_entropy,
    kl_divergence,
    squared_error,
)
from roibeam.model.common.transformer import spare_rows
from roibeam.model.inputs import IGNORE_INDEX, VLBatch, VLOutput


class PreTrainingModel(VLPreTrainedModel):
    """A model with its pre-training heads, as training, probes and comparisons use it; calling it is `score(batch,
    encode(batch))`.

    The encoder is the part that `base_model_prefix` names. A head that a configuration leaves out is None.
    """

    def forward(self, batch: VLBatch) -> PreTrainingOutput:
        return self.score(batch, self.encode(batch if self.drops else reading_labels(batch)))

    def encode(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """Last states; labels and targets in the batch are not read. Attention weights and the states of every layer on
        request. Raises ValueError for a text too long or without [CLS], features of another width, or what a model
        misses."""
        return cast(Any, self.base_model)(batch, with_attention=with_attention, with_states=with_states)

    def encode_text(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """Last states of texts without any image, not even a whole one. No paper but VL-BERT's feeds text alone. Raises
        ValueError for a batch with regions."""
        return cast(Any, self.base_model).encode_text(batch, with_attention=with_attention)

    def score(self, batch: VLBatch, output: VLOutput) -> PreTrainingOutput:
        """Losses and accuracies of the states in `output`; the total loss is the plain sum of the mean losses. Raises
        ValueError if the batch lacks the targets of a head."""
        raise NotImplementedError

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        """Number of elements that each loss of `score` is averaged over, by its name, before the model runs.

        So that micro-batches and processes can divide by one sum of them. Equal to the counts that `score` returns.
        """
        raise NotImplementedError

    def word_logits(self, states: Tensor) -> Tensor:
        """(..., V) for text states (..., H)."""
        raise NotImplementedError

    def region_logits(self, states: Tensor) -> Tensor | None:
        """(..., C) class logits for region states (..., I); None for a model that predicts no classes of regions."""
        raise NotImplementedError

    def match_log_odds(self, output: VLOutput) -> Tensor | None:
        """(B,) ln(p / (1 - p)) of "the caption belongs to the image", for any order of the head's logits.

        Zero-shot retrieval sorts by it; its sigmoid is the probability. None for a model without such a head.
        """
        raise NotImplementedError

    def needed(self, batch: VLBatch, name: str) -> Tensor:
        """A field of the batch that a head reads; raises ValueError where it is None."""
        found: Tensor | None = getattr(batch, name)
        if found is None:
            raise ValueError(f"{type(self).__name__}: the batch has no {name}, a head of this model needs them")
        return found


class PreTrainingLogits(NamedTuple):
    """Predictions of a `ViLbertStyleModel` for every position, real or not."""

    words: Tensor  # (B, T, V)
    regions: Tensor | None  # (B, R, C), or features (B, R, D); None for a model that predicts no regions
    whole_image: Tensor | None  # (B, C) or (B, D), never trained
    match: Tensor | None  # (B, 2), in the releases' order: matching first


MATCH_LOGIT = 0  # in all releases of ViLBERT and InterBERT: logit 0 = the caption belongs to the image, 1 = it does not


class ViLbertStyleModel(PreTrainingModel):
    """A model with the heads of ViLBERT, as InterBERT and the single-stream baseline have them."""

    masked_region_head: NormedClassifier | None
    match_head: nn.Linear | None

    def region_logits(self, states: Tensor) -> Tensor | None:
        head, config = self.masked_region_head, cast(Any, self.config)
        return head(states) if head is not None and config.region_loss == "kl" else None

    def match_log_odds(self, output: VLOutput) -> Tensor | None:
        return None if self.match_head is None else log_odds(self.match_head(output.pooled), MATCH_LOGIT)

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        counts = {"masked_words": count_labels(batch.text_labels)}
        if self.masked_region_head is not None:
            counts["masked_regions"] = count_true(self.counted_regions(batch))
        return counts if self.match_head is None else {**counts, "matching": count_labels(batch.match_labels)}

    def score(self, batch: VLBatch, output: VLOutput) -> PreTrainingOutput:
        terms = PreTrainingTerms()
        terms.masked_words(self.word_logits, output.text_states, self.needed(batch, "text_labels"))
        if self.masked_region_head is not None:
            self.add_region_loss(terms, self.masked_region_head, batch, output.region_states)
        self.add_match_loss(terms, batch, output)
        return terms.output()

    def counted_regions(self, batch: VLBatch) -> Tensor | None:
        """(B, R) bool, the predicted regions that count; None without any."""
        return batch.region_target_mask

    def add_region_loss(
        self, terms: PreTrainingTerms, head: NormedClassifier, batch: VLBatch, states_BRI: Tensor
    ) -> None:
        predicted = self.needed(batch, "region_target_mask")
        loss = cast(Any, self.config).region_loss
        terms.masked_regions(head, states_BRI, batch.targets_of(predicted), predicted, loss=loss)

    def add_match_loss(self, terms: PreTrainingTerms, batch: VLBatch, output: VLOutput) -> None:
        if self.match_head is not None:
            match = self.needed(batch, "match_labels")
            terms.matching(self.match_head(output.pooled), match, match_logit=MATCH_LOGIT)

    def logits(self, output: VLOutput) -> PreTrainingLogits:
        """Logits of all positions of an output with an image: for inspection, not for training."""
        head = self.masked_region_head
        return PreTrainingLogits(
            words=self.word_logits(output.text_states),
            regions=None if head is None else head(output.region_states),
            whole_image=None if head is None else head(output.whole_image_state),
            match=None if self.match_head is None else self.match_head(output.pooled),
        )


def region_head(config: Any, region_width: int) -> NormedClassifier | None:
    """The head of masked regions of a `ViLbertStyleModel`; None if it predicts no regions.

    Its activation is that of the text (BertImgPredictionHeadTransform reads hidden_act).
    """
    if config.region_loss == "none":
        return None
    return NormedClassifier(region_width, region_width, config.region_target_size, activation=config.hidden_activation)


def count_labels(labels: Tensor | None) -> int:
    """Labels that are not `IGNORE_INDEX`."""
    return 0 if labels is None else int((labels != IGNORE_INDEX).sum())


def count_true(mask: Tensor | None) -> int:
    return 0 if mask is None else int(mask.sum())


def log_odds(logits_B2: Tensor, match_logit: int) -> Tensor:
    """(B,) logit `match_logit` minus the other one: the log-odds of their softmax."""
    return logits_B2[:, match_logit] - logits_B2[:, 1 - match_logit]


def in_pairs(batch: VLBatch, pairs: str) -> VLBatch:
    """The batch with words and regions to predict in these pairs alone, one of `MASKED_LOSS_PAIRS`."""
    return only_matched(batch) if pairs == "matched" and batch.match_labels is not None else batch


def reading_labels(batch: VLBatch) -> VLBatch:
    """The batch for a model of which only `score` is needed: its labelled pieces, predicted regions, and [CLS]."""
    pieces = torch.zeros_like(batch.rows_text_mask) if batch.text_labels is None else batch.text_labels != IGNORE_INDEX
    pieces[:, :1] = True
    regions = torch.zeros_like(batch.rows_region_mask)
    if batch.region_target_mask is not None:
        regions = batch.region_target_mask
    return replace(batch, read_pieces=pieces, read_regions=regions)


def only_matched(batch: VLBatch) -> VLBatch:
    """The batch with nothing to predict in mismatched pairs, so that they leave sums and denominators alike.

    Hidden words and regions stay hidden: a mask must not reveal whether a pair matches.
    """
    assert batch.match_labels is not None
    return _predicted_in(batch, batch.match_labels.eq(1))


def only_row(batch: VLBatch, row: int) -> VLBatch:
    """The batch with nothing to predict outside of one row, matching too: results of `score` for the rows one by one
    add up to that for the batch."""
    chosen = torch.arange(batch.batch_size, device=batch.text_ids.device) == row
    match = None if batch.match_labels is None else batch.match_labels.masked_fill(~chosen, IGNORE_INDEX)
    return replace(_predicted_in(batch, chosen), match_labels=match)


def _predicted_in(batch: VLBatch, rows_B: Tensor) -> VLBatch:
    """The batch with words and regions to predict in these rows alone, (B,) bool."""
    labels, targets, predicted = batch.text_labels, batch.region_targets, batch.region_target_mask
    if predicted is not None:
        predicted = predicted & rows_B[:, None]
        targets = batch.targets_of(predicted) if batch.compact_targets else targets
    return replace(
        batch,
        text_labels=None if labels is None else labels.masked_fill(~rows_B[:, None], IGNORE_INDEX),
        region_targets=targets,
        region_target_mask=predicted,
    )


def of_rows(head: Callable[[Tensor], Tensor], states_NH: Tensor) -> Tensor:
    """`head(states_NH)`, on `spare_rows` too."""
    spare = spare_rows(len(states_NH), states_NH.device)
    return head(F.pad(states_NH, (0, 0, 0, spare)))[: len(states_NH)] if spare else head(states_NH)


class PreTrainingTerms:
    """Collects losses and metrics by the names of `PreTrainingOutput`."""

    def __init__(self) -> None:
        self.losses: dict[str, SumCount] = {}
        self.metrics: dict[str, SumCount] = {}

    def masked_words(self, head: Callable[[Tensor], Tensor], states_BTH: Tensor, labels_BT: Tensor) -> None:
        """`head` gives logits (n, V) for states (n, H); labels as in `VLBatch.text_labels`."""
        labelled = labels_BT != IGNORE_INDEX
        labels = labels_BT[labelled]
        logits = of_rows(head, states_BTH[labelled])
        self.losses["masked_words"] = cross_entropy(logits, labels)
        self.metrics["masked_word_accuracy"] = accuracy(logits, labels, torch.ones_like(labels, dtype=torch.bool))

    def contrasted_regions(
        self,
        head: Callable[[Tensor], Tensor],
        states_BRI: Tensor,
        features_BRD: Tensor,
        mask_BR: Tensor,
        negatives_NK: Tensor,
    ) -> None:
        """`negatives_NK` are the flat places (in B x R) of each predicted region's negatives, from `draw_negatives`."""
        negatives = features_BRD.flatten(0, 1)[negatives_NK]
        self.losses["masked_regions"] = contrastive(
            of_rows(head, states_BRI[mask_BR]), features_BRD[mask_BR], negatives
        )

    def masked_regions(
        self, head: Callable[[Tensor], Tensor], states_BRI: Tensor, targets: Tensor, mask_BR: Tensor, *, loss: str
    ) -> None:
        """
        Args:
            targets: (n, C), of the regions in `mask_BR`, see `VLBatch.targets_of`.
            loss: "kl" against class distributions, "regression" of features.
        """
        predictions, every_row = of_rows(head, states_BRI[mask_BR]), mask_BR.new_ones(len(targets))
        if loss == "kl":
            self.losses["masked_regions"] = kl_divergence(predictions, targets, every_row)
            self.metrics["masked_region_accuracy"] = accuracy(predictions, targets.argmax(dim=-1), every_row)
        else:
            self.losses["masked_regions"] = squared_error(predictions, targets, every_row)

    def classified_regions(self, logits_NC: Tensor, labels_N: Tensor) -> None:
        """Adds predicted regions, with one class each; `IGNORE_INDEX` does not count."""
        self.losses["masked_regions"] = cross_entropy(logits_NC, labels_N)
        self.metrics["masked_region_accuracy"] = accuracy(logits_NC, labels_N, labels_N != IGNORE_INDEX)

    def regressed_features(self, predictions_ND: Tensor, features_ND: Tensor, *, over_width: str) -> None:
        """Adds features of predicted regions, beside their classes; `over_width` as in `squared_error`."""
        every_row = torch.ones(len(features_ND), dtype=torch.bool, device=features_ND.device)
        error = squared_error(predictions_ND, features_ND, every_row, over_width=over_width)
        self.losses["masked_region_features"] = error

    def matching_odds(self, log_odds_B: Tensor, match_labels: Tensor) -> None:
        """Adds the match of a head with one logit: its sigmoid is the probability of a match."""
        counted, matched = match_labels != IGNORE_INDEX, match_labels.eq(1)
        self.losses["matching"] = binary_cross_entropy(log_odds_B, matched.to(log_odds_B.dtype), counted)
        is_right = (log_odds_B > 0).eq(matched)
        self.metrics["matching_accuracy"] = SumCount((is_right & counted).sum(), counted.sum())

    def matching(self, logits_B2: Tensor, match_labels: Tensor, *, match_logit: int) -> None:
        """`match_logit`: the one of the two logits that means a match. Each code's order stays, so its weights load."""
        counted = match_labels != IGNORE_INDEX
        labels = match_labels if match_logit == 1 else torch.where(counted, 1 - match_labels, match_labels)
        self.losses["matching"] = cross_entropy(logits_B2, labels)
        self.metrics["matching_accuracy"] = accuracy(logits_B2, labels, counted)

    def output(self) -> PreTrainingOutput:
        return PreTrainingOutput(self.losses, self.metrics)


def draw_negatives(
    region_mask_BR: Tensor,
    predicted_BR: Tensor,
    count: int,
    draws: Sequence[int] | torch.Generator,
    *,
    from_other_images: float,
    group_rows: int,
) -> Tensor:
    """Draws the negatives of each predicted region.

    Uniformly among the real regions of the other images of its group, and among the other real regions of its own; if
    one kind does not exist, the other kind replaces it. The draws of a row follow from its seed and from the regions of
    its group alone, padding left out. The multi-task release draws among all rows of a process, padding too, and leaves
    one region out.

    Args:
        count: K, of which the share `from_other_images` comes from other images.
        draws: a seed for each row, or a generator on the CPU for one row after the other; the same ones give the same
            negatives on every device.
        group_rows: rows 0 to group_rows - 1 are the first group, as many the next; the last may have fewer.
    Returns:
        (N, K) long, flat places in B x R, one row for each True of `predicted_BR`. A region without any other in its
        group has its own place there: a loss of ln(1 + K), without a gradient.
    """
    real, predicted = region_mask_BR.cpu(), predicted_BR.cpu()
    num_regions, num_other = real.shape[1], int(count * from_other_images)
    drawn = [torch.zeros(0, count, dtype=torch.long)]
    for row in predicted.any(dim=1).nonzero().squeeze(1).tolist():
        first = row - row % group_rows
        group = real[first : first + group_rows].flatten().nonzero().squeeze(1) + first * num_regions
        in_row = group // num_regions == row
        own, others = group[in_row], group[~in_row]
        places = predicted[row].nonzero().squeeze(1) + row * num_regions
        random = draws if isinstance(draws, torch.Generator) else torch.Generator().manual_seed(draws[row])
        from_others = 0 if not len(others) else count if len(own) == 1 else num_other
        here = [others[torch.randint(len(others), (len(places), from_others), generator=random)]] if from_others else []
        if len(own) == 1 and not len(others):
            here.append(places[:, None].expand(-1, count))
        elif from_others < count:
            chosen = torch.randint(len(own) - 1, (len(places), count - from_others), generator=random)
            itself = torch.searchsorted(own, places)[:, None]
            here.append(own[chosen + (chosen >= itself)])
        drawn.append(torch.cat(here, dim=1))
    return torch.cat(drawn).to(predicted_BR.device)
