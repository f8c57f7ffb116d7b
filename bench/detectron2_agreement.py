"""The Visual Genome network in detectron2 against ours, and what becomes of mistakes; tables for docs/detectors.md.

    ROIBEAM_DETECTRON2_PATH=CHECKOUT:FOLDER python bench/detectron2_agreement.py GOLDENS [--sizes small full]

GOLDENS is the folder of the detector's goldens: photos `<name>.png`, arrays `<size>_<name>.npz`. The variable names
folders to import detectron2 and what it needs from, if they are not installed. Both networks have the goldens' weights
(random:1) and run on a CPU with one thread. "small" is the reduced network, "full" the true size (some minutes).

First table: both networks on one network input, that of the conventions "hf". Second: both from the photo, ours with
the conventions "d2", which resize as detectron2 does, and then with "hf". An error is the largest difference as a share
of the largest value; a cell with two figures holds the smallest and the largest over the photos. Third, reduced
network only: detectron2's parts put where ours differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from roibeam.extraction.detector import Detector
from roibeam.extraction.detectron2.adapter import Detectron2Detector, build_detectron2_detector
from roibeam.extraction.detectron2.vg import vg_config
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.network.conventions import SELECTIONS
from roibeam.extraction.regions import Regions
from roibeam.extraction.weights.loading import build_detector

PHOTOS = ("input", "COCO_train2014_000000131486", "COCO_train2014_000000387267")
PRESETS = {"small": "small", "full": "vg-r101-c4"}
TITLES = {"small": "reduced (160/267)", "full": "true size (800/1333)"}
WEIGHTS = "random:1"
HEADS = ("features", "class_logits", "attribute_logits", "box_deltas")
POLICIES = ("butd-36", "hf-36", "d2-36", "butd-10-100")
SAME_BOX_PX = 0.05
Figures = dict[str, list[float | bool]]  # row of a table -> one figure for each photo


@dataclass(frozen=True)
class Networks:
    """One network three times, with the same weights: ours with two conventions, and detectron2's."""

    hf: Detector
    d2: Detector
    theirs: Detectron2Detector

    @classmethod
    def of(cls, size: str) -> Networks:
        preset = PRESETS[size]
        ours = [build_detector(preset, weights=WEIGHTS, conventions=name) for name in ("hf", "d2")]
        theirs = build_detectron2_detector(vg_config(CONFIGS[preset]), weights=WEIGHTS)
        if ours[0].describe()["weights"] != theirs.describe()["weights"]:
            raise ValueError(f"the weights {WEIGHTS} of {preset} are not the same in both networks")
        return cls(*ours, theirs)


@dataclass(frozen=True)
class Golden:
    """A photo (height, width, 3) uint8 B, G, R, and what the published code says of given boxes, network pixels."""

    image: np.ndarray
    arrays: dict[str, np.ndarray]

    @classmethod
    def read(cls, folder: Path, size: str, photo: str) -> Golden:
        image = cv2.imread(str(folder / f"{photo}.png"))
        if image is None:
            raise ValueError(f"{folder / photo}.png: expected a photo of the goldens")
        with np.load(folder / f"{size}_{photo}.npz") as file:
            names = [name for name in file.files if name.startswith("given_")]
            return cls(np.asarray(image), {name: file[name][0] for name in names})

    @property
    def boxes(self) -> Tensor:
        return torch.from_numpy(self.arrays["given_boxes"])


def error(got: Tensor, want: Tensor | np.ndarray) -> float:
    want = torch.as_tensor(want).double()
    return float((got.double() - want).abs().max() / want.abs().max())


def their_proposals(theirs: Detectron2Detector, pixels: Tensor, input_hw: tuple[int, int]) -> tuple[Tensor, Any]:
    """The res4 map of the input, and detectron2's Instances of proposals on it."""
    from detectron2.structures import ImageList

    maps = theirs.model.backbone(pixels)
    (found,), _ = theirs.model.proposal_generator(ImageList(pixels, [input_hw]), maps, None)
    return maps["res4"], found


