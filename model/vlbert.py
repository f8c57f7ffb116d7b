"""VL-BERT (arXiv:1908.08530) as its release builds it (jackroos/VL-BERT common/: visual_linguistic_bert, fast_rcnn).

One sequence through one encoder: text pieces | whole image, regions | [END]. Every element is the sum of a token, a
visual feature, a segment and a position. Each text piece carries the visual feature of the whole image.

The release packs rows without gaps; here text is padded before the regions. Positions come from the real length of each
row and padding is never attended to, so the states of real elements are the same.

Shapes: B rows, T text pieces, R regions, E = R + 1 image elements (whole image first), D feature width, H hidden width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from model.bert import BertSizes, bert_encoder
from model.heads import MaskedWordHead, Pooler, RegionClassHead
from model.inputs import IGNORE_INDEX, AttentionMaps, VLBatch, VLOutput
from model.losses import PreTrainingOutput, accuracy, cross_entropy, soft_cross_entropy
from model.pretraining import log_odds
from model.transformer import BERT_NORM_EPS

MATCH_LOGIT = 1  # of the relationship head: 1 = the caption belongs to the image
REGION_SEGMENT = 2  # segment of image elements and [END]
COORDINATE_SCALE = 100.0  # common/utils/bbox.py, coordinate_embeddings
COORDINATE_PERIOD = 1000.0
MASKED_APPEARANCES = ("learned", "pixels")


class VLBertConfig(BertSizes):
    """Sizes and choices of a VL-BERT; defaults are those of the released base model without a relationship head.

    Fields, beside those of `BertSizes`:
        region_feature_size: D, width of a stored region feature.
        num_region_labels: C, classes of the detector and background, which is last.
        coordinate_embedding_size: width of the embedded box; a multiple of 8 (four numbers, sine and cosine).
        max_position_embeddings: the longest text has two pieces less: image elements share a position, [END] has one.
        num_segments: text segments and `REGION_SEGMENT`.
        visual_norm_text_init, visual_norm_region_init: start value of the weights of the LayerNorms over visual
            features. At 0, as released, an untrained model treats text as BERT does, and no gradient reaches the region
            projection in the first step.
        masked_appearance: what the model sees of a masked region beside its own token. "learned": one learned vector
            instead of the feature, for stored features, which were measured on whole photos. "pixels": the feature that
            the batch brings, measured on blanked pixels, as the release does end to end; whoever made the features
            blanked them.
        with_pooler: whether `VLOutput.pooled` is filled.
        with_relationship_head: adds the caption-image matching loss to pre-training; off in every released experiment.
    """

    model_type = "roibeam-vlbert"

    region_feature_size: int = 2048
    num_region_labels: int = 1601
    coordinate_embedding_size: int = 2048
    num_segments: int = 3
    region_dropout: float = 0.1
    visual_norm_text_init: float = 0.0
    visual_norm_region_init: float = 0.0
    masked_appearance: str = "learned"
    with_pooler: bool = False
    with_relationship_head: bool = False

    def check(self) -> None:
        super().check()
        if self.coordinate_embedding_size % 8:
            raise ValueError(
                f"VLBertConfig: coordinate_embedding_size must be a multiple of 8, got {self.coordinate_embedding_size}"
            )
        self.check_choice("masked_appearance", MASKED_APPEARANCES)
        if self.num_segments <= REGION_SEGMENT:
            raise ValueError(
                f"VLBertConfig: num_segments must be at least {REGION_SEGMENT + 1}, got {self.num_segments}"
            )
        if self.with_relationship_head and not self.with_pooler:
            raise ValueError("VLBertConfig: the relationship head reads the pooled state; set with_pooler=True as well")


def vlbert_base(**overrides: Any) -> VLBertConfig:
    """The released base model: 12 layers of BERT-base (cfgs/pretrain/base_prec_4x16G_fp32.yaml)."""
    return VLBertConfig(**overrides)


def vlbert_small(**overrides: Any) -> VLBertConfig:
    """4 layers of width 256: trains on a laptop. Everything but the sizes is as in `vlbert_base`."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "coordinate_embedding_size": 256,
    }
    return VLBertConfig(**(sizes | overrides))


