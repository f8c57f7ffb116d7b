"""Region encoder: photos and boxes to region features with gradients, the detector's bricks as part of a trained model.

    photos with boxes -> prepare_photo -> collate_photos -> one zero-padded batch
    pixels -> backbone -> pool_regions -> res5 -> mean -> features

jackroos/VL-BERT common/fast_rcnn.py, whose arithmetic is the preset "vlbert-e2e".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roibeam.extraction.network.boxes import checked_boxes, checked_mask, clip_boxes
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, Conventions
from roibeam.extraction.network.precision import at_least_float32
from roibeam.extraction.network.resnet import Backbone, build_res5
from roibeam.extraction.network.roi_heads import pool_regions
from roibeam.extraction.photos.preprocessing import blank_photo, blank_regions, check_pixels, preprocess
from roibeam.extraction.weights.loading import part_state
from roibeam.messages import short_repr

PADDING_COORDINATE = -2.0  # of rows without a box; jackroos/VL-BERT pretrain/data/collate_batch.py


@dataclass(frozen=True, eq=False)
class PreparedPhoto:
    """One photo and its boxes as inputs of the network.

    Attributes:
        pixels: (3, H, W) float32, mean removed.
        boxes: (R, 4) float32, x1 y1 x2 y2 in pixels of `pixels`, inside the photo; R may be 0.
        input_hw: (height', width') of the resized photo in them, pixels.
        image_hw: (height, width) of the photo, pixels.
        scale_xy: (2,) float32, network-input pixels per photo pixel, across and down.
    """

    pixels: Tensor
    boxes: Tensor
    input_hw: tuple[int, int]
    image_hw: tuple[int, int]
    scale_xy: Tensor

    __repr__ = short_repr


@dataclass(frozen=True, eq=False)
class RegionBatch:
    """B photos, padded at the right and bottom, and R boxes each, padded at the end.

    Attributes:
        pixels: (B, 3, H, W) float32, zeros beside the photos.
        boxes: (B, R, 4) float32, x1 y1 x2 y2 in pixels of `pixels`; -2 in padded rows.
        region_mask: (B, R) bool, True at real boxes.
        input_hw: (B, 2) float32, height and width of the resized photos, pixels.
        image_hw: (B, 2) float32, height and width of the photos, pixels.
        scale_xy: (B, 2) float32, network-input pixels per photo pixel, across and down.
    """

    pixels: Tensor
    boxes: Tensor
    region_mask: Tensor
    input_hw: Tensor
    image_hw: Tensor
    scale_xy: Tensor

    __repr__ = short_repr

    def to(self, device: torch.device | str) -> RegionBatch:
        """The same batch on `device`."""
        return RegionBatch(*(tensor.to(device, non_blocking=True) for tensor in vars(self).values()))

    @property
    def photo_boxes(self) -> Tensor:
        """(B, R, 4) float32, the boxes in pixels of the photos; of their mirror images if they were flipped."""
        return self.boxes / self.scale_xy.repeat(1, 2)[:, None]


def prepare_photo(
    image: np.ndarray,
    boxes: np.ndarray,
    config: DetectorConfig,
    conventions: Conventions,
    *,
    flip: bool = False,
    masked: np.ndarray | None = None,
    blank_before_resize: bool = False,
) -> PreparedPhoto:
    """Resizes a photo, removes the mean, optionally mirrors it, and hides regions, together with its boxes.

    In the order of jackroos/VL-BERT pretrain/data (conceptual_captions.py, transforms/transforms.py).

    Args:
        image: (height, width, 3) uint8, channel order B, G, R, decoded by `conventions.exif_orientation`.
        boxes: (R, 4), x1 y1 x2 y2 in photo pixels. VL-BERT puts the whole image, [0, 0, width - 1, height - 1], first.
        masked: (R,) bool, regions whose pixels are blanked (`blank_regions`) for all regions of the photo, or None.
        blank_before_resize: whether they are blanked in the photo too (`blank_photo`), so that the resize carries
            nothing over the edge of a box.
    Raises:
        ValueError: for another image, boxes of another shape, not finite or with x2 < x1 or y2 < y1, another mask.
    """
    in_photo = checked_boxes(boxes)
    hidden = None if masked is None else checked_mask(masked, len(in_photo))
    if hidden is not None and blank_before_resize:
        check_pixels(image)
        image = blank_photo(image, in_photo[hidden].numpy(), conventions)
    network_input = preprocess(image, config, conventions)
    height, width = network_input.input_hw
    photo_height, photo_width = network_input.image_hw
    scale_xy = torch.stack([_ratio(width, photo_width), _ratio(height, photo_height)])
    if conventions.box_scale == "one-factor":
        scale_xy = torch.full((2,), network_input.factor)
    pixels = network_input.pixels[0]
    if flip:
        pixels[:, :height, :width] = pixels[:, :height, :width].flip(-1)
    placed = place_boxes(in_photo, (height, width), scale_xy, conventions, flip=flip)
    if hidden is not None:
        pixels = blank_regions(pixels, placed[hidden])
    return PreparedPhoto(pixels, placed, (height, width), network_input.image_hw, scale_xy)


def place_boxes(
    boxes: Tensor, input_hw: tuple[int, int], scale_xy: Tensor, conventions: Conventions, *, flip: bool = False
) -> Tensor:
    """(R, 4) boxes in photo pixels -> in those of the network's input, optionally mirrored, and clipped to it; sizes
    and scale as of `PreparedPhoto`."""
    height, width = input_hw
    last_pixel = conventions.last_pixel
    placed = boxes * scale_xy.repeat(2)
    if flip:
        placed[:, [0, 2]] = (width - 1 if last_pixel else width) - placed[:, [2, 0]]
    return clip_boxes(placed, (height, width), last_pixel=last_pixel)


def collate_photos(photos: Sequence[PreparedPhoto]) -> RegionBatch:
    """Pads to the largest height, width and number of boxes."""
    if not photos:
        raise ValueError("a region batch needs at least one photo, got none")
    height, width = (max(photo.pixels.shape[axis] for photo in photos) for axis in (1, 2))
    count = max(len(photo.boxes) for photo in photos)
    pixels = torch.zeros(len(photos), 3, height, width)
    boxes = torch.full((len(photos), count, 4), PADDING_COORDINATE)
    region_mask = torch.zeros(len(photos), count, dtype=torch.bool)
    for row, photo in enumerate(photos):
        pixels[row, :, : photo.pixels.shape[1], : photo.pixels.shape[2]] = photo.pixels
        boxes[row, : len(photo.boxes)] = photo.boxes
        region_mask[row, : len(photo.boxes)] = True
    return RegionBatch(
        pixels,
        boxes,
        region_mask,
        input_hw=torch.tensor([photo.input_hw for photo in photos], dtype=torch.float32),
        image_hw=torch.tensor([photo.image_hw for photo in photos], dtype=torch.float32),
        scale_xy=torch.stack([photo.scale_xy for photo in photos]),
    )


def padded_to_edges(pixels: Tensor, short_edge: int, long_edge: int) -> Tensor:
    """(3, h, w) -> (3, short, long), or (3, long, short) of one that is higher than wide; zeros right and below."""
    high, wide = pixels.shape[1:]
    edges = (short_edge, long_edge) if high <= wide else (long_edge, short_edge)
    padded = pixels.new_zeros(pixels.shape[0], *edges)
    padded[:, :high, :wide] = pixels
    return padded


def _ratio(new: int, old: int) -> Tensor:
    """new / old with the release's rounding: times the reciprocal, in float32.

    A last digit more or less moves int(y1) of a box that ends on a whole pixel, and with it which row is blanked.
    """
    return torch.tensor(1.0) if new == old else torch.tensor(float(old)).reciprocal() * new


# Numbers of the stages that can be frozen, as in VL-BERT's IMAGE_FROZEN_BACKBONE_STAGES.
STAGES = {1: "backbone.stem", 2: "backbone.res2", 3: "backbone.res3", 4: "backbone.res4", 5: "roi_heads.res5"}

_OF_MASKS = "mask_conv."  # parameters that no ResNet's file has


class RegionEncoder(nn.Module):
    """ResNet to stride 16, pooled regions, res5, mean. It computes the same in training and in evaluation mode.

    Its parameters have the names they have in a `Detector`, so that one file serves both (`load_encoder_weights`).
    Every batch norm is fixed, statistics and affine, as in the release; convolutions are trained, except in frozen
    stages.

    Args:
        config: sizes; its edges, proposals and classes are not used here.
        conventions: None means the preset "vlbert-e2e".
        frozen_stages: stages without gradients: 1 stem, 2 res2, 3 res3, 4 res4, 5 res5.
        backbone: (B, 3, H, W) -> (B, config.map_channels, about H/16, about W/16), with parts named as those of
            `Backbone`. None means `Backbone`.
        region_chunk: regions that are pooled and go through res5 at once, None for all; changes last digits only.
        mask_channels: number of channels of the pooled map that hold outlines of objects, before res5, by a
            convolution (rowanz/r2c utils/detector.py: 32), instead of weighing its cells; 0 weighs.
        recompute: blocks of the trained stages, and chunks of regions, are computed again in the backward pass instead
            of kept in memory: the same numbers for about a third more time.
    """

    def __init__(
        self,
        config: DetectorConfig,
        conventions: Conventions | None = None,
        *,
        frozen_stages: Collection[int] = (1, 2),
        backbone: nn.Module | None = None,
        region_chunk: int | None = None,
        recompute: bool = False,
        mask_channels: int = 0,
    ) -> None:
        super().__init__()
        if region_chunk is not None and region_chunk < 1:
            raise ValueError(f"region_chunk is {region_chunk}; it must be at least 1, or None for all regions at once")
        if unknown := sorted(set(frozen_stages) - set(STAGES)):
            raise ValueError(f"frozen_stages has {unknown}; there are {STAGES}")
        self.config = config
        self.conventions = conventions or CONVENTIONS["vlbert-e2e"]
        self.backbone = backbone or Backbone(config, self.conventions)
        self.region_chunk, self.recompute = region_chunk, recompute
        self.frozen_stages = tuple(sorted(frozen_stages))
        self.roi_heads = nn.ModuleDict({"res5": build_res5(config, self.conventions)})
        if not 0 <= mask_channels <= config.map_channels:
            raise ValueError(f"mask_channels is {mask_channels}; the map has {config.map_channels} channels")
        self.mask_channels = mask_channels
        self.mask_conv = nn.Conv2d(1, mask_channels, 3, stride=2, padding=1) if mask_channels else None
        for stage in self.frozen_stages:
            self.get_submodule(STAGES[stage]).requires_grad_(False)

    @property
    def feature_dim(self) -> int:
        """D, numbers in a region feature."""
        return self.config.feature_dim

    @property
    def mask_cells(self) -> int:
        """Cells each way of `cell_weights`."""
        cells = self.config.pooled_cells
        return 2 * cells if self.mask_channels else -(-cells // self.conventions.res5_stride)

    def forward(self, pixels: Tensor, boxes: Tensor, region_mask: Tensor, cell_weights: Tensor | None = None) -> Tensor:
        """Features of the real boxes of a batch.

        Zero padding is not free: the first batch norm turns it into a constant, so a photo's map, and with it its
        features, differ between a padded batch and the photo alone, most near the right and bottom. That is how the
        release trains. Other photos of a batch, and the order of boxes, change nothing.

        Args:
            pixels: (B, 3, H, W) float, mean removed, zeros right of and below each photo; B may be 0.
            boxes: (B, R, 4) float, x1 y1 x2 y2 in pixels of `pixels`, x1 <= x2, y1 <= y2; R may be 0.
            region_mask: (B, R) bool, True at real boxes; the others are not computed.
            cell_weights: (B, R, h, w), weight of each cell of res5 in the mean over all cells: VCR's instance
                masks, h = w = `mask_cells`; with mask channels, 1 inside an outline, None for whole boxes.
        Returns:
            (B, R, D), zeros without a box; of the type of the weights, or autocast's inside autocast.
        """
        batch_size, count = region_mask.shape
        if region_mask.dtype != torch.bool or boxes.shape != (batch_size, count, 4) or len(pixels) != batch_size:
            raise ValueError(
                f"a region encoder takes pixels (B, 3, H, W), boxes (B, R, 4) and region_mask (B, R) bool; got "
                f"{tuple(pixels.shape)}, {tuple(boxes.shape)} and {tuple(region_mask.shape)} {region_mask.dtype}"
            )
        if cell_weights is not None and cell_weights.shape[:2] != (batch_size, count):
            raise ValueError(
                f"cell_weights must be ({batch_size}, {count}, h, w), one map for each box; got "
                f"{tuple(cell_weights.shape)}"
            )
        feature_map = self._feature_map(pixels)
        # At least float32, also under autocast: half-precision coordinates move a box by whole cells.
        precise = at_least_float32(feature_map)
        # Waits twice for a GPU, not once for each photo.
        counts, places = region_mask.sum(dim=1).tolist(), region_mask.flatten().nonzero().flatten()
        real = list(boxes.flatten(0, 1)[places].split(counts))
        weights = None if cell_weights is None else cell_weights.flatten(0, 1)[places]
        total = len(places)
        chunk = self.region_chunk or max(total, 1)
        # No regions still run once, so that the features have their width, and every parameter a gradient.
        parts = [
            self._run(
                self._describe, precise, _rows(real, start, start + chunk), None if weights is None else weights[start:]
            )
            for start in range(0, max(total, 1), chunk)
        ]
        found = parts[0] if len(parts) == 1 else torch.cat(parts)
        features = found.new_zeros(batch_size * count, found.shape[1])
        return features.index_copy(0, places, found[:total]).view(batch_size, count, found.shape[1])

    def _feature_map(self, pixels: Tensor) -> Tensor:
        """The res4 map, block by block if blocks are computed again."""
        if not self.recompute:
            return self.backbone(pixels)
        feature_map = self.backbone.get_submodule("stem")(pixels)
        for name in ("res2", "res3", "res4"):
            for block in self.backbone.get_submodule(name).children():
                feature_map = self._run(block, feature_map)
        return feature_map

    def _describe(self, feature_map: Tensor, boxes: list[Tensor], cell_weights: Tensor | None) -> Tensor:
        """(n, D) features of the n boxes of some images; `cell_weights` may have more than n rows."""
        pooled = pool_regions(feature_map, boxes, self.conventions, cells=self.config.pooled_cells)
        if self.mask_conv is not None:
            return self.roi_heads["res5"](self._with_outlines(pooled, cell_weights)).mean(dim=(2, 3))
        cells = self.roi_heads["res5"](pooled)
        if cell_weights is not None:
            if cell_weights.shape[1:] != cells.shape[2:]:
                raise ValueError(
                    f"cell_weights are {tuple(cell_weights.shape[1:])}, the cells of res5 {tuple(cells.shape[2:])}"
                )
            cells = cells * cell_weights[: len(cells), None].to(cells.dtype)
        return cells.mean(dim=(2, 3))

    def _with_outlines(self, pooled: Tensor, outlines: Tensor | None) -> Tensor:
        """(n, C, cells, cells), the outlines added to the first channels."""
        assert self.mask_conv is not None
        side, count = self.mask_cells, len(pooled)
        masks = pooled.new_ones(count, side, side) if outlines is None else outlines[:count].to(pooled.dtype)
        if masks.shape[1:] != (side, side):
            raise ValueError(f"cell_weights are {tuple(masks.shape[1:])}, this encoder takes {side} x {side} cells")
        first = pooled[:, : self.mask_channels] + self.mask_conv(masks[:, None] - 0.5)
        return torch.cat([first, pooled[:, self.mask_channels :]], dim=1)

    def _run(self, part: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """`part(*inputs)`, with its activations kept for the backward pass or computed again."""
        if not (self.recompute and torch.is_grad_enabled()):
            return part(*inputs)
        return checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)


def _rows(boxes: list[Tensor], start: int, end: int) -> list[Tensor]:
    """Boxes from `start` to `end`, counted through all images, still by image."""
    chosen, before = [], 0
    for rows in boxes:
        chosen.append(rows[max(start - before, 0) : max(end - before, 0)])
        before += len(rows)
    return chosen


def load_encoder_weights(spec: str, encoder: RegionEncoder, *, cache_dir: Path | None = None) -> None:
    """Loads every weight of `encoder`, or none: from a ResNet's file, a whole detector's or VL-BERT's own checkpoint.
    Layers that read outlines keep their initial weights.

    Args:
        spec: `random:<seed>`, or a file as `load_weights` takes it.
        cache_dir: folder of fetched files; None means `default_cache_dir()`.
    Raises:
        ValueError: if the file cannot be read as tensors or its ResNet is not exactly the encoder's; all is listed.
        OSError: if it cannot be fetched.
    """
    expected = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith(_OF_MASKS)}
    found = part_state(spec, expected, cache_dir=cache_dir)
    encoder.load_state_dict({**encoder.state_dict(), **found}, strict=True)


def started_encoder(
    config: DetectorConfig, conventions: Conventions, start: str | RegionEncoder, **options: Any
) -> RegionEncoder:
    """A new encoder with its initial weights: those of a file as `load_encoder_weights` takes it, or of another
    encoder. The options are those of `RegionEncoder`."""
    encoder = RegionEncoder(config, conventions, **options)
    if isinstance(start, RegionEncoder):
        encoder.load_state_dict({**encoder.state_dict(), **start.state_dict()})
    else:
        load_encoder_weights(start, encoder)
    return encoder.to(memory_format=torch.channels_last)  # a third less time on a CPU
