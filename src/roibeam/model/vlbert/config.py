"""Sizes and choices of VL-BERT (arXiv:1908.08530), with the published combinations by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from roibeam.model.common.bert import BertSizes
from roibeam.model.common.presets import named_fields
from roibeam.model.inputs import OutputWidths
from roibeam.model.vlbert.presets import PRESETS, SIZES, vlbert_fields

REGION_SEGMENT = 2  # segment of image elements and [END]: "C" in section 3.2
BOX_NUMBERS = ("centre_size", "corners")
TEXT_VISUALS = ("whole_image", "grounded", "none")
MASKED_APPEARANCES = ("learned", "pixels", "embedding", "none")
VISUAL_NORMS = ("layer_norm", "scale", "none")
VISUAL_STARTS = ("release", "normal")
REGION_LABELS = ("soft", "hard")
RELATIONSHIP_LOSSES = ("softmax", "sigmoid")
LOSS_MEANS = ("items", "rows")
ANSWER_HEADS = ("mlm", "1fc", "2fc")
ANSWER_LOSSES = ("sigmoid", "softmax")
OBJECT_LOSSES = ("all", "masked", "none")


class VLBertConfig(BertSizes):
    """Sizes and choices of a VL-BERT; defaults are the release's, on stored features and without a text corpus.

    Fields, beside those of `BertSizes`:
        num_segments: text segments and `REGION_SEGMENT`.
        region_feature_size: D, width of a stored region feature.
        num_region_labels: C, classes of the detector and background, which is last.
        coordinate_embedding_size: width of the embedded box; a multiple of 8 (four numbers, sine and cosine).
        box_numbers: what of a box is embedded: "centre_size", or "corners" as in section 3.2 of the paper.
        visual_size: width of a visual feature; 0 is `hidden_size`. Where it differs, text and regions each get a linear
            layer that widens it.
        region_dropout: on box and feature before their projection.
        text_visual: visual feature of a text piece: "whole_image"; "grounded", that of the region which names it
            (`VLBatch.aligned_words`) and the whole image for other pieces; "none", zeros.
        whole_image_element: whether the whole image is also the first image element of the sequence.
        whole_image_epsilon: added to the number of visible regions where the whole image's feature is their mean.
        end_visual: whether [END] has a visual feature, that of the whole image, as other non-visual elements have.
        masked_appearance: what the model sees of a masked region. "learned": one learned vector instead of the feature,
            for stored features, which were measured on whole photos. "pixels": the feature that the batch brings,
            measured on blanked pixels, as the release does end to end; whoever made the features blanked them.
            "embedding": one learned vector instead of the whole visual feature, box included (section 3.3). "none": no
            region is ever masked, as in most tasks; `VLBatch.masked_regions` is not read.
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

    model_type = "roibeam-vlbert"

    num_segments: int = 3
    region_feature_size: int = 2048
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

    @property
    def output_widths(self) -> OutputWidths:
        return OutputWidths(self.hidden_size, self.hidden_size, self.hidden_size if self.with_pooler else None)

    @property
    def visual_width(self) -> int:
        """Width of a visual feature."""
        return self.visual_size or self.hidden_size

    def check(self) -> None:
        super().check()
        name = type(self).__name__
        for field, allowed in (
            ("box_numbers", BOX_NUMBERS),
            ("text_visual", TEXT_VISUALS),
            ("masked_appearance", MASKED_APPEARANCES),
            ("visual_norm", VISUAL_NORMS),
            ("visual_start", VISUAL_STARTS),
            ("region_labels", REGION_LABELS),
            ("relationship_loss", RELATIONSHIP_LOSSES),
            ("word_loss_mean", LOSS_MEANS),
            ("region_loss_mean", LOSS_MEANS),
        ):
            self.check_choice(field, allowed)
        if self.coordinate_embedding_size % 8:
            raise ValueError(
                f"{name}: coordinate_embedding_size must be a multiple of 8, got {self.coordinate_embedding_size}"
            )
        if self.num_segments <= REGION_SEGMENT:
            raise ValueError(f"{name}: num_segments must be at least {REGION_SEGMENT + 1}, got {self.num_segments}")
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


_PLAIN = VLBertConfig()
_PRE_TRAINING = (
    "with_text_only",
    "with_word_head",
    "with_region_head",
    "with_relationship_head",
    "region_labels",
    "relationship_loss",
    "word_loss_mean",
    "region_loss_mean",
)


