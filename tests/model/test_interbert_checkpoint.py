"""Official names to ours and back, starting from BERT, and what is refused."""

import pytest
import torch
import transformers
from interbert_examples import SIZES, make_model, tiny
from vilbert_examples import POSITIONS, VOCAB_SIZE, make_batch, randomised

from roibeam.model.common.checkpoint import load_start
from roibeam.model.interbert.checkpoint import (
    config_from_official,
    state_from_bert,
    state_from_official,
    state_to_official,
)
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks, InterBertModel, interbert_config

JOINT = SIZES["num_hidden_layers"]


@pytest.mark.parametrize("model_class", [InterBertForPreTraining, InterBertForTasks])
@pytest.mark.parametrize("joint, text", [(2, 1), (1, 3), (3, 0)])
def test_names_go_there_and_back(model_class, joint, text):
    model = randomised(model_class(tiny(num_hidden_layers=joint, text_num_hidden_layers=text)))
    official = state_to_official(model.state_dict())
    assert torch.equal(official["cls.predictions.decoder.weight"], official["bert.embeddings.word_embeddings.weight"])
    back, state = state_from_official(official, joint), model.state_dict()
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


def test_names_are_those_of_the_release():
    """Spelt out for one of each kind; the golden arrays hold them all."""
    model = randomised(InterBertForTasks(tiny()))
    official = state_to_official(model.state_dict())
    bare = model.interbert
    for name, ours in (
        ("bert.encoder.layer.1.attention.self.key.weight", bare.joint.layers[1].attention.key.weight),
        ("bert.encoder.layer.2.output.dense.weight", bare.text.layers[0].feed_forward.contract.weight),
        ("bert.encoder.v_layer.1.attention.output.LayerNorm.bias", bare.image.layers[1].attention_norm.bias),
        ("bert.v_embeddings.image_location_embeddings.weight", bare.region_embeddings.locations.weight),
        ("bert.t_pooler.dense.weight", bare.pooler.text.weight),
        ("cls.bi_seq_relationship.bias", model.match_head.bias),
        ("vil_prediction.weight", model.answer_head.weight),
        ("linguisic_logit.bias", model.word_score.bias),
    ):
        assert torch.equal(official[name], ours), name
    assert "bert.encoder.layer.3.output.dense.weight" not in official


def test_the_release_s_six_joint_layers_are_the_default():
    model = InterBertForPreTraining(tiny(num_hidden_layers=6, text_num_hidden_layers=6))
    assert state_from_official(state_to_official(model.state_dict())).keys() == model.state_dict().keys()


def test_prefix_and_old_norms():
    model = make_model()
    old = {}
    for name, tensor in state_to_official(model.state_dict()).items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        old[f"module.{name}"] = tensor
    loaded = InterBertForPreTraining(tiny()).eval()
    loaded.load_state_dict(state_from_official(old, JOINT))
    with torch.no_grad():
        assert torch.equal(loaded.encode(make_batch()).pooled, model.encode(make_batch()).pooled)


def test_a_checkpoint_of_the_streams_alone():
    model = randomised(InterBertModel(tiny()))
    state = {f"interbert.{name}": tensor for name, tensor in model.state_dict().items()}
    official = {name.removeprefix("bert."): tensor for name, tensor in state_to_official(state).items()}
    assert not any(name.startswith("bert.") for name in official)
    assert state_from_official(official, JOINT).keys() == state.keys()


@pytest.mark.parametrize(
    "change, joint, message",
    [
        (lambda s: s | {"bert.encoder.layer.0.rotary.weight": torch.ones(1)}, 2, "rotary.weight' is not one of Inter"),
        (lambda s: s | {"bert.encoder.c_layer.0.biOutput.dense1.bias": torch.ones(1)}, 2, "is not one of InterBERT"),
        (lambda s: s | {"cls.predictions.decoder.weight": torch.ones(90, 24)}, 2, "differs from bert.embeddings.word"),
        (lambda s: s | {"module.cls.predictions.bias": torch.ones(90)}, 2, "two parameters 'cls.predictions.bias'"),
        (lambda s: s, 4, "has 3 layers of BERT, but 4 should be joint"),
    ],
)
def test_what_does_not_belong_is_named(change, joint, message):
    official = state_to_official(InterBertForPreTraining(tiny()).state_dict())
    with pytest.raises(ValueError, match=message):
        state_from_official(change(official), joint)


