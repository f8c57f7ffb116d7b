"""VL-BERT (arXiv:1908.08530) as its release builds it (jackroos/VL-BERT common/: visual_linguistic_bert, fast_rcnn).

One sequence through one encoder: text pieces | whole image, regions | [END]. Every element is the sum of a token, a
visual feature, a segment and a position (section 3.2). Each text piece carries the visual feature of the whole image.
Differences of the paper are fields of `VLBertConfig`.

The release packs rows without gaps; here text is padded before the regions. Positions come from the real length of each
row and padding is never attended to, so the states of real elements are the same.

Shapes: B rows, T text pieces, R regions, E = R + 1 image elements (whole image first), V width of a visual feature, H
hidden width.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from roibeam.model.common.bert import VLPreTrainedModel, bert_encoder, bert_word_head
from roibeam.model.common.heads import DroppedLinear, Pooler, RegionClassHead
from roibeam.model.common.losses import PreTrainingOutput, SumCount, accuracy, precise, soft_cross_entropy
from roibeam.model.common.transformer import Packing
from roibeam.model.inputs import IGNORE_INDEX, AttentionMaps, VLBatch, VLOutput, check_features, check_text_alone
from roibeam.model.layer_states import LayerStates
from roibeam.model.pretraining import PreTrainingModel, PreTrainingTerms, count_labels, log_odds, of_rows
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.embeddings import (
    RegionProjection,
    UntouchedLinear,
    VisualNorm,
    VisualScale,
    VLBertEmbeddings,
    VLBertImageElements,
    ZeroEmbedding,
    elements_of_pieces,
    image_elements,
)
from roibeam.model.vlbert.fields import REGION_SEGMENT

ROW_EPSILON = 1e-4  # of both divisions in `mean_over_rows`
MATCH_LOGIT = 1  # of the relationship head: 1 = the caption belongs to the image


class VLBertPreTrainedModel(VLPreTrainedModel):
    """Initialisation and file handling shared by the bare model and the models with heads."""

    config_class = VLBertConfig
    config: VLBertConfig
    base_model_prefix = "vlbert"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        as_released = self.config.visual_start == "release"
        if isinstance(module, UntouchedLinear):
            # torch.nn.Linear.reset_parameters, by functions that leave loaded weights alone.
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            bound = 1 / math.sqrt(module.in_features)
            init.uniform_(module.bias, -bound, bound)
            return
        super()._init_weights(module)
        if isinstance(module, ZeroEmbedding) and as_released:
            init.zeros_(module.weight)
        elif isinstance(module, (VisualNorm, VisualScale)):
            parameter = module.weight if isinstance(module, VisualNorm) else module.scale
            if as_released:
                init.constant_(parameter, module.start)
            else:
                init.normal_(parameter, mean=0.0, std=self.config.initializer_range)


class VLBertModel(VLBertPreTrainedModel):
    """The encoder: a `VLBatch` in, a `VLOutput` out. Targets in the batch are not read."""

    def __init__(self, config: VLBertConfig) -> None:
        super().__init__(config)
        hidden, appearance = config.hidden_size, config.masked_appearance
        self.region_projection = RegionProjection(config)
        self.region_token = nn.Embedding(config.num_region_tokens, hidden)
        self.masked_region_token = nn.Embedding(1, hidden) if config.masked_region_token else None
        learned, embedding = appearance == "learned", appearance == "embedding"
        self.masked_region_feature = ZeroEmbedding(1, config.region_feature_size) if learned else None
        self.masked_region_embedding = nn.Embedding(1, config.visual_width) if embedding else None
        self.text_only_visual = nn.Embedding(1, config.visual_width) if config.with_text_only else None
        self.embeddings = VLBertEmbeddings(config)
        self.encoder = bert_encoder(config)
        self.pooler = Pooler(hidden) if config.with_pooler else None
        self.post_init()

    def forward(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """The sequence of `VLOutput.attention.joint` is text, whole image, regions, [END]."""
        if self.config.needs_whole_image and batch.whole_image_features is None:
            raise ValueError(
                "VLBertModel: masked_appearance 'pixels' needs VLBatch.whole_image_features, the region encoder's "
                "feature of the box [0, 0, width - 1, height - 1]"
            )
        elements = image_elements(batch, self.config.whole_image_epsilon)
        return self.encode(batch, elements, with_attention=with_attention, with_states=with_states)

    def encode(
        self, batch: VLBatch, elements: VLBertImageElements, *, with_attention: bool = False, with_states: bool = False
    ) -> VLOutput:
        """See `forward`, with image elements of the caller: `batch` gives only text and image size."""
        batch = batch.with_texts_of_rows()
        embedded = (*self.embed_elements(elements, batch.image_hw, batch.region_classes), elements.mask)
        tokens, visuals, mask = map(batch.images_to_rows, embedded)
        whole, text_visuals = self.text_visuals(batch, visuals)
        first_region = int(self.config.whole_image_element)
        if not first_region:
            tokens, visuals, mask = tokens[:, 1:], visuals[:, 1:], mask[:, 1:]
        states = self.embeddings(
            batch.text_ids,
            batch.text_segments,
            batch.text_mask,
            text_visuals,
            tokens,
            visuals,
            whole if self.config.end_visual else None,
            self._element_images(batch, first_region),
        )
        length = batch.text_ids.shape[1]
        attention = AttentionMaps(joint_regions=length + first_region) if with_attention else None
        mask = torch.cat([batch.text_mask, mask, mask.new_ones(batch.batch_size, 1)], dim=1)
        passed: list[Tensor] | None = [] if with_states else None
        maps = None if attention is None else attention.joint
        states = self.encoder(states, mask, maps, batch.read_positions(first_region, 1), passed)
        text, image = states[:, :length], states[:, length:-1]
        return VLOutput(
            text_states=text,
            region_states=image[:, first_region:],
            whole_image_state=image[:, 0] if first_region else None,
            pooled=None if self.pooler is None else self.pooler(states[:, 0]),
            attention=attention,
            layer_states=LayerStates.of_joint(passed, slice(length), slice(length + first_region, -1)),
        )

    def _element_images(self, batch: VLBatch, first_region: int) -> Tensor | None:
        """(B, E) long, the image of a row that each element is of; the whole image is of the first."""
        if batch.region_images is None:
            return None
        if self.config.num_segments <= REGION_SEGMENT + 1:
            raise ValueError(
                f"VLBertModel: a row has several images, and each has a segment of its own; make the model with "
                f"num_segments={REGION_SEGMENT + 2}, got {self.config.num_segments}"
            )
        return F.pad(batch.images_to_rows(batch.region_images), (first_region, 0))

    def embed_elements(
        self, elements: VLBertImageElements, image_hw: Tensor, classes_IR: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens (I, E, H) and visual features (I, E, V) of image elements, masked ones by the config."""
        masked, features = elements.masked[..., None], elements.features
        check_features("VL-BERT", features, self.config.region_feature_size, self.region_projection.linear.weight)
        features = self.with_masked_features(elements)
        # A row without an image may bring no size.
        hw, real = image_hw.clamp(min=1), Packing(elements.mask)
        features, boxes = real.pack(features)[:, None], real.pack(elements.boxes)[:, None]
        visuals = real.pad(self.region_projection(features, boxes, hw[real.rows]).squeeze(1))
        if self.masked_region_embedding is not None:
            # "visual feature embedding is replaced by a special learnable embedding" (section 3.3, task 3)
            visuals = torch.where(masked, self.masked_region_embedding.weight.to(visuals.dtype), visuals)
        tokens = self._region_tokens(classes_IR, masked)
        if self.masked_region_token is not None:
            tokens = torch.where(masked, self.masked_region_token.weight, tokens)
        return tokens, visuals

    def with_masked_features(self, elements: VLBertImageElements) -> Tensor:
        """(I, E, D): features of image elements, with the learned vector at masked regions if the config has one."""
        if self.masked_region_feature is None:
            return elements.features
        # Only the appearance is hidden: a masked region's box stays visible.
        vector = self.masked_region_feature.weight.to(elements.features.dtype)
        return torch.where(elements.masked[..., None], vector, elements.features)

    def _region_tokens(self, classes_IR: Tensor | None, masked_IE1: Tensor) -> Tensor:
        """(I, E, H): [IMG], or the token of each element's class, the whole image's first."""
        table = self.region_token.weight
        if len(table) == 1:
            return table.expand(*masked_IE1.shape[:2], -1)
        if classes_IR is None:
            raise ValueError(f"VLBertModel: {len(table)} num_region_tokens need VLBatch.region_classes")
        return table[F.pad(classes_IR, (1, 0)).clamp(0, len(table) - 1)]

    def text_visuals(self, batch: VLBatch, visuals_BEV: Tensor) -> tuple[Tensor, Tensor]:
        """Visual features of other elements: one of each row (B, V), and those of its pieces (B, T, V)."""
        length = batch.text_ids.shape[1]
        whole = visuals_BEV[:, 0]
        if self.config.text_visual == "none":
            whole = torch.zeros_like(whole)
        if self.text_only_visual is not None:
            text_only = batch.region_mask.new_zeros(len(whole)) if batch.text_only is None else batch.text_only
            whole = torch.where(text_only[:, None], self.text_only_visual.weight.to(whole.dtype), whole)
        elif batch.text_only is not None:
            raise ValueError("VLBertModel: the batch has rows without an image; make the model with_text_only=True")
        pieces = whole[:, None].expand(-1, length, -1)
        if self.config.text_visual != "grounded":
            return whole, pieces
        if batch.aligned_words is None:
            raise ValueError("VLBertModel: text_visual 'grounded' needs VLBatch.aligned_words")
        aligned_words = batch.aligned_words.masked_fill(~batch.rows_region_mask[..., None], -1)
        named = elements_of_pieces(aligned_words, length)[..., None]
        return whole, torch.where(named > 0, visuals_BEV.gather(1, named.expand_as(pieces)), pieces)


