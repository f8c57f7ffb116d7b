"""The part of a VL-BERT case that starts from pixels: its weights, its region encoder, its photos.

goldens/vlbert/README.md. Widths and numbers of blocks are read from the parameters, so that narrow networks run too.
"""

import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.checks import Check, apart
from harness.model_case import ModelArrays
from harness.tolerances import VLBERT
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, Conventions
from roibeam.extraction.network.resnet import Backbone, Stem, build_stage
from roibeam.extraction.network.state import check_state
from roibeam.extraction.region_encoder import STAGES, RegionBatch, RegionEncoder, collate_photos, prepare_photo
from roibeam.extraction.weights.families import name_tables, name_weights
from roibeam.model.vlbert.checkpoint import masking_from_official

PREFIX = "image_feature_extractor."
MAX_DRAWN = 1 << 27  # elements that a recipe may draw: three times a ResNet-101
MAX_BLOCKS = 64
MAX_EDGE = 4096
_BLOCK = re.compile(rf"{re.escape(PREFIX)}(backbone\.layer[123]|roi_head_feature_extractor)\.(\d+)\.")


def drawn_weights(options: Mapping[str, Any], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights that the file does not store, by the recipe of its config; aliases of others are left out. Raises
    ValueError for a recipe that is none, or whose sum or first number is not the one the config promises."""
    spec, promised = options.get("weights_spec", {}), options.get("weights_check", {})
    drawn: dict[str, Tensor] = {}
    total = 0
    for key, recipe in spec.items():
        if key in stored or "tied_to" in recipe:
            continue
        try:
            shape = tuple(int(length) for length in recipe["shape"])
            offset, scale, kind = float(recipe["offset"]), float(recipe["scale"]), recipe["dist"]
            promise, first = (float(number) for number in promised[key])
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"config: weights_spec of {key!r} is no recipe, or weights_check lacks it") from None
        total += math.prod(shape)
        if kind not in ("normal", "uniform") or not all(length > 0 for length in shape) or total > MAX_DRAWN:
            raise ValueError(f"config: weights_spec of {key!r} asks for {kind!r} numbers of shape {shape}")
        values = _draw(key, kind, math.prod(shape), offset, scale, int(options.get("weights_seed", 0)))
        if abs(values.astype(np.float64).sum() - promise) > 1e-6 * max(1.0, abs(promise)) or values[0] != first:
            raise ValueError(f"config: the recipe of {key!r} gives other numbers than weights_check says")
        drawn[key] = torch.from_numpy(values.reshape(shape))
    return drawn


def _draw(key: str, kind: str, count: int, offset: float, scale: float, seed: int) -> np.ndarray:
    """The README's recipe: a generator seeded by the name, then rounded to what bfloat16 can hold."""
    random = np.random.RandomState((zlib.crc32(key.encode()) + seed) & 0xFFFFFFFF)
    values = random.standard_normal(count) if kind == "normal" else random.random_sample(count)
    bits = (offset + scale * values).astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def build_region_encoder(
    official: Mapping[str, Tensor], network: Mapping[str, Any], edges: tuple[int, int]
) -> RegionEncoder:
    """The encoder that these parameters are of, in evaluation mode.

    Args:
        official: from `split_official`.
        network: NETWORK of the config.
        edges: short edge and limit of the long one, pixels.
    Raises:
        ValueError: when the parameters are not those of such a network.
    """
    conventions = _conventions(network)
    frozen = network.get("IMAGE_FROZEN_BACKBONE_STAGES", [1, 2])
    if not isinstance(frozen, list) or set(frozen) - set(STAGES):
        raise ValueError(f"config: IMAGE_FROZEN_BACKBONE_STAGES is {frozen!r}; expected numbers from 1 to 5")
    blocks = {"backbone.layer1": 0, "backbone.layer2": 0, "backbone.layer3": 0, "roi_head_feature_extractor": 0}
    for name in official:
        if found := _BLOCK.match(name):
            blocks[found[1]] = max(blocks[found[1]], int(found[2]) + 1)
    stem, first = (official.get(f"{PREFIX}backbone.{name}.weight") for name in ("conv1", "layer1.0.conv1"))
    if stem is None or first is None or max(blocks.values()) > MAX_BLOCKS or min(blocks.values()) < 1:
        raise ValueError("parameters: an end-to-end case needs image_feature_extractor.backbone.* and its RoI head")
    base = len(first)
    config = DetectorConfig(depth=50, base_channels=base, short_edge=edges[0], long_edge=max(edges))
    with torch.device("meta"):
        backbone = Backbone(config, conventions)
        backbone.stem = Stem(len(stem), conventions)
        backbone.res2 = build_stage(blocks["backbone.layer1"], len(stem), base, conventions)
        backbone.res3 = build_stage(blocks["backbone.layer2"], 4 * base, 2 * base, conventions, stride=2)
        backbone.res4 = build_stage(blocks["backbone.layer3"], 8 * base, 4 * base, conventions, stride=2)
        encoder = RegionEncoder(config, conventions, backbone=backbone, frozen_stages=frozen)
    named = name_weights(dict(official), "param/").tensors
    encoder.load_state_dict(check_state(named, encoder.state_dict(), "param/"), assign=True)
    return encoder.eval()


def encoder_name(official: str) -> str:
    """Our name of an official parameter of the image network."""
    name = official.removeprefix(PREFIX)
    return name_tables()["vlbert-checkpoint"].get(name, name)


def _conventions(network: Mapping[str, Any]) -> Conventions:
    own = CONVENTIONS["vlbert-e2e"]
    dilated = bool(network.get("IMAGE_C5_DILATED", False))
    return replace(
        own,
        stride_conv="1x1" if network.get("IMAGE_STRIDE_IN_1x1", False) else "3x3",
        res5_stride=1 if dilated else 2,
        res5_dilation=2 if dilated else 1,
        pixel_mean=tuple(network.get("PIXEL_MEANS", own.pixel_mean)),
        pixel_std=tuple(network.get("PIXEL_STDS", own.pixel_std)),
    )


def photo_checks(arrays: ModelArrays, network: Mapping[str, Any], kind: str) -> Iterator[Check]:
    """What goes into the network, made from the photos of the case, against what it says went in.

    Args:
        kind: one of `roibeam.model.vlbert.checkpoint.KINDS`.
    """
    if "in/raw_boxes" not in arrays:
        return
    edges = tuple(int(arrays.whole(f"in/{name}", 1, MAX_EDGE)) for name in ("min_size", "max_size"))
    config = DetectorConfig(short_edge=edges[0], long_edge=max(edges))
    conventions = _conventions(network)
    blank = masking_from_official(network, kind)[1] == "blank"
    for hide, name in ((blank, "in/image"), (False, "in/image_unmasked")):
        if name not in arrays:
            continue
        batch = _prepared(arrays, config, conventions, hide=hide)
        yield apart(name, batch.pixels, arrays.take(name), VLBERT.grey_levels)
        if name == "in/image":
            yield apart("in/boxes", batch.boxes, arrays.take("in/boxes"), VLBERT.values)
            info = arrays.floats("in/im_info", len(batch.boxes), None).numpy()
            sizes = torch.cat([batch.input_hw.flip(-1), batch.scale_xy], dim=1)
            yield apart("in/im_info", sizes, info[:, :4], VLBERT.values)


def _prepared(arrays: ModelArrays, config: DetectorConfig, conventions: Conventions, *, hide: bool) -> RegionBatch:
    boxes = arrays.floats("in/raw_boxes", None, None, 4).numpy()
    rows, most = boxes.shape[:2]
    counts = arrays.whole("in/raw_num_boxes", 1, most + 1, rows)
    flips = arrays.mask("in/raw_flip", rows)
    masked = arrays.mask("in/mvrc_ops", rows, most).numpy()
    photos = []
    for row, count in enumerate(counts.tolist()):
        image = arrays.take(f"in/raw_image_{row}", None, None, 3)
        if image.dtype != np.uint8:
            raise ValueError(f"in/raw_image_{row} holds {image.dtype}, expected bytes")
        photos.append(
            prepare_photo(
                np.ascontiguousarray(image[..., ::-1]),  # R, G, B there
                boxes[row, :count],
                config,
                conventions,
                flip=bool(flips[row]),
                masked=masked[row, :count] if hide else None,
            )
        )
    return collate_photos(photos)
