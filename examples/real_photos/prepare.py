"""Photos and captions, checked, in the form that roibeam trains on: Karpathy's json, with a split for each photo.

    python examples/real_photos/prepare.py PHOTOS CAPTIONS OUT

PHOTOS: a folder of .jpg files. CAPTIONS: Karpathy's `dataset_flickr8k.json`, `dataset_flickr30k.json` or
`dataset_coco.json`; or the folder `Flickr8k_text` with `Flickr8k.token.txt` and the three lists
`Flickr_8k.trainImages.txt`, `devImages` and `testImages`. Nothing is fetched: Flickr8k is given out by its authors
(M. Hodosh, P. Young, J. Hockenmaier, JAIR 47, 2013), and copies are on Kaggle. Lines about photos that are not there
are left out and named in OUT/left_out.txt: copies that go round have lines of other data sets.

    OUT/all/dataset_flickr8k.json      all captions
    OUT/first/dataset_flickr8k.json    of photos for validation and test the first caption alone: a thousand times fewer
                                       pairs to score are enough to choose settings by
"""

import json
import sys
from collections import Counter
from pathlib import Path

from roibeam.pipelines.data.captions.caption_files import CaptionFile
from roibeam.pipelines.data.datasets.karpathy import KARPATHY

LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "val": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
TOKENS, FLICKR8K = "Flickr8k.token.txt", "dataset_flickr8k.json"
EXPECTED = {  # photos of each split, and captions, as published
    FLICKR8K: ({"train": 6000, "val": 1000, "test": 1000}, 40_000),
    "dataset_flickr30k.json": ({"train": 29_000, "val": 1014, "test": 1000}, 155_070),
    "dataset_coco.json": ({"train": 82_783, "restval": 30_504, "val": 5000, "test": 5000}, 616_767),
}


def read_flickr8k(folder: Path, there: set[str]) -> tuple[list[dict], list[str]]:
    """The images of Karpathy's form, and what was left out."""
    captions: dict[str, list[str]] = {}
    for caption in CaptionFile(str(folder / TOKENS)):
        captions.setdefault(str(caption.name), []).append(caption.text)
    left_out = [f"{TOKENS}: captions of {name}, which is no photo there" for name in captions if name not in there]
    kept = [len(found) for name, found in captions.items() if name in there]
    print(f"{TOKENS}: {sum(kept):,} captions of {len(kept):,} photos that are there")
    images = []
    for split, name in LISTS.items():
        for line in (folder / name).read_text("utf-8").splitlines():
            photo = line.strip()
            if photo and photo in there and photo in captions:
                sentences = [
                    {"raw": text, "tokens": text.lower().rstrip(" .").split(), "sentid": 5 * len(images) + place}
                    for place, text in enumerate(captions[photo])
                ]
                image = {"filename": photo, "imgid": len(images), "split": split, "sentences": sentences}
                images.append(image)
            elif photo:
                why = "without a caption" if photo in there else "which is no photo there"
                left_out.append(f"{name}: {photo}, {why}")
    return images, left_out


def main(photos: Path, captions: Path, out: Path) -> bool:
    """Returns whether there are as many photos and captions as were published."""
    there = {path.name for path in photos.rglob("*")}
    name = FLICKR8K if captions.is_dir() else captions.name
    if name not in KARPATHY:
        raise ValueError(f"{captions}: expected one of {', '.join(KARPATHY)}, or the folder Flickr8k_text")
    if captions.is_dir():
        images, left_out = read_flickr8k(captions, there)
    else:
        listed = json.loads(captions.read_text("utf-8"))["images"]
        images = [image for image in listed if image["filename"] in there]
        missing = (image["filename"] for image in listed if image["filename"] not in there)
        left_out = [f"{captions.name}: {photo}, which is no photo there" for photo in missing]
    if not images:
        raise ValueError(f"none of the photos that {captions} names is in {photos}; give the folder of the .jpg files")
    out.mkdir(parents=True, exist_ok=True)
    (out / "left_out.txt").write_text("".join(f"{line}\n" for line in left_out), "utf-8")
    if left_out:
        print(f"{len(left_out):,} entries left out, see {out / 'left_out.txt'}; the first: {left_out[0]}")
    found = dict(Counter(image["split"] for image in images)), sum(len(image["sentences"]) for image in images)
    is_all = found == EXPECTED[name]
    print(f"{name}: {found[0]} photos, {found[1]:,} captions" + (", as published" if is_all else ""))
    if not is_all:
        print(f"NOT as published: expected {EXPECTED[name][0]} photos and {EXPECTED[name][1]:,} captions")
    for folder in ("all", "first"):
        kept = [
            image | {"sentences": image["sentences"][:1]}
            if folder == "first" and image["split"] in ("val", "test")
            else image
            for image in images
        ]
        (out / folder).mkdir(parents=True, exist_ok=True)
        (out / folder / name).write_text(json.dumps({"dataset": name[8:-5], "images": kept}), "utf-8")
    return is_all


if __name__ == "__main__":
    try:
        main(*(Path(each) for each in sys.argv[1:4]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{Path(__file__).name}: {error}" if len(sys.argv) == 4 else __doc__)
