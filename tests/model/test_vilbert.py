"""ViLBERT's own choices and configuration, and its single-stream baseline, which has no reference arrays; what they
share with all is in test_invariances.py."""

import dataclasses

import pytest
import torch
from model_examples import in_dtype
from test_invariances import assert_same, vectors
from torch.nn import functional as F
from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE, make_batch, randomised, take_rows, tiny

from roibeam.model.vilbert.encoder import EncoderStep, ViLbertConfig, layer_plan, vilbert_config
from roibeam.model.vilbert.fields import DEPTHS, PRESETS
from roibeam.model.vilbert.model import ViLbertForMultiTask, ViLbertForPreTraining, ViLbertForTasks
from roibeam.model.vilbert.single_stream import SingleStreamConfig, SingleStreamForPreTraining, SingleStreamForTasks


def make_model(**overrides):
    return randomised(ViLbertForPreTraining(tiny(**overrides)))


# With the second, the first image layer runs before the first co-attention, and still reads the text.
@pytest.mark.parametrize("options", [{}, {"dynamic_attention": True, "image_co_attention": (1, 1)}])
def test_one_caption_against_many_images_and_back(options):
    model, batch = make_model(**options), make_batch()
    caption, image = take_rows(batch, [1]), take_rows(batch, [2])
    names = ("text_ids", "text_mask", "text_segments")
    same_text = dataclasses.replace(batch, **{name: getattr(caption, name).expand(3, -1) for name in names})
    many = take_rows(batch, [2, 2, 2])
    same_image = dataclasses.replace(many, **{name: getattr(batch, name) for name in names})
    bare = model.vilbert
    with torch.no_grad():
        fast, slow = bare.fuse(bare.read_text(caption), bare.read_images(batch)), bare(same_text)
        assert_same(vectors(fast, same_text), vectors(slow, same_text))
        assert model.match_log_odds(fast).shape == (3,)
        fast, slow = bare.fuse(bare.read_text(batch), bare.read_images(image)), bare(same_image)
        assert_same(vectors(fast, same_image), vectors(slow, same_image))
        with pytest.raises(ValueError, match="3 captions and 2 images do not pair"):
            bare.fuse(bare.read_text(batch), bare.read_images(take_rows(batch, [0, 1])))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"text_co_attention": (0, 1), "image_co_attention": (0, 0)},  # layers are left in both streams
        {"with_co_attention": False},
        {"dynamic_attention": True},
    ],
)
def test_scores_read_the_same_first_states_as_all_of_them(options):
    model, batch = make_model(**options).double(), in_dtype(make_batch(text_pad=2, region_pad=1), torch.float64)
    bare, rows = model.vilbert, torch.tensor([0, 0, 1, 2, 2])
    with torch.no_grad():
        text, image = bare.read_text(batch).take(rows), bare.read_images(batch).take(rows.flip(0))
        every, firsts = bare.fuse(text, image), bare.fuse_firsts(text, image)
    for name in ("pooled", "pooled_text", "pooled_image", "whole_image_state"):
        torch.testing.assert_close(getattr(firsts, name), getattr(every, name), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(firsts.text_states[:, 0], every.text_states[:, 0], rtol=1e-12, atol=1e-12)


def test_a_map_for_each_layer():
    maps = make_model().vilbert(make_batch(), with_attention=True).attention
    assert [len(m) for m in (maps.text, maps.image, maps.text_to_image, maps.image_to_text)] == [3, 2, 2, 2]
    assert [m[0].shape[1] for m in (maps.text, maps.image, maps.text_to_image, maps.image_to_text)] == [4, 5, 2, 2]


def test_task_token_stands_after_cls_and_changes_no_length():
    model, batch = make_model(num_task_tokens=3), make_batch()
    with pytest.raises(ValueError, match=r"this model needs VLBatch\.task_ids"):
        model.vilbert(batch)
    with pytest.raises(ValueError, match="no task tokens, but the batch has"):
        make_model().vilbert(dataclasses.replace(batch, task_ids=torch.zeros(3, dtype=torch.long)))
    with torch.no_grad():
        first, second = (
            model.vilbert(dataclasses.replace(batch, task_ids=torch.tensor(ids)), with_attention=True)
            for ids in ([0, 1, 2], [0, 2, 2])
        )
    assert first.text_states.shape == (3, 9, 24) and first.task_state.shape == (3, 24)
    assert first.attention.text[0].shape == (3, 4, 10, 10)
    changed = (first.text_states - second.text_states).abs().amax(dim=(1, 2)) > 1e-4
    assert changed.tolist() == [False, True, False]


def test_without_answers_there_is_no_answer():
    model, batch = randomised(ViLbertForMultiTask(tiny(num_answers=0))), make_batch()
    with pytest.raises(ValueError, match="num_answers=0"):
        model.answers(model.encode(batch))


def test_without_a_match_head():
    model = make_model(with_match_head=False)
    output = model(dataclasses.replace(make_batch(), match_labels=None))
    assert set(output.losses) == {"masked_words", "masked_regions"}
    assert model.match_log_odds(model.encode(make_batch())) is None


@pytest.mark.parametrize(
    "text, image, expected",
    [
        ((1, 2), (0, 1), "t0 C0 v0 t1 C1 v1 t2"),
        ((0, 2), (1, 2), "v0 C0 v1 t0 t1 C1 v2 t2"),  # gaps, and one image layer more than co-attentions
        ((0,), (0,), "C0 v0 t0 t1 t2"),
    ],
)
def test_layer_plan(text, image, expected):
    layers = max(2, max(image) + 1)
    config = tiny(text_co_attention=text, image_co_attention=image, image_num_hidden_layers=layers)
    wanted = expected.split() + [f"v{layer}" for layer in range(layers) if f"v{layer}" not in expected]
    letters = {"text": "t", "image": "v", "co": "C"}
    steps = [f"{letters[step.kind]}{step.layer}" for step in layer_plan(config)]
    # Streams do not see each other between co-attentions, so only the order inside a stream and around one counts.
    for kind in "tvC":
        assert [s for s in steps if s[0] == kind] == sorted(s for s in wanted if s[0] == kind)
    for number in range(len(text)):
        before = set(steps[: steps.index(f"C{number}")])
        assert before == set(wanted[: wanted.index(f"C{number}")])
    with torch.no_grad():
        assert randomised(ViLbertForPreTraining(config)).vilbert(make_batch()).pooled.isfinite().all()


def test_published_depths():
    for depth in DEPTHS:
        plan = layer_plan(vilbert_config("paper", depth=depth))
        assert [step for step in plan if step.kind == "co"] == [EncoderStep("co", k) for k in range(depth)]
        # Co-attention k stands right before the text layer 12 - depth + k and image layer k (reference, section 1).
        for k in range(depth):
            after = plan[plan.index(EncoderStep("co", k)) + 1 :]
            assert next(s for s in after if s.kind == "text").layer == 12 - depth + k
            assert next(s for s in after if s.kind == "image").layer == k


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: ViLbertConfig(hiden_size=64), "unknown field 'hiden_size'; did you mean"),
        (lambda: ViLbertConfig(hidden_size=762), "hidden_size 762 is not a multiple of num_attention_heads 12"),
        (lambda: ViLbertConfig(co_attention_size=100), "co_attention_size 100"),
        (lambda: ViLbertConfig(fusion="mul"), "fusion is 'mul'; it must be one of 'product', 'sum'"),
        (lambda: ViLbertConfig(hidden_activation="tanh"), "hidden_activation is 'tanh'"),
        (lambda: ViLbertConfig(text_co_attention=[3]), "names 1 layers, image_co_attention 6"),
        (lambda: ViLbertConfig(text_co_attention=[12], image_co_attention=[0]), "name layers 0 to 11"),
        (lambda: tiny(text_co_attention=[2, 1]), "must rise"),
        (lambda: tiny(region_loss="regression"), "predicts features of width 12, region_target_size is 7"),
        (lambda: tiny(region_loss="contrastive"), "'contrastive' predicts features of width 12"),
        (lambda: tiny(num_negatives=0), "num_negatives 0 and negative_rows 64 must be at least"),
        (lambda: tiny(negative_rows=0), "negative_rows 0 must be at least 1"),
        (lambda: tiny(with_match_head=False, masked_loss_pairs="matched"), "masked_loss_pairs='all'"),
        (lambda: vilbert_config("mt"), "no ViLBERT preset 'mt'; there are paper, release"),
        (lambda: vilbert_config(depth=5), "depth 5; there are 2, 4, 6, 8"),
    ],
)
def test_config_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_presets_are_the_published_sizes():
    assert set(PRESETS) == {"paper", "release", "release-mt", "release-mt-roberta", "release-mt-tasks"}
    with torch.device("meta"):
        model = ViLbertForPreTraining(vilbert_config())
        multi_task = ViLbertForMultiTask(vilbert_config("release-mt-tasks"))
    count = sum(parameter.numel() for parameter in model.parameters())
    # From the sizes: BERT-base 108.9e6 without pooler, six image layers, six co-attentions, poolers and heads.
    text = (30522 + 512 + 2 + 2) * 768 + 12 * (4 * 768 * 769 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768)
    image_layer = 6 * 1024 * 1025 + 4 * 1024
    image = 1024 * 2049 + 1024 * 6 + 2 * 1024 + 6 * image_layer
    one_co = 3 * 1024 * 1025 + 3 * 1024 * 769 + 1024 * 1025 + 768 * 1025 + 2 * (1024 + 768)
    one_co += 2 * 1024 * 1025 + 2 * 1024 + 2 * 768 * 3072 + 3072 + 768 + 2 * 768
    heads = 1024 * 769 + 1024 * 1025 + 768 * 769 + 2 * 768 + 30522 + 1024 * 1025 + 2 * 1024 + 1601 * 1025 + 2 * 1025
    assert count == text + image + 6 * one_co + heads
    assert multi_task.vilbert.text_embeddings.tasks.weight.shape == (20, 768)
    assert multi_task.answer_head.decoder.weight.shape == (3129, 2048)


