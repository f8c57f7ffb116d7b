"""Options of ViLBERT's multi-task release against its own code (vilbert_options.json), and what they mean here."""

import dataclasses
import json
import math

import pytest
import torch
import transformers
from vilbert_examples import make_batch, randomised, take_rows, tiny
from vilbert_options import CASES, NUMBERS, OPTIONS, REGIONS, ROWS, inputs, is_compared, weight

from roibeam.model.common.checkpoint import load_start
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vilbert.checkpoint import (
    config_from_official,
    state_from_official,
    state_from_roberta,
    state_to_official,
)
from roibeam.model.vilbert.encoder import vilbert_config
from roibeam.model.vilbert.model import ViLbertForPreTraining, ViLbertModel

RECORDED = json.loads(NUMBERS.read_text("utf-8"))


def official_model(options):
    """Ours with the weights that the release's code had, by official names."""
    model = ViLbertForPreTraining(config_from_official(OPTIONS | options)).eval()
    names = state_to_official(model.state_dict(), "release-mt")
    drawn = {name: weight(name, tensor.shape) for name, tensor in names.items() if "decoder.weight" not in name}
    words = drawn["bert.embeddings.word_embeddings.weight"]
    drawn |= {
        "cls.predictions.decoder.weight": words,
        "cls.imagePredictions.decoder.weight": weight(
            "cls.imagePredictions.decoder.weight", names["cls.imagePredictions.decoder.weight"].shape
        ),
        "bert.encoder.c_layer.0.biOutput.q_dense1.weight": torch.ones(20, 16),
    }
    with_co_attention = model.config.with_co_attention
    if not with_co_attention:
        drawn["bert.encoder.c_layer.0.biattention.query1.weight"] = torch.ones(16, 20)
    model.load_state_dict(state_from_official(drawn, with_co_attention=with_co_attention))
    return model


def official_batch():
    given = inputs()
    mask = given["image_attention_mask"].bool()
    words = given["masked_lm_labels"]
    return VLBatch(
        text_ids=given["input_ids"],
        text_mask=given["attention_mask"].bool(),
        text_segments=given["token_type_ids"],
        region_features=given["image_feat"][:, 1:],
        region_boxes=given["image_loc"][:, 1:, :4],
        region_mask=mask[:, 1:],
        image_hw=torch.ones(ROWS, 2),
        masked_regions=torch.zeros(ROWS, REGIONS, dtype=torch.bool),
        whole_image_features=given["image_feat"][:, 0],
        text_labels=words.masked_fill(words == -1, IGNORE_INDEX),
        region_targets=given["image_target"],
        region_target_mask=given["image_label"] == 1,
        match_labels=1 - given["next_sentence_label"],
    )


@pytest.mark.parametrize("case", CASES)
def test_the_release_computes_the_same(case):
    """float32 in another order of summation; numbers are of size 1 to 10."""
    model, batch, wanted = official_model(CASES[case]), official_batch(), RECORDED[case]
    bare = model.vilbert
    with torch.no_grad():
        text, image = bare.read_text(batch), bare.read_images(batch)
        output = (bare.fuse_all_pairs if CASES[case].get("in_batch_pairs") else bare.fuse)(text, image)
    for name in ("pooled_text", "pooled_image"):
        torch.testing.assert_close(getattr(output, name), torch.tensor(wanted[name]), rtol=1e-4, atol=1e-4)
    if "losses" not in wanted:
        return
    losses = model(batch).losses
    means = [losses[name].mean for name in ("masked_words", "masked_regions", "matching")]
    torch.testing.assert_close(torch.stack(means), torch.tensor(wanted["losses"]), rtol=1e-5, atol=1e-5)
    torch.stack(means).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norms = {name: g.norm().item() for name, g in state_to_official(gradients, "release-mt").items()}
    norms.pop("cls.predictions.decoder.weight")
    assert math.hypot(*norms.values()) == pytest.approx(wanted["gradient_norm"], rel=1e-3)
    compared = {name: norm for name, norm in norms.items() if is_compared(name)}
    assert compared == pytest.approx(wanted["gradient_norms"], rel=1e-3, abs=1e-5)