@torch.inference_mode()
def from_one_input(networks: Networks, golden: Golden) -> dict[str, float | bool]:
    ours, theirs = networks.hf, networks.theirs
    outputs = ours.head_outputs(golden.image)
    feature_map, found = their_proposals(theirs, outputs.network_input.pixels, outputs.network_input.input_hw)
    objectness, deltas = theirs.model.proposal_generator.rpn_head([feature_map])
    our_objectness, our_deltas = ours.proposal_generator.rpn_head(outputs.feature_map)
    boxes, scores = found.proposal_boxes.tensor, found.objectness_logits
    of_proposals = theirs.describe_boxes([feature_map], boxes)
    of_given = theirs.describe_boxes([feature_map], golden.boxes)
    ours_of_given = ours.roi_heads(outputs.feature_map, golden.boxes)
    stable = golden.arrays["given_stable"]
    figures: dict[str, float | bool] = {
        "res4 map": error(feature_map, outputs.feature_map),
        "objectness": error(objectness[0], our_objectness),
        "proposal deltas": error(deltas[0], our_deltas),
        "proposals: boxes, scores, order": torch.equal(boxes, outputs.proposals.boxes)
        and torch.equal(scores, outputs.proposals.objectness),
        "features, logits and deltas of proposals": max(
            error(getattr(of_proposals, name), getattr(outputs.regions, name)) for name in HEADS
        ),
        "features, logits and deltas of given boxes": max(
            error(getattr(of_given, name), getattr(ours_of_given, name)) for name in HEADS
        ),
    }
    for name, array in (("features", "features"), ("class logits", "cls_logits"), ("attribute logits", "attr_logits")):
        got = getattr(of_given, name.replace(" ", "_"))[torch.from_numpy(stable)]
        figures[f"given boxes against the goldens: {name}"] = error(got, golden.arrays[f"given_{array}"][stable])
    return figures


@torch.inference_mode()
def from_the_photo(networks: Networks, golden: Golden) -> dict[str, float | bool]:
    theirs = networks.theirs
    got = theirs.head_outputs(golden.image)
    d2, hf = networks.d2.head_outputs(golden.image), networks.hf.head_outputs(golden.image)
    resized, _ = theirs.resize(golden.image)
    pixels = theirs.model.preprocess_image([{"image": resized}]).tensor
    kept = (
        (theirs.postprocess(got, SELECTIONS[name]), networks.d2.postprocess(d2, SELECTIONS[name])) for name in POLICIES
    )
    moved = (d2.network_input.pixels - hf.network_input.pixels).abs()
    of_given = theirs.describe_boxes(got.feature_maps, golden.boxes).features
    wanted = networks.hf.roi_heads(hf.feature_map, golden.boxes).features
    overlap = box_iou(hf.proposals.boxes, got.proposals.boxes).amax(dim=1)
    return {
        'network input, detectron2 against "d2"': torch.equal(pixels, d2.network_input.pixels),
        "proposals": torch.equal(got.proposals.boxes, d2.proposals.boxes),
        f"kept regions, {len(POLICIES)} policies": all(same_regions(*pair) for pair in kept),
        'network input, "d2" against "hf": largest difference, grey levels': float(moved.max()),
        "mean difference, grey levels": float(moved.mean()),
        "features of given boxes, error": error(of_given, wanted),
        "features of given boxes, smallest cosine": float(torch.cosine_similarity(of_given, wanted).min()),
        'proposals of "hf" with one of "d2" at IoU >= 0.5, share': float((overlap >= 0.5).float().mean()),
        "at IoU >= 0.9, share": float((overlap >= 0.9).float().mean()),
    }


def same_regions(got: Regions, want: Regions) -> bool:
    fields = ("proposal_ids", "boxes", "class_ids", "attribute_ids")
    return all(np.array_equal(getattr(got, name), getattr(want, name)) for name in fields)


