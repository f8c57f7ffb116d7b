"""Regions of a map -> features, class logits, attribute logits, box deltas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import roi_align, roi_pool

from roibeam.extraction.network.config import CPU_REGION_CHUNK, FEATURE_STRIDE, POOLED_CELLS, DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.region_max import RegionMax, WindowMax
from roibeam.extraction.network.resnet import build_res5

# Regions that go through the linear heads at once. Their weights are read anew each time, 65 MB at true size; a GPU
# takes little longer for the published 300 proposals than for 64.
CPU_HEAD_ROWS = 64
GPU_HEAD_ROWS = 320


@dataclass(frozen=True)
class RegionOutputs:
    """What the heads say of R regions, float32, in one order for all conventions.

    Attributes:
        features: (R, D).
        class_logits: (R, C + 1), background last.
        attribute_logits: (R, A + 1), "no attribute" last; (R, 0) of a network without an attribute head.
        box_deltas: (R, C, 4), dx dy dw dh for each foreground class, before the delta weights.
    """

    features: Tensor
    class_logits: Tensor
    attribute_logits: Tensor
    box_deltas: Tensor


class BoxPredictor(nn.Module):
    """Linear heads on a region feature; the attribute head sees the feature beside an embedding of the argmax class.

    Its weights have their rows where the conventions put background and "no attribute"; what it returns does not. Of a
    network without classes it has no weights, and knows background alone.
    """

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        width, embedding = config.feature_dim, config.feature_dim // 8
        self.has_classes, self.has_attributes = config.num_classes > 0, config.num_attributes > 0
        self.background_first = conventions.background == "first"
        self.no_attribute_first = conventions.no_attribute == "first"
        self.background_deltas = conventions.region_deltas == "with-background"
        if self.has_classes:
            self.cls_score = nn.Linear(width, config.num_classes + 1)
            self.bbox_pred = nn.Linear(width, 4 * (config.num_classes + self.background_deltas))
        if self.has_attributes:
            self.cls_embedding = nn.Embedding(config.num_classes + 1, embedding)
            self.fc_attr = nn.Linear(width + embedding, width // 4)
            self.attr_score = nn.Linear(width // 4, config.num_attributes + 1)

    def forward(self, features: Tensor) -> RegionOutputs:
        if not self.has_classes:
            logits, deltas = ((len(features), width) for width in (1, 0)), (len(features), 0, 4)
            return RegionOutputs(features, *map(features.new_zeros, (*logits, deltas)))
        class_logits = self.cls_score(features)
        best_class = class_logits.argmax(dim=1)  # background included, as in training
        deltas = self.bbox_pred(features).view(len(features), -1, 4)
        if self.background_deltas:
            deltas = deltas[:, 1:] if self.background_first else deltas[:, :-1]
        return RegionOutputs(
            features,
            class_logits.roll(-1, dims=1) if self.background_first else class_logits,
            self.attribute_logits(features, best_class),
            deltas,
        )

    def attribute_logits(self, features: Tensor, class_rows: Tensor) -> Tensor:
        """Attribute logits beside the embedding of given classes.

        Args:
            features: (R, D).
            class_rows: (R,) int64, rows of the embedding: background is where the conventions put it.
        Returns:
            (R, A + 1), "no attribute" last; (R, 0) without an attribute head.
        """
        if not self.has_attributes:
            return features.new_zeros(len(features), 0)
        hidden = functional.relu(self.fc_attr(torch.cat([features, self.cls_embedding(class_rows)], dim=1)))
        logits = self.attr_score(hidden)
        return logits.roll(-1, dims=1) if self.no_attribute_first else logits


class RoIHeads(nn.Module):
    """Pooling, res5, mean and the linear heads, in chunks of fixed numbers of regions. Without gradients: what trains
    these parts calls them one by one."""

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        self.config, self.conventions = config, conventions
        self.res5 = build_res5(config, conventions)
        self.box_predictor = BoxPredictor(config, conventions)

    def forward(self, feature_map: Tensor, boxes: Tensor) -> RegionOutputs:
        """
        Args:
            feature_map: (1, C, h, w) float32, one image.
            boxes: (R, 4), x1 y1 x2 y2 in network-input pixels; R may be 0.
        """
        chunk = self.config.region_chunk or CPU_REGION_CHUNK
        return self.describe(feature_map, boxes, features_of(self.res5), chunk)

    def describe(
        self, feature_map: Tensor, boxes: Tensor, describe_chunk: Callable[[Tensor], Tensor], chunk: int
    ) -> RegionOutputs:
        """As `forward`, with another form of the last stage.

        Args:
            feature_map: (1, C, h, w) in the type that `describe_chunk` takes.
            describe_chunk: (chunk, C, cells, cells) pooled regions -> (chunk, D) float32 features; it may overwrite
                nothing of its input.
            chunk: regions at once.
        """
        pooled = self._pooled_chunks(feature_map, boxes, chunk)
        # One shape for every chunk: kernels choose their order of summation by shape, and with it the last digits.
        # No regions still run one chunk of zeros, so that empty outputs have the right widths.
        starts = range(0, max(len(boxes), 1), chunk)
        return self.judge((describe_chunk(pooled(start)) for start in starts), len(boxes))

    def judge(self, chunks: Iterable[Tensor], count: int) -> RegionOutputs:
        """What the linear heads say.

        Args:
            chunks: (chunk, D) float32 features each; at least one.
            count: how many of their rows, from the first on, are regions.
        """
        features = torch.cat(list(chunks))
        head_rows = CPU_HEAD_ROWS if features.device.type == "cpu" else GPU_HEAD_ROWS
        features = functional.pad(features, (0, 0, 0, -len(features) % head_rows))
        parts = [self.box_predictor(rows) for rows in features.split(head_rows)]
        return RegionOutputs(
            *(torch.cat([getattr(part, f.name) for part in parts])[:count] for f in fields(RegionOutputs))
        )

    def _pooled_chunks(self, feature_map: Tensor, boxes: Tensor, chunk: int) -> Callable[[int], Tensor]:
        """First region -> (chunk, C, cells, cells), zeros after the last region."""
        cells = self.config.pooled_cells
        if self.conventions.region_pool == "roi-pool":
            look_up = RegionMax if feature_map.device.type == "cpu" else WindowMax
            return look_up(feature_map, boxes, cells=cells, stride=FEATURE_STRIDE, chunk=chunk)

        plain = feature_map.float()  # torchvision's kernels know no bfloat16; a map that was rounded stays as it is

        def pool(first: int) -> Tensor:
            rows = boxes[first : first + chunk]
            pooled = pool_regions(plain, [rows], self.conventions, cells=cells)
            pooled = functional.pad(pooled, (0, 0, 0, 0, 0, 0, 0, chunk - len(rows)))
            return pooled.to(feature_map.dtype, memory_format=torch.channels_last)

        return pool


def features_of(res5: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The last stage and the mean over its cells: pooled regions -> (N, D) float32."""
    return lambda pooled: mean_over_cells(res5(pooled))


