"""What a detectron2 network makes of a region: the head of C4 networks, and the fully connected one of FPN networks.

Both take the maps and boxes of one photo, and give the feature that is kept and what the box predictor reads. Nothing
here imports detectron2 before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional

FC6, FC7 = "fc6", "fc7"
LAYERS = (FC6, FC7)  # of fully connected heads, as Detectron calls them: detectron2's fc1 and fc2
MEAN = "mean"


class RegionHead(Protocol):
    """
    Attributes:
        layer: which feature is kept, as a store's fingerprint has it.
        feature_dim: its width.
        map_names: maps of the backbone that it pools from.
    """

    layer: str
    feature_dim: int
    map_names: Sequence[str]

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """(rows, feature_dim) and (rows, W), what the box predictor reads; rows behind the boxes mean nothing.

        Args:
            maps: (1, C, h, w) each, in the order of `map_names`.
            boxes: (R, 4) in network-input pixels, R at most `rows`.
        """


class MeanOfRes5:
    """C4: the pooled cells through res5, then their mean, which the predictor reads too."""

    layer = MEAN

    def __init__(self, model: nn.Module) -> None:
        heads: Any = model.roi_heads
        self._pooler, self._res5 = heads.pooler, heads.res5
        self.map_names: Sequence[str] = heads.in_features
        self.feature_dim = int(heads.box_predictor.cls_score.in_features)

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        features = self._res5(_pooled(self._pooler, maps, boxes, rows)).mean(dim=[2, 3])
        return features, features


class FullyConnected:
    """FPN: the pooled cells of the level that fits the box, through fully connected layers, each with its ReLU.

    Args:
        layer: of `LAYERS`, whose output is kept, after its ReLU; the predictor reads the last one's.
    Raises:
        ValueError: for a layer that the head does not have.
    """

    def __init__(self, model: nn.Module, layer: str) -> None:
        heads: Any = model.roi_heads
        self._pooler, self._layers = heads.box_pooler, heads.box_head
        self.map_names: Sequence[str] = heads.box_in_features
        found = {f"fc{6 + place}": f"fc_relu{place + 1}" for place in range(len(heads.box_head.fcs))}
        if layer not in found:
            raise ValueError(f"layer {layer!r}: the box head of this network has {', '.join(found) or 'none'}")
        self.layer, self._kept = layer, found[layer]
        self.feature_dim = int(heads.box_head.fcs[LAYERS.index(layer)].out_features)

    def __call__(self, maps: Sequence[Tensor], boxes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        states = _pooled(self._pooler, maps, boxes, rows)
        kept = states
        for name, layer in self._layers.named_children():
            states = layer(states)
            if name == self._kept:
                kept = states
        return kept, states


def region_head(model: nn.Module, layer: str | None) -> RegionHead:
    """The head of a network that `check_network` takes.

    Args:
        layer: of an FPN network, one of `LAYERS`; None for the first, which VisualBERT and Pythia keep, and for a C4
            network, which has no choice.
    Raises:
        ValueError: for a layer that there is not.
    """
    if hasattr(model.roi_heads, "res5"):
        if layer is not None:
            raise ValueError(f"layer {layer!r}: a C4 network has one feature, the mean of res5; leave the layer out")
        return MeanOfRes5(model)
    return FullyConnected(model, layer or FC6)


def _pooled(pooler: Any, maps: Sequence[Tensor], boxes: Tensor, rows: int) -> Tensor:
    """(rows, C, cells, cells), zeros behind the boxes."""
    from detectron2.structures import Boxes

    pooled: Tensor = pooler(list(maps), [Boxes(boxes)])
    if len(maps) > 1 and not len(boxes):  # the pooler of several levels gives its empty output without a device
        pooled = pooled.to(maps[0])
    return functional.pad(pooled, (0, 0, 0, 0, 0, 0, 0, rows - len(boxes)))
