"""A hidden region's class, read by one who knows all other objects, the hidden one's box, and the world's statistics.

Its level is computed, not proven to be the most that can be reached. It takes objects as drawn independently, given the
theme. The box tells by its width and height, how it overlaps others, and whether it touches the picture's edge, holds
another box, or lies within a hollow thing. Only in a detector's store do other regions show the hidden thing where they
overlap it: perfect regions show nothing but their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from evidence.arms import OVERLAP_NAMES
from evidence.questions import OVERLAPS, largest_overlap
from evidence.readers.read_world import ReadWorld
from roibeam.pipelines.toyworld.caption_likelihood import noun_chance, read_wording, ways_to_write
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.scene import Scene, SceneObject, find_relations
from roibeam.pipelines.toyworld.shapes import SHAPES
from roibeam.pipelines.toyworld.truth import Noun
from roibeam.pipelines.toyworld.world import CATEGORIES, COLOURS, THEMES

_NAMES = tuple(CATEGORIES)
_SIZES = ("small", "large")
_BINS, _SMALLEST, _LARGEST = 28, 24, 384  # of widths and of heights in pixels; evenly in their logarithm
_HOLDING = 3  # holds another box, lies in a hollow thing's box, neither
_PLACES = len(OVERLAP_NAMES) * 2 * _HOLDING
_SMOOTH = np.exp(-0.5 * (np.arange(-3, 4) / 0.9) ** 2)
_SHRINK = 60.0  # boxes' worth of what is common to all places


@dataclass(frozen=True)
class RegionLevels:
    """Shares right, 0 to 1: the commonest class, the reader without and with the caption."""

    commonest: float
    without_text: float
    with_text: float


def regions_read(world: ReadWorld, regions_asked: int) -> dict[str, RegionLevels]:
    """By "", " alone", " touching", " covered": the kinds of regions that `questions` tells apart, of those there are.

    All regions are asked, each with the chance that it is among those drawn from its picture.
    """
    reader = _RegionReader(world)
    rows = []
    for picture in world.pictures:
        things = picture.scene.objects
        weight = min(1.0, regions_asked / len(things))
        for thing in things:
            box = reader.by_box(picture.scene, thing.number)
            right = _NAMES.index(thing.category)
            blind = box * reader.by_others(picture.scene, thing.number)
            told = blind * reader.by_caption(picture, thing.number)
            kind = overlap_kind(picture.scene, thing.number)
            rows.append((kind, weight, right == reader.commonest, right == blind.argmax(), right == told.argmax()))
    table = np.array(rows, float)
    found = {}
    for kind, name in enumerate(("", *OVERLAP_NAMES), -1):
        here = table[table[:, 0] == kind] if name else table
        if len(here):
            levels = np.average(here[:, 2:], axis=0, weights=here[:, 1])
            found[f" {name}" if name else ""] = RegionLevels(*map(float, levels))
    return found


class _RegionReader:
    names = _NAMES

    def __init__(self, world: ReadWorld) -> None:
        scenes = [scene for scene, _ in world.others]
        self._by_theme = np.ones((len(THEMES), len(_NAMES)))
        shapes = np.zeros((_PLACES, len(_NAMES), _BINS, _BINS))
        looks: dict[str, list[SceneObject]] = {name: [] for name in _NAMES}
        for scene in scenes:
            theme = list(THEMES).index(scene.theme)
            for thing in scene.objects:
                category = _NAMES.index(thing.category)
                self._by_theme[theme, category] += 1
                shapes[_place(scene, thing.number), category][_bins(thing)] += 1
                looks[thing.category].append(thing)
        themes = np.bincount([list(THEMES).index(scene.theme) for scene in scenes], minlength=len(THEMES))
        self._themes = themes / themes.sum()
        self.commonest = int(self._by_theme.sum(axis=0).argmax())
        self._by_theme /= self._by_theme.sum(axis=1, keepdims=True)
        self._shapes = _smooth_shapes(shapes)
        self.looks = {name: _Looks(things) for name, things in looks.items()}

    def by_others(self, scene: Scene, number: int) -> np.ndarray:
        """(classes,) the chance of each, by what else there is."""
        log = np.log(self._themes)
        for thing in scene.objects:
            if thing.number != number:
                log = log + np.log(self._by_theme[:, _NAMES.index(thing.category)])
        theme = np.exp(log - log.max())
        return theme / theme.sum() @ self._by_theme

    def by_box(self, scene: Scene, number: int) -> np.ndarray:
        """(classes,) how likely things of each class have such a box in such a place."""
        across, down = _bins(scene.objects[number])
        chances: np.ndarray = self._shapes[_place(scene, number), :, across, down]
        return chances

    def by_caption(self, picture: Picture, number: int) -> np.ndarray:
        """(classes,) how likely the writer says the picture's first caption if the thing is of each class, but for
        the chance of the opening and the verb.

        What its attributes are is averaged over things of that class; its size, which the box shows, is kept, and so is
        how much of it is hidden.
        """
        scene, text = picture.scene, picture.captions[0].text
        wording = read_wording(text)
        relations = cache(lambda hollow: find_relations(_with(scene, number, "hoop" if hollow else "ball")))
        # Of classes that are neither here nor in the caption the writer would say the same.
        present = {thing.category for thing in scene.objects if thing.number != number} | set(wording.frame.split())

        @cache
        def likelihood(name: str) -> float:
            looks, total = self.looks[name], 0.0
            said = looks.said_of(scene.objects[number])
            colours = {scene.objects[number].colour: 1.0} if wording.nouns else looks.colours
            for colour, share in colours.items():
                variant = _with(scene, number, name, colour)
                for way in ways_to_write(variant, relations(bool(SHAPES[name].hollow))):
                    if way.frame == wording.frame:
                        total += share * way.chance * _named(variant, way.objects, wording.nouns, number, said)
            return total

        absent = {bool(SHAPES[name].hollow): name for name in _NAMES if name not in present}
        found = np.array(
            [likelihood(name if name in present else absent[bool(SHAPES[name].hollow)]) for name in _NAMES]
        )
        # A caption of the true scene is possible; attributes never seen on its class so far are not held against it.
        return found if found.any() else np.ones(len(_NAMES))


def _named(
    scene: Scene, objects: Sequence[int], nouns: Sequence[Noun], hidden: int, said: Callable[[Noun], float]
) -> float:
    chance = 1.0
    for number, noun in zip(objects, nouns, strict=True):
        chance *= said(noun) if number == hidden else noun_chance(noun, scene.objects[number])
    return chance


def _with(scene: Scene, number: int, category: str, colour: str | None = None) -> Scene:
    """The scene with one thing of another category and colour."""
    thing = scene.objects[number]
    attributes = (colour or thing.colour, *thing.attributes[1:])
    other = replace(thing, category=category, attributes=attributes)
    return replace(scene, objects=(*scene.objects[:number], other, *scene.objects[number + 1 :]))


class _Looks:
    """The attributes of things of one category; all but the size are averaged over."""

    def __init__(self, things: Sequence[SceneObject]) -> None:
        counts: dict[tuple[str, ...], int] = {}
        for thing in things:
            look = tuple(name for name in thing.attributes if name not in _SIZES)
            counts[look] = counts.get(look, 0) + 1
        self.shares = {look: count / len(things) for look, count in counts.items()}
        self.colours = {
            colour: sum(share for look, share in self.shares.items() if look[0] == colour) for colour in COLOURS
        }
        self._like = things[0]
        self._found: dict[tuple[Noun, tuple[str, ...]], float] = {}

    def said_of(self, like: SceneObject) -> Callable[[Noun], float]:
        """How likely a thing of this category, of the size of another, is named in given words."""
        sizes = tuple(name for name in like.attributes if name in _SIZES)

        def said(noun: Noun) -> float:
            key = noun, sizes
            if key not in self._found:
                self._found[key] = sum(
                    share * noun_chance(noun, replace(self._like, attributes=(*look, *sizes)))
                    for look, share in self.shares.items()
                )
            return self._found[key]

        return said


def overlap_kind(scene: Scene, number: int) -> int:
    """A place in `OVERLAP_NAMES`."""
    return int(np.digitize(largest_overlap(_boxes(scene), number), OVERLAPS))


def _boxes(scene: Scene) -> np.ndarray:
    """(R, 4) x1 y1 x2 y2, as the regions of the perfect store have them."""
    boxes = np.array([thing.box for thing in scene.objects], float)
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def _place(scene: Scene, number: int) -> int:
    """What of a box matters beside its size, as a number below `_PLACES`."""
    x, y, width, height = scene.objects[number].box
    edge = x == 0 or y == 0 or x + width == scene.width or y + height == scene.height
    holding = 2
    for thing in scene.objects:
        if thing.number != number:
            if _middle_holds(scene.objects[number], thing):
                holding = 0
            elif SHAPES[thing.category].hollow and _middle_holds(thing, scene.objects[number]):
                holding = min(holding, 1)
    return (overlap_kind(scene, number) * 2 + edge) * _HOLDING + holding


def _middle_holds(outer: SceneObject, inner: SceneObject) -> bool:
    """Whether a box lies within another less an eighth at each edge: seen boxes, where `relations` takes whole ones."""
    return all(
        8 * inner.box[axis] >= 8 * outer.box[axis] + outer.box[axis + 2]
        and 8 * (inner.box[axis] + inner.box[axis + 2]) <= 8 * outer.box[axis] + 7 * outer.box[axis + 2]
        for axis in (0, 1)
    )


def _bins(thing: SceneObject) -> tuple[int, int]:
    shares = np.log(np.array(thing.box[2:]) / _SMALLEST) / np.log(_LARGEST / _SMALLEST)
    across, down = np.clip((shares * _BINS).astype(int), 0, _BINS - 1).tolist()
    return across, down


def _smooth_shapes(counts: np.ndarray) -> np.ndarray:
    """(places, classes, bins, bins) the chance of a place and a size, for each class."""
    for axis in (2, 3):
        counts = np.apply_along_axis(np.convolve, axis, counts, _SMOOTH / _SMOOTH.sum(), "same")
    everywhere = counts.sum(axis=0) + 1e-3
    everywhere /= everywhere.sum(axis=(1, 2), keepdims=True)
    here = counts.sum(axis=(2, 3), keepdims=True)
    places = (here + 1) / (here + 1).sum(axis=0)
    chances: np.ndarray = places * (counts + _SHRINK * everywhere) / (here + _SHRINK)
    return chances
