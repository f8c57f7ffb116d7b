"""Writers of pictures into the official files of the data sets, for the readers in `pipelines.data.datasets`.

Each writer takes the pictures of its own set one by one, keeps little in memory, and puts its files in place when it is
closed. Layouts: cocodataset.org/#format-data; peteanderson80/bottom-up-attention data/genome/setup_vg.py (xml, where
xmax is x + width); Sharma et al. 2018 (Conceptual Captions TSV); Ordonez et al. 2011 (sbu-captions-all.json);
cs.stanford.edu/people/karpathy/deepimagesent (splits); google-research/bert create_pretraining_data.py (text).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol
from xml.etree import ElementTree

from roibeam.pipelines.toyworld.captions import SceneCaption
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.shapes import run_lengths
from roibeam.pipelines.toyworld.world import ATTRIBUTES, CATEGORIES, RELATIONS
from roibeam.pipelines.toyworld.world_files import JsonListFile, write_text

CATEGORY_IDS = {name: place for place, name in enumerate(CATEGORIES, start=1)}
# The same text on each run, where the real files have dates and addresses.
INFO = {"description": "roibeam toy world", "url": "", "version": "1.0", "year": 2026, "contributor": "roibeam"}
LICENSES = [{"id": 1, "name": "Apache License 2.0", "url": "http://www.apache.org/licenses/LICENSE-2.0"}]
_SBU_URL = "http://toyworld.invalid/{}"


class Writer(Protocol):
    """Writer of pictures into the files of one data set."""

    def add(self, picture: Picture) -> None: ...

    def close(self) -> None: ...


def open_writers(out: Path) -> dict[str, Writer]:
    """Opens a writer for each folder that `splits` names."""
    return {
        "coco": CocoWriter(out / "coco"),
        "visual_genome": VisualGenomeWriter(out / "visual_genome"),
        "conceptual_captions": ConceptualCaptionsWriter(out / "conceptual_captions"),
        "sbu": SbuWriter(out / "sbu"),
        "flickr30k": KarpathyWriter(out / "flickr30k" / "dataset_flickr30k.json", "flickr30k"),
    }


def sentence(caption: SceneCaption) -> str:
    """Returns a caption as people write it: "A red ball." """
    return caption.text[0].upper() + caption.text[1:] + "."


class CocoWriter:
    """annotations/{captions,instances}_{train,val}2014.json, and Karpathy's splits of the same pictures."""

    def __init__(self, folder: Path) -> None:
        self._images: dict[str, list[dict[str, Any]]] = {"train2014": [], "val2014": []}
        notes = folder / "annotations"
        self._captions = {year: JsonListFile(notes / f"captions_{year}.json", "annotations") for year in self._images}
        self._instances = {year: JsonListFile(notes / f"instances_{year}.json", "annotations") for year in self._images}
        self._karpathy = KarpathyWriter(folder / "dataset_coco.json", "coco")

    def add(self, picture: Picture) -> None:
        year, _ = picture.file_name.split("/")
        self._images[year].append(coco_image(picture))
        for place, caption in enumerate(picture.captions):
            self._captions[year].add(
                {"image_id": picture.number, "id": caption_id(picture, place), "caption": sentence(caption)}
            )
        for thing in picture.scene.objects:
            self._instances[year].add(instance(picture, thing))
        self._karpathy.add(picture)

    def close(self) -> None:
        for year, images in self._images.items():
            before = {"info": INFO, "licenses": LICENSES, "images": images}
            self._captions[year].close(before, {})
            self._instances[year].close(before, {"categories": coco_categories()})
        self._karpathy.close()


def caption_id(picture: Picture, place: int) -> int:
    """Returns COCO's id and Karpathy's sentid of a picture's caption."""
    return picture.number * 10 + place


def coco_image(picture: Picture) -> dict[str, Any]:
    """Returns the entry of a picture among COCO's images."""
    return {
        "license": 1,
        "file_name": picture.file_name.rpartition("/")[2],
        "height": picture.scene.height,
        "width": picture.scene.width,
        "id": picture.number,
    }


def coco_categories() -> list[dict[str, Any]]:
    return [
        {"supercategory": CATEGORIES[name].themes[0], "id": number, "name": name}
        for name, number in CATEGORY_IDS.items()
    ]


def instance_id(picture: Picture, number: int) -> int:
    """Returns COCO's id of an annotation, and Visual Genome's of an object, by its number in the scene."""
    return picture.number * 100 + number


def instance(picture: Picture, thing: SceneObject) -> dict[str, Any]:
    """Returns an annotation. Objects too hidden to be scored are crowds, which COCO's evaluation passes over."""
    segmentation: Any = [list(map(float, polygon)) for polygon in picture.polygons[thing.number]]
    if thing.ignored:
        size = [picture.scene.height, picture.scene.width]
        segmentation = {"counts": run_lengths(picture.mask(thing.number)), "size": size}
    return {
        "segmentation": segmentation,
        "area": float(thing.area),
        "iscrowd": int(thing.ignored),
        "image_id": picture.number,
        "bbox": list(map(float, thing.box)),
        "category_id": CATEGORY_IDS[thing.category],
        "id": instance_id(picture, thing.number),
    }


