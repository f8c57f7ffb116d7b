"""Which captions are true of which toy scenes: all of their own, and what a wrong word makes false; and how likely each
is: as often as the writer writes it, and never where it is false."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from toyworld_judge import is_true

from roibeam.pipelines.toyworld import captions
from roibeam.pipelines.toyworld.caption_likelihood import KnownWays, ways_to_write
from roibeam.pipelines.toyworld.captions import MIN_VISIBLE, OPENINGS, RELATION_PHRASES, SceneCaption, write_captions
from roibeam.pipelines.toyworld.picture import Picture, describe
from roibeam.pipelines.toyworld.randomness import Weights
from roibeam.pipelines.toyworld.scene import Relation, Scene, SceneObject, generate
from roibeam.pipelines.toyworld.truth import Existence, KnownScene, Number, parse_caption, truthful_recall
from roibeam.pipelines.toyworld.world import ATTRIBUTES


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    """200 scenes, of four worlds."""
    return [describe(generate(seed, index)) for seed in (0, 7, 11, 2**40) for index in range(50)]


@pytest.fixture(scope="module")
def known(pictures: list[Picture]) -> list[KnownScene]:
    return [KnownScene(picture.scene, picture.relations) for picture in pictures]


def test_every_caption_is_true_of_its_own_scene(pictures: list[Picture], known: list[KnownScene]) -> None:
    kinds = set()
    for picture, own in zip(pictures, known, strict=True):
        for caption in picture.captions:
            kinds.add(caption.kind)
            assert parse_caption(caption.text).is_true_of(own), (picture.scene.seed, picture.scene.index, caption.text)
    assert len(kinds) == 6


def test_a_claim_says_what_the_writer_meant(pictures: list[Picture]) -> None:
    for picture in pictures:
        for caption in picture.captions:
            check_meaning(picture, caption)


def check_meaning(picture: Picture, caption: SceneCaption) -> None:
    claim = parse_caption(caption.text)
    things = [picture.scene.objects[number] for number in caption.objects]
    if caption.kind == "number":
        assert isinstance(claim, Number)
        assert claim.count == len(things)
        assert {thing.category for thing in things} == {claim.category}
        assert {claim.colour} <= {"", *(thing.colour for thing in things)}
        return
    assert isinstance(claim, Existence)
    assert [noun.category for noun in claim.nouns] == [thing.category for thing in things]
    # No word is lost, and none is added.
    said = [name for noun in claim.nouns for name in noun.attributes]
    assert sorted(said) == sorted(word for word in caption.text.split() if word in ATTRIBUTES)
    assert all(noun.attributes <= set(thing.attributes) for noun, thing in zip(claim.nouns, things, strict=True))
    assert len(claim.relations) == {"relation": 1, "two relations": 2}.get(caption.kind, 0)
    for relation in claim.relations:
        ends = caption.objects[relation.subject], caption.objects[relation.target]
        assert Relation(ends[0], relation.name, ends[1]) in picture.relations
    assert claim.ground == (picture.scene.ground if caption.kind == "ground" else None)


def test_what_is_true_of_another_scene_is_so_by_its_boxes_too(pictures: list[Picture], known: list[KnownScene]) -> None:
    shared = 0
    texts = [picture.captions[0].text for picture in pictures]
    for text in texts:
        claim = parse_caption(text)
        for picture, other in zip(pictures, known, strict=True):
            if claim.is_true_of(other):
                assert is_true(picture.scene, text), (picture.scene.seed, picture.scene.index, text)
                shared += 1
    # More than each of its own, far fewer than all of all.
    assert 2 * len(texts) < shared < len(texts) ** 2 // 20


@pytest.mark.parametrize("forth, back", RELATION_PHRASES.values())
def test_a_relation_may_be_turned(known: list[KnownScene], pictures: list[Picture], forth: str, back: str) -> None:
    checked = differ = 0
    for picture in pictures:
        for caption in picture.captions:
            if caption.kind != "relation" or f" {forth} " not in caption.text:
                continue
            opening = next(opening for opening in OPENINGS[::-1] if caption.text.startswith(opening))
            ends = re.split(f"(?: is)? {forth} ", caption.text.removeprefix(opening))
            turned = parse_caption(f"{ends[1]} {back} {ends[0]}")
            opposite = parse_caption(f"{ends[1]} {forth} {ends[0]}")
            claim = parse_caption(caption.text)
            answers = [claim.is_true_of(scene) for scene in known]
            assert answers == [turned.is_true_of(scene) for scene in known]
            checked += 1
            differ += answers != [opposite.is_true_of(scene) for scene in known]
    # Nearly always: both are true where a scene has a ball before a box before a ball.
    assert differ > checked * 3 // 4 > 0


def thing(number: int, words: str, visible: int = 1000) -> SceneObject:
    """An object of which only what captions tell matters: "colour other-attributes category"."""
    *attributes, category = words.split()
    box = (0, 0, 30, 30)
    return SceneObject(
        number=number, category=category, attributes=tuple(attributes), box=box, full_box=box, visible=visible,
        ignored=visible < 300, area=900, centre=(15, 15), half_edge=15, stretch=100, turn=0, mirrored=False,
    )  # fmt: skip


HALF_HIDDEN = MIN_VISIBLE - 1
THINGS = (
    thing(0, "red striped large ball"), thing(1, "blue ball"), thing(2, "orange shiny fish"),
    thing(3, "brown box"), thing(4, "green key", HALF_HIDDEN), thing(5, "green cup", MIN_VISIBLE),
    thing(6, "green cup"), thing(7, "white cup", HALF_HIDDEN),
)  # fmt: skip
# The red ball is left of the blue one, which is above the box; a fish in front of the box.
RELATIONS = (Relation(0, "left of", 1), Relation(1, "above", 3), Relation(2, "in front of", 3), Relation(3, "above", 4))


@pytest.mark.parametrize(
    "text, true",
    [
        ("a ball", True),
        ("a red ball", True),
        ("a large striped red ball", True),
        ("a green ball", False),
        ("a shiny red ball", False),
        ("a striped blue ball", False),  # There are both, but not of one ball.
        ("there is an orange fish", True),
        ("a clock", False),
        ("a picture of a key", False),  # Hidden more than a caption may name.
        ("a green cup", True),  # Just clear enough.
        ("a red ball on the sand", True),
        ("a red ball on the wooden floor", False),
        ("a green ball on the sand", False),
        ("a fish and a box", True),
        ("a fish and a clock", False),
        ("a fish and a key", False),
        ("a ball and a ball", True),
        ("a fish and a fish", False),  # There is one only.
        ("a red ball and a striped ball", False),  # Both would be the same one.
        ("a red ball to the left of a blue ball", True),
        ("a red ball is to the left of a ball", True),
        ("there is a ball to the left of a ball", True),
        ("a red ball to the right of a blue ball", False),
        ("a blue ball to the right of a red ball", True),
        ("a blue ball to the left of a red ball", False),
        ("a red ball above a blue ball", False),
        ("a box behind an orange fish", True),
        ("a box in front of an orange fish", False),
        ("a box above a key", False),  # The relation holds, the key cannot be named.
        ("a red ball to the left of a blue ball that is above a box", True),
        ("a red ball to the left of a blue ball that is below a box", False),
        ("a blue ball to the right of a red ball that is above a box", False),  # It is the blue one that is above.
        ("a red ball to the left of a blue ball that is to the right of a red ball", False),  # Three different ones.
        ("two balls", True),
        ("there are two balls", True),
        ("a picture of two balls", True),
        ("three balls", False),
        ("two red balls", False),
        ("two fish", False),
        ("two green cups", True),
        ("two cups", False),  # There are three, of which one is hidden.
        ("three cups", False),
        ("two boxes", False),
    ],
)
def test_a_word_decides(text: str, true: bool) -> None:
    scene = Scene(0, 0, 300, 300, "garden", "sand", THINGS, ())
    assert parse_caption(text).is_true_of(KnownScene(scene, RELATIONS)) is true


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "caption '' is no sentence of the toy world; expected one such as 'a red ball"),
        ("A red ball", "no sentence"),
        ("a red ball.", "no sentence"),
        ("a red dog", "no sentence"),
        ("red ball", "no sentence"),
        ("a ball left of a box", "no sentence"),
        ("a ball on the moon", "no sentence"),
        ("a ball and a box on the sand", "no sentence"),
        ("one ball", "no sentence"),
        ("two ball", "no sentence"),
        ("two striped balls", "no sentence"),
        ("there is two balls", "no sentence"),
        ("there are a ball", "no sentence"),
        ("there is a ball is above a box", "no sentence"),
        ("a ball is above a box that is above a cup", "no sentence"),
        ("a orange fish", "caption says 'a orange fish', in the toy world that is 'an orange fish'"),
        ("a red striped ball", "that is 'a striped red ball'"),
        ("a shiny shiny ball", "that is 'a shiny ball'"),
        ("a blue red ball", "no object is both blue and red"),
        ("a large small ball", "no object is both large and small"),
    ],
)
def test_another_text_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_caption(text)


def test_a_search_that_knows_what_is_true_draws_lots() -> None:
    counts = [1, 2, 4, 5, 20]
    assert truthful_recall(counts, 1) == pytest.approx((1 + 0.5 + 0.25 + 0.2 + 0.05) / 5)
    assert truthful_recall(counts, 5) == pytest.approx((4 + 0.25) / 5)
    assert truthful_recall(counts, 10) == pytest.approx((4 + 0.5) / 5)


# --- how likely a caption is ---


class Branches:
    """Stands for the writer's random numbers: takes each way once, and says how likely it is."""

    def __init__(self) -> None:
        self._path: list[int] = []
        self._limits: list[int] = []
        self._place, self.chance = 0, 1.0

    def again(self) -> bool:
        """On to the next way; whether there is one."""
        while self._path and self._path[-1] + 1 == self._limits[-1]:
            self._path.pop()
            self._limits.pop()
        if self._path:
            self._path[-1] += 1
        self._place, self.chance = 0, 1.0
        return bool(self._path)

    def _branch(self, chances: list[float]) -> int:
        if self._place == len(self._path):
            self._path.append(0)
            self._limits.append(len(chances))
        taken = self._path[self._place]
        self._place += 1
        self.chance *= chances[taken]
        return taken

    def weighted(self, weights: Weights) -> int:
        total = weights.cumulative[-1]
        return self._branch((np.diff(weights.cumulative, prepend=0) / total).tolist())

    def percent(self, chance: int) -> bool:
        return bool(self._branch([1 - chance / 100, chance / 100]))

    def pick(self, items: list[object]) -> object:
        return items[self._branch([1 / len(items)] * len(items))]


