"""The layouts of the head weights: each rule by small numbers, and that a layout changes no output of a detector."""

import itertools
from dataclasses import replace

import pytest
import torch
from small_networks import TINY as SMALL_FILE
from torch import Tensor

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.boxes import cell_anchors
from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.network.state import CELL_ANCHORS
from roibeam.extraction.weights.families import CAFFE_LAYOUT, D2_LAYOUT, HF_LAYOUT, HeadLayout, relayout, relayout_words
from roibeam.extraction.weights.loading import load_weights

RPN, HEAD = "proposal_generator.rpn_head.", "roi_heads.box_predictor."
TINY = replace(SMALL_FILE, anchor_sizes=(16, 32))


def one(name: str, values: object, source: HeadLayout, target: HeadLayout) -> Tensor:
    """One tensor in another layout; two sizes and three ratios of anchors."""
    state = {name: torch.tensor(values, dtype=torch.float32)}
    return relayout(state, source, target, num_sizes=2, num_ratios=3)[name]


def test_the_layouts_are_those_of_the_presets() -> None:
    assert HeadLayout.of(CONVENTIONS["hf"]) == HeadLayout.of(CONVENTIONS["d2"]) == HF_LAYOUT
    assert HeadLayout.of(CONVENTIONS["caffe"]) == HeadLayout.of(CONVENTIONS["milvlg"]) == CAFFE_LAYOUT


@pytest.mark.parametrize(
    "name, caffe, hf",
    [
        ("cls_score.bias", [9, 1, 2, 3], [1, 2, 3, 9]),
        ("cls_score.weight", [[9, 8], [1, 2], [3, 4]], [[1, 2], [3, 4], [9, 8]]),
        ("cls_embedding.weight", [[9, 8], [1, 2], [3, 4]], [[1, 2], [3, 4], [9, 8]]),
        ("attr_score.bias", [7, 1, 2], [1, 2, 7]),
        ("attr_score.weight", [[7], [1], [2]], [[1], [2], [7]]),
        ("bbox_pred.bias", [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], [10, 20, 15, 20, 50, 60, 35, 40]),
        ("bbox_pred.weight", [[0]] * 4 + [[1], [2], [3], [4]], [[10], [20], [15], [20]]),
    ],
)
def test_rows_of_classes(name: str, caffe: object, hf: object) -> None:
    assert one(HEAD + name, caffe, CAFFE_LAYOUT, HF_LAYOUT).tolist() == hf
    torch.testing.assert_close(one(HEAD + name, hf, HF_LAYOUT, CAFFE_LAYOUT), torch.tensor(caffe, dtype=torch.float32))


def test_a_row_of_no_attribute_is_dropped_or_never_counts() -> None:
    bias, weight = f"{HEAD}attr_score.bias", f"{HEAD}attr_score.weight"
    assert one(bias, [7, 1, 2], CAFFE_LAYOUT, D2_LAYOUT).tolist() == [1, 2]
    assert one(weight, [[1], [2], [7]], HF_LAYOUT, D2_LAYOUT).tolist() == [[1], [2]]
    assert one(bias, [1, 2], D2_LAYOUT, CAFFE_LAYOUT).tolist() == [-10_000, 1, 2]
    assert one(bias, [1, 2], D2_LAYOUT, HF_LAYOUT).tolist() == [1, 2, -10_000]
    assert one(weight, [[1], [2]], D2_LAYOUT, CAFFE_LAYOUT).tolist() == [[0], [1], [2]]
    assert one(bias, [1, 2], D2_LAYOUT, D2_LAYOUT).tolist() == [1, 2]
    assert relayout_words(HF_LAYOUT, D2_LAYOUT) == ["no-attribute row dropped"]
    assert relayout_words(D2_LAYOUT, HF_LAYOUT) == ["no-attribute row added"]


def test_rows_of_anchors() -> None:
    # Ratio-major: r0s0 r0s1 r1s0 r1s1 r2s0 r2s1; size-major: s0r0 s0r1 s0r2 s1r0 s1r1 s1r2.
    background, foreground = [5.0] * 6, [0.0, 1, 10, 11, 20, 21]
    name = f"{RPN}objectness_logits.bias"
    joined = one(name, background + foreground, CAFFE_LAYOUT, HF_LAYOUT)
    assert joined.tolist() == [0 - 5, 10 - 5, 20 - 5, 1 - 5, 11 - 5, 21 - 5]
    split = one(name, [0, 10, 20, 1, 11, 21], HF_LAYOUT, CAFFE_LAYOUT)
    assert split.tolist() == [0.0] * 6 + foreground
    deltas = [[anchor * 10 + k] for anchor in foreground for k in range(4)]
    moved = one(f"{RPN}anchor_deltas.weight", deltas, CAFFE_LAYOUT, HF_LAYOUT)
    assert moved[4:8].tolist() == [[100], [101], [102], [103]]
    assert torch.equal(one(f"{RPN}anchor_deltas.weight", moved.tolist(), HF_LAYOUT, CAFFE_LAYOUT), torch.tensor(deltas))
    anchors = torch.arange(24.0).view(6, 4)
    assert one(CELL_ANCHORS, anchors.tolist(), CAFFE_LAYOUT, HF_LAYOUT)[1].tolist() == anchors[2].tolist()


