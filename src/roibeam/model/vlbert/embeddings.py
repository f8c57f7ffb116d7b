"""Inputs of VL-BERT's encoder (arXiv:1908.08530, section 3.2): boxes, image elements, and the sum of embeddings.

They follow jackroos/VL-BERT common/ (fast_rcnn, visual_linguistic_bert); differences of the paper are fields of
`VLBertConfig`.

Shapes: B rows, I images (as many as rows, unless rows share some), T text pieces, R regions, E = R + 1 image elements
(whole image first), D feature width, V width of a visual feature, H hidden width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from roibeam.model.common.transformer import BERT_NORM_EPS
from roibeam.model.inputs import VLBatch, check_word_ids
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.fields import REGION_SEGMENT

COORDINATE_SCALE = 100.0  # common/utils/bbox.py, coordinate_embeddings
COORDINATE_PERIOD = 1000.0


def embed_coordinates(boxes_xyxy_px: Tensor, image_hw: Tensor, size: int, numbers: str = "centre_size") -> Tensor:
    """Boxes as sines and cosines (section 3.2, "visual geometry feature").

    Args:
        boxes_xyxy_px: (B, E, 4), pixels of the image.
        image_hw: (B, 2), pixels.
        size: width of the result, a multiple of 8.
        numbers: which four: "centre_size" (common/utils/bbox.py, coordinate_embeddings) or "corners".
    Returns:
        (B, E, size), in the dtype of the boxes and at least float32: for x centre, y centre, width, height, or left,
        top, right, bottom (as fractions of the image, times 100): size / 8 sines, then size / 8 cosines.
    """
    dtype = torch.promote_types(boxes_xyxy_px.dtype, torch.float32)
    corner, opposite = boxes_xyxy_px.to(dtype).split(2, dim=-1)
    image_wh = image_hw.to(dtype).flip(-1)[:, None, :]
    if numbers == "centre_size":
        fractions = torch.cat([(corner + opposite) / 2 / image_wh, (opposite - corner) / image_wh], dim=-1)
    else:
        fractions = torch.cat([corner / image_wh, opposite / image_wh], dim=-1)
    count = size // 8
    exponents = torch.arange(count, dtype=dtype, device=boxes_xyxy_px.device) / count
    angles = (fractions * COORDINATE_SCALE)[..., None] / COORDINATE_PERIOD**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def average_visible_regions(
    features: Tensor, region_mask: Tensor, masked_regions: Tensor, epsilon: float = 1e-5
) -> Tensor:
    """VL-BERT's feature of the whole image: the mean of its regions, masked ones left out.

    Args:
        features: (..., R, D); region_mask, masked_regions: (..., R) bool.
        epsilon: added to the count, as in pretrain/data/datasets/conceptual_captions.py.
    """
    visible = (region_mask & ~masked_regions).unsqueeze(-1)
    total = features.masked_fill(~visible, 0.0).sum(dim=-2)
    return mean_of_visible(total, visible.sum(dim=-2), epsilon)


def mean_of_visible(total: Tensor, count: Tensor, epsilon: float = 1e-5) -> Tensor:
    """`average_visible_regions` for the sum (..., D) of the visible regions and their number (..., 1)."""
    if not epsilon:
        return total / count.clamp(min=1)
    # A whole number and an epsilon are added in float32, for any dtype of the features.
    return total / (count.to(torch.promote_types(total.dtype, torch.float32)) + epsilon)


class VLBertImageElements(NamedTuple):
    """Elements of a batch's images: the whole image first, then its regions."""

    features: Tensor  # (I, E, D)
    boxes: Tensor  # (I, E, 4)
    mask: Tensor  # (I, E) bool
    masked: Tensor  # (I, E) bool


def image_elements(batch: VLBatch, epsilon: float = 1e-5) -> VLBertImageElements:
    """Puts the whole image, box [0, 0, width - 1, height - 1], before the regions. It is never masked.

    Rows of text alone have no element.
    """
    whole = batch.whole_image_features
    if whole is None:
        whole = average_visible_regions(batch.region_features, batch.region_mask, batch.masked_regions, epsilon)
    whole_box = torch.cat([torch.zeros_like(batch.image_hw), batch.image_hw.flip(-1) - 1], dim=-1)
    never = batch.region_mask.new_zeros(len(batch.region_mask), 1)
    present = ~never if batch.text_only is None else ~batch.text_only[:, None]
    mask = torch.cat([present, batch.region_mask & present], dim=1)
    features = torch.cat([whole[:, None].to(batch.region_features.dtype), batch.region_features], dim=1)
    boxes = torch.cat([whole_box[:, None].to(batch.region_boxes.dtype), batch.region_boxes], dim=1)
    # Padding may hold anything, NaN too, and attention's zero times NaN is NaN.
    return VLBertImageElements(
        features=features.masked_fill(~mask[..., None], 0.0),
        boxes=boxes.masked_fill(~mask[..., None], 0.0),
        mask=mask,
        masked=torch.cat([never, batch.masked_regions], dim=1),
    )


