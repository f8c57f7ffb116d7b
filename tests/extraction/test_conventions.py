"""Every convention changes a number, by the mechanism its name says: one probe for each field, worked out by hand.

A probe takes conventions and gives plain numbers. `CASES` names, for every field of `Conventions`, what the probe gives
for each of its values; a field, or a word of one, that is missing there fails the tests, and so does a switch that is
wired to nothing. That the numbers of a whole preset are those of the published code is for the goldens
(`python tests/conformance`, test_published_numbers.py) and for bench/published_proposals.py, which runs those codes.
"""

import io
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from roibeam.extraction.detector import Detector, HeadOutputs
from roibeam.extraction.fast.inference_network import best_attributes
from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import CONVENTIONS, DELTA_CAP, IMPLEMENTED, Conventions
from roibeam.extraction.network.resnet import Bottleneck, NormedConv, Stem, build_res5
from roibeam.extraction.network.roi_heads import BoxPredictor, RegionOutputs, RoIHeads, pool_regions
from roibeam.extraction.network.rpn import ProposalGenerator, Proposals, choose_proposals
from roibeam.extraction.photos.decode import decode_image
from roibeam.extraction.photos.preprocessing import input_size, preprocess

HF = CONVENTIONS["hf"]
TINY = replace(
    CONFIGS["small"], base_channels=1, num_classes=2, num_attributes=2, anchor_sizes=(16,), anchor_ratios=(1.0,),
    rpn_hidden_channels=1,
)  # fmt: skip


def pixels(image: object, conventions: Conventions, short_edge: int) -> torch.Tensor:
    config = replace(TINY, short_edge=short_edge, long_edge=1000)
    return preprocess(np.asarray(image, np.uint8), config, conventions).pixels[0]


def one_color(conventions: Conventions) -> list[float]:
    """Network input of a photo that is blue 10, green 20, red 30 everywhere."""
    return pixels(np.full((4, 4, 3), (10, 20, 30)), conventions, 4)[:, 0, 0].tolist()


def colour_without_mean(conventions: Conventions) -> list[float]:
    return one_color(replace(conventions, pixel_mean=(0.0, 0.0, 0.0)))


def turned_photo(conventions: Conventions) -> tuple[int, ...]:
    """Size of a JPEG of 6x4 pixels whose tag says that it lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.new("RGB", (4, 6)).save(file, "JPEG", exif=exif)
    return decode_image(file.getvalue(), exif_orientation=conventions.exif_orientation).shape


def ramp(conventions: Conventions) -> list[float]:
    """Columns 0 16 ... 96 of a 6x7 photo, halved to 3x4 (3.5 rounded)."""
    photo = np.broadcast_to((16 * np.arange(7))[None, :, None], (6, 7, 3))
    return pixels(photo, replace(conventions, pixel_mean=(0.0, 0.0, 0.0)), 3)[0, 1].tolist()


def blue_of_103(conventions: Conventions) -> float:
    return pixels(np.full((4, 4, 3), 103), replace(conventions, resize="cv2-linear"), 4)[0, 0, 0].item()


def halved_sizes(conventions: Conventions) -> list[tuple[int, int]]:
    """6x9 and 6x7 at a short edge of 3: the long edge would be 4.5 and 3.5."""
    return [input_size(size, 3, 100, conventions)[0] for size in ((6, 9), (6, 7))]


def sizes_at_the_limit(conventions: Conventions) -> list[tuple[tuple[int, int], float]]:
    """At 600/1000: the long edge of the first would be 1000.44 pixels, which rounds to the limit; of the other 1005."""
    return [input_size(size, 600, 1000, conventions) for size in ((899, 1499), (400, 670))]


def padding(conventions: Conventions) -> tuple[list[int], float, float]:
    """Shape of the input of a 20x30 photo, its last pixel, and the last one of the photo in it."""
    made = pixels(np.full((20, 30, 3), 255), conventions, 20)
    return list(made.shape), made[0, -1, -1].item(), made[0, 19, 29].item()


def box_on_the_photo(conventions: Conventions) -> list[float]:
    """6x9 photo, input 3x5 (4.5 rounded): the box over the whole input."""
    config = replace(TINY, short_edge=3, long_edge=100)
    scale = preprocess(np.zeros((6, 9, 3), np.uint8), config, conventions).scale
    back = scale.to_photo(torch.tensor([[0.0, 0.0, 5.0, 3.0]]))
    torch.testing.assert_close(scale.to_network(back), torch.tensor([[0.0, 0.0, 5.0, 3.0]]))
    return back[0].tolist()


def set_kernel(conv: NormedConv, rows: list[list[float]]) -> None:
    """One kernel from the first channel to the first, no other weights, and a norm that changes nothing."""
    conv.weight.data.zero_()
    kernel = torch.tensor(rows)
    offset = (conv.weight.shape[2] - len(kernel)) // 2
    conv.weight.data[0, 0, offset : offset + len(kernel), offset : offset + len(kernel)] = kernel
    conv.norm.weight.fill_(math.sqrt(1 + conv.norm.eps))


HALVES = [[0.0, 0.0, 9.0, 18.0], [0.0, 0.0, 9.0, 8.0]]  # 10x9 of 10x19 pixels, or 9x8 of 9x18
ONE, ROW = [[1.0]], [[0.0] * 3, [1.0] * 3, [0.0] * 3]


@torch.inference_mode()
def pooled_stem(conventions: Conventions) -> list[float]:
    """The stem's convolution hands on every second pixel, 1 5 2 3."""
    stem = Stem(1, conventions)
    set_kernel(stem.conv1, ONE)
    return rounded(stem(torch.tensor([1.0, 0, 5, 0, 2, 0, 3, 0]).expand(1, 3, 8, 8))[0, 0, 0])


