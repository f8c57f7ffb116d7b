"""What sets features apart from published ones, cause by cause; the table of docs/fidelity.md.

    python bench/parity_causes.py PHOTOS TSV [--detector small] [--weights random:1]

TSV is a published bottom-up-attention file, PHOTOS the folder of its photos (`<image id>.jpg`). Extracts the photos
with the conventions "caffe", input 600/1000, 36 boxes and float32, changes one thing at a time, and compares the two
stores as `roibeam store diff` does: once with the regions that each run proposes, once with the boxes of TSV. With
random weights the figures tell the order of the causes, not the sizes to expect from trained ones.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch

from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.network.config import CONFIGS
from roibeam.extraction.photos.image_ref import Failure, ImageRef
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.record_pairing import RecordSource
from roibeam.features.shard.manifest import ShardManifest, data_file_name
from roibeam.features.shard.writer import ShardWriter, publish_shard, publish_store
from roibeam.features.store_comparison import StoreComparison, compare


@dataclass(frozen=True)
class Run:
    """How the photos are extracted; `noisy` photos have up to one grey level added or taken away."""

    conventions: str = "caffe"
    edges: tuple[int, int] = (600, 1000)
    dtype: str = "float32"
    noisy: bool = False


USUAL = Run()
CAUSES = {
    "nothing changed": USUAL,
    "float16 store against float32": replace(USUAL, dtype="float16"),
    "another JPEG decoder, as noise of at most 1 grey level": replace(USUAL, noisy=True),
    "`--conventions hf` for `caffe` (anchors, +1, clip, resize)": replace(USUAL, conventions="hf"),
    "800/1333 input for 600/1000": replace(USUAL, edges=(800, 1333)),
}


def write_noisy(photos: Iterable[Path], folder: Path) -> None:
    """The photos as PNG, each value moved by -1, 0 or 1."""
    rng = np.random.default_rng(0)
    for photo in photos:
        image = cv2.imread(str(photo))
        if image is None:
            raise ValueError(f"{photo}: expected a photo that cv2 reads")
        noise = rng.integers(-1, 2, image.shape)
        cv2.imwrite(str(folder / f"{photo.stem}.png"), np.clip(image + noise, 0, 255).astype(np.uint8))


def write_store(folder: Path, run: Run, images: list[ImageRef], detector: str, weights: str) -> None:
    config = replace(CONFIGS[detector], short_edge=run.edges[0], long_edge=run.edges[1])
    network = build_detector(config, weights=weights, conventions=run.conventions, selection="butd-36")
    folder.mkdir()
    with ShardWriter(folder / data_file_name(0, "bench"), planned_bytes=1) as writer:
        for outcome in extract_regions(images, network, options=ExtractOptions(run.dtype, distribution="none")):
            if isinstance(outcome, Failure):
                raise ValueError(f"{outcome.location}: {outcome.reason} ({outcome.detail})")
            writer.put(outcome)
        summary = writer.finish()
    fingerprint = Fingerprint("imported:bench")  # nothing but the figures is asked for
    manifest = ShardManifest.from_summary(
        summary, shard=0, attempt="bench", fingerprint=fingerprint, members_digest="0" * 64
    )
    publish_shard(folder, manifest)
    publish_store(folder, [0], fingerprint=fingerprint, config={})


def compared(left: Path, right: Path) -> StoreComparison:
    with RecordSource(left) as usual, RecordSource(right) as changed:
        return compare(usual, changed, worst=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder of the photos")
    parser.add_argument("tsv", type=Path, help="published file about them")
    parser.add_argument("--detector", choices=list(CONFIGS), default="small", help="sizes of the network")
    parser.add_argument("--weights", default="random:1", help="a weight file of this network, or random:<seed>")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, RecordSource(arguments.tsv) as published:
        folder = Path(name)
        records = [published.get(image_id) for image_id in published.ids()]
        boxes = {each.image_id: tuple(map(tuple, each.boxes.tolist())) for each in records if each is not None}
        (folder / "noisy").mkdir()
        write_noisy([arguments.photos / f"{image_id}.jpg" for image_id in boxes], folder / "noisy")

        def extracted(run: Run, name: str, *, given: bool) -> Path:
            place, ending = (folder / "noisy", "png") if run.noisy else (arguments.photos, "jpg")
            images = [
                ImageRef(image_id, str(place / f"{image_id}.{ending}"), boxes=published_boxes if given else None)
                for image_id, published_boxes in boxes.items()
            ]
            write_store(folder / name, run, images, arguments.detector, arguments.weights)
            return folder / name

        own, given = (extracted(USUAL, f"usual-{mode}", given=mode == "given") for mode in ("own", "given"))
        print(
            f"{len(boxes)} photos\n\n| cause | own boxes: matched, within 0.1 px | given: cosine, error, same class |"
        )
        print("|---|---|---|")
        for number, (cause, run) in enumerate(CAUSES.items()):
            free = compared(own, extracted(run, f"{number}-own", given=False))
            fixed = compared(given, extracted(run, f"{number}-given", given=True))
            assert fixed.cosine_min is not None and fixed.feature_error is not None  # all boxes are given ones
            print(
                f"| {cause} | {share(free.num_matched, free.num_left_regions)}, "
                f"{share(free.num_same_box, free.num_matched)} of the pairs | {fixed.cosine_min:.4f}, "
                f"{fixed.feature_error:.1g}, {share(fixed.num_same_class, fixed.num_class_pairs)} |",
                flush=True,
            )


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


if __name__ == "__main__":
    main()
