"""Fields of InterBERT's configuration (arXiv:2003.13198), its published settings and sizes, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import SMALL_SIZES, TINY_STREAMS, TwoStreamFields, named_fields

REGION_LOSSES = ("kl", "regression", "none")
REGION_LABELS = ("soft", "hard")
REGION_LOSS_PAIRS = ("matched", "all")
REGION_PROJECTIONS = ("linear", "mlp")
PAIR_SOURCES = ("pooled", "states")


@dataclass(kw_only=True, repr=False, eq=False)
class InterBertFields(TwoStreamFields):
    """Sizes and choices of an InterBERT; defaults are those of the release (black4321/InterBERT).

    The fields of `BertFields` are those of the joint layers and of the text's. All streams have the same width. Word
    piece 0 is padding and gets no gradient as an input.

    Fields, beside those of `TwoStreamFields`:
        num_hidden_layers: joint layers, over image and text together.
        text_num_hidden_layers, image_num_hidden_layers: layers of each stream by itself, after the joint ones; 0 and 0
            is the paper's single-stream baseline.
        region_projection: of a feature to the width of the model, "linear", or "mlp": two layers with an activation.
        with_region_segment: adds one learned vector to every element of the image.
        with_region_positions: adds a learned vector for the place in the sequence, IMG first. The order of regions
            counts then.
        with_image_sep: a learned [SEP] ends the image.
        pooled_size: width of the pooled vectors.
        pair_from: how a pair is summed up: "pooled" gives IMG and [CLS] a dense layer with ReLU each and fuses these,
            "states" fuses the two states and gives the result one such layer.
        region_labels: of "kl": "soft", that distribution; "hard", its best class alone, background left out, by
            cross-entropy ("the categories of the masked objects", section 2.3).
        region_loss_pairs: whether regions are predicted in "matched" pairs alone, as released, or in "all".
    """

    choices = MappingProxyType(
        {
            "region_projection": REGION_PROJECTIONS,
            "pair_from": PAIR_SOURCES,
            "region_loss": REGION_LOSSES,
            "region_labels": REGION_LABELS,
            "region_loss_pairs": REGION_LOSS_PAIRS,
        }
    )

    num_hidden_layers: int = 6
    text_num_hidden_layers: int = 6
    image_intermediate_size: int = 3072
    image_hidden_dropout: float = 0.2
    region_projection: str = "linear"
    with_region_segment: bool = False
    with_region_positions: bool = False
    with_image_sep: bool = False
    pooled_size: int = 1024
    pair_from: str = "pooled"
    region_labels: str = "soft"
    region_loss_pairs: str = "matched"

    def check(self) -> None:
        super().check()
        self.check_multiple("hidden_size", "image_num_attention_heads")
        for name in ("num_hidden_layers", "text_num_hidden_layers", "image_num_hidden_layers"):
            if getattr(self, name) < 0:
                raise ValueError(f"InterBertConfig: {name} is {getattr(self, name)}, it must not be negative")
        if self.region_labels == "hard" and self.region_loss != "kl":
            raise ValueError(f"InterBertConfig: region_labels 'hard' are of region_loss 'kl', not {self.region_loss!r}")


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
# docs/models.md has the source of each value.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": _PAPER,
        "release": {},
        # Table 3, "Single Stream": "the single-stream model without the two-stream extraction module".
        "single-stream": {**_PAPER, "text_num_hidden_layers": 0, "image_num_hidden_layers": 0},
    }
)
# 2 joint layers, then 2 and 2, of width 256: trains on a laptop; unpublished.
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
TINY: Mapping[str, Any] = MappingProxyType(
    {**TINY_STREAMS, "num_hidden_layers": 1, "text_num_hidden_layers": 1, "pooled_size": 64}
)


def interbert_fields(preset: str = "release") -> dict[str, Any]:
    """Fields of `InterBertConfig`; arguments and errors as of `interbert_config`."""
    return dict(named_fields("InterBERT preset", preset, PRESETS))
