"""Regions hidden in photos and in the network's input, and what the resize between the two carries over their edges."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.photos.preprocessing import blank_photo, blank_regions
from roibeam.extraction.region_encoder import prepare_photo

ENCODER = CONVENTIONS["vlbert-e2e"]
EDGES = DetectorConfig(short_edge=48, long_edge=80)


@pytest.mark.parametrize(
    ("box", "rows", "columns"),
    [
        ((1.9, 2.2, 4.0, 5.9), range(2, 6), range(1, 5)),
        ((3, 3, 3, 3), range(3, 4), range(3, 4)),
        ((-5, -5, 2, 1), range(0, 2), range(0, 3)),
        ((7, 4, 30, 30), range(4, 8), range(7, 10)),
        ((-9, -9, -2, -2), range(0), range(0)),
    ],
)
def test_whole_pixels_from_the_first_corner_to_the_last(box, rows, columns):
    photo, pixels = np.full((8, 10, 3), 7, np.uint8), torch.full((3, 8, 10), 7.0)
    boxes = np.array([box], np.float32)
    blank = np.zeros((8, 10), bool)
    blank[np.ix_(rows, columns)] = True
    assert np.array_equal((blank_photo(photo, boxes, ENCODER) != 7).all(axis=2), blank)
    assert np.array_equal((blank_regions(pixels, torch.from_numpy(boxes)) == 0).all(dim=0).numpy(), blank)
    assert (photo == 7).all() and (pixels == 7).all()


def test_a_blank_photo_has_the_mean_colour_in_its_own_channel_order():
    photo, boxes = np.zeros((4, 4, 3), np.uint8), np.array([[0, 0, 1, 1]], np.float32)
    mean = np.rint(ENCODER.pixel_mean).astype(int).tolist()  # B, G, R
    assert blank_photo(photo, boxes, ENCODER)[0, 0].tolist() == mean and len(set(mean)) == 3
    rgb = dataclasses.replace(ENCODER, channel_order="rgb", pixel_mean=tuple(reversed(ENCODER.pixel_mean)))
    assert blank_photo(photo, boxes, rgb)[0, 0].tolist() == mean


@pytest.mark.parametrize("preset", ["vlbert-e2e", "hf", "caffe"])  # resizes of Pillow, of the device, of OpenCV
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("image_hw", [(31, 43), (110, 90)])  # made larger, made smaller
def test_blanked_before_the_resize_nothing_is_carried_over(preset, flip, image_hw):
    random, boxes = np.random.default_rng(0), np.array([[4.5, 6.2, 20.7, 25.1], [8, 2, 30, 12]], np.float32)
    photo = random.integers(0, 256, (*image_hw, 3), dtype=np.uint8)
    other = photo.copy()
    for x1, y1, x2, y2 in boxes.astype(int).tolist():
        other[y1 : y2 + 1, x1 : x2 + 1] = random.integers(0, 256, (y2 + 1 - y1, x2 + 1 - x1, 3))
    masked = np.ones(2, bool)
    changed = {}
    for before in (True, False):
        ours, theirs = (
            prepare_photo(each, boxes, EDGES, CONVENTIONS[preset], flip=flip, masked=masked, blank_before_resize=before)
            for each in (photo, other)
        )
        for x1, y1, x2, y2 in ours.boxes.int().tolist():
            assert not ours.pixels[:, y1 : y2 + 1, x1 : x2 + 1].any()
        changed[before] = int((ours.pixels != theirs.pixels).any(dim=0).sum())
    assert changed[True] == 0
    # Without antialiasing, making a photo smaller reads few pixels, and may read none across these edges.
    assert changed[False] > 0 or (preset != "vlbert-e2e" and image_hw[0] > EDGES.short_edge)


def test_what_is_not_hidden_is_as_it_was():
    photo = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    boxes = np.array([[4, 6, 20, 25], [30, 30, 50, 50]], np.float32)
    plain, none = (
        prepare_photo(photo, boxes, EDGES, ENCODER, masked=np.zeros(2, bool), blank_before_resize=before)
        for before in (False, True)
    )
    assert torch.equal(plain.pixels, none.pixels)
