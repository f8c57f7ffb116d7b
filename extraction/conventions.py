"""What a detector's numbers depend on besides sizes and weights, as data.

The published extractors of this network differ in a dozen quirks, each of which changes features or boxes without any
error. All are named here, recorded in the fingerprint of a store, and checked: a value this code does not compute is
refused, so a recorded convention is always the one that ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

DELTA_CAP = math.log(1000.0 / 16.0)  # detectron2 modeling/box_regression.py::_DEFAULT_SCALE_CLAMP


@dataclass(frozen=True)
class Conventions:
    """One extractor's rules. The defaults are those of the preset "hf".

    Numbers are free within their range; words must be among `IMPLEMENTED`.

    Attributes:
        channel_order: order of the network's input channels.
        pixel_mean: subtracted, in `channel_order`, grey levels 0..255.
        pixel_std: divided by, after the mean.
        exif_orientation: whether the photo is turned as its EXIF tag says before anything else (decode.py does it).
        resize: "float-bilinear": float32, half-pixel centres, no antialiasing (torch.nn.functional.interpolate).
        resize_mean: "after": mean removed after the resize (Caffe removes it before).
        resized_edge_rounding: "half-up": int(v + 0.5) for each edge.
        long_edge_rule: "rescale-both": when the scaled long edge is over the limit, both float edges shrink.
        box_scale: "per-axis": boxes go back to the photo by width'/width and height'/height, two factors.
        stem_pool: "pad-0-ceil": 3x3 stride 2 max-pool without padding, sizes rounded up (Caffe).
        stride_conv: "1x1": a stage's stride is in its first 1x1 convolution and the shortcut.
        norm_eps: of the frozen batch norms, inside the square root.
        res5_stride, res5_dilation: of the last stage, on the pooled region.
        anchor_sides: "exact": square roots not rounded (Caffe rounds).
        anchor_order: "size-major": anchor index = size * ratios + ratio.
        anchor_offset: centre of a cell's anchors, in strides; 0 is the cell's corner.
        box_sides: "x2-x1": width without +1.
        box_clip: "edge": boxes clipped to [0, width] x [0, height] (Caffe: to width - 1, height - 1).
        delta_cap: largest dw, dh before exp.
        proposal_delta_weights, region_delta_weights: the deltas dx dy dw dh are divided by these.
        objectness: "logit": one number per anchor (Caffe: a pair through softmax).
        proposal_filter: "topk-clip-nonempty": best anchors first, then clipped, then empty ones dropped.
        nms_comparison: ">": suppressed when IoU is above the threshold, kept when equal.
        region_pool: "roi-pool": max over bins, edges rounded half away from zero, bin edges in float32.
        region_feature: "mean": of the last ReLU of res5 over the pooled cells.
        background: "last": row of the background class in the network's class logits.
        no_attribute: "last": row of "no attribute" in the network's attribute logits.
        attribute_class: "argmax-with-background": class whose embedding the attribute head sees.
        attribute_softmax: "foreground": over the attributes without "no attribute".

    Raises:
        ValueError: naming the field and what is implemented.
    """

    channel_order: str = "bgr"
    pixel_mean: tuple[float, ...] = (102.9801, 115.9465, 122.7717)
    pixel_std: tuple[float, ...] = (1.0, 1.0, 1.0)
    exif_orientation: str = "applied"
    resize: str = "float-bilinear"
    resize_mean: str = "after"
    resized_edge_rounding: str = "half-up"
    long_edge_rule: str = "rescale-both"
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
    delta_cap: float = DELTA_CAP
    proposal_delta_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    region_delta_weights: tuple[float, ...] = (10.0, 10.0, 5.0, 5.0)
    objectness: str = "logit"
    proposal_filter: str = "topk-clip-nonempty"
    nms_comparison: str = ">"
    region_pool: str = "roi-pool"
    region_feature: str = "mean"
    background: str = "last"
    no_attribute: str = "last"
    attribute_class: str = "argmax-with-background"
    attribute_softmax: str = "foreground"

    def __post_init__(self) -> None:
        for name, choices in IMPLEMENTED.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"convention {name} is {value!r}; implemented: {', '.join(map(repr, choices))}")
        for name, count in _POSITIVE_TUPLES.items():
            _check_numbers(name, getattr(self, name), count, above_zero=True)
        _check_numbers("pixel_mean", self.pixel_mean, 3, above_zero=False)
        if not (0 < self.norm_eps < 1 and self.delta_cap > 0 and 0 <= self.anchor_offset < 1):
            raise ValueError(
                f"conventions: norm_eps {self.norm_eps} must be in (0, 1), delta_cap {self.delta_cap} positive, "
                f"anchor_offset {self.anchor_offset} in [0, 1)"
            )


IMPLEMENTED: MappingProxyType[str, tuple[object, ...]] = MappingProxyType(
    {
        "channel_order": ("bgr",),
        "exif_orientation": ("applied",),
        "resize": ("float-bilinear",),
        "resize_mean": ("after",),
        "resized_edge_rounding": ("half-up",),
        "long_edge_rule": ("rescale-both",),
        "box_scale": ("per-axis",),
        "stem_pool": ("pad-0-ceil",),
        "stride_conv": ("1x1",),
        "res5_stride": (1, 2),
        "res5_dilation": (1, 2),
        "anchor_sides": ("exact",),
        "anchor_order": ("size-major",),
        "box_sides": ("x2-x1",),
        "box_clip": ("edge",),
        "objectness": ("logit",),
        "proposal_filter": ("topk-clip-nonempty",),
        "nms_comparison": (">",),
        "region_pool": ("roi-pool",),
        "region_feature": ("mean",),
        "background": ("last",),
        "no_attribute": ("last",),
        "attribute_class": ("argmax-with-background",),
        "attribute_softmax": ("foreground",),
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


CONVENTIONS = MappingProxyType(
    {
        # huggingface/transformers-research-projects lxmert/modeling_frcnn.py, whose anchors and box rules are those of
        # detectron2. Its config files say "format: RGB" and "res5_dilation: 1"; what it does is BGR and dilation 2.
        "hf": Conventions(),
    }
)
