"""Contents of the toy world and their frequencies: categories, attributes, themes, grounds; and splits of scenes.

FROZEN: detectors and models are compared on this world. A change of a number here, in `shapes`, `scene`, `captions` or
`rendering` makes another world and must raise `WORLD_VERSION`.

Nothing is drawn evenly: a few categories are common, each has its favourite colours and usual size, and things that lie
together in a scene belong together. So words alone predict something (a tree is likely green), but not everything. Data
set and split follow from a scene's number: no scene is in two, and more scenes move none.
"""

from dataclasses import dataclass, field

WORLD_VERSION = 1

COLOURS = {  # Red, green, blue; the commonest colours of things come first.
    "red": (205, 35, 40),
    "blue": (40, 90, 210),
    "green": (45, 155, 55),
    "yellow": (240, 212, 45),
    "white": (238, 238, 234),
    "brown": (122, 72, 34),
    "orange": (242, 130, 22),
    "black": (40, 40, 44),
    "purple": (128, 52, 165),
    "gray": (118, 120, 122),
    "pink": (246, 146, 192),
}
COLOUR_WEIGHTS = (18, 16, 13, 11, 10, 8, 7, 6, 5, 4, 4)
PATTERNS = ("striped", "dotted", "checkered")
OTHERS = ("small", "large", "tilted", "shiny", "cracked")
ATTRIBUTES = (*COLOURS, *PATTERNS, *OTHERS)

# In percent, of objects whose category can have it.
PATTERN_CHANCE = 38
TILTED_CHANCE = 26
SHINY_CHANCE = 10
CRACKED_CHANCE = 6
OFTEN_FACTOR = 4
# An object takes a favourite colour of its category, or that of the object before it, or else any.
FAVOURITE_CHANCE = 45
SAME_COLOUR_CHANCE = 12

THEMES = {  # A theme's grounds, the first twice as likely as the second.
    "garden": ("grass", "sand"),
    "harbor": ("water", "sand"),
    "kitchen": ("tiles", "wood"),
    "workshop": ("bricks", "wood"),
    "playroom": ("wood", "tiles"),
}
THEME_WEIGHTS = (28, 22, 20, 16, 14)
# How much likelier a category is where its theme is.
THEME_FACTOR = 6


@dataclass(frozen=True)
class Category:
    """Frequency and appearance of a category.

    Attributes:
        weight: how common it is, outside its themes.
        size: usual half-edge of its frame in pixels; drawn at 52 to 138 hundredths of it, now and then larger.
        colours: favourite ones, the first as likely as the others together.
        patterns: those it can have, the first as likely as the others together; none where they would hide its details.
        shiny, cracked: whether it is so more often than others.
    """

    weight: int
    size: int
    themes: tuple[str, ...]
    colours: tuple[str, ...]
    patterns: tuple[str, ...] = field(default=())
    shiny: bool = False
    cracked: bool = False