@torch.inference_mode()
def strided_block(conventions: Conventions) -> list[float]:
    """Pixels 1 10 100 1000, three of which are added, with stride 2."""
    block = Bottleneck(1, 1, 1, conventions, stride=2)
    for conv, kernel in ((block.conv1, ONE), (block.conv2, ROW), (block.conv3, ONE), (block.shortcut, [[0.0]])):
        set_kernel(conv, kernel)
    return rounded(block(torch.tensor([1.0, 10, 100, 1000]).expand(1, 1, 4, 4))[0, 0, 0])


@torch.inference_mode()
def negative_sum(conventions: Conventions) -> float:
    """Of a pixel of -1 to which the convolutions add nothing."""
    block = Bottleneck(1, 1, 1, conventions)
    block.conv3.weight.zero_()
    return block(-torch.ones(1, 1, 1, 1)).item()


def normed_one(conventions: Conventions) -> float:
    norm = Stem(1, conventions).conv1.norm
    norm.running_var.fill_(3e-5)
    return round(norm(torch.ones(1, 1, 1, 1)).item(), 2)


@torch.inference_mode()
def spread_of_res5(conventions: Conventions) -> tuple[int, list[int]]:
    """Size of what res5 makes of 14 cells, and the columns that one cell at (6, 6) reaches through its three blocks."""
    res5 = build_res5(TINY, conventions)
    for module in res5.modules():
        if isinstance(module, NormedConv):
            module.weight.data.fill_(1.0)
    impulse = torch.zeros(1, TINY.map_channels, 14, 14)
    impulse[:, :, 6, 6] = 1
    out = res5(impulse)[0, 0]
    return len(out), torch.nonzero(out.sum(0)).flatten().tolist()


def anchors(conventions: Conventions, sizes: tuple[float, ...], ratios: tuple[float, ...]) -> list[list[float]]:
    config = replace(TINY, anchor_sizes=sizes, anchor_ratios=ratios)
    return [rounded(box) for box in cell_anchors(config, conventions)]


def anchor_widths(conventions: Conventions) -> list[float]:
    boxes = anchors(conventions, (16.0, 32.0), (0.25, 1.0))
    return [x2 - x1 for x1, _, x2, _ in boxes]


def choose(boxes: list[list[float]], conventions: Conventions, *, factor: float = 1.0, **sizes: Any) -> list[int]:
    """Ids of the proposals among boxes of falling score, in a photo of 100x200."""
    scores = torch.linspace(0.9, 0.1, len(boxes))
    config = replace(TINY, **sizes)
    chosen = choose_proposals(torch.tensor(boxes), scores, (100, 200), factor, config, conventions)
    return [scores.tolist().index(score) for score in chosen.objectness.tolist()]


def decoded_anchor(conventions: Conventions, deltas: list[float]) -> list[float]:
    """The anchor of the first cell, moved; it is -8 -8 8 8, or -8 -8 7 7 with inclusive edges."""
    numbers = 2 if conventions.objectness == "pair-softmax" else 1
    generator = ProposalGenerator(TINY, conventions)
    boxes, _ = generator.score_anchors(torch.zeros(1, numbers, 1, 1), torch.tensor(deltas).view(1, 4, 1, 1))
    return rounded(boxes[0])