def embed_coordinates(boxes_xyxy_px: Tensor, image_hw: Tensor, size: int) -> Tensor:
    """Boxes as sines and cosines (release: common/utils/bbox.py, coordinate_embeddings; the paper says corners).

    Args:
        boxes_xyxy_px: (B, E, 4), pixels of the image.
        image_hw: (B, 2), pixels.
        size: width of the result, a multiple of 8.
    Returns:
        (B, E, size) float32: for x centre, y centre, width, height (as fractions of the image, times 100): size / 8
        sines, then size / 8 cosines.
    """
    corner, opposite = boxes_xyxy_px.float().split(2, dim=-1)
    image_wh = image_hw.float().flip(-1)[:, None, :]
    fractions = torch.cat([(corner + opposite) / 2 / image_wh, (opposite - corner) / image_wh], dim=-1)
    count = size // 8
    exponents = torch.arange(count, dtype=torch.float32, device=boxes_xyxy_px.device) / count
    angles = (fractions * COORDINATE_SCALE)[..., None] / COORDINATE_PERIOD**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def average_visible_regions(features: Tensor, region_mask: Tensor, masked_regions: Tensor) -> Tensor:
    """The feature VL-BERT gives the whole image: the mean of its regions, masked ones left out.

    Args:
        features: (..., R, D); region_mask, masked_regions: (..., R) bool.
    Returns:
        (..., D): sum / (count + 1e-5), the epsilon of pretrain/data/datasets/conceptual_captions.py; 0 without regions.
    """
    visible = (region_mask & ~masked_regions).unsqueeze(-1)
    total = features.masked_fill(~visible, 0.0).sum(dim=-2)
    return total / (visible.sum(dim=-2) + 1e-5)


class ImageElements(NamedTuple):
    """What a batch shows of its images: the whole image first, then its regions."""

    features: Tensor  # (B, E, D)
    boxes: Tensor  # (B, E, 4)
    mask: Tensor  # (B, E) bool
    masked: Tensor  # (B, E) bool


def image_elements(batch: VLBatch) -> ImageElements:
    """Puts the whole image, box [0, 0, width - 1, height - 1], before the regions. It is never masked."""
    whole = batch.whole_image_features
    if whole is None:
        whole = average_visible_regions(batch.region_features, batch.region_mask, batch.masked_regions)
    whole_box = torch.cat([torch.zeros_like(batch.image_hw), batch.image_hw.flip(-1) - 1], dim=-1)
    present = batch.region_mask.new_ones(batch.batch_size, 1)
    return ImageElements(
        features=torch.cat([whole[:, None].to(batch.region_features.dtype), batch.region_features], dim=1),
        boxes=torch.cat([whole_box[:, None].to(batch.region_boxes.dtype), batch.region_boxes], dim=1),
        mask=torch.cat([present, batch.region_mask], dim=1),
        masked=torch.cat([~present, batch.masked_regions], dim=1),
    )


# Hugging Face initialises a module of ours only where it has parameters of its own, so a start value that differs from
# BERT's is told by the class of the smallest module.


class VisualNorm(nn.LayerNorm):
    """LayerNorm over visual features whose weights start at `start`."""

    def __init__(self, hidden_size: int, start: float) -> None:
        super().__init__(hidden_size, eps=BERT_NORM_EPS)
        self.start = start


class UntouchedLinear(nn.Linear):
    """Linear layer that starts as PyTorch makes it; the release initialises all others."""


class ZeroEmbedding(nn.Embedding):
    """Embedding that starts at 0."""


class RegionProjection(nn.Module):
    """Box and appearance to a visual feature: Dropout-Linear-ReLU (`obj_downsample` of the release)."""

    def __init__(self, config: VLBertConfig) -> None:
        super().__init__()
        self.coordinate_embedding_size = config.coordinate_embedding_size
        self.dropout = nn.Dropout(config.region_dropout)
        inputs = config.coordinate_embedding_size + config.region_feature_size
        self.linear = UntouchedLinear(inputs, config.hidden_size)

    def forward(self, features_BED: Tensor, boxes_BE4: Tensor, image_hw: Tensor) -> Tensor:
        coordinates = embed_coordinates(boxes_BE4, image_hw, self.coordinate_embedding_size)
        return torch.relu(
            self.linear(self.dropout(torch.cat([coordinates.to(features_BED.dtype), features_BED], dim=-1)))
        )


