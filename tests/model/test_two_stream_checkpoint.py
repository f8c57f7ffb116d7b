"""Official names of ViLBERT and InterBERT to ours and back, their configurations, and what is refused."""

from functools import partial

import pytest
import torch
from model_examples import tiny_interbert
from vilbert_examples import randomised, tiny, with_old_norms

from roibeam.model.common.checkpoint import KeyTable
from roibeam.model.interbert import checkpoint as interbert
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks, InterBertModel, interbert_config
from roibeam.model.vilbert import checkpoint as vilbert
from roibeam.model.vilbert.encoder import vilbert_config
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks, ViLbertModel


def of_vilbert(model_class, release, **options):
    """A model, its names in the release, and the way back."""
    official = partial(vilbert.state_to_official, release=release)
    return randomised(model_class(tiny(**options))), official, vilbert.state_from_official


def of_interbert(model_class, joint=2, text=1):
    model = randomised(model_class(tiny_interbert(num_hidden_layers=joint, text_num_hidden_layers=text)))
    return model, interbert.state_to_official, partial(interbert.state_from_official, num_joint_layers=joint)


MODELS = {
    "vilbert": partial(of_vilbert, ViLbertForPreTraining, "release"),
    "vilbert, tasks": partial(of_vilbert, ViLbertForTasks, "release"),
    "vilbert, multi-task": partial(of_vilbert, ViLbertForMultiTask, "release-mt", num_task_tokens=4),
    "interbert": partial(of_interbert, InterBertForPreTraining),
    "interbert, 1 + 3": partial(of_interbert, InterBertForPreTraining, 1, 3),
    "interbert, 3 + 0": partial(of_interbert, InterBertForTasks, 3, 0),
    "interbert, tasks": partial(of_interbert, InterBertForTasks),
}
# What ViLBERT's files hold and no code reads.
INERT = [f"bert.encoder.c_layer.0.biOutput.q_dense{side}.{kind}" for side in (1, 2) for kind in ("weight", "bias")]


def assert_equal_states(found, state):
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize("name", MODELS)
def test_names_go_there_and_back(name):
    """And with the names of a data-parallel run with old LayerNorms, inert layers included. The golden arrays hold
    that they are those of the releases."""
    model, official_names, back = MODELS[name]()
    state = model.state_dict()
    official = official_names(state)
    assert torch.equal(official["cls.predictions.decoder.weight"], official["bert.embeddings.word_embeddings.weight"])
    assert_equal_states(back(official), state)
    inert = dict.fromkeys(INERT, torch.ones(3)) if name.startswith("vilbert") else {}
    assert_equal_states(back(with_old_norms(official | inert, "module.")), state)
    if name.startswith("vilbert"):
        assert vilbert.release_of(official) == official_names.keywords["release"]


def test_the_release_s_six_joint_layers_are_the_default():
    state = of_interbert(InterBertForPreTraining, 6, 6)[0].state_dict()
    assert interbert.state_from_official(interbert.state_to_official(state)).keys() == state.keys()


@pytest.mark.parametrize("key", ["model_state_dict", "model", "state_dict"])
def test_a_file_to_resume_from(key):
    """The multi-task release saves its weights among the states of optimizer and schedule."""
    model, official_names, back = MODELS["vilbert"]()
    official = official_names(model.state_dict())
    nested = {key: with_old_norms(official), "optimizer_state_dict": {"state": {}}, "global_step": 7, "tb_logger": None}
    assert back(nested).keys() == back(official).keys()
    with pytest.raises(ValueError, match="'global_step' of the checkpoint is a int, not a parameter"):
        back(official | {"global_step": 7})


@pytest.mark.parametrize("name, bare", [("vilbert", ViLbertModel), ("interbert", InterBertModel)])
def test_a_checkpoint_of_the_streams_alone(name, bare):
    model, official_names, back = MODELS[name]()
    state = {f"{name}.{each}": tensor for each, tensor in bare(model.config).state_dict().items()}
    official = {each.removeprefix("bert."): tensor for each, tensor in official_names(state).items()}
    assert not any(each.startswith("bert.") for each in official)
    assert back(official).keys() == state.keys()


ONE = torch.ones(1)
TIED, TWICE = {"cls.predictions.decoder.weight": torch.ones(90, 24)}, {"module.cls.predictions.bias": torch.ones(90)}


@pytest.mark.parametrize(
    "name, more, message",
    [
        ("vilbert, multi-task", {"bert.encoder.layer.0.rotary.weight": ONE}, "rotary.weight' is not one of ViLBERT"),
        ("vilbert, multi-task", TIED, "differs from bert.embeddings.word"),
        ("vilbert, multi-task", TWICE, "two parameters 'cls.predictions.bias'"),
        ("vilbert, multi-task", {"vil_prediction.main.0.weight_g": ONE}, "not one of ViLBERT's multi-task release"),
        ("interbert", {"bert.encoder.layer.0.rotary.weight": ONE}, "rotary.weight' is not one of Inter"),
        ("interbert", {"bert.encoder.c_layer.0.biOutput.dense1.bias": ONE}, "is not one of InterBERT"),
        ("interbert", TIED, "differs from bert.embeddings.word"),
        ("interbert", TWICE, "two parameters 'cls.predictions.bias'"),
    ],
)
def test_what_does_not_belong_is_named(name, more, message):
    model, official_names, back = MODELS[name]()
    with pytest.raises(ValueError, match=message):
        back(official_names(model.state_dict()) | more)


