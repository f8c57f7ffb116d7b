"""ImageBERT (arXiv:2001.07966). There is no public code: this follows the paper, docs/models.md lists its misprints.

One sequence through BERT: [CLS] text [SEP], then regions in any order; padding of the text stays between the two. After
them come, where the config has them, the whole image and a last [SEP]. No checkpoint of ImageBERT was published:
`state_from_bert` starts it from BERT (section 5.1).

Shapes: B rows, T text pieces, R regions, N predicted regions, S elements of the sequence, D region feature width, G
global feature width, K region labels, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from roibeam.model.common.bert import BertSizes, VLPreTrainedModel, bert_encoder, bert_word_head
from roibeam.model.common.checkpoint import SENTENCE_PAIRS, bert_table, start_from_bert
from roibeam.model.common.fields import SMALL_SIZES
from roibeam.model.common.heads import DroppedLinear, Pooler
from roibeam.model.common.losses import PreTrainingOutput
from roibeam.model.common.regions import LOCATION_SIZE, WHOLE_IMAGE_LOCATION, region_locations
from roibeam.model.common.transformer import BERT_NORM_EPS, Packing
from roibeam.model.imagebert.fields import IMAGE_SEGMENT, ImageBertFields
from roibeam.model.inputs import (
    IGNORE_INDEX,
    AttentionMaps,
    VLBatch,
    VLOutput,
    check_features,
    check_text_alone,
    check_texts,
)
from roibeam.model.layer_states import LayerStates
from roibeam.model.pretraining import PreTrainingModel, PreTrainingTerms, count_labels, count_true, in_pairs, of_rows


class ImageBertConfig(ImageBertFields, BertSizes):
    """The configuration of an ImageBERT; its fields are those of `ImageBertFields`."""

    model_type = "roibeam-imagebert"
    reads_whole_image: ClassVar[bool] = False  # of the batch; see model/end_to_end.py


def imagebert_base(**overrides: Any) -> ImageBertConfig:
    """The model of the paper: BERT-base (section 5.1). Its ablations of section 5.3 are overrides."""
    return ImageBertConfig(**overrides)


def imagebert_small(**overrides: Any) -> ImageBertConfig:
    """4 layers of width 256: trains on a laptop. Everything but the sizes is as in `imagebert_base`."""
    return ImageBertConfig(**(dict(SMALL_SIZES) | overrides))


class ImageBertEmbeddings(nn.Module):
    """Section 4.1. One segment table and one position table serve text and image; each has a LayerNorm of its own."""

    def __init__(self, config: ImageBertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.dummy_position = config.dummy_position
        self.masked_appearance = config.masked_appearance
        self.final_separator = config.final_separator
        self.words = nn.Embedding(config.vocab_size, hidden)
        self.positions = nn.Embedding(config.max_position_embeddings, hidden)
        self.segments = nn.Embedding(config.num_segments, hidden)
        self.text_norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        self.features = nn.Linear(config.region_feature_size, hidden)  # ImageEmbed
        self.locations = nn.Linear(LOCATION_SIZE, hidden)  # PositionEmbed of c^(i), not of e^(i) as printed
        self.region_norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        # "Global image features" of section 5.3 come from another network, so they have a projection of their own.
        self.global_feature = nn.Linear(config.global_feature_size, hidden) if config.global_feature_size else None
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, batch: VLBatch) -> tuple[Tensor, Tensor]:
        """States (B, S, H) and their mask (B, S)."""
        batch = batch.with_texts_of_rows()
        parts = [
            (self._embed_text(batch), batch.text_mask),
            (batch.images_to_rows(self._embed_regions(batch)), batch.rows_region_mask),
        ]
        present = batch.text_mask.new_ones(batch.batch_size, 1)
        if self.global_feature is not None:
            parts.append((batch.images_to_rows(self._embed_whole_image(batch)), present))
        if self.final_separator != "none":
            # A row without text has no last word to repeat.
            parts.append((self._embed_separator(batch), batch.text_mask[:, :1]))
        states, masks = zip(*parts, strict=True)
        return self.dropout(torch.cat(states, dim=1)), torch.cat(masks, dim=1)

    def text_alone(self, batch: VLBatch) -> Tensor:
        """(B, T, H): no image, and no [SEP] that closes one."""
        return self.dropout(self._embed_text(batch.with_texts_of_rows()))

    def _embed_text(self, batch: VLBatch) -> Tensor:
        """(B, T, H), "Linguistic embedding": word + segment + position."""
        length = batch.text_ids.shape[1]
        longest = self.positions.num_embeddings - (self.final_separator == "next")
        check_texts("ImageBERT", batch.text_ids, self.words, longest)
        words = self.words(batch.text_ids) + self.segments(batch.text_segments)
        return self.text_norm(words + self.positions.weight[:length])

    def _embed_regions(self, batch: VLBatch) -> Tensor:
        """(I, R, H), "Image embedding": e = LN(v + s + p_img + p_seq)."""
        # 4.3, task 2, "zero out the masked token": what is in the region, not where it is.
        hidden = ~batch.region_mask
        if self.masked_appearance == "zero":
            hidden = hidden | batch.masked_regions
        check_features("ImageBERT", batch.region_features, self.features.in_features, self.features.weight)
        features = batch.region_features.masked_fill(hidden[..., None], 0.0)
        locations = region_locations(batch.region_boxes, batch.image_hw, batch.region_mask)
        real = Packing(batch.region_mask)
        projected = self.features(real.pack(features))
        return real.pad(self._sum_visual(projected, real.pack(locations).to(features.dtype)))

    def _embed_whole_image(self, batch: VLBatch) -> Tensor:
        """(I, 1, H): the box is the whole image; never masked."""
        assert self.global_feature is not None
        features, width = batch.global_features, self.global_feature.in_features
        if features is None or features.shape[-1] != width:
            got = "none" if features is None else f"width {features.shape[-1]}"
            raise ValueError(f"ImageBERT: this model reads global_features of width {width}, the batch has {got}")
        return self._sum_visual(self.global_feature(features)[:, None], features.new_tensor(WHOLE_IMAGE_LOCATION))

    def _sum_visual(self, v: Tensor, c: Tensor) -> Tensor:
        """LN(v + s + p_img + p_seq); "a fixed dummy position for all the visual tokens"."""
        s, p_seq = self.segments.weight[IMAGE_SEGMENT], self.positions.weight[self.dummy_position]
        return self.region_norm(v + s + self.locations(c) + p_seq)

    def _embed_separator(self, batch: VLBatch) -> Tensor:
        """(B, 1, H): the row's last word, which is the tokenizer's [SEP], again, in the segment that it closes."""
        next_position = batch.text_mask.sum(dim=1, keepdim=True)
        piece = batch.text_ids.gather(1, (next_position - 1).clamp(min=0))
        position = next_position
        if self.final_separator == "dummy":
            position = torch.full_like(position, self.dummy_position)
        word = self.words(piece) + self.segments.weight[IMAGE_SEGMENT]
        return self.text_norm(word + self.positions(position))


class ImageBertPreTrainedModel(VLPreTrainedModel):
    """Initialisation and file handling shared by the bare model and the model with heads."""

    config_class = ImageBertConfig
    config: ImageBertConfig
    base_model_prefix = "imagebert"


class ImageBertModel(ImageBertPreTrainedModel):
    """The encoder (section 4, figure 4): a `VLBatch` in, a `VLOutput` out. Labels and targets are not read."""

    def __init__(self, config: ImageBertConfig) -> None:
        super().__init__(config)
        self.embeddings = ImageBertEmbeddings(config)
        self.encoder = bert_encoder(config)
        self.pooler = Pooler(config.hidden_size)
        self.post_init()

    def forward(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        """The sequence of `VLOutput.attention.joint` is text, regions, whole image, last [SEP]."""
        maps = AttentionMaps(joint_regions=batch.text_ids.shape[1]) if with_attention else None
        states, mask = self.embeddings(batch)
        passed: list[Tensor] | None = [] if with_states else None
        length, end = batch.text_ids.shape[1], batch.text_ids.shape[1] + batch.region_mask.shape[1]
        read = batch.read_positions(after=mask.shape[1] - end)
        states = self.encoder(states, mask, None if maps is None else maps.joint, read, passed)
        return VLOutput(
            text_states=states[:, :length],
            region_states=states[:, length:end],
            whole_image_state=states[:, end] if self.config.global_feature_size else None,
            pooled=self.pooler(states[:, 0]),
            attention=maps,
            layer_states=LayerStates.of_joint(passed, slice(length), slice(length, end)),
        )

    def encode_text(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """A text without any image: neither a feature of the whole one nor the [SEP] after its regions."""
        check_text_alone("ImageBERT", batch)
        batch = batch.with_texts_of_rows()
        maps = AttentionMaps(joint_regions=batch.text_ids.shape[1]) if with_attention else None
        states = self.embeddings.text_alone(batch)
        states = self.encoder(states, batch.text_mask, None if maps is None else maps.joint, batch.read_pieces)
        return VLOutput(
            text_states=states, region_states=states[:, :0], pooled=self.pooler(states[:, 0]), attention=maps
        )


class ImageBertForPreTraining(ImageBertPreTrainedModel, PreTrainingModel):
    """ImageBERT with the heads of its four tasks (section 4.3); losses weigh the same."""

    def __init__(self, config: ImageBertConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.imagebert = ImageBertModel(config)
        self.masked_word_head = bert_word_head(config) if config.with_word_head else None
        # Tasks 2 to 4: "a fully-connected layer" each.
        self.region_class_head = nn.Linear(hidden, config.num_region_labels) if config.with_region_class_head else None
        self.region_feature_head = (
            nn.Linear(hidden, config.region_feature_size) if config.with_region_feature_head else None
        )
        self.match_head = DroppedLinear(hidden, 1, dropout=0.0) if config.with_match_head else None
        self.post_init()

    def loss_counts(self, batch: VLBatch) -> dict[str, int]:
        counted = in_pairs(batch, self.config.masked_loss_pairs)
        counts: dict[str, int] = {}
        if self.masked_word_head is not None and counted.text_labels is not None:
            counts["masked_words"] = count_labels(counted.text_labels)
        predicted = counted.region_target_mask
        if predicted is not None:
            if self.region_class_head is not None and batch.region_targets is not None:
                classes = detected_classes(batch.targets_of(predicted), self.config.num_region_labels)
                counts["masked_regions"] = count_labels(classes)
            if self.region_feature_head is not None:
                counts["masked_region_features"] = count_true(predicted)
        if self.match_head is not None and batch.match_labels is not None:
            counts["matching"] = count_labels(batch.match_labels)
        return counts

    def word_logits(self, states: Tensor) -> Tensor:
        if self.masked_word_head is None:
            raise ValueError("ImageBertForPreTraining: this model has no masked-word head (with_word_head=False)")
        return self.masked_word_head(states, self.imagebert.embeddings.words.weight)

    def region_logits(self, states: Tensor) -> Tensor | None:
        return None if self.region_class_head is None else self.region_class_head(states)

    def match_log_odds(self, output: VLOutput) -> Tensor | None:
        """The logit of s(v, w)."""
        return None if self.match_head is None else self.match_head(output.pooled).squeeze(-1)

    def score(self, batch: VLBatch, output: VLOutput) -> PreTrainingOutput:
        """Losses and accuracies of the states in `output`, by section 4.3.

        The original features of masked regions are `batch.region_feature_targets`, or `batch.region_features`.
        """
        for name, head in (("text_labels", self.masked_word_head), ("match_labels", self.match_head)):
            if head is not None:
                self.needed(batch, name)
        if self.region_class_head is not None or self.region_feature_head is not None:
            self.needed(batch, "region_target_mask")
        batch = in_pairs(batch, self.config.masked_loss_pairs)  # "conditional mask"
        labels, predicted = batch.text_labels, batch.region_target_mask
        terms = PreTrainingTerms()
        if self.masked_word_head is not None and labels is not None:
            terms.masked_words(self.word_logits, output.text_states, labels)
        if predicted is not None:
            states = output.region_states[predicted]
            if self.region_class_head is not None and batch.region_targets is not None:
                classes = detected_classes(batch.targets_of(predicted), self.config.num_region_labels)
                terms.classified_regions(of_rows(self.region_class_head, states), classes)
            if self.region_feature_head is not None:
                stored = batch.region_feature_targets
                features = batch.region_features if stored is None else stored
                terms.regressed_features(
                    of_rows(self.region_feature_head, states),
                    features[predicted].detach(),  # features as the detector measured them
                    over_width=self.config.feature_reduction,
                )
        log_odds = self.match_log_odds(output)
        if log_odds is not None and batch.match_labels is not None:
            terms.matching_odds(log_odds, batch.match_labels)
        return terms.output()


def detected_classes(targets_NC: Tensor, num_labels: int) -> Tensor:
    """(N,) long, "the labeled classification categories from Faster R-CNN" (section 4.3, task 2), of class
    distributions as in the store, background last.

    For a model that leaves background out, of one class less, the class is the best other one, and `IGNORE_INDEX` where
    a region is surely background.
    """
    num_targets = targets_NC.shape[1]
    if num_labels not in (num_targets, num_targets - 1):
        raise ValueError(
            f"ImageBERT: region_targets have {num_targets} classes, this model {num_labels} (num_region_labels); they "
            f"must be as many, or one more for background"
        )
    best, classes = targets_NC[:, :num_labels].max(dim=1)
    return classes.masked_fill(best <= 0, IGNORE_INDEX)


TABLE = bert_table("imagebert.", norm="text_norm")


def state_from_bert(bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All parameters of BERT, for `load_start`: text embeddings, encoder, pooler, masked-word head.

    Its two segment rows become those of text and image. The projections of regions, their LayerNorm and the other three
    heads stay as drawn. For a model without a masked-word head leave `masked_word_head.*` out.
    """
    return start_from_bert(TABLE, bert, SENTENCE_PAIRS)