def test_a_task_model_starts_from_a_pretrained_one(tmp_path):
    torch.manual_seed(0)
    pretrained = randomised(ViLbertForPreTraining(tiny()))
    pretrained.save_pretrained(tmp_path)
    model = ViLbertForTasks.from_pretrained(tmp_path).eval()
    state, other = pretrained.state_dict(), model.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    new = model.answer_head.expand
    torch.testing.assert_close(new.scale, new.direction.norm())  # starts as the plain layer it stands for
    assert new.bias.abs().max() == 0 and new.direction.std() > 0.01


def test_task_heads_and_their_losses_are_finite_with_padding():
    model, batch = randomised(ViLbertForMultiTask(tiny())), take_rows(make_batch(), [0, 1])
    output = model.vilbert(batch)
    assert model.answers(output).shape == (2, 11) and model.gqa_answers(output).shape == (2, 5)
    assert model.entailment(output).shape == (2, 3) and model.image_pairs(output).shape == (1, 2)
    regions = model.score_regions(batch, output)
    assert regions.shape == (2, 7) and (regions[0, 6] < -9000) and (regions[:, :6] > -9000).all()
    with pytest.raises(ValueError, match="3 rows are no pairs"):
        model.image_pairs(model.vilbert(make_batch()))


def test_text_too_long_for_the_positions():
    with pytest.raises(ValueError, match=f"text of 25 pieces; this model takes 1 .* to {POSITIONS}"):
        make_model()(make_batch(lengths=(25, 3, 3)))
    assert make_model().logits(make_model().vilbert(make_batch())).words.shape[-1] == VOCAB_SIZE


