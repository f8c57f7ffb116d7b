"""VisualBERT against transformers' on random configurations; its own choices, names and files.

What it shares with all models is in test_invariances.py; the reference arrays are compared by
tests/pipelines/test_conformance_goldens.py.
"""

import dataclasses
import random

import pytest
import torch
import transformers
from model_examples import tiny_visualbert as tiny
from vilbert_examples import FEATURES, VOCAB_SIZE, make_batch, randomised

from roibeam.model.common.transformer import computing_padding
from roibeam.model.inputs import IGNORE_INDEX
from roibeam.model.visualbert.checkpoint import config_from_official, state_from_official, state_to_official
from roibeam.model.visualbert.fields import PRESETS
from roibeam.model.visualbert.model import (
    VisualBertConfig,
    VisualBertForGrounding,
    VisualBertForLabels,
    VisualBertForPreTraining,
    visualbert_config,
)


def make_model(**overrides):
    return randomised(VisualBertForPreTraining(tiny(**overrides)))


def official_inputs(batch):
    return {
        "input_ids": batch.text_ids,
        "attention_mask": batch.text_mask.long(),
        "token_type_ids": batch.text_segments,
        # Ours does not read padded features; transformers' computes states of them.
        "visual_embeds": batch.region_features.masked_fill(~batch.region_mask[..., None], 0.0),
        "visual_attention_mask": batch.region_mask.long(),
        "visual_token_type_ids": batch.region_images,
        "image_text_alignment": batch.aligned_words,
    }


def compare_with_transformers(seed, **wrong):
    """States, attention, logits, both losses and every gradient; padding stands between text and regions."""
    pick = random.Random(seed)
    heads, segments, batch_has = pick.choice([1, 2, 4]), pick.randint(2, 4), pick.choice(["words", "images", "both"])
    options = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": heads * pick.choice([4, 6]),
        "visual_embedding_dim": FEATURES,
        "num_hidden_layers": pick.randint(1, 3),
        "num_attention_heads": heads,
        "intermediate_size": pick.choice([20, 33]),
        "hidden_act": pick.choice(["gelu", "relu"]),
        "max_position_embeddings": pick.choice([16, 24]),
        "type_vocab_size": segments,
        "pad_token_id": pick.choice([0, 1, VOCAB_SIZE - 1]),
    }
    config = transformers.VisualBertConfig(**options, attn_implementation="eager")
    official = randomised(transformers.VisualBertForPreTraining(config), seed)
    official.tie_weights()
    first = int(batch_has == "words")  # transformers takes segment 1 where it is told none
    model = VisualBertForPreTraining(config_from_official(options, first_region_segment=first, **wrong)).eval()
    model.load_state_dict(state_from_official(official.state_dict()))
    lengths, regions = ([pick.randint(3, 9) for _ in range(3)] for _ in range(2))
    batch = make_batch(lengths, regions, seed=seed, text_pad=pick.randint(0, 4), region_pad=pick.randint(0, 2))
    generator = torch.Generator().manual_seed(seed)
    if batch_has != "images":
        words = torch.randint(-1, max(lengths), (*batch.region_mask.shape, 3), generator=generator)
        batch = dataclasses.replace(batch, aligned_words=words)
    if batch_has != "words":
        images = torch.randint(segments, batch.region_mask.shape, generator=generator)
        batch = dataclasses.replace(batch, region_images=images)
    labels = torch.cat([batch.text_labels, torch.full(batch.region_mask.shape, IGNORE_INDEX)], dim=1)
    theirs = official(
        **official_inputs(batch), labels=labels, sentence_image_labels=batch.match_labels, output_attentions=True
    )
    output = model.visualbert(batch)
    total = sum(term.mean for term in model.score(batch, output).losses.values())
    torch.testing.assert_close(total, theirs.loss, rtol=1e-5, atol=1e-5)
    with torch.no_grad(), computing_padding():
        padded = model.visualbert(batch, with_attention=True)
    states = torch.cat([padded.text_states, padded.region_states], dim=1)
    torch.testing.assert_close(model.word_logits(states), theirs.prediction_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.match_head(output.pooled), theirs.seq_relationship_logits, rtol=1e-4, atol=1e-5)
    for weights, wanted in zip(padded.attention.joint, theirs.attentions, strict=True):
        torch.testing.assert_close(weights, wanted, rtol=1e-4, atol=2e-5)
    total.backward()
    theirs.loss.backward()
    gradients = {name: p.grad for name, p in official.named_parameters() if "predictions.decoder" not in name}
    ours = {name: p.grad for name, p in model.named_parameters()}
    compared = state_from_official(gradients)
    assert compared.keys() == ours.keys()
    for name, gradient in compared.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("seed", range(30))
