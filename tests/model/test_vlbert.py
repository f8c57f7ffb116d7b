"""VL-BERT's starting losses, configuration and names; what it shares with all is in test_invariances.py."""

import dataclasses
import math

import pytest
import torch

from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vlbert.checkpoint import state_from_official, state_to_official
from roibeam.model.vlbert.config import VLBertConfig, vlbert_base, vlbert_small
from roibeam.model.vlbert.embeddings import average_visible_regions, image_elements
from roibeam.model.vlbert.model import VLBertForPreTraining

VOCAB_SIZE, FEATURES, LABELS = 300, 32, 41


def tiny(**overrides):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    sizes |= {"vocab_size": VOCAB_SIZE, "region_feature_size": FEATURES, "num_region_labels": LABELS}
    return VLBertConfig(**(sizes | {"coordinate_embedding_size": 64, "max_position_embeddings": 40} | overrides))


def make_model(**overrides):
    """With the visual LayerNorms awake: at their start value 0 much of the model could not be seen from outside."""
    torch.manual_seed(0)
    return VLBertForPreTraining(
        tiny(visual_norm_text_init=1.0, visual_norm_region_init=1.0, initializer_range=0.2, **overrides)
    ).eval()


def make_batch(lengths=(9, 4, 7), regions=(5, 6, 0), *, text_pad=0, region_pad=0, seed=0):
    """Rows of the given sizes; padding is filled with numbers that must not matter."""
    generator = torch.Generator().manual_seed(seed)
    rows, text, most = len(lengths), max(lengths) + text_pad, max(regions) + region_pad
    text_mask = torch.arange(text) < torch.tensor(lengths)[:, None]
    region_mask = torch.arange(most) < torch.tensor(regions)[:, None]
    text_ids = torch.full((rows, text), 7)
    labels = torch.full((rows, text), IGNORE_INDEX)
    features = torch.full((rows, most, FEATURES), 1e3)
    boxes = torch.full((rows, most, 4), -50.0)
    targets = torch.zeros(rows, most, LABELS)
    predicted, masked = torch.zeros(rows, most, dtype=torch.bool), torch.zeros(rows, most, dtype=torch.bool)
    for row in range(rows):
        length, count = lengths[row], regions[row]
        text_ids[row, :length] = torch.randint(VOCAB_SIZE, (length,), generator=generator)
        labels[row, 1:3] = text_ids[row, 1:3]
        features[row, :count] = torch.randn(count, FEATURES, generator=generator)
        corner = torch.rand(count, 2, generator=generator) * 100
        boxes[row, :count] = torch.cat([corner, corner + 50], dim=1)
        targets[row, :count] = torch.softmax(torch.randn(count, LABELS, generator=generator), dim=1)
        predicted[row, : min(count, 1)] = masked[row, : min(count, 1)] = True
    return VLBatch(
        text_ids=text_ids,
        text_mask=text_mask,
        text_segments=torch.zeros_like(text_ids),
        region_features=features,
        region_boxes=boxes,
        region_mask=region_mask,
        image_hw=torch.tensor([[150.0, 200.0]]).expand(rows, 2),
        masked_regions=masked,
        text_labels=labels,
        region_targets=targets,
        region_target_mask=predicted,
    )


def test_whole_image_comes_first_and_averages_what_is_visible():
    batch = make_batch()
    elements = image_elements(batch)
    assert elements.boxes[:, 0].tolist() == [[0, 0, 199, 149]] * 3
    assert elements.mask[:, 0].all() and not elements.masked[:, 0].any()
    torch.testing.assert_close(elements.features[0, 0], batch.region_features[0, 1:5].mean(0), rtol=1e-5, atol=1e-5)
    assert elements.features[2, 0].abs().max() == 0  # an image without regions
    given = torch.ones(3, FEATURES)
    assert torch.equal(image_elements(dataclasses.replace(batch, whole_image_features=given)).features[:, 0], given)


