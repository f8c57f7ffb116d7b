"""What a loss will be averaged over is known before the model runs, for every model."""

import dataclasses

import pytest
import torch
from model_examples import EXAMPLES, build, make_full_batch

from roibeam.model.inputs import IGNORE_INDEX


def variants():
    batch = make_full_batch()
    matched = torch.ones_like(batch.match_labels)
    yield "as drawn", batch
    yield "all matched", dataclasses.replace(batch, match_labels=matched)
    yield "none matched", dataclasses.replace(batch, match_labels=torch.zeros_like(matched))
    yield "one is not asked", dataclasses.replace(batch, match_labels=torch.tensor([1, IGNORE_INDEX, 0]))
    yield "no word", dataclasses.replace(batch, text_labels=torch.full_like(batch.text_labels, IGNORE_INDEX))
    none = torch.zeros_like(batch.region_target_mask)
    yield "no region", dataclasses.replace(batch, region_target_mask=none)


@pytest.mark.parametrize("name", EXAMPLES)
def test_counts_are_those_of_the_losses(name):
    model = build(name)
    for what, batch in variants():
        with torch.no_grad():
            losses = model(batch).losses
        assert model.loss_counts(batch) == {loss: int(term.count) for loss, term in losses.items()}, what


@pytest.mark.parametrize("name", ["ViLBERT", "ViLBERT single-stream", "InterBERT"])
def test_a_model_that_predicts_no_regions_asks_for_no_targets(name):
    """And has no parameters for them."""
    model = EXAMPLES[name].make(region_loss="none")
    assert not [each for each in model.state_dict() if "region_head" in each]
    batch = dataclasses.replace(make_full_batch(), region_targets=None, region_target_mask=None)
    output = model.encode(batch)
    losses = model.score(batch, output).losses
    assert model.loss_counts(batch) == {loss: int(term.count) for loss, term in losses.items()}
    assert set(losses) == {"masked_words", "matching"} and model.region_logits(output.region_states) is None


@pytest.mark.parametrize("mean", ["items", "rows"])
def test_words_without_an_image_count_by_themselves_in_a_vlbert(mean):
    model = EXAMPLES["VL-BERT"].make(with_text_only=True, word_loss_mean=mean, region_loss_mean=mean)
    batch = make_full_batch(regions=(5, 0, 1))
    batch = dataclasses.replace(batch, text_only=torch.tensor([False, True, False]))
    counts = model.loss_counts(batch)
    assert counts == {loss: int(term.count) for loss, term in model(batch).losses.items()}
    assert counts["text_only_words"] > 0
