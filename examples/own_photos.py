"""Regions of your own photos: found, stored, read in Python, and drawn on one photo.

    python examples/own_photos.py [PHOTOS [DETECTOR]]

PHOTOS is a folder of photos. Without one, pictures of the toy world are drawn into toy/. The toy detector knows only
these; for real photos name another one, such as torchvision:fasterrcnn_resnet50_fpn, which fetches 160 MB once
(docs/detectors.md).

It takes some ten seconds on one free core. It prints the classes it found and the regions of the photo that has the
most of them, and writes own_photos/store and own_photos/drawn.png.
"""

import sys
from collections import Counter
from pathlib import Path

import cv2

import roibeam
from roibeam.pipelines import write_world


def main(photos="toy/coco/train2014", detector="toy"):
    if photos.startswith("toy/"):
        write_world(Path("toy"), num_images=200)
    out = Path("own_photos")

    # A second call does only what the store lacks. Photos that cannot be used are counted, not an error.
    print(roibeam.extract(photos, out / "store", detector=detector))

    with roibeam.FeatureStore(out / "store") as store:
        print(store)
        names = store.vocabulary["classes"]
        found = Counter(names[each] for record in store for each in record.class_ids)
        print("most common:", ", ".join(f"{count} x {name}" for name, count in found.most_common(5)))

        record = max(store, key=lambda each: each.num_regions)
        print(
            f"{record.image_id}: boxes {record.boxes.shape}, features {record.features.shape} {record.features.dtype}"
        )
        for region in (-record.class_scores).argsort()[:5]:
            x1, y1, x2, y2 = record.boxes[region]  # pixels of the photo
            name, score = names[record.class_ids[region]], record.class_scores[region]
            print(f"  {score:.2f}  {x1:5.0f} {y1:5.0f} {x2:5.0f} {y2:5.0f}  {name}")

        photo = next(Path(photos).glob(f"{record.image_id}.*"))  # an id is the photo's path without its extension
        cv2.imwrite(str(out / "drawn.png"), store.draw(record.image_id, photo))
    print(f"{out / 'drawn.png'}   this photo with its best regions")


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main(*sys.argv[1:])
