"""RoI heads: regions of a map to pooled cells, features, class logits, attribute logits and box deltas.

RoIPool by look-up: the maximum of a bin is that of four overlapping windows whose maxima are computed beforehand. A
maximum rounds nothing, so the numbers are those of torchvision's `roi_pool`, in a fifth of its time on one core.
RoIAlign by look-up, one sample a bin: a bin is the weighted sum of the four cells around its middle, with torchvision's
samples and weights float32 operation by float32 operation; only the sum of the four may round otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import roi_align, roi_pool

from roibeam.extraction.network.config import CPU_REGION_CHUNK, FEATURE_STRIDE, POOLED_CELLS, DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.resnet import build_res5
from roibeam.extraction.network.state import NO_SHARE


class RegionMax:
    """Maximum of the map over each bin of each region, some regions at a time.

    Args:
        feature_map: (1, C, h, w), any float type.
        boxes: (R, 4) float32, x1 y1 x2 y2 in network-input pixels.
        cells: bins of a region each way.
        stride: network-input pixels per cell of the map.
    """

    def __init__(self, feature_map: Tensor, boxes: Tensor, *, cells: int, stride: int, chunk: int) -> None:
        bins = _Bins.of_regions(boxes, feature_map, cells=cells, stride=stride)
        self._maxima = _BinMax(feature_map, bins, chunk * cells * cells)
        self._shape = (chunk, cells, cells, feature_map.shape[1])

    def __call__(self, first: int) -> Tensor:
        """(chunk, C, cells, cells), channels-last, of the regions from `first` on, zeros after the last; the memory is
        used again by the next call."""
        _, rows, columns, _ = self._shape
        return self._maxima(first * rows * columns).view(self._shape).permute(0, 3, 1, 2)


class DistinctBins:
    """Maximum over distinct bins, otherwise as `RegionMax`: bins of small regions repeat, and those of overlapping
    regions meet. The published 300 proposals have 58,800 bins, of which 17 to 46 % are distinct.

    Attributes:
        ids: (R, cells, cells) int64, index of each bin among the distinct ones.
        at_once: number of bins in one call.
    """

    def __init__(self, feature_map: Tensor, boxes: Tensor, *, cells: int, stride: int, chunk: int) -> None:
        bins = _Bins.of_regions(boxes, feature_map, cells=cells, stride=stride)
        distinct, self.ids = bins.distinct(feature_map.shape[2:])
        self.count, self.at_once = len(distinct.y_first), chunk * cells * cells
        self._maxima = _BinMax(feature_map, distinct, self.at_once)

    def __call__(self, first: int) -> Tensor:
        """(at_once, C), of the bins from `first` on, zeros after the last; the next call uses the memory again."""
        return self._maxima(first)


@dataclass(frozen=True)
class _Bins:
    """First cell of the map and the one after the last, int64, of shapes that broadcast."""

    y_first: Tensor
    y_end: Tensor
    x_first: Tensor
    x_end: Tensor

    @staticmethod
    def of_regions(boxes: Tensor, feature_map: Tensor, *, cells: int, stride: int) -> _Bins:
        """Bins of shape (R, cells, cells) together."""
        x_first, x_end, y_first, y_end = _bins(boxes, feature_map.shape[2:], cells, stride)
        return _Bins(y_first[:, :, None], y_end[:, :, None], x_first[:, None, :], x_end[:, None, :])

    def is_empty(self) -> Tensor:
        return (self.y_end <= self.y_first) | (self.x_end <= self.x_first)

    def distinct(self, map_hw: Sequence[int]) -> tuple[_Bins, Tensor]:
        """Distinct bins, (n,) each, by rows and columns; and the index of each bin among them."""
        rows, columns = (edge + 1 for edge in map_hw)  # a bin may end after the last
        number = ((self.y_first * rows + self.y_end) * columns + self.x_first) * columns + self.x_end
        numbers, ids = torch.unique(number.masked_fill(self.is_empty(), 0), return_inverse=True)
        y, x = numbers // columns**2, numbers % columns**2
        return _Bins(y // rows, y % rows, x // columns, x % columns), ids


class _BinMax:
    """Maximum of the map over each bin, `at_once` bins at a time."""

    def __init__(self, feature_map: Tensor, bins: _Bins, at_once: int) -> None:
        channels, rows, columns = feature_map.shape[1:]
        # Level k of an axis: windows of 2^k cells. Two of the largest level that fits cover a bin.
        x_level, y_level = _level(bins.x_end - bins.x_first), _level(bins.y_end - bins.y_first)
        num_x, num_y = (1 + (int(level.max()) if level.numel() else 0) for level in (x_level, y_level))
        self._windows = _window_maxima(feature_map, num_x, num_y)
        self._empty = len(self._windows) - 1  # a row of zeros, for bins past the map's end
        is_empty = bins.is_empty()
        which = y_level * num_x + x_level
        self._corners = []
        for y in (bins.y_first, bins.y_end - 2**y_level):
            for x in (bins.x_first, bins.x_end - 2**x_level):
                row = (which * rows + y) * columns + x
                self._corners.append(row.masked_fill(is_empty, self._empty).flatten())
        self._pooled, self._other = (feature_map.new_empty(at_once, channels) for _ in range(2))

    def __call__(self, first: int) -> Tensor:
        at_once = len(self._pooled)
        for index, corner in enumerate(self._corners):
            rows = corner[first : first + at_once]
            rows = functional.pad(rows, (0, at_once - len(rows)), value=self._empty)
            target = self._other if index else self._pooled
            torch.index_select(self._windows, 0, rows, out=target)
            if index:
                torch.maximum(self._pooled, self._other, out=self._pooled)
        return self._pooled


class WindowMax:
    """`RegionMax` for a GPU, which has the memory for the maxima of windows of every size: a bin is one row. It waits
    for nothing, and has the numbers of torchvision's kernel, in a quarter of its time with the change of layout. Boxes
    lie on the map: bins of others could be larger than any window."""

    def __init__(self, feature_map: Tensor, boxes: Tensor, *, cells: int, stride: int, chunk: int) -> None:
        channels, rows, columns = feature_map.shape[1:]
        x_first, x_end, y_first, y_end = _bins(boxes, (rows, columns), cells, stride)
        # Regions may begin a cell before the map and end one after it; a bin starts and ends anywhere in a cell.
        most_x, most_y = (min(-(-(edge + 2) // cells) + 1, edge) for edge in (columns, rows))
        windows = feature_map.new_empty(most_y * most_x * rows * columns + 1, channels)
        windows[-1] = 0
        # Each size in one piece of memory, from the next smaller one and single cells that lie further on. If a
        # window would end past the map, its value belongs to the next row, or to nothing; no bin reads it.
        sizes = windows[:-1].view(most_y, most_x, rows * columns, channels)
        sizes[0, 0] = feature_map[0].permute(1, 2, 0).reshape(rows * columns, channels)
        for x in range(1, most_x):
            torch.maximum(sizes[0, x - 1, :-x], sizes[0, 0, x:], out=sizes[0, x, :-x])
        widths = sizes.flatten(1, 2)
        for y in range(1, most_y):
            below = y * columns
            torch.maximum(widths[y - 1, :-below], widths[0, below:], out=widths[y, :-below])
        wide, high = (x_end - x_first)[:, None, :], (y_end - y_first)[:, :, None]
        corner = y_first[:, :, None] * columns + x_first[:, None, :]
        row = ((high - 1) * most_x + (wide - 1)) * (rows * columns) + corner
        row = row.masked_fill((wide <= 0) | (high <= 0), len(windows) - 1)
        self._windows = windows
        self._rows = functional.pad(row, (0, 0, 0, 0, 0, -len(row) % chunk), value=len(windows) - 1)
        self._shape = (chunk, cells, cells, channels)

    def __call__(self, first: int) -> Tensor:
        """(chunk, C, cells, cells), channels-last, of the regions from `first` on, zeros after the last."""
        rows = self._rows[first : first + self._shape[0]]
        if not len(rows):
            return self._windows.new_zeros(self._shape).permute(0, 3, 1, 2)
        return self._windows[rows.reshape(-1)].view(self._shape).permute(0, 3, 1, 2)


def _round_half_away(values: Tensor) -> Tensor:
    """C's round, int64; torch's own rounds halves to even."""
    whole = values.trunc()
    return (whole + ((values - whole).abs() >= 0.5) * values.sign()).long()


def _bins(boxes: Tensor, map_hw: Sequence[int], cells: int, stride: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """First cell and the one after the last of each bin along x, then along y, (R, cells) int64 each, clipped to the
    map.

    As torchvision/csrc/ops/cpu/roi_pool_kernel.cpp: the bin's width and its multiples in float32.
    """
    rows, columns = map_hw
    edges = _round_half_away(boxes.float() * (1.0 / stride))
    first = edges[:, :2, None]  # x and y at once: half as many GPU calls
    width = (edges[:, 2:, None] - first + 1).clamp(min=1).float()
    width = width / torch.full_like(width, cells)  # a GPU multiplies by the reciprocal of a plain number
    bins = torch.arange(cells, device=boxes.device, dtype=torch.float32)
    start = torch.floor(bins * width).long() + first
    end = torch.ceil((bins + 1) * width).long() + first
    x_first, y_first = start[:, 0].clamp(0, columns), start[:, 1].clamp(0, rows)
    x_end, y_end = end[:, 0].clamp(0, columns), end[:, 1].clamp(0, rows)
    return x_first, x_end, y_first, y_end


def _level(widths: Tensor) -> Tensor:
    """The largest k with 2^k <= width, 0 for none; exact, from the exponent of the number."""
    return torch.frexp(widths.clamp(min=1).float()).exponent.long() - 1


def _window_maxima(feature_map: Tensor, num_x: int, num_y: int) -> Tensor:
    """(num_y * num_x * h * w + 1, C): level by level the maxima of windows that start at each cell, then zeros. Windows
    that reach past the map are undefined."""
    channels, rows, columns = feature_map.shape[1:]
    memory = feature_map.new_empty(num_y * num_x * rows * columns + 1, channels)
    memory[-1] = 0
    levels = memory[:-1].view(num_y, num_x, rows, columns, channels)
    levels[0, 0] = feature_map[0].permute(1, 2, 0)
    for x in range(1, num_x):
        step = 2 ** (x - 1)
        before = levels[0, x - 1]
        torch.maximum(before[:, :-step], before[:, step:], out=levels[0, x, :, :-step])
    for y in range(1, num_y):
        step = 2 ** (y - 1)
        before = levels[y - 1]
        torch.maximum(before[:, :-step], before[:, step:], out=levels[y, :, :-step])
    return memory


class RegionAlign:
    """Samples of each bin of each region, some regions at a time; arguments as of `RegionMax`, `map_hw` in cells."""

    def __init__(self, boxes: Tensor, map_hw: tuple[int, int], *, cells: int, stride: int, chunk: int) -> None:
        edges = boxes.float() * (1.0 / stride)
        y_ids, y_weights = _samples(edges[:, 1], edges[:, 3], cells, map_hw[0])
        x_ids, x_weights = _samples(edges[:, 0], edges[:, 2], cells, map_hw[1])
        # (R, cells, 1, 2, 1) and (R, 1, cells, 1, 2): the rows' two neighbours by the columns' two.
        ids = y_ids[:, :, None, :, None] * map_hw[1] + x_ids[:, None, :, None, :]
        weights = y_weights[:, :, None, :, None] * x_weights[:, None, :, None, :]
        padding = -len(boxes) % chunk if len(boxes) else chunk
        self._ids = functional.pad(ids.reshape(-1, cells * cells, 4), (0, 0, 0, 0, 0, padding))
        self._weights = functional.pad(weights.reshape(-1, cells * cells, 4), (0, 0, 0, 0, 0, padding))
        self._shape = (chunk, cells, cells)

    def __call__(self, rows: Tensor, first: int) -> Tensor:
        """(chunk, C, cells, cells) float32, channels-last, of the regions from `first` on; zeros after the last region
        and for bins outside the map. `rows` are (h * w, C), the cells of a map, row by row."""
        ids, weights = (each[first : first + self._shape[0]].reshape(-1, 4) for each in (self._ids, self._weights))
        sampled = functional.embedding_bag(ids, rows, mode="sum", per_sample_weights=weights)
        return sampled.view(*self._shape, -1).permute(0, 3, 1, 2)


def _samples(first: Tensor, last: Tensor, cells: int, limit: int) -> tuple[Tensor, Tensor]:
    """The two cells beside the middle of each bin along one axis, (R, cells, 2) int64, and their weights, float32; both
    weights are 0 for a middle off the map.

    As torchvision/csrc/ops/cpu/roi_align_common.h, not aligned, one sample.
    """
    size = (last - first).clamp(min=1) / cells
    middle = first[:, None] + torch.arange(cells, device=first.device) * size[:, None] + 0.5 * size[:, None]
    is_inside = (middle >= -1) & (middle <= limit)
    middle = middle.masked_fill(~is_inside, 0).clamp(0, limit - 1)
    low = middle.long()
    above = middle - low
    weights = torch.stack([1 - above, above], dim=-1).masked_fill(~is_inside[:, :, None], 0)
    return torch.stack([low, (low + 1).clamp(max=limit - 1)], dim=-1), weights


# Regions that go through the linear heads at once. Their weights are read anew each time, 65 MB at true size; a GPU
# takes little longer for the published 300 proposals than for 64.
CPU_HEAD_ROWS = 64
GPU_HEAD_ROWS = 320


@dataclass(frozen=True)
class RegionOutputs:
    """Outputs of the heads for R regions, float32, in one order for all conventions.

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

    Its weights have background and "no attribute" in the rows that the conventions set; its outputs do not. For a
    network without classes it has no weights, and knows background alone.
    """

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        width, embedding = config.feature_dim, config.feature_dim // 8
        self.has_classes, self.has_attributes = config.num_classes > 0, config.num_attributes > 0
        self.background_first = conventions.background == "first"
        self.no_attribute = conventions.no_attribute
        self.attribute_class = conventions.attribute_class
        self.background_deltas = conventions.region_deltas == "with-background"
        if self.has_classes:
            self.cls_score = nn.Linear(width, config.num_classes + 1)
            self.bbox_pred = nn.Linear(width, 4 * (config.num_classes + self.background_deltas))
        if self.has_attributes:
            self.cls_embedding = nn.Embedding(config.num_classes + 1, embedding)
            self.fc_attr = nn.Linear(width + embedding, width // 4)
            self.attr_score = nn.Linear(width // 4, config.num_attributes + (conventions.no_attribute != "none"))

    def forward(self, features: Tensor) -> RegionOutputs:
        if not self.has_classes:
            logits, deltas = ((len(features), width) for width in (1, 0)), (len(features), 0, 4)
            return RegionOutputs(features, *map(features.new_zeros, (*logits, deltas)))
        class_logits = self.cls_score(features)
        best_class = class_logits.argmax(dim=1)  # background included, as in training
        if self.attribute_class == "kept":  # of most regions the best foreground class
            foreground = class_logits[:, 1:] if self.background_first else class_logits[:, :-1]
            best_class = self.class_rows(foreground.argmax(dim=1))
        deltas = self.bbox_pred(features).view(len(features), -1, 4)
        if self.background_deltas:
            deltas = deltas[:, 1:] if self.background_first else deltas[:, :-1]
        return RegionOutputs(
            features,
            class_logits.roll(-1, dims=1) if self.background_first else class_logits,
            self.attribute_logits(features, best_class),
            deltas,
        )

    def class_rows(self, class_ids: Tensor) -> Tensor:
        """Rows of the embedding of 0-based foreground classes."""
        return class_ids + int(self.background_first)

    def attribute_logits(self, features: Tensor, class_rows: Tensor) -> Tensor:
        """(R, A + 1), "no attribute" last (`NO_SHARE` where the network has none), beside the embedding of given
        classes; (R, 0) without an attribute head.

        Args:
            class_rows: (R,) int64, rows of the embedding: background is where the conventions put it.
        """
        if not self.has_attributes:
            return features.new_zeros(len(features), 0)
        hidden = functional.relu(self.fc_attr(torch.cat([features, self.cls_embedding(class_rows)], dim=1)))
        logits = self.attr_score(hidden)
        if self.no_attribute == "none":
            return functional.pad(logits, (0, 1), value=NO_SHARE)
        return logits.roll(-1, dims=1) if self.no_attribute == "first" else logits


class RoIHeads(nn.Module):
    """Pooling, res5, mean and the linear heads, in chunks of fixed numbers of regions. Without gradients: training
    calls these parts one by one."""

    def __init__(self, config: DetectorConfig, conventions: Conventions) -> None:
        super().__init__()
        self.config, self.conventions = config, conventions
        self.res5 = build_res5(config, conventions)
        self.box_predictor = BoxPredictor(config, conventions)

    def forward(self, feature_map: Tensor, boxes: Tensor) -> RegionOutputs:
        """Outputs for a map (1, C, h, w) float32 and (R, 4) boxes in network-input pixels; R may be 0."""
        chunk = self.config.region_chunk or CPU_REGION_CHUNK
        return self.describe(feature_map, boxes, features_of(self.res5), chunk)

    def describe(
        self, feature_map: Tensor, boxes: Tensor, describe_chunk: Callable[[Tensor], Tensor], chunk: int
    ) -> RegionOutputs:
        """See `forward`, with another form of the last stage.

        Args:
            describe_chunk: (chunk, C, cells, cells) pooled regions of the map's type -> (chunk, D) float32 features;
                it must not overwrite its input.
        """
        pooled = self._pooled_chunks(feature_map, boxes, chunk)
        # One shape for every chunk: kernels choose their order of summation by shape, and with it the last digits.
        # No regions still run one chunk of zeros, so that empty outputs have the right widths.
        starts = range(0, max(len(boxes), 1), chunk)
        return self.judge((describe_chunk(pooled(start)) for start in starts), len(boxes))

    def judge(self, chunks: Iterable[Tensor], count: int) -> RegionOutputs:
        """Outputs of the linear heads for chunks of features, (chunk, D) float32 each, of which the first `count` rows
        are regions; there is at least one chunk."""
        features = torch.cat(list(chunks))
        parts = [self.box_predictor(rows) for (rows,) in _head_rows(features)]
        return RegionOutputs(
            *(torch.cat([getattr(part, f.name) for part in parts])[:count] for f in fields(RegionOutputs))
        )

    def attributes(self, features: Tensor, class_ids: Tensor) -> Tensor:
        """(R, A + 1) attribute logits, "no attribute" last, of (R, D) features beside (R,) foreground classes."""
        parts = _head_rows(features, self.box_predictor.class_rows(class_ids))
        return torch.cat([self.box_predictor.attribute_logits(*part) for part in parts])[: len(features)]

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


def _head_rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of the tensors, as many at once as the linear heads take; zeros after the last."""
    at_once = CPU_HEAD_ROWS if tensors[0].device.type == "cpu" else GPU_HEAD_ROWS
    padding = -len(tensors[0]) % at_once if len(tensors[0]) else at_once
    padded = (functional.pad(each, (*(0, 0) * (each.dim() - 1), 0, padding)) for each in tensors)
    return zip(*(each.split(at_once) for each in padded), strict=True)


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
    samples, aligned = {"roi-align-0": (0, False), "roi-align-1": (1, False)}.get(conventions.region_pool, (2, True))
    return roi_align(feature_map, boxes, cells, 1.0 / FEATURE_STRIDE, sampling_ratio=samples, aligned=aligned)
