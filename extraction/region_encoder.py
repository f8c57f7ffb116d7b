"""Pixels and boxes to region features with gradients: the detector's bricks as part of a model that is trained.

pixels -> backbone -> pool_regions -> res5 -> mean -> features

jackroos/VL-BERT common/fast_rcnn.py, whose arithmetic is the preset "vlbert-e2e". What comes before, from photos to a
padded batch, is region_batch.py.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from extraction.config import DetectorConfig
from extraction.conventions import CONVENTIONS, Conventions
from extraction.resnet import Backbone, build_res5
from extraction.roi_heads import pool_regions
from extraction.weights import part_state

# Numbers of the stages that can be frozen, as VL-BERT's IMAGE_FROZEN_BACKBONE_STAGES counts them.
STAGES = {1: "backbone.stem", 2: "backbone.res2", 3: "backbone.res3", 4: "backbone.res4", 5: "roi_heads.res5"}


class RegionEncoder(nn.Module):
    """ResNet to stride 16, pooled regions, res5, mean. It computes the same in training and in evaluation mode.

    Its parameters have the names they have in a `Detector`, so that one file serves both (`load_encoder_weights`).
    Every batch norm is fixed, statistics and affine, as in the release; convolutions are trained, except in frozen
    stages.

    Args:
        config: sizes; of the edges and what concerns proposals and classes nothing is used here.
        conventions: None means the preset "vlbert-e2e".
        frozen_stages: stages without gradients: 1 stem, 2 res2, 3 res3, 4 res4, 5 res5.
        backbone: (B, 3, H, W) -> (B, config.map_channels, about H/16, about W/16), with parts named as those of
            `Backbone`. None means that.

    Raises:
        ValueError: for a stage that is none of these.
    """

    def __init__(
        self,
        config: DetectorConfig,
        conventions: Conventions | None = None,
        *,
        frozen_stages: Collection[int] = (1, 2),
        backbone: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if unknown := sorted(set(frozen_stages) - set(STAGES)):
            raise ValueError(f"frozen_stages has {unknown}; there are {STAGES}")
        self.config = config
        self.conventions = conventions or CONVENTIONS["vlbert-e2e"]
        self.backbone = backbone or Backbone(config, self.conventions)
        self.roi_heads = nn.ModuleDict({"res5": build_res5(config, self.conventions)})
        for stage in frozen_stages:
            self.get_submodule(STAGES[stage]).requires_grad_(False)

    @property
    def feature_dim(self) -> int:
        """D, numbers in a region feature."""
        return self.config.feature_dim

    def forward(self, pixels: Tensor, boxes: Tensor, region_mask: Tensor, cell_weights: Tensor | None = None) -> Tensor:
        """Features of the real boxes of a batch.

        Zero padding is not free: the first batch norm turns it into a constant, so a photo's map, and with it its
        features, differ between a padded batch and the photo alone, most near the right and bottom. That is how the
        release trains. What else a batch holds, and the order of boxes, changes nothing.

        Args:
            pixels: (B, 3, H, W) float, mean removed, zeros right of and below each photo.
            boxes: (B, R, 4) float, x1 y1 x2 y2 in pixels of `pixels`, x1 <= x2, y1 <= y2; R may be 0.
            region_mask: (B, R) bool, True at real boxes; the others are not computed.
            cell_weights: (B, R, h, w), what each cell of res5 counts before the mean over all cells: VCR's instance
                masks, h = w = 14 where res5 keeps the pooled size.
        Returns:
            (B, R, D), zeros where there is no box; float32, or autocast's type inside autocast.
        Raises:
            ValueError: for shapes that do not belong together.
        """
        batch_size, count = region_mask.shape
        if region_mask.dtype != torch.bool or boxes.shape != (batch_size, count, 4) or len(pixels) != batch_size:
            raise ValueError(
                f"a region encoder takes pixels (B, 3, H, W), boxes (B, R, 4) and region_mask (B, R) bool; got "
                f"{tuple(pixels.shape)}, {tuple(boxes.shape)} and {tuple(region_mask.shape)} {region_mask.dtype}"
            )
        feature_map = self.backbone(pixels)
        real = [rows[mask] for rows, mask in zip(boxes, region_mask, strict=True)]
        # In float32 also under autocast: half-precision coordinates move a box by whole cells.
        pooled = pool_regions(feature_map.float(), real, self.conventions, cells=self.config.pooled_cells)
        cells = self.roi_heads["res5"](pooled)
        if cell_weights is not None:
            if cell_weights.shape != (batch_size, count, *cells.shape[2:]):
                raise ValueError(
                    f"cell_weights must be {(batch_size, count, *cells.shape[2:])}, the cells of res5; got "
                    f"{tuple(cell_weights.shape)}"
                )
            cells = cells * cell_weights[region_mask][:, None].to(cells.dtype)
        found = cells.mean(dim=(2, 3))
        features = found.new_zeros(batch_size, count, found.shape[1])
        features[region_mask] = found
        return features


def load_encoder_weights(spec: str, encoder: RegionEncoder, *, cache_dir: Path | None = None) -> None:
    """Loads every weight of `encoder`, or none: from a ResNet's file, a whole detector's or VL-BERT's own checkpoint.

    Args:
        spec: `random:<seed>`, or a file as `load_weights` takes it.
        cache_dir: where fetched files are kept; None means `default_cache_dir()`.
    Raises:
        ValueError: when the file cannot be read as tensors or its ResNet is not exactly the encoder's; all is listed.
        OSError: when it cannot be fetched.
    """
    encoder.load_state_dict(part_state(spec, encoder.state_dict(), cache_dir=cache_dir), strict=True)