def elements_of_pieces(aligned_words_BRA: Tensor, num_pieces: int) -> Tensor:
    """(B, T) long: the image element that each text piece names, 0 (the whole image) for a piece that names none.

    The last region that names a piece counts; the release's tags (vcr/modules, `_collect_obj_reps`) hold one anyway.

    Args:
        aligned_words_BRA: as `VLBatch.aligned_words`.
    """
    rows, regions, _ = aligned_words_BRA.shape
    numbers = torch.arange(1, regions + 1, device=aligned_words_BRA.device)[None, :, None]
    # Missing entries are written to a place past the text.
    places = torch.where(aligned_words_BRA >= 0, aligned_words_BRA, num_pieces).flatten(1)
    found = places.new_zeros(rows, num_pieces + 1)
    found.scatter_reduce_(1, places, numbers.expand_as(aligned_words_BRA).flatten(1), reduce="amax")
    return found[:, :num_pieces]


# Hugging Face initialises a module only if it has parameters of its own, so a start value that differs from BERT's is
# marked by the class of the smallest module.


class VisualNorm(nn.LayerNorm):
    """LayerNorm over visual features whose weights start at `start`."""

    def __init__(self, hidden_size: int, start: float) -> None:
        super().__init__(hidden_size, eps=BERT_NORM_EPS)
        self.start = start


class VisualScale(nn.Module):
    """One learned number that visual features are multiplied by (`visual_ln: false` in the release)."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.start = start
        self.scale = nn.Parameter(torch.tensor(start))

    def forward(self, visuals: Tensor) -> Tensor:
        return visuals * self.scale


class UntouchedLinear(nn.Linear):
    """Linear layer with PyTorch's start; the release initialises all others."""


class ZeroEmbedding(nn.Embedding):
    """Embedding that starts at 0."""


class RegionProjection(nn.Module):
    """Box and appearance to a visual feature: Dropout-Linear-ReLU (`obj_downsample` of the release).

    The paper concatenates the two (section 3.2), without their projection to the width of the sum.
    """

    def __init__(self, config: VLBertConfig) -> None:
        super().__init__()
        self.coordinate_embedding_size = config.coordinate_embedding_size
        self.box_numbers = config.box_numbers
        self.dropout = nn.Dropout(config.region_dropout)
        inputs = config.coordinate_embedding_size + config.region_feature_size
        linear = UntouchedLinear if config.visual_start == "release" else nn.Linear
        self.linear = linear(inputs, config.visual_width)

    def forward(self, features_BED: Tensor, boxes_BE4: Tensor, image_hw: Tensor) -> Tensor:
        coordinates = embed_coordinates(boxes_BE4, image_hw, self.coordinate_embedding_size, self.box_numbers)
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
        widened = config.visual_width != hidden
        self.visual_widen_text = nn.Linear(config.visual_width, hidden) if widened else nn.Identity()
        self.visual_widen_region = nn.Linear(config.visual_width, hidden) if widened else nn.Identity()
        self.visual_norm_text = _visual_norm(config, config.visual_norm_text_init)
        self.visual_norm_region = _visual_norm(config, config.visual_norm_region_init)
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
        end_visuals: Tensor | None = None,
        element_images: Tensor | None = None,
    ) -> Tensor:
        """(B, T + E + 1, H).

        Args:
            text_ids, text_segments, text_mask: (B, T), as in `VLBatch`.
            text_visuals: (B, T, V) visual feature of each piece.
            element_tokens: (B, E, H); element_visuals: (B, E, V), of each image element.
            end_visuals: (B, V) of [END]; None for none.
            element_images: (B, E) long, the image of a row that each element is of, for rows with several: each
                further image has the next segment. VL-BERT itself has one image.
        """
        length = text_ids.shape[1]
        if length + 2 > self.positions.num_embeddings:
            raise ValueError(
                f"text of {length} pieces: this model has {self.positions.num_embeddings} positions and two of them "
                f"belong to regions and [END]; cut captions to {self.positions.num_embeddings - 2} pieces"
            )
        check_word_ids("VL-BERT", text_ids, self.words.num_embeddings)
        text = self.words(text_ids) + self.visual_norm_text(self.visual_widen_text(text_visuals))
        text = text + self.segments(text_segments) + self.positions.weight[:length]
        # Image elements have no order: all stand on the first position after the row's real text.
        first_free = text_mask.sum(dim=1)
        segment = self.segments.weight[REGION_SEGMENT]
        elements = element_tokens + self.visual_norm_region(self.visual_widen_region(element_visuals))
        of_elements = segment if element_images is None else self.segments(REGION_SEGMENT + element_images)
        elements = elements + of_elements + self.positions(first_free)[:, None]
        end = self.end.weight[0] + segment + self.positions(first_free + 1)
        if end_visuals is not None:
            end = end + self.visual_norm_text(self.visual_widen_text(end_visuals))
        return self.dropout(self.norm(torch.cat([text, elements, end[:, None]], dim=1)))


def _visual_norm(config: VLBertConfig, start: float) -> nn.Module:
    if config.visual_norm == "layer_norm":
        return VisualNorm(config.hidden_size, start)
    return VisualScale(start) if config.visual_norm == "scale" else nn.Identity()
