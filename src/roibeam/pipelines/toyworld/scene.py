"""Scene graph: places of objects and relations between them, in whole numbers, so that it is the same on every machine.

Objects are placed one after another, a later one upon the earlier ones. `shapes.fill` decides which pixels each covers;
their colours (`render`) cannot change a label. Relations hold only between objects that are visible enough to be
scored. The opposite ("right of", "below", "behind", "smaller than") holds the other way round.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from roibeam.pipelines.toyworld import world
from roibeam.pipelines.toyworld.randomness import IntegerStream, Weights
from roibeam.pipelines.toyworld.shapes import SHAPES, SUBPIXEL, UNIT, Shape, bounds, fill, place_points

MIN_EDGE, MAX_EDGE = 256, 384
MIN_BOX_SIDE = 24  # Pixels; of every box in the labels.
MIN_SCORED_VISIBLE = 300  # Permille; objects less visible than this are ignored in scoring.
# Permille of the image: a small object's whole box is below, a large one's above.
SMALL_AREA, LARGE_AREA = 22, 110
_PURPOSE = 1
_COUNT_WEIGHTS = Weights((6, 8, 10, 11, 11, 10, 9, 8, 7, 6, 5, 4))
_FEWEST = 3
_TRIES = 10
_INSIDE_CHANCE, _COVER_CHANCE, _DEEP_CHANCE, _BIG_CHANCE = 55, 52, 18, 9
Box = tuple[int, int, int, int]
_Slices = tuple[slice, slice]


@dataclass(frozen=True)
class SceneObject:
    """One object.

    Attributes:
        number: place in the scene, from 0; a larger one lies upon a smaller one.
        attributes: the colour first.
        box: x, y, width, height of the visible pixels.
        full_box: of all its pixels, also hidden ones and those outside the image (x, y may be negative).
        visible: permille of its pixels that can be seen.
        ignored: too little of it is visible to be scored.
        area: visible pixels.
        centre, half_edge, stretch, turn, mirrored: how the shape was placed; pixels, the rest as `shapes.place_points`.
    """

    number: int
    category: str
    attributes: tuple[str, ...]
    box: Box
    full_box: Box
    visible: int
    ignored: bool
    area: int
    centre: tuple[int, int]
    half_edge: int
    stretch: int
    turn: int
    mirrored: bool

    @property
    def colour(self) -> str:
        return self.attributes[0]


@dataclass(frozen=True)
class Relation:
    """`subject` and `target` are numbers of objects; `name` is one of `world.RELATIONS`."""

    subject: int
    name: str
    target: int


@dataclass(frozen=True)
class Scene:
    """A picture's content. `covers` has (upper, lower, permille of the lower one's pixels) of objects that overlap."""

    seed: int
    index: int
    width: int
    height: int
    theme: str
    ground: str
    objects: tuple[SceneObject, ...]
    covers: tuple[tuple[int, int, int], ...]


@dataclass(eq=False)
class Layer:
    """An object's pixels.

    Attributes:
        mask: (h, w) bool, the whole object; its top left corner lies at (left, top) of the image.
        points: (V, 2) int64, the points of its shape, in eighths of a pixel from that corner.
    """

    mask: np.ndarray
    left: int
    top: int
    points: np.ndarray


@dataclass(eq=False)
class Drawing:
    """A scene and its pixels: `owner` (height, width) int8 is the visible object of each, -1 for the ground."""

    scene: Scene
    layers: list[Layer]
    owner: np.ndarray


@dataclass(eq=False)
class _Placed:
    category: str
    attributes: list[str]
    layer: Layer
    mask_box: Box  # Of the pixels set in the layer's mask.
    pixels: int
    seen: int
    box: Box
    centre: tuple[int, int]
    half_edge: int
    stretch: int
    turn: int
    mirrored: bool
    holds: bool = False


def generate(seed: int, index: int) -> Drawing:
    """Scene `index` of the world `seed`: depends on these two numbers only, not on how many scenes are made."""
    stream = IntegerStream(seed, _PURPOSE, index)
    width, height = stream.between(MIN_EDGE, MAX_EDGE), stream.between(MIN_EDGE, MAX_EDGE)
    theme = list(world.THEMES)[stream.weighted(_THEME_WEIGHTS)]
    ground = world.THEMES[theme][stream.weighted(_GROUND_WEIGHTS)]
    owner = np.full((height, width), -1, np.int8)
    placed: list[_Placed] = []
    for _ in range(_FEWEST + stream.weighted(_COUNT_WEIGHTS)):
        _add_object(stream, theme, owner, placed)
    objects = tuple(_scene_object(number, thing, width * height) for number, thing in enumerate(placed))
    covers = tuple(_covers(placed))
    scene = Scene(seed, index, width, height, theme, ground, objects, covers)
    return Drawing(scene, [thing.layer for thing in placed], owner)


_COLOUR_WEIGHTS = Weights(world.COLOUR_WEIGHTS)
_CATEGORY_NAMES, _COLOUR_NAMES = tuple(world.CATEGORIES), tuple(world.COLOURS)
_GROUND_WEIGHTS, _THEME_WEIGHTS = Weights((2, 1)), Weights(world.THEME_WEIGHTS)


@cache
def _category_weights(theme: str) -> Weights:
    return Weights(
        [
            category.weight * (world.THEME_FACTOR if theme in category.themes else 1)
            for category in world.CATEGORIES.values()
        ]
    )


@cache
def _first_counts_double(count: int) -> Weights:
    """Weights that make the first as likely as the others together."""
    return Weights([max(count - 1, 1)] + [1] * (count - 1))


def _add_object(stream: IntegerStream, theme: str, owner: np.ndarray, placed: list[_Placed]) -> None:
    """Draws one object and places it; if there is no place for it, the scene has one object less."""
    name = _CATEGORY_NAMES[stream.weighted(_category_weights(theme))]
    category = world.CATEGORIES[name]
    shape = SHAPES[name]
    attributes = _attributes(stream, category, placed)
    tilted = shape.turns and stream.percent(world.TILTED_CHANCE)
    turn = stream.between(7, 11) if tilted else stream.between(0, 2) * shape.turns
    turn = -turn if stream.percent(50) else turn
    half_edge = category.size * (52 + stream.below(40) + stream.below(48)) // 100
    if stream.percent(_BIG_CHANCE):
        half_edge = half_edge * 3 // 2
    stretch, mirrored = stream.between(86, 114), stream.percent(50)
    if shape.hollow:
        stretch = 100
    holder = next((thing for thing in placed if SHAPES[thing.category].hollow and not thing.holds), None)
    inside = holder if holder is not None and not shape.hollow and stream.percent(_INSIDE_CHANCE) else None
    if inside is not None:
        room = inside.half_edge * SHAPES[inside.category].hollow // UNIT
        half_edge = min(half_edge, room * stream.between(70, 95) // 100)
    points = place_points(shape.points, half_edge=SUBPIXEL * half_edge, stretch=stretch, turn=turn, mirrored=mirrored)
    layer, offset = _layer(shape, points)
    mask_box = bounds(layer.mask)
    if min(mask_box[2:]) < MIN_BOX_SIDE:
        return
    covering = inside is None and bool(placed) and stream.percent(_COVER_CHANCE)
    deep = stream.percent(_DEEP_CHANCE)
    thing = _Placed(
        name, attributes + ["tilted"] * tilted, layer, mask_box, int(np.count_nonzero(layer.mask)), 0, (0, 0, 0, 0),
        (0, 0), half_edge, stretch, turn, mirrored,
    )  # fmt: skip
    for _ in range(_TRIES):
        target = stream.below(len(placed)) if covering else None
        if inside is not None:
            centre = (inside.centre[0] + stream.between(-2, 2), inside.centre[1] + stream.between(-2, 2))
        elif target is not None:
            centre = _beside(stream, placed[target], half_edge)
        else:
            centre = (stream.below(owner.shape[1]), stream.below(owner.shape[0]))
        thing.centre = centre
        layer.left, layer.top = centre[0] + offset[0], centre[1] + offset[1]
        if _put(thing, owner, placed, inside=inside, target=target, deep=deep):
            if inside is not None:
                inside.holds = True
            return


def _attributes(stream: IntegerStream, category: world.Category, placed: list[_Placed]) -> list[str]:
    choice = stream.below(100)
    if choice < world.FAVOURITE_CHANCE:
        colour = category.colours[stream.weighted(_first_counts_double(len(category.colours)))]
    elif choice < world.FAVOURITE_CHANCE + world.SAME_COLOUR_CHANCE and placed:
        colour = placed[-1].attributes[0]
    else:
        colour = _COLOUR_NAMES[stream.weighted(_COLOUR_WEIGHTS)]
    attributes = [colour]
    if category.patterns and stream.percent(world.PATTERN_CHANCE):
        attributes.append(category.patterns[stream.weighted(_first_counts_double(len(category.patterns)))])
    if stream.percent(world.SHINY_CHANCE * (world.OFTEN_FACTOR if category.shiny else 1)):
        attributes.append("shiny")
    if stream.percent(world.CRACKED_CHANCE * (world.OFTEN_FACTOR if category.cracked else 1)):
        attributes.append("cracked")
    return attributes


def _layer(shape: Shape, points: np.ndarray) -> tuple[Layer, tuple[int, int]]:
    """Mask of a shape whose middle is at (0, 0), and its top left corner relative to that."""
    extent = points[: sum(map(len, shape.contours))]
    left, top = (extent.min(axis=0) // SUBPIXEL).tolist()
    right, bottom = (-(-extent.max(axis=0) // SUBPIXEL)).tolist()
    points = points - np.array((left * SUBPIXEL, top * SUBPIXEL))
    outlines, _ = shape.parts(points)
    return Layer(fill(outlines, bottom - top, right - left), 0, 0, points), (left, top)


def _beside(stream: IntegerStream, target: _Placed, half_edge: int) -> tuple[int, int]:
    """Draws a place from which a good part of `target` gets covered."""
    reach = (target.half_edge + half_edge) * stream.between(30, 75) // 100
    across = stream.between(-reach * 3 // 4, reach * 3 // 4)
    along = reach if stream.percent(50) else -reach
    dx, dy = (along, across) if stream.percent(60) else (across, along)
    return target.centre[0] + dx, target.centre[1] + dy


def _window(layer: Layer, owner: np.ndarray) -> tuple[_Slices, _Slices]:
    """Slices of a layer: its place in the image, and the part of its mask that is in the image."""
    height, width = owner.shape
    top, left = max(layer.top, 0), max(layer.left, 0)
    bottom = max(min(layer.top + layer.mask.shape[0], height), top)
    right = max(min(layer.left + layer.mask.shape[1], width), left)
    image = slice(top, bottom), slice(left, right)
    return image, (slice(top - layer.top, bottom - layer.top), slice(left - layer.left, right - layer.left))


def _put(
    thing: _Placed, owner: np.ndarray, placed: list[_Placed], *, inside: _Placed | None, target: int | None, deep: bool
) -> bool:
    """Adds `thing` to the scene if it hides as much as it should, else changes nothing."""
    image, part = _window(thing.layer, owner)
    mask = thing.layer.mask[part]
    whole = mask.shape == thing.layer.mask.shape
    thing.seen = thing.pixels if whole else int(np.count_nonzero(mask))
    if thing.seen * 100 < thing.pixels * 82:
        return False
    hidden: dict[int, int] = {}
    # The target first: most tries fail at it.
    for number in sorted(range(len(placed)), key=lambda number: number != target):
        other = placed[number]
        count = _hidden(thing.layer, other, number, owner)
        if number == target:
            left = other.seen - count
            lowest, highest = (8, 29) if deep else (34, 67)
            if not lowest * other.pixels <= left * 100 <= highest * other.pixels:
                return False
        elif count * 100 > other.pixels * (20 if other is inside else 9):
            return False
        if count:
            hidden[number] = count
    region = owner[image]
    before = region.copy()
    np.copyto(region, len(placed), where=mask)
    boxes = {number: _seen_box(placed[number], owner, number) for number in hidden}
    own = thing.mask_box if whole else bounds(mask)
    if any(min(box[2:]) < MIN_BOX_SIDE for box in (*boxes.values(), own)):
        region[...] = before
        return False
    for number, box in boxes.items():
        placed[number].box = box
        placed[number].seen -= hidden[number]
    thing.box = (image[1].start + own[0], image[0].start + own[1], own[2], own[3])
    placed.append(thing)
    return True


def _hidden(layer: Layer, other: _Placed, number: int, owner: np.ndarray) -> int:
    """Number of visible pixels of `other`, `number` in `owner`, that lie under a layer."""
    x, y, width, height = other.box
    left, top = max(x, layer.left), max(y, layer.top)
    right = min(x + width, layer.left + layer.mask.shape[1])
    bottom = min(y + height, layer.top + layer.mask.shape[0])
    if left >= right or top >= bottom:
        return 0
    seen = owner[top:bottom, left:right] == number
    seen &= layer.mask[top - layer.top : bottom - layer.top, left - layer.left : right - layer.left]
    return int(np.count_nonzero(seen))


def _seen_box(thing: _Placed, owner: np.ndarray, number: int) -> Box:
    x, y, width, height = thing.box
    left, top, seen_width, seen_height = bounds(owner[y : y + height, x : x + width] == number)
    return x + left, y + top, seen_width, seen_height


def _scene_object(number: int, thing: _Placed, image_area: int) -> SceneObject:
    left, top, width, height = thing.mask_box
    full_box = (thing.layer.left + left, thing.layer.top + top, width, height)
    attributes = list(thing.attributes)
    if width * height * 1000 < image_area * SMALL_AREA:
        attributes.append("small")
    elif width * height * 1000 > image_area * LARGE_AREA:
        attributes.append("large")
    visible = thing.seen * 1000 // thing.pixels
    return SceneObject(
        number=number,
        category=thing.category,
        attributes=tuple(attributes),
        box=thing.box,
        full_box=full_box,
        visible=visible,
        ignored=visible < MIN_SCORED_VISIBLE,
        area=thing.seen,
        centre=thing.centre,
        half_edge=thing.half_edge,
        stretch=thing.stretch,
        turn=thing.turn,
        mirrored=thing.mirrored,
    )


def _covers(placed: list[_Placed]) -> list[tuple[int, int, int]]:
    """Pairs whose pixels overlap, by whole masks: also where a third object hides both."""
    found = []
    for upper, above in enumerate(placed):
        a = above.layer
        for lower, below in enumerate(placed[:upper]):
            b = below.layer
            left, top = max(a.left, b.left), max(a.top, b.top)
            right = min(a.left + a.mask.shape[1], b.left + b.mask.shape[1])
            bottom = min(a.top + a.mask.shape[0], b.top + b.mask.shape[0])
            if left >= right or top >= bottom:
                continue
            both = (
                a.mask[top - a.top : bottom - a.top, left - a.left : right - a.left]
                & b.mask[top - b.top : bottom - b.top, left - b.left : right - b.left]
            )
            pixels = int(np.count_nonzero(both))
            if pixels:
                found.append((upper, lower, pixels * 1000 // below.pixels))
    return found


# Thresholds for relations beyond dispute.
_COVERED_BY_FRONT = 100  # Permille of the one behind.
_TIMES_LARGER = 3
_INSIDE_COVERS_AT_MOST = 200  # Permille of the frame or hoop around.


def find_relations(scene: Scene) -> tuple[Relation, ...]:
    """Returns all relations that hold, ordered by subject, target, name."""
    covers = {(upper, lower): permille for upper, lower, permille in scene.covers}
    seen = [thing for thing in scene.objects if not thing.ignored]
    areas = {thing.number: thing.full_box[2] * thing.full_box[3] for thing in seen}
    found = []
    for a in seen:
        for b in seen:
            if a is b:
                continue
            names = []
            if _inside(a, b, covers):
                names.append("inside")
            elif not _inside(b, a, covers):
                if _before(a.box, b.box, 0):
                    names.append("left of")
                if _before(a.box, b.box, 1):
                    names.append("above")
                if covers.get((a.number, b.number), 0) >= _COVERED_BY_FRONT:
                    names.append("in front of")
            if areas[a.number] >= _TIMES_LARGER * areas[b.number]:
                names.append("larger than")
            found += [Relation(a.number, name, b.number) for name in names]
    return tuple(found)


def _before(a: Box, b: Box, axis: int) -> bool:
    """Whether `a` ends before `b` begins (an eighth of the smaller one may overlap) and lies beside it, not askew."""
    length, other_length = a[axis + 2], b[axis + 2]
    if 8 * (a[axis] + length - b[axis]) > min(length, other_length):
        return False
    across = 1 - axis
    start, other_start, breadth, other_breadth = a[across], b[across], a[across + 2], b[across + 2]
    overlap = min(start + breadth, other_start + other_breadth) - max(start, other_start)
    return 2 * overlap >= min(breadth, other_breadth)


def _inside(a: SceneObject, b: SceneObject, covers: dict[tuple[int, int], int]) -> bool:
    """Whether `b` is hollow and `a` lies within its box less an eighth at each edge, hardly touching it."""
    if a.number < b.number or not SHAPES[b.category].hollow:
        return False
    return covers.get((a.number, b.number), 0) <= _INSIDE_COVERS_AT_MOST and all(
        8 * a.full_box[axis] >= 8 * b.full_box[axis] + b.full_box[axis + 2]
        and 8 * (a.full_box[axis] + a.full_box[axis + 2]) <= 8 * b.full_box[axis] + 7 * b.full_box[axis + 2]
        for axis in (0, 1)
    )