CATEGORIES: dict[str, Category] = {
    "ball": Category(11, 34, ("playroom", "garden"), ("red", "blue", "yellow"), (), shiny=True),
    "box": Category(10, 40, ("workshop", "harbor"), ("brown", "gray"), ("dotted",), cracked=True),
    "tree": Category(10, 54, ("garden",), ("green", "brown"), ("striped", "dotted")),
    "cup": Category(9, 36, ("kitchen",), ("white", "blue", "red"), ("striped", "dotted", "checkered"), cracked=True),
    "flower": Category(9, 34, ("garden",), ("yellow", "pink", "purple"), ("striped",)),
    "fish": Category(9, 40, ("harbor",), ("orange", "blue", "gray"), ("striped", "checkered")),
    "boat": Category(8, 52, ("harbor",), ("white", "red", "blue"), ("striped", "checkered")),
    "house": Category(8, 56, ("garden",), ("white", "red", "brown"), ("striped", "checkered"), cracked=True),
    "clock": Category(8, 36, ("kitchen", "workshop"), ("black", "brown", "white")),
    "bottle": Category(8, 44, ("kitchen", "harbor"), ("green", "brown"), ("striped", "dotted"), shiny=True),
    "wheel": Category(7, 38, ("workshop",), ("black", "gray", "red")),
    "star": Category(7, 38, ("playroom",), ("yellow", "white", "red"), ("dotted", "striped")),
    "window": Category(7, 42, ("kitchen", "workshop"), ("white", "brown"), (), cracked=True),
    "hat": Category(7, 38, ("playroom", "garden"), ("black", "brown", "purple"), ("checkered", "striped", "dotted")),
    "umbrella": Category(6, 44, ("harbor", "garden"), ("red", "black", "yellow"), ("striped", "dotted", "checkered")),
    "key": Category(6, 36, ("workshop",), ("gray", "yellow"), (), shiny=True),
    "heart": Category(6, 34, ("playroom",), ("red", "pink"), ("dotted", "checkered", "striped")),
    "frame": Category(6, 66, ("kitchen", "workshop"), ("brown", "white", "black")),
    "button": Category(6, 30, ("workshop", "playroom"), ("blue", "white", "black"), (), shiny=True),
    "mushroom": Category(6, 36, ("garden",), ("red", "brown", "white"), ("striped", "checkered")),
    "kite": Category(5, 44, ("playroom",), ("yellow", "blue", "purple"), ("striped", "checkered", "dotted")),
    "hoop": Category(5, 62, ("playroom",), ("blue", "pink", "green"), ("striped",)),
    "bell": Category(5, 38, ("harbor",), ("yellow", "orange", "gray"), ("dotted", "striped"), shiny=True),
    "moon": Category(4, 42, ("playroom",), ("yellow", "white", "gray"), ("dotted", "striped")),
}
RELATIONS = ("left of", "above", "inside", "in front of", "larger than")


@dataclass(frozen=True)
class SplitSlot:
    """A split of a data set, and the path of its pictures.

    Attributes:
        dataset: folder below OUT.
        pattern: path below it, with the number of the picture (its index and 1).
        share: scenes of 40.
    """

    dataset: str
    split: str
    pattern: str
    share: int

    @property
    def name(self) -> str:
        """Such as "coco/train"."""
        return f"{self.dataset}/{self.split}"

    def file_name(self, number: int) -> str:
        """Path below the folder of the data set."""
        return self.pattern.format(number)


# As in life, COCO's val2014 holds the pictures that Karpathy's splits call restval, val and test.
PLACES = (
    SplitSlot("visual_genome", "train", "VG_100K/{}.jpg", 12),
    SplitSlot("coco", "train", "train2014/COCO_train2014_{:012d}.jpg", 8),
    SplitSlot("conceptual_captions", "train", "training/{}.jpg", 8),
    SplitSlot("flickr30k", "train", "flickr30k-images/{}.jpg", 2),
    SplitSlot("sbu", "train", "images/{}.jpg", 2),
    SplitSlot("visual_genome", "val", "VG_100K/{}.jpg", 1),
    SplitSlot("visual_genome", "test", "VG_100K/{}.jpg", 1),
    SplitSlot("coco", "restval", "val2014/COCO_val2014_{:012d}.jpg", 1),
    SplitSlot("coco", "val", "val2014/COCO_val2014_{:012d}.jpg", 1),
    SplitSlot("coco", "test", "val2014/COCO_val2014_{:012d}.jpg", 1),
    SplitSlot("conceptual_captions", "val", "validation/{}.jpg", 1),
    SplitSlot("flickr30k", "val", "flickr30k-images/{}.jpg", 1),
    SplitSlot("flickr30k", "test", "flickr30k-images/{}.jpg", 1),
)
CYCLE = sum(place.share for place in PLACES)


def _spread() -> tuple[SplitSlot, ...]:
    """Returns the places of a cycle, each as evenly as can be, so that the first scenes are of many kinds."""
    given = dict.fromkeys(PLACES, 0)
    order = []
    for position in range(1, CYCLE + 1):
        chosen = max(PLACES, key=lambda place: place.share * position - CYCLE * given[place])
        given[chosen] += 1
        order.append(chosen)
    return tuple(order)


_ORDER = _spread()


def place_of(index: int) -> SplitSlot:
    return _ORDER[index % CYCLE]
