"""One line of scenes.jsonl: all that is known of a picture, as data to ask questions of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.pipelines.toyworld.captions import Caption, write_captions
from roibeam.pipelines.toyworld.raster import SUBPIXEL, fill, outlines
from roibeam.pipelines.toyworld.relations import find_relations
from roibeam.pipelines.toyworld.scene import Drawing, Relation, Scene, SceneObject
from roibeam.pipelines.toyworld.splits import Place, place_of

SCENES_NAME = "scenes.jsonl"


@dataclass(frozen=True)
class Picture:
    """A scene with its relations, captions and outlines.

    Attributes:
        polygons: for each object the outer borders of its visible pixels, x1 y1 x2 y2 ... in pixels; only of pictures
            for COCO, which has a place for them.
    """

    scene: Scene
    relations: tuple[Relation, ...]
    captions: tuple[Caption, ...]
    polygons: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def place(self) -> Place:
        return place_of(self.scene.index)

    @property
    def number(self) -> int:
        """What the data sets call it: 1 for scene 0."""
        return self.scene.index + 1

    @property
    def file_name(self) -> str:
        """Path below the folder of its data set."""
        return self.place.file_name(self.number)

    def to_line(self) -> str:
        """One line of JSON with its newline; the same bytes for the same scene."""
        place = self.place
        entry = {
            "file": f"{place.dataset}/{self.file_name}",
            "split": place.split,
            **vars(self.scene),
            "objects": [vars(thing) for thing in self.scene.objects],
            "relations": [[relation.subject, relation.name, relation.target] for relation in self.relations],
            "captions": [vars(caption) for caption in self.captions],
            "polygons": self.polygons,
        }
        return json.dumps(entry, separators=(",", ":")) + "\n"

    def mask(self, number: int) -> np.ndarray:
        """(height, width) bool: the visible pixels of an object, holes filled, as its polygons say."""
        points = [np.array(polygon, np.int64).reshape(-1, 2) * SUBPIXEL for polygon in self.polygons[number]]
        return np.any([fill([one], self.scene.height, self.scene.width) for one in points], axis=0)


def describe(drawing: Drawing) -> Picture:
    """Adds what follows from a scene: relations, captions, outlines."""
    scene = drawing.scene
    relations = find_relations(scene)
    outlined = scene.objects if place_of(scene.index).dataset == "coco" else ()
    polygons = tuple(_polygons(drawing, thing) for thing in outlined)
    return Picture(scene, relations, write_captions(scene, relations), polygons)


def _polygons(drawing: Drawing, thing: SceneObject) -> tuple[tuple[int, ...], ...]:
    x, y, width, height = thing.box
    seen = drawing.owner[y : y + height, x : x + width] == thing.number
    corner = np.array([x, y])
    return tuple(tuple((points + corner).ravel().tolist()) for points in outlines(seen))


def read_pictures(path: Path) -> Iterator[Picture]:
    """Pictures of a scenes.jsonl, one at a time in memory."""
    with open(path, encoding="ascii") as file:
        for line in file:
            yield _from_line(line)


def _object(entry: dict[str, Any]) -> SceneObject:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return SceneObject(**values)


def _from_line(line: str) -> Picture:
    entry = json.loads(line)
    objects = tuple(_object(thing) for thing in entry["objects"])
    covers = tuple((upper, lower, permille) for upper, lower, permille in entry["covers"])
    plain = {key: entry[key] for key in ("seed", "index", "width", "height", "theme", "ground")}
    return Picture(
        scene=Scene(**plain, objects=objects, covers=covers),
        relations=tuple(Relation(*relation) for relation in entry["relations"]),
        captions=tuple(Caption(c["text"], c["kind"], tuple(c["objects"])) for c in entry["captions"]),
        polygons=tuple(tuple(map(tuple, polygons)) for polygons in entry["polygons"]),
    )