def written(scene: Scene, relations: tuple[Relation, ...]) -> dict[str, float]:
    """All texts that the writer can write first of a scene, by following it down every branch."""
    writer, branches = captions._Writer(scene, relations), Branches()
    writer._stream = branches  # type: ignore[assignment]
    chances: Counter[str] = Counter()
    nothing = 0.0
    more = True
    while more:
        caption: SceneCaption | None = writer.write()
        if caption is None:
            nothing += branches.chance
        else:
            chances[caption.text] += branches.chance  # type: ignore[assignment]
        more = branches.again()
    assert sum(chances.values()) + nothing == pytest.approx(1)
    return {text: chance / (1 - nothing) for text, chance in chances.items()}


RED, BLUE, BOX, CUP = thing(0, "red ball"), thing(1, "blue ball"), thing(2, "brown box"), thing(3, "red cup", 300)
SCENES = {
    "one thing": ((RED,), ()),
    "no relation, two alike": ((RED, BLUE), ()),
    "one way only": ((RED, BOX), (Relation(0, "above", 1),)),
    "a chain, and back": (
        (RED, BLUE, BOX, CUP),
        (Relation(0, "left of", 1), Relation(1, "above", 2), Relation(2, "larger than", 0), Relation(3, "above", 2)),
    ),
    "two attributes": ((thing(0, "red striped ball"), thing(1, "red small key")), (Relation(1, "inside", 0),)),
}


