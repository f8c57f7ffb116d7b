"""Rows that share a text or an image say what they would say with their own, for less work."""

import dataclasses

import pytest
import torch
from end_to_end_examples import inputs, joint_model
from model_examples import EXAMPLES, ONE_OF_EACH, build, in_dtype, make_full_batch
from test_invariances import assert_same, vectors

from roibeam.model.task_heads import LabelHead, LabelHeadConfig, RegionHead, RegionHeadConfig

ROW_TEXTS, ROW_IMAGES = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([1, 1, 0, 2, 2])
OF_ROWS = ("text_labels", "region_targets", "region_target_mask", "region_feature_targets", "match_labels")
PRECISE = {"rtol": 1e-11, "atol": 1e-11}


def shared_batch():
    """Five rows of three texts and three images, in float64; one image has a padded region, one text a padded piece."""
    batch = make_full_batch((9, 4, 7), (5, 6, 1))
    words = batch.aligned_words[ROW_IMAGES]
    named = dict.fromkeys(OF_ROWS) | {"aligned_words": words, "row_texts": ROW_TEXTS, "row_images": ROW_IMAGES}
    named |= {"sample_ids": (), "draw_seeds": ()}
    return in_dtype(dataclasses.replace(batch, **named), torch.float64)


@pytest.mark.parametrize("name", EXAMPLES)
def test_rows_that_share_equal_rows_of_their_own(name):
    model, batch = build(name).double(), shared_batch()
    apart = batch.without_sharing()
    assert apart.batch_size == batch.batch_size == 5 and apart.row_texts is None and len(apart.region_features) == 5
    assert_same(vectors(model.encode(batch), apart), vectors(model.encode(apart), apart), **PRECISE)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_an_image_is_embedded_once_however_many_rows_show_it(name):
    model, batch = build(name).double(), shared_batch()
    seen = []
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.in_features >= batch.region_features.shape[-1]:
            module.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(0, -2).shape[0]))
            break
    # With a whole image beside them or without.
    wanted = {int(batch.region_mask.sum()), int(batch.region_mask.sum()) + len(batch.region_mask)}
    model.encode(batch)
    assert seen[0] in wanted, name


def test_heads_read_the_masks_of_rows():
    batch, apart = shared_batch(), shared_batch().without_sharing()
    model = build("ViLBERT").double()
    label = LabelHead(LabelHeadConfig(input_width=24, num_classes=3, reads="mask_piece")).double().eval()
    region = RegionHead(RegionHeadConfig(input_width=model.config.output_widths.region, with_whole_image=True))
    for head in (label, region.double().eval()):
        torch.testing.assert_close(head(batch, model.encode(batch)), head(apart, model.encode(apart)), **PRECISE)


@pytest.mark.parametrize("name", ["vlbert", "vilbert"])
def test_pixels_are_convolved_once_however_many_rows_show_them(name):
    joint, calls = joint_model(name), []
    joint.region_encoder.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    batch, images = inputs(joint)
    rows = torch.tensor([0] * 3 + [1] * 2)
    text = {field: getattr(batch, field)[rows] for field in ("text_ids", "text_mask", "text_segments")}
    shared = dataclasses.replace(batch, **text, **dict.fromkeys(OF_ROWS), row_images=rows)
    together = joint.encode(shared, images)
    own = {field: value[rows] for field, value in vars(images).items() if value is not None}
    apart = joint.encode(shared.without_sharing(), dataclasses.replace(images, **own))
    assert calls == [2, 5]
    torch.testing.assert_close(together.text_states, apart.text_states, rtol=1e-4, atol=1e-5)
