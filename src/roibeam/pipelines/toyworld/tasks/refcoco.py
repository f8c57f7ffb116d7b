"""RefCOCO+ about COCO's pictures: refs(unc).p, a pickle, beside instances.json. Ids are those of COCO's files here.

An expression means one thing of a picture, only by its relation to another: "red ball inside the hoop". No word gives
the place in the picture, as RefCOCO+ forbids it. testA has the references by relations that are visible where things
meet (inside, in front of), testB those that compare sizes.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roibeam.pipelines.toyworld.formats import (
    CATEGORY_IDS,
    INFO,
    LICENSES,
    coco_categories,
    coco_image,
    instance,
    instance_id,
)
from roibeam.pipelines.toyworld.picture import Picture
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import SceneObject
from roibeam.pipelines.toyworld.tasks.scene_queries import (
    COCO_SPLITS,
    STRENGTHS,
    BlindReader,
    Description,
    Keys,
    SceneQueries,
    Task,
    shuffled,
)
from roibeam.pipelines.toyworld.world_files import write_text

# Relations visible where things meet, and by comparing: the splits testA and testB.
MEETING = ("in front of", "behind", "inside", "around")
COMPARING = ("larger than", "smaller than")
MOST_SENTENCES = 3


@dataclass(frozen=True)
class Expression:
    """Attributes:
    phrase: of `MEETING` or `COMPARING`.
    named: numbers of the things that the words before the phrase could mean; two or more. The one thing that the
        words behind the phrase mean is none of them.
    """

    text: str
    phrase: str
    named: tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    """A thing and its expressions, all with phrases of one group."""

    thing: SceneObject
    expressions: tuple[Expression, ...]

    @property
    def is_meeting(self) -> bool:
        return self.expressions[0].phrase in MEETING


def refer(known: SceneQueries, stream: IntegerStream) -> Iterator[Reference]:
    links = shuffled(known.clear_links((*MEETING, *COMPARING)), stream)
    for thing in known.clear:
        own = [link for link in links if link[0] is thing]
        for group in (MEETING, COMPARING):
            found: dict[str, Expression] = {}
            for _, phrase, other in own:
                expression = _expression(known, thing, phrase, other, stream) if phrase in group else None
                if expression is not None and len(found) < MOST_SENTENCES:
                    found.setdefault(expression.text, expression)
            if found:
                yield Reference(thing, tuple(found.values()))
                break


def _expression(
    known: SceneQueries, thing: SceneObject, phrase: str, other: SceneObject, stream: IntegerStream
) -> Expression | None:
    names = shuffled(thing.attributes, stream)
    ways = shuffled(
        [
            Description(thing.category),
            *(Description(thing.category, (name,)) for name in names),
            *(Description("", (name,)) for name in names),
        ],
        stream,
    )
    others = [Description(other.category), *(Description(other.category, (name,)) for name in other.attributes)]
    for way in ways:
        named = known.meant(way)
        if len(named) < 2 or any(each.ignored for each in named):
            continue
        for described in others:
            meant = known.meant(described)
            rivals = [each for each in named if any(each is not other for other in meant)]
            if len(rivals) > 1 and _means_only(known, thing, named, phrase, meant):
                numbers = tuple(each.number for each in rivals)
                return Expression(f"{way.words} {phrase} the {described.words}", phrase, numbers)
    return None


def _means_only(
    known: SceneQueries, thing: SceneObject, named: Sequence[SceneObject], phrase: str, others: Sequence[SceneObject]
) -> bool:
    """Whether only this one of the named things can stand in the relation to one of the others."""
    if any(each.ignored for each in others):
        return False
    return not any(
        known.could_hold(each, phrase, other)
        for each in named
        if each is not thing
        for other in others
        if other is not each
    )


_PURPOSE, _BY_LOT = 6, 7
REFS_NAME = "refs(unc).p"
SPLITS = ("train", "val", "testA", "testB")
_PARTS = 4  # of a side of the picture, for the blind reader


@dataclass(frozen=True)
class _Ref:
    picture: Picture
    reference: Reference
    split: str
    first_sentence: int


class RefcocoTask(Task):
    name, splits = "refcoco+", COCO_SPLITS

    def __init__(self) -> None:
        self._refs: list[_Ref] = []
        self._pictures: list[Picture] = []
        self._num_sentences = 0

    def add_to(self, split: str, picture: Picture) -> None:
        stream = IntegerStream(picture.scene.seed, _PURPOSE, picture.scene.index)
        references = list(refer(SceneQueries(picture), stream))
        self._pictures += [picture] * bool(references)
        for reference in references:
            part = split if split != "test" else "testA" if reference.is_meeting else "testB"
            self._refs.append(_Ref(picture, reference, part, self._num_sentences))
            self._num_sentences += len(reference.expressions)

    def rows(self) -> dict[str, int]:
        return {split: sum(1 for _ in self._sentences(split)) for split in SPLITS}

    def entries(self) -> list[dict[str, Any]]:
        """Returns the content of the pickle."""
        return [_entry(number, ref) for number, ref in enumerate(self._refs)]

    def write(self, folder: Path) -> None:
        content = {
            "info": INFO,
            "licenses": LICENSES,
            "images": [coco_image(picture) for picture in self._pictures],
            "annotations": [instance(picture, thing) for picture in self._pictures for thing in picture.scene.objects],
            "categories": coco_categories(),
        }
        write_text(folder / "instances.json", json.dumps(content) + "\n")
        (folder / REFS_NAME).write_bytes(pickle.dumps(self.entries(), protocol=2))

    def write_results(self, folder: Path) -> None:
        """Writes the boxes of three readers: one with the scene graph; one with things, but not their relations; and
        one with boxes, but not their content."""
        guess = self._blind()
        for split in SPLITS[1:]:
            found: dict[str, list[dict[str, Any]]] = {"perfect": [], "things": [], "blind": []}
            for number, expression, ref in self._sentences(split):
                things = ref.picture.scene.objects
                lot = IntegerStream(ref.picture.scene.seed, _BY_LOT, number)
                chosen = {
                    "perfect": ref.reference.thing,
                    "things": things[lot.pick(expression.named)],
                    "blind": guess(expression, ref.picture),
                }
                for name, thing in chosen.items():
                    found[name].append({"sent_id": number, "box": list(map(float, thing.box))})
            for name, boxes in found.items():
                write_text(folder / name / f"refcoco+_{split}.json", json.dumps(boxes) + "\n")

    def _sentences(self, split: str) -> Iterator[tuple[int, Expression, _Ref]]:
        for ref in self._refs:
            if ref.split == split:
                for place, expression in enumerate(ref.reference.expressions):
                    yield ref.first_sentence + place, expression, ref

    def _blind(self) -> _Guess:
        reader = BlindReader()
        for _, expression, ref in self._sentences("train"):
            for thing in ref.picture.scene.objects:
                reader.learn(_keys(expression, thing, ref.picture), thing is ref.reference.thing)
        guesses = [_Guess(reader, strength) for strength in STRENGTHS]
        sentences = [each for split in SPLITS[1:] for each in self._sentences(split)]
        return max(
            guesses,
            key=lambda guess: sum(
                guess(expression, ref.picture) is ref.reference.thing for _, expression, ref in sentences
            ),
        )


@dataclass(frozen=True)
class _Guess:
    reader: BlindReader
    strength: float

    def __call__(self, expression: Expression, picture: Picture) -> SceneObject:
        return max(
            picture.scene.objects,
            key=lambda thing: self.reader.evidence([_keys(expression, thing, picture)], self.strength),
        )


def _keys(expression: Expression, thing: SceneObject, picture: Picture) -> Keys:
    """Keys of a box: rank by size, shape and place, with the words of the expression."""
    x, y, width, height = thing.box
    scene = picture.scene
    rank = sum(other.box[2] * other.box[3] > width * height for other in scene.objects)
    of_all = (expression.phrase, len(scene.objects), rank)
    across = (_PARTS * (2 * x + width)) // (2 * scene.width)
    down = (_PARTS * (2 * y + height)) // (2 * scene.height)
    noun = expression.text.partition(f" {expression.phrase} ")[0].split(" ")[-1]
    return [of_all, (*of_all, noun), (*of_all, noun, across, down)]


def _entry(number: int, ref: _Ref) -> dict[str, Any]:
    name = ref.picture.file_name.rpartition("/")[2].rpartition(".")[0]
    thing, sentences = ref.reference.thing, enumerate(ref.reference.expressions, ref.first_sentence)
    return {
        "ref_id": number,
        "ann_id": instance_id(ref.picture, thing.number),
        "category_id": CATEGORY_IDS[thing.category],
        "image_id": ref.picture.number,
        "split": ref.split,
        "file_name": f"{name}_{thing.number}.jpg",
        "sent_ids": [ref.first_sentence + place for place in range(len(ref.reference.expressions))],
        "sentences": [
            {"sent_id": place, "sent": each.text, "raw": each.text, "tokens": each.text.split(" ")}
            for place, each in sentences
        ],
    }