@pytest.mark.parametrize("things, relations", SCENES.values(), ids=SCENES)
def test_likelihoods_of_the_writer(things: tuple[captions.SceneObject, ...], relations: tuple[Relation, ...]) -> None:
    things = tuple(replace(one, number=number) for number, one in enumerate(things))
    scene = Scene(0, 0, 300, 300, "garden", "sand", things, ())
    known = KnownWays([(scene, relations)])
    expected = written(scene, relations)
    found = {text: float(known.likelihood(text)[0]) for text in expected}
    assert found == pytest.approx(expected, rel=1e-9)
    assert sum(found.values()) == pytest.approx(1)


def test_captions_are_drawn_as_often_as_they_are_likely() -> None:
    """Of whole scenes, with random numbers as the world has them; the second caption too."""
    picture, draws = describe(generate(7, 1)), 1500
    known = KnownWays([(picture.scene, picture.relations)])
    pairs = [
        [one.text for one in write_captions(replace(picture.scene, seed=seed), picture.relations)[:2]]
        for seed in range(draws)
    ]
    first, second = (Counter(texts) for texts in zip(*pairs, strict=True))
    common = [text for text, _ in first.most_common(40)]
    chances = np.array([known.likelihood(text)[0] for text in common])
    errors = np.sqrt(chances * (1 - chances) / draws)
    assert (np.abs(np.array([first[text] for text in common]) / draws - chances) < 4.5 * errors).all()
    # Given the first one, the second has the likelihood of what remains; tested where it matters, at the likeliest.
    top = common[0]
    after = sum(known.likelihood(top)[0] / (1 - known.likelihood(one)[0]) for one, other in pairs if one != top)
    assert abs(second[top] - after) < 4.5 * np.sqrt(after)


def test_what_is_false_is_never_said_and_what_is_true_can_be(pictures: list[Picture], known: list[KnownScene]) -> None:
    ways = KnownWays([(picture.scene, picture.relations) for picture in pictures])
    for picture in pictures[:60]:
        for caption in picture.captions[:2]:
            claim = parse_caption(caption.text)
            assert (ways.likelihood(caption.text) > 0).tolist() == [claim.is_true_of(scene) for scene in known]


def test_the_ways_of_a_scene_are_all_there_are(pictures: list[Picture]) -> None:
    for picture in pictures[:60]:
        assert sum(way.chance for way in ways_to_write(picture.scene, picture.relations)) == pytest.approx(1)
    with pytest.raises(ValueError, match="no sentence of the toy world"):
        KnownWays([(pictures[0].scene, pictures[0].relations)]).likelihood("a red dog")
