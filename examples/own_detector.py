"""A detector and a backbone of your own: two functions in this file, named on the command line.

    python examples/own_detector.py [PHOTOS]

PHOTOS is a folder of photos of any kind. Without one, pictures of the toy world are drawn into toy/. `detect` finds
what differs from the colour of the background, `describe` counts colours. Put your networks in their place, as
examples/real_photos does with two small ones.

It takes some ten seconds on one free core. It prints the command that it runs and the classes that were found, and
writes own_detector.store.
"""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np

import roibeam
from roibeam.pipelines import write_world

NAMES = ["small", "large"]  # the classes, in the order of their ids


def detect(photo):
    """Boxes (x1 y1 x2 y2, pixels), scores and names of a photo: (height, width, 3) uint8, R, G, B."""
    distance = np.linalg.norm(photo - np.median(photo, axis=(0, 1)), axis=2)
    distance = cv2.GaussianBlur(distance.clip(0, 255).astype(np.uint8), (5, 5), 0)
    _, differs = cv2.threshold(distance, 0, 255, cv2.THRESH_OTSU)
    _, _, found, _ = cv2.connectedComponentsWithStats(differs)
    boxes, scores, names = [], [], []
    for x, y, w, h, area in found[1:]:  # the first is the background
        if area >= 0.002 * differs.size:
            boxes.append([x, y, x + w, y + h])
            scores.append(area / (w * h))  # how well it fills its box
            names.append("large" if area > 0.02 * differs.size else "small")
    return boxes, scores, names


def describe(crop):
    """The vector of a region: a histogram of 4 x 4 x 4 colours of the photo cut to its box."""
    counts = cv2.calcHist([np.ascontiguousarray(crop)], [0, 1, 2], None, [4] * 3, [0, 256] * 3)
    return counts.ravel() / counts.sum()


def main(photos="toy/coco/train2014"):
    if photos.startswith("toy/"):
        write_world(Path("toy"), num_images=200)
    command = ["extract", photos, "own_detector.store", "--pool", "crop", "--detector", f"python:{__file__}:detect"]
    command += ["--backbone", f"python:{__file__}:describe", "--set", "selection.min_regions=0"]
    print("roibeam", *command)
    subprocess.run([sys.executable, "-m", "roibeam", *command], check=True)
    with roibeam.FeatureStore("own_detector.store") as store:
        print(store)
        print(store.to_pandas().groupby("class")["score"].describe()[["count", "mean"]])


if __name__ == "__main__":
    print(__doc__) if "--help" in sys.argv else main(*sys.argv[1:])