def test_the_paper_s_additions_have_no_official_name():
    with pytest.raises(
        ValueError, match=r"'interbert\.region_embeddings\.\S+' has no name in a checkpoint of InterBERT"
    ):
        state_to_official(InterBertForPreTraining(tiny("paper")).state_dict())


@pytest.fixture(scope="module")
def bert():
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=POSITIONS)
    model = randomised(transformers.BertForPreTraining(config))
    model.tie_weights()
    return model


@pytest.mark.parametrize("joint, text", [(2, 1), (3, 0)])
def test_text_alone_is_the_bert_it_started_from(bert, joint, text):
    model = InterBertForPreTraining(tiny(num_hidden_layers=joint, text_num_hidden_layers=text)).eval()
    left = load_start(model, state_from_bert(bert.state_dict(), joint))
    filled = ("text_embeddings.", "joint.", "text.", "masked_word_head.")
    assert left and not any(name.removeprefix("interbert.").startswith(filled) for name in left)
    batch = make_batch(regions=(0, 0, 0))
    with torch.no_grad():
        output = model.encode_text(batch)
        theirs = bert(
            batch.text_ids, attention_mask=batch.text_mask.long(), token_type_ids=batch.text_segments
        ).prediction_logits
        ours = model.word_logits(output.text_states)
    torch.testing.assert_close(ours[batch.text_mask], theirs[batch.text_mask], rtol=1e-4, atol=1e-5)


def test_the_paper_leaves_the_text_s_layers_as_drawn(bert):
    """Appendix 6.2: BERT fills the joint layers, "the new weight parameters are randomly initialized"."""
    model = InterBertForPreTraining(tiny(num_hidden_layers=3, text_num_hidden_layers=2))
    left = load_start(model, state_from_bert(bert.state_dict(), 3))
    assert sum(name.startswith("interbert.text.layers.") for name in left) == 2 * 16
    with pytest.raises(ValueError, match=r"text\.layers\.0\S+: BERT has .*, this model no such parameter"):
        load_start(make_model(text_num_hidden_layers=0), state_from_bert(bert.state_dict(), 2))


# config/bert_base_6layer_interbert.json
RELEASED = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "t_num_hidden_layers": 6,
    "v_feature_size": 2048,
    "v_target_size": 1601,
    "v_hidden_size": 768,
    "v_num_hidden_layers": 6,
    "v_num_attention_heads": 8,
    "v_intermediate_size": 3072,
    "v_attention_probs_dropout_prob": 0.1,
    "v_hidden_act": "gelu",
    "v_hidden_dropout_prob": 0.2,
    "v_initializer_range": 0.02,
    "pooling_method": "mul",
    "conv_layer": "normal_conv",
    "max_region_length": 36,
    "max_seq_length": 36,
}


def test_the_official_configuration_is_the_preset():
    assert config_from_official(RELEASED).to_dict() == interbert_config("release").to_dict()
    options = {"fusion_method": "sum", "predict_feature": True, "v_target_size": 2048, "bi_hidden_size": 512}
    config = config_from_official(RELEASED | options | {"hidden_dropout_prob": 0.3}, num_answers=4)
    assert (config.fusion, config.region_loss, config.pooled_size) == ("sum", "regression", 512)
    assert (config.region_embedding_dropout, config.image_hidden_dropout, config.num_answers) == (0.3, 0.2, 4)


def test_what_a_file_leaves_out_is_the_release_s_default():
    config = config_from_official({"t_num_hidden_layers": 2})
    assert (config.num_hidden_layers, config.text_num_hidden_layers, config.image_num_hidden_layers) == (12, 2, 3)
    assert (config.image_num_attention_heads, config.image_hidden_dropout) == (12, 0.1)


@pytest.mark.parametrize(
    "options, message",
    [
        (RELEASED | {"hidden_sise": 3}, "no option 'hidden_sise'"),
        (RELEASED | {"v_hidden_size": 1024}, "v_hidden_size is 1024, hidden_size 768; joint layers need one width"),
        (RELEASED | {"fusion_method": "cat"}, "fusion is 'cat'"),
        ({"hidden_size": 768}, "lacks t_num_hidden_layers"),
    ],
)
def test_official_options_that_are_not_computed_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        config_from_official(options)
