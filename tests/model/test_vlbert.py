"""VL-BERT's invariances, starting losses, configuration and files."""

import dataclasses
import math

import pytest
import torch

from model.inputs import IGNORE_INDEX, VLBatch
from model.vlbert import VLBertForPreTraining
from model.vlbert_checkpoint import state_from_official, state_to_official
from model.vlbert_config import VLBertConfig, vlbert_base, vlbert_small
from model.vlbert_embeddings import average_visible_regions, image_elements

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


def take_rows(batch, order):
    rows = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    return VLBatch(**{name: value[order] for name, value in rows.items() if isinstance(value, torch.Tensor)})


def assert_same_states(output, other, batch):
    text, regions = batch.text_mask, batch.region_mask
    pairs = [
        (output.text_states[text], other.text_states[:, : text.shape[1]][text]),
        (output.region_states[regions], other.region_states[:, : regions.shape[1]][regions]),
        (output.whole_image_state, other.whole_image_state),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)  # summation order differs with the shape


@pytest.mark.parametrize("text_pad, region_pad", [(6, 0), (0, 5), (3, 2)])
def test_padding_does_not_matter(text_pad, region_pad):
    model, batch = make_model(), make_batch()
    padded = make_batch(text_pad=text_pad, region_pad=region_pad)
    with torch.no_grad():
        assert_same_states(model.vlbert(batch), model.vlbert(padded), batch)
        losses, others = model(batch).losses, model(padded).losses
    for name, term in losses.items():
        assert term.count == others[name].count
        torch.testing.assert_close(term.total, others[name].total, rtol=1e-5, atol=1e-5)


def test_batch_order_and_neighbours_do_not_matter():
    model, batch = make_model(), make_batch()
    with torch.no_grad():
        whole = model.vlbert(batch)
        turned = model.vlbert(take_rows(batch, [2, 0, 1]))
        alone = model.vlbert(take_rows(batch, [1]))
    torch.testing.assert_close(turned.text_states, whole.text_states[[2, 0, 1]], rtol=0, atol=2e-5)
    torch.testing.assert_close(turned.region_states, whole.region_states[[2, 0, 1]], rtol=0, atol=2e-5)
    torch.testing.assert_close(alone.region_states, whole.region_states[[1]], rtol=0, atol=2e-5)


def test_region_order_does_not_matter():
    model, batch = make_model(), take_rows(make_batch(), [0, 1])
    order = [4, 2, 0, 1, 3]  # of row 0's five regions
    names = ("region_features", "region_boxes", "masked_regions")
    turned = {name: getattr(batch, name).clone() for name in names}
    for value in turned.values():
        value[0, :5] = value[0, order]
    with torch.no_grad():
        before, after = model.vlbert(batch), model.vlbert(dataclasses.replace(batch, **turned))
    torch.testing.assert_close(after.region_states[0, :5], before.region_states[0, order], rtol=0, atol=2e-5)
    torch.testing.assert_close(after.text_states[0], before.text_states[0], rtol=0, atol=2e-5)


def test_a_masked_region_cannot_be_seen():
    model, batch = make_model(), make_batch()
    changed = batch.region_features.clone()
    changed[batch.masked_regions] += 5.0
    with torch.no_grad():
        before = model.vlbert(batch)
        after = model.vlbert(dataclasses.replace(batch, region_features=changed))
        shown = model.vlbert(dataclasses.replace(batch, masked_regions=torch.zeros_like(batch.masked_regions)))
    assert torch.equal(before.region_states, after.region_states)
    assert torch.equal(before.text_states, after.text_states)
    assert (before.text_states - shown.text_states).abs().max() > 1e-2


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


@pytest.mark.parametrize("words, regions", [(False, True), (True, False), (False, False)])
def test_half_empty_batches_give_finite_losses_and_gradients(words, regions):
    model, batch = make_model(), make_batch()
    if not words:
        batch = dataclasses.replace(batch, text_labels=torch.full_like(batch.text_labels, IGNORE_INDEX))
    if not regions:
        batch = dataclasses.replace(batch, region_target_mask=torch.zeros_like(batch.region_target_mask))
    losses = model(batch).losses
    assert (losses["masked_words"].count > 0, losses["masked_regions"].count > 0) == (words, regions)
    assert (losses["masked_words"].mean > 0, losses["masked_regions"].mean > 0) == (words, regions)
    sum(term.mean for term in losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_a_batch_without_any_region():
    losses = make_model()(make_batch(regions=(0, 0, 0))).losses
    assert losses["masked_regions"].count == 0 and losses["masked_words"].mean.isfinite()


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


def test_save_and_load_give_the_same_model(tmp_path):
    model, batch = make_model(), make_batch()
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    loaded = VLBertForPreTraining.from_pretrained(tmp_path).eval()
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    assert loaded.config.hidden_size == 64 and loaded.config.visual_norm_text_init == 1.0
    state, other = model.state_dict(), loaded.state_dict()
    assert state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)
    with torch.no_grad():
        assert torch.equal(model(batch).losses["masked_words"].total, loaded(batch).losses["masked_words"].total)


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
