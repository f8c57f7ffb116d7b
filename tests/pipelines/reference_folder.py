"""Writes a folder laid out like goldens/detector from our own detector: other salt, boxes, photos, sizes.

It cannot prove the arithmetic (goldens/detector does), only that `roibeam conformance` reads any such folder and misses
nothing. The arrays are computed here step by step, not by the code that is tested.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from small_files import write_json
from torch.nn import functional

from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, SELECTIONS, Conventions, SelectionPolicy
from roibeam.extraction.network.roi_heads import pool_regions
from roibeam.extraction.network.rpn import choose_proposals
from roibeam.extraction.network.state import random_tensor
from roibeam.extraction.photos.preprocessing import preprocess
from roibeam.extraction.region_encoder import RegionEncoder, collate_photos, load_encoder_weights, prepare_photo
from roibeam.extraction.regions import classwise_max
from roibeam.extraction.weights.families import family_names
from roibeam.extraction.weights.loading import build_detector
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.embeddings import RegionProjection, embed_coordinates

SALT = 7
SET = "tiny"
PHOTOS = {"cat": (90, 130), "street.2": (120, 100)}  # name -> height, width
BATCH_ORDER = ("street.2", "cat")
CONFIG = DetectorConfig(
    depth=50,
    base_channels=4,
    num_classes=7,
    num_attributes=5,
    anchor_sizes=(16, 48),
    anchor_ratios=(0.5, 1.0, 2.0),
    rpn_hidden_channels=24,
    proposals_before_nms=200,
    proposals_after_nms=20,
    proposal_nms_iou=0.8,
    short_edge=96,
    long_edge=140,
)
CONVENTION = replace(CONVENTIONS["hf"], pixel_mean=(100.0, 110.0, 120.0), anchor_offset=0.5)
TOOL_RULES = {
    "butd12": SelectionPolicy(max_regions=12),
    "butd18": SelectionPolicy(max_regions=18),
    "butdmin": SelectionPolicy(min_score=0.9999),
}
RULE = replace(SELECTIONS["hf-100"], nms_thresholds=(0.4, 0.6, 0.8), min_regions=4)


def config_file(config: DetectorConfig = CONFIG, conventions: Conventions = CONVENTION) -> dict[str, Any]:
    """The config in the words of the Hugging Face port."""
    return {
        "min_detections": RULE.min_regions,
        "max_detections": 100,
        "size_divisibility": 0,
        "pad_value": 0.0,
        "input": {"format": "RGB", "min_size_test": config.short_edge, "max_size_test": config.long_edge},
        "backbone": {"freeze_at": 2},
        "model": {
            "device": "cpu",
            "max_pool": conventions.stem_pool == "pad-0-ceil",
            "pixel_mean": list(conventions.pixel_mean),
            "pixel_std": list(conventions.pixel_std),
        },
        "resnets": {
            "depth": config.depth,
            "norm": "BN",
            "out_features": ["res4"],
            "num_groups": 1,
            "width_per_group": config.base_channels,
            "stem_out_channels": config.base_channels,
            "res2_out_channels": 4 * config.base_channels,
            "stride_in_1x1": conventions.stride_conv == "1x1",
            "res5_dilation": 1,
        },
        "anchor_generator": {
            "sizes": [list(config.anchor_sizes)],
            "aspect_ratios": [list(config.anchor_ratios)],
            "offset": conventions.anchor_offset,
        },
        "proposal_generator": {"hidden_channels": config.rpn_hidden_channels, "min_size": 0},
        "rpn": {
            "in_features": ["res4"],
            "nms_thresh": config.proposal_nms_iou,
            "pre_nms_topk_test": config.proposals_before_nms,
            "post_nms_topk_test": config.proposals_after_nms,
            "boundary_thresh": -1,
            "bbox_reg_weights": list(conventions.proposal_delta_weights),
        },
        "roi_heads": {
            "in_features": ["res4"],
            "num_classes": config.num_classes,
            "nms_thresh_test": list(RULE.nms_thresholds),
            "score_thresh_test": 0.2,
        },
        "roi_box_head": {
            "cls_agnostic_bbox_reg": False,
            "bbox_reg_weights": list(conventions.region_delta_weights),
            "pooler_resolution": 14,
            "pooler_sampling_ratio": 0,
            "res5halve": conventions.res5_stride == 2,
            "attr": True,
            "num_attrs": config.num_attributes,
        },
    }


def write_reference_folder(folder: Path) -> Path:
    """Photos, options, one case for each photo, the batch, checksums and names of the weights."""
    folder.mkdir(parents=True)
    detector = build_detector(CONFIG, weights=f"random:{SALT}", selection=RULE, conventions=CONVENTION)
    images = {name: _photo(seed, *hw) for seed, (name, hw) in enumerate(PHOTOS.items())}
    for name, image in images.items():
        cv2.imwrite(str(folder / f"{name}.png"), image)
        np.savez(folder / f"{SET}_{name}.npz", **photo_arrays(detector, [image]))
    batch = photo_arrays(detector, [images[name] for name in BATCH_ORDER])
    np.savez(folder / f"{SET}_batch.npz", **batch)
    options = {
        "salt": SALT, "photos": list(PHOTOS), "batch_order": list(BATCH_ORDER),
        # "full" gives the sizes of what has no set's name: key lists, the end-to-end case.
        "sets": {SET: f"config_{SET}.json", "full": f"config_{SET}.json"},
        "tolerance": {"max_rel": 1e-4, "rtol": 1e-3},
    }  # fmt: skip
    write_json(folder / "case.json", options)
    write_json(folder / f"config_{SET}.json", config_file())
    counters = [name.replace("running_var", "num_batches_tracked") for name in detector.state_dict()]
    counters = [name for name in counters if name.endswith("num_batches_tracked")]
    sums = {name: [v.double().sum().item(), v.double().abs().sum().item()] for name, v in detector.state_dict().items()}
    write_json(folder / f"weight_sums_{SET}.json", sums | {name: [0.0, 0.0] for name in counters})
    shapes = {name: list(value.shape) for name, value in detector.state_dict().items()}
    shapes["proposal_generator.anchor_generator.cell_anchors.0"] = [CONFIG.num_anchors, 4]
    write_json(folder / f"detectron2_keys_{SET}.json", shapes)
    write_json(folder / f"hf_frcnn_keys_{SET}.json", shapes | {name: [] for name in counters})
    write_json(folder / "resnet101_vgbua_keys.json", _resnet_shapes(shapes))
    np.savez(folder / "e2e_batch.npz", **end_to_end_arrays([images[name] for name in BATCH_ORDER]))
    (folder / "README.md").write_text("what this is\n")
    return folder


def _resnet_shapes(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Names and shapes as VL-BERT's file has them."""
    names = family_names("vlbert")
    found = {names[name]: shape for name, shape in shapes.items() if name in names}
    counters = [name.replace("running_var", "num_batches_tracked") for name in found if name.endswith("running_var")]
    return found | {name: [] for name in counters}