def mean_over_rows(losses_N: Tensor, chosen_BX: Tensor) -> SumCount:
    """The mean of (N,) losses in each row, then over the rows that have any, with the release's epsilons
    (`*_NORM_IN_BATCH_FIRST`). The losses are those of `chosen_BX`, in order."""
    counts, rows = chosen_BX.sum(dim=1), chosen_BX.nonzero()[:, 0]
    totals = losses_N.new_zeros(len(counts)).index_add(0, rows, losses_N)
    with_any = (counts > 0).sum()
    means = totals / (counts.to(totals) + ROW_EPSILON)  # a whole number and an epsilon would be added in float32
    return SumCount(means.sum(), with_any, ROW_EPSILON)


def _count(chosen_BX: Tensor, by_row: bool) -> int:
    """Number of elements of a mean over items, or of the means of rows."""
    return int(chosen_BX.any(dim=1).sum() if by_row else chosen_BX.sum())


class VLBertForPreTraining(VLBertPreTrainedModel, PreTrainingModel):
    """VL-BERT with its pre-training heads (section 3.3); the total loss is the plain sum of the mean losses."""

    def __init__(self, config: VLBertConfig) -> None:
        super().__init__(config)
        hidden, activation = config.hidden_size, config.hidden_activation
        self.vlbert = VLBertModel(config)
        self.masked_word_head = bert_word_head(config) if config.with_word_head else None
        self.masked_region_head = None
        if config.with_region_head:
            self.masked_region_head = RegionClassHead(hidden, config.num_region_labels, activation=activation)
        relations = 2 if config.relationship_loss == "softmax" else 1
        with_relation = config.with_relationship_head
        self.relationship_head = DroppedLinear(hidden, relations, dropout=0.0) if with_relation else None
        self.post_init()

    def encode_text(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """A text without any image, not even the whole one: its pieces and [END] carry the feature of text alone, as
        those of the release's text corpus do. All rows are `VLBatch.text_only`."""
        check_text_alone("VL-BERT", batch)
        if self.config.needs_whole_image:
            batch = replace(batch, whole_image_features=batch.region_features.sum(dim=1))
        return self.vlbert(batch, with_attention=with_attention)

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        text_only, labels, predicted = batch.text_only, batch.text_labels, batch.region_target_mask
        counts: dict[str, int] = {}
        if self.masked_word_head is not None and labels is not None:
            by_row, chosen = self.config.word_loss_mean == "rows", labels != IGNORE_INDEX
            if text_only is not None:
                counts["text_only_words"] = _count(chosen & text_only[:, None], by_row)
                chosen = chosen & ~text_only[:, None]
            counts["masked_words"] = _count(chosen, by_row)
        if self.masked_region_head is not None and predicted is not None:
            counts["masked_regions"] = _count(predicted, self.config.region_loss_mean == "rows")
        if self.relationship_head is not None and batch.match_labels is not None:
            labels = batch.match_labels
            counts["matching"] = count_labels(
                labels if text_only is None else labels.masked_fill(text_only, IGNORE_INDEX)
            )
        return counts

    def word_logits(self, states: Tensor) -> Tensor:
        if self.masked_word_head is None:
            raise ValueError("VLBertForPreTraining: this model was made with with_word_head=False")
        return self.masked_word_head(states, self.vlbert.embeddings.words.weight)

    def region_logits(self, states: Tensor) -> Tensor | None:
        return None if self.masked_region_head is None else self.masked_region_head(states)

    def match_log_odds(self, output: VLOutput) -> Tensor | None:
        if self.relationship_head is None:
            return None
        logits = self.relationship_head(output.pooled)
        return log_odds(logits, MATCH_LOGIT) if self.config.relationship_loss == "softmax" else logits.squeeze(-1)

    def score(self, batch: VLBatch, output: VLOutput) -> PreTrainingOutput:
        """Words of rows without an image have a mean of their own, `text_only_words`: the release adds the two."""
        terms = PreTrainingTerms()
        if self.masked_word_head is not None:
            self._score_words(terms, batch, output)
        if self.masked_region_head is not None:
            self._score_regions(terms, batch, output)
        if self.relationship_head is not None:
            self._score_relationship(terms, batch, output)
        return terms.output()

    def _score_words(self, terms: PreTrainingTerms, batch: VLBatch, output: VLOutput) -> None:
        """Task 2 of section 3.3."""
        labels = self.needed(batch, "text_labels")
        if batch.text_only is None:
            self._score_labels(terms, output.text_states, labels)
            return
        text_only = batch.text_only[:, None]
        self._score_labels(terms, output.text_states, labels.masked_fill(text_only, IGNORE_INDEX))
        own = PreTrainingTerms()
        self._score_labels(own, output.text_states, labels.masked_fill(~text_only, IGNORE_INDEX))
        terms.losses["text_only_words"] = own.losses["masked_words"]
        terms.metrics["text_only_word_accuracy"] = own.metrics["masked_word_accuracy"]

    def _score_labels(self, terms: PreTrainingTerms, states_BTH: Tensor, labels_BT: Tensor) -> None:
        if self.config.word_loss_mean == "items":
            terms.masked_words(self.word_logits, states_BTH, labels_BT)
            return
        labelled = labels_BT != IGNORE_INDEX
        logits, labels = precise(of_rows(self.word_logits, states_BTH[labelled])), labels_BT[labelled]
        terms.losses["masked_words"] = mean_over_rows(F.cross_entropy(logits, labels, reduction="none"), labelled)
        terms.metrics["masked_word_accuracy"] = accuracy(logits, labels, torch.ones_like(labels, dtype=torch.bool))

    def _score_regions(self, terms: PreTrainingTerms, batch: VLBatch, output: VLOutput) -> None:
        """Task 3 of section 3.3."""
        assert self.masked_region_head is not None
        predicted = self.needed(batch, "region_target_mask")
        targets = batch.targets_of(predicted)
        logits = of_rows(self.masked_region_head, output.region_states[predicted])
        if self.config.region_labels == "hard":
            targets = F.one_hot(targets[:, :-1].argmax(dim=-1), targets.shape[1])  # background is no category
        every_row = predicted.new_ones(len(targets))
        if self.config.region_loss_mean == "items":
            terms.losses["masked_regions"] = soft_cross_entropy(logits, targets, every_row)
        else:
            logits = precise(logits)
            each = F.cross_entropy(logits, targets.to(logits.dtype), reduction="none")
            terms.losses["masked_regions"] = mean_over_rows(each, predicted)
        terms.metrics["masked_region_accuracy"] = accuracy(logits, targets.argmax(dim=-1), every_row)

    def _score_relationship(self, terms: PreTrainingTerms, batch: VLBatch, output: VLOutput) -> None:
        """Task 1 of section 3.3; rows without an image have no label."""
        assert self.relationship_head is not None
        labels = self.needed(batch, "match_labels")
        if batch.text_only is not None:
            labels = labels.masked_fill(batch.text_only, IGNORE_INDEX)
        logits = self.relationship_head(output.pooled)
        if self.config.relationship_loss == "softmax":
            terms.matching(logits, labels, match_logit=MATCH_LOGIT)
        else:
            terms.matching_odds(logits.squeeze(-1), labels)
