"""The published settings of VisualBERT (arXiv:1908.03557), as fields of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from roibeam.model.common.presets import named_fields

# Published settings beyond the sizes of BERT-base; docs/models.md tells where each value comes from. "hub" are the
# defaults of transformers with the widths of the checkpoints there, whose weights UCLA trained.
_TASKS: Mapping[str, Mapping[str, Any]] = {
    "vqa": {"region_feature_size": 2048, "num_answers": 3129},
    "nlvr2": {"region_feature_size": 1024, "num_answers": 2},
    "vcr": {"region_feature_size": 512, "num_answers": 1},
    "flickr30k": {"region_feature_size": 2054},
}
_HUB = {"first_region_segment": 1, "padding_piece": 1}
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        **{f"ucla-{task}": fields for task, fields in _TASKS.items()},
        **{f"hub-{task}": {**fields, **_HUB} for task, fields in _TASKS.items() if task != "flickr30k"},
        "paper": {"alignment": "sum"},
        # The ablations of section 5.1. C2: the text is encoded alone. C3: no BERT is loaded into a new model, which is
        # no field; the name is for recipes. C4: words are the only objective.
        "paper-late-fusion": {"alignment": "sum", "early_fusion": False},
        "paper-no-bert": {"alignment": "sum"},
        "paper-words-only": {"alignment": "sum", "with_match_head": False},
    }
)


def visualbert_fields(preset: str = "ucla-vqa") -> dict[str, Any]:
    """Fields of `VisualBertConfig`; arguments and errors as of `visualbert_config`."""
    return dict(named_fields("VisualBERT preset", preset, PRESETS))
