"""States of every layer of a model, for inspection: probing, similarity, pictures.

Shapes: B rows, T text pieces, R regions, H text width, I region width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from torch import Tensor

from roibeam.messages import short_repr

EMBEDDINGS = "embeddings"


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerStates:
    """States after the embeddings and after each layer, as layers run; the last ones are those of the `VLOutput`.

    Padding has the same values as in the last states: 0, unless it was computed. A model with two streams changes text
    and regions in different layers, so the two lists may differ in length.

    Attributes:
        text: (B, T, H) each.
        regions: (B, R, I) each, the batch's regions alone.
        text_layers, region_layers: names of their sources: "embeddings", then "layer 0", "layer 1", ...; with two
            streams "joint 0", "text 0", "image 0" or "co 0", counted as in the model's picture.
    """

    text: list[Tensor] = field(default_factory=list)
    regions: list[Tensor] = field(default_factory=list)
    text_layers: list[str] = field(default_factory=list)
    region_layers: list[str] = field(default_factory=list)

    __repr__ = short_repr

    def add_text(self, layer: str, states_BTH: Tensor) -> None:
        """Adds a layer's states of the text."""
        self.text_layers.append(layer)
        self.text.append(states_BTH)

    def add_regions(self, layer: str, states_BRI: Tensor) -> None:
        """Adds a layer's states of the regions."""
        self.region_layers.append(layer)
        self.regions.append(states_BRI)

    @classmethod
    def of_joint(
        cls, passed_BSH: Iterable[Tensor] | None, text: slice, regions: slice, kind: str = "layer"
    ) -> LayerStates | None:
        """States of one sequence that holds both, of the embeddings, then of each layer; None if none were kept.

        Args:
            text, regions: their slices of S.
            kind: name of the layers.
        """
        if passed_BSH is None:
            return None
        made = cls()
        for name, states in zip(layer_names(kind), passed_BSH, strict=False):
            made.add_text(name, states[:, text])
            made.add_regions(name, states[:, regions])
        return made


def layer_names(kind: str) -> Iterator[str]:
    """The embeddings' name, then that of each layer of a kind, without end."""
    yield EMBEDDINGS
    for number in count():
        yield f"{kind} {number}"
