"""What can be reached at each question, computed: `PYTHONPATH=bench python -m evidence.readers [--quick] [--anew]`.

The floor is what a reader reaches that does not see what the question is about. The ceiling is what one reaches that
knows the whole scene and how captions are written. A model counts as seeing only above the floor.

Where a reader must choose, it takes the likeliest, so that no other choice is right more often:

- A hidden word: the word with the largest P(caption with the word | scene). The blind reader takes that with the
  largest P(caption with the word).
- Matching, half of the pairs being true: "yes" where P(caption | scene) > P(caption).
- Text to image: all pictures are as likely beforehand, so they are ranked by P(caption | scene).
- Image to text: one caption is of this scene, the others of any, so they are ranked by P(caption | scene) / P(caption).

P(caption | scene) is exact, P(caption) is counted over other scenes (`read_world`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from evidence.questions import REGIONS_ASKED
from evidence.readers.caption_pairs import PairReader
from evidence.readers.hidden_regions import regions_read
from evidence.readers.hidden_words import words_read
from evidence.readers.read_world import ReadWorld, expected_recall
from evidence.worlds import FULL, QUICK, SEED, Sizes
from roibeam.pipelines.toyworld.truth import truthful_recall
from roibeam.pipelines.toyworld.world import WORLD_VERSION

BOUNDS = Path(__file__).parents[1] / "results" / "bounds.json"
SCENES, QUICK_SCENES = 20_000, 1_000
_FITTED, _QUICK_FITTED = 800, 200
_CUTS = (1, 5, 10)
_LEAST = 1e-12  # A caption that no other scene gives rise to is not impossible.


@dataclass(frozen=True)
class Bound:
    """Shares of right answers, 0 to 1, or None where there is none; `how` says in a sentence how they were found."""

    floor: float | None
    ceiling: float | None
    how: str


def bounds(sizes: Sizes, path: Path) -> Mapping[str, Bound]:
    """By name of the question: read from a file if it is of these sizes, else computed and written there.

    Args:
        path: such as RESULTS/bounds.json; its folder is made if need be.
    """
    computed_from = origin(sizes)
    if path.exists():
        read = json.loads(path.read_text(encoding="utf-8"))
        if read["computed_from"] == computed_from:
            return {name: Bound(**bound) for name, bound in read["bounds"].items()}
    found = floors_and_ceilings(sizes)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = {"computed_from": computed_from, "bounds": {name: _rounded(bound) for name, bound in found.items()}}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return found


def floors_and_ceilings(sizes: Sizes) -> Mapping[str, Bound]:
    """By name of the question; takes minutes for many test pictures, seconds for `QUICK`."""
    chosen = origin(sizes)
    world = ReadWorld(sizes.test, chosen["scenes"])
    return dict(
        chain(
            _words(world),
            _regions(world),
            _matching_and_retrieval(world),
            _beside(world, chosen["fitted"]),
        )
    )


def origin(sizes: Sizes) -> dict[str, int]:
    """What bounds are computed from: others of the same are the same."""
    few = sizes.test <= QUICK.test
    return {
        "world_seed": SEED,
        "world_version": WORLD_VERSION,
        "test": sizes.test,
        "scenes": QUICK_SCENES if few else SCENES,
        "fitted": _QUICK_FITTED if few else _FITTED,
    }


def _rounded(bound: Bound) -> dict[str, object]:
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(bound).items()}


def _words(world: ReadWorld) -> Iterator[tuple[str, Bound]]:
    common, blind, perfect = words_read(world)
    blind_how = f"likeliest word given the other words, by the captions of {len(world.others):,} other scenes"
    yield "words true", Bound(blind, perfect, f"floor: {blind_how}; ceiling: likeliest word given the scene")
    trusting = f"floor: the commonest word each time; ceiling: {blind_how}"
    yield "words wrong", Bound(common, blind, f"{trusting}, for another picture says nothing of them")
    yield "words alone", Bound(common, blind, trusting)


def _regions(world: ReadWorld) -> Iterator[tuple[str, Bound]]:
    how = (
        "floor: the commonest class; ceiling (a computed level, not a proven bound): likeliest class given the other "
        "objects' classes and the hidden one's box"
    )
    for kind, levels in regions_read(world, REGIONS_ASKED).items():
        yield f"regions without text{kind}", Bound(levels.commonest, levels.without_text, how)
        with_text = f"{how}, times how likely the caption then is"
        yield f"regions with text{kind}", Bound(levels.commonest, levels.with_text, with_text)


@dataclass(frozen=True, eq=False)
class _Likelihoods:
    """Of the first captions: `given` (captions, scenes) P(caption | scene), `alone` (captions, 1) P(caption)."""

    given: np.ndarray
    alone: np.ndarray

    @staticmethod
    def of(world: ReadWorld) -> _Likelihoods:
        given = np.stack([world.known.likelihood(text) for text in world.texts])
        alone = np.array([[max(world.probability(text), _LEAST)] for text in world.texts])
        return _Likelihoods(given, alone)

    @property
    def ratio(self) -> np.ndarray:
        return self.given / self.alone


def _matching_and_retrieval(world: ReadWorld) -> Iterator[tuple[str, Bound]]:
    likelihoods = _Likelihoods.of(world)
    pictures = len(world.pictures)
    yield (
        "matching",
        Bound(
            0.5, matching_right(likelihoods.ratio, 1), "floor: a coin; ceiling: yes if P(caption|scene) > P(caption)"
        ),
    )
    yield "patterns", Bound(0.5, 0.5, "what is hidden is drawn without regard to the pair, so it tells nothing")
    true = (likelihoods.given > 0).sum(axis=1).tolist()
    for cut in _CUTS:
        floor = min(1.0, cut / pictures)
        known = f"one who knows only what is true reaches {100 * truthful_recall(true, cut):.1f} %"
        ceiling = expected_recall(likelihoods.given, cut)
        how = f"floor: chance; ceiling: pictures ranked by P(caption|scene), ties by lot; {known}"
        yield f"text_to_image_r{cut}", Bound(floor, ceiling, how)
    for cut in _CUTS:
        plain = expected_recall(likelihoods.given.T, cut)
        how = (
            "floor: chance; ceiling: captions ranked by P(caption|scene) / P(caption), ties by lot; "
            f"by P(caption|scene) alone {100 * plain:.1f} %"
        )
        yield f"image_to_text_r{cut}", Bound(min(1.0, cut / pictures), expected_recall(likelihoods.ratio.T, cut), how)


def _beside(world: ReadWorld, fitted: int) -> Iterator[tuple[str, Bound]]:
    """VisualBERT's own questions: the second caption of the candidate picture stands beside."""
    likelihoods = _Likelihoods.of(world)
    # Of the few scenes with one caption only, that one stands beside.
    beside = [picture.captions[:2][-1].text for picture in world.pictures]
    odds = PairReader(world, fitted).odds(world.texts, beside)
    how = "floor: a blind reader of both captions, fitted to those of other scenes; ceiling: as with one caption"
    yield "matching beside", Bound(matching_right(odds, 0), matching_right(likelihoods.ratio, 1), how)
    for way, floors, ceilings in (
        ("text_to_image", odds, likelihoods.given),
        ("image_to_text", odds.T, likelihoods.ratio.T),
    ):
        for cut in _CUTS:
            found = Bound(expected_recall(floors, cut), expected_recall(ceilings, cut), how)
            yield f"{way}_r{cut} beside", found


def matching_right(scores: np.ndarray, border: float) -> float:
    """The share of right answers, over each caption with its own picture and as often with any other one, 0 to 1.

    Args:
        scores: (N, N), captions and pictures, own ones on the diagonal; "yes" where one is above `border`.
    """
    own = np.eye(len(scores), dtype=bool)
    return float(((scores[own] > border).mean() + (scores[~own] <= border).mean()) / 2)


def _lines(found: Mapping[str, Bound]) -> Iterator[str]:
    yield "| question | floor, % | ceiling, % | how |"
    yield "|---|---|---|---|"
    for name, bound in found.items():
        floor, ceiling = ("" if value is None else f"{100 * value:.1f}" for value in (bound.floor, bound.ceiling))
        yield f"| {name} | {floor} | {ceiling} | {bound.how} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few pictures; nothing is written")
    parser.add_argument("--anew", action="store_true", help=f"compute and write {BOUNDS.name} again (minutes)")
    options = parser.parse_args()
    if options.anew and not options.quick:
        BOUNDS.unlink(missing_ok=True)
    for line in _lines(floors_and_ceilings(QUICK) if options.quick else bounds(FULL, BOUNDS)):
        print(line)
