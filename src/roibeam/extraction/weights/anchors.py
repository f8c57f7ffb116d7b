"""The anchors that a weight file brings: which published ones they are, and what a detector makes of them.

A network's box deltas were learned for its own anchors, and the published ones differ in shape, place and order.
MILVLG's and Hugging Face's files hold theirs (`cell_anchors.0`), and MILVLG's only work because the file replaces what
its config computes. So: anchors of a file are compared with the computed ones; equal ones change nothing; those of
another published convention replace the computed ones, with a warning; any others are refused.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from roibeam.extraction.network.anchors import cell_anchors
from roibeam.extraction.network.config import DetectorConfig
from roibeam.extraction.network.conventions import Conventions
from roibeam.extraction.network.state import CELL_ANCHORS, is_plain_tensor, show_numbers, show_tensor

# Files hold them rounded or as float32 square roots; a hundredth of a pixel moves no box that matters.
TOLERANCE_PX = 1e-2


@dataclass(frozen=True)
class AnchorForm:
    """How a table of anchors was made. The fields are those of `Conventions`."""

    anchor_sides: str
    anchor_offset: float
    anchor_order: str
    box_sides: str

    @classmethod
    def of(cls, conventions: Conventions) -> AnchorForm:
        return cls(conventions.anchor_sides, conventions.anchor_offset, conventions.anchor_order, conventions.box_sides)

    def table(self, config: DetectorConfig, conventions: Conventions) -> Tensor:
        """The anchors in this form: (A, 4) float32, as `cell_anchors`."""
        return cell_anchors(config, replace(conventions, **vars(self)))

    def describe(self) -> str:
        return f"{self.anchor_sides} sides, centre at {self.anchor_offset:g} strides, {self.anchor_order}"


HF_FORM = AnchorForm("exact", 0.0, "size-major", "x2-x1")
CAFFE_FORM = AnchorForm("rounded", 0.5, "ratio-major", "x2-x1+1")


def recognise_anchors(anchors: object, config: DetectorConfig, conventions: Conventions, source: str) -> AnchorForm:
    """The form of a file's anchors.

    Args:
        anchors: `cell_anchors.0` of the file.
        config: has the sizes and ratios they must be of.
        conventions: their own form is tried first.
        source: names the file in errors.
    Raises:
        ValueError: when they are no plain (A, 4) tensor, or of no known form.
    """
    own = AnchorForm.of(conventions)
    computed = own.table(config, conventions)
    if not is_plain_tensor(anchors) or anchors.shape != computed.shape:
        raise ValueError(
            f"{source}: {show_tensor(CELL_ANCHORS, anchors)} where the config gives {tuple(computed.shape)}; "
            f"set anchor_sizes and anchor_ratios to those the file was trained with (--detector)"
        )
    forms = itertools.product(("exact", "rounded"), (0.0, 0.5), ("size-major", "ratio-major"), ("x2-x1", "x2-x1+1"))
    for form in (own, HF_FORM, CAFFE_FORM, *(AnchorForm(*fields) for fields in forms)):
        if _same(anchors, form.table(config, conventions)):
            return form
    row = int((anchors.float() - computed).abs().nan_to_num(torch.inf).amax(dim=1).argmax())
    raise ValueError(
        f"{source}: anchor {row} is {show_numbers(anchors[row])}, the config gives {show_numbers(computed[row])}, "
        f"and no published convention fits; set anchor_sizes and anchor_ratios to those the file was trained with "
        f"(--detector)"
    )


def anchors_for(form: AnchorForm, config: DetectorConfig, conventions: Conventions) -> Tensor:
    """Anchors of `form`, written as a detector of `conventions` wants them: in its order and by its rule for sides.

    Returns:
        (A, 4) float32, x1 y1 x2 y2 in network-input pixels.
    """
    own = AnchorForm.of(conventions)
    return replace(form, anchor_order=own.anchor_order, box_sides=own.box_sides).table(config, conventions)


def _same(anchors: Tensor, others: Tensor) -> bool:
    return bool(torch.allclose(anchors.float(), others, rtol=0, atol=TOLERANCE_PX))
