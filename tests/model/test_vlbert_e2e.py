"""VL-BERT on features that a region encoder makes while it trains: masked regions show blanked pixels."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vlbert.checkpoint import split_official, state_from_official
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.model import VLBertForPreTraining

FEATURES, LABELS = 16, 5


def make_model(**overrides):
    torch.manual_seed(0)
    config = VLBertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        region_feature_size=FEATURES,
        num_region_labels=LABELS,
        coordinate_embedding_size=16,
        max_position_embeddings=16,
        visual_norm_text_init=1.0,
        visual_norm_region_init=1.0,
        **overrides,
    )
    return VLBertForPreTraining(config).eval()


@pytest.fixture
def batch():
    """Two rows, four regions each, of which the second is masked; features and whole image as an encoder gives them."""
    generator = torch.Generator().manual_seed(1)
    masked = torch.zeros(2, 4, dtype=torch.bool)
    masked[:, 1] = True
    targets = torch.softmax(torch.randn(2, 4, LABELS, generator=generator), dim=-1) * masked[..., None]
    corner = torch.rand(2, 4, 2, generator=generator) * 100
    text = torch.randint(1, 50, (2, 6), generator=generator)
    return VLBatch(
        text_ids=text,
        text_mask=torch.ones(2, 6, dtype=torch.bool),
        text_segments=torch.zeros(2, 6, dtype=torch.long),
        region_features=torch.randn(2, 4, FEATURES, generator=generator, requires_grad=True),
        region_boxes=torch.cat([corner, corner + 20], dim=-1),
        region_mask=torch.ones(2, 4, dtype=torch.bool),
        image_hw=torch.full((2, 2), 120.0),
        masked_regions=masked,
        whole_image_features=torch.randn(2, FEATURES, generator=generator, requires_grad=True),
        text_labels=torch.full((2, 6), IGNORE_INDEX).index_fill_(1, torch.tensor([2]), 3),
        region_targets=targets,
        region_target_mask=masked,
    )


def loss(model, batch):
    return sum(term.mean for term in model(batch).losses.values())


@pytest.mark.parametrize("appearance", ["pixels", "learned"])
def test_only_pixels_let_gradients_into_a_masked_regions_feature(appearance, batch):
    model = make_model(masked_appearance=appearance)
    loss(model, batch).backward()
    gradient = batch.region_features.grad.abs().amax(dim=2)
    assert (gradient[~batch.masked_regions] > 0).all()
    assert (gradient[batch.masked_regions] > 0).all() == (appearance == "pixels")
    assert (batch.whole_image_features.grad.abs().amax(dim=1) > 0).all()
    assert ("vlbert.masked_region_feature.weight" in model.state_dict()) == (appearance == "learned")


def test_a_masked_region_is_still_marked_by_its_token(batch):
    model = make_model(masked_appearance="pixels")
    with torch.no_grad():
        marked = model.vlbert(batch).region_states
        plain = model.vlbert(dataclasses.replace(batch, masked_regions=torch.zeros_like(batch.masked_regions)))
    assert (marked - plain.region_states)[batch.masked_regions].abs().amax() > 1e-3


def test_the_whole_image_must_come_from_the_encoder(batch):
    model = make_model(masked_appearance="pixels")
    with pytest.raises(ValueError, match=r"'pixels' needs VLBatch.whole_image_features"):
        model(dataclasses.replace(batch, whole_image_features=None))


def test_configuration_and_files(batch, tmp_path):
    with pytest.raises(ValueError, match="masked_appearance is 'zero'; it must be one of 'learned', 'pixels'"):
        VLBertConfig(masked_appearance="zero")
    model = make_model(masked_appearance="pixels")
    model.save_pretrained(tmp_path)
    again = VLBertForPreTraining.from_pretrained(tmp_path)
    assert again.config.masked_appearance == "pixels"
    assert torch.equal(loss(again.eval(), batch), loss(model, batch))


def test_official_names_split_into_model_and_encoder():
    stage, again = "image_feature_extractor.roi_head_feature_extractor.", "image_feature_extractor.head.0."
    model = {
        "image_feature_extractor.obj_downsample.1.bias": torch.zeros(2),
        "vlbert.end_embedding.weight": torch.ones(1),
    }
    encoder = {"image_feature_extractor.backbone.conv1.weight": torch.ones(3), f"{stage}0.conv1.weight": torch.ones(2)}
    counter = {f"{stage}0.bn1.num_batches_tracked": torch.tensor(0)}
    copies = {name.replace(stage, again): value.clone() for name, value in (encoder | counter).items() if stage in name}
    got = split_official(model | encoder | counter | copies)
    assert got[0] == model and got[1] == encoder | counter
    assert split_official(model) == (model, {})
    with pytest.raises(ValueError, match=r"head\.0\.0\.conv1\.weight differs from .*roi_head.*\.0\.conv1\.weight"):
        split_official(model | encoder | {f"{again}0.conv1.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match="split_official takes the image network out"):
        state_from_official(model | encoder)