class KarpathyWriter:
    """dataset_coco.json or dataset_flickr30k.json: every picture with its split, captions as written and as words."""

    def __init__(self, path: Path, dataset: str) -> None:
        self._file, self._dataset, self._count = JsonListFile(path, "images"), dataset, 0

    def add(self, picture: Picture) -> None:
        folder, name = picture.file_name.split("/")
        numbers = [caption_id(picture, place) for place in range(len(picture.captions))]
        entry: dict[str, Any] = {"filepath": folder} if self._dataset == "coco" else {}
        entry |= {"sentids": numbers, "filename": name, "imgid": self._count, "split": picture.place.split}
        entry["sentences"] = [
            {"tokens": caption.text.split(), "raw": sentence(caption), "imgid": self._count, "sentid": number}
            for caption, number in zip(picture.captions, numbers, strict=True)
        ]
        if self._dataset == "coco":
            entry["cocoid"] = picture.number
        self._file.add(entry)
        self._count += 1

    def close(self) -> None:
        self._file.close({}, {"dataset": self._dataset})


class VisualGenomeWriter:
    """{train,val,test}.txt, xml/<number>.xml, and the vocabularies, as the bottom-up-attention detector reads them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
        (folder / "xml").mkdir(parents=True, exist_ok=True)

    def add(self, picture: Picture) -> None:
        annotation = f"xml/{picture.number}.xml"
        self._lists[picture.place.split].append(f"{picture.file_name} {annotation}\n")
        # The list that names it is written last.
        (self._folder / annotation).write_bytes(_annotation(picture))

    def close(self) -> None:
        for name, words in (("objects", CATEGORIES), ("attributes", ATTRIBUTES), ("relations", RELATIONS)):
            write_text(self._folder / f"{name}_vocab.txt", "".join(f"{word}\n" for word in words))
        for split, lines in self._lists.items():
            write_text(self._folder / f"{split}.txt", "".join(lines))


def _annotation(picture: Picture) -> bytes:
    root = ElementTree.Element("annotation")
    folder, name = picture.file_name.split("/")
    add_child(root, "folder", folder)
    add_child(root, "filename", name)
    add_element(root, "source", database="roibeam toy world", image_id=picture.number)
    add_element(root, "size", width=picture.scene.width, height=picture.scene.height, depth=3)
    add_child(root, "segmented", 0)
    for thing in picture.scene.objects:
        number, difficult = instance_id(picture, thing.number), int(thing.ignored)
        entry = add_element(root, "object", name=thing.category, object_id=number, difficult=difficult)
        x, y, width, height = thing.box
        add_element(entry, "bndbox", xmin=x, ymin=y, xmax=x + width, ymax=y + height)
        for attribute in thing.attributes:
            add_child(entry, "attribute", attribute)
    for relation in picture.relations:
        subject, target = (instance_id(picture, number) for number in (relation.subject, relation.target))
        add_element(root, "relation", subject_id=subject, object_id=target, predicate=relation.name)
    return ElementTree.tostring(root)


def add_element(parent: ElementTree.Element, tag: str, **children: str | int) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag)
    for name, value in children.items():
        add_child(element, name, value)
    return element


def add_child(parent: ElementTree.Element, tag: str, value: str | int) -> None:
    ElementTree.SubElement(parent, tag).text = str(value)


class ConceptualCaptionsWriter:
    """Train_GCC-training.tsv and Validation_GCC-1.1.0-Validation.tsv: one caption for each picture, then its path."""

    _FILES: ClassVar = {"train": "Train_GCC-training.tsv", "val": "Validation_GCC-1.1.0-Validation.tsv"}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, list[str]] = {split: [] for split in self._FILES}

    def add(self, picture: Picture) -> None:
        # As in the real file: words apart, lower case.
        self._rows[picture.place.split].append(f"{picture.captions[0].text} .\t{picture.file_name}\n")

    def close(self) -> None:
        for split, name in self._FILES.items():
            write_text(self._folder / name, "".join(self._rows[split]))


class SbuWriter:
    """sbu-captions-all.json: three parallel lists. The last part of an address is the name of the picture's file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[tuple[str, str]] = []

    def add(self, picture: Picture) -> None:
        self._rows.append((_SBU_URL.format(picture.file_name.split("/")[1]), sentence(picture.captions[0])))

    def close(self) -> None:
        content = {
            "image_urls": [url for url, _ in self._rows],
            "user_ids": ["00000000@N00"] * len(self._rows),
            "captions": [caption for _, caption in self._rows],
        }
        write_text(self._folder / "sbu-captions-all.json", json.dumps(content, indent=1) + "\n")


def write_corpus(path: Path, documents: Iterable[Iterable[SceneCaption]]) -> None:
    """Writes a corpus without pictures: one sentence on each line, a blank line between documents."""
    write_text(path, "\n".join("".join(f"{sentence(caption)}\n" for caption in document) for document in documents))
