"""VL-BERT's tasks: heads and losses by hand, what they start from, and official checkpoints there and back."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F
from vilbert_examples import make_bert, with_old_norms
from vlbert_examples import SIZES, make_batch, make_model

from roibeam.model.common.checkpoint import load_start
from roibeam.model.inputs import VLOutput
from roibeam.model.vlbert.checkpoint import (
    config_from_official,
    kind_of,
    split_official,
    state_from_bert,
    state_from_official,
    state_to_official,
    task_start,
)
from roibeam.model.vlbert.config import vlbert_task_config
from roibeam.model.vlbert.tasks import PADDED_SCORE, VLBertForReferring, VLBertForVcr, VLBertForVqa

PARTS = ("weight", "bias")
MODELS = {"vqa": VLBertForVqa, "vcr": VLBertForVcr, "refcoco": VLBertForReferring}


def task_model(task, preset="release", **overrides):
    torch.manual_seed(1)
    config = vlbert_task_config(task, preset, **(SIZES | {"num_answers": 9, "num_object_labels": 5} | overrides))
    return MODELS[task](config).eval()


# --- VQA ---


@pytest.mark.parametrize("head", ["mlm", "1fc", "2fc"])
def test_answers_are_read_at_the_mask_piece(head):
    model, batch = task_model("vqa", answer_head=head, answer_hidden_size=6), make_batch()
    with torch.no_grad():
        output = model(batch)
        logits = model.answers(batch, output)
        states = torch.stack([output.text_states[row, length - 2] for row, length in enumerate((7, 4, 6))])
        parts = dict(model.answer_head.named_children())
        if head == "mlm":
            norm = parts["norm"]
            states = F.layer_norm(F.gelu(parts["dense"](states)), (32,), norm.weight, norm.bias, 1e-12)
        if head == "2fc":
            states = parts["expand"](states).relu()
        torch.testing.assert_close(logits, parts["decoder"](states))


def test_answer_losses():
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    scores = torch.zeros(3, 9)
    scores[0, 2], scores[0, 3], scores[1, 5] = 1.0, 0.5, 0.3  # nothing is right in row 2
    release = task_model("vqa").loss(logits, scores)
    assert release.count == 3
    torch.testing.assert_close(release.mean, F.binary_cross_entropy_with_logits(logits, scores) * 9)
    paper = task_model("vqa", "paper").loss(logits, scores)
    log = logits.log_softmax(dim=1)
    want = -(log[0, 2] * 2 / 3 + log[0, 3] / 3 + log[1, 5]) / 2
    assert paper.count == 2
    torch.testing.assert_close(paper.mean, want)


def test_answers_that_cannot_start_as_their_words():
    model = task_model("vqa", num_answers=2)
    with pytest.raises(ValueError, match="1 answers of width 32"):
        model.start_from_words([[5]])
    with pytest.raises(ValueError, match="answer 1 has no word piece"):
        model.start_from_words([[5], []])


# --- VCR ---


def vcr_batch():
    aligned = torch.full((4, 5, 1), -1)
    aligned[1, 2, 0] = 3
    return make_batch((7, 4, 6, 5), (4, 5, 1, 3), aligned_words=aligned)


def test_choices_and_their_losses():
    model, batch = task_model("vcr", positive_weight=3.0), vcr_batch()
    with torch.no_grad():
        output = model(batch)
        scores = model.choices(output, 2)
    torch.testing.assert_close(scores.flatten(), model.choice_head.decoder(output.pooled).squeeze(1))
    right = torch.tensor([1, 0])
    targets = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    want = F.binary_cross_entropy_with_logits(scores, targets, weight=1 + 2 * targets) * 4 / 6
    torch.testing.assert_close(model.choice_loss(scores, right).mean, want)
    paper = task_model("vcr", "paper")
    torch.testing.assert_close(paper.choice_loss(scores, right).mean, F.cross_entropy(scores, right))


def test_classes_of_objects():
    batch, labels = vcr_batch(), torch.tensor([[1, 2, 3, 4, 9]] * 4)
    model = task_model("vcr")
    with torch.no_grad():
        output = model(batch)
        loss = model.object_loss(batch, output, labels.clamp(max=4))
        per_row = [
            F.cross_entropy(
                model.object_head(torch.cat([output.whole_image_state[row, None], output.region_states[row, :count]])),
                torch.tensor([0, 1, 2, 3, 4, 4])[: count + 1],
                reduction="sum",
            )
            for row, count in enumerate((4, 5, 1, 3))
        ]
    assert loss.count == 17
    torch.testing.assert_close(loss.total, torch.stack(per_row).sum())
    paper = task_model("vcr", "paper")
    with torch.no_grad():
        output = paper(batch)
        loss = paper.object_loss(batch, output, labels)
        logits = paper.object_head(output.region_states[:, 0])  # the masked one of each row
    torch.testing.assert_close(loss.mean, F.cross_entropy(logits, torch.ones(4, dtype=torch.long)))
    with pytest.raises(ValueError, match="object_loss='none'"):
        task_model("vcr", object_loss="none").object_loss(batch, output, labels)
    with pytest.raises(ValueError, match="with_pooler=True and answer_head"):
        task_model("vcr", answer_head="mlm")


# --- RefCOCO+ ---


@pytest.mark.parametrize("preset, first", [("release", 1), ("paper", 0)])
def test_referred_regions(preset, first):
    model, batch = task_model("refcoco", preset), make_batch()
    with torch.no_grad():
        output = model(batch)
        scores = model.score_regions(batch, output)
    assert scores.shape == (3, 5 + first) and (scores[2, 1 + first :] == PADDED_SCORE).all()
    head = model.region_head
    torch.testing.assert_close(scores[1, first], head.decoder(F.gelu(head.dense(output.region_states[1, 0]))).squeeze())
    targets = torch.full_like(scores, -1.0)  # padding holds anything
    for row, count in enumerate((4, 5, 1)):
        targets[row, : count + first] = 0.0
        targets[row, first] = 1.0
    loss = model.loss(batch, scores, targets)
    real = targets >= 0
    assert loss.count == 10 + 3 * first
    torch.testing.assert_close(loss.mean, F.binary_cross_entropy_with_logits(scores[real], targets[real]))


def test_classifiers_start_as_glorot():
    head = task_model("vqa", hidden_size=128, num_answers=300).answer_head
    bound = (6 / (128 + 300)) ** 0.5
    assert head.decoder.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert head.decoder.bias.abs().max() == 0 and head.dense.weight.abs().max() < (6 / 256) ** 0.5
    model = task_model("vcr", hidden_size=128, initializer_range=0.02)
    assert model.object_head.dense.weight.std().item() == pytest.approx(0.02, rel=0.05)


# --- starts ---


# That a task starts as the release's own code starts it: the golden arrays, init_*.npz.


def test_vcr_without_the_second_loss_starts_too():
    model = task_model("vcr", object_loss="none")
    left = load_start(model, task_start("vcr", make_model().state_dict(), model.state_dict(), copy_segment=False))
    assert set(left) == {*(f"{part}.{p}" for part in ("choice_head.decoder", "vlbert.pooler.dense") for p in PARTS)}
    assert torch.equal(model.vlbert.embeddings.segments.weight, make_model().vlbert.embeddings.segments.weight)
    with pytest.raises(ValueError, match="no VL-BERT task 'gqa'"):
        task_start("gqa", {}, ())


def test_the_papers_vcr_keeps_its_vector_of_masked_regions():
    pretrained, model = make_model("paper"), task_model("vcr", "paper")
    left = load_start(model, task_start("vcr", pretrained.state_dict(), model.state_dict()))
    assert left == [f"object_head.decoder.{part}" for part in PARTS]
    assert torch.equal(model.vlbert.masked_region_embedding.weight, pretrained.vlbert.masked_region_embedding.weight)
    # One logit is the score itself.
    assert torch.equal(model.choice_head.decoder.weight, pretrained.relationship_head.weight)


def bert_state(*, old_names):
    """A BERT that fits the models, as a file holds it."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    state = make_bert(**{name: SIZES[name] for name in names}).state_dict()
    return with_old_norms(state) if old_names else state