class VLBertEmbeddings(nn.Module):
    """Token + visual feature + segment + position for text, image elements and [END]; then LayerNorm and dropout."""

    def __init__(self, config: VLBertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, hidden)
        self.end = nn.Embedding(1, hidden)
        self.positions = nn.Embedding(config.max_position_embeddings, hidden)
        self.segments = nn.Embedding(config.num_segments, hidden)
        self.visual_norm_text = VisualNorm(hidden, config.visual_norm_text_init)
        self.visual_norm_region = VisualNorm(hidden, config.visual_norm_region_init)
        self.norm = nn.LayerNorm(hidden, eps=BERT_NORM_EPS)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        text_ids: Tensor,
        text_segments: Tensor,
        text_mask: Tensor,
        text_visuals: Tensor,
        element_tokens: Tensor,
        element_visuals: Tensor,
    ) -> Tensor:
        """(B, T + E + 1, H).

        Args:
            text_ids, text_segments, text_mask: (B, T), as in `VLBatch`.
            text_visuals: (B, T, H) visual feature of each piece.
            element_tokens, element_visuals: (B, E, H) token and visual feature of each image element.
        """
        length = text_ids.shape[1]
        if length + 2 > self.positions.num_embeddings:
            raise ValueError(
                f"text of {length} pieces: this model has {self.positions.num_embeddings} positions and two of them "
                f"belong to regions and [END]; cut captions to {self.positions.num_embeddings - 2} pieces"
            )
        text = self.words(text_ids) + self.visual_norm_text(text_visuals)
        text = text + self.segments(text_segments) + self.positions.weight[:length]
        # Image elements have no order: all stand on the first position after the row's real text.
        first_free = text_mask.sum(dim=1)
        segment = self.segments.weight[REGION_SEGMENT]
        elements = element_tokens + self.visual_norm_region(element_visuals)
        elements = elements + segment + self.positions(first_free)[:, None]
        end = (self.end.weight[0] + segment + self.positions(first_free + 1))[:, None]
        return self.dropout(self.norm(torch.cat([text, elements, end], dim=1)))


class VLBertPreTrainedModel(PreTrainedModel):
    """Initialisation and file handling shared by the bare model and the models with heads."""

    config_class = VLBertConfig
    config: VLBertConfig
    base_model_prefix = "vlbert"
    main_input_name = "batch"
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, UntouchedLinear):
            # torch.nn.Linear.reset_parameters, by functions that leave loaded weights alone.
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            bound = 1 / math.sqrt(module.in_features)
            init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, mean=0.0, std=std)
            init.zeros_(module.bias)
        elif isinstance(module, ZeroEmbedding):
            init.zeros_(module.weight)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=std)
        elif isinstance(module, nn.LayerNorm):
            init.constant_(module.weight, module.start if isinstance(module, VisualNorm) else 1.0)
            init.zeros_(module.bias)
        elif isinstance(module, MaskedWordHead):
            init.zeros_(module.bias)


