"""The published settings and sizes of VL-BERT (arXiv:1908.08530), as fields of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from roibeam.model.common.presets import SMALL_SIZES, named_fields

# What the published settings set beyond the sizes; docs/models.md tells where each value comes from.
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
SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "base": {},
        "large": {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
        "small": {**SMALL_SIZES, "coordinate_embedding_size": 256},
    }
)


def vlbert_fields(preset: str = "release", *, size: str = "base") -> dict[str, Any]:
    """Fields of `VLBertConfig`; arguments and errors as of `vlbert_config`."""
    return {**named_fields("VL-BERT preset", preset, PRESETS), **named_fields("VL-BERT size", size, SIZES)}
