"""Which data set and split a scene belongs to, by its number: no scene is in two, and more scenes move none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A split of a data set, and where its pictures lie.

    Attributes:
        dataset: folder below OUT.
        pattern: path below it, with the number of the picture (its index and 1).
        share: scenes of 40.
    """

    dataset: str
    split: str
    pattern: str
    share: int

    def file_name(self, number: int) -> str:
        """Path below the folder of the data set."""
        return self.pattern.format(number)


# As in life, COCO's val2014 holds the pictures that Karpathy's splits call restval, val and test.
PLACES = (
    Place("visual_genome", "train", "VG_100K/{}.jpg", 12),
    Place("coco", "train", "train2014/COCO_train2014_{:012d}.jpg", 8),
    Place("conceptual_captions", "train", "training/{}.jpg", 8),
    Place("flickr30k", "train", "flickr30k-images/{}.jpg", 2),
    Place("sbu", "train", "images/{}.jpg", 2),
    Place("visual_genome", "val", "VG_100K/{}.jpg", 1),
    Place("visual_genome", "test", "VG_100K/{}.jpg", 1),
    Place("coco", "restval", "val2014/COCO_val2014_{:012d}.jpg", 1),
    Place("coco", "val", "val2014/COCO_val2014_{:012d}.jpg", 1),
    Place("coco", "test", "val2014/COCO_val2014_{:012d}.jpg", 1),
    Place("conceptual_captions", "val", "validation/{}.jpg", 1),
    Place("flickr30k", "val", "flickr30k-images/{}.jpg", 1),
    Place("flickr30k", "test", "flickr30k-images/{}.jpg", 1),
)
CYCLE = sum(place.share for place in PLACES)


def _spread() -> tuple[Place, ...]:
    """The places of a cycle, each as evenly as can be, so that the first scenes are of many kinds."""
    given = dict.fromkeys(PLACES, 0)
    order = []
    for position in range(1, CYCLE + 1):
        chosen = max(PLACES, key=lambda place: place.share * position - CYCLE * given[place])
        given[chosen] += 1
        order.append(chosen)
    return tuple(order)


_ORDER = _spread()


def place_of(index: int) -> Place:
    return _ORDER[index % CYCLE]
