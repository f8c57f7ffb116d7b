"""Official names to ours and back, and what is refused."""

import pytest
import torch
from vilbert_examples import make_batch, randomised, tiny

from roibeam.model.common.checkpoint import KeyTable
from roibeam.model.vilbert.checkpoint import (
    TABLES,
    config_from_official,
    release_of,
    state_from_official,
    state_to_official,
)
from roibeam.model.vilbert.encoder import vilbert_config
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks, ViLbertModel

KINDS = [
    (ViLbertForPreTraining, "release", {}),
    (ViLbertForTasks, "release", {}),
    (ViLbertForMultiTask, "release-mt", {"num_task_tokens": 4}),
]


@pytest.mark.parametrize("model_class, release, options", KINDS)
def test_names_go_there_and_back(model_class, release, options):
    model = randomised(model_class(tiny(**options)))
    official = state_to_official(model.state_dict(), release)
    assert release_of(official) == release
    assert torch.equal(official["cls.predictions.decoder.weight"], official["bert.embeddings.word_embeddings.weight"])
    back = state_from_official(official)
    state = model.state_dict()
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


def test_names_are_those_of_the_releases():
    """Spelt out for one of each kind; the golden arrays hold them all."""
    official = state_to_official(ViLbertForTasks(tiny()).state_dict(), "release")
    sizes = {name: tuple(tensor.shape) for name, tensor in official.items()}
    assert sizes["bert.encoder.c_layer.1.biattention.query1.weight"] == (16, 20)  # 1 is the image
    assert sizes["bert.encoder.c_layer.1.biattention.key2.weight"] == (16, 24)  # 2 is the text
    assert sizes["bert.encoder.c_layer.0.biOutput.dense1.weight"] == (20, 16)
    assert sizes["bert.encoder.c_layer.0.biOutput.LayerNorm2.bias"] == (24,)
    assert sizes["bert.encoder.c_layer.0.t_intermediate.dense.weight"] == (32, 24)
    assert sizes["bert.encoder.v_layer.1.attention.output.LayerNorm.weight"] == (20,)
    assert sizes["vil_prediction.main.0.weight_g"] == ()
    assert sizes["vil_prediction.main.3.weight_v"] == (11, 32)
    official = state_to_official(ViLbertForMultiTask(tiny()).state_dict(), "release-mt")
    assert tuple(official["vil_binary_prediction.logit_fc.3.weight"].shape) == (2, 32)
    assert tuple(official["vil_prediction_gqa.logit_fc.2.weight"].shape) == (32,)


def old_names(official):
    """As a data-parallel run with old LayerNorms saved them, inert layers included."""
    old = {}
    for name, tensor in official.items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        old[f"module.{name}"] = tensor
    for end in ("q_dense1.weight", "q_dense1.bias", "q_dense2.weight", "q_dense2.bias"):
        old[f"module.bert.encoder.c_layer.0.biOutput.{end}"] = torch.ones(3)
    return old


def test_prefix_old_norms_and_inert_layers():
    model = randomised(ViLbertForPreTraining(tiny()))
    state = state_from_official(old_names(state_to_official(model.state_dict(), "release")))
    assert state.keys() == model.state_dict().keys()
    loaded = ViLbertForPreTraining(tiny()).eval()
    loaded.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(loaded.vilbert(make_batch()).pooled, model.vilbert(make_batch()).pooled)


@pytest.mark.parametrize("key", ["model_state_dict", "model", "state_dict"])
def test_a_file_to_resume_from(key):
    """The multi-task release saves its weights among the states of optimizer and schedule."""
    official = state_to_official(randomised(ViLbertForPreTraining(tiny())).state_dict(), "release")
    nested = {key: old_names(official), "optimizer_state_dict": {"state": {}}, "global_step": 7, "tb_logger": None}
    state = state_from_official(nested)
    assert state.keys() == state_from_official(official).keys()
    with pytest.raises(ValueError, match="'global_step' of the checkpoint is a int, not a parameter"):
        state_from_official(official | {"global_step": 7})


