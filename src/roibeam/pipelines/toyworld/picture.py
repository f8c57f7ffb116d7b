"""Pictures as data: one line of scenes.jsonl each, and statistics over many of them.

Statistics: sizes, occlusion, crowding, and how far words alone predict.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from roibeam.pipelines.toyworld.captions import SceneCaption, write_captions
from roibeam.pipelines.toyworld.scene import Drawing, Relation, Scene, SceneObject, find_relations
from roibeam.pipelines.toyworld.shapes import SUBPIXEL, fill, outlines
from roibeam.pipelines.toyworld.world import ATTRIBUTES, CATEGORIES, SplitSlot, place_of

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
    captions: tuple[SceneCaption, ...]
    polygons: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def place(self) -> SplitSlot:
        return place_of(self.scene.index)

    @property
    def number(self) -> int:
        """Number in the data sets: 1 for scene 0."""
        return self.scene.index + 1

    @property
    def file_name(self) -> str:
        """Path below the folder of its data set."""
        return self.place.file_name(self.number)

    def to_line(self) -> str:
        """Returns one line of JSON with its newline; the same bytes for the same scene."""
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
        """(height, width) bool: the visible pixels of an object, holes filled, by its polygons."""
        points = [np.array(polygon, np.int64).reshape(-1, 2) * SUBPIXEL for polygon in self.polygons[number]]
        return np.any([fill([one], self.scene.height, self.scene.width) for one in points], axis=0)


def describe(drawing: Drawing) -> Picture:
    """Adds relations, captions and outlines to a scene."""
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
    """Reads the pictures of a scenes.jsonl, one at a time in memory."""
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
        captions=tuple(SceneCaption(c["text"], c["kind"], tuple(c["objects"])) for c in entry["captions"]),
        polygons=tuple(tuple(map(tuple, polygons)) for polygons in entry["polygons"]),
    )


BOX_SIDES = (24, 32, 48, 64, 96, 128, 192, 385)  # Pixels, of the longer side.
COVERED = (0, 1, 101, 301, 501, 701, 1001)  # Permille of an object's pixels.


class Statistics:
    """Counts over pictures; only whole numbers."""

    def __init__(self) -> None:
        self.pictures = 0
        self.objects: Counter[str] = Counter()
        self.attributes: Counter[str] = Counter()
        self.colours: Counter[tuple[str, str]] = Counter()
        self.box_sides: Counter[int] = Counter()
        self.covered: Counter[int] = Counter()
        self.crowding: Counter[int] = Counter()
        self.relations: Counter[str] = Counter()
        self.captions: Counter[str] = Counter()
        self.smallest_side = 0
        self.ignored = 0

    def add(self, picture: Picture) -> None:
        self.pictures += 1
        self.crowding[len(picture.scene.objects)] += 1
        for thing in picture.scene.objects:
            self.objects[thing.category] += 1
            self.attributes.update(thing.attributes)
            self.colours[thing.category, thing.colour] += 1
            self.box_sides[_bin(max(thing.box[2:]), BOX_SIDES)] += 1
            self.covered[_bin(1000 - thing.visible, COVERED)] += 1
            self.ignored += thing.ignored
            shorter = min(thing.box[2:])
            self.smallest_side = min(self.smallest_side or shorter, shorter)
        self.relations.update(relation.name for relation in picture.relations)
        self.captions.update(caption.text for caption in picture.captions)

    @property
    def num_objects(self) -> int:
        return self.objects.total()

    def to_json(self) -> dict[str, Any]:
        """Returns counts; shares in permille, rounded down."""
        most = Counter[str]()
        for (category, _), count in self.colours.items():
            most[category] = max(most[category], count)
        covered_most = sum(count for first, count in self.covered.items() if first >= 301)
        repeated = sum(count for count in self.captions.values() if count > 1)
        commonest = self.objects.most_common(1)[0][1]
        commonest_colour = Counter(colour for _, colour in self.colours.elements()).most_common(1)[0][1]
        return {
            "pictures": self.pictures,
            "objects": self.num_objects,
            "captions": self.captions.total(),
            "different_captions": len(self.captions),
            "captions_of_several_pictures_permille": repeated * 1000 // self.captions.total(),
            "smallest_side_px": self.smallest_side,
            "covered_over_30_percent_permille": covered_most * 1000 // self.num_objects,
            "ignored_permille": self.ignored * 1000 // self.num_objects,
            "commonest_category_permille": commonest * 1000 // self.num_objects,
            "commonest_colour_permille": commonest_colour * 1000 // self.num_objects,
            "colour_guessed_from_category_permille": most.total() * 1000 // self.num_objects,
            "longer_side_px": _histogram(self.box_sides, BOX_SIDES),
            "covered_permille": _histogram(self.covered, COVERED),
            "objects_per_picture": dict(sorted(self.crowding.items())),
            "categories": {name: self.objects[name] for name in CATEGORIES},
            "attributes": {name: self.attributes[name] for name in ATTRIBUTES},
            "relations": dict(sorted(self.relations.items())),
        }


def _bin(value: int, edges: tuple[int, ...]) -> int:
    """Returns the largest edge that is not above `value`."""
    return max(edge for edge in edges if edge <= value)


def _histogram(counts: Counter[int], edges: tuple[int, ...]) -> dict[str, int]:
    return {f"{a}-{b - 1}": counts[a] for a, b in pairwise(edges)}
