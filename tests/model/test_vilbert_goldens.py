"""ViLBERT against arrays made with the official codes (goldens/vilbert/README.md, its tolerances)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from vilbert_examples import take_rows

from roibeam.model.common.masking import mask_overlapping_regions, overlaps_with_inclusive_sides
from roibeam.model.common.regions import mean_feature
from roibeam.model.common.transformer import computing_padding
from roibeam.model.inputs import IGNORE_INDEX, VLBatch
from roibeam.model.vilbert.checkpoint import config_from_official, name_from_official, state_from_official
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "vilbert"


def load(name):
    with np.load(GOLDENS / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files if key != "config"}
        return arrays, json.loads(str(file["config"]))


def build(model_class, golden, options, **overrides):
    model = model_class(config_from_official(options, **overrides))
    model.load_state_dict(state_from_official({k[6:]: v for k, v in golden.items() if k.startswith("param/")}))
    return model.eval()


def batch_of(golden, **labels):
    """The golden's rows; its features are masked already, and its IMG token is handed in as it is."""
    features, locations = golden["in/image_feat"], golden["in/image_loc"]
    text, rows = golden["in/input_ids"], len(features)
    if len(text) == 1:  # fast mode: the images' own captions are not read
        text = text.expand(rows, -1)
    mask = golden["in/image_attention_mask"][:, 1:].bool()
    return VLBatch(
        text_ids=text,
        text_mask=golden["in/attention_mask"].bool().expand(rows, -1),
        text_segments=golden["in/token_type_ids"].expand(rows, -1),
        region_features=features[:, 1:],
        region_boxes=locations[:, 1:, :4],
        region_mask=mask,
        image_hw=torch.ones(rows, 2),
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
    assert len(wanted) >= 6
    for name, want in wanted.items():
        gradient = parameters[name_from_official(name)].grad
        gradient = gradient[:4] if want.ndim > 1 else gradient
        torch.testing.assert_close(gradient, want, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    norm = torch.stack([p.grad.norm() for p in parameters.values() if p.grad is not None]).norm()
    torch.testing.assert_close(norm, golden["out/grad_norm_total"], rtol=1e-3, atol=0)


def both(output):
    return torch.cat([output.whole_image_state[:, None], output.region_states], dim=1)


@pytest.mark.parametrize("case", ["pretrain_kl", "pretrain_mse"])
def test_pretraining(case):
    golden, options = load(case)
    model = build(ViLbertForPreTraining, golden, options)
    labels = golden["in/masked_lm_labels"]
    batch = batch_of(
        golden,
        text_labels=labels.masked_fill(labels == -1, IGNORE_INDEX),
        region_targets=golden["in/image_target"],
        region_target_mask=golden["in/image_label"] == 1,
        match_labels=1 - golden["in/next_sentence_label"],
    )
    output = model.vilbert(batch)
    with computing_padding():  # the reference has states of padding
        padded = model.vilbert(batch)
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
    assert_equal(golden, got)
    assert_gradients(golden, model, total)


def test_attention_maps():
    golden, options = load("pretrain_kl")
    model = build(ViLbertForPreTraining, golden, options)
    batch = batch_of(golden)
    with torch.no_grad():
        plain = model.vilbert(batch)
        with computing_padding():
            output = model.vilbert(batch, with_attention=True)
    assert plain.attention is None
    real = batch.text_mask
    torch.testing.assert_close(output.text_states[real], plain.text_states[real], rtol=0, atol=1e-5)
    maps = output.attention
    got = {f"attention_t.{i}": weights for i, weights in enumerate(maps.text)}
    got |= {f"attention_v.{i}": weights for i, weights in enumerate(maps.image)}
    got |= {f"co_attention.{i}.text_to_image": weights for i, weights in enumerate(maps.text_to_image)}
    got |= {f"co_attention.{i}.image_to_text": weights for i, weights in enumerate(maps.image_to_text)}
    assert len(got) == 9
    assert_equal(golden, got)


def test_one_caption_against_many_images():
    golden, options = load("retrieval_fast_mode")
    model = build(ViLbertForPreTraining, golden, options)
    images = batch_of(golden)
    caption = take_rows(images, [0])
    with torch.no_grad():
        text = model.vilbert.read_text(caption)
        assert len(text.packing) == 1
        output = model.vilbert.fuse(text, model.vilbert.read_images(images))
        got = {
            "seq_relationship_score": model.logits(output).match,
            "match_score": model.match_log_odds(output).sigmoid(),
        }
    assert_equal(golden, got)


def test_task_heads_of_the_first_release():
    golden, options = load("vl_tasks")
    model = build(ViLbertForTasks, golden, options)
    batch = batch_of(golden)
    output = model.vilbert(batch)
    with computing_padding():
        padded = model.vilbert(batch)
    logits = model.logits(padded)
    answers, pairs, regions = model.answers(output), model.score_pairs(output), model.score_regions(batch, output)
    vqa = F.binary_cross_entropy_with_logits(answers, golden["in/vqa_target"]) * answers.shape[1]
    refer = F.binary_cross_entropy_with_logits(regions, golden["in/refer_target"][..., 0]) * regions.shape[1]
    choice = F.cross_entropy(pairs.reshape(1, 4), golden["in/choice_target"])
    got = {
        "vil_prediction": answers,
        "vil_logit": pairs[:, None],
        "vil_binary_prediction": logits.match,
        "vision_prediction": torch.cat([logits.whole_image[:, None], logits.regions], dim=1),
        "vision_logit": model.score_regions(batch, padded)[..., None],
        "linguisic_prediction": logits.words,
        "linguisic_logit": model.score_words(padded.text_states)[..., None],
        "vqa_loss": vqa,
        "refer_loss": refer,
        "choice_loss": choice,
    }
    assert_equal(golden, got)
    assert_gradients(golden, model, vqa + refer + choice)


@pytest.mark.parametrize("case", ["multitask_heads", "multitask_heads_task_token"])
def test_task_heads_of_the_multi_task_release(case):
    golden, options = load(case)
    count = 0 if "task_token" in case else 64  # the README: cut to 64 answers, or left out
    model = build(ViLbertForMultiTask, golden, options, num_answers=count, num_gqa_answers=count)
    tasks = {"task_ids": golden["in/task_ids"][:, 0]} if "task_token" in case else {}
    batch = batch_of(golden, **tasks)
    with torch.no_grad(), computing_padding():
        output = model.vilbert(batch)
        logits = model.logits(output)
        words = output.text_states
        if tasks:  # the reference leaves the task token where it stood
            words = torch.cat([words[:, :1], output.task_state[:, None], words[:, 1:]], dim=1)
        got = {
            "vil_logit": model.score_pairs(output)[:, None],
            "vil_binary_prediction": model.image_pairs(output),
            "vil_tri_prediction": model.entailment(output),
            "vision_prediction": torch.cat([logits.whole_image[:, None], logits.regions], dim=1),
            "vision_logit": model.score_regions(batch, output)[..., None],
            "linguisic_prediction": model.word_logits(words),
            "linguisic_logit": model.score_words(words)[..., None],
        }
        if count:
            got |= {"vil_prediction": model.answers(output), "vil_prediction_gqa": model.gqa_answers(output)}
    assert_equal(golden, got)
    if not count:
        with pytest.raises(ValueError, match="num_answers=0"):
            model.answers(output)


def test_overlap_masking():
    golden, options = load("overlap_masking")
    cases = sorted({key.split("/")[1].split(".")[0] for key in golden})
    assert len(cases) == 3
    for case in cases:
        boxes, features = golden[f"in/{case}.boxes"].numpy(), golden[f"in/{case}.features"]
        anchors = np.zeros(len(boxes), bool)
        anchors[golden[f"in/{case}.anchors"].numpy()] = True
        masked, counted = mask_overlapping_regions(
            boxes, anchors, anchors, threshold=options["threshold"], hide_overlapping=False
        )
        remaining = features.masked_fill(torch.from_numpy(masked)[:, None], 0.0)
        got = {
            "iou": torch.from_numpy(overlaps_with_inclusive_sides(boxes)).float(),
            "image_label": torch.from_numpy(np.where(anchors, 1, -1)),
            "overlap_mask": torch.from_numpy(~counted).long(),
            "masked_features": remaining,
            "global_feature": mean_feature(features, torch.from_numpy(~masked), torch.from_numpy(counted)),
        }
        assert_equal(golden, {f"{case}.{name}": value for name, value in got.items()})
        hidden, _ = mask_overlapping_regions(boxes, anchors, anchors, threshold=options["threshold"])
        assert np.array_equal(hidden, ~counted)  # the sensible rule: what the release does not count is hidden