def test_a_checkpoint_of_the_streams_alone():
    model = randomised(ViLbertModel(tiny()))
    state = {f"vilbert.{name}": tensor for name, tensor in model.state_dict().items()}
    official = {name.removeprefix("bert."): t for name, t in state_to_official(state, "release").items()}
    assert not any(name.startswith("bert.") for name in official)
    assert state_from_official(official).keys() == state.keys()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: s | {"bert.encoder.layer.0.rotary.weight": torch.ones(1)}, "rotary.weight' is not one of ViLBERT"),
        (lambda s: s | {"cls.predictions.decoder.weight": torch.ones(90, 24)}, "differs from bert.embeddings.word"),
        (lambda s: s | {"module.cls.predictions.bias": torch.ones(90)}, "two parameters 'cls.predictions.bias'"),
        (lambda s: s | {"vil_prediction.main.0.weight_g": torch.ones(())}, "not one of ViLBERT's multi-task release"),
    ],
)
def test_what_does_not_belong_is_named(change, message):
    official = state_to_official(ViLbertForMultiTask(tiny()).state_dict(), "release-mt")
    with pytest.raises(ValueError, match=message):
        state_from_official(change(official))


def test_a_release_without_such_heads_is_named():
    with pytest.raises(ValueError, match=r"'answer_head.scale' has no name|answer_head.* has no name in a checkpoint"):
        state_to_official(ViLbertForTasks(tiny()).state_dict(), "release-mt")


def test_two_rules_for_one_name_are_refused():
    with pytest.raises(ValueError, match=r"two rules for 'b\.'"):
        KeyTable("a test", [("a.", "b."), ("c.", "b.")])
    assert set(TABLES) == {"release", "release-mt"}


# config/bert_base_6layer_6conect.json, the same in both releases
SIX_LAYERS = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "v_feature_size": 2048,
    "v_target_size": 1601,
    "v_hidden_size": 1024,
    "v_num_hidden_layers": 6,
    "v_num_attention_heads": 8,
    "v_intermediate_size": 1024,
    "bi_hidden_size": 1024,
    "bi_num_attention_heads": 8,
    "bi_intermediate_size": 1024,
    "bi_attention_type": 1,
    "v_attention_probs_dropout_prob": 0.1,
    "v_hidden_act": "gelu",
    "v_hidden_dropout_prob": 0.1,
    "v_initializer_range": 0.02,
    "v_biattention_id": [0, 1, 2, 3, 4, 5],
    "t_biattention_id": [6, 7, 8, 9, 10, 11],
    "pooling_method": "mul",
}


def test_the_official_configuration_is_the_preset():
    assert config_from_official(SIX_LAYERS).to_dict() == vilbert_config("release").to_dict()
    options = {"task_specific_tokens": True, "fusion_method": "sum", "predict_feature": True, "v_target_size": 2048}
    config = config_from_official(SIX_LAYERS | options, whole_image_count="visible")
    assert (config.num_task_tokens, config.fusion, config.region_loss) == (20, "sum", "regression")
    assert config.whole_image_count == "visible"
    contrastive = config_from_official(SIX_LAYERS | {"visual_target": 2, "v_target_size": 2048, "num_negative": 255})
    assert (contrastive.region_loss, contrastive.num_negatives) == ("contrastive", 255)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hidden_sise": 3}, "no option 'hidden_sise'"),
        ({"model": "t5"}, "model is 't5'; it must be bert or roberta"),
        ({"fixed_t_layer": 7}, "fixed_text_layers 7 must be 0 to 6"),
        ({"visual_target": 3}, "visual_target is 3; it must be 0"),
        ({"fusion_method": "cat"}, "fusion is 'cat'"),
    ],
)
def test_official_options_that_are_not_computed_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        config_from_official(SIX_LAYERS | options)
