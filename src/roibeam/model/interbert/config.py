"""Sizes and choices of InterBERT (arXiv:2003.13198), with the published combinations by name."""

from __future__ import annotations

from typing import Any

from roibeam.model.common.bert import BertSizes
from roibeam.model.inputs import OutputWidths
from roibeam.model.interbert.fields import InterBertFields
from roibeam.model.interbert.presets import SMALL, interbert_fields


class InterBertConfig(InterBertFields, BertSizes):
    """The configuration of an InterBERT; its fields are those of `InterBertFields`."""

    model_type = "roibeam-interbert"

    @property
    def output_widths(self) -> OutputWidths:
        return OutputWidths(self.hidden_size, self.hidden_size, self.pooled_size)


def interbert_config(preset: str = "release", **overrides: Any) -> InterBertConfig:
    """A published InterBERT of BERT-base width.

    Args:
        preset: one of `PRESETS`.
        overrides: fields that differ from it.
    Raises:
        ValueError: for an unknown preset, or fields that do not fit.
    """
    return InterBertConfig(**(interbert_fields(preset) | overrides))


def interbert_small(**overrides: Any) -> InterBertConfig:
    """2 joint layers, then 2 and 2, of width 256: trains on a laptop; published by nobody. The rest is as released."""
    return InterBertConfig(**(dict(SMALL) | overrides))