def make_single_stream(model_class=SingleStreamForPreTraining, *, awake=True, **fields):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    sizes |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": POSITIONS}
    sizes |= {"region_feature_size": FEATURES, "region_target_size": LABELS}
    model = model_class(SingleStreamConfig(**sizes, **fields))
    return randomised(model) if awake else model


def test_heads_of_tasks_read_the_baseline_s_own_states():
    """The pooled [CLS] by two weight-normed layers, or by one; regions with IMG first, padding far below."""
    model, batch = make_single_stream(SingleStreamForTasks, num_answers=5).eval(), make_batch()
    with torch.no_grad():
        output = model.encode(batch)
        answers, pairs = model.answers(output), model.score_pairs(output)
        regions = model.score_regions(batch, output)
        inner = model.answer_head.expand(output.pooled).relu()
        torch.testing.assert_close(answers, model.answer_head.decoder(inner))
        torch.testing.assert_close(pairs, F.linear(output.pooled, model.pair_score.weight, model.pair_score.bias)[:, 0])
        first = F.linear(output.whole_image_state, model.region_score.weight, model.region_score.bias)[:, 0]
        torch.testing.assert_close(regions[:, 0], first)
    assert answers.shape == (3, 5) and regions.shape == (3, batch.region_mask.shape[1] + 1)
    assert bool((regions[:, 1:][~batch.region_mask] < -9000).all())
    assert (model.pair_score.dropout, model.region_score.dropout) == (0.0, model.config.hidden_dropout)


def test_new_heads_of_tasks_start_as_those_of_the_first_release():
    """The weight that a weight-normed layer starts with is that of PyTorch's linear layer."""
    torch.manual_seed(0)
    head = make_single_stream(SingleStreamForTasks, num_answers=5, awake=False).answer_head
    for layer in (head.expand, head.decoder):
        bound = layer.direction.shape[1] ** -0.5
        assert 0.5 * bound < float(layer.direction.detach().abs().max()) <= bound
        assert float(layer.scale.detach()) == pytest.approx(float(layer.direction.detach().norm()), rel=1e-5)


def test_what_the_baseline_refuses():
    with pytest.raises(ValueError, match="not a multiple of num_attention_heads 5"):
        SingleStreamConfig(num_attention_heads=5)
    with pytest.raises(ValueError, match="num_segments must be at least 2"):
        SingleStreamConfig(num_segments=1)
    with pytest.raises(ValueError, match=r"this model takes 1 .* to 24"):
        make_single_stream().encode(make_batch((25, 3, 3)))
    with pytest.raises(ValueError, match="has no match_labels"):
        make_single_stream()(dataclasses.replace(make_batch(), match_labels=None))
