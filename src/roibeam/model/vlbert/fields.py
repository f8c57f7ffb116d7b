"""Fields of VL-BERT's configuration (arXiv:1908.08530), its published settings and sizes, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import SMALL_SIZES, TINY_SIZES, BertFields, named_fields

REGION_SEGMENT = 2  # segment of image elements and [END]: "C" in section 3.2
BOX_NUMBERS = ("centre_size", "corners")
TEXT_VISUALS = ("whole_image", "grounded", "none")
MASKED_APPEARANCES = ("learned", "pixels", "embedding", "none")
# name of `end_to_end.masking` -> masked_appearance
MASKING = MappingProxyType({"paper": "embedding", "release": "pixels", "feature": "learned"})
VISUAL_NORMS = ("layer_norm", "scale", "none")
VISUAL_STARTS = ("release", "normal")
REGION_LABELS = ("soft", "hard")
RELATIONSHIP_LOSSES = ("softmax", "sigmoid")
LOSS_MEANS = ("items", "rows")


@dataclass(kw_only=True, repr=False, eq=False)
class VLBertFields(BertFields):
    """Sizes and choices of a VL-BERT; defaults are the release's, on stored features and without a text corpus.

    Fields, beside those of `BertFields`:
        num_segments: text segments and `REGION_SEGMENT`; one more for each further image of a row (an extension).
        num_region_labels: C, classes of the detector and background, which is last.
        coordinate_embedding_size: width of the embedded box; a multiple of 8 (four numbers, sine and cosine).
        box_numbers: embedded numbers of a box: "centre_size", or "corners" as in section 3.2 of the paper.
        visual_size: width of a visual feature; 0 is `hidden_size`. Where it differs, text and regions each get a linear
            layer that widens it.
        region_dropout: on box and feature before their projection.
        text_visual: visual feature of a text piece: "whole_image"; "grounded", that of the region which names it
            (`VLBatch.aligned_words`) and the whole image for other pieces; "none", zeros.
        whole_image_element: whether the whole image is also the first image element of the sequence.
        whole_image_epsilon: added to the number of visible regions where the whole image's feature is their mean.
        end_visual: whether [END] has a visual feature, that of the whole image, as other non-visual elements have.
        masked_appearance: input of the model for a masked region. "learned": one learned vector instead of the
            feature, for stored features, which were measured on whole photos. "pixels": the feature that the batch
            brings, measured on blanked pixels, as the release does end to end; the batch's features must be blanked.
            "embedding": one learned vector instead of the whole visual feature, box included (section 3.3). "none": no
            region is ever masked, as in most tasks; `VLBatch.masked_regions` is not read.
        num_region_tokens: of image elements: 1, [IMG]; or one for each class of `VLBatch.region_classes`, of which
            0 is the whole image (the release's `object_word_embed_mode: 1` on VCR: 81).
        masked_region_token: whether a masked region has a token of its own instead of [IMG].
        visual_norm: what stands between a visual feature and the sum: "layer_norm"; "scale", one learned number each
            for text and regions; "none".
        visual_norm_text_init, visual_norm_region_init: start of the LayerNorms' weights, or of the numbers. At 0, as
            released, an untrained model treats text as BERT does, and no gradient reaches the region projection in the
            first step.
        visual_start: how the other visual parameters start. "release": the projection as PyTorch makes it, the vector
            of masked features at 0. "normal": all of them, LayerNorm weights and scales too, from a normal distribution
            of `initializer_range` (section 4.1).
        with_text_only: the batch may hold rows of text without an image (`VLBatch.text_only`), whose pieces carry a
            learned visual feature: the release's second corpus.
        with_pooler: whether `VLOutput.pooled` is filled.
        with_word_head, with_region_head, with_relationship_head: the pre-training tasks. The relationship is off in
            every released experiment.
        region_labels: a masked region's target: "soft", the detector's distribution; "hard", its best class, background
            left out (section 3.3).
        relationship_loss: "softmax" over two logits; "sigmoid" of one (section 3.3).
        word_loss_mean, region_loss_mean: over all predicted words or regions of the batch ("items"), or in each row
            first and then over the rows that have any ("rows").
    """

    choices = MappingProxyType(
        {
            "box_numbers": BOX_NUMBERS,
            "text_visual": TEXT_VISUALS,
            "masked_appearance": MASKED_APPEARANCES,
            "visual_norm": VISUAL_NORMS,
            "visual_start": VISUAL_STARTS,
            "region_labels": REGION_LABELS,
            "relationship_loss": RELATIONSHIP_LOSSES,
            "word_loss_mean": LOSS_MEANS,
            "region_loss_mean": LOSS_MEANS,
        }
    )

    num_segments: int = 3
    num_region_labels: int = 1601
    coordinate_embedding_size: int = 2048
    box_numbers: str = "centre_size"
    visual_size: int = 0
    region_dropout: float = 0.1
    text_visual: str = "whole_image"
    whole_image_element: bool = True
    whole_image_epsilon: float = 1e-5
    end_visual: bool = False
    masked_appearance: str = "learned"
    num_region_tokens: int = 1
    masked_region_token: bool = True
    visual_norm: str = "layer_norm"
    visual_norm_text_init: float = 0.0
    visual_norm_region_init: float = 0.0
    visual_start: str = "release"
    with_text_only: bool = False
    with_pooler: bool = False
    with_word_head: bool = True
    with_region_head: bool = True
    with_relationship_head: bool = False
    region_labels: str = "soft"
    relationship_loss: str = "softmax"
    word_loss_mean: str = "items"
    region_loss_mean: str = "items"

    def check(self) -> None:
        super().check()
        name = self._config_name()
        if self.coordinate_embedding_size % 8:
            raise ValueError(
                f"{name}: coordinate_embedding_size must be a multiple of 8, got {self.coordinate_embedding_size}"
            )
        if self.num_segments <= REGION_SEGMENT:
            raise ValueError(f"{name}: num_segments must be at least {REGION_SEGMENT + 1}, got {self.num_segments}")
        if self.num_region_tokens < 1:
            raise ValueError(f"{name}: num_region_tokens must be at least 1, got {self.num_region_tokens}")
        if self.visual_size < 0 or self.whole_image_epsilon < 0:
            raise ValueError(
                f"{name}: visual_size {self.visual_size} and whole_image_epsilon {self.whole_image_epsilon} must not "
                f"be negative"
            )
        if self.masked_region_token and self.masked_appearance == "none":
            raise ValueError(
                f"{name}: masked_appearance 'none' leaves no use for a token; set masked_region_token=False"
            )
        if self.with_relationship_head and not self.with_pooler:
            raise ValueError(f"{name}: the relationship head reads the pooled state; set with_pooler=True as well")


# What the published settings set beyond the sizes; docs/models.md has the source of each value.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # cfgs/pretrain/*_prec_4x16G_*.yaml, with the text corpus
        "release": {"with_text_only": True},
        # cfgs/pretrain/base_prec_withouttextonly_4x16G_fp32.yaml
        "release-captions": {},
        # cfgs/pretrain/*_e2e_16x16G_fp16.yaml
        "release-e2e": {"with_text_only": True, "masked_appearance": "pixels"},
        "paper": {
            "box_numbers": "corners",
            "whole_image_element": False,
            "whole_image_epsilon": 0.0,
            "end_visual": True,
            "masked_appearance": "embedding",
            "masked_region_token": False,
            "visual_start": "normal",
            "with_pooler": True,
            "with_relationship_head": True,
            "relationship_loss": "sigmoid",
            "region_labels": "hard",
        },
    }
)
SIZES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "base": {},
        "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        "small": {**SMALL_SIZES, "coordinate_embedding_size": 256},
        "tiny": {**TINY_SIZES, "coordinate_embedding_size": 64, "region_dropout": 0.0},
    }
)


def vlbert_fields(preset: str = "release", *, size: str = "base") -> dict[str, Any]:
    """Fields of `VLBertConfig`; arguments and errors as of `vlbert_config`."""
    return {**named_fields("VL-BERT preset", preset, PRESETS), **named_fields("VL-BERT size", size, SIZES)}
