"""Fields of VisualBERT's configuration (arXiv:1908.03557) and its published settings, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from roibeam.model.common.fields import BertFields, named_fields

ALIGNMENTS = ("mean", "sum")


@dataclass(kw_only=True, repr=False, eq=False)
class VisualBertFields(BertFields):
    """Sizes and choices of a VisualBERT; defaults are those of the UCLA release for COCO and VQA.

    Fields, beside those of `BertFields`:
        padding_piece: the row of the word table that gets no gradient as an input; -1 for none.
        region_feature_size: 2048 for VQA, 1024 NLVR2, 512 VCR, 2054 Flickr30k (the feature and six box numbers).
        first_region_segment: segment of the regions of a row's first image; the next image has the next one. UCLA gives
            0, transformers 1; in a trained model the two are different vectors, so it belongs to the checkpoint.
        alignment: how position embeddings of the pieces aligned with a region join: "mean" in both codes, "sum" in
            section 3.2 of the paper.
        copy_text_tables: a new model's region tables start as copies of the text's ("special initialize").
        early_fusion: False is the paper's ablation (section 5.1): the encoder reads text only, one more layer both.
        with_match_head: adds sentence-image prediction; without it is the paper's ablation of the second objective.
        num_region_classes: of `VLBatch.region_classes`, 0 the whole image: a feature and the embedding of its class
            are projected to `region_mix_size` numbers, as in R2C; 0 takes features alone.
        region_class_size: width of that embedding (rowanz/r2c utils/detector.py: 128).
        region_mix_size: numbers of such a feature (512).
        num_answers: outputs of the linear head of a task model.
    """

    choices = MappingProxyType({"alignment": ALIGNMENTS})

    padding_piece: int = 0
    first_region_segment: int = 0
    alignment: str = "mean"
    copy_text_tables: bool = True
    early_fusion: bool = True
    with_match_head: bool = True
    num_region_classes: int = 0
    region_class_size: int = 128
    region_mix_size: int = 512
    num_answers: int = 3129

    def check(self) -> None:
        super().check()
        if not 0 <= self.first_region_segment < self.num_segments:
            raise ValueError(
                f"VisualBertConfig: first_region_segment {self.first_region_segment} is none of {self.num_segments} "
                f"segments"
            )


# Published settings beyond the sizes of BERT-base; docs/models.md has the source of each value. "hub" are the
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
