"""What each page of the toy web is about: its kind, its site, its language, its scene. Texts and pictures follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from roibeam.pipelines.toyworld.randomness import IntegerStream, Weights

# Kind of a page -> how many of 100 pages.
KINDS = {
    "good": 37,  # a natural picture, a true caption in one place or several
    "mixed": 6,  # as good, but the alternative text is another picture's
    "copied": 6,  # as good, and the picture is on three pages
    "wrong": 10,  # texts of another picture
    "swapped": 6,  # true texts in which one noun was exchanged
    "spam": 6,  # texts that sell
    "junk": 6,  # file names, dates, addresses, "click to enlarge"
    "unnatural": 7,  # logos, charts, screenshots, banners, with well written texts
    "small": 5,  # a side of 300 pixels or less
    "foreign": 6,  # in another language
    "shared": 3,  # one text for more than ten pictures
    "evaluation": 1,  # the picture is a test picture of the toy world
    "opted out": 1,  # <meta name="robots" content="noai">
}
LANGUAGES = ("de", "fr", "es", "ru")
NUM_SITES = 40
COPIES = 3  # pages of one "copied" picture
SHARED_BY = 14  # pages of one "shared" text
# Scenes of the web are numbered from here: none of them is a picture of the world (or a text of its corpus).
FIRST_WEB_SCENE = 1 << 41
_PURPOSE = 11
_WEIGHTS = Weights(tuple(KINDS.values()))
_NAMES = tuple(KINDS)


@dataclass(frozen=True)
class PagePlan:
    """
    Attributes:
        number: of the page, from 0.
        kind: one of `KINDS`.
        site: 0 to `NUM_SITES` - 1.
        language: "en" or one of `LANGUAGES`.
        scene: index of the scene on the main picture.
        copy: 0, or which copy of a picture that another page has too.
        group: number of the shared text, of pages of that kind.
    """

    number: int
    kind: str
    site: int
    language: str
    scene: int
    copy: int = 0
    group: int = 0


def plan_pages(seed: int, num_pages: int, evaluation_scenes: tuple[int, ...]) -> Iterator[PagePlan]:
    """The pages in order: the first ones do not depend on how many there are.

    Args:
        evaluation_scenes: test pictures of the toy world; pages about them take these in turn. Where there are none,
            such pages are good ones.
    """
    seen = dict.fromkeys(KINDS, 0)
    first_copy = 0
    for number in range(num_pages):
        stream = IntegerStream(seed, _PURPOSE, number)
        kind = _NAMES[stream.weighted(_WEIGHTS)]
        if kind == "evaluation" and not evaluation_scenes:
            kind = "good"
        site, language, scene = stream.below(NUM_SITES), stream.pick(LANGUAGES), FIRST_WEB_SCENE + number
        count, copy = seen[kind], 0
        seen[kind] += 1
        if kind == "copied":
            copy = count % COPIES
            first_copy = first_copy if copy else scene
            scene = first_copy
        elif kind == "evaluation":
            scene = evaluation_scenes[count % len(evaluation_scenes)]
        yield PagePlan(number, kind, site, language if kind == "foreign" else "en", scene, copy, count // SHARED_BY)
