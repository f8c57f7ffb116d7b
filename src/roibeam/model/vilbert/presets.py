"""The published settings, depths and sizes of ViLBERT (arXiv:1908.02265), as fields of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from roibeam.model.common.presets import SMALL_SIZES, named_fields

# What the published settings set beyond the sizes; docs/models.md tells where each value comes from. Paper and first
# release differ in nothing that a model computes: their differences lie in what is fed and how it is trained.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": {},
        "release": {},
        # arXiv:1912.02315: overlapping regions are masked together (model/common/masking.py), which leaves the
        # visible ones to average, and mismatched pairs have no masked losses (the README's --objective 1).
        "release-mt": {"whole_image_count": "visible", "masked_loss_pairs": "matched"},
        # config/roberta_base_6layer_6connect.json. Its code computes RoBERTa's positions, from 2 on, and then drops
        # them; and the row without gradient is BERT's padding, which is <s> here.
        "release-mt-roberta": {
            "whole_image_count": "visible",
            "masked_loss_pairs": "matched",
            "vocab_size": 50265,
            "max_position_embeddings": 514,
            "num_segments": 1,
        },
        # The multi-task model itself: vilbert.py has a table of 20 task tokens.
        "release-mt-tasks": {"whole_image_count": "visible", "masked_loss_pairs": "matched", "num_task_tokens": 20},
    }
)
DEPTHS = (2, 4, 6, 8)  # table 2 of the paper
# 4 layers of width 256, co-attention before the last two: trains on a laptop; published by nobody.
SMALL: Mapping[str, Any] = MappingProxyType(
    {
        **SMALL_SIZES,
        "image_hidden_size": 256,
        "image_num_hidden_layers": 2,
        "image_num_attention_heads": 4,
        "image_intermediate_size": 256,
        "co_attention_size": 256,
        "co_attention_num_heads": 4,
        "text_co_attention": (2, 3),
        "image_co_attention": (0, 1),
    }
)


def vilbert_fields(preset: str = "release", *, depth: int = 6) -> dict[str, Any]:
    """Fields of `ViLbertConfig`; arguments and errors as of `vilbert_config`."""
    fields = named_fields("ViLBERT preset", preset, PRESETS)
    if depth not in DEPTHS:
        raise ValueError(f"no published ViLBERT has depth {depth}; there are {', '.join(map(str, DEPTHS))}")
    layers = {
        "image_num_hidden_layers": depth,
        "text_co_attention": tuple(range(12 - depth, 12)),
        "image_co_attention": tuple(range(depth)),
    }
    return {**layers, **fields}
