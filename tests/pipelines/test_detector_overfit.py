"""Real photos are learned by heart: the eight COCO photos of the data pack, by their boxes and by made-up attributes.

Boxes under 16 pixels at the network's input, a single cell of the map, are ignored in training and in judging.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from extraction.conventions import CONVENTIONS
from extraction.preprocess import input_size

SHORT_EDGE, LONG_EDGE = 384, 640
SMALLEST_SIDE = 16
OPTIONS = [
    "--detector", "toy", "--conventions", "vlbert-e2e", "--device", "cpu",
    "--set", f"detector.short_edge={SHORT_EDGE}", "--set", f"detector.long_edge={LONG_EDGE}",
    "--set", "detector.anchor_sizes=[16,32,64,128,256]", "--set", "detector.pooled_cells=7",
    "--set", "conventions.res5_dilation=1", "--set", "photos.flip=false",
    "--steps", 500, "--warmup-steps", 50, "--batch-size", 4, "--learning-rate", 0.02, "--decay-steps", "400,470",
    "--set", "sampling.regions_per_image=64", "--set", "sampling.region_positive_fraction=0.5",
    "--set", "sampling.proposals_before_nms=1000", "--set", "sampling.proposals_after_nms=300",
    "--set", "train.checkpoint_every=0",
]  # fmt: skip

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(float(os.environ.get("ROIBEAM_SOAK", "1")) < 1, reason="20 minutes of training, all or nothing"),
]


def too_small(box: list[float], height: int, width: int) -> bool:
    _, factor = input_size((height, width), SHORT_EDGE, LONG_EDGE, CONVENTIONS["vlbert-e2e"])
    return min(box[2], box[3]) * factor < SMALLEST_SIDE


@pytest.fixture(scope="module")
def instances(shared_data: Path) -> dict[str, Any]:
    return json.loads((shared_data / "coco" / "instances_train2014.json").read_text())


def judged(roibeam: Any, out: Path, labels: Path, photos: Path) -> dict[str, Any]:
    done = roibeam("detector", "train", out, "--labels", labels, "--images", photos, *OPTIONS, "--json")
    assert done.code == 0, done.err
    model = json.loads(done.out)["detector"]
    done = roibeam("detector", "evaluate", model, "--labels", labels, "--images", photos, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_coco_boxes_are_learned_by_heart(
    roibeam: Any, instances: dict[str, Any], shared_data: Path, tmp_path: Path
) -> None:
    sizes = {image["id"]: (image["height"], image["width"]) for image in instances["images"]}
    for entry in instances["annotations"]:
        entry["ignore"] = int(too_small(entry["bbox"], *sizes[entry["image_id"]]))
    labels = tmp_path / "instances.json"
    labels.write_text(json.dumps(instances))
    found = judged(roibeam, tmp_path / "run", labels, shared_data / "images")
    assert found["num_images"] == 8 and found["num_objects"] > 50
    assert found["coco"]["ap50"] > 0.9


def test_visual_genome_attributes_are_learned_by_heart(
    roibeam: Any, instances: dict[str, Any], shared_data: Path, tmp_path: Path
) -> None:
    """The same boxes as Visual Genome's xml, with attributes that nothing but the photo tells apart."""
    names = {entry["id"]: entry["name"] for entry in instances["categories"]}
    attributes = ["red", "old", "wet", "tall"]
    (tmp_path / "xml").mkdir()
    lines = []
    for image in instances["images"]:
        height, width = image["height"], image["width"]
        objects = []
        for entry in (each for each in instances["annotations"] if each["image_id"] == image["id"]):
            x, y, w, h = entry["bbox"]
            difficult = int(bool(entry["iscrowd"]) or too_small(entry["bbox"], height, width))
            objects.append(
                f"<object><name>{escape(names[entry['category_id']])}</name><object_id>{entry['id']}</object_id>"
                f"<difficult>{difficult}</difficult><bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + w}</xmax>"
                f"<ymax>{y + h}</ymax></bndbox><attribute>{attributes[entry['id'] % 4]}</attribute></object>"
            )
        name = Path(image["file_name"]).stem
        (tmp_path / "xml" / f"{name}.xml").write_text(
            f"<annotation><size><width>{width}</width><height>{height}</height></size>{''.join(objects)}</annotation>"
        )
        lines.append(f"{image['file_name']} xml/{name}.xml\n")
    (tmp_path / "train.txt").write_text("".join(lines))
    (tmp_path / "objects_vocab.txt").write_text("".join(f"{names[number]}\n" for number in sorted(names)))
    (tmp_path / "attributes_vocab.txt").write_text("".join(f"{each}\n" for each in attributes))
    found = judged(roibeam, tmp_path / "run", tmp_path / "train.txt", shared_data / "images")
    assert found["attribute_accuracy"]["given_boxes"] > 0.9
    assert found["attribute_accuracy"]["matched_boxes"] > 0.9 and found["objects"]["mean"] > 0.9
