"""From photos to VL-BERT's losses and gradients, region encoder included, against the official code's arrays.

goldens/vlbert/README.md, `pretrain_e2e_*`, its tolerances. The narrow network runs always, the true-size one is `slow`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.resnet import Backbone, Stem, build_stage
from roibeam.extraction.network.state import check_state
from roibeam.extraction.region_encoder import RegionBatch, RegionEncoder, collate_photos, prepare_photo
from roibeam.extraction.weights.families import name_weights
from roibeam.model.inputs import IGNORE_INDEX, VLBatch, VLOutput
from roibeam.model.vlbert.checkpoint import name_from_official, split_official, state_from_official
from roibeam.model.vlbert.config import VLBertConfig
from roibeam.model.vlbert.embeddings import image_elements
from roibeam.model.vlbert.model import VLBertForPreTraining

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "vlbert"
CASES = ["narrow", pytest.param("res101", marks=pytest.mark.slow)]
CONVENTION = CONVENTIONS["vlbert-e2e"]


class Run(NamedTuple):
    golden: dict
    official: dict
    photos: RegionBatch
    encoder: RegionEncoder
    features: torch.Tensor  # (B, R, D), row 0 the whole image
    model: VLBertForPreTraining
    batch: VLBatch
    output: VLOutput
    states: dict  # embedding and layers, our layout


def drawn_weights(config, stored):
    """Tensors that the golden does not store, by the recipe of its README."""
    drawn = {}
    for key, spec in config.get("weights_spec", {}).items():
        if key in stored or "tied_to" in spec:
            continue
        random = np.random.RandomState((zlib.crc32(key.encode()) + config["weights_seed"]) & 0xFFFFFFFF)
        count = math.prod(spec["shape"])
        values = random.standard_normal(count) if spec["dist"] == "normal" else random.random_sample(count)
        bits = (spec["offset"] + spec["scale"] * values).astype(np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        total, first = config["weights_check"][key]
        assert rounded.astype(np.float64).sum() == pytest.approx(total, rel=1e-9, abs=1e-9)
        assert rounded[0] == np.float32(first)
        drawn[key] = torch.from_numpy(rounded.reshape(spec["shape"]))
    return drawn


def build_encoder(name, golden, weights, conventions=CONVENTION):
    sizes = {"short_edge": int(golden["in/min_size"]), "long_edge": int(golden["in/max_size"])}
    if name == "res101":
        encoder = RegionEncoder(DetectorConfig(**sizes), conventions)
    else:
        # One block in each stage and a sixteenth of the width, but a whole stem.
        config = DetectorConfig(depth=50, base_channels=4, **sizes)
        backbone = Backbone(config, conventions)
        backbone.stem = Stem(64, conventions)
        backbone.res2 = build_stage(1, 64, 4, conventions)
        backbone.res3, backbone.res4 = backbone.res3[:1], backbone.res4[:1]
        encoder = RegionEncoder(config, conventions, backbone=backbone)
    encoder.load_state_dict(check_state(name_weights(weights, name).tensors, encoder.state_dict(), name))
    return encoder.train()  # must compute as in evaluation


def prepare(golden, config, conventions=CONVENTION, *, hide=True):
    photos = []
    for row, count in enumerate(golden["in/raw_num_boxes"].tolist()):
        image = golden[f"in/raw_image_{row}"].flip(-1).numpy()  # R, G, B in the golden
        boxes, masked = golden["in/raw_boxes"][row, :count].numpy(), golden["in/mvrc_ops"][row, :count].numpy() == 1
        flip = bool(golden["in/raw_flip"][row])
        photos.append(prepare_photo(image, boxes, config, conventions, flip=flip, masked=masked if hide else None))
    return collate_photos(photos)


@pytest.fixture(scope="module", params=CASES)
def run(request):
    with np.load(GOLDENS / f"pretrain_e2e_{request.param}.npz") as file:
        golden = {key: torch.from_numpy(file[key]) for key in file.files if key != "config_json"}
        config = json.loads(str(file["config_json"]))
    stored = {key.removeprefix("param/"): value for key, value in golden.items() if key.startswith("param/")}
    official = stored | drawn_weights(config, stored)
    model_weights, encoder_weights = split_official(official)
    encoder = build_encoder(request.param, golden, encoder_weights)
    model = VLBertForPreTraining(
        VLBertConfig(
            vocab_size=200,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            region_feature_size=encoder.feature_dim,
            num_region_labels=30,
            max_position_embeddings=64,
            masked_appearance="pixels",
            with_pooler=True,
            with_relationship_head=True,
        )
    )
    model.load_state_dict(state_from_official(model_weights))
    model.eval()
    states = {}
    hooked = {"embedding_output": model.vlbert.embeddings} | {
        f"encoded_layer_{index}": layer for index, layer in enumerate(model.vlbert.encoder.layers)
    }
    for name, module in hooked.items():
        module.register_forward_hook(lambda _module, _inputs, output, name=name: states.__setitem__(name, output))

    photos = prepare(golden, encoder.config)
    features = encoder(photos.pixels, photos.boxes, photos.region_mask)
    targets = golden["in/mvrc_labels"][:, 1:]
    batch = VLBatch(
        text_ids=golden["in/text"],
        text_mask=golden["in/text"] > 0,
        text_segments=torch.zeros_like(golden["in/text"]),
        region_features=features[:, 1:],
        region_boxes=photos.photo_boxes[:, 1:],
        region_mask=photos.region_mask[:, 1:],
        image_hw=photos.image_hw,
        masked_regions=golden["in/mvrc_ops"][:, 1:] == 1,
        whole_image_features=features[:, 0],
        text_labels=golden["in/mlm_labels"].masked_fill(golden["in/mlm_labels"] == -1, IGNORE_INDEX),
        region_targets=targets,
        region_target_mask=targets.sum(-1) > 0.9,
        match_labels=golden["in/relationship_label"],
    )
    output = model.vlbert(batch)
    return Run(golden, official, photos, encoder, features, model, batch, output, states)


def near(got, want, mask=None, *, name):
    got, want = (got, want) if mask is None else (got[mask], want[mask])
    torch.testing.assert_close(got.detach(), want, rtol=0, atol=1e-4, msg=lambda text: f"{name}: {text}")


def test_network_input_is_that_of_the_release(run):
    golden, photos = run.golden, run.photos
    # Equal, as the README promises for the same resampler (Pillow): which pixels are blanked, too.
    assert torch.equal(photos.pixels, golden["in/image"])
    assert torch.equal(photos.boxes, golden["in/boxes"])
    assert torch.equal(photos.region_mask, golden["in/boxes"][..., 0] > -1.5)
    width_height_scales = torch.cat([photos.input_hw.flip(-1), photos.scale_xy], dim=1)
    assert torch.equal(width_height_scales, golden["in/im_info"][:, :4])


def test_photos_that_are_not_masked(run):
    if "in/image_unmasked" not in run.golden:
        pytest.skip("this golden holds masked photos only")
    whole = prepare(run.golden, run.encoder.config, hide=False)
    assert torch.equal(whole.pixels, run.golden["in/image_unmasked"])


def test_features(run):
    with torch.no_grad():
        feature_map = run.encoder.backbone(run.photos.pixels)
        elements = image_elements(run.batch)
        visuals = run.model.vlbert.region_projection(elements.features, elements.boxes, run.batch.image_hw)
    near(feature_map[:, :64], run.golden["out/body4"], name="body4")
    near(run.features, run.golden["out/obj_reps_raw"], name="obj_reps_raw")
    assert not run.features[~run.photos.region_mask].any()
    near(visuals, run.golden["out/obj_reps"], run.photos.region_mask, name="obj_reps")


def test_states_and_logits(run):
    golden, batch = run.golden, run.batch
    # The release packs a row: real text, real elements, [END], then padding.
    keep = torch.cat([batch.text_mask, run.photos.region_mask, torch.ones(2, 1, dtype=torch.bool)], dim=1)
    for name in ("embedding_output", "encoded_layer_0", "encoded_layer_1", "encoded_layer_2"):
        states = run.states[name]  # those of layers are packed as the release's are
        states = states if states.ndim == 2 else states[keep]
        near(states, golden[f"out/{name}"][golden["out/attention_mask"]], name=name)
    states = torch.cat([run.output.whole_image_state[:, None], run.output.region_states], dim=1)
    with torch.no_grad():
        words = run.model.masked_word_head(run.output.text_states, run.model.vlbert.embeddings.words.weight)
        regions = run.model.masked_region_head(states)
        matching = run.model.relationship_head(run.output.pooled)
    near(words, golden["out/mlm_logits"], batch.text_mask, name="mlm_logits")
    near(regions, golden["out/mvrc_logits"], run.photos.region_mask, name="mvrc_logits")
    near(matching, golden["out/relationship_logits"], name="relationship_logits")


def test_losses_and_gradients_into_the_pixels_network(run):
    golden = run.golden
    terms = run.model.score(run.batch, run.output).losses
    for ours, official in {"masked_words": "mlm", "masked_regions": "mvrc", "matching": "relationship"}.items():
        torch.testing.assert_close(terms[ours].mean, golden[f"out/{official}_loss"], rtol=1e-5, atol=2e-5)
    total = sum(term.mean for term in terms.values())
    torch.testing.assert_close(total, golden["out/loss"], rtol=1e-5, atol=2e-5)
    total.backward(retain_graph=True)

    parameters = {**dict(run.encoder.named_parameters()), **dict(run.model.named_parameters())}
    ours = {}
    for key in golden:
        kind, _, official = key.partition("/")
        if kind == "gradnorm":
            named = name_weights({official: torch.zeros(1)}, key).tensors if is_encoder(official) else {}
            ours[official] = next(iter(named), None) or name_from_official(official)
    # Frozen stages and batch norms got none there; everything else did.
    assert {name for name, parameter in parameters.items() if parameter.grad is not None} == set(ours.values())
    assert {name for name in ours.values() if name in dict(run.encoder.named_parameters())} == {
        name for name in dict(run.encoder.named_parameters()) if not name.startswith(("backbone.stem", "backbone.res2"))
    }
    for official, name in ours.items():
        # Key biases cancel in the softmax: their gradient is rounding noise (README).
        if official.endswith("attention.self.key.bias"):
            continue
        gradient = parameters[name].grad
        torch.testing.assert_close(gradient.norm(), golden[f"gradnorm/{official}"], rtol=1e-3, atol=1e-5, msg=official)
        if (want := golden.get(f"grad/{official}")) is not None:
            step = math.ceil(gradient.numel() / 256)
            limit = 1e-3 * want.abs().max().item()
            torch.testing.assert_close(gradient.flatten()[::step], want, rtol=0, atol=limit, msg=official)


def is_encoder(official):
    return "backbone." in official or "roi_head_feature_extractor." in official


def test_split_takes_the_second_copy_of_the_last_stage_away(run):
    first, again = "image_feature_extractor.roi_head_feature_extractor.", "image_feature_extractor.head.0."
    model, encoder = split_official(run.official)
    copies = {again + key.removeprefix(first): value for key, value in run.official.items() if key.startswith(first)}
    assert copies
    with_copies = split_official(run.official | copies)
    assert with_copies[0].keys() == model.keys() and with_copies[1].keys() == encoder.keys()
    assert model.keys().isdisjoint(encoder) and len(model) + len(encoder) == len(run.official)
    name = next(iter(copies))
    with pytest.raises(ValueError, match=r"head\.0\..* differs from"):
        split_official(run.official | copies | {name: copies[name] + 1})


@pytest.mark.parametrize(
    "quirk",
    [
        {"channel_order": "rgb"},
        {"resize": "float-bilinear"},
        {"stem_pool": "pad-0-ceil"},
        {"stride_conv": "3x3"},
        {"norm_eps": 1e-3},
        {"res5_stride": 2},
        {"res5_dilation": 1},
        {"region_pool": "roi-pool"},
        {"box_clip": "edge"},
    ],
    ids=lambda quirk: next(iter(quirk)),
)
def test_each_convention_shows_in_the_features(quirk):
    with np.load(GOLDENS / "pretrain_e2e_narrow.npz") as file:
        golden = {key: torch.from_numpy(file[key]) for key in file.files if key != "config_json"}
    _, weights = split_official({key.removeprefix("param/"): value for key, value in golden.items() if "param/" in key})
    other = dataclasses.replace(CONVENTION, **quirk)
    encoder = build_encoder("narrow", golden, weights, other)
    photos = prepare(golden, encoder.config, other)
    with torch.no_grad():
        got = encoder(photos.pixels, photos.boxes, photos.region_mask)
    want = golden["out/obj_reps_raw"]
    assert (got - want).abs().max() > 1e-3 * want.abs().max()