def with_mistakes(folder: Path) -> dict[str, dict[str, float | bool]]:
    """Mistake -> error of given boxes' features, and the share of our proposals that are found within 0.05 px."""
    golden = Golden.read(folder, "small", PHOTOS[0])
    ours = build_detector("small", weights=WEIGHTS)
    outputs = ours.head_outputs(golden.image)
    network_input = outputs.network_input
    edits: dict[str, Callable[[Any], None]] = {
        "none": lambda model: None,
        "detectron2's own stem (pooling padded)": lambda model: setattr(
            model.BACKBONE, "NAME", "build_resnet_backbone"
        ),
        "res5 not dilated": lambda model: setattr(model.RESNETS, "RES5_DILATION", 1),
        "stride in the 3x3": lambda model: setattr(model.RESNETS, "STRIDE_IN_1X1", False),
        "ROIAlignV2 instead of ROIPool": lambda model: setattr(model.ROI_BOX_HEAD, "POOLER_TYPE", "ROIAlignV2"),
        "anchors moved by half a stride": lambda model: setattr(model.ANCHOR_GENERATOR, "OFFSET", 0.5),
    }
    rows: dict[str, dict[str, float | bool]] = {}
    for name, edit in edits.items():
        config = vg_config(CONFIGS["small"])
        edit(config.MODEL)
        theirs = build_detectron2_detector(config, weights=WEIGHTS)
        with torch.inference_mode():
            feature_map, found = their_proposals(theirs, network_input.pixels, network_input.input_hw)
            got = theirs.describe_boxes([feature_map], golden.boxes).features
            want = ours.roi_heads(outputs.feature_map, golden.boxes).features
        apart = (found.proposal_boxes.tensor[None] - outputs.proposals.boxes[:, None]).abs().amax(dim=2).amin(dim=1)
        rows[name] = {"features": error(got, want), "found": float((apart <= SAME_BOX_PX).float().mean())}
    return rows


def cell(figures: list[float | bool]) -> str:
    if all(isinstance(figure, bool) for figure in figures):
        return "identical" if all(figures) else "DIFFERENT"
    # Cosines just below 1 are told apart by their last digits.
    low, high = (f"{figure:.5f}" if 0.9 < figure < 1 else f"{figure:.2g}" for figure in (min(figures), max(figures)))
    return low if low == high else f"{low} to {high}"


def print_table(title: str, tables: dict[str, Figures]) -> None:
    print(f"\n| {title} | {' | '.join(TITLES[size] for size in tables)} |\n|{'---|' * (len(tables) + 1)}")
    for row in next(iter(tables.values())):
        print(f"| {row} | {' | '.join(cell(table[row]) for table in tables.values())} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("goldens", type=Path, help="folder of the detector's goldens")
    parser.add_argument("--sizes", nargs="+", choices=list(PRESETS), default=["small"])
    arguments = parser.parse_args()
    # Last, so that what this environment has itself (numpy, Pillow) wins.
    sys.path.extend(entry for entry in os.environ.get("ROIBEAM_DETECTRON2_PATH", "").split(os.pathsep) if entry)
    torch.set_num_threads(1)
    measures = {"same network input": from_one_input, "from the photo": from_the_photo}
    tables: dict[str, dict[str, Figures]] = {title: {} for title in measures}
    for size in arguments.sizes:
        networks = Networks.of(size)
        goldens = [Golden.read(arguments.goldens, size, photo) for photo in PHOTOS]
        for title, measure in measures.items():
            found = [measure(networks, golden) for golden in goldens]
            tables[title][size] = {row: [figures[row] for figures in found] for row in found[0]}
    for title, table in tables.items():
        print_table(title, table)
    print("\n| mistake | features of given boxes, error | proposals found |\n|---|---|---|")
    for name, row in with_mistakes(arguments.goldens).items():
        print(f"| {name} | {row['features']:.2g} | {100 * row['found']:.0f} % |")


if __name__ == "__main__":
    main()