def one_pixel(conventions: Conventions) -> tuple[list[float], list[float], list[int], list[int]]:
    """The anchor; the same decoded; whether a box of one column stays; whether NMS at 0.45 sees 9/20 or 10/20."""
    anchor = anchors(conventions, (16.0,), (1.0,))[0]
    column = choose([[5.0, 0.0, 5.0, 9.0]], conventions)
    return anchor, decoded_anchor(conventions, [0.0] * 4), column, choose(HALVES, conventions, proposal_nms_iou=0.46)


def clipped(conventions: Conventions) -> list[float]:
    boxes = torch.tensor([[-5.0, -5.0, 500.0, 500.0]])
    return choose_proposals(boxes, torch.ones(1), (100, 200), 1.0, TINY, conventions).boxes[0].tolist()


def moved_region(conventions: Conventions, edge: int, box: list[float], deltas: list[float]) -> list[float]:
    """A proposal on a photo of 100x100 pixels, resized to `edge`, moved by its best class."""
    config = replace(TINY, short_edge=edge, long_edge=edge)
    made = preprocess(np.zeros((100, 100, 3), np.uint8), config, conventions)
    best = torch.tensor([[1.0, 0.0, 0.0]])
    regions = RegionOutputs(torch.zeros(1, 32), best, torch.zeros(1, 3), torch.tensor([[deltas, [9.0] * 4]]))
    outputs = HeadOutputs(made, torch.zeros(1, 16, 13, 13), Proposals(torch.tensor([box]), torch.ones(1)), regions)
    return rounded(torch.from_numpy(Detector(config, conventions).postprocess(outputs).regressed_boxes[0]))


def unmoved(conventions: Conventions) -> float:
    """x2 of a proposal of 20 pixels, the last one counted, with deltas of 0, on a photo enlarged twice."""
    conventions = replace(conventions, box_sides="x2-x1+1", box_scale="one-factor")
    return moved_region(conventions, 200, [20.0, 20.0, 39.0, 39.0], [0.0] * 4)[2]


def attribute_score(conventions: Conventions) -> float:
    """Probability of the best of two attributes of logit 0, where "no attribute" has ln 2."""
    scores, _ = best_attributes(torch.tensor([[0.0, 0.0, math.log(2)]]), conventions)
    return round(scores.item(), 4)


@torch.inference_mode()
def predictor_rows(conventions: Conventions) -> dict[str, object]:
    """What the heads make of weights that say nothing but their row: class logits 5 1 2 and attribute logits 7 3 4 by
    row, box deltas numbered through, and the embedding of row i adds 100 i to every attribute logit."""
    predictor = BoxPredictor(TINY, conventions)
    for parameter in predictor.parameters():
        parameter.zero_()
    predictor.cls_score.bias.copy_(torch.tensor([5.0, 1.0, 2.0]))
    predictor.attr_score.bias.copy_(torch.tensor([7.0, 3.0, 4.0])[: len(predictor.attr_score.bias)])
    predictor.bbox_pred.bias.copy_(torch.arange(float(len(predictor.bbox_pred.bias))))
    predictor.cls_embedding.weight[:, 0] = torch.tensor([0.0, 100.0, 200.0])
    predictor.fc_attr.weight[0, TINY.feature_dim] = 1
    predictor.attr_score.weight[:, 0] = 1
    made = predictor(torch.zeros(1, TINY.feature_dim))
    return {
        "classes": made.class_logits[0].tolist(),
        "attributes": made.attribute_logits[0].tolist(),
        "deltas": made.box_deltas[0, :, 0].tolist(),
    }


@torch.inference_mode()
def embedded_class(conventions: Conventions) -> list[float]:
    """As `predictor_rows`, with background, the last row, the best class: its embedding is that of row 2."""
    predictor = BoxPredictor(TINY, conventions)
    for parameter in predictor.parameters():
        parameter.zero_()
    predictor.cls_score.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    predictor.cls_embedding.weight[:, 0] = torch.tensor([10.0, 20.0, 30.0])
    predictor.fc_attr.weight[0, TINY.feature_dim] = 1
    predictor.attr_score.weight[:, 0] = 1
    return predictor(torch.zeros(1, TINY.feature_dim)).attribute_logits[0].tolist()