def test_all_pairs_are_those_of_the_single_pairs():
    model, batch = randomised(ViLbertForPreTraining(tiny())).vilbert, make_batch()
    two = take_rows(batch, [0, 2])
    with torch.no_grad():
        pairs = model.fuse_all_pairs(model.read_text(two), model.read_images(batch))
        assert pairs.pooled.shape[0] == 6
        for caption in range(2):
            one = model.fuse(model.read_text(take_rows(two, [caption])), model.read_images(batch))
            rows = slice(3 * caption, 3 * caption + 3)
            torch.testing.assert_close(pairs.pooled[rows], one.pooled, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(pairs.region_states[rows], one.region_states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text_pad, region_pad", [(6, 0), (0, 5)])
@pytest.mark.parametrize("with_co_attention", [True, False])
def test_dynamic_attention_ignores_padding_and_reads_the_text(text_pad, region_pad, with_co_attention):
    options = {"dynamic_attention": True, "with_co_attention": with_co_attention}
    model = randomised(ViLbertForPreTraining(tiny(**options))).vilbert
    batch, padded = make_batch(), make_batch(text_pad=text_pad, region_pad=region_pad)
    other_text = dataclasses.replace(batch, text_ids=batch.text_ids.roll(1, dims=1))
    with torch.no_grad():
        output, other, changed = model(batch), model(padded), model(other_text)
    torch.testing.assert_close(other.pooled, output.pooled, rtol=1e-4, atol=2e-5)
    assert (changed.pooled_image - output.pooled_image).abs().max() > 1e-3


def test_without_co_attention_the_streams_do_not_meet():
    model = randomised(ViLbertForPreTraining(tiny(with_co_attention=False))).vilbert
    assert not len(model.encoder.co_layers)
    batch = make_batch()
    with torch.no_grad():
        output, maps = model(batch), model(batch, with_attention=True).attention
        other = model(dataclasses.replace(batch, text_ids=batch.text_ids.roll(1, dims=1)))
    assert torch.equal(output.pooled_image, other.pooled_image) and not torch.equal(output.pooled, other.pooled)
    assert not maps.text_to_image and len(maps.text) == 3


def test_a_text_without_pieces_gates_nothing_into_nan():
    model, batch = randomised(ViLbertForPreTraining(tiny(dynamic_attention=True))), make_batch()
    mask = batch.text_mask.clone()
    mask[1] = False
    output = model.vilbert(dataclasses.replace(batch, text_mask=mask))
    assert all(v.isfinite().all() for v in vars(output).values() if isinstance(v, torch.Tensor))


def test_fixed_layers_ask_for_no_gradient_and_stay_so_in_files(tmp_path):
    config = tiny(fixed_text_layers=1, image_co_attention=(1, 1), fixed_image_layers=1)
    model = randomised(ViLbertForPreTraining(config))
    asking = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    fixed = ("vilbert.text_embeddings.", "vilbert.region_embeddings.", "vilbert.encoder.text_layers.0.")
    fixed += ("vilbert.encoder.image_layers.0.",)
    words = "vilbert.text_embeddings.words.weight"
    assert {n for n, _ in model.named_parameters()} - asking == {
        n for n, _ in model.named_parameters() if n.startswith(fixed) and n != words
    }
    model.save_pretrained(tmp_path)
    loaded = ViLbertForPreTraining.from_pretrained(tmp_path)
    bare = ViLbertModel.from_pretrained(tmp_path)
    assert not bare.text_embeddings.norm.weight.requires_grad and bare.text_embeddings.words.weight.requires_grad
    assert {name for name, parameter in loaded.named_parameters() if parameter.requires_grad} == asking
    model.train()
    sum(term.mean for term in model(make_batch()).losses.values()).backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == asking


def test_roberta_weights_give_roberta_states():
    """With RoBERTa's first position, and LayerNorms as ViLBERT has them, the text layers are RoBERTa's."""
    roberta = transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(
            vocab_size=90, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32,
            max_position_embeddings=24, type_vocab_size=1, layer_norm_eps=1e-12,
        )
    )  # fmt: skip
    roberta = randomised(roberta)
    model = randomised(ViLbertForPreTraining(tiny(first_position=2, num_segments=1, text_co_attention=(2, 2))), 1)
    left = load_start(model, state_from_roberta(roberta.state_dict()))
    assert all(not name.startswith(("vilbert.text_embeddings", "vilbert.encoder.text", "masked_word")) for name in left)
    batch = make_batch()  # its segments are not all 0
    with torch.no_grad():
        states = model.vilbert.read_text(batch).states
        theirs = roberta(batch.text_ids, batch.text_mask.long(), output_hidden_states=True)
        logits = model.word_logits(theirs.hidden_states[-1])
    torch.testing.assert_close(states, theirs.hidden_states[2][batch.text_mask], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits, theirs.logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"takes 1 .* to 22"):
        model.vilbert.read_text(make_batch((23, 3, 3)))


def test_the_roberta_preset_is_the_release_s_file():
    config = vilbert_config("release-mt-roberta")
    assert (config.vocab_size, config.max_position_embeddings, config.num_segments) == (50265, 514, 1)
    assert (config.first_position, config.padding_piece) == (0, 0)  # its code drops RoBERTa's positions


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"fixed_text_layers": 2}, "fixed_text_layers 2 must be 0 to 1"),
        ({"fixed_image_layers": 1}, "fixed_image_layers 1 must be 0 to 0"),
        ({"first_position": 24}, "first_position 24 is none of 24 rows"),
    ],
)
def test_what_the_options_refuse(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny(**fields)
