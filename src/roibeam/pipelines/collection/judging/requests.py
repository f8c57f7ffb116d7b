"""Requests of the trainings of judges, `roibeam collect train-images` and `train-pairs`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from roibeam.pipelines.common.console.request_options import INPUT, KEPT, CaptionColumn, Seed, argument, option

_OUT = argument("OUT", "File to write, .json.")
_PRECISION = option(
    "Wanted share of correct ones among those that pass.", "SHARE", KEPT, "--wanted-precision", min=0, max=1
)


@dataclass(frozen=True)
class TrainImagesRequest:
    """A judge of pictures, see `train_images`."""

    labels: Annotated[Path, argument("LABELS", "CSV with the columns image (its file) and label: natural or not.")]
    out: Annotated[Path, _OUT]
    store: Annotated[str | None, option(
        "Folder of a store of region features. Regions of the images of LABELS are then used, too.", "STORE", INPUT,
    )] = None  # fmt: skip
    precision: Annotated[float, _PRECISION] = 0.99
    seed: Seed = 0


@dataclass(frozen=True)
class TrainPairsRequest:
    """A judge of pairs, see `train_pairs`."""

    out: Annotated[Path, _OUT]
    captions: Annotated[tuple[str, ...], option(
        "Captions: .json (COCO, Karpathy, SBU, list), .tsv or table. Curated ones, taken as correct; may be given "
        "several times.", "FILE", INPUT,
    )] = ()  # fmt: skip
    caption_column: CaptionColumn = ""
    stores: Annotated[tuple[str, ...], option(
        "Folder of a store of region features. One for each --captions, in the same order.", "STORE", INPUT,
        "--store",
    )] = ()  # fmt: skip
    labels: Annotated[Path | None, option(
        "Labelled pairs: CSV with the columns image, text, label (1 or 0) and page.", "FILE", INPUT, "--pairs",
    )] = None  # fmt: skip
    labels_store: Annotated[str | None, option(
        "Store of the images of --pairs.", "STORE", INPUT, "--pairs-store",
    )] = None  # fmt: skip
    match: Annotated[str | None, option(
        "Pre-trained model that scores how well text and image match.", "MODEL", INPUT, "--match-model",
    )] = None  # fmt: skip
    max_captions: Annotated[int, option(
        "Use at most N captions: the first one of each image, then the second ones, and so on.", "N", INPUT, min=1,
    )] = 5000  # fmt: skip
    precision: Annotated[float, _PRECISION] = 0.95
    seed: Seed = 0