def test_states_that_do_not_fit_are_named():
    released = interbert.state_to_official(of_interbert(InterBertForPreTraining)[0].state_dict())
    with pytest.raises(ValueError, match="has 3 layers of BERT, but 4 should be joint"):
        interbert.state_from_official(released, 4)
    paper = InterBertForPreTraining(tiny_interbert("paper")).state_dict()
    with pytest.raises(ValueError, match=r"'interbert\.region_embeddings\.\S+' has no name in a checkpoint of Inter"):
        interbert.state_to_official(paper)
    with pytest.raises(ValueError, match=r"'answer_head.scale' has no name|answer_head.* has no name in a checkpoint"):
        vilbert.state_to_official(ViLbertForTasks(tiny()).state_dict(), "release-mt")
    with pytest.raises(ValueError, match=r"two rules for 'b\.'"):
        KeyTable("a test", [("a.", "b."), ("c.", "b.")])
    assert set(vilbert.TABLES) == {"release", "release-mt"}


SHARED = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512, "num_attention_heads": 12,
    "type_vocab_size": 2, "vocab_size": 30522, "v_feature_size": 2048, "v_target_size": 1601,
    "v_num_hidden_layers": 6, "v_num_attention_heads": 8, "v_attention_probs_dropout_prob": 0.1,
    "v_hidden_act": "gelu", "v_initializer_range": 0.02, "pooling_method": "mul",
}  # fmt: skip
# config/bert_base_6layer_6conect.json, the same in both releases of ViLBERT
SIX_LAYERS = SHARED | {
    "num_hidden_layers": 12, "v_hidden_size": 1024, "v_intermediate_size": 1024, "v_hidden_dropout_prob": 0.1,
    "bi_hidden_size": 1024, "bi_num_attention_heads": 8, "bi_intermediate_size": 1024, "bi_attention_type": 1,
    "v_biattention_id": [0, 1, 2, 3, 4, 5], "t_biattention_id": [6, 7, 8, 9, 10, 11],
}  # fmt: skip
# config/bert_base_6layer_interbert.json
RELEASED = SHARED | {
    "num_hidden_layers": 6, "t_num_hidden_layers": 6, "v_hidden_size": 768, "v_intermediate_size": 3072,
    "v_hidden_dropout_prob": 0.2, "conv_layer": "normal_conv", "max_region_length": 36, "max_seq_length": 36,
}  # fmt: skip


def test_the_official_configuration_of_vilbert_is_the_preset():
    read = vilbert.config_from_official
    assert read(SIX_LAYERS).to_dict() == vilbert_config("release").to_dict()
    options = {"task_specific_tokens": True, "fusion_method": "sum", "predict_feature": True, "v_target_size": 2048}
    config = read(SIX_LAYERS | options, whole_image_count="visible")
    assert (config.num_task_tokens, config.fusion, config.region_loss) == (20, "sum", "regression")
    assert config.whole_image_count == "visible"
    contrastive = read(SIX_LAYERS | {"visual_target": 2, "v_target_size": 2048, "num_negative": 255})
    assert (contrastive.region_loss, contrastive.num_negatives) == ("contrastive", 255)


def test_the_official_configuration_of_interbert_is_the_preset():
    read = interbert.config_from_official
    assert read(RELEASED).to_dict() == interbert_config("release").to_dict()
    options = {"fusion_method": "sum", "predict_feature": True, "v_target_size": 2048, "bi_hidden_size": 512}
    config = read(RELEASED | options | {"hidden_dropout_prob": 0.3}, num_answers=4)
    assert (config.fusion, config.region_loss, config.pooled_size) == ("sum", "regression", 512)
    assert (config.region_embedding_dropout, config.image_hidden_dropout, config.num_answers) == (0.3, 0.2, 4)
    config = read({"t_num_hidden_layers": 2})  # what a file leaves out is the default of the release's code
    assert (config.num_hidden_layers, config.text_num_hidden_layers, config.image_num_hidden_layers) == (12, 2, 3)
    assert (config.image_num_attention_heads, config.image_hidden_dropout) == (12, 0.1)


@pytest.mark.parametrize(
    "module, options, message",
    [
        (vilbert, SIX_LAYERS | {"hidden_sise": 3}, "no option 'hidden_sise'"),
        (vilbert, SIX_LAYERS | {"model": "t5"}, "model is 't5'; it must be bert or roberta"),
        (vilbert, SIX_LAYERS | {"fixed_t_layer": 7}, "fixed_text_layers 7 must be 0 to 6"),
        (vilbert, SIX_LAYERS | {"visual_target": 3}, "visual_target is 3; it must be 0"),
        (vilbert, SIX_LAYERS | {"fusion_method": "cat"}, "fusion is 'cat'"),
        (interbert, RELEASED | {"hidden_sise": 3}, "no option 'hidden_sise'"),
        (
            interbert,
            RELEASED | {"v_hidden_size": 1024},
            "v_hidden_size is 1024, hidden_size 768; joint layers need one",
        ),
        (interbert, RELEASED | {"fusion_method": "cat"}, "fusion is 'cat'"),
        (interbert, {"hidden_size": 768}, "lacks t_num_hidden_layers"),
    ],
)
def test_official_options_that_are_not_computed_are_named(module, options, message):
    with pytest.raises(ValueError, match=message):
        module.config_from_official(options)