def mean_over_cells(maps: Tensor) -> Tensor:
    """(N, D, h, w), any float type -> (N, D) float32."""
    return maps.mean(dim=(2, 3), dtype=torch.float32)


def pool_regions(
    feature_map: Tensor, boxes: list[Tensor], conventions: Conventions, *, cells: int = POOLED_CELLS
) -> Tensor:
    """Boxes cut out of the stride-16 map.

    Args:
        feature_map: (N, C, h, w) float32 or float64; N may be 0.
        boxes: for each of the N images (R_i, 4), x1 y1 x2 y2 in network-input pixels.
        cells: `DetectorConfig.pooled_cells`.
    Returns:
        (sum of R_i, C, cells, cells); bins past the map's end are 0.
    """
    boxes = [rows.to(feature_map.dtype) for rows in boxes]  # torchvision wants one type
    boxes = boxes or [feature_map.new_zeros(0, 4)]  # and one list of boxes, also for no image
    if conventions.region_pool == "roi-pool":
        return roi_pool(feature_map, boxes, cells, 1.0 / FEATURE_STRIDE)
    ratio = 0 if conventions.region_pool == "roi-align-0" else 1
    return roi_align(feature_map, boxes, cells, 1.0 / FEATURE_STRIDE, sampling_ratio=ratio, aligned=False)
