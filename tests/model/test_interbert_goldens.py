"""InterBERT against arrays made with the official code (goldens/interbert/README.md, its tolerances)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from roibeam.model.common.transformer import computing_padding
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.interbert.checkpoint import config_from_official, key_table, state_from_official
from roibeam.model.interbert.model import InterBertForPreTraining, InterBertForTasks
from roibeam.model.task_losses import binary_loss

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "interbert"


def load(name):
    with np.load(GOLDENS / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files if key != "config"}
        return arrays, json.loads(str(file["config"]))


def build(model_class, golden, options):
    model = model_class(config_from_official(options))
    official = {key[6:]: value for key, value in golden.items() if key.startswith("param/")}
    model.load_state_dict(state_from_official(official, options["num_hidden_layers"]))
    return model.eval()


def batch_of(golden, **labels):
    """The golden's rows; its features are masked already, and its IMG token is handed in as it is."""
    features, mask = golden["in/image_feat"], golden["in/image_attention_mask"][:, 1:].bool()
    return VLBatch(
        text_ids=golden["in/input_ids"],
        text_mask=golden["in/attention_mask"].bool(),
        text_segments=golden["in/token_type_ids"],
        region_features=features[:, 1:],
        region_boxes=golden["in/image_loc"][:, 1:, :4],
        region_mask=mask,
        image_hw=torch.ones(len(features), 2),
        masked_regions=torch.zeros_like(mask),
        whole_image_features=features[:, 0],
        **labels,
    )


def assert_equal(golden, got):
    for name, value in got.items():
        torch.testing.assert_close(
            value, golden[f"out/{name}"], rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_gradients(golden, model, total):
    model.zero_grad()
    total.backward()
    parameters = dict(model.named_parameters())
    wanted = {key[5:]: value for key, value in golden.items() if key.startswith("grad/")}
    assert len(wanted) >= 3
    table = key_table(model.config.num_hidden_layers, model.config.text_num_hidden_layers)
    for name, want in wanted.items():
        gradient = parameters[table.internal(name)].grad
        gradient = gradient[:4] if want.ndim > 1 else gradient
        torch.testing.assert_close(gradient, want, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    norm = torch.stack([p.grad.norm() for p in parameters.values() if p.grad is not None]).norm()
    torch.testing.assert_close(norm, golden["out/grad_norm_total"], rtol=1e-3, atol=0)


def both(output):
    return torch.cat([output.whole_image_state[:, None], output.region_states], dim=1)


@pytest.mark.parametrize("case", ["pretrain_kl", "pretrain_mse"])
def test_pretraining(case):
    golden, options = load(case)
    model = build(InterBertForPreTraining, golden, options)
    labels = golden["in/masked_lm_labels"]
    batch = batch_of(
        golden,
        text_labels=labels.masked_fill(labels == -1, IGNORE_INDEX),
        region_targets=golden["in/image_target"],
        region_target_mask=golden["in/image_label"] == 1,
        match_labels=1 - golden["in/next_sentence_label"],
    )
    output = model.encode(batch)
    with computing_padding():  # the reference has states of padding
        padded = model.encode(batch, with_attention=case == "pretrain_kl")
    logits = model.logits(padded)
    losses = {name: term.mean for name, term in model.score(batch, output).losses.items()}
    total = sum(losses.values())
    got = {
        "sequence_output_t": padded.text_states,
        "sequence_output_v": both(padded),
        "pooled_output_t": output.pooled_text,
        "pooled_output_v": output.pooled_image,
        "prediction_scores_t": logits.words,
        "prediction_scores_v": torch.cat([logits.whole_image[:, None], logits.regions], dim=1),
        "seq_relationship_score": logits.match,
        "masked_lm_loss": losses["masked_words"],
        "masked_img_loss": losses["masked_regions"],
        "next_sentence_loss": losses["matching"],
        "total_loss": total,
    }
    if padded.attention is not None:
        got |= {f"attention_single_stream.{i}": weights for i, weights in enumerate(padded.attention.joint)}
        assert len(padded.attention.joint) == 3
    assert {f"out/{name}" for name in got} == {key for key in golden if key.startswith("out/")} - {
        "out/grad_norm_total"
    }
    assert_equal(golden, got)
    assert_gradients(golden, model, total)


def test_task_heads():
    golden, options = load("vl_tasks")
    model = build(InterBertForTasks, golden, options)
    batch = batch_of(golden)
    output = model.encode(batch)
    with computing_padding():
        padded = model.encode(batch)
    logits = model.logits(padded)
    pairs = model.score_pairs(output)
    choice = F.cross_entropy(pairs.reshape(1, 4), golden["in/choice_target"])
    true = golden["in/retrieval_target"].argmin()[None]  # 0 = match there
    assert (golden["in/retrieval_target"] == 1).sum() == 3
    retrieval = binary_loss(model.match_log_odds(output)[None], true).mean
    got = {
        "vil_prediction": model.answers(output),
        "vil_logit": pairs[:, None],
        "vil_binary_prediction": logits.match,
        "vision_prediction": torch.cat([logits.whole_image[:, None], logits.regions], dim=1),
        "vision_logit": model.score_regions(batch, padded)[..., None],
        "linguisic_prediction": logits.words,
        "linguisic_logit": model.score_words(padded.text_states)[..., None],
        "choice_loss": choice,
        "retrieval_loss": retrieval,
    }
    assert {f"out/{name}" for name in got} == {key for key in golden if key.startswith("out/")} - {
        "out/grad_norm_total"
    }
    assert_equal(golden, got)
    assert_gradients(golden, model, choice + retrieval)