def objectness(conventions: Conventions) -> list[float]:
    """Two anchors; logits 1 0 of one number each, or backgrounds 0 2 and then foregrounds 1 0."""
    generator = ProposalGenerator(replace(TINY, anchor_sizes=(16.0, 32.0)), conventions)
    pair = generator.rpn_head.objectness_logits.out_channels == 4
    logits = torch.tensor([0.0, 2.0, 1.0, 0.0] if pair else [1.0, 0.0]).view(1, -1, 1, 1)
    return rounded(generator.score_anchors(logits, torch.zeros(1, 8, 1, 1))[1])


def filtered(conventions: Conventions) -> tuple[list[int], list[int]]:
    """Sides 10, 16, 40 and 40 by falling score, of which 16 must be passed and two may reach the NMS; and a box without
    width, counted as one pixel, where nothing must be passed."""
    apart = [[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 36.0, 16.0], [50.0, 0.0, 90.0, 40.0], [100.0, 0.0, 140.0, 40.0]]
    limits = {"proposals_before_nms": 2, "proposals_after_nms": 2}
    thin = replace(conventions, box_sides="x2-x1+1")
    return choose(apart, replace(conventions, min_proposal_side=16.0), **limits), choose([[5.0, 5, 5, 20]], thin)


def overlapping_half(conventions: Conventions) -> list[int]:
    return choose([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 5.0]], conventions, proposal_nms_iou=0.5)


def pooled_squares(conventions: Conventions) -> list[float]:
    """First and last of 7 bins of a map whose cells hold their column squared, for a box from half a cell to 13.5."""
    square_map = (torch.arange(20.0) ** 2).expand(1, 1, 4, 20)
    bins = pool_regions(square_map, [torch.tensor([[8.0, 0.0, 216.0, 32.0]])], conventions, cells=7)[0, 0, 0]
    return rounded(bins[[0, -1]])


class Doubled(nn.Module):
    """Stands for res5: as many channels more, the same cells."""

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        return torch.cat([pooled, pooled], dim=1)


@torch.inference_mode()
def feature(conventions: Conventions) -> float:
    """Of a region over columns 0 to 13 of a map whose cells hold their column."""
    heads = RoIHeads(TINY, conventions)
    heads.res5 = Doubled()
    ramp_map = torch.arange(20.0).expand(1, TINY.map_channels, 4, 20)
    return heads(ramp_map, torch.tensor([[0.0, 0.0, 208.0, 32.0]])).features[0, 0].item()


def rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


# float32 of the difference, and the difference of float32 numbers.
BEFORE, AFTER = float(np.float32(103 - 102.9801)), float(np.float32(103) - np.float32(102.9801))
GROWTH = [0.0, 0.0, 5.0, 0.0]  # e^5 = 148.4 times as wide, or 1000 / 16 = 62.5 times at the cap

