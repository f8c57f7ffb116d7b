"""ViLBERT's single-stream baseline: invariances, losses, files. (There are no reference arrays of it.)"""

import dataclasses

import pytest
import torch
from vilbert_examples import FEATURES, LABELS, POSITIONS, VOCAB_SIZE, make_batch, randomised, take_rows

from model.inputs import IGNORE_INDEX
from model.vilbert_single_stream import SingleStreamConfig, SingleStreamForPreTraining


def make_model():
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    sizes |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": POSITIONS}
    sizes |= {"region_feature_size": FEATURES, "region_target_size": LABELS}
    return randomised(SingleStreamForPreTraining(SingleStreamConfig(**sizes)))


@pytest.mark.parametrize("text_pad, region_pad", [(6, 0), (0, 5), (3, 2)])
def test_padding_does_not_matter(text_pad, region_pad):
    model, batch = make_model(), make_batch()
    padded = make_batch(text_pad=text_pad, region_pad=region_pad)
    with torch.no_grad():
        output, other = model.encode(batch), model.encode(padded)
        losses, others = model.score(batch, output).losses, model.score(padded, other).losses
    torch.testing.assert_close(other.pooled, output.pooled, rtol=1e-4, atol=2e-5)
    real = batch.region_mask
    ours, theirs = output.region_states[real], other.region_states[:, : real.shape[1]][real]
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=2e-5)
    for name, term in losses.items():
        assert term.count == others[name].count > 0
        torch.testing.assert_close(term.total, others[name].total, rtol=1e-5, atol=1e-5)


def test_row_and_region_order_do_not_matter():
    model, batch = make_model(), make_batch()
    order = [4, 2, 0, 1, 3]  # of row 0's five regions
    turned = {name: getattr(batch, name).clone() for name in ("region_features", "region_boxes", "masked_regions")}
    for value in turned.values():
        value[0, :5] = value[0, order]
    with torch.no_grad():
        whole, after = model.encode(batch), model.encode(dataclasses.replace(batch, **turned))
        rows = model.encode(take_rows(batch, [2, 0]))
    torch.testing.assert_close(after.region_states[0, :5], whole.region_states[0, order], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(rows.pooled, whole.pooled[[2, 0]], rtol=1e-4, atol=2e-5)


def test_text_and_image_see_each_other_from_the_first_layer():
    model, batch = make_model(), make_batch()
    output = model.encode(batch, with_attention=True)
    assert [weights.shape for weights in output.attention.joint] == [(3, 4, 16, 16)] * 2  # 9 pieces, IMG, 6 regions
    torch.testing.assert_close(output.pooled, model.encode(batch).pooled, rtol=1e-4, atol=1e-5)
    assert output.attention.joint[0][0, :, 0, 10:15].min() > 0


@pytest.mark.parametrize("regions", [(5, 6, 1), (0, 0, 0)])
def test_half_empty_batches_stay_finite(regions):
    model, batch = make_model(), make_batch(regions=regions)
    nothing = torch.full_like(batch.text_labels, IGNORE_INDEX)
    batch = dataclasses.replace(
        batch, text_labels=nothing, region_target_mask=torch.zeros_like(batch.region_target_mask)
    )
    losses = model(batch).losses
    assert (losses["masked_words"].mean, losses["masked_regions"].mean) == (0, 0) and losses["matching"].mean > 0
    sum(term.mean for term in losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_what_it_refuses():
    with pytest.raises(ValueError, match="not a multiple of num_attention_heads 5"):
        SingleStreamConfig(num_attention_heads=5)
    with pytest.raises(ValueError, match="num_segments must be at least 2"):
        SingleStreamConfig(num_segments=1)
    with pytest.raises(ValueError, match="this model takes 1 to 24"):
        make_model().encode(make_batch((25, 3, 3)))
    with pytest.raises(ValueError, match="lacks text_labels, region_targets or match_labels"):
        make_model()(dataclasses.replace(make_batch(), match_labels=None))


def test_save_and_load_give_the_same_model(tmp_path):
    model, batch = make_model(), make_batch()
    model.save_pretrained(tmp_path)
    loaded = SingleStreamForPreTraining.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(model.encode(batch).pooled, loaded.encode(batch).pooled)
