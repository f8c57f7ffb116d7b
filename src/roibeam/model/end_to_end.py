"""A model that trains through its region encoder: features are made from pixels in every step, gradients go back.

    network input, boxes -> region encoder -> VLBatch.region_features -> any of the models -> losses
    store                -> targets, which never move

Masking of the photos is done before (extraction/region_encoder.py resizes, mirrors and blanks). The encoder is passed
in; here it is a protocol. docs/train.md has the choices of each system, and their reasons.

Shapes: B rows, R regions, D feature width; H, W of the network input, pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from roibeam.messages import short_repr
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.pretraining import PreTrainingModel


class RegionEncoderProtocol(Protocol):
    """Pixels and boxes to features with gradients; a `torch.nn.Module` (extraction/region_encoder.py is one)."""

    @property
    def feature_dim(self) -> int:
        """D, numbers in a feature."""

    def __call__(
        self, pixels: Tensor, boxes: Tensor, region_mask: Tensor, cell_weights: Tensor | None = None
    ) -> Tensor:
        """(B, R, D), zeros without a box, from pixels (B, 3, H, W) and boxes (B, R, 4) in them, of which `region_mask`
        (B, R) bool marks the real ones; B and R may be 0. `cell_weights` as in `ImageBatch`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageBatch:
    """Photos of a `VLBatch` as the encoder reads them; rows and regions stand in the same order.

    Rows of text alone (`VLBatch.text_only`) have no photo and no row here: B counts the others.

    Attributes:
        pixels: (B, 3, H, W) float, mean removed, zeros right of and below each photo.
        boxes: (B, R, 4) float, x1 y1 x2 y2 in pixels of `pixels`; rows of padding are not read.
        blanked_regions: (B, R) bool, True where the box is blank in `pixels`.
        whole_image_boxes: (B, 4) float, the box of the whole photo in pixels of `pixels`; only for whole images that
            come from a "box".
        cell_weights: (B, R, h, w) float, weight of each cell of a region in the mean over its cells: VCR's instance
            masks. The whole image has no such mask.
    """

    pixels: Tensor
    boxes: Tensor
    blanked_regions: Tensor
    whole_image_boxes: Tensor | None = None
    cell_weights: Tensor | None = None

    __repr__ = short_repr

    def part(self, first: int, end: int) -> ImageBatch:
        """Photos `first` to `end`, the last not included, with the padding they have here."""
        return self._each(lambda tensor: tensor[first:end])

    def to(self, device: torch.device | str) -> ImageBatch:
        """The same batch with every tensor on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def _each(self, made: Callable[[Tensor], Tensor]) -> ImageBatch:
        changed: dict[str, Any] = {name: made(each) for name, each in vars(self).items() if each is not None}
        return replace(self, **changed)


class EndToEndModel(nn.Module):
    """A model and the encoder of its regions as one module: one state, one optimizer, one forward pass.

    Args:
        model: any model, with pre-training heads or those of a task: a call takes a `VLBatch` first. Its config
            sets the replacement of a masked region (`masked_appearance`).
        region_encoder: a `torch.nn.Module`; its frozen stages stay as they are.
        choices: see `EndToEndChoices`.

    Raises:
        ValueError: if the encoder's features are not as wide as the model's, a model that reads masked regions would
            read whole ones, or a whole image is chosen that the model does not read, or left out of one that needs it.
    """

    def __init__(self, model: nn.Module, region_encoder: RegionEncoderProtocol, choices: EndToEndChoices) -> None:
        super().__init__()
        config: Any = model.config
        if config.region_feature_size != region_encoder.feature_dim:
            raise ValueError(
                f"the model reads region features of width {config.region_feature_size} (region_feature_size), the "
                f"region encoder makes {region_encoder.feature_dim}; give both the same width"
            )
        if choices.whole_image == "box" and not getattr(config, "reads_whole_image", True):
            raise ValueError(
                f"{type(model).__name__} reads no feature of the whole image: set whole_image='model', or it would be "
                f"made for nothing"
            )
        reads_masked = getattr(config, "masked_appearance", None) == "pixels"
        if reads_masked and choices.masked_pixels == "whole":
            raise ValueError(
                "masked_appearance 'pixels' gives the model the features of masked regions, so their pixels must be "
                "blank: set masked_pixels='blank'"
            )
        if choices.masked_pixels == "shown" and not (reads_masked and getattr(config, "masked_region_token", False)):
            raise ValueError(
                "masked_pixels 'shown' is of a VL-BERT with masked_appearance 'pixels' and masked_region_token, which "
                "knows a masked region by its token; set masked_pixels to 'blank' or 'whole'"
            )
        if choices.whole_image == "model" and getattr(config, "needs_whole_image", False):
            raise ValueError(
                f"{type(model).__name__} with masked_appearance 'pixels' needs a feature of the whole image: set "
                f"whole_image='box', or another masked_appearance"
            )
        self.model = model
        self.region_encoder = region_encoder
        self.choices = choices
        self.regresses_features = bool(getattr(config, "with_region_feature_head", False))

    def forward(self, batch: VLBatch, images: ImageBatch, *arguments: Any, **options: Any) -> Any:
        """The model's output on freshly computed features: losses, or a `VLOutput` for the head of a task. Further
        arguments are those of the model's call, such as ViLBERT's generator."""
        return self.model(self.with_features(batch, images), *arguments, **options)

    def activation_checkpointing_enable(self) -> None:
        """Enables it in the model's layers; the encoder has its own argument for recomputing blocks."""
        cast(PreTrainedModel, self.model).activation_checkpointing_enable()

    def encode(
        self, batch: VLBatch, images: ImageBatch, *, with_attention: bool = False, with_states: bool = False
    ) -> VLOutput:
        """See `PreTrainingModel.encode`, for a model with pre-training heads."""
        model = cast(PreTrainingModel, self.model)
        rows = self.with_features(batch, images)
        return model.encode(rows, with_attention=with_attention, with_states=with_states)

    def with_features(self, batch: VLBatch, images: ImageBatch) -> VLBatch:
        """`batch` with the encoder's features in place of its own: input of any model or task head.

        Args:
            batch: as for stored features, boxes and all. Its `region_features` are the stored ones, for models that
                regress them, or (B, R, 0) if the store keeps none. `region_targets` come from the store.
        Raises:
            ValueError: if photos and regions do not belong together, if a masked region is not blank (or a blank
                one is there where photos should be whole), or if a target carries a gradient or would be a freshly
                computed feature.
        """
        with_image = slice(None) if batch.text_only is None else ~batch.text_only
        region_mask = batch.region_mask[with_image]
        self._check_images(images, region_mask)
        self._check_blanks(batch, images.blanked_regions, with_image)
        batch = self._with_frozen_targets(batch)
        boxes, weights = images.boxes, images.cell_weights
        whole_box = images.whole_image_boxes
        if whole_box is not None:
            boxes = torch.cat([whole_box[:, None], boxes], dim=1)
            region_mask = functional.pad(region_mask, (1, 0), value=True)
            weights = None if weights is None else functional.pad(weights, (0, 0, 0, 0, 1, 0), value=1.0)
        found = self.region_encoder(images.pixels, boxes, region_mask, weights)
        features = found
        if batch.text_only is not None:
            features = found.new_zeros(batch.batch_size, *found.shape[1:])
            features[with_image] = found
        if whole_box is None:
            return replace(batch, region_features=features, whole_image_features=None)
        return replace(batch, region_features=features[:, 1:], whole_image_features=features[:, 0])

    def _with_frozen_targets(self, batch: VLBatch) -> VLBatch:
        """Targets without gradient: class targets unchanged, regression targets from the stored features."""
        if self.regresses_features and batch.region_target_mask is not None and batch.region_feature_targets is None:
            if not batch.region_features.shape[-1]:
                raise ValueError(
                    "this model regresses features: hand over the stored ones as region_features or "
                    "region_feature_targets; those of this moment would be a target that moves"
                )
            batch = replace(batch, region_feature_targets=batch.region_features)
        for name in ("region_targets", "region_feature_targets"):
            target = getattr(batch, name)
            if target is not None and target.requires_grad:
                raise ValueError(
                    f"{name} carries a gradient; targets are frozen: take them from the store, or detach them"
                )
        return batch

    def _check_images(self, images: ImageBatch, region_mask: Tensor) -> None:
        """Checks that the shapes are those of the rows that have an image."""
        rows, count = region_mask.shape
        pixels, boxes, blanked, whole = images.pixels, images.boxes, images.blanked_regions, images.whole_image_boxes
        if (
            pixels.ndim != 4
            or pixels.shape[:2] != (rows, 3)
            or boxes.shape != (rows, count, 4)
            or blanked.shape != (rows, count)
            or blanked.dtype != torch.bool
        ):
            raise ValueError(
                f"an image batch for {rows} images of {count} regions has pixels ({rows}, 3, H, W), boxes "
                f"({rows}, {count}, 4) and blanked_regions ({rows}, {count}) bool; got {tuple(pixels.shape)}, "
                f"{tuple(boxes.shape)} and {tuple(blanked.shape)} {blanked.dtype}"
            )
        from_box = self.choices.whole_image == "box"
        if from_box != (whole is not None) or (whole is not None and whole.shape != (rows, 4)):
            raise ValueError(
                f"whole_image is {self.choices.whole_image!r}: whole_image_boxes must be "
                f"{f'({rows}, 4)' if from_box else 'left out'}, got {'none' if whole is None else tuple(whole.shape)}"
            )

    def _check_blanks(self, batch: VLBatch, blanked: Tensor, with_image: slice | Tensor) -> None:
        """Checks that the photos hide exactly the regions of the run's masking setting."""
        real = batch.region_mask[with_image]
        if self.choices.masked_pixels != "blank":
            wrong, fault = blanked & real, f"blank though masked_pixels is {self.choices.masked_pixels!r}"
        else:
            wrong, fault = batch.masked_regions[with_image] & real & ~blanked, "masked but not blank in the pixels"
        if bool(wrong.any()):
            image, region = wrong.nonzero()[0].tolist()
            row = int(torch.arange(batch.batch_size, device=real.device)[with_image][image])
            if batch.row_images is not None:
                row = int((batch.row_images == image).nonzero()[0])
            sample = f" of sample {batch.sample_ids[row]!r}" if batch.sample_ids else ""
            raise ValueError(f"row {row}{sample}: region {region} is {fault}")
