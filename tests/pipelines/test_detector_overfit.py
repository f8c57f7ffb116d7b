"""Real photos are learned by heart: the eight COCO photos of the data pack, by their boxes and by made-up attributes.

Boxes under 12 pixels at the network's input, less than a cell of the map, are ignored in training and in judging.
"""

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from tiny_commands import Cli, ok

from roibeam.extraction.network.conventions import CONVENTIONS
from roibeam.extraction.photos.preprocessing import input_size

SHORT_EDGE, LONG_EDGE = 192, 288
SMALLEST_SIDE = 12
ATTRIBUTES = ("red", "old", "wet", "tall")
OPTIONS = [
    "--detector", "toy", "--conventions", "vlbert-e2e", "--device", "cpu",
    "--set", f"detector.short_edge={SHORT_EDGE}", "--set", f"detector.long_edge={LONG_EDGE}",
    "--set", "detector.anchor_sizes=[12,24,48,96,192]",
    "--set", "conventions.res5_dilation=1", "--set", "photos.flip=false",
    "--steps", 140, "--warmup-steps", 20, "--batch-size", 8, "--learning-rate", 0.003,
    "--set", "train.optimizer=adamw", "--set", "train.schedule=linear",
    "--set", "sampling.regions_per_image=48", "--set", "sampling.region_positive_fraction=0.5",
    "--set", "sampling.proposals_before_nms=1000", "--set", "sampling.proposals_after_nms=300",
    "--set", "train.checkpoint_every=0",
]  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_the_eight_photos_are_learned_by_heart(roibeam: Cli, shared_data: Path, tmp_path: Path) -> None:
    """One detector, trained on Visual Genome's files, judged on these and on COCO's."""
    photos = shared_data / "images"
    instances = json.loads((shared_data / "coco" / "instances_train2014.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in instances["images"]}
    for entry in instances["annotations"]:
        _, factor = input_size(sizes[entry["image_id"]], SHORT_EDGE, LONG_EDGE, CONVENTIONS["vlbert-e2e"])
        entry["ignore"] = int(min(entry["bbox"][2:]) * factor < SMALLEST_SIDE)
    coco, visual_genome = tmp_path / "instances.json", tmp_path / "train.txt"
    coco.write_text(json.dumps(instances))
    write_visual_genome(tmp_path, instances)
    words = ("--labels", visual_genome, "--photos", photos, *OPTIONS, "--json")
    model = json.loads(ok(roibeam("detector", "train", tmp_path / "run", *words)).out)["detector"]
    found = {}
    for labels in (coco, visual_genome):
        words = ("--labels", labels, "--photos", photos, "--nms-iou", 0.5, "--json")
        found[labels] = json.loads(ok(roibeam("detector", "evaluate", model, *words)).out)
    assert found[coco]["num_images"] == 8 and found[coco]["num_objects"] > 40
    assert found[coco]["coco"]["ap50"] > 0.9
    assert found[visual_genome]["attribute_accuracy"]["given_boxes"] > 0.9
    assert found[visual_genome]["attribute_accuracy"]["matched_boxes"] > 0.9
    assert found[visual_genome]["objects"]["mean"] > 0.9


def write_visual_genome(folder: Path, instances: dict[str, Any]) -> None:
    """The same boxes as Visual Genome's xml, with attributes that nothing but the photo tells apart."""
    names = {entry["id"]: entry["name"] for entry in instances["categories"]}
    (folder / "xml").mkdir()
    lines = []
    for image in instances["images"]:
        objects = []
        for entry in (each for each in instances["annotations"] if each["image_id"] == image["id"]):
            x, y, w, h = entry["bbox"]
            difficult = int(bool(entry["iscrowd"]) or entry["ignore"])
            objects.append(
                f"<object><name>{escape(names[entry['category_id']])}</name><object_id>{entry['id']}</object_id>"
                f"<difficult>{difficult}</difficult><bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + w}</xmax>"
                f"<ymax>{y + h}</ymax></bndbox><attribute>{ATTRIBUTES[entry['id'] % 4]}</attribute></object>"
            )
        name = Path(image["file_name"]).stem
        (folder / "xml" / f"{name}.xml").write_text(
            f"<annotation><size><width>{image['width']}</width><height>{image['height']}</height></size>"
            f"{''.join(objects)}</annotation>"
        )
        lines.append(f"{image['file_name']} xml/{name}.xml\n")
    (folder / "train.txt").write_text("".join(lines))
    (folder / "objects_vocab.txt").write_text("".join(f"{names[number]}\n" for number in sorted(names)))
    (folder / "attributes_vocab.txt").write_text("".join(f"{each}\n" for each in ATTRIBUTES))