def test_average_of_nothing_visible_is_zero():
    everything = torch.ones(1, 4, dtype=torch.bool)
    assert average_visible_regions(torch.randn(1, 4, 8), everything, everything).abs().max() == 0


@pytest.mark.parametrize("build", [tiny, lambda **kw: vlbert_small(num_hidden_layers=2, region_feature_size=32, **kw)])
def test_untrained_losses_are_those_of_guessing(build):
    torch.manual_seed(0)
    model = VLBertForPreTraining(build(vocab_size=2000, num_region_labels=1601))
    batch = make_batch(lengths=(20,) * 8, regions=(10,) * 8)
    targets = torch.softmax(torch.randn(8, 10, 1601), dim=-1)
    losses = model(dataclasses.replace(batch, region_targets=targets)).losses
    assert losses["masked_words"].mean.item() == pytest.approx(math.log(2000), rel=0.1)
    assert losses["masked_regions"].mean.item() == pytest.approx(math.log(1601), rel=0.1)


def test_start_values_are_those_of_the_release():
    torch.manual_seed(0)
    model = VLBertForPreTraining(vlbert_small(vocab_size=VOCAB_SIZE))
    embeddings = model.vlbert.embeddings
    assert embeddings.visual_norm_text.weight.abs().max() == 0 == embeddings.visual_norm_region.weight.abs().max()
    assert (embeddings.norm.weight == 1).all()
    assert model.vlbert.masked_region_feature.weight.abs().max() == 0
    assert embeddings.words.weight.std().item() == pytest.approx(0.02, rel=0.02)
    projection = model.vlbert.region_projection.linear
    bound = 1 / math.sqrt(projection.in_features)  # PyTorch's own: uniform within this bound
    assert projection.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert projection.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_text_too_long_for_the_positions():
    with pytest.raises(ValueError, match="cut captions to 38 pieces"):
        make_model()(make_batch(lengths=(39, 3, 3)))


def test_relationship_head():
    model = make_model(with_pooler=True, with_relationship_head=True)
    with pytest.raises(ValueError, match="match_labels"):
        model(make_batch())
    output = model(dataclasses.replace(make_batch(), match_labels=torch.tensor([1, 0, 1])))
    assert output.losses["matching"].count == 3 and output.losses["matching"].mean.isfinite()


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: VLBertConfig(hiden_size=64), "unknown field 'hiden_size'; did you mean hidden_size"),
        (lambda: vlbert_small(num_layers=3), "num_hidden_layers"),
        (lambda: VLBertConfig(id2label={0: "a"}), "unknown field 'id2label'"),
        (lambda: VLBertConfig(hidden_size=100), "not a multiple of num_attention_heads 12"),
        (lambda: VLBertConfig(coordinate_embedding_size=20), "multiple of 8"),
        (lambda: VLBertConfig(with_relationship_head=True), "with_pooler=True"),
    ],
)
def test_config_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_base_is_the_released_size():
    config = vlbert_base()
    with torch.device("meta"):
        model = VLBertForPreTraining(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(114.5e6, rel=0.005)  # reference/vl-bert.md, section 12


def test_names_go_to_the_official_ones_and_back():
    state = make_model(with_pooler=True, with_relationship_head=True).state_dict()
    official = state_to_official(state)
    assert "vlbert.encoder.layer.1.attention.output.LayerNorm.bias" in official
    assert "image_feature_extractor.obj_downsample.1.weight" in official
    assert torch.equal(
        official["vlbert.mlm_head.predictions.decoder.weight"], official["vlbert.word_embeddings.weight"]
    )
    back = state_from_official(official)
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)
    with pytest.raises(ValueError, match=r"'vlbert\.rotary' has no name in a checkpoint of VL-BERT"):
        state_to_official({"vlbert.rotary": torch.ones(1)})


def test_a_file_with_an_unknown_field_is_refused(tmp_path):
    make_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"hidden_dropout"', '"hidden_dropuot"'))
    with pytest.raises(ValueError, match="hidden_dropuot"):
        VLBertForPreTraining.from_pretrained(tmp_path)
