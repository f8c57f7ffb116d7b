"""The toy world measured: `python bench/toyworld.py [--scenes 2000]`; docs/detectors.md has two of its figures.

Three parts: how fast scenes are drawn by one process and by all; how things are spread; and two detectors that ought to
fail. The first of these, a linear classifier, is told the mean colour of a whole box and asked for its category. The
second slides a template of each category over the picture at several sizes, and weighs what it finds by how the colours
there agree with those of the category.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from roibeam.pipelines.toyworld.picture import Picture, Statistics, describe
from roibeam.pipelines.toyworld.rendering import draw_chunk, render
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.toyworld.world import CATEGORIES, PLACES

NAMES = list(CATEGORIES)
Labelled = tuple[Picture, np.ndarray]


def draw(seed: int, first: int, count: int) -> list[Labelled]:
    found = []
    for index in range(first, first + count):
        drawing = generate(seed, index)
        pixels, quality = render(drawing)
        data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        found.append((describe(drawing), cv2.imdecode(data, cv2.IMREAD_COLOR)))
    return found


def measure_speed(count: int, workers: int) -> None:
    """Pictures and scene graphs to disk, processes already running."""
    print("| processes | scenes/s | CPU ms/scene |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        for place in PLACES:
            (out / place.dataset / place.file_name(1)).parent.mkdir(parents=True, exist_ok=True)
        draw_chunk(out / "warm", out, 0, 0, 40)
        for processes in sorted({1, workers}):
            # Spawned: a fork after OpenCV has worked can hang.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(processes, context, initializer=cv2.setNumThreads, initargs=(1,)) as pool:
                step = max(count // (8 * processes), 1)
                firsts = range(0, count, step)
                list(pool.map(draw_chunk, *zip(*[(out / "warm", out, 0, 0, 8)] * processes, strict=True)))
                wall, cpu = time.perf_counter(), _children_seconds(pool)
                jobs = [pool.submit(draw_chunk, out / str(f), out, 0, f, min(f + step, count)) for f in firsts]
                for job in jobs:
                    job.result()
                wall, cpu = time.perf_counter() - wall, _children_seconds(pool) - cpu
            print(f"| {processes} | {count / wall:.0f} | {1000 * cpu / count:.1f} |", flush=True)


def _children_seconds(pool: ProcessPoolExecutor) -> float:
    """CPU time of the pool's processes so far (Linux)."""
    ticks = 0
    for number in pool._processes:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def print_statistics(labelled: list[Labelled]) -> None:
    statistics = Statistics()
    for picture, _ in labelled:
        statistics.add(picture)
    for name, value in statistics.to_json().items():
        if isinstance(value, dict):
            print(f"\n| {name} | {' | '.join(map(str, value))} |\n|{'---|' * (len(value) + 1)}")
            print(f"| count | {' | '.join(map(str, value.values()))} |")
        else:
            print(f"\n{name}: {value}")


def probe_mean_colour(train: list[Labelled], test: list[Labelled]) -> float:
    """Share of right categories of softmax regression on the mean colour of the box, standardised, 2,000 full steps."""
    (features, labels), (test_features, test_labels) = _mean_colours(train), _mean_colours(test)
    mean, deviation = features.mean(0), features.std(0)
    x, x_test = ((part - mean) / deviation for part in (features, test_features))
    x, x_test = (np.hstack([part, np.ones((len(part), 1))]) for part in (x, x_test))
    weights = np.zeros((x.shape[1], len(NAMES)))
    wanted = np.eye(len(NAMES))[labels]
    for _ in range(2000):
        scores = x @ weights
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        weights -= 1.0 * x.T @ (chances - wanted) / len(x)
    return float((np.argmax(x_test @ weights, 1) == test_labels).mean())


def _mean_colours(labelled: list[Labelled]) -> tuple[np.ndarray, np.ndarray]:
    features, labels = [], []
    for picture, pixels in labelled:
        for thing in picture.scene.objects:
            if not thing.ignored:
                x, y, width, height = thing.box
                features.append(pixels[y : y + height, x : x + width].mean((0, 1)))
                labels.append(NAMES.index(thing.category))
    return np.array(features), np.array(labels)


TEMPLATE_SIDES = (32, 44, 60)  # Pixels, at half the resolution.
SHADES = (4, 4, 4)