def test_equal_to_transformers_on_random_configurations(seed):
    compare_with_transformers(seed)


@pytest.mark.slow
def test_equal_to_transformers_on_many_more():
    for seed in range(30, 530):
        compare_with_transformers(seed)


@pytest.mark.parametrize("wrong", [{"alignment": "sum"}, {"hidden_activation": "relu"}])
def test_the_comparison_can_fail(wrong):
    compare_with_transformers(3)
    with pytest.raises(AssertionError, match="not close"):
        compare_with_transformers(3, **wrong)


def test_alignment_is_a_mean_in_the_codes_and_a_sum_in_the_paper():
    batch = make_batch()
    once = dataclasses.replace(batch, aligned_words=torch.full((3, 6, 1), 2))
    twice = dataclasses.replace(batch, aligned_words=torch.full((3, 6, 2), 2))
    none = dataclasses.replace(batch, aligned_words=torch.full((3, 6, 2), -1))
    for kind, same in (("mean", True), ("sum", False)):
        model = make_model(alignment=kind)
        with torch.no_grad():
            first, second, without = (model.visualbert(b).region_states[0] for b in (once, twice, none))
            plain = model.visualbert(batch).region_states[0]
        assert torch.allclose(first, second, atol=1e-5) == same
        assert torch.equal(without, plain) and not torch.allclose(first, plain, atol=1e-3)


def test_matching_is_left_out_without_labels_and_without_a_head():
    model, batch = make_model(), make_batch()
    assert set(model(dataclasses.replace(batch, match_labels=None)).losses) == {"masked_words"}
    assert set(make_model(with_match_head=False)(batch).losses) == {"masked_words"}