def _photo(seed: int, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8, smooth enough to give regions different features."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))


@torch.inference_mode()
def photo_arrays(detector: Detector, images: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Every array of one photo, or of a padded batch."""
    config, conventions = detector.config, detector.conventions
    inputs = [preprocess(image, config, conventions) for image in images]
    height, width = (max(one.input_hw[axis] for one in inputs) for axis in (0, 1))
    pixels = torch.cat(
        [functional.pad(i.pixels, (0, width - i.input_hw[1], 0, height - i.input_hw[0])) for i in inputs]
    )
    maps = detector.backbone(pixels)
    logits, deltas = detector.proposal_generator.rpn_head(maps)
    arrays: dict[str, Any] = {
        "input_shape": list(pixels.shape),
        "input_sizes_hw": [one.input_hw for one in inputs],
        "raw_sizes_hw": [one.image_hw for one in inputs],
        "scales_yx": torch.stack([one.scale.factors_xyxy[[1, 0]] for one in inputs]),
        "input_sum": pixels.double().sum((2, 3)),
        "input_abs_sum": pixels.double().abs().sum((2, 3)),
        "input_crop": pixels[:, :, 32:64, 48:80],
        "res4_shape": list(maps.shape),
        "res4_sub": maps[:, ::16],
        "res4_channel_mean": maps.mean((2, 3)),
        "rpn_shape": list(logits.shape),
        "rpn_logits_sub": logits,
        "rpn_deltas_sub": deltas,
    }
    outputs = []
    for row, one in enumerate(inputs):
        boxes, objectness = detector.proposal_generator.score_anchors(logits[row : row + 1], deltas[row : row + 1])
        proposals = choose_proposals(boxes, objectness, one.input_hw, one.factor, config, conventions)
        regions = detector.roi_heads(maps[row : row + 1], proposals.boxes)
        outputs.append(HeadOutputs(one, maps[row : row + 1], proposals, regions))
    arrays |= _given_arrays(detector, outputs)
    arrays |= _proposal_arrays(outputs)
    for maximum in (6, 15):
        arrays |= _detection_arrays(detector, outputs, maximum)
    for name, policy in TOOL_RULES.items():
        if len(images) == 1 or name != "butdmin":
            arrays |= _tool_arrays(detector, outputs, name, policy)
    if len(images) == 1:
        arrays |= _single_photo_arrays(detector, images[0], outputs[0])
    return {name: value.numpy() if torch.is_tensor(value) else np.asarray(value) for name, value in arrays.items()}


def _given_arrays(detector: Detector, outputs: list[HeadOutputs]) -> dict[str, Any]:
    corners = np.random.default_rng(3).uniform(0, 80, (len(outputs), 6, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(2), corners.max(2)], axis=2)
    boxes[:, 0] = [0, 0, 96, 96]
    found = [
        detector.roi_heads(one.feature_map, torch.from_numpy(rows)) for one, rows in zip(outputs, boxes, strict=True)
    ]
    return {
        "given_boxes": boxes,
        "given_features": torch.stack([one.features for one in found]),
        "given_cls_logits": torch.stack([one.class_logits for one in found]),
        "given_attr_logits": torch.stack([one.attribute_logits for one in found]),
        "given_box_deltas": torch.stack([one.box_deltas for one in found]),
        "given_stable": np.ones(boxes.shape[:2], bool),
    }


def _proposal_arrays(outputs: list[HeadOutputs]) -> dict[str, Any]:
    logits = torch.cat([one.regions.class_logits for one in outputs])
    best = logits.softmax(1).topk(5)
    scores = []
    for one in outputs:
        boxes = one.network_input.scale.to_photo(one.proposals.boxes)
        probabilities = one.regions.class_logits.softmax(1)[:, :-1]
        scores.append(classwise_max(boxes, probabilities, SELECTIONS["butd-10-100"], floor=0.0))
    return {
        "proposal_count": [len(one.proposals.boxes) for one in outputs],
        "proposal_boxes": torch.cat([one.proposals.boxes for one in outputs]),
        "proposal_logits": torch.cat([one.proposals.objectness for one in outputs]),
        "proposal_top5_prob": best.values,
        "proposal_top5_id": best.indices.int(),
        "proposal_cls_logits": logits,
        "proposal_attr_logits": torch.cat([one.regions.attribute_logits for one in outputs]),
        "proposal_box_deltas": torch.cat([one.regions.box_deltas for one in outputs]).flatten(1),
        "butd_max_conf": torch.cat(scores),
    }


def _detection_arrays(detector: Detector, outputs: list[HeadOutputs], maximum: int) -> dict[str, Any]:
    got = [detector.postprocess(one, replace(RULE, max_regions=maximum)) for one in outputs]
    fields = {
        "boxes": "boxes", "classes": "class_ids", "scores": "class_scores", "attr_ids": "attribute_ids",
        "attr_scores": "attribute_scores", "proposal_ids": "proposal_ids",
        "features" if maximum == 6 else "features_sub": "features",
    }  # fmt: skip
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(one, field) for one in got]) for name, field in fields.items()
    }
    if maximum != 6:
        arrays["features_sub"] = arrays["features_sub"][:, ::4]
    arrays["count"] = [len(one.boxes) for one in got]
    arrays["stable"] = np.ones(len(arrays["boxes"]), bool)
    return {f"det{maximum}_{name}": value for name, value in arrays.items()}


def _tool_arrays(detector: Detector, outputs: list[HeadOutputs], name: str, policy: SelectionPolicy) -> dict[str, Any]:
    kept = [detector.postprocess(one, policy).proposal_ids for one in outputs]
    arrays: dict[str, Any] = {f"{name}_proposal_ids": np.concatenate(kept)}
    return arrays if name == "butdmin" else arrays | {f"{name}_count": [len(ids) for ids in kept]}


def _single_photo_arrays(detector: Detector, image: np.ndarray, outputs: HeadOutputs) -> dict[str, Any]:
    """Other ways to resize, and the port's rule with a minimum that its lowest threshold does not leave."""
    arrays: dict[str, Any] = {}
    for name, preset, edges in (
        ("caffe600", "caffe", (600, 1000)),
        ("d2_800", "d2", (800, 1333)),
        ("d2_600", "d2", (600, 1000)),
    ):
        conventions = replace(CONVENTIONS[preset], pixel_mean=CONVENTION.pixel_mean)
        got = preprocess(image, replace(CONFIG, short_edge=edges[0], long_edge=edges[1]), conventions)
        plane = got.pixels[0]
        arrays |= {f"{name}_shape": list(plane.shape), f"{name}_crop": plane[:, 32:64, 48:80]}
        arrays |= {f"{name}_sum": plane.double().sum((1, 2)), f"{name}_abs_sum": plane.double().abs().sum((1, 2))}
        if preset == "caffe":
            arrays["caffe600_scale"] = got.factor
    count = len(outputs.proposals.boxes)
    first = len(detector.postprocess(outputs, replace(RULE, max_regions=count)).boxes)
    higher = detector.postprocess(outputs, replace(RULE, min_regions=min(first + 1, count), max_regions=count))
    return arrays | {
        "ladder_min": min(first + 1, count), "ladder_boxes": higher.boxes, "ladder_scores": higher.class_scores,
        "ladder_classes": higher.class_ids,
    }  # fmt: skip


@torch.inference_mode()
def end_to_end_arrays(images: list[np.ndarray]) -> dict[str, np.ndarray]:
    """VL-BERT's end-to-end extractor on photos with 4 and 2 boxes, one of them masked; 48 numbers for each."""
    conventions = replace(CONVENTIONS["vlbert-e2e"], pixel_mean=CONVENTION.pixel_mean)
    masks, boxes, prepared = np.zeros((len(images), 4), np.int64), [], []
    masks[0, 2] = 1
    for row, image in enumerate(images):
        corners = np.random.default_rng(row).uniform(0, 80, (4 - 2 * row, 2, 2)).astype(np.float32)
        boxes.append(np.concatenate([corners.min(1), corners.max(1)], axis=1))
        config = replace(CONFIG, short_edge=192, long_edge=320)
        prepared.append(prepare_photo(image, boxes[-1], config, conventions, masked=masks[row, : len(corners)] == 1))
    batch = collate_photos(prepared)
    encoder = RegionEncoder(CONFIG, conventions)
    load_encoder_weights(f"random:{SALT}", encoder)
    maps = encoder.backbone(batch.pixels)
    real = [rows[mask] for rows, mask in zip(batch.boxes, batch.region_mask, strict=True)]
    features = encoder(batch.pixels, batch.boxes, batch.region_mask)
    projection = RegionProjection(
        VLBertConfig(hidden_size=48, region_feature_size=CONFIG.feature_dim, coordinate_embedding_size=64)
    ).eval()
    weight = 1.4 * random_tensor("vl.1.weight", tuple(projection.linear.weight.shape), SALT)
    projection.linear.weight.copy_(torch.from_numpy(weight))
    projection.linear.bias.copy_(torch.from_numpy(random_tensor("vl.1.bias", (48,), SALT)))
    projected = projection(features, batch.boxes, batch.input_hw) * batch.region_mask[..., None]
    index = torch.arange(len(images))[:, None]
    arrays = {
        "input_shape": torch.tensor(batch.pixels.shape),
        "input_sum": batch.pixels.double().sum((2, 3)),
        "input_abs_sum": batch.pixels.double().abs().sum((2, 3)),
        "input_crop": batch.pixels[:, :, 32:64, 48:80],
        "im_info": torch.cat([batch.input_hw.flip(1), batch.scale_xy, index], dim=1),
        "boxes": batch.boxes,
        "box_mask": batch.region_mask,
        "c4_shape": torch.tensor(maps.shape),
        "c4_sub": maps[:, ::64],
        "roi_align_sub": pool_regions(maps, real, conventions)[:, ::16],
        "coord_embed": embed_coordinates(batch.boxes, batch.input_hw, 64)[batch.region_mask].view(-1, 4, 16),
        "obj_reps_raw": features,
        "obj_reps": projected,
        "precomputed_obj_reps": projected,
    }
    raw = {f"raw_boxes_{row}": rows for row, rows in enumerate(boxes)}
    return {name: value.numpy() for name, value in arrays.items()} | raw | {"mvrc_ops": masks}