class VLBertModel(VLBertPreTrainedModel):
    """The encoder: a `VLBatch` in, a `VLOutput` out. Targets in the batch are not read."""

    def __init__(self, config: VLBertConfig) -> None:
        super().__init__(config)
        self.region_projection = RegionProjection(config)
        self.region_token = nn.Embedding(1, config.hidden_size)
        self.masked_region_token = nn.Embedding(1, config.hidden_size)
        learned = config.masked_appearance == "learned"
        self.masked_region_feature = ZeroEmbedding(1, config.region_feature_size) if learned else None
        self.embeddings = VLBertEmbeddings(config)
        self.encoder = bert_encoder(config)
        self.pooler = Pooler(config.hidden_size) if config.with_pooler else None
        self.post_init()

    def forward(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """
        Args:
            with_attention: fills `VLOutput.attention.joint`; the sequence is text, whole image, regions, [END].
        Raises:
            ValueError: when regions are masked in their pixels and the batch has no feature of the whole image.
        """
        if self.masked_region_feature is None and batch.whole_image_features is None:
            # A mean of regions would do silently what no published model does.
            raise ValueError(
                "VLBertModel: masked_appearance 'pixels' needs VLBatch.whole_image_features, the region encoder's "
                "feature of the box [0, 0, width - 1, height - 1]"
            )
        return self.encode(batch, image_elements(batch), with_attention=with_attention)

    def encode(self, batch: VLBatch, elements: ImageElements, *, with_attention: bool = False) -> VLOutput:
        """As `forward`, with image elements that the caller made: `batch` gives only text and image size."""
        masked = elements.masked[..., None]
        features = elements.features
        if self.masked_region_feature is not None:
            # Only the appearance is hidden: a masked region's box stays visible (section 3.2 of the paper hides both).
            features = torch.where(masked, self.masked_region_feature.weight.to(features.dtype), features)
        visuals = self.region_projection(features, elements.boxes, batch.image_hw)
        tokens = torch.where(masked, self.masked_region_token.weight, self.region_token.weight)
        states = self.embeddings(
            batch.text_ids,
            batch.text_segments,
            batch.text_mask,
            visuals[:, :1].expand(-1, batch.text_ids.shape[1], -1),
            tokens,
            visuals,
        )
        end_mask = elements.mask.new_ones(batch.batch_size, 1)
        attention = AttentionMaps() if with_attention else None
        mask = torch.cat([batch.text_mask, elements.mask, end_mask], dim=1)
        states = self.encoder(states, mask, None if attention is None else attention.joint)
        text, whole, regions, _ = states.split([batch.text_ids.shape[1], 1, elements.mask.shape[1] - 1, 1], dim=1)
        return VLOutput(
            text_states=text,
            region_states=regions,
            whole_image_state=whole[:, 0],
            pooled=None if self.pooler is None else self.pooler(states[:, 0]),
            attention=attention,
        )


class VLBertForPreTraining(VLBertPreTrainedModel):
    """VL-BERT with its pre-training heads; the total loss is the plain sum of the mean losses."""

    def __init__(self, config: VLBertConfig) -> None:
        super().__init__(config)
        self.vlbert = VLBertModel(config)
        self.masked_word_head = MaskedWordHead(
            config.hidden_size, config.vocab_size, activation=config.hidden_activation
        )
        self.masked_region_head = RegionClassHead(config.hidden_size, config.num_region_labels)
        self.relationship_head = nn.Linear(config.hidden_size, 2) if config.with_relationship_head else None
        self.post_init()

    def forward(self, batch: VLBatch) -> PreTrainingOutput:
        return self.score(batch, self.encode(batch))

    def encode(self, batch: VLBatch, *, with_attention: bool = False) -> VLOutput:
        """As `VLBertModel.forward`."""
        return self.vlbert(batch, with_attention=with_attention)

    def word_logits(self, states: Tensor) -> Tensor:
        """(..., V) for text states (..., H)."""
        return self.masked_word_head(states, self.vlbert.embeddings.words.weight)

    def region_logits(self, states: Tensor) -> Tensor:
        """(..., C) for region states (..., H)."""
        return self.masked_region_head(states)

    def match_log_odds(self, output: VLOutput) -> Tensor | None:
        """(B,) see `PreTrainingModel`; None without the relationship head."""
        return None if self.relationship_head is None else log_odds(self.relationship_head(output.pooled), MATCH_LOGIT)

    def score(self, batch: VLBatch, output: VLOutput) -> PreTrainingOutput:
        """Losses and accuracies of the states in `output`.

        Raises:
            ValueError: when the batch lacks the targets of a head.
        """
        if batch.text_labels is None or batch.region_targets is None or batch.region_target_mask is None:
            raise ValueError("VLBertForPreTraining: the batch has no text_labels or no region_targets")
        losses, metrics = {}, {}

        # Logits only where a word is predicted: over all positions they would be most of this head's work and memory.
        labelled = batch.text_labels != IGNORE_INDEX
        labels = batch.text_labels[labelled]
        logits = self.word_logits(output.text_states[labelled])
        losses["masked_words"] = cross_entropy(logits, labels)
        metrics["masked_word_accuracy"] = accuracy(logits, labels, torch.ones_like(labels, dtype=torch.bool))

        predicted = batch.region_target_mask
        targets = batch.region_targets[predicted]
        every_row = predicted.new_ones(targets.shape[0])
        logits = self.masked_region_head(output.region_states[predicted])
        losses["masked_regions"] = soft_cross_entropy(logits, targets, every_row)
        metrics["masked_region_accuracy"] = accuracy(logits, targets.argmax(dim=-1), every_row)

        if self.relationship_head is not None:
            if batch.match_labels is None:
                raise ValueError(
                    "VLBertForPreTraining: the batch has no match_labels, the relationship head needs them"
                )
            logits = self.relationship_head(output.pooled)
            losses["matching"] = cross_entropy(logits, batch.match_labels)
            metrics["matching_accuracy"] = accuracy(logits, batch.match_labels, batch.match_labels != IGNORE_INDEX)
        return PreTrainingOutput(losses, metrics)