class VLBertTaskConfig(VLBertConfig):
    """A VL-BERT with the head of a task; defaults are the release's for VQA.

    Fields, beside those of `VLBertConfig`:
        num_answers: labels of VQA. Choices (VCR) and regions (RefCOCO+) get one score each, whatever it is.
        answer_head: of VQA and VCR: "mlm", BERT's masked-word transform, dropout, linear (VQA); "1fc", dropout, linear
            (VCR); "2fc", two linear layers with ReLU and dropouts.
        answer_hidden_size: of "2fc".
        answer_dropout: 0.1; the release has 0 for RefCOCO+.
        answer_loss: "sigmoid", binary cross-entropy of each answer or choice; "softmax" over all of them (paper,
            sections 4.2.1 and 4.2.2).
        positive_weight: of the right choice in VCR's binary cross-entropy.
        object_loss: VCR's second loss, the class of every region, the whole image among them ("all"), of masked ones
            (paper, section 4.2.1), or "none".
        num_object_labels: its classes; 0 is the whole image (COCO's 80 follow).
        object_dropout: before its linear layer.
    """

    model_type = "roibeam-vlbert-task"

    num_answers: int = 3129
    answer_head: str = "mlm"
    answer_hidden_size: int = 1024
    answer_dropout: float = 0.1
    answer_loss: str = "sigmoid"
    positive_weight: float = 1.0
    object_loss: str = "none"
    num_object_labels: int = 81
    object_dropout: float = 0.0

    def check(self) -> None:
        super().check()
        self.check_choice("answer_head", ANSWER_HEADS)
        self.check_choice("answer_loss", ANSWER_LOSSES)
        self.check_choice("object_loss", OBJECT_LOSSES)
        heads = [name for name in _PRE_TRAINING if getattr(self, name) != getattr(_PLAIN, name)]
        if heads:
            raise ValueError(f"VLBertTaskConfig: {', '.join(heads)}: a task model has no pre-training heads")
        if self.object_loss == "masked" and self.masked_appearance == "none":
            raise ValueError("VLBertTaskConfig: object_loss 'masked' needs a masked_appearance other than 'none'")


# cfgs/{vqa,vcr,refcoco}/*.yaml; nothing is masked in them.
_UNMASKED: Mapping[str, Any] = MappingProxyType({"masked_appearance": "none", "masked_region_token": False})
TASKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "vqa": _UNMASKED,
        "vcr": {
            **_UNMASKED,
            "with_pooler": True,
            "text_visual": "grounded",
            "answer_head": "1fc",
            "object_loss": "all",
        },
        "refcoco": {**_UNMASKED, "answer_dropout": 0.0},
    }
)
# What sections 4.2.1 and 4.2.2 of the paper say; no word of it is grounded.
PAPER_TASKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "vqa": {"answer_loss": "softmax"},
        "vcr": {
            "answer_loss": "softmax",
            "object_loss": "masked",
            "masked_appearance": "embedding",
            "text_visual": "whole_image",
        },
        "refcoco": {},
    }
)


def vlbert_config(preset: str = "release", *, size: str = "base", **overrides: Any) -> VLBertConfig:
    """A published VL-BERT for pre-training.

    Args:
        preset: one of `PRESETS`.
        size: one of `SIZES`.
        overrides: fields that differ from it.
    Raises:
        ValueError: for an unknown preset or size, or fields that do not fit.
    """
    return VLBertConfig(**(vlbert_fields(preset, size=size) | overrides))


def vlbert_task_config(task: str, preset: str = "release", *, size: str = "base", **overrides: Any) -> VLBertTaskConfig:
    """A published VL-BERT for one task, "vqa", "vcr" or "refcoco"; the rest as `vlbert_config`."""
    left_out = (*_PRE_TRAINING, "with_pooler")
    shared = {name: v for name, v in named_fields("VL-BERT preset", preset, PRESETS).items() if name not in left_out}
    own = dict(named_fields("VL-BERT task", task, TASKS)) | (dict(PAPER_TASKS[task]) if preset == "paper" else {})
    return VLBertTaskConfig(**(shared | dict(named_fields("VL-BERT size", size, SIZES)) | own | overrides))


def vlbert_base(**overrides: Any) -> VLBertConfig:
    """The released base model, trained on captions alone."""
    return vlbert_config("release-captions", **overrides)


def vlbert_small(**overrides: Any) -> VLBertConfig:
    """4 layers of width 256. Everything but the sizes is as in `vlbert_base`."""
    return vlbert_config("release-captions", size="small", **overrides)
