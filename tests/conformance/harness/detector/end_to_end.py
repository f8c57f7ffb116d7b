"""VL-BERT's end-to-end extractor: photos with boxes through the region encoder, up to VL-BERT's object features.

Resize, blanking of masked boxes, batching and the network are extraction/region_encoder.py,
the embedding of boxes and the projection model/vlbert/model.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.case_files import ArrayError, Arrays
from harness.checks import Check, equal, guarded, near, near_thinned
from harness.detector.options import DetectorSet
from harness.detector.photos import CROP, MAX_GIVEN_BOXES, checksum_checks
from harness.tolerances import DETECTOR, Closeness
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.roi_heads import pool_regions
from roibeam.extraction.network.state import random_tensor
from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.region_encoder import (
    RegionBatch,
    RegionEncoder,
    collate_photos,
    load_encoder_weights,
    prepare_photo,
)
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.embeddings import RegionProjection, embed_coordinates

END_TO_END_FILE = "e2e_batch.npz"
EDGES = (192, 320)  # short edge and limit of the long one, pixels (README of the reference arrays)
PROJECTION_KEY, PROJECTION_GAIN = "vl.1", 1.4  # the same README, "Weights"


@dataclass(frozen=True, eq=False)
class _EndToEnd:
    network: DetectorSet  # with the config and the conventions of this extractor
    arrays: Arrays
    batch: RegionBatch

    @property
    def values(self) -> Closeness:
        return self.network.values


def end_to_end_checks(network: DetectorSet, arrays: Arrays, photos: Sequence[Path]) -> Iterator[Check]:
    """All checks of the end-to-end file.

    Args:
        network: gives depth, width, salt, mean and std; everything else is the preset "vlbert-e2e" at `EDGES`.
        photos: image files in the order of the batch.
    """
    own = network.conventions
    conventions = replace(CONVENTIONS["vlbert-e2e"], pixel_mean=own.pixel_mean, pixel_std=own.pixel_std)
    config = replace(network.config, short_edge=EDGES[0], long_edge=EDGES[1])
    masked = arrays.take("mvrc_ops", len(photos), None) == 1
    prepared = []
    for row, path in enumerate(photos):
        boxes = arrays.take_finite(f"raw_boxes_{row}", None, 4)
        if masked.shape[1] > MAX_GIVEN_BOXES:
            raise ArrayError("mvrc_ops", f"has {masked.shape[1]} columns; at most {MAX_GIVEN_BOXES} boxes are run")
        if len(boxes) > masked.shape[1]:
            raise ValueError(f"raw_boxes_{row} has {len(boxes)} boxes, mvrc_ops only {masked.shape[1]} columns")
        image = decode_image(path.read_bytes(), exif_orientation=conventions.exif_orientation)
        prepared.append(prepare_photo(image, boxes, config, conventions, masked=masked[row, : len(boxes)]))
    case = _EndToEnd(replace(network, config=config, conventions=conventions), arrays, collate_photos(prepared))
    yield from guarded("input_shape", _input_checks, case)
    yield from guarded("coord_embed", _coordinate_checks, case)
    yield from guarded("c4_shape", _network_checks, case)
    yield from guarded("precomputed_obj_reps", _precomputed_checks, case)


def _input_checks(case: _EndToEnd) -> Iterator[Check]:
    arrays, batch, values = case.arrays, case.batch, case.values
    yield equal("input_shape", list(batch.pixels.shape), arrays.take("input_shape"))
    yield equal("box_mask", batch.region_mask, arrays.take("box_mask"))
    yield near("boxes", batch.boxes, arrays.take("boxes"), DETECTOR.scaled)
    rows = torch.arange(len(batch.pixels), dtype=torch.float32)[:, None]
    info = torch.cat([batch.input_hw.flip(-1), batch.scale_xy, rows], dim=1)
    yield near("im_info", info, arrays.take("im_info"), DETECTOR.scaled)
    yield from checksum_checks("input", batch.pixels, arrays)
    yield near("input_crop", batch.pixels[:, :, *CROP], arrays.take("input_crop"), values)


def _coordinate_checks(case: _EndToEnd) -> Iterator[Check]:
    want = case.arrays.take("coord_embed", None, 4, None)
    batch = case.batch
    embedded = embed_coordinates(batch.boxes, batch.input_hw, 4 * want.shape[2])[batch.region_mask]
    yield near("coord_embed", embedded.view(-1, 4, want.shape[2]), want, case.values)


@torch.inference_mode()
def _network(case: _EndToEnd) -> tuple[Tensor, Tensor, Tensor]:
    """The map, the pooled regions and the features (B, R, D)."""
    encoder = RegionEncoder(case.network.config, case.network.conventions).eval()
    load_encoder_weights(f"random:{case.network.salt}", encoder)
    batch = case.batch
    maps = encoder.backbone(batch.pixels)
    real = [rows[mask] for rows, mask in zip(batch.boxes, batch.region_mask, strict=True)]
    pooled = pool_regions(maps, real, case.network.conventions)
    return maps, pooled, encoder(batch.pixels, batch.boxes, batch.region_mask)


def _network_checks(case: _EndToEnd) -> Iterator[Check]:
    arrays, values = case.arrays, case.values
    maps, pooled, features = _network(case)
    yield equal("c4_shape", list(maps.shape), arrays.take("c4_shape"))
    yield near_thinned("c4_sub", maps, arrays.take("c4_sub"), values)
    yield near_thinned("roi_align_sub", pooled, arrays.take("roi_align_sub"), values)
    yield near("obj_reps_raw", features, arrays.take("obj_reps_raw"), values)
    want = arrays.take("obj_reps", *features.shape[:2], None)
    yield near("obj_reps", _project(case, features, want.shape[2]), want, values)


def _precomputed_checks(case: _EndToEnd) -> Iterator[Check]:
    """The reference's own features through the projection: what a model trained on stored features sees."""
    mask = case.batch.region_mask
    features = case.arrays.take_finite("obj_reps_raw", *mask.shape, None)
    want = case.arrays.take("precomputed_obj_reps", *mask.shape, None)
    projected = _project(case, torch.from_numpy(features.astype(np.float32)), want.shape[2])
    yield near("precomputed_obj_reps", projected, want, case.values)


@torch.inference_mode()
def _project(case: _EndToEnd, features: Tensor, width: int) -> Tensor:
    """VL-BERT's projection with its random weights: (B, R, D) -> (B, R, width), zeros where there is no box."""
    batch = case.batch
    coordinates = 4 * case.arrays.take("coord_embed", None, 4, None).shape[2]
    sizes = VLBertConfig(
        hidden_size=width,
        num_attention_heads=1,
        region_feature_size=features.shape[2],
        coordinate_embedding_size=coordinates,
    )
    projection = RegionProjection(sizes).eval()
    for name, gain in (("weight", PROJECTION_GAIN), ("bias", 1.0)):
        parameter = getattr(projection.linear, name)
        drawn = random_tensor(f"{PROJECTION_KEY}.{name}", tuple(parameter.shape), case.network.salt)
        parameter.copy_(gain * torch.from_numpy(drawn))
    return projection(features, batch.boxes, batch.input_hw) * batch.region_mask[..., None]
