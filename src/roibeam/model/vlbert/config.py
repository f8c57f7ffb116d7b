"""Sizes and choices of VL-BERT (arXiv:1908.08530), with the published combinations by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from roibeam.model.common.bert import BertSizes
from roibeam.model.common.fields import named_fields
from roibeam.model.inputs import OutputWidths
from roibeam.model.vlbert.fields import PRESETS, SIZES, VLBertFields, vlbert_fields

ANSWER_HEADS = ("mlm", "1fc", "2fc")
ANSWER_LOSSES = ("sigmoid", "softmax")
OBJECT_LOSSES = ("all", "masked", "none")


class VLBertConfig(VLBertFields, BertSizes):
    """The configuration of a VL-BERT; its fields are those of `VLBertFields`."""

    model_type = "roibeam-vlbert"

    @property
    def output_widths(self) -> OutputWidths:
        return OutputWidths(self.hidden_size, self.hidden_size, self.hidden_size if self.with_pooler else None)

    @property
    def visual_width(self) -> int:
        return self.visual_size or self.hidden_size

    @property
    def needs_whole_image(self) -> bool:
        """Whether a batch must have a feature of the whole image: a mean of regions with masked pixels would silently
        differ from every published model."""
        return self.masked_appearance == "pixels"


_PLAIN = VLBertConfig()
PRE_TRAINING_FIELDS = (
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

    Fields, beside those of `VLBertFields`:
        num_answers: labels of VQA. Choices (VCR) and regions (RefCOCO+) get one score each, for any value.
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
    choices = MappingProxyType(
        {"answer_head": ANSWER_HEADS, "answer_loss": ANSWER_LOSSES, "object_loss": OBJECT_LOSSES}
    )

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
        heads = [name for name in PRE_TRAINING_FIELDS if getattr(self, name) != getattr(_PLAIN, name)]
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
# Settings of the paper's sections 4.2.1 and 4.2.2; no word is grounded.
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
    """A published VL-BERT for pre-training, of `PRESETS` and `SIZES`; `overrides` are fields that differ."""
    return VLBertConfig(**(vlbert_fields(preset, size=size) | overrides))


def vlbert_task_config(task: str, preset: str = "release", *, size: str = "base", **overrides: Any) -> VLBertTaskConfig:
    """A published VL-BERT for one task, "vqa", "vcr" or "refcoco"; the rest as `vlbert_config`."""
    left_out = (*PRE_TRAINING_FIELDS, "with_pooler")
    shared = {name: v for name, v in named_fields("VL-BERT preset", preset, PRESETS).items() if name not in left_out}
    own = dict(named_fields("VL-BERT task", task, TASKS)) | (dict(PAPER_TASKS[task]) if preset == "paper" else {})
    return VLBertTaskConfig(**(shared | dict(named_fields("VL-BERT size", size, SIZES)) | own | overrides))


def vlbert_base(**overrides: Any) -> VLBertConfig:
    """The released base model, trained on captions alone."""
    return vlbert_config("release-captions", **overrides)


def vlbert_small(**overrides: Any) -> VLBertConfig:
    """4 layers of width 256. Everything but the sizes is as in `vlbert_base`."""
    return vlbert_config("release-captions", size="small", **overrides)
