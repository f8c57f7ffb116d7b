"""Region encoder of an end-to-end run: its input, and how far it moves.

RUN/encoder.json
    masking   what is masked of photos, and how, in words
    photo     the first photo of the first batch with a masked region, as the network reads it: a JPEG and its boxes
    stages    of the network: whether each is trained, and |w - w0| / |w0|, where w0 are the weights that the run
              started from; null while not measured, or if w0 is unknown
    digests   of w0, stage by stage: a run that goes on is measured against the same weights, or not at all
"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roibeam.extraction.network.state import weights_digest
from roibeam.extraction.region_encoder import STAGES, RegionEncoder
from roibeam.model.common.fields import EndToEndChoices
from roibeam.model.end_to_end import EndToEndModel, ImageBatch
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.common.console.command_files import read_json_object
from roibeam.pipelines.data.batches.image_batch import input_photo
from roibeam.pipelines.training.model_files.joint_checkpoint import region_encoder_of
from roibeam.pipelines.training.run_folder.files import RESTORE, check_run_file, latest_checkpoint, write_run_json
from roibeam.pipelines.training.run_folder.folder import saved_config
from roibeam.pipelines.training.run_folder.run_summary import ENCODER_NAME

logger = logging.getLogger(__name__)

NORMS, OUTLINES = "norms", "outlines"
_NORM = ".norm."
_PIXELS = {
    "blank": "The pixels of masked regions are blank, in the mean colour, for every region that overlaps them",
    "whole": "Photos are whole: a masked region still shows in regions that overlap it",
    "shown": "Photos are whole, and a masked region keeps the feature that the encoder makes of it",
}
_BLANKED = {"after_resize": "blanked in the network's input", "before_resize": "blanked before the photo is resized"}
_APPEARANCES = {
    "pixels": "the model reads the feature that the encoder makes of what is left of it",
    "zero": "in place of a masked region's feature stand zeros",
    "learned": "in place of a masked region's feature stands a learned vector",
    "embedding": "in place of a masked region's feature and box stands a learned vector",
}


class EncoderChange:
    """Measures how far the encoder of a run moves; for the main process.

    Args:
        joint: in its state before the loop loads any checkpoint: with the weights that a new run starts from.
        weights: source of these weights, as the run's configuration records it.
    """

    def __init__(self, run_dir: Path, joint: EndToEndModel, weights: str) -> None:
        self._run_dir, self._joint, self._weights = run_dir, joint, weights
        self._encoder = region_encoder_of(joint)
        self._first = _stages(self._encoder, copied=True)
        self._digests = {name: weights_digest(state) for name, state in self._first.items()}

    @property
    def needs_batch(self) -> bool:
        """Whether the run has yet to read its first batch. ValueError for a damaged file."""
        check_run_file(self._run_dir / ENCODER_NAME, f"{RESTORE}, or remove it")
        return not (self._run_dir / ENCODER_NAME).is_file()

    def before(
        self,
        rows: VLBatch,
        images: ImageBatch,
        names: Sequence[str],
        boxes: Sequence[Tensor | None],
        *,
        masks: bool = True,
    ) -> None:
        """Writes the facts before the first step, and logs what is masked.

        Args:
            rows, images: of the first batch; boxes of `rows` are as in `images`, mirrored with them.
            boxes: (R, 4) of each of them in the original photo, which reveal mirroring; None if unknown.
            masks: whether the run ever masks a region.
        """
        # A new run does; the configuration of one from before this file existed may record it.
        recorded = None if latest_checkpoint(self._run_dir) is None else saved_config(self._run_dir)["recorded"]
        begins_with_these = recorded is None or recorded.get("encoder_weights") == self._weights
        masked = bool((rows.masked_regions & rows.region_mask).any())
        config = self._joint.model.config if masks else None
        words = masking_words(self._joint.choices, config, is_any_masked=masked)
        logger.info("%s", words)
        write_run_json(
            self._run_dir / ENCODER_NAME,
            {
                "masking": words,
                "photo": _first_photo(rows, images, self._encoder, names, boxes),
                "stages": self._moved({}),
                "digests": self._digests if begins_with_these else {},
            },
        )

    def after(self) -> dict[str, Any]:
        """Measures, and returns the content of the file without the photo."""
        path = self._run_dir / ENCODER_NAME
        found = read_json_object(path)
        found["stages"] = self._moved(found["digests"])
        write_run_json(path, found)
        return {name: found[name] for name in ("masking", "stages")}

    def _moved(self, digests: Mapping[str, str]) -> list[dict[str, Any]]:
        trained = {name for name, parameter in self._encoder.named_parameters() if parameter.requires_grad}
        return [
            {
                "stage": stage,
                "trained": not trained.isdisjoint(now),
                "moved": _relative_change(self._first[stage], now)
                if digests.get(stage) == self._digests[stage]
                else None,
            }
            for stage, now in _stages(self._encoder, copied=False).items()
        ]


def masking_words(choices: EndToEndChoices, config: Any, *, is_any_masked: bool) -> str:
    """The masking of photos, and the replacement of masked regions, in words; `config` is None for a run that masks
    none."""
    appearance = getattr(config, "masked_appearance", None)
    if appearance in (None, "none"):
        return "No region is masked: the network sees whole photos."
    how = _PIXELS.get(choices.masked_pixels, f"masked_pixels is {choices.masked_pixels}")
    if choices.masked_pixels == "blank":
        how += f" ({_BLANKED.get(choices.blank_pixels, choices.blank_pixels)})"
    if choices.masked_pixels != "shown":
        how += f"; {_APPEARANCES.get(appearance, f'masked_appearance is {appearance}')}"
    token = ", and its token says that it is masked" if getattr(config, "masked_region_token", False) else ""
    return f"{how}{token}.{'' if is_any_masked else ' In the first batch no region is masked.'}"


def _stages(encoder: RegionEncoder, *, copied: bool) -> dict[str, dict[str, Tensor]]:
    """Tensors of each stage by their names in the encoder, of its norms apart, and of the layers that read outlines."""
    prefixes = {place.rpartition(".")[2]: f"{place}." for place in STAGES.values()} | {OUTLINES: "mask_conv."}
    state = {
        name: tensor.detach().to("cpu", copy=True) if copied else tensor.detach()
        for name, tensor in encoder.state_dict().items()
        if tensor.is_floating_point()
    }
    found = {
        stage: {name: tensor for name, tensor in state.items() if name.startswith(prefix) and _NORM not in name}
        for stage, prefix in prefixes.items()
    }
    found[NORMS] = {name: tensor for name, tensor in state.items() if _NORM in name}
    return {stage: tensors for stage, tensors in found.items() if tensors}


def _relative_change(first: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> float | None:
    """|now - first| / |first| over all tensors; 0 if nothing changed, None if it is not finite."""
    moved = size = 0.0
    for name, before in first.items():
        after = now[name].to("cpu", torch.float64)
        moved += float((after - before.to(torch.float64)).square().sum())
        size += float(before.to(torch.float64).square().sum())
    change = 0.0 if not moved else math.sqrt(moved / size) if size else math.inf
    return change if math.isfinite(change) else None


def _first_photo(
    rows: VLBatch, images: ImageBatch, encoder: RegionEncoder, names: Sequence[str], boxes: Sequence[Tensor | None]
) -> dict[str, Any] | None:
    """The first photo with a masked region, else the first with a region; None for a batch of text alone."""
    there = rows.region_mask.any(dim=1)
    if rows.text_only is not None:
        there &= ~rows.text_only
    chosen = (rows.masked_regions & rows.region_mask).any(dim=1) & there
    places = (chosen if bool(chosen.any()) else there).nonzero()[:, 0].tolist()
    if not places:
        return None
    place = places[0]
    photo = place if rows.text_only is None else int((~rows.text_only[:place]).sum())
    real, (height, width) = rows.region_mask[place], rows.image_hw[place].tolist()
    input_boxes, own = rows.region_boxes[place][real], boxes[place]
    return {
        "name": names[place],
        "image_hw": [height, width],
        "mirrored": own is not None and _is_mirrored(input_boxes, own.to(input_boxes), width),
        "boxes": [[round(edge, 2) for edge in box] for box in input_boxes.tolist()],
        "masked": rows.masked_regions[place][real].tolist(),
        "jpeg": base64.b64encode(input_photo(rows, images, place, photo, encoder.conventions)).decode("ascii"),
    }


def _is_mirrored(input_boxes: Tensor, own: Tensor, width: float) -> bool:
    """Whether boxes lie nearer to those of the photo's mirror image than to those of the photo."""
    if not len(own):
        return False
    turned = own.clone()
    turned[:, [0, 2]] = width - own[:, [2, 0]]
    far, near = ((input_boxes[:, None] - each[None]).abs().sum(dim=-1).amin(dim=1).sum() for each in (own, turned))
    return bool(near < far)
