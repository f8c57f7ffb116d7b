"""Photos and boxes as the two halves of an end-to-end batch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from end_to_end_examples import BLANK, BOXES, ENCODER, MASKED, RELEASE, WHOLE, encoder, photos

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.region_encoder import collate_photos, prepare_photo
from roibeam.pipelines.data.batches.image_batch import photo_inputs


def test_regions_and_pixels_are_those_of_prepared_photos():
    made = photo_inputs(photos(), BOXES, MASKED, encoder(), BLANK)
    convention = CONVENTIONS["vlbert-e2e"]
    want = collate_photos(
        [prepare_photo(*each, ENCODER, convention, masked=m) for *each, m in zip(photos(), BOXES, MASKED, strict=True)]
    )
    assert torch.equal(made.images.pixels, want.pixels) and torch.equal(made.images.boxes, want.boxes)
    assert torch.equal(made.regions["region_boxes"], want.photo_boxes)
    assert torch.equal(made.regions["region_mask"], want.region_mask)
    assert made.regions["image_hw"].tolist() == [[48, 64], [60, 50]]
    assert made.regions["masked_regions"].tolist() == [[True, False, False, False], [False, True, False, False]]
    assert torch.equal(made.images.blanked_regions, made.regions["masked_regions"])


def test_whole_photos_are_not_blank_though_regions_are_masked():
    whole, blank = (photo_inputs(photos(), BOXES, MASKED, encoder(), choices) for choices in (WHOLE, BLANK))
    assert not whole.images.blanked_regions.any() and whole.regions["masked_regions"].sum() == 2
    assert not torch.equal(whole.images.pixels, blank.images.pixels)
    assert torch.equal(whole.images.boxes, blank.images.boxes)


def test_the_whole_image_is_a_box_of_its_own():
    """[0, 0, width - 1, height - 1] of the photo, scaled and clipped as any other box."""
    boxed, plain = (photo_inputs(photos(), BOXES, MASKED, encoder(), choices) for choices in (RELEASE, BLANK))
    # 64 x 48 stays, 50 x 60 shrinks to 48 x 57 and is clipped; 32 x 24 grows to 64 x 48, where the last pixel moves.
    assert boxed.images.whole_image_boxes.tolist() == [[0, 0, 63, 47], [0, 0, 47, 56]]
    small = photo_inputs(
        [photos()[0][:24, :32]], [np.array([[2, 3, 30, 24]], np.float32)], [MASKED[0][:1]], encoder(), RELEASE
    )
    assert small.images.whole_image_boxes.tolist() == [[0, 0, 62, 46]]
    assert plain.images.whole_image_boxes is None
    assert torch.equal(boxed.images.boxes, plain.images.boxes) and torch.equal(boxed.images.pixels, plain.images.pixels)
    assert all(torch.equal(boxed.regions[name], plain.regions[name]) for name in plain.regions)


def test_where_boxes_may_reach_the_edge_so_does_the_whole_image():
    other = encoder(conventions=dataclasses.replace(CONVENTIONS["vlbert-e2e"], box_clip="edge"))
    made = photo_inputs(photos(), BOXES, MASKED, other, RELEASE)
    torch.testing.assert_close(made.images.whole_image_boxes[0], torch.tensor([0.0, 0, 64, 48]))


def test_mirrored_photos_have_mirrored_boxes():
    plain, mirrored = (
        photo_inputs(photos(), BOXES, MASKED, encoder(), RELEASE, flips=flips) for flips in (None, [True, False])
    )
    ours, theirs = mirrored.regions["region_boxes"], plain.regions["region_boxes"]
    torch.testing.assert_close(ours[0, :, 0], 63 - theirs[0, :, 2], rtol=0, atol=1e-4)
    assert torch.equal(ours[1], theirs[1])
    assert torch.equal(mirrored.images.pixels[0, :, :48, :64], plain.images.pixels[0, :, :48, :64].flip(-1))


def test_masks_that_do_not_belong_to_the_boxes():
    with pytest.raises(ValueError, match=r"masked must be \(2,\) bool, one for each box; got \(4,\) bool"):
        photo_inputs(photos(), BOXES, [MASKED[0], MASKED[0]], encoder(), WHOLE)
    with pytest.raises(ValueError, match=r"got \(2,\) int64"):
        photo_inputs(photos(), BOXES, [MASKED[0], np.array([0, 1])], encoder(), WHOLE)
    with pytest.raises(ValueError, match="2 photos, 1 arrays of boxes, 2 of masked; give one of each"):
        photo_inputs(photos(), BOXES[:1], MASKED, encoder(), WHOLE)


@pytest.mark.parametrize(
    "boxes, words",
    [
        (BOXES[0] + 500, "box 0 of 4"),
        (BOXES[0] / 500, "all lie in 0..1"),
        (np.ones((2, 5), np.float32), r"must be \(R, 4\) numbers"),
    ],
)
def test_boxes_that_are_not_of_the_photo(boxes, words):
    """The encoder would clip them without a word."""
    with pytest.raises(ValueError, match=words):
        photo_inputs(photos(), [boxes, BOXES[1]], MASKED, encoder(), RELEASE)


def test_photos_without_regions():
    none = [np.zeros((0, 4), np.float32)] * 2
    made = photo_inputs(photos(), none, [np.zeros(0, bool)] * 2, encoder(), RELEASE)
    assert made.images.boxes.shape == (2, 0, 4) and made.regions["region_mask"].shape == (2, 0)