def detect_by_templates(train: list[Labelled], test: list[Labelled], per_category: int = 6) -> list[list[tuple]]:
    """For each test picture (score, category, box) of the best matches.

    The template of a category is the mean of its well visible objects in grey, each standardised; the score is the
    normalised correlation times the likeness (intersection) of the colour histograms.
    """
    templates, colours, shapes = [], [], []
    for name in NAMES:
        crops, histograms, ratios = [], [], []
        for picture, pixels in train:
            for thing in picture.scene.objects:
                if thing.category == name and thing.visible > 950:
                    x, y, width, height = thing.box
                    crop = pixels[y : y + height, x : x + width]
                    grey = cv2.resize(cv2.cvtColor(crop, cv2.COLOR_BGR2GRAY), (48, 48)).astype(np.float32)
                    crops.append((grey - grey.mean()) / (grey.std() + 1))
                    histograms.append(_histogram(crop))
                    ratios.append(width / height)
        templates.append(np.mean(crops, 0))
        colours.append(np.mean(histograms, 0))
        shapes.append(float(np.median(ratios)))
    found = []
    for _, pixels in test:
        small = cv2.resize(pixels, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        grey = cv2.cvtColor(small, cv2.COLOR_BGR2GRAY).astype(np.float32)
        hits = []
        for number, template in enumerate(templates):
            for side in TEMPLATE_SIDES:
                width, height = round(side * shapes[number] ** 0.5), round(side / shapes[number] ** 0.5)
                match = cv2.matchTemplate(grey, cv2.resize(template, (width, height)), cv2.TM_CCOEFF_NORMED)
                peaks = np.flatnonzero(match == cv2.dilate(match, np.ones((9, 9))))
                for place in peaks[np.argsort(-match.flat[peaks])[:per_category]]:
                    y, x = divmod(int(place), match.shape[1])
                    likeness = np.minimum(_histogram(small[y : y + height, x : x + width]), colours[number]).sum()
                    box = (2 * x, 2 * y, 2 * width, 2 * height)
                    hits.append((float(match[y, x] * likeness), number, box))
        found.append(_without_doubles(hits))
    return found


def _histogram(pixels: np.ndarray) -> np.ndarray:
    counts = cv2.calcHist([pixels], [0, 1, 2], None, list(SHADES), [0, 256] * 3)
    return counts.ravel() / max(counts.sum(), 1)


def _without_doubles(hits: list[tuple]) -> list[tuple]:
    """The better of two hits of one category that overlap by half."""
    kept: list[tuple] = []
    for hit in sorted(hits, reverse=True):
        if all(hit[1] != other[1] or overlap(hit[2], other[2]) < 0.5 for other in kept):
            kept.append(hit)
    return kept


def overlap(a: tuple, b: tuple) -> float:
    """Intersection over union of two x, y, width, height."""
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    high = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    both = max(wide, 0) * max(high, 0)
    return both / (a[2] * a[3] + b[2] * b[3] - both)


def mean_average_precision(test: list[Labelled], found: list[list[tuple]]) -> float:
    """Mean over categories of the area under the precision envelope, at an overlap of a half; ignored objects count
    neither way."""
    values = []
    for number, name in enumerate(NAMES):
        things = [[t for t in picture.scene.objects if t.category == name] for picture, _ in test]
        total = sum(not t.ignored for row in things for t in row)
        hits = sorted(
            ((score, i, box) for i, row in enumerate(found) for score, n, box in row if n == number), reverse=True
        )
        taken: set[tuple[int, int]] = set()
        right = []
        for _, image, box in hits:
            best = max(things[image], key=lambda t: overlap(t.box, box), default=None)
            if best is None or overlap(best.box, box) < 0.5 or (image, best.number) in taken:
                right.append(False)
            elif not best.ignored:
                taken.add((image, best.number))
                right.append(True)
        if not total:
            continue
        sums = np.cumsum(right)
        precision = np.maximum.accumulate((sums / np.arange(1, len(right) + 1))[::-1])[::-1]
        values.append(float((precision * right).sum()) / total)
    return float(np.mean(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=2000, help="for speed, statistics and training of the baselines")
    parser.add_argument("--test-scenes", type=int, default=200, help="of another seed, for the baselines")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    measure_speed(arguments.scenes, len(os.sched_getaffinity(0)))
    train, test = draw(0, 0, arguments.scenes), draw(1, 0, arguments.test_scenes)
    print_statistics(train)
    print(f"\nmean colour of the box to category, linear: {probe_mean_colour(train, test):.3f}", flush=True)
    found = detect_by_templates(train, test)
    print(f"templates and colour histograms: mAP@0.5 {mean_average_precision(test, found):.3f}")


if __name__ == "__main__":
    main()