def test_other_tensors_pass_through_and_no_change_is_no_copy() -> None:
    state = {"backbone.res2.0.conv1.weight": torch.ones(2), f"{HEAD}cls_score.bias": torch.arange(3.0)}
    moved = relayout(state, CAFFE_LAYOUT, HF_LAYOUT, num_sizes=2, num_ratios=3)
    assert moved["backbone.res2.0.conv1.weight"] is state["backbone.res2.0.conv1.weight"]
    kept = relayout(state, CAFFE_LAYOUT, CAFFE_LAYOUT, num_sizes=2, num_ratios=3)
    assert kept[f"{HEAD}cls_score.bias"] is state[f"{HEAD}cls_score.bias"]
    assert relayout_words(HF_LAYOUT, HF_LAYOUT) == [] and len(relayout_words(CAFFE_LAYOUT, HF_LAYOUT)) == 6


LAYOUTS = [
    HeadLayout(background, no_attribute, weights, deltas, objectness, order)
    for background, no_attribute, weights, deltas, objectness, order in itertools.product(
        ("first", "last"), ("first", "last"), ((1.0,) * 4, (10.0, 10.0, 5.0, 5.0)),
        ("foreground", "with-background"), ("logit", "pair-softmax"), ("size-major", "ratio-major"),
    )
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back_from_the_layout_of_hugging_face(layout: HeadLayout) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        f"{RPN}objectness_logits.weight": (6, 3, 1, 1), f"{RPN}anchor_deltas.weight": (24, 3, 1, 1),
        f"{HEAD}cls_score.weight": (4, 3), f"{HEAD}cls_embedding.weight": (4, 2), f"{HEAD}bbox_pred.bias": (12,),
        f"{HEAD}attr_score.bias": (3,),
    }  # fmt: skip
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    there = relayout(state, HF_LAYOUT, layout, num_sizes=2, num_ratios=3)
    back = relayout(there, layout, HF_LAYOUT, num_sizes=2, num_ratios=3)
    for name, tensor in state.items():
        if name.endswith("bbox_pred.bias"):  # times ten and a tenth: one rounding each
            torch.testing.assert_close(back[name], tensor, rtol=2**-22, atol=0)
        else:
            assert torch.equal(back[name], tensor)
    # The same without the way through Hugging Face.
    other = LAYOUTS[-1 - LAYOUTS.index(layout)]
    direct = relayout(there, layout, other, num_sizes=2, num_ratios=3)
    for name, tensor in relayout(state, HF_LAYOUT, other, num_sizes=2, num_ratios=3).items():
        torch.testing.assert_close(direct[name], tensor, rtol=2**-21, atol=0)


def outputs(conventions: str) -> dict[str, Tensor]:
    """What a network of one seed says of given boxes and anchors, in units that no layout changes."""
    # Geometry of one preset, layout of another: what is compared is the weights' layout alone.
    layout = vars(HeadLayout.of(CONVENTIONS[conventions]))
    detector = Detector(TINY, replace(CONVENTIONS["hf"], **layout))
    load_weights("random:3", detector)
    feature_map = torch.rand((1, TINY.map_channels, 4, 5), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        regions = detector.roi_heads(feature_map, torch.tensor([[0.0, 0, 60, 50], [8, 8, 40, 30]]))
        logits, deltas = detector.proposal_generator.rpn_head(feature_map)
        boxes, objectness = detector.proposal_generator.score_anchors(logits, deltas)
    if detector.conventions.objectness == "logit":
        objectness = objectness.sigmoid()
    order = torch.argsort(objectness, stable=True)
    return {
        "features": regions.features,
        "class_logits": regions.class_logits,
        "attribute_logits": regions.attribute_logits,
        "region_deltas": regions.box_deltas / torch.tensor(detector.conventions.region_delta_weights),
        "objectness": objectness[order],
        "boxes": boxes[order],
    }


@pytest.mark.parametrize("conventions", ["caffe", "milvlg"])
def test_a_detector_of_another_layout_says_the_same(conventions: str) -> None:
    ours, theirs = outputs("hf"), outputs(conventions)
    for name in ("features", "class_logits", "attribute_logits"):
        assert torch.equal(ours[name], theirs[name]), name
    for name in ("region_deltas", "objectness", "boxes"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-5)


def test_the_anchors_move_with_the_order() -> None:
    hf = cell_anchors(TINY, CONVENTIONS["hf"])
    moved = relayout({CELL_ANCHORS: hf}, HF_LAYOUT, CAFFE_LAYOUT, num_sizes=2, num_ratios=3)[CELL_ANCHORS]
    assert torch.equal(moved, cell_anchors(TINY, replace(CONVENTIONS["hf"], anchor_order="ratio-major")))