def test_late_fusion_reads_text_alone_first():
    model, batch = make_model(early_fusion=False), make_batch()
    output = model.visualbert(batch, with_attention=True)
    assert [len(output.attention.text), len(output.attention.joint)] == [2, 1]
    assert output.attention.text[0].shape == (3, 4, 9, 9) and output.attention.joint[0].shape == (3, 4, 15, 15)
    torch.testing.assert_close(output.pooled, model.visualbert(batch).pooled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("copied", [True, False])
def test_region_tables_start_as_copies_of_the_text_s(copied):
    torch.manual_seed(0)
    tables = VisualBertForPreTraining(tiny(copy_text_tables=copied)).visualbert.embeddings
    assert torch.equal(tables.region_positions.weight, tables.positions.weight) == copied
    assert torch.equal(tables.region_segments.weight, tables.segments.weight) == copied


def ucla_names(official):
    """As AllenNLP saved them: the model's own names behind "bert."."""
    parts = {
        "visual_bert.": "bert.",
        "visual_token_type_embeddings": "token_type_embeddings_visual",
        "visual_position_embeddings": "position_embeddings_visual",
        "visual_projection": "projection",
    }
    heads = {"cls.weight": "classifier.weight", "cls.bias": "classifier.bias"}
    renamed = {}
    for name, tensor in official.items():
        name = heads.get(name, name)
        if name.startswith("attention."):
            name = f"flickr_{name}"
        for ours, theirs in parts.items():
            name = name.replace(ours, theirs)
        renamed[f"bert.{name}"] = tensor
    return renamed


@pytest.mark.parametrize(
    "model_class, options, mark",
    [
        (VisualBertForPreTraining, {}, "bert.cls.seq_relationship.weight"),
        (VisualBertForPreTraining, {"early_fusion": False}, "bert.bert.additional_layer.output.dense.bias"),
        (VisualBertForLabels, {}, "bert.classifier.weight"),
        (VisualBertForGrounding, {}, "bert.flickr_attention.query.weight"),
    ],
)
def test_names_of_the_hub_and_of_ucla_files(model_class, options, mark):
    """Of both, there and back. `.th`: a state dict of the AllenNLP model; VCR's has its ResNet-50 in it."""
    state = randomised(model_class(tiny(**options))).state_dict()
    hub = state_to_official(state)
    official = ucla_names(hub)
    official.pop("bert.cls.predictions.decoder.bias", None)  # only transformers has it
    for name in (
        "bert.bert.embeddings.token_type_embeddings_visual.weight",
        "bert.bert.embeddings.projection.bias",
        mark,
    ):
        assert name in official
    official |= {"detector.backbone.0.weight": torch.ones(1), "bert.flickr_attention.value.weight": torch.ones(1)}
    wrapped = [{f"module.{name}": tensor for name, tensor in names.items()} for names in (hub, official)]
    for given in (hub, official, *wrapped, {"model": official, "optimizer": {}}):
        back = state_from_official(given)
        assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


def test_presets():
    widths = {"vqa": (2048, 3129), "nlvr2": (1024, 2), "vcr": (512, 1)}
    for task, sizes in widths.items():
        for whose, segment in (("ucla", 0), ("hub", 1)):
            config = visualbert_config(f"{whose}-{task}")
            assert (config.region_feature_size, config.num_answers) == sizes
            assert config.first_region_segment == config.padding_piece == segment and config.alignment == "mean"
    assert visualbert_config().to_dict() == VisualBertConfig().to_dict()
    assert visualbert_config("ucla-flickr30k").region_feature_size == 2054
    paper = visualbert_config("paper").to_dict()
    differing = {
        name: {key for key, value in visualbert_config(name).to_dict().items() if value != paper[key]}
        for name in PRESETS
        if name.startswith("paper-")
    }
    assert differing == {
        "paper-late-fusion": {"early_fusion"}, "paper-no-bert": set(), "paper-words-only": {"with_match_head"}
    }  # fmt: skip
    assert visualbert_config("paper", num_hidden_layers=2).num_hidden_layers == 2
    with pytest.raises(ValueError, match="no VisualBERT preset 'ucla'; there are ucla-vqa, ucla-nlvr2"):
        visualbert_config("ucla")


def test_what_does_not_belong_is_named():
    official = state_to_official(VisualBertForPreTraining(tiny()).state_dict())
    with pytest.raises(ValueError, match=r"'visual_bert\.rotary' is not one of VisualBERT"):
        state_from_official(official | {"visual_bert.rotary": torch.ones(1)})
    with pytest.raises(ValueError, match=r"decoder\.bias differs"):
        state_from_official(official | {"cls.predictions.decoder.bias": torch.ones(VOCAB_SIZE)})
    inert = {"attention.value.weight": torch.ones(1), "visual_bert.embeddings.position_ids": torch.ones(1)}
    assert state_from_official(official | inert).keys() == state_from_official(official).keys()


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: VisualBertConfig(hiden_size=3), "unknown field 'hiden_size'"),
        (lambda: VisualBertConfig(hidden_size=100), "not a multiple of num_attention_heads 12"),
        (lambda: VisualBertConfig(alignment="max"), "alignment is 'max'; it must be one of 'mean', 'sum'"),
        (lambda: VisualBertConfig(first_region_segment=2), "is none of 2 segments"),
        (lambda: config_from_official({"layer_norm_eps": 1e-5}), "layer_norm_eps 1e-05 is not computed here"),
        (lambda: config_from_official({"depth": 1}), "no option 'depth'"),
        (lambda: make_model()(make_batch((25, 3, 3))), "takes 1 .* to 24"),
    ],
)
def test_what_it_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()
