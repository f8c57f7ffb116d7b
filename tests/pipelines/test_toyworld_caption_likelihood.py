"""How likely each caption is: as often as the writer writes it, and never where it is false."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from test_toyworld_truth import thing

from roibeam.pipelines.toyworld import captions
from roibeam.pipelines.toyworld.caption_likelihood import KnownWays, ways_to_write
from roibeam.pipelines.toyworld.captions import SceneCaption, write_captions
from roibeam.pipelines.toyworld.picture import Picture, describe
from roibeam.pipelines.toyworld.randomness import Weights
from roibeam.pipelines.toyworld.scene import Relation, Scene, generate
from roibeam.pipelines.toyworld.truth import KnownScene, parse_caption


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return [describe(generate(7, index)) for index in range(60)]


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
def test_likelihoods_are_those_of_the_writer_followed_down_every_branch(
    things: tuple[captions.SceneObject, ...], relations: tuple[Relation, ...]
) -> None:
    things = tuple(replace(one, number=number) for number, one in enumerate(things))
    scene = Scene(0, 0, 300, 300, "garden", "sand", things, ())
    known = KnownWays([(scene, relations)])
    expected = written(scene, relations)
    found = {text: float(known.likelihood(text)[0]) for text in expected}
    assert found == pytest.approx(expected, rel=1e-9)
    assert sum(found.values()) == pytest.approx(1)


def test_captions_are_drawn_as_often_as_they_are_likely(pictures: list[Picture]) -> None:
    """Of whole scenes, with random numbers as the world has them; the second caption too."""
    picture, draws = pictures[1], 1500
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


def test_what_is_false_is_never_said_and_what_is_true_can_be(pictures: list[Picture]) -> None:
    known = KnownWays([(picture.scene, picture.relations) for picture in pictures])
    scenes = [KnownScene(picture.scene, picture.relations) for picture in pictures]
    for picture in pictures:
        for caption in picture.captions[:2]:
            claim = parse_caption(caption.text)
            assert (known.likelihood(caption.text) > 0).tolist() == [claim.is_true_of(scene) for scene in scenes]


def test_the_ways_of_a_scene_are_all_there_are(pictures: list[Picture]) -> None:
    for picture in pictures:
        assert sum(way.chance for way in ways_to_write(picture.scene, picture.relations)) == pytest.approx(1)


def test_another_text_is_refused(pictures: list[Picture]) -> None:
    with pytest.raises(ValueError, match="no sentence of the toy world"):
        KnownWays([(pictures[0].scene, pictures[0].relations)]).likelihood("a red dog")
