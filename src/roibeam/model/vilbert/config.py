"""Sizes and choices of ViLBERT (arXiv:1908.02265), with the published combinations by name."""

from __future__ import annotations

from typing import Any

from roibeam.model.common.bert import BertSizes
from roibeam.model.inputs import OutputWidths
from roibeam.model.vilbert.fields import ViLbertFields
from roibeam.model.vilbert.presets import SMALL, vilbert_fields


class ViLbertConfig(ViLbertFields, BertSizes):
    """The configuration of a ViLBERT; its fields are those of `ViLbertFields`."""

    model_type = "roibeam-vilbert"

    @property
    def output_widths(self) -> OutputWidths:
        return OutputWidths(self.hidden_size, self.image_hidden_size, self.co_attention_size)


def vilbert_config(preset: str = "release", *, depth: int = 6, **overrides: Any) -> ViLbertConfig:
    """A published ViLBERT of BERT-base size.

    Args:
        preset: one of `PRESETS`.
        depth: number of co-attentions and of image layers, one of `DEPTHS`. The last `depth` text layers follow one
            (vilbert_beta config/bert_base_<n>layer_<n>conect.json).
        overrides: fields that differ from it.
    Raises:
        ValueError: for an unknown preset or depth, or fields that do not fit.
    """
    return ViLbertConfig(**(vilbert_fields(preset, depth=depth) | overrides))


def vilbert_small(**overrides: Any) -> ViLbertConfig:
    """4 text layers and 2 image layers of width 256. Everything but the sizes is as in the first release."""
    return ViLbertConfig(**(dict(SMALL) | overrides))
