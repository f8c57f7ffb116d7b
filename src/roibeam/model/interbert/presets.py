"""The published settings and sizes of InterBERT (arXiv:2003.13198), as fields of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from roibeam.model.common.presets import SMALL_SIZES, named_fields

_PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "num_hidden_layers": 12,  # appendix 6.2: 12 joint layers, then 6 and 6
        "image_num_attention_heads": 12,  # appendix 6.2: one number for all layers
        "region_projection": "mlp",  # appendix 6.2
        "with_region_segment": True,  # section 2.2, "Text embedding and image embedding"
        "with_region_positions": True,  # the same
        "with_image_sep": True,  # section 2.1
        "pair_from": "states",  # section 2.3, "Image-text matching"
    }
)
# docs/models.md tells where each value comes from.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": _PAPER,
        "release": {},
        # Table 3, "Single Stream": "the single-stream model without the two-stream extraction module".
        "single-stream": {**_PAPER, "text_num_hidden_layers": 0, "image_num_hidden_layers": 0},
    }
)
# 2 joint layers, then 2 and 2, of width 256: trains on a laptop; published by nobody.
SMALL: Mapping[str, Any] = MappingProxyType(
    {
        **SMALL_SIZES,
        "num_hidden_layers": 2,
        "text_num_hidden_layers": 2,
        "image_num_hidden_layers": 2,
        "image_num_attention_heads": 4,
        "image_intermediate_size": 1024,
        "pooled_size": 256,
    }
)


def interbert_fields(preset: str = "release") -> dict[str, Any]:
    """Fields of `InterBertConfig`; arguments and errors as of `interbert_config`."""
    return dict(named_fields("InterBERT preset", preset, PRESETS))
