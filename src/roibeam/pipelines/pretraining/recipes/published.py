"""Published pre-training runs by name, and the parameters of ViLBERT and InterBERT.

Section 3.5 of arXiv:2003.13198 prints 221 and 173 million parameters. Neither number is all of a model. The nearest
count leaves out the embeddings of text, poolers and heads: of ViLBERT 221.1 million, with the `q_dense1` and `q_dense2`
that its release has in each co-attention and never reads, and of InterBERT 172.7. docs/models.md has the other readings
that were tried. A test counts all of it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from roibeam.messages import name_hint
from roibeam.pipelines.pretraining.recipes.imagebert import IMAGEBERT_RECIPES
from roibeam.pipelines.pretraining.recipes.interbert import INTERBERT_RECIPES
from roibeam.pipelines.pretraining.recipes.recipe import Recipe
from roibeam.pipelines.pretraining.recipes.vilbert import VILBERT_RECIPES
from roibeam.pipelines.pretraining.recipes.visualbert import VISUALBERT_RECIPES
from roibeam.pipelines.pretraining.recipes.vlbert import VLBERT_RECIPES


class PrintedSize(NamedTuple):
    """
    Attributes:
        millions: as InterBERT's paper prints them.
        nearest: parameters of layers and the embedding of regions, a release's unread ones too.
    """

    millions: int
    nearest: int


_VILBERT = ("vilbert", "vilbert-paper", "vilbert-without-bert", "vilbert-25-percent", "vilbert-50-percent")
_INTERBERT = ("interbert", "interbert-single-masks", "interbert-without-bert")
PARAMETERS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(_VILBERT, 239_023_229),
        "vilbert-2-layer": 157_109_373,
        "vilbert-4-layer": 198_066_301,
        "vilbert-8-layer": 279_980_157,
        "vilbert-single-stream": 113_511_037,
        **dict.fromkeys(_INTERBERT, 199_746_685),
        "interbert-single-stream": 114_692_221,
        "interbert-release": 157_021_565,
    }
)
PRINTED: Mapping[str, PrintedSize] = MappingProxyType(
    {
        **dict.fromkeys(_VILBERT, PrintedSize(221, 221_052_416)),
        **dict.fromkeys(_INTERBERT, PrintedSize(173, 172_674_048)),
    }
)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {**VLBERT_RECIPES, **VILBERT_RECIPES, **VISUALBERT_RECIPES, **IMAGEBERT_RECIPES, **INTERBERT_RECIPES}
)


def stages_before(name: str) -> list[str]:
    """The recipes whose runs come before it, in order."""
    after = RECIPES[name].after
    return [*stages_before(after), after] if after else []


def recipe_named(name: str) -> Recipe:
    """Raises ValueError for an unknown name, with the near ones."""
    if name not in RECIPES:
        listed = "roibeam recipes lists all; those of a task are for roibeam finetune"
        raise ValueError(f"no recipe {name!r}: {name_hint(name, RECIPES, listed_by=listed)}")
    return RECIPES[name]
