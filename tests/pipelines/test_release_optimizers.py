"""Optimizers of the published codes against their formulas, what each leaves out, and their names in `TrainConfig`."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from roibeam.model.interbert.model import InterBertConfig, InterBertForPreTraining
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForTasks
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.model.vlbert.model import VLBertConfig, VLBertForPreTraining
from roibeam.pipelines.training.optimizer import build_optimizer, chosen_groups, clip_each, learning_rate_at
from roibeam.pipelines.training.parameter_groups import PARAMETER_RULES, group_parameters
from roibeam.pipelines.training.step_policies import RELEASE_SETTINGS, release_settings
from roibeam.pipelines.training.train_config import OPTIMIZERS, TrainConfig

CPU = torch.device("cpu")
SIZES = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
SIZES |= {"max_position_embeddings": 8, "region_feature_size": 6}


def small_vilbert(model_class=ViLbertForPreTraining, **fields):
    sizes = {"image_hidden_size": 8, "image_num_hidden_layers": 1, "image_num_attention_heads": 2}
    sizes |= {"image_intermediate_size": 8, "co_attention_size": 4, "co_attention_num_heads": 2}
    sizes |= {"text_co_attention": (1,), "image_co_attention": (0,), "region_target_size": 5, "num_answers": 3}
    return model_class(ViLbertConfig(**(SIZES | sizes | {"num_gqa_answers": 3} | fields)))


def settings(**fields):
    return TrainConfig(**({"steps": 20, "learning_rate": 0.01, "device": "cpu"} | fields))


def bert_adam_step(p, m, v, g, step, rate, decay, beta1, beta2, eps):
    """pytorch_pretrained_bert's, in float64."""
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return p - rate * (m / (np.sqrt(v) + eps) + decay * p), m, v


def transformers_step(p, m, v, g, step, rate, decay, beta1, beta2, eps, correct=True):
    """pytorch_transformers' AdamW, in float64."""
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    size = rate * math.sqrt(1 - beta2**step) / (1 - beta1**step) if correct else rate
    p = p - size * m / (np.sqrt(v) + eps)
    return p - rate * decay * p, m, v


STEPS = {
    "bert-adam": bert_adam_step,
    "adamw-transformers": transformers_step,
    "adamw-transformers-uncorrected": partial(transformers_step, correct=False),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "decay, eps, betas", [(0.01, 1e-6, (0.9, 0.999)), (0.3, 1e-2, (0.8, 0.98)), (0.0, 1e-6, (0, 0))]
)
def test_each_step_is_the_release_s(name, decay, eps, betas):
    config = settings(optimizer=name, weight_decay=decay, epsilon=eps, betas=betas, warmup_steps=3)
    generator = np.random.default_rng(3)
    start = generator.standard_normal((4, 3))
    parameter = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = build_optimizer([{"params": [parameter], "learning_rate_scale": 0.5}], config, device=CPU)
    p, m, v = start, np.zeros_like(start), np.zeros_like(start)
    for step in range(1, 9):
        gradient = generator.standard_normal(p.shape)
        rate = learning_rate_at(step, config) * 0.5
        for group in optimizer.param_groups:
            group["lr"] = rate
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        p, m, v = STEPS[name](p, m, v, gradient, step, rate, decay, *betas, eps)
        np.testing.assert_allclose(parameter.detach().numpy(), p, rtol=1e-12, atol=1e-14)


def test_the_four_adams_are_four():
    """A decay and an epsilon that matter tell them apart in the first two steps."""
    ends = {}
    for name in ("adamw", *STEPS):
        parameter = nn.Parameter(torch.tensor([2.0, -1.0]))
        config = settings(optimizer=name, weight_decay=0.5, epsilon=0.1)
        optimizer = build_optimizer([{"params": [parameter]}], config, device=CPU)
        for gradient in ([0.5, 0.1], [0.2, -0.3]):
            parameter.grad = torch.tensor(gradient)
            optimizer.step()
        ends[name] = parameter.detach()
    names = list(ends)
    for index, name in enumerate(names):
        assert all((ends[name] - ends[other]).abs().max() > 1e-5 for other in names[index + 1 :]), name


def test_without_decay_and_epsilon_transformers_adamw_is_adam():
    ours, theirs = (nn.Parameter(torch.tensor([2.0, -1.0, 0.3])) for _ in range(2))
    config = settings(optimizer="adamw-transformers", weight_decay=0.0, epsilon=0.0)
    optimizer = build_optimizer([{"params": [ours]}], config, device=CPU)
    adam = torch.optim.Adam([theirs], lr=0.01, eps=0.0)
    for seed in range(5):
        gradient = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        adam.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", STEPS)
