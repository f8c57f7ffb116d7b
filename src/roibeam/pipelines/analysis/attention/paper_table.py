"""What the paper prints (section 3.1, Table 2), and what is not alike here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from roibeam.features.counted import counted
from roibeam.pipelines.analysis.attention.attention_settings import AttentionRequest
from roibeam.pipelines.analysis.attention.questions import ENTITY
from roibeam.pipelines.common.statistics.paper_figures import paper_figures

PAPER = "What Does BERT with Vision Look At?"
RECIPE = "visualbert-task-flickr"  # whose run the paper asks
ASKED_THERE = (
    f"the paper's: VisualBERT, 12 layers of 12 heads, trained on COCO and Flickr30k (--recipe {RECIPE}), 1,000 images "
    f"of val, relations of AllenNLP's parser; the best of all heads for phrases, of active heads for relations"
)
_GROUNDING = ("entity grounding", "syntactic grounding of ")
_LAYERS, _HEADS, _IMAGES, _SPLIT = 12, 12, 1000, "val"


@dataclass(frozen=True)
class PaperRow:
    """As printed.

    Attributes:
        name: `ENTITY`, or the relation as the paper calls it.
        where: section or table.
        baseline, accuracy: in percent.
        head: of that accuracy, as layer-head; "" where it is not named.
    """

    name: str
    where: str
    baseline: str
    accuracy: str
    head: str = ""

    def to_json(self) -> dict[str, Any]:
        """In shares, as figures of ours."""
        baseline, accuracy = (round(float(each) / 100, 6) for each in (self.baseline, self.accuracy))
        return {"where": self.where, "baseline": baseline, "accuracy": accuracy, "head": self.head or None}


@cache
def paper_rows() -> dict[str, PaperRow]:
    """By name, in the paper's order."""
    found: dict[str, dict[str, str]] = {}
    for each in paper_figures():
        if each.recipe == RECIPE and each.task.startswith(_GROUNDING):
            name = ENTITY if each.task == _GROUNDING[0] else each.task.removeprefix(_GROUNDING[1])
            row = found.setdefault(name, {"where": each.table})
            row[{"best head": "head"}.get(each.metric, each.metric.partition(", ")[0])] = each.printed
    return {name: PaperRow(name, **row) for name, row in found.items()}


def differences(request: AttentionRequest, model: str, *, layers: int, heads: int, images: int) -> list[str]:
    """What is not as in the paper, as far as a request and a model tell.

    Args:
        model: its class, such as "VisualBertForPreTraining".
        layers, heads: in which words look at regions.
        images: that were asked about.
    """
    found = [] if model.startswith("VisualBert") else [model]
    if (layers, heads) != (_LAYERS, _HEADS):
        found.append(f"{counted(layers, 'layer')} of {counted(heads, 'head')}")
    if images != _IMAGES or request.split != _SPLIT:
        found.append(f"{counted(images, 'image')} of {request.split or 'all splits'}")
    if request.parses is not None:
        found.append(f"relations of {'spaCy' if str(request.parses) == 'spacy' else request.parses.name}")
    options = {"rules": "any", "word": "last", "max_regions": 0}
    return found + [
        f"--{name.replace('_', '-')} {getattr(request, name)}"
        for name, usual in options.items()
        if getattr(request, name) != usual
    ]
