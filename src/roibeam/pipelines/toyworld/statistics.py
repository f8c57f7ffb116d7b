"""What a set of pictures is like: how large, hidden, crowded things are, and how far words alone tell."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.world import ATTRIBUTES, CATEGORIES

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
        """Counts; shares in permille, rounded down."""
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
    """The largest edge that is not above `value`."""
    return max(edge for edge in edges if edge <= value)


def _histogram(counts: Counter[int], edges: tuple[int, ...]) -> dict[str, int]:
    return {f"{a}-{b - 1}": counts[a] for a, b in pairwise(edges)}
