"""A store and the photos it was made of: noise of several sizes, stored without loss, so that every pixel tells."""

import sys
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "features"))
from store_examples import FINGERPRINT, write_shard

from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.features.folders.local_folder import LocalFolder
from roibeam.features.record.region_record import RegionRecord
from roibeam.features.shard.writer import publish_store
from roibeam.pipelines.data.shard_plan import extend_plan

NUM_CLASSES = 6
HEIGHTS_WIDTHS = [(48, 64), (60, 50), (40, 72), (64, 48), (50, 50), (45, 60), (72, 40), (52, 64)]
CAPTIONS = [
    "a red ball left of a box",
    "two cups and a hat on the right",
    "the boat is left of the fish",
    "a tree beside a house",
    "a clock right above the window",
    "three keys left and right of a bell",
    "the moon over a kite",
    "a wheel on the left of a star",
]


@dataclass(frozen=True)
class PhotoStore:
    """Attributes:
    path: of the store; its plan says where the photos lie.
    photos: their folder.
    captions: a file beside the store, one for each photo.
    """

    path: Path
    photos: Path

    @property
    def captions(self) -> Path:
        return self.path.parent / "captions.tsv"

    def photo(self, image_id: str) -> Path:
        return self.photos / f"{image_id}.png"

    def rows(self) -> list[tuple[int, str]]:
        return list(enumerate(CAPTIONS))


def image_id(number: int) -> str:
    return f"photo-{number}"


def draw_record(number: int, feature_dim: int) -> RegionRecord:
    """3 to 8 boxes of at least 10 pixels each way, with whole distributions."""
    random = np.random.default_rng(number)
    (height, width), count = HEIGHTS_WIDTHS[number], 3 + number % 6
    corners = random.uniform(0, 0.7, (count, 2)) * [width, height]
    ends = np.minimum(corners + 10 + random.uniform(0, 0.5, (count, 2)) * [width, height], [width - 1, height - 1])
    probabilities = random.dirichlet(np.full(NUM_CLASSES + 1, 0.3), count).astype(np.float16)
    return RegionRecord(
        image_id=image_id(number), height=height, width=width,
        boxes=np.concatenate([corners, ends], axis=1).astype(np.float32),
        features=random.standard_normal((count, feature_dim)).astype(np.float16),
        class_ids=probabilities[:, :-1].argmax(1).astype(np.uint16),
        class_scores=random.random(count).astype(np.float32), class_distribution=probabilities,
    )  # fmt: skip


def write_photo_store(folder: Path, *, feature_dim: int, exif_orientation: str = "applied") -> PhotoStore:
    """Eight photos, a store of them in one shard, and its plan."""
    made = PhotoStore(folder / "store", folder / "photos")
    made.photos.mkdir(parents=True)
    made.path.mkdir()
    numbers = range(len(HEIGHTS_WIDTHS))
    for number in numbers:
        pixels = np.random.default_rng(100 + number).integers(0, 256, (*HEIGHTS_WIDTHS[number], 3), dtype=np.uint8)
        cv2.imwrite(str(made.photo(image_id(number))), pixels)
    write_shard(made.path, 0, (draw_record(number, feature_dim) for number in numbers))
    names = [f"class {number}" for number in range(NUM_CLASSES)]
    config = {"detector": {"conventions": {"exif_orientation": exif_orientation}}}
    publish_store(made.path, [0], fingerprint=FINGERPRINT, config=config, classes=names)
    images = [ImageRef(image_id(number), str(made.photo(image_id(number)))) for number in numbers]
    source = {"kind": "folder", "location": str(made.photos), "image_root": str(made.photos), "id_rule": "no-extension"}
    extend_plan(LocalFolder(made.path), None, source=source, settings={}, images=images, shard_size=100)
    made.captions.write_text("".join(f"{caption}\t{image_id(number)}\n" for number, caption in made.rows()))
    return made
