"""Sizes of networks: detectors of the family Faster R-CNN ResNet-C4 with an attribute head, and whole-photo networks.

The latter give the feature of a whole photo, by name; `global_feature.py` runs them. No torch.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any

# res2, res3, res4, res5. The published networks have 50 to 152 layers; 26 makes a small one that trains on a CPU.
BLOCKS_PER_STAGE = MappingProxyType({26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)})
FEATURE_STRIDE = 16  # network-input pixels per cell of the res4 map
CPU_REGION_CHUNK = 16  # regions that go through res5 at once by default
POOLED_CELLS = 14  # cells of a pooled region each way, in the published networks
# Far beyond every network of the family, and within a machine's memory: a configuration may be a stranger's.
_MOST = MappingProxyType(
    {
        "base_channels": 1024, "rpn_hidden_channels": 16384, "groups": 1024, "width_per_group": 1024,
        "pooled_cells": 64, "proposals_before_nms": 1_000_000, "short_edge": 16384, "long_edge": 16384,
        "region_chunk": 65536,
    }
)  # fmt: skip
_MOST_ANCHORS = 1000  # at one cell
_MOST_CELLS = 64  # of a grid, each way


def added(default: Any) -> Any:
    """A field that came after stores and detectors had been written: while it has its default, it is in no fingerprint
    and no file, so that theirs stay what they were."""
    return dataclasses.field(default=default, metadata={"added": True})


def written_settings(settings: Any) -> dict[str, Any]:
    """Fields of a dataclass for a fingerprint or a file; those that are `added` only where they differ from their
    default."""
    values = asdict(settings)
    for each in fields(settings):
        if "added" in each.metadata and values[each.name] == each.default:
            del values[each.name]
    return values


def check_counts(settings: Any, *, from_0: Collection[str] = ()) -> None:
    """Raises ValueError for a field of type int that is no whole number of at least 1, or 0."""
    for field in fields(settings):
        value, least = getattr(settings, field.name), int(field.name not in from_0)
        if field.type == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{field.name} is {value!r}; it must be a whole number of at least {least}")


def check_proposals(before_nms: int, after_nms: int) -> None:
    """Raises ValueError where fewer proposals reach the suppression than shall leave it."""
    if before_nms < after_nms:
        raise ValueError(f"proposals_before_nms {before_nms} is less than proposals_after_nms {after_nms}")


@dataclass(frozen=True)
class DetectorConfig:
    """Sizes of a detector. Its arithmetic (channel order, rounding, box rules) is in `Conventions`, its choice of
    regions in `SelectionPolicy`.

    Attributes:
        depth: 26, 50, 101 or 152, layers of the ResNet.
        base_channels: channels of the stem (64 in the published networks); the outputs of the stages are multiples:
            res4 gives 16 x base, a region feature has 32 x base numbers.
        num_classes: foreground classes, background not counted; 0 for a network without proposals and heads, for
            given boxes alone.
        num_attributes: attributes, "no attribute" not counted; 0 for a network without an attribute head.
        anchor_sizes: square roots of the anchors' areas, network-input pixels.
        anchor_ratios: height / width of the anchors.
        rpn_hidden_channels: width of the proposal network's 3x3 convolution.
        pooled_cells: cells of a pooled region each way; 14 in the published networks, 7 makes their last stage four
            times as quick.
        proposals_before_nms: best-scored anchors that reach the proposal NMS.
        proposals_after_nms: proposals that get a feature.
        proposal_nms_iou: IoU above which the lower-scored of two proposals is dropped.
        short_edge: pixels the short edge of the photo is resized to ...
        long_edge: ... unless the long edge would get longer than this.
        grid: "" for regions; else the cells of the last stage on the whole map are the regions of a photo: "all" of
            them, or "7x7": the means over as many bins, rows by columns. Without classes.
        groups: of each 3x3 convolution; 32 in a ResNeXt.
        width_per_group: channels of a group in res2, twice as many in each later stage. None: base_channels, those of
            a ResNet of one group; 8 in the published ResNeXts.
        region_chunk: regions that go through res5 at once, a multiple of 16; the last chunk is padded with zeros, so
            that a region's feature does not depend on how many others there are. Changes features in the last digits
            only (`numerics` of a fingerprint), 0.1 GB of memory per 16 regions at true size. None: 16 on a CPU, for its
            caches, and what suits the mode on a GPU (`Mode.regions_at_once`).
    """

    depth: int = 101
    base_channels: int = 64
    num_classes: int = 1600
    num_attributes: int = 400
    anchor_sizes: tuple[float, ...] = (64, 128, 256, 512)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    rpn_hidden_channels: int = 512
    pooled_cells: int = POOLED_CELLS
    proposals_before_nms: int = 6000
    proposals_after_nms: int = 300
    proposal_nms_iou: float = 0.7
    short_edge: int = 800
    long_edge: int = 1333
    region_chunk: int | None = None
    grid: str = added("")
    groups: int = added(1)
    width_per_group: int | None = added(None)

    def __post_init__(self) -> None:
        if self.depth not in BLOCKS_PER_STAGE:
            raise ValueError(f"depth is {self.depth!r}; it must be one of {sorted(BLOCKS_PER_STAGE)}")
        check_counts(self, from_0=("num_classes", "num_attributes"))
        for name in ("num_classes", "num_attributes"):
            if getattr(self, name) > 65534:
                got = reprlib.repr(getattr(self, name))
                raise ValueError(f"{name} is {got}; records store ids in 16 bits, so at most 65534")
        if self.grid and self.grid_cells is None and self.grid != "all":
            raise ValueError(f"grid is {self.grid!r}; it must be 'all' or such as '7x7', at most 64x64")
        if self.grid and self.num_classes:
            raise ValueError(f"num_classes is {self.num_classes} with grid {self.grid!r}, whose cells have none; set 0")
        width = self.width_per_group
        if width is not None and (isinstance(width, bool) or not isinstance(width, int) or width < 1):
            raise ValueError(f"width_per_group is {width!r}; it must be a whole number of at least 1, or None")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if isinstance(value, int) and value > most:
                raise ValueError(f"{name} is {reprlib.repr(value)}; it must be at most {most:,}")
        if self.num_attributes and not self.num_classes:
            raise ValueError(f"num_attributes is {self.num_attributes} beside no classes; set it to 0 too")
        for name in ("anchor_sizes", "anchor_ratios"):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not values or not all(0 < value < 1e6 for value in values):
                raise ValueError(
                    f"{name} is {reprlib.repr(values)}; it must be a tuple of one or more positive numbers"
                )
        if self.num_anchors > _MOST_ANCHORS:
            raise ValueError(f"{self.num_anchors:,} anchors at each cell; there must be at most {_MOST_ANCHORS:,}")
        if not 0 < self.proposal_nms_iou <= 1:
            raise ValueError(f"proposal_nms_iou is {self.proposal_nms_iou}; it must be above 0 and at most 1")
        if self.long_edge < self.short_edge:
            raise ValueError(f"long_edge {self.long_edge} is shorter than short_edge {self.short_edge}")
        check_proposals(self.proposals_before_nms, self.proposals_after_nms)
        chunk = self.region_chunk
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 16 or chunk % 16):
            # Other row counts take other code paths in the matrix kernels for the last rows: last digits differ.
            raise ValueError(f"region_chunk is {chunk!r}; it must be a multiple of 16, or None")

    @property
    def num_anchors(self) -> int:
        """Anchors at each cell of the res4 map."""
        return len(self.anchor_sizes) * len(self.anchor_ratios)

    @property
    def grid_cells(self) -> tuple[int, int] | None:
        """(rows, columns) of the bins of `grid`; None for all cells, and without a grid."""
        found = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{0,2})", self.grid)
        rows, columns = (int(found[1]), int(found[2])) if found else (0, 0)
        return (rows, columns) if found and max(rows, columns) <= _MOST_CELLS else None

    @property
    def inner_channels(self) -> int:
        """Channels of the 3x3 convolutions of res2; twice as many in each later stage."""
        return self.groups * (self.width_per_group or self.base_channels)

    @property
    def map_channels(self) -> int:
        """Channels of the res4 map."""
        return 16 * self.base_channels

    @property
    def feature_dim(self) -> int:
        """Numbers in a region feature."""
        return 32 * self.base_channels


# Fields that do not affect given boxes.
PROPOSAL_SIZES = ("proposals_before_nms", "proposals_after_nms", "proposal_nms_iou")

_MILVLG_D2 = DetectorConfig(
    depth=50,
    anchor_sizes=(32, 64, 128, 256, 512),
    rpn_hidden_channels=1024,
    proposals_after_nms=1000,
    short_edge=600,
    long_edge=1000,
)
_GRID_X101 = DetectorConfig(
    num_classes=0, num_attributes=0, short_edge=600, long_edge=1000, grid="all", groups=32, width_per_group=8
)
CONFIGS = MappingProxyType(
    {
        # The network of bottom-up attention at the sizes of its Hugging Face and detectron2 ports.
        "vg-r101-c4": DetectorConfig(),
        # The same at the size of the original and of MILVLG's port, which the weights were trained with.
        "vg-r101-c4-600": DetectorConfig(short_edge=600, long_edge=1000),
        # The reduced network of goldens/detector (config_small.json): seconds become milliseconds, in tests and demos.
        "small": DetectorConfig(
            depth=50,
            base_channels=16,
            num_classes=20,
            num_attributes=12,
            anchor_sizes=(16, 32, 64, 128),
            rpn_hidden_channels=48,
            proposals_before_nms=1000,
            proposals_after_nms=60,
            short_edge=160,
            long_edge=267,
        ),
        # R2C's, of VisualBERT on VCR: given boxes alone, photos of 768 x 384 at most.
        "r2c-r50": DetectorConfig(
            depth=50, num_classes=80, num_attributes=0, pooled_cells=7, short_edge=384, long_edge=768
        ),
        # The network of the shipped detector, which knows the toy world: 2 hours of training on 2 cores.
        "toy": DetectorConfig(
            depth=26,
            base_channels=16,
            num_classes=24,
            num_attributes=19,
            anchor_sizes=(32, 64, 128),
            rpn_hidden_channels=64,
            pooled_cells=5,
            proposals_before_nms=1000,
            proposals_after_nms=200,
            short_edge=352,
            long_edge=528,
        ),
        # MILVLG's deeper one.
        "vg-r152-c4-600": DetectorConfig(depth=152, short_edge=600, long_edge=1000),
        # VinVL's ResNeXt.
        "vinvl-x152-c4": DetectorConfig(
            depth=152,
            num_classes=1594,
            num_attributes=524,
            anchor_sizes=(32, 64, 128, 256, 512),
            rpn_hidden_channels=1024,
            short_edge=600,
            long_edge=1000,
            groups=32,
            width_per_group=8,
        ),
        # MILVLG's of detectron2.
        "milvlg-d2-r50": _MILVLG_D2,
        "milvlg-d2-r101": dataclasses.replace(_MILVLG_D2, depth=101),
        "milvlg-d2-x152": dataclasses.replace(_MILVLG_D2, depth=152, groups=32, width_per_group=8, pooled_cells=7),
        # Those of grid features: a detector's network without its heads.
        "grid-r50": DetectorConfig(
            depth=50, num_classes=0, num_attributes=0, short_edge=600, long_edge=1000, grid="all"
        ),
        "grid-x101": _GRID_X101,
        "grid-x152": dataclasses.replace(_GRID_X101, depth=152),
    }
)


# Network -> width of its pooled last feature.
GLOBAL_NETWORKS: Mapping[str, int] = MappingProxyType(
    {
        "densenet121": 1024,
        "densenet161": 2208,
        "densenet169": 1664,
        "densenet201": 1920,
        "resnet18": 512,
        "resnet34": 512,
        "resnet50": 2048,
        "resnet101": 2048,
        "resnet152": 2048,
        "googlenet": 1024,
    }
)