# What a field is flipped in: "hf", but for the one that goes with another word only.
BASES = {"resized_edge_rounding": replace(HF, long_edge_rule="short-truncated")}
# field -> (probe, {value: what the probe gives for it}).
CASES: dict[str, tuple[Callable[[Conventions], object], dict[Any, object]]] = {
    "channel_order": (colour_without_mean, {"bgr": [10.0, 20.0, 30.0], "rgb": [30.0, 20.0, 10.0]}),
    "pixel_mean": (one_color, {(1.0, 2.0, 3.0): [9.0, 18.0, 27.0], (0.0, 0.0, 0.0): [10.0, 20.0, 30.0]}),
    "pixel_std": (colour_without_mean, {(1.0, 1.0, 1.0): [10.0, 20.0, 30.0], (2.0, 4.0, 5.0): [5.0, 5.0, 6.0]}),
    "exif_orientation": (turned_photo, {"applied": (4, 6, 3), "ignored": (6, 4, 3)}),
    # Steps of 7/4 and of 2 between samples; PIL weighs 1.75 pixels each way and rounds.
    "resize": (
        ramp,
        {"float-bilinear": [6, 34, 62, 90], "cv2-linear": [8, 40, 72, 96], "pil-bilinear": [8, 33, 63, 88]},
    ),
    "resize_mean": (blue_of_103, {"before": BEFORE, "after": AFTER}),
    "resized_edge_rounding": (
        halved_sizes,
        {"half-up": [(3, 5), (3, 4)], "half-to-even": [(3, 4), (3, 4)], "truncate": [(3, 4), (3, 3)]},
    ),
    "long_edge_rule": (
        sizes_at_the_limit,
        {
            "rescale-both": [((600, 1000), pytest.approx(1000 / 1499)), ((597, 1000), pytest.approx(1000 / 670))],
            "rounded": [((600, 1000), 600 / 899), ((597, 1000), 1000 / 670)],
            "short-truncated": [((599, 999), 599 / 899), ((597, 1000), 597 / 400)],
            "short-rounded": [((600, 1000), 600 / 899), ((597, 1000), 597 / 400)],
        },
    ),
    "padding_multiple": (
        padding,
        {
            1: ([3, 20, 30], pytest.approx(255 - 102.9801), pytest.approx(255 - 102.9801)),
            32: ([3, 32, 32], 0.0, pytest.approx(255 - 102.9801)),
        },
    ),
    "box_scale": (
        box_on_the_photo,
        {"per-axis": pytest.approx([0, 0, 9, 6]), "one-factor": pytest.approx([0, 0, 10, 6])},
    ),
    # Windows 1 5 2 | 2 3 against 1 5 | 5 2 3.
    "stem_pool": (pooled_stem, {"pad-0-ceil": [5.0, 3.0], "pad-1-floor": [5.0, 5.0]}),
    # 1 + 100 twice, against 0 + 1 + 10 and 10 + 100 + 1000.
    "stride_conv": (strided_block, {"1x1": [101.0, 101.0], "3x3": [11.0, 1110.0]}),
    "norm_eps": (normed_one, {1e-5: 158.11, 2e-5: 141.42}),
    "res5_stride": (spread_of_res5, {1: (14, [0, 2, 4, 6, 8, 10, 12]), 2: (7, [1, 3, 5])}),
    "res5_dilation": (spread_of_res5, {1: (14, [3, 4, 5, 6, 7, 8, 9]), 2: (14, [0, 2, 4, 6, 8, 10, 12])}),
    "anchor_sides": (
        lambda conventions: anchors(conventions, (64.0,), (0.5,)),
        {"exact": [[-45.255, -22.627, 45.255, 22.627]], "rounded": [[-46.0, -24.0, 46.0, 24.0]]},
    ),
    "anchor_order": (
        anchor_widths,
        {"size-major": [32.0, 16.0, 64.0, 32.0], "ratio-major": [32.0, 64.0, 16.0, 32.0]},
    ),
    "anchor_offset": (
        lambda conventions: anchors(conventions, (16.0,), (1.0,)),
        {0.0: [[-8.0, -8.0, 8.0, 8.0]], 0.5: [[0.0, 0.0, 16.0, 16.0]]},
    ),
    # Decoding does not take the last pixel off again. IoU 8/18 against 9/19.
    "box_sides": (
        one_pixel,
        {
            "x2-x1": ([-8.0, -8.0, 8.0, 8.0], [-8.0, -8.0, 8.0, 8.0], [], [0, 1]),
            "x2-x1+1": ([-8.0, -8.0, 7.0, 7.0], [-8.0, -8.0, 8.0, 8.0], [0], [0]),
        },
    ),
    "box_clip": (clipped, {"edge": [0.0, 0.0, 200.0, 100.0], "last-pixel": [0.0, 0.0, 199.0, 99.0]}),
    "delta_cap": (
        lambda conventions: decoded_anchor(conventions, GROWTH)[2] - decoded_anchor(conventions, GROWTH)[0],
        {DELTA_CAP: pytest.approx(16 * 62.5, rel=1e-5), None: pytest.approx(16 * math.exp(5), rel=1e-5)},
    ),
    "proposal_delta_weights": (
        lambda conventions: decoded_anchor(conventions, [1.0, 1.0, math.log(4), 0.0]),
        # Shifts of 16 pixels and 4 times as wide; half of 16, a quarter of 16, and twice as wide.
        {(1.0, 1.0, 1.0, 1.0): [-16.0, 8.0, 48.0, 24.0], (2.0, 4.0, 2.0, 1.0): [-8.0, -4.0, 24.0, 12.0]},
    ),
    "region_delta_weights": (
        lambda conventions: moved_region(conventions, 100, [20.0, 20.0, 30.0, 30.0], [1.0, 2.0, 0.0, 0.0]),
        {(1.0, 1.0, 1.0, 1.0): [30.0, 40.0, 40.0, 50.0], (10.0, 10.0, 5.0, 5.0): [21.0, 22.0, 31.0, 32.0]},
    ),
    # 20 pixels from 20 on end at 40, half of which is 20; (39 / 2 - 10 + 1) from 10 on end at 20.5.
    "regression_pixels": (unmoved, {"network": 20.0, "photo": 20.5}),
    "region_deltas": (
        lambda conventions: (
            predictor_rows(replace(conventions, background="first"))["deltas"],
            BoxPredictor(TINY, conventions).bbox_pred.out_features,
        ),
        {"foreground": ([0.0, 4.0], 8), "with-background": ([4.0, 8.0], 12)},
    ),
    # Logistic function of 1 - 0 and of 0 - 2.
    "objectness": (objectness, {"logit": [1.0, 0.0], "sigmoid": [0.731, 0.5], "pair-softmax": [0.731, 0.119]}),
    "proposal_filter": (
        filtered,
        {
            "topk-clip": ([0, 1], [0]),
            "topk-clip-nonempty": ([], [0]),
            "clip-side-topk": ([1, 2], [0]),
            "clip-nonempty-side-topk": ([2, 3], []),
        },
    ),
    # Sides of 20 and 40 where an input pixel is half a photo pixel.
    "min_proposal_side": (
        lambda conventions: choose([[0.0, 0.0, 20.0, 20.0], [50.0, 0.0, 90.0, 40.0]], conventions, factor=2.0),
        {0.0: [0, 1], 16.0: [1]},
    ),
    "nms_comparison": (overlapping_half, {">": [0, 1], ">=": [0]}),
    # Half a cell rounds up to cell 1 (to even: 0) and 13.5 to 14; samples lie half a bin of 13/14 cells inside.
    # Samples of the first bin lie at column 1.429, or at 0.964 and 1.893, between squares; or at 0.464 and 1.393.
    "region_pool": (
        pooled_squares,
        {
            "roi-pool": [4.0, 196.0],
            "roi-align-1": [2.286, 158.286],
            "roi-align-0": [2.321, 158.321],
            "roi-align-2-aligned": [1.321, 146.179],
        },
    ),
    "region_feature": (feature, {"mean": 6.5}),
    "background": (
        lambda conventions: predictor_rows(replace(conventions, region_deltas="with-background")),
        {
            "last": {"classes": [5.0, 1.0, 2.0], "attributes": [7.0, 3.0, 4.0], "deltas": [0.0, 4.0]},
            "first": {"classes": [1.0, 2.0, 5.0], "attributes": [7.0, 3.0, 4.0], "deltas": [4.0, 8.0]},
        },
    ),
    "no_attribute": (
        lambda conventions: predictor_rows(conventions)["attributes"],
        {"last": [7.0, 3.0, 4.0], "first": [3.0, 4.0, 7.0], "none": [7.0, 3.0, -10_000.0]},
    ),
    "attribute_class": (embedded_class, {"argmax-with-background": [30.0, 30.0, 30.0], "kept": [20.0, 20.0, 20.0]}),
    # exp(0) of 1 + 1, and of 1 + 1 + 2.
    "attribute_softmax": (attribute_score, {"foreground": 0.5, "all": 0.25}),
    "blocks": (negative_sum, {"post-activation": 0.0, "pre-activation": -1.0}),
    "moved_edge": (
        lambda conventions: decoded_anchor(conventions, [0.0] * 4),
        {"center+half": [-8.0, -8.0, 8.0, 8.0], "center+half-1": [-8.0, -8.0, 7.0, 7.0]},
    ),
    "nms_sides": (
        lambda conventions: choose(HALVES, replace(conventions, box_sides="x2-x1+1"), proposal_nms_iou=0.46),
        {"box_sides": [0], "x2-x1": [0, 1]},
    ),
}


@pytest.mark.parametrize("field, value", [(name, value) for name, case in CASES.items() for value in case[1]], ids=str)
def test_each_value_gives_what_its_rule_says(field: str, value: Any) -> None:
    probe, wanted = CASES[field]
    assert probe(replace(BASES.get(field, HF), **{field: value})) == wanted[value]


def test_every_field_and_every_word_has_a_case_that_parts_it_from_the_others() -> None:
    assert set(CASES) == {field.name for field in fields(Conventions)}
    for name, (probe, wanted) in CASES.items():
        assert set(wanted) == set(IMPLEMENTED[name]) if name in IMPLEMENTED else len(wanted) > 1, name
        got = [repr(probe(replace(BASES.get(name, HF), **{name: value}))) for value in wanted]
        assert len(set(got)) == len(wanted), f"{name}: two of its values give the same"
