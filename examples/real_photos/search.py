"""Searches test photos by sentences with `roibeam search`, and draws what it found as boxes: photos of others are not
ours to show.

    python examples/real_photos/search.py RUN STORE DATA found.svg "a dog runs through water" "two men on a roof"

It shows photos of the split test of DATA, a folder of `prepare.py`. For photos of your own, `roibeam search --html`.
"""

import argparse
import json
import subprocess
import sys
import textwrap
from html import escape
from pathlib import Path

import numpy as np

from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.datasets.karpathy import read_captioned
from roibeam.pipelines.finetuning.run.task_data import StoreImages

SIDE, GAP, LINE = 200, 16, 16  # pixels: of a photo's frame, between frames, of a line of text
FOUND, DRAWN = 3, 8  # photos of a sentence, boxes of a photo
LETTERS, LINES = 34, 3  # of a photo's own caption
SCORE, ALL_OF_IT = 0.25, ("photo", "cell")  # of a box that is drawn; classes that are places and no things


def search(run, store, data, sentences):
    """The names of the best test photos for each sentence, best first; `roibeam search` scores all photos."""
    with FeatureStore(store) as opened:
        images, count = StoreImages(opened), len(opened)
        names = {images.id_of(each.image): each.image for each in read_captioned(data, "test")[0]}
    found = []
    for sentence in sentences:
        command = [sys.executable, "-m", "roibeam", "search", store, sentence, "--model", run, "--top", str(count)]
        done = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE, text=True)
        best = [each["image_id"] for each in json.loads(done.stdout.splitlines()[-1])["found"]]
        found.append([names[each] for each in best if each in names][:FOUND])
    return found


def frame(record, classes, caption, left, top):
    """A photo as its best boxes with their classes, and its own caption below, as SVG."""
    factor = SIDE / max(record.height, record.width)
    parts = [
        f'<rect x="{left}" y="{top}" width="{record.width * factor}" height="{record.height * factor}" class="photo"/>'
    ]
    things = [
        row
        for row in np.argsort(-record.class_scores, kind="stable")
        if classes[record.class_ids[row]] not in ALL_OF_IT and record.class_scores[row] >= SCORE
    ]
    for row in things[:DRAWN]:
        x1, y1, x2, y2 = (float(value) * factor for value in record.boxes[row])
        name = escape(classes[record.class_ids[row]])
        parts.append(f'<rect x="{left + x1:.0f}" y="{top + y1:.0f}" width="{x2 - x1:.0f}" height="{y2 - y1:.0f}"/>')
        at = f'x="{left + min(x1, SIDE - 7 * len(name)) + 3:.0f}" y="{top + y1 + 13:.0f}"'
        parts.append(f"<text {at}>{name}</text>")
    for row, line in enumerate(textwrap.wrap(caption, LETTERS, max_lines=LINES, placeholder=" ...")):
        parts.append(f'<text x="{left}" y="{top + SIDE + (row + 1) * LINE}" class="own">{escape(line)}</text>')
    return parts


def drawing(store, data, sentences, found):
    """An SVG: a row for each sentence, its best photos from left to right."""
    captions = {each.image: each.captions[0] for each in read_captioned(data, "test")[0]}
    parts, height = [], SIDE + (LINES + 1) * LINE + 2 * GAP
    with FeatureStore(store) as opened:
        images = StoreImages(opened)
        for row, (sentence, photos) in enumerate(zip(sentences, found, strict=True)):
            top = row * height + GAP
            parts.append(f'<text x="{GAP}" y="{top + 8}" class="said">{escape(sentence)}</text>')
            for column, photo in enumerate(photos):
                parts += frame(
                    opened[images.id_of(photo)],
                    opened.manifest.classes,
                    captions[photo],
                    GAP + column * (SIDE + GAP),
                    top + LINE,
                )
    width = FOUND * (SIDE + GAP) + GAP
    style = (
        "rect{fill:none;stroke:#2a78c8;stroke-width:1.5}.photo{stroke:#888;stroke-width:1}"
        "text{font:12px sans-serif;fill:#2a78c8}.said,.own{fill:#888}.said{font-size:14px;font-weight:bold}"
        ".own{font-size:11px}"
    )
    size = f'viewBox="0 0 {width} {len(sentences) * height}" width="{width}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>' + "".join(parts) + "</svg>\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("run", "store", "data", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("sentences", nargs="+")
    options = parser.parse_args()
    found = search(options.run, options.store, options.data, options.sentences)
    options.out.write_text(drawing(options.store, options.data, options.sentences, found), "utf-8")
    for sentence, photos in zip(options.sentences, found, strict=True):
        print(f"{sentence}: {', '.join(photos)}")
