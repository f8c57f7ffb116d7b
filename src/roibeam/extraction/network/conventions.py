"""Conventions of a detector, on which its numbers depend besides sizes and weights, and its selection policy, as data.

The published extractors of this network differ in two dozen quirks, each of which changes features or boxes without any
error. All are named here, recorded in the fingerprint of a store, and checked: a value this code does not compute is
refused, so a recorded convention is always the one that ran. docs/presets.md lists which system used which, and by
how much they differ.

A selection policy is the rules which regions of an image are kept; ../regions.py carries them out. No torch: a wrong
name or setting is reported at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType

from roibeam.extraction.network.config import added

DELTA_CAP = math.log(1000.0 / 16.0)  # detectron2 modeling/box_regression.py::_DEFAULT_SCALE_CLAMP


@dataclass(frozen=True)
class Conventions:
    """One extractor's rules. The defaults are those of the preset "hf".

    Numbers are free within their range; words must be among `IMPLEMENTED`. The choice and order of boxes and features
    is in `SelectionPolicy`.

    Attributes:
        channel_order: order of the network's input channels.
        pixel_mean: subtracted, in `channel_order`, grey levels 0..255.
        pixel_std: divided by, after the mean.
        exif_orientation: "applied": the photo is turned by its EXIF tag before anything else, as cv2.imread does;
            "ignored": as PIL.Image.open leaves it. Decoding does it (decode.py).
        resize: "float-bilinear": float32, half-pixel centres, no antialiasing (torch.nn.functional.interpolate);
            "cv2-linear": cv2.resize of float32 by one factor, no antialiasing; "pil-bilinear": PIL on 8-bit pixels,
            antialiased when it shrinks.
        resize_mean: mean removed "after" the resize, or "before" it.
        resized_edge_rounding: "half-up": int(v + 0.5) for each edge; "half-to-even": as cv2 rounds; "truncate":
            int(v), the short edge being whole already.
        long_edge_rule: rule if the long edge would pass its limit. "rescale-both": if the scaled long edge
            is over the limit, both float edges shrink; "rounded": the scaled long edge is rounded before the test, then
            the factor is limit / long edge; "short-truncated": the short edge becomes int(limit * short / long);
            "short-rounded": it becomes round(limit * short / long).
        padding_multiple: zeros are added at the right and bottom, after normalising, up to a multiple of this; 1 adds
            none. Padding changes the map inside the photo too.
        box_scale: scale of boxes back to the photo. "per-axis": times width/width' and height/height';
            "one-factor": divided by the factor of the resize.
        blocks: "post-activation": norm and ReLU after each convolution and after the sum (ResNet); "pre-activation":
            before each (ResNet v2), and a norm of the pixels.
        stem_pool: 3x3 max-pool, stride 2. "pad-0-ceil": sizes rounded up (Caffe); "pad-1-floor": torchvision.
        stride_conv: a stage's stride is in the "1x1" convolution that opens its first block, or in the "3x3" after it.
        norm_eps: of the frozen batch norms, inside the square root.
        res5_stride, res5_dilation: of the last stage, on the pooled region.
        anchor_sides: "exact": square roots not rounded; "rounded": those of a 16 pixel box rounded to whole pixels,
            then scaled (Caffe).
        anchor_order: index of an anchor in its cell: "size-major", size * ratios + ratio, or "ratio-major".
        anchor_offset: centre of a cell's anchors, in strides; 0 is the cell's corner, 0.5 its middle.
        box_sides: a box is "x2-x1" wide, or "x2-x1+1": the last pixel counts (Caffe); also in every NMS of proposals.
        moved_edge: far edge of a box moved by deltas: "center+half", or "center+half-1", which takes the last pixel
            off again.
        box_clip: boxes end at the "edge", [0, width] x [0, height], or at the "last-pixel", width - 1 and height - 1.
        delta_cap: largest dw, dh before exp; None for no limit.
        proposal_delta_weights, region_delta_weights: the deltas dx dy dw dh are divided by these.
        regression_pixels: regions are regressed and clipped in pixels of the "network" input, or of the "photo", where
            "x2-x1+1" and "last-pixel" are other sizes.
        region_deltas: rows of the box regression: "foreground" classes only, or "with-background", whose four rows
            stand at the place of `background`.
        objectness: "logit": one number per anchor, "sigmoid": its sigmoid in float32, in which large ones tie;
            "pair-softmax": background numbers of all anchors, then foreground
            ones, and the softmax of the pair decides.
        proposal_filter: "topk-clip": best anchors first, then clipped; "topk-clip-nonempty": best anchors first, then
            clipped, then those with a side of `min_proposal_side` or less dropped; "clip-side-topk": clipped, sides
            under the minimum dropped, then the best; "clip-nonempty-side-topk": clipped, x2 <= x1 or y2 <= y1 dropped,
            sides of the minimum or less dropped, then the best.
        min_proposal_side: photo pixels.
        nms_comparison: a proposal is suppressed when its IoU is ">" or ">=" the threshold, in float32.
        nms_sides: sides of boxes in that IoU: those of "box_sides", or "x2-x1" for any.
        region_pool: "roi-pool": max over bins, edges rounded half away from zero, bin edges in float32; "roi-align-1":
            one bilinear sample in each bin, no half-pixel shift, sides of at least one cell; "roi-align-0": as many
            samples in each bin as it has cells, rounded up, and their mean; "roi-align-2-aligned": the mean of two by
            two, boxes moved by half a cell, sides as they are (detectron2's ROIAlignV2).
        region_feature: "mean": of the last ReLU of res5 over the pooled cells.
        background: "first" or "last" row of the network's class logits and class embeddings.
        no_attribute: "first" or "last" row of the network's attribute logits, or "none": they are of attributes alone.
        attribute_class: class whose embedding the attribute head sees: "argmax-with-background", beside the feature
            of the proposal; "kept": that of the kept region, beside the feature of its kept box.
        attribute_softmax: "foreground": over the attributes without "no attribute"; "all": with it (the best attribute
            is never "no attribute").
    """

    channel_order: str = "bgr"
    pixel_mean: tuple[float, ...] = (102.9801, 115.9465, 122.7717)
    pixel_std: tuple[float, ...] = (1.0, 1.0, 1.0)
    exif_orientation: str = "applied"
    resize: str = "float-bilinear"
    resize_mean: str = "after"
    resized_edge_rounding: str = "half-up"
    long_edge_rule: str = "rescale-both"
    padding_multiple: int = 1
    box_scale: str = "per-axis"
    stem_pool: str = "pad-0-ceil"
    stride_conv: str = "1x1"
    norm_eps: float = 1e-5
    res5_stride: int = 1
    res5_dilation: int = 2
    anchor_sides: str = "exact"
    anchor_order: str = "size-major"
    anchor_offset: float = 0.0
    box_sides: str = "x2-x1"
    box_clip: str = "edge"
    delta_cap: float | None = DELTA_CAP
    proposal_delta_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    region_delta_weights: tuple[float, ...] = (10.0, 10.0, 5.0, 5.0)
    regression_pixels: str = "network"
    region_deltas: str = "foreground"
    objectness: str = "logit"
    proposal_filter: str = "topk-clip-nonempty"
    min_proposal_side: float = 0.0
    nms_comparison: str = ">"
    region_pool: str = "roi-pool"
    region_feature: str = "mean"
    background: str = "last"
    no_attribute: str = "last"
    attribute_class: str = "argmax-with-background"
    attribute_softmax: str = "foreground"
    blocks: str = added("post-activation")
    moved_edge: str = added("center+half")
    nms_sides: str = added("box_sides")

    def __post_init__(self) -> None:
        for name, choices in IMPLEMENTED.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"convention {name} is {value!r}; implemented: {', '.join(map(repr, choices))}")
        for name, count in _POSITIVE_TUPLES.items():
            _check_numbers(name, getattr(self, name), count, above_zero=True)
        _check_numbers("pixel_mean", self.pixel_mean, 3, above_zero=False)
        if not (0 <= self.norm_eps < 1 and 0 <= self.anchor_offset < 1 and 0 <= self.min_proposal_side < math.inf):
            raise ValueError(
                f"conventions: norm_eps {self.norm_eps} must be in [0, 1), "
                f"anchor_offset {self.anchor_offset} in [0, 1), min_proposal_side {self.min_proposal_side} not negative"
            )
        if self.delta_cap is not None and not 0 < self.delta_cap < math.inf:
            raise ValueError(f"convention delta_cap is {self.delta_cap}; it must be positive, or None for no limit")
        if isinstance(self.padding_multiple, bool) or not 1 <= self.padding_multiple <= 1024:
            raise ValueError(f"convention padding_multiple is {self.padding_multiple}; it must be in 1..1024")
        if self.resize == "pil-bilinear" and self.resize_mean == "before":
            raise ValueError("convention resize_mean is 'before', but pil-bilinear resizes 8-bit pixels; set 'after'")
        if self.resized_edge_rounding == "truncate" and not self.long_edge_rule.startswith("short-"):
            raise ValueError("convention resized_edge_rounding 'truncate' goes with a long_edge_rule of the short edge")

    @property
    def plus_one_sides(self) -> bool:
        """Whether a box is x2 - x1 + 1 wide, by `box_sides`."""
        return self.box_sides == "x2-x1+1"

    @property
    def last_pixel(self) -> bool:
        """Whether boxes end at the last pixel, by `box_clip`."""
        return self.box_clip == "last-pixel"


IMPLEMENTED: MappingProxyType[str, tuple[object, ...]] = MappingProxyType(
    {
        "channel_order": ("bgr", "rgb"),
        "exif_orientation": ("applied", "ignored"),
        "resize": ("float-bilinear", "cv2-linear", "pil-bilinear"),
        "resize_mean": ("after", "before"),
        "resized_edge_rounding": ("half-up", "half-to-even", "truncate"),
        "long_edge_rule": ("rescale-both", "rounded", "short-truncated", "short-rounded"),
        "box_scale": ("per-axis", "one-factor"),
        "stem_pool": ("pad-0-ceil", "pad-1-floor"),
        "stride_conv": ("1x1", "3x3"),
        "res5_stride": (1, 2),
        "res5_dilation": (1, 2),
        "anchor_sides": ("exact", "rounded"),
        "anchor_order": ("size-major", "ratio-major"),
        "box_sides": ("x2-x1", "x2-x1+1"),
        "box_clip": ("edge", "last-pixel"),
        "regression_pixels": ("network", "photo"),
        "region_deltas": ("foreground", "with-background"),
        "blocks": ("post-activation", "pre-activation"),
        "moved_edge": ("center+half", "center+half-1"),
        "nms_sides": ("box_sides", "x2-x1"),
        "objectness": ("logit", "pair-softmax", "sigmoid"),
        "proposal_filter": ("topk-clip-nonempty", "topk-clip", "clip-side-topk", "clip-nonempty-side-topk"),
        "nms_comparison": (">", ">="),
        "region_pool": ("roi-pool", "roi-align-1", "roi-align-0", "roi-align-2-aligned"),
        "region_feature": ("mean",),
        "background": ("last", "first"),
        "no_attribute": ("last", "first", "none"),
        "attribute_class": ("argmax-with-background", "kept"),
        "attribute_softmax": ("foreground", "all"),
    }
)
_POSITIVE_TUPLES = MappingProxyType({"pixel_std": 3, "proposal_delta_weights": 4, "region_delta_weights": 4})


def _check_numbers(name: str, values: object, count: int, *, above_zero: bool) -> None:
    if (
        not isinstance(values, tuple)
        or len(values) != count
        or not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
        or (above_zero and min(values) <= 0)
    ):
        kind = "positive numbers" if above_zero else "numbers"
        raise ValueError(f"convention {name} is {values!r}; it must be a tuple of {count} {kind}")


# huggingface/transformers-research-projects lxmert/modeling_frcnn.py, whose anchors and box rules are those of
# detectron2. Its config files state "format: RGB" and "res5_dilation: 1"; it computes BGR and dilation 2.
_HF = Conventions()
# peteanderson80/bottom-up-attention: lib/fast_rcnn/test.py (resize), lib/rpn (anchors, proposals), its GPU NMS.
_CAFFE = Conventions(
    resize="cv2-linear",
    resize_mean="before",
    resized_edge_rounding="half-to-even",
    long_edge_rule="rounded",
    box_scale="one-factor",
    anchor_sides="rounded",
    anchor_order="ratio-major",
    anchor_offset=0.5,
    box_sides="x2-x1+1",
    box_clip="last-pixel",
    delta_cap=None,
    region_delta_weights=(1.0, 1.0, 1.0, 1.0),
    regression_pixels="photo",
    region_deltas="with-background",
    objectness="pair-softmax",
    proposal_filter="clip-side-topk",
    min_proposal_side=16.0,
    background="first",
    no_attribute="first",
    attribute_softmax="all",
)
_MILVLG = replace(_CAFFE, delta_cap=DELTA_CAP, proposal_filter="clip-nonempty-side-topk", nms_comparison=">=")
# MILVLG's "d2" mode: bua/d2 and configs/d2 over detectron2's defaults; the photo as utils/extract_d2features.py has it.
_MILVLG_D2 = replace(
    _HF,
    pixel_mean=(103.53, 116.28, 123.675),
    resize="cv2-linear",
    resized_edge_rounding="half-to-even",
    long_edge_rule="rounded",
    box_scale="one-factor",
    stem_pool="pad-1-floor",
    res5_stride=2,
    res5_dilation=1,
    region_pool="roi-align-2-aligned",
    no_attribute="none",
)
# facebookresearch/grid-feats-vqa on detectron2, configs/R-50-grid.yaml; res5 as its extraction sets it.
_GRID = replace(
    _HF,
    pixel_mean=(103.53, 116.28, 123.675),
    resize="pil-bilinear",
    stem_pool="pad-1-floor",
    res5_stride=2,
    res5_dilation=1,
)

CONVENTIONS = MappingProxyType(
    {
        "hf": _HF,
        # airsplay/py-bottom-up-attention: detectron2 with the converted Caffe weights.
        "d2": replace(_HF, resize="pil-bilinear"),
        "caffe": _CAFFE,
        # MILVLG/bottom-up-attention.pytorch, "caffe" mode: bua/caffe, with its own NMS on the CPU.
        "milvlg": _MILVLG,
        # The same code's R152, a ResNet v2 whose first norm takes the place of a mean.
        "milvlg-r152": replace(
            _MILVLG,
            pixel_mean=(0.0, 0.0, 0.0),
            blocks="pre-activation",
            stride_conv="3x3",
            norm_eps=2e-5,
            res5_stride=2,
            res5_dilation=1,
        ),
        # microsoft/scene_graph_benchmark: maskrcnn_benchmark, scene_graph_benchmark/AttrRCNN.py.
        "vinvl": replace(
            _CAFFE,
            pixel_mean=(103.53, 116.28, 123.675),
            exif_orientation="ignored",
            resize="pil-bilinear",
            resize_mean="after",
            resized_edge_rounding="truncate",
            long_edge_rule="short-rounded",
            box_scale="per-axis",
            stem_pool="pad-1-floor",
            stride_conv="3x3",
            norm_eps=0.0,
            res5_stride=2,
            res5_dilation=1,
            moved_edge="center+half-1",
            delta_cap=DELTA_CAP,
            region_delta_weights=(10.0, 10.0, 5.0, 5.0),
            regression_pixels="network",
            objectness="sigmoid",
            proposal_filter="topk-clip",
            min_proposal_side=0.0,
            nms_sides="x2-x1",
            region_pool="roi-align-0",
            attribute_class="kept",
        ),
        "milvlg-d2": _MILVLG_D2,
        "milvlg-d2-x152": replace(_MILVLG_D2, stride_conv="3x3"),
        "grid-r50": _GRID,
        "grid-x101": replace(_GRID, stride_conv="3x3", pixel_std=(57.375, 57.12, 58.395)),
        "grid-x152": replace(_GRID, stride_conv="3x3"),
        # jackroos/VL-BERT common/fast_rcnn.py, end to end: given boxes only, so proposals are open.
        "vlbert-e2e": replace(
            _HF,
            exif_orientation="ignored",
            resize="pil-bilinear",
            resized_edge_rounding="truncate",
            long_edge_rule="short-truncated",
            stem_pool="pad-1-floor",
            box_clip="last-pixel",
            region_pool="roi-align-1",
        ),
        # rowanz/r2c utils/detector.py and dataloaders/box_utils.py, which VisualBERT takes for VCR: torchvision's
        # ResNet-50 of ImageNet, whose last stage has no stride. There the norms take the statistics of the batch.
        "r2c": replace(
            _HF,
            channel_order="rgb",
            pixel_mean=(123.675, 116.28, 103.53),
            pixel_std=(58.395, 57.12, 57.375),
            exif_orientation="ignored",
            resize="pil-bilinear",
            resized_edge_rounding="half-to-even",
            long_edge_rule="rescale-both",
            stem_pool="pad-1-floor",
            box_clip="edge",
            region_pool="roi-align-0",
            res5_dilation=1,
        ),
    }
)

# Sizes in `CONFIGS` that one code base alone has -> its conventions.
CONVENTIONS_OF_SIZES = MappingProxyType(
    {
        "r2c-r50": "r2c",
        "vg-r152-c4-600": "milvlg-r152",
        "vinvl-x152-c4": "vinvl",
        **dict.fromkeys(("milvlg-d2-r50", "milvlg-d2-r101"), "milvlg-d2"),
        "milvlg-d2-x152": "milvlg-d2-x152",
        **{name: name for name in ("grid-r50", "grid-x101", "grid-x152")},
    }
)

# Fields that do not affect given boxes, so that the fingerprint of their features leaves them out. (Two more,
# anchor_order and objectness, order the weights.)
PROPOSAL_FIELDS = (
    "anchor_sides",
    "anchor_offset",
    "proposal_delta_weights",
    "proposal_filter",
    "min_proposal_side",
    "nms_comparison",
    "nms_sides",
)

# Published short edge and limit of the long edge, pixels; sizes are in `DetectorConfig`.
PUBLISHED_EDGES = MappingProxyType(
    {
        "hf": ((800, 1333),),
        "d2": ((800, 1333), (600, 1000)),  # its notebooks, its COCO script
        "caffe": ((600, 1000),),
        "milvlg": ((600, 1000),),
        **{name: ((600, 1000),) for name in ("milvlg-r152", "milvlg-d2", "milvlg-d2-x152")},
        "vinvl": ((600, 1000),),
        **{name: ((600, 1000),) for name in ("grid-r50", "grid-x101", "grid-x152")},
        "vlbert-e2e": ((600, 1000),),
        "r2c": ((384, 768),),
    }
)


@dataclass(frozen=True)
class SelectionPolicy:
    """Number, choice and order of kept regions, and the choice between their two boxes.

    The feature kept is always that of the proposal.

    Attributes:
        method: "classwise-max": regions judged by their best class after an NMS inside each class; "single-nms": one
            NMS over the best class of each; "classwise": an NMS inside each class, after which a proposal may give a
            region for several classes. The last keeps scores above `min_score` alone, and halves it up to ten times
            while fewer than `min_regions` are left.
        kept_box: "proposal" (the box the feature was pooled from) or "regressed" (the proposal moved by its best class,
            so that box and feature differ: the ports do this).
        nms_thresholds: IoU above which the lower-scored box is suppressed; "single-nms" tries them in turn.
        nms_comparison: ">" or ">=": relation of an IoU to the threshold.
        legacy_plus_one_areas: whether the NMS counts a box as x2 - x1 + 1 wide, in photo pixels.
        when_too_few: rule of "single-nms" if no threshold leaves `min_regions`: "no-nms", nothing is suppressed
            (the Hugging Face port then repeats the previous image's regions, or stops), or "last-threshold"
            (detectron2).
        min_score: score a region needs, 0..1. "single-nms" has none (0), or with one threshold has, and regions of
            less than a hundredth of it take no part.
        min_regions: number kept even if their score is lower. A photo with fewer proposals gives all of them.
        max_regions: number of the best ones kept if there are more.
        order: "score", best first, or "published": by proposal, unless `min_regions` or `max_regions` had to decide
            (the tool's own order), of "classwise" by class, then score. "single-nms" is by score.
        nms_boxes: boxes that the NMS compares: "usual", the proposals for "classwise-max" and the regressed ones for
            "single-nms"; "proposal"; or "class", for each class the box regressed for it.
        region_class: class and score of a region: its "best", or the best "surviving" the NMS inside each class, by
            which the box is regressed too; a region that survives in none is dropped.
    """

    method: str = "classwise-max"
    kept_box: str = "proposal"
    nms_thresholds: tuple[float, ...] = (0.3,)
    nms_comparison: str = ">"
    legacy_plus_one_areas: bool = True
    when_too_few: str = "no-nms"
    min_score: float = 0.2
    min_regions: int = 10
    max_regions: int = 100
    order: str = "published"
    nms_boxes: str = added("usual")
    region_class: str = added("best")

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"selection {name} {getattr(self, name)!r}; implemented: {', '.join(choices)}")
        if not isinstance(self.nms_thresholds, tuple) or not self.nms_thresholds:
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds!r}; it must be a tuple of IoUs")
        if not all(0 < iou <= 1 for iou in self.nms_thresholds):
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; each must be above 0 and at most 1")
        if list(self.nms_thresholds) != sorted(set(self.nms_thresholds)):
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; they must ascend")
        if (self.method != "single-nms" or self.min_score) and len(self.nms_thresholds) != 1:
            what = self.method if self.method != "single-nms" else "single-nms with a min_score"
            raise ValueError(f"selection nms_thresholds {self.nms_thresholds}; {what} takes exactly one")
        if self.method == "single-nms" and self.legacy_plus_one_areas:
            raise ValueError("selection single-nms knows no +1: set legacy_plus_one_areas=False")
        if self.method == "single-nms" and self.region_class == "surviving":
            raise ValueError("selection single-nms knows one class of a region: set region_class='best'")
        if self.method == "classwise" and self.region_class != "surviving":
            raise ValueError("selection classwise keeps what survives: set region_class='surviving'")
        if self.method == "single-nms" and self.order != "score":
            raise ValueError("selection single-nms keeps the best first: set order='score'")
        if self.method != "single-nms" and self.when_too_few != "no-nms":
            raise ValueError(f"selection {self.method} has one threshold: leave when_too_few='no-nms'")
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"selection min_score {self.min_score}; it must be in 0..1")
        if not 0 <= self.min_regions <= self.max_regions or self.max_regions < 1:
            raise ValueError(
                f"selection keeps {self.min_regions}..{self.max_regions} regions; it must be 0 <= min <= max, max >= 1"
            )


_CHOICES = MappingProxyType(
    {
        "method": ("classwise-max", "single-nms", "classwise"),
        "kept_box": ("proposal", "regressed"),
        "nms_comparison": (">", ">="),
        "when_too_few": ("no-nms", "last-threshold"),
        "order": ("published", "score"),
        "nms_boxes": ("usual", "proposal", "class"),
        "region_class": ("best", "surviving"),
    }
)

# peteanderson80/bottom-up-attention tools/generate_tsv.py.
_BUTD = SelectionPolicy()
# huggingface lxmert/modeling_frcnn.py::do_nms with the threshold list and limits of goldens/detector.
_HF_SELECTION = SelectionPolicy(
    method="single-nms",
    kept_box="regressed",
    nms_thresholds=(0.5, 0.6, 0.7, 0.8, 0.9),
    legacy_plus_one_areas=False,
    min_score=0.0,
    min_regions=10,
    max_regions=36,
    order="score",
)
# airsplay/py-bottom-up-attention demo/detectron2_mscoco_proposal_maxnms.py.
_D2 = replace(_HF_SELECTION, nms_thresholds=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), when_too_few="last-threshold")
# microsoft/scene_graph_benchmark roi_heads/box_head/inference.py, NMS_FILTER 1, TEST.IGNORE_BOX_REGRESSION True.
_VINVL = replace(_BUTD, legacy_plus_one_areas=False, order="score", region_class="surviving")
_VINVL_0 = replace(
    _VINVL, method="classwise", kept_box="regressed", nms_boxes="class", nms_thresholds=(0.5,), order="published"
)
# detectron2 modeling/roi_heads/fast_rcnn.py::fast_rcnn_inference with its default limits.
_MILVLG_D2_SELECTION = replace(_VINVL_0, min_score=0.05, min_regions=0, order="score")

DETECTIONS = "detections"
SELECTIONS = MappingProxyType(
    {
        "butd-10-100": _BUTD,
        "butd-36": replace(_BUTD, min_regions=36, max_regions=36),
        "milvlg-10-100": replace(_BUTD, nms_comparison=">="),
        "milvlg-100": replace(_BUTD, nms_comparison=">=", min_regions=100, max_regions=100),
        "milvlg-36": replace(_BUTD, nms_comparison=">=", min_regions=36, max_regions=36),
        "milvlg-d2": _MILVLG_D2_SELECTION,
        "milvlg-d2-100": replace(_MILVLG_D2_SELECTION, min_score=0.0, nms_thresholds=(0.3,)),  # --min-max-boxes 100,100
        "hf-36": _HF_SELECTION,
        "hf-100": replace(_HF_SELECTION, max_regions=100),
        "d2-36": replace(_D2, min_regions=36, max_regions=36),
        "d2-100": replace(_D2, max_regions=100),
        # The five systems' published rules; where they have none, the rule is that of bottom-up attention.
        "vl-bert": replace(_BUTD, min_score=0.5),  # arXiv:1908.08530: score above 0.5, 10 to 100
        "vilbert": replace(_BUTD, max_regions=36),  # arXiv:1908.02265: score above a threshold, 10 to 36
        "visualbert": replace(_BUTD, min_regions=144, max_regions=144, order="score"),  # arXiv:1908.03557: 144
        # uclanlp/visualbert extract_image_features_nlvr.py keeps the best 150 proposals; 144 of them are used.
        "visualbert-nlvr2": replace(
            _BUTD, nms_thresholds=(0.5,), nms_comparison=">=", min_regions=144, max_regions=144, order="score"
        ),
        "imagebert": replace(_BUTD, min_regions=100, max_regions=100, order="score"),  # arXiv:2001.07966: 100
        "interbert": replace(_BUTD, min_regions=90, max_regions=100),  # arXiv:2003.13198: 90 to 100
        # The maskrcnn-benchmark script of vilbert-multi-task and MMF, for an X-152-FPN network, layer fc6.
        "maskrcnn-benchmark-100": replace(
            _BUTD, nms_thresholds=(0.5,), min_score=0.0, min_regions=100, max_regions=100, order="score"
        ),
        # Of a detector of another library, whose own post-processing has done its NMS: the best 10 to 100.
        DETECTIONS: SelectionPolicy(
            "single-nms", nms_thresholds=(1.0,), legacy_plus_one_areas=False, order="score", nms_boxes="proposal"
        ),
        "vinvl": _VINVL,
        # TEST.IGNORE_BOX_REGRESSION False, as its demo and MMF.
        "vinvl-demo": replace(_VINVL, kept_box="regressed", nms_boxes="class"),
        # NMS_FILTER 0, its default, and 2, whose regressed boxes are all of the first proposal there.
        "vinvl-rule-0": _VINVL_0,
        "vinvl-rule-2": replace(
            _VINVL, method="single-nms", nms_boxes="proposal", nms_thresholds=(0.5,), region_class="best"
        ),
    }
)
