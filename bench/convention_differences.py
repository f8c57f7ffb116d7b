"""How much each convention changes what a detector says, on one network and the same photos; Markdown tables.

    python bench/convention_differences.py PHOTO... [--detector small] [--weights random:1] [--only presets]

Everything is compared with the preset "hf" at the sizes of --detector. First each preset, then "hf" with one field
changed at a time, then the selection policies. Weights are those of --weights in the row order of "hf"; where a
convention wants its head rows in another order they are moved (extraction/weights/families.py), as loading a
published file does. The last rows of the second table leave them where they are: what a mistake about the layout
costs.

Columns: largest difference of a feature of the same 21 boxes as a share of the largest value (worst photo), mean
cosine, share of these boxes with the same best class, largest change of the best attribute's score; then the share of
the proposals of "hf" that are found again with an IoU of 0.5 and 0.9, and of its regions under two policies (IoU 0.5).
A dash: the convention has no proposals of its own. With random weights the figures tell which step is touched and how
strongly the arithmetic reacts, not how much a trained detector would lose.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import cv2
import numpy as np
import torch
from torchvision.ops import box_iou

from roibeam.extraction.detector import Detector
from roibeam.extraction.network.config import CONFIGS, DetectorConfig
from roibeam.extraction.network.conventions import CONVENTIONS, IMPLEMENTED, SELECTIONS, Conventions
from roibeam.extraction.regions import Regions
from roibeam.extraction.weights.families import HF_LAYOUT, HeadLayout, relayout
from roibeam.extraction.weights.loading import build_detector

HF = CONVENTIONS["hf"]
POLICIES = ("butd-10-100", "hf-36")
# Values to try for the fields that are numbers: those of a published variant.
NUMBERS: dict[str, object] = {
    "padding_multiple": 32,
    "norm_eps": 2e-5,
    "anchor_offset": 0.5,
    "delta_cap": None,
    "min_proposal_side": 16.0,
    "region_delta_weights": (1.0, 1.0, 1.0, 1.0),
}
# Tagged photos only; and numbers that no published variant of this network changes.
LEFT_OUT = {"exif_orientation", "pixel_mean", "pixel_std", "proposal_delta_weights"}
# Fields that a weight file may be mistaken in without anything noticing: the shapes are the same.
UNNOTICED = ("background", "no_attribute", "anchor_order", "region_delta_weights")


@dataclass(frozen=True)
class Said:
    """What one detector says of one photo.

    Attributes:
        given: of the given boxes.
        proposals: (R, 4) photo pixels.
        regions: for each of `POLICIES` (K, 4) photo pixels.
    """

    given: Regions
    proposals: torch.Tensor
    regions: tuple[torch.Tensor, ...]


def given_boxes(image_hw: tuple[int, int]) -> np.ndarray:
    """(21, 4) photo pixels: the whole photo and 20 drawn ones."""
    height, width = image_hw
    rng = np.random.default_rng(0)
    sides = rng.uniform(0.05, 0.6, (20, 2))
    corners = rng.uniform(0, 1, (20, 2)) * (1 - sides)
    drawn = np.concatenate([corners, corners + sides], axis=1)
    return np.concatenate([[[0, 0, 1, 1]], drawn]).astype(np.float32) * np.array([width, height] * 2, np.float32)


def say(detector: Detector, image: np.ndarray) -> Said:
    outputs = detector.head_outputs(image)
    scale = outputs.network_input.scale
    given = detector.postprocess(detector.head_outputs(image, boxes=given_boxes(image.shape[:2])))
    regions = (detector.postprocess(outputs, SELECTIONS[name]).boxes for name in POLICIES)
    return Said(given, scale.to_photo(outputs.proposals.boxes), tuple(map(torch.from_numpy, regions)))


def found_again(wanted: torch.Tensor, boxes: torch.Tensor, iou: float) -> float:
    return float((box_iou(wanted, boxes).amax(dim=1) >= iou).float().mean()) if len(boxes) else 0.0


def compare(name: str, wanted: list[Said], got: list[Said], *, proposes: bool) -> str:
    """One line of the table, over all photos."""
    errors, cosines, classes, attributes, shares = [], [], [], [], []
    for want, have in zip(wanted, got, strict=True):
        difference = np.abs(have.given.features - want.given.features).max()
        errors.append(difference / np.abs(want.given.features).max())
        products = (have.given.features * want.given.features).sum(axis=1)
        lengths = np.linalg.norm(have.given.features, axis=1) * np.linalg.norm(want.given.features, axis=1)
        cosines.append(np.mean(products / lengths))
        classes.append(np.mean(have.given.class_ids == want.given.class_ids))
        assert want.given.attribute_scores is not None and have.given.attribute_scores is not None
        attributes.append(np.abs(have.given.attribute_scores - want.given.attribute_scores).max())
        share = [found_again(want.proposals, have.proposals, iou) for iou in (0.5, 0.9)]
        shares.append(share + [found_again(*pair, 0.5) for pair in zip(want.regions, have.regions, strict=True)])
    found = " | ".join(f"{100 * share:.0f} %" if proposes else "-" for share in np.mean(shares, axis=0))
    return (
        f"| {name} | {max(errors):.1e} | {np.mean(cosines):.4f} | {100 * np.mean(classes):.0f} % "
        f"| {max(attributes):.2f} | {found} |"
    )


class Bench:
    """The reference, its weights, the photos and what it says of them."""

    def __init__(self, config: DetectorConfig, weights: str, images: list[np.ndarray], device: str) -> None:
        self.config, self.images, self.device = config, images, device
        self.reference = build_detector(config, weights=weights, conventions=HF, device=device)
        self.state = self.reference.state_dict()
        self.wanted = [say(self.reference, image) for image in images]

    def line(
        self, name: str, conventions: Conventions, *, config: DetectorConfig | None = None, moved: bool = True
    ) -> str:
        config = config or self.config
        detector = Detector(config, conventions).to(self.device)
        sizes, ratios = len(config.anchor_sizes), len(config.anchor_ratios)
        target = HeadLayout.of(conventions) if moved else HF_LAYOUT
        detector.load_state_dict(relayout(self.state, HF_LAYOUT, target, num_sizes=sizes, num_ratios=ratios))
        proposes = conventions != CONVENTIONS["vlbert-e2e"]
        return compare(name, self.wanted, [say(detector, image) for image in self.images], proposes=proposes)


def preset_lines(bench: Bench) -> Iterator[str]:
    config = bench.config
    # The same proportion as 600/1000 to 800/1333, whatever the network.
    smaller = replace(config, short_edge=round(config.short_edge * 0.75), long_edge=round(config.long_edge * 0.75))
    edges = f"{smaller.short_edge}/{smaller.long_edge}"
    for name, conventions in CONVENTIONS.items():
        yield bench.line(f'"{name}"', conventions)
        if name != "d2":
            yield bench.line(f'"{name}" at {edges}', conventions, config=smaller)


def quirk_lines(bench: Bench) -> Iterator[str]:
    for field in fields(Conventions):
        if field.name in LEFT_OUT:
            continue
        default = getattr(HF, field.name)
        values = IMPLEMENTED.get(field.name, (NUMBERS.get(field.name),))
        for value in values:
            if value == default:
                continue
            change: dict[str, object] = {field.name: value}
            if value == "truncate":
                change["long_edge_rule"] = "short-truncated"
            words = ", ".join(f"`{name}` {value}" for name, value in change.items())
            yield bench.line(words, replace(HF, **change))  # type: ignore[arg-type]
    for name in UNNOTICED:
        conventions = replace(HF, **{name: getattr(CONVENTIONS["caffe"], name)})
        yield bench.line(f"mistaken `{name}`: rows not moved", conventions, moved=False)


def policy_lines(bench: Bench) -> Iterator[str]:
    """How many of 300 proposals each policy keeps, and how many of these "butd-10-100" keeps too."""
    config = replace(bench.config, proposals_before_nms=6000, proposals_after_nms=300)
    detector = Detector(config, HF).to(bench.device)
    detector.load_state_dict(bench.state)
    outputs = [detector.head_outputs(image) for image in bench.images]
    usual = [set(detector.postprocess(each).proposal_ids.tolist()) for each in outputs]
    for name, policy in SELECTIONS.items():
        kept = [detector.postprocess(each, policy).proposal_ids.tolist() for each in outputs]
        shared = [len(set(ids) & common) / len(ids) for ids, common in zip(kept, usual, strict=True)]
        counts = ", ".join(str(len(ids)) for ids in kept)
        yield f'| "{name}" | {counts} | {100 * np.mean(shared):.0f} % |'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="+", help="image files")
    parser.add_argument("--detector", choices=list(CONFIGS), default="small", help="sizes of the network")
    parser.add_argument("--weights", default="random:1", help='a weight file in the layout of "hf", or random:<seed>')
    parser.add_argument("--only", choices=("presets", "quirks", "policies"), help="one table instead of all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    images = []
    for path in arguments.photos:
        image = cv2.imread(str(path))
        if image is None:
            parser.error(f"{path} is not an image that cv2 reads")
        images.append(np.asarray(image))
    bench = Bench(CONFIGS[arguments.detector], arguments.weights, images, arguments.device)
    columns = "feature error | cosine | same class | attribute | proposals 0.5 | 0.9 | regions butd-10-100 | hf-36"
    tables = {
        "presets": (f"| preset | {columns} |\n|---|---|---|---|---|---|---|---|---|", preset_lines(bench)),
        "quirks": (f'| changed in "hf" | {columns} |\n|---|---|---|---|---|---|---|---|---|', quirk_lines(bench)),
        "policies": (
            "| policy | regions kept | of these also in butd-10-100 |\n|---|---|---|",
            policy_lines(bench),
        ),
    }
    for name, (head, lines) in tables.items():
        if arguments.only in (None, name):
            print(f"\n{head}", flush=True)
            for line in lines:
                print(line, flush=True)


if __name__ == "__main__":
    main()