@pytest.mark.parametrize("old_names", [True, False])
@pytest.mark.parametrize("related", [False, True])
def test_start_from_bert(old_names, related):
    model = make_model(with_pooler=related, with_relationship_head=related)
    bert = bert_state(old_names=old_names)
    drawn = model.vlbert.embeddings.segments.weight[2].clone()
    state = state_from_bert(bert, with_pooler=related, with_relationship_head=related)
    left = load_start(model, state)
    assert set(left) == {
        "vlbert.region_projection.linear.weight",
        "vlbert.region_projection.linear.bias",
        "vlbert.region_token.weight",
        "vlbert.masked_region_token.weight",
        "vlbert.masked_region_feature.weight",
        "vlbert.embeddings.end.weight",
        *(f"vlbert.embeddings.visual_norm_{kind}.{p}" for kind in ("text", "region") for p in ("weight", "bias")),
        *(f"masked_region_head.{layer}.{p}" for layer in ("dense", "decoder") for p in ("weight", "bias")),
    }
    segments = model.vlbert.embeddings.segments.weight
    assert torch.equal(segments[:2], bert["bert.embeddings.token_type_embeddings.weight"])
    assert torch.equal(segments[2], drawn)
    norm = bert["bert.encoder.layer.1.output.LayerNorm." + ("gamma" if old_names else "weight")]
    assert torch.equal(model.vlbert.encoder.layers[1].feed_forward_norm.weight, norm)
    assert torch.equal(model.masked_word_head.bias, bert["cls.predictions.bias"])
    if related:
        assert torch.equal(model.relationship_head.weight, bert["cls.seq_relationship.weight"])
    with pytest.raises(ValueError, match="segments"):
        load_start(model, {"vlbert.embeddings.segments.weight": torch.zeros(4, 32)})