def test_a_parameter_without_a_gradient_does_not_even_decay(name):
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([{"params": [used, unused]}], settings(optimizer=name, weight_decay=0.5), device=CPU)
    used.grad = torch.ones(2)
    optimizer.step(lambda: 3.0)
    assert torch.equal(unused, torch.ones(2)) and (used < 1).all()
    assert set(optimizer.state) == {used}


def test_each_tensor_is_clipped_by_itself():
    long, short, none = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    long.grad, short.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.3, 0.4])
    clip_each([long, short, none], 1.0)
    torch.testing.assert_close(long.grad, torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(short.grad, torch.tensor([0.3, 0.4]))
    assert none.grad is None


def test_the_schedule_may_start_at_zero():
    """BertAdam's WarmupLinearSchedule: the k-th step has progress (k - 1) / steps."""
    config = settings(warmup_steps=5, learning_rate=1.0, starts_at_zero=True)
    rates = [learning_rate_at(step, config) for step in range(1, 21)]
    progress = np.arange(20) / 20
    expected = np.where(progress < 0.25, progress / 0.25, (progress - 1) / (0.25 - 1))
    np.testing.assert_allclose(rates, expected, atol=1e-12)
    falls = settings(warmup_steps=4, schedule="steps", decay_steps=(7, 9), learning_rate=1.0, starts_at_zero=True)
    assert [learning_rate_at(k, falls) for k in (1, 3, 5, 8, 9, 11)] == pytest.approx([0, 0.5, 1, 1, 0.1, 0.01])


# --- what each release leaves out ---


def treatments(model, rule, learning_rate=1e-3):
    """Name -> (relative rate, own weight decay or None); parameters in no group are missing."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["learning_rate_scale"], group.get("weight_decay"))
        for group in group_parameters(model, rule, learning_rate=learning_rate)
        for parameter in group["params"]
    }


def is_bias_or_norm(name):
    """As the releases' lists have it: weights of a co-attention's LayerNorm1 and LayerNorm2 are not in them."""
    return name.endswith((".bias", "norm.weight")) and not ("co_layers" in name and "attention_norm.weight" in name)


def test_vl_bert_decays_everything():
    model = VLBertForPreTraining(VLBertConfig(**SIZES, coordinate_embedding_size=8, num_region_labels=5))
    groups = group_parameters(model, "vl-bert", learning_rate=1.0)
    assert len(groups) == 1 and len(groups[0]["params"]) == len(list(model.parameters()))
    assert "weight_decay" not in groups[0] and groups[0]["learning_rate_scale"] == 1.0


def test_vilbert_s_first_release_swaps_the_decay_and_slows_bert():
    model = small_vilbert()
    found = treatments(model, "vilbert-release")
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, (scale, decay) in found.items():
        assert (decay is None) == is_bias_or_norm(name), name
        from_bert = name.startswith(("vilbert.text_embeddings.", "vilbert.encoder.text_layers."))
        assert scale == (0.1 if from_bert else 1.0), name
    assert "vilbert.encoder.text_layers.1.attention.query.bias" in found and "masked_word_head.bias" in found


def test_vilbert_s_first_release_fine_tunes_the_classifier_at_a_rate_of_its_own():
    found = treatments(small_vilbert(ViLbertForTasks), "vilbert-release-tasks", learning_rate=4e-5)
    assert found["answer_head.decoder.direction"] == (pytest.approx(2.5), 0.0)
    assert found["answer_head.expand.bias"] == (pytest.approx(2.5), None)
    assert found["pair_score.weight"] == (1.0, 0.0) and found["match_head.bias"] == (1.0, None)


def test_vilbert_s_baseline_is_fine_tuned_by_the_same_rule():
    sizes = {name: SIZES[name] for name in SIZES if name in SingleStreamConfig.own_fields()}
    model = SingleStreamForTasks(SingleStreamConfig(**sizes, region_target_size=5))
    meant = treatments(model, "vilbert-single-stream-tasks", learning_rate=4e-5)
    done = treatments(model, "vilbert-single-stream-release-tasks", learning_rate=4e-5)
    assert meant.keys() == done.keys() == dict(model.named_parameters()).keys()
    for name, (scale, decay) in meant.items():
        assert scale == pytest.approx(2.5 if name.startswith("answer_head.") else 1.0), name
        assert (decay == 0.0) == is_bias_or_norm(name) == (done[name][1] is None), name


def test_the_multi_task_release_decays_as_one_would_and_knows_one_rate():
    for name, (scale, decay) in treatments(small_vilbert(), "vilbert-release-mt").items():
        assert (decay == 0.0) == is_bias_or_norm(name), name
        assert scale == 1.0


def test_the_multi_task_release_fine_tunes_its_heads_at_a_rate_of_their_own():
    found = treatments(small_vilbert(ViLbertForMultiTask, num_task_tokens=3), "vilbert-release-mt-tasks", 2e-5)
    fast = {name for name, (scale, _) in found.items() if scale != 1.0}
    heads = ("answer_head.", "gqa_answer_head.", "image_pair_head.", "entailment_head.", "pair_score.")
    assert fast == {name for name in found if name.startswith(heads)}
    assert found["pair_score.weight"][0] == pytest.approx(5.0)
    # Not named LayerNorm there, so its weight decays.
    assert found["answer_head.norm.weight"][1] is None and found["answer_head.norm.bias"][1] == 0.0
    assert found["region_score.weight"] == (1.0, None)


def test_ucla_never_trains_the_pooler():
    model = VisualBertForPreTraining(VisualBertConfig(**SIZES))
    found = treatments(model, "visualbert-ucla")
    left_out = dict(model.named_parameters()).keys() - found.keys()
    assert left_out == {"visualbert.pooler.dense.weight", "visualbert.pooler.dense.bias"}
    assert all((decay == 0.0) == is_bias_or_norm(name) and scale == 1.0 for name, (scale, decay) in found.items())


def test_interbert_swaps_the_decay_too():
    sizes = {"image_num_attention_heads": 2, "image_intermediate_size": 8, "image_num_hidden_layers": 1}
    sizes |= {"text_num_hidden_layers": 1, "pooled_size": 4, "region_target_size": 5}
    model = InterBertForPreTraining(InterBertConfig(**SIZES, **sizes))
    found = treatments(model, "interbert-release")
    assert found.keys() == dict(model.named_parameters()).keys()
    slow = ("interbert.text_embeddings.", "interbert.joint.", "interbert.text.")
    for name, (scale, decay) in found.items():
        assert (decay is None) == is_bias_or_norm(name), name
        assert scale == (0.1 if name.startswith(slow) else 1.0), name
    assert {scale for scale, _ in treatments(model, "interbert-release-tasks").values()} == {1.0}


def test_frozen_parameters_are_in_no_group():
    model = small_vilbert()
    model.vilbert.text_embeddings.requires_grad_(False)
    found = treatments(model, "vilbert-release")
    assert found and not any(name.startswith("vilbert.text_embeddings") for name in found)


def test_a_rule_for_another_model_is_refused():
    model = VisualBertForPreTraining(VisualBertConfig(**SIZES))
    message = r"'vilbert-release' is not for a VisualBertForPreTraining: parameter 'visualbert.embeddings"
    with pytest.raises(ValueError, match=message):
        group_parameters(model, "vilbert-release", learning_rate=1.0)
    with pytest.raises(ValueError, match="no parameter rule 'bert'; there are vl-bert, vilbert-release"):
        group_parameters(model, "bert", learning_rate=1.0)


def test_release_settings_are_valid_and_complete():
    used = set()
    for name in RELEASE_SETTINGS:
        config = settings(**release_settings(name))
        used.add(config.parameter_groups)
        # The tasks of these two are trained in the groups of their pre-training.
        rule = name.removesuffix("-tasks") if name in ("vl-bert-tasks", "visualbert-ucla-tasks") else name
        assert config.parameter_groups == rule and config.optimizer in OPTIMIZERS
    others = {"vilbert-release-mt-vision-scratch", "vilbert-tasks"}
    others |= {"vilbert-single-stream-tasks", "vilbert-single-stream-release-tasks"}
    assert used | others == set(PARAMETER_RULES)
    with pytest.raises(ValueError, match="no release settings 'bert'; there are vl-bert"):
        release_settings("bert")


def test_the_task_s_own_groups_are_the_default():
    model, own = small_vilbert(), [{"params": [nn.Parameter(torch.ones(1))]}]
    assert chosen_groups(model, lambda: own, settings()) is own
    assert len(chosen_groups(model, lambda: own, settings(parameter_groups="vilbert-release"))) == 4


def test_documented_names_exist():
    """docs/models.md lists every optimizer and rule by its name."""
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    section = text.split("## Optimisers of the releases")[1].split("\n## ")[0]
    for name in (*STEPS, *PARAMETER_RULES):
        assert f"`{name}`" in section, name


def test_adamw_pairs_weights_with_their_own_means_in_any_memory_format():
    """Saved and read again, means are contiguous; weights of convolutions may not be."""
    ends = []
    for stored in (False, True):
        weight = nn.Parameter(torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last))
        optimizer = build_optimizer([{"params": [weight]}], settings(optimizer="adamw"), device=CPU)
        for seed in range(4):
            weight.grad = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
            if stored:
                state = optimizer.state[weight]
                state |= {name: state[name].contiguous() for name in ("exp_avg", "exp_avg_sq")}
        ends.append(weight.detach())
    assert torch.equal(*ends)
