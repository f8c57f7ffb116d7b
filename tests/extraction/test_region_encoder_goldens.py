"""The end-to-end extractor of VL-BERT against goldens/detector/e2e_batch.npz, tolerances from its README.

Its network is a whole ResNet-101, so all but the network's input is `slow`; a narrow network runs always, in
tests/model/test_vlbert_e2e_goldens.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from extraction.config import DetectorConfig
from extraction.conventions import CONVENTIONS
from extraction.random_weights import random_state, random_tensor
from extraction.region_batch import collate_photos, prepare_photo
from extraction.region_encoder import RegionEncoder
from extraction.roi_heads import pool_regions
from model.vlbert import RegionProjection, VLBertConfig, embed_coordinates

CONFIG = DetectorConfig(short_edge=192, long_edge=320)
CONVENTION = CONVENTIONS["vlbert-e2e"]


@pytest.fixture(scope="module")
def golden(golden_dir):
    with np.load(golden_dir / "e2e_batch.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def batch(golden, golden_dir, photo):
    names = json.loads((golden_dir / "case.json").read_text())["batch_order"]
    prepared = []
    for row, name in enumerate(names):
        boxes = golden[f"raw_boxes_{row}"]
        masked = golden["mvrc_ops"][row, : len(boxes)] == 1
        prepared.append(prepare_photo(photo(name), boxes, CONFIG, CONVENTION, masked=masked))
    return collate_photos(prepared)


@pytest.fixture(scope="module")
def encoder(golden_dir):
    seed = json.loads((golden_dir / "case.json").read_text())["salt"]
    encoder = RegionEncoder(CONFIG)
    encoder.load_state_dict(random_state({k: tuple(v.shape) for k, v in encoder.state_dict().items()}, seed))
    return encoder


def assert_near(got, want):
    """|a - b| <= 1e-4 max|b| + 1e-3 |b| (README, Tolerances)."""
    got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))


def test_network_input(batch, golden):
    assert list(batch.pixels.shape) == golden["input_shape"].tolist()
    np.testing.assert_array_equal(batch.boxes, golden["boxes"])
    np.testing.assert_array_equal(batch.region_mask, golden["box_mask"])
    np.testing.assert_array_equal(batch.input_hw.flip(-1), golden["im_info"][:, :2])
    np.testing.assert_array_equal(batch.scale_xy, golden["im_info"][:, 2:4])
    np.testing.assert_allclose(batch.pixels.double().sum((2, 3)), golden["input_sum"], rtol=1e-9)
    np.testing.assert_allclose(batch.pixels.double().abs().sum((2, 3)), golden["input_abs_sum"], rtol=1e-9)
    np.testing.assert_array_equal(batch.pixels[:, :, 32:64, 48:80], golden["input_crop"])


def test_coordinate_embedding(batch, golden):
    for boxes, image_hw in ((batch.boxes, batch.input_hw), (batch.photo_boxes, batch.image_hw)):
        embedded = embed_coordinates(boxes, image_hw, 2048)[batch.region_mask]
        assert_near(embedded.view(-1, 4, 512), golden["coord_embed"])


@pytest.mark.slow
@torch.no_grad()
def test_map_pooled_regions_and_features(encoder, batch, golden):
    feature_map = encoder.backbone(batch.pixels)
    assert list(feature_map.shape) == golden["c4_shape"].tolist()
    assert_near(feature_map[:, ::64], golden["c4_sub"])
    real = [rows[mask] for rows, mask in zip(batch.boxes, batch.region_mask, strict=True)]
    assert_near(pool_regions(feature_map, real, CONVENTION)[:, ::128], golden["roi_align_sub"])
    features = encoder(batch.pixels, batch.boxes, batch.region_mask)
    assert_near(features, golden["obj_reps_raw"])
    assert_near(project(features, batch), golden["obj_reps"])


def test_projection_of_precomputed_features(batch, golden):
    features = torch.from_numpy(golden["obj_reps_raw"])
    assert_near(project(features, batch), golden["precomputed_obj_reps"])


@torch.no_grad()
def project(features, batch):
    """VL-BERT's projection with the golden's weights; zeros in padded rows, as there."""
    projection = RegionProjection(VLBertConfig(hidden_size=768)).eval()
    # The recipe's gain for this layer, 1.4, is not one of the detector's.
    projection.linear.weight.copy_(1.4 * torch.from_numpy(random_tensor("vl.1.weight", (768, 4096), 1)))
    projection.linear.bias.copy_(torch.from_numpy(random_tensor("vl.1.bias", (768,), 1)))
    return projection(features, batch.boxes, batch.input_hw) * batch.region_mask[..., None]