def test_a_new_model_reads_text_as_bert_does():
    """At the release's start the visual features add nothing (their LayerNorms are 0)."""
    model = make_model(visual_norm_text_init=0.0, visual_norm_region_init=0.0)
    load_start(model, state_from_bert(bert_state(old_names=False)))
    batch = make_batch()
    embeddings = model.vlbert.embeddings
    with torch.no_grad():
        inputs = []
        embeddings.norm.register_forward_hook(lambda _m, given, _o: inputs.append(given[0]))
        model.encode(batch)
        text = embeddings.words(batch.text_ids) + embeddings.segments.weight[0] + embeddings.positions.weight[:7]
    assert torch.equal(inputs[0][:, :7], text)


def test_vqa_without_pretraining_takes_bert_s_masked_word_transform():
    model = task_model("vqa")
    bert = bert_state(old_names=True)
    load_start(model, task_start("vqa", state_from_bert(bert), model.state_dict()))
    assert torch.equal(model.answer_head.dense.weight, bert["cls.predictions.transform.dense.weight"])
    assert torch.equal(model.answer_head.norm.bias, bert["cls.predictions.transform.LayerNorm.beta"])


# --- official checkpoints ---


@pytest.mark.parametrize(
    "kind, make",
    [
        ("pretrain", lambda: make_model("release", with_pooler=True, with_relationship_head=True)),
        ("pretrain", lambda: make_model("release-e2e", visual_norm="scale")),
        ("pretrain", lambda: make_model(visual_size=20)),
        ("vqa-mlm", lambda: task_model("vqa")),
        ("vqa-1fc", lambda: task_model("vqa", answer_head="1fc")),
        ("vqa-2fc", lambda: task_model("vqa", answer_head="2fc", visual_norm="scale")),
        ("vcr-1fc", lambda: task_model("vcr")),
        ("vcr-2fc", lambda: task_model("vcr", answer_head="2fc", object_loss="none")),
        ("refcoco", lambda: task_model("refcoco")),
    ],
)
def test_official_names_there_and_back(kind, make):
    state = make().state_dict()
    official = state_to_official(state, kind)
    inner = "vlbert._module." if kind.startswith("vcr") else "vlbert."
    assert f"{inner}encoder.layer.1.attention.self.query.bias" in official
    wrapped = {f"module.{name}": tensor for name, tensor in official.items()}
    assert kind_of(official) == kind_of(wrapped) == kind
    back = state_from_official(wrapped)
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


def test_an_end_to_end_task_checkpoint_is_split():
    """The last stage of its image network stands there twice."""
    official = state_to_official(task_model("refcoco").state_dict(), "refcoco")
    stage, again = "image_feature_extractor.roi_head_feature_extractor.", "image_feature_extractor.head.0."
    last = {f"{stage}0.conv1.weight": torch.ones(3), f"{stage}0.bn1.num_batches_tracked": torch.tensor(0)}
    encoder = {"image_feature_extractor.backbone.conv1.weight": torch.ones(2), **last}
    pixels = encoder | {name.replace(stage, again): tensor.clone() for name, tensor in last.items()}
    found = split_official({f"module.{name}": tensor for name, tensor in (official | pixels).items()})
    assert found[0].keys() == official.keys() and found[1] == encoder
    assert split_official(official)[1] == {}
    with pytest.raises(ValueError, match=r"head\.0\.0\.conv1\.weight differs from .*roi_head.*\.0\.conv1\.weight"):
        split_official(official | encoder | {f"{again}0.conv1.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match="split_official takes the image network out"):
        state_from_official(official | pixels)
    with pytest.raises(ValueError, match=r"'vlbert\.rotary' has no name in a checkpoint of VL-BERT"):
        state_to_official({"vlbert.rotary": torch.ones(1)})
    with pytest.raises(ValueError, match=r"differs from vlbert\.word_embeddings"):
        state_from_official({"vlbert.mlm_head.predictions.decoder.weight": torch.ones(2)})


def test_files_of_task_models(tmp_path):
    model = task_model("vcr", answer_loss="softmax")
    model.save_pretrained(tmp_path)
    loaded = VLBertForVcr.from_pretrained(tmp_path).eval()
    batch = vcr_batch()
    with torch.no_grad():
        assert torch.equal(loaded.choices(loaded(batch), 2), model.choices(model(batch), 2))
    assert loaded.config.answer_loss == "softmax" and isinstance(loaded(batch), VLOutput)
    plain = dataclasses.replace(batch, aligned_words=None)
    with pytest.raises(ValueError, match="aligned_words"):
        loaded(plain)


def test_regions_with_a_token_for_each_class():
    """The release's object_word_embed_mode 1 on VCR: an element's class chooses its token, the whole image's is 0."""
    model, batch = task_model("vcr", num_region_tokens=81), vcr_batch()
    classes = torch.tensor([[11, 74, 80, 63, 26]] * 4)
    told = dataclasses.replace(batch, region_classes=classes)
    with torch.no_grad():
        before = model(told).pooled
        noise = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(0))
        model.vlbert.region_token.weight[[1, 12]] += noise  # of no element
        assert torch.equal(model(told).pooled, before)
        model.vlbert.region_token.weight[74] += noise  # of the second region, which row 2 has not
        moved = (model(told).pooled - before).abs().amax(dim=1) > 1e-4
        model.vlbert.region_token.weight[0] += noise
        whole = (model(told).pooled - before).abs().amax(dim=1) > 1e-4
        unknown = model(dataclasses.replace(batch, region_classes=torch.where(classes == 11, -1, classes)))
    assert moved.tolist() == [True, True, False, True] and whole.all() and unknown.pooled.isfinite().all()
    with pytest.raises(ValueError, match=r"81 num_region_tokens need VLBatch\.region_classes"):
        model(batch)
    with pytest.raises(ValueError, match="num_region_tokens must be at least 1, got 0"):
        task_model("vcr", num_region_tokens=0)


# --- official configurations ---

NETWORK = {"IMAGE_FEAT_PRECOMPUTED": True, "IMAGE_FINAL_DIM": 64, "CLASSIFIER_TYPE": "1fc", "CNN_LOSS_TOP": True}
VLBERT = {"hidden_size": 64, "visual_size": 64, "visual_ln": True, "type_vocab_size": 3}


@pytest.mark.parametrize(
    "kind, options, wanted",
    [
        ("pretrain", {}, {"masked_appearance": "learned", "with_relationship_head": True, "with_text_only": False}),
        ("pretrain", {"IMAGE_FEAT_PRECOMPUTED": False, "MASK_RAW_PIXELS": False}, {"masked_appearance": "pixels"}),
        (
            "pretrain-multitask",
            {"IMAGE_FEAT_PRECOMPUTED": False, "MASK_RAW_PIXELS": False, "WITH_MVRC_LOSS": False},
            {"masked_appearance": "learned", "with_text_only": True, "masked_region_token": False},
        ),
        ("pretrain", {"MLM_LOSS_NORM_IN_BATCH_FIRST": True}, {"word_loss_mean": "rows", "region_loss_mean": "items"}),
        ("vqa", {"NO_GROUNDING": True}, {"text_visual": "none", "answer_head": "1fc"}),
        ("vcr", {"NO_GROUNDING": True}, {"text_visual": "whole_image", "answer_loss": "softmax"}),
        ("vcr", {"CLASSIFIER_SIGMOID": True}, {"text_visual": "grounded", "answer_loss": "sigmoid"}),
        ("vcr", {"ENABLE_CNN_REG_LOSS": False, "CNN_LOSS_TOP": False}, {"object_loss": "none"}),
        ("vcr", {}, {"num_region_tokens": 1}),
        ("refcoco", {"CLASSIFIER_DROPOUT": 0.0}, {"answer_dropout": 0.0, "masked_appearance": "none"}),
    ],
)
def test_official_options(kind, options, wanted):
    config = config_from_official(NETWORK | options, VLBERT, kind)
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert config.visual_size == 0 and config.visual_norm == "layer_norm" and config.num_hidden_layers == 4


@pytest.mark.parametrize(
    "kind, network, vlbert, message",
    [
        ("pretrain", {"IMAGE_SEMANTIC": True}, {}, "IMAGE_SEMANTIC True is not computed here, only False is"),
        ("pretrain", {}, {"position_padding_idx": 1}, "position_padding_idx 1 is not computed"),
        (
            "vqa",
            {},
            {"object_word_embed_mode": 1},
            "object_word_embed_mode 1 is not computed here, only 2 is, for VCR 1",
        ),
        ("vcr", {}, {"object_word_embed_mode": 3}, "object_word_embed_mode 3 is not computed here"),
        ("pretrain", {"COLOUR": 1}, {}, "no option 'COLOUR'"),
        ("pretrain", {}, {"visual_size": 32}, "IMAGE_FINAL_DIM 64 and visual_size 32 must be equal"),
        ("vcr", {"CNN_LOSS_TOP": False}, {}, "CNN_LOSS_TOP False with ENABLE_CNN_REG_LOSS"),
        ("nlvr2", {}, {}, "no VL-BERT of kind 'nlvr2'"),
    ],
)
def test_official_options_that_are_refused(kind, network, vlbert, message):
    with pytest.raises(ValueError, match=message):
        config_from_official(NETWORK | network, VLBERT | vlbert, kind)


def test_official_tokens_of_classes():
    assert config_from_official(NETWORK, VLBERT | {"object_word_embed_mode": 1}, "vcr").num_region_tokens == 81
