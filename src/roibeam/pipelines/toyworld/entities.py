"""Flickr30k Entities of a toy world, with the gold parse of each caption.

    ENTITIES/
      entities.json        version, world, counts, digest of all texts
      Sentences/<n>.txt    captions of picture n with marked phrases; Annotations/<n>.xml their boxes (ground: a scene)
      parses.conll         dependency parses, Stanford's labels in spaCy's spelling (compound, nummod, pobj, prep), but
                           the ball of "there is a ball" is the nsubj, as in de Marneffe and Manning 2008 (spaCy: attr)
      {train,val,test}.txt names of the pictures; train has those of restval

A group of a given number has one chain, as an object has. Pixels count from 1, corners belong to the box. A folder that
is there is whole. FROZEN: heads are compared on these files; a change must raise `ENTITIES_VERSION`.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.toyworld.captions import GROUND_PHRASES, NUMBERS, RELATION_PHRASES, SceneCaption, plural
from roibeam.pipelines.toyworld.formats import add_child, add_element
from roibeam.pipelines.toyworld.picture import SCENES_NAME, Picture, read_pictures
from roibeam.pipelines.toyworld.world import CATEGORIES
from roibeam.pipelines.toyworld.world_files import FolderBesideWorld, write_text
from roibeam.pipelines.toyworld.write import PICTURES

ROOT = -1
_NOUNS = frozenset(CATEGORIES) | {plural(category) for category in CATEGORIES}
_GROUNDS = frozenset(GROUND_PHRASES.values())
_PHRASES = frozenset(phrase for both in RELATION_PHRASES.values() for phrase in both)
_COMPARED = "than"


@dataclass(frozen=True)
class NamedPart:
    """Words that name something.

    Attributes:
        first, last: places of its words.
        objects: numbers of the named objects; () for the ground and for "a picture".
        is_ground: whether it is the ground.
    """

    first: int
    last: int
    objects: tuple[int, ...] = ()
    is_ground: bool = False


@dataclass(frozen=True)
class ParsedCaption:
    """Attributes:
    words: of the caption, the first with a capital, the last a full stop.
    heads: place of the word that each hangs on, `ROOT` for one of them.
    labels: of these arcs.
    parts: words that name something, in reading order.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    parts: tuple[NamedPart, ...]


def parse_of(caption: SceneCaption) -> ParsedCaption:
    """Parses a caption; ValueError for one that `captions` does not write."""
    return _Reader(caption).parsed()


@dataclass
class _Reader:
    """Reads the words of a caption from the first to the last."""

    caption: SceneCaption
    at: int = 0
    heads: dict[int, int] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    parts: list[NamedPart] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = self.caption.text.split(" ")
        self._objects = (
            [self.caption.objects] if self.caption.kind == "number" else [(n,) for n in self.caption.objects]
        )

    def parsed(self) -> ParsedCaption:
        self._read()
        words = [self.words[0].capitalize(), *self.words[1:], "."]
        root = next(place for place, head in self.heads.items() if head == ROOT)
        self._hang(len(self.words), root, "punct")
        places = range(len(words))
        return ParsedCaption(
            tuple(words),
            tuple(self.heads[place] for place in places),
            tuple(self.labels[place] for place in places),
            tuple(self.parts),
        )

    def _read(self) -> None:
        if self.words[0] == "there":
            self._take(1, "expl")
            self._take(ROOT, "root")
            noun = self._noun_phrase(1, "nsubj")
        elif self.words[:3] == ["a", "picture", "of"]:
            self._take(1, "det")
            self._take(ROOT, "root")
            self._take(1, "prep")
            self.parts.append(NamedPart(0, 1))
            noun = self._noun_phrase(2, "pobj")
        else:
            noun = self._noun_phrase(ROOT, "root")
            if self._is_next("is"):
                self._hang(noun, self._take(ROOT, "root"), "nsubj")
                noun = self._related(self.at - 1, "acomp")
        while self.at < len(self.words):
            noun = self._further(noun)

    def _further(self, noun: int) -> int:
        """Reads the words behind a noun; returns the noun that they end with."""
        if self._is_next("and"):
            self._take(noun, "cc")
            return self._noun_phrase(noun, "conj")
        if self._is_next("that is"):
            self._take(self.at + 1, "nsubj")
            return self._related(self._take(noun, "relcl"), "acomp")
        if any(self._is_next(ground) for ground in _GROUNDS):
            on = self._take(noun, "prep")  # "on the wooden floor", the last words of a caption
            first, last = self.at, len(self.words) - 1
            self._take(last, "det")
            while self.at < last:
                self._take(last, "compound" if self.words[self.at] == "brick" else "amod")
            self.parts.append(NamedPart(first, last, is_ground=True))
            return self._take(on, "pobj")
        return self._related(noun, "amod")

    def _related(self, head: int, comparison: str) -> int:
        """ "to the left of a box": the phrase hangs on `head`, the noun on its last word."""
        phrase = next((each for each in _PHRASES if self._is_next(each)), None)
        if phrase is None:
            raise ValueError(f"caption {self.caption.text!r}: no phrase of the toy world at word {self.at}")
        words = phrase.split(" ")
        if words[-1] == _COMPARED:
            words_labels = [(head, comparison), (self.at, "prep")]
        elif len(words) == 4:  # to the left of
            words_labels = [(head, "prep"), (self.at + 2, "det"), (self.at, "pobj"), (self.at + 2, "prep")]
        elif len(words) == 3:  # in front of
            words_labels = [(head, "prep"), (self.at, "pobj"), (self.at + 1, "prep")]
        else:
            words_labels = [(head, "prep")]
        for each in words_labels:
            last = self._take(*each)
        return self._noun_phrase(last, "pobj")

    def _noun_phrase(self, head: int, label: str) -> int:
        first = self.at
        noun = next(place for place in range(first, len(self.words)) if self.words[place] in _NOUNS)
        self._take(noun, "nummod" if self.words[first] in NUMBERS.values() else "det")
        while self.at < noun:
            self._take(noun, "amod")
        self.parts.append(NamedPart(first, noun, self._objects[sum(bool(part.objects) for part in self.parts)]))
        return self._take(head, label)

    def _is_next(self, words: str) -> bool:
        return self.words[self.at : self.at + len(words.split(" "))] == words.split(" ")

    def _take(self, head: int, label: str) -> int:
        self._hang(self.at, head, label)
        self.at += 1
        return self.at - 1

    def _hang(self, place: int, head: int, label: str) -> None:
        self.heads[place], self.labels[place] = head, label


ENTITIES_VERSION = 1
ENTITIES_NAME = "entities.json"
ENTITIES_FORMAT = "roibeam-toyworld-entities"
PARSES_NAME = "parses.conll"
_SPLIT_OF = {"restval": "train"}
# Types as in Flickr30k Entities; all others are "other".
_TYPES = {
    "fish": "animals", "hat": "clothing", "button": "clothing", "boat": "vehicles", "bell": "instruments",
    "heart": "bodyparts", "house": "scene",
}  # fmt: skip
_FIRST_GROUP, _GROUND = 50, 99  # chains of a picture: its number and two digits, objects from 00


@dataclass(frozen=True)
class ToyEntities(FolderBesideWorld):
    """Request for the entities of a world."""

    option, holds, manifest_name = "--entities", "entities", ENTITIES_NAME
    format, version = ENTITIES_FORMAT, ENTITIES_VERSION

    def _write_files(self, folder: Path, workers: int) -> dict[str, Any]:
        splits: dict[str, list[str]] = {"train": [], "val": [], "test": []}
        counts, digest = Counter[str](), hashlib.sha256()

        def write(name: str, text: str) -> None:
            write_text(folder / name, text)
            data = text.encode("utf-8")
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)

        folder.mkdir(parents=True)
        with (
            Progress("marking phrases", self.num_images, PICTURES) as progress,
            open(folder / PARSES_NAME, "w", encoding="utf-8", newline="\n") as parses,
        ):
            for picture in progress.counting(read_pictures(self.world / SCENES_NAME)):
                split = picture.place.split
                splits[_SPLIT_OF.get(split, split)].append(f"{picture.number}\n")
                captions = [parse_of(caption) for caption in picture.captions]
                chains = _Chains(picture, captions)
                sentences = "".join(f"{_marked(caption, chains)}\n" for caption in captions)
                write(f"Sentences/{picture.number}.txt", sentences)
                write(f"Annotations/{picture.number}.xml", chains.annotation())
                blocks = "".join(_block(picture, place, caption) for place, caption in enumerate(captions))
                parses.write(blocks)
                digest.update(blocks.encode("utf-8"))
                counts["captions"] += len(captions)
                counts["phrases"] += sum(len(caption.parts) for caption in captions)
                counts["with boxes"] += sum(bool(part.objects) for caption in captions for part in caption.parts)
        for split, names in splits.items():
            write(f"{split}.txt", "".join(names))
        images = {split: len(names) for split, names in splits.items()}
        return {"images": images, "counts": dict(counts), "sha256": digest.hexdigest()}


class _Chains:
    """Chains of a picture: things that its captions name, each with its number."""

    def __init__(self, picture: Picture, captions: Sequence[ParsedCaption]) -> None:
        self._picture = picture
        parts = [part for caption in captions for part in caption.parts]
        self._single = sorted({part.objects for part in parts if len(part.objects) == 1})
        self._groups = sorted({part.objects for part in parts if len(part.objects) > 1})
        self._has_ground = any(part.is_ground for part in parts)

    def mark(self, part: NamedPart) -> str:
        """Returns chain and type, as they stand in a mark."""
        if part.is_ground:
            return f"{self._number(_GROUND)}/scene"
        if not part.objects:
            return "0/notvisual"
        category = self._picture.scene.objects[part.objects[0]].category
        return f"{self._of(part.objects)}/{_TYPES.get(category, 'other')}"

    def annotation(self) -> str:
        scene = self._picture.scene
        root = ElementTree.Element("annotation")
        add_child(root, "filename", f"{self._picture.number}.jpg")
        add_element(root, "size", width=scene.width, height=scene.height, depth=3)
        for thing in scene.objects:
            chains = [self._of(each) for each in (*self._single, *self._groups) if thing.number in each]
            if chains:
                entry = _object(root, chains)
                x, y, width, height = thing.box
                add_element(entry, "bndbox", xmin=x + 1, ymin=y + 1, xmax=x + width, ymax=y + height)
        if self._has_ground:
            entry = _object(root, [self._number(_GROUND)])
            add_child(entry, "scene", 1)
            add_child(entry, "nobndbox", 0)
        ElementTree.indent(root, "\t")
        return ElementTree.tostring(root, encoding="unicode") + "\n"

    def _of(self, objects: tuple[int, ...]) -> int:
        if len(objects) == 1:
            return self._number(objects[0])
        return self._number(_FIRST_GROUP + self._groups.index(objects))

    def _number(self, within: int) -> int:
        return self._picture.number * 100 + within


def _object(root: ElementTree.Element, chains: Sequence[int]) -> ElementTree.Element:
    entry = ElementTree.SubElement(root, "object")
    for chain in chains:
        add_child(entry, "name", chain)
    return entry


def _marked(caption: ParsedCaption, chains: _Chains) -> str:
    words = list(caption.words)
    for part in caption.parts:
        words[part.first] = f"[/EN#{chains.mark(part)} {words[part.first]}"
        words[part.last] += "]"
    return " ".join(words)


def _block(picture: Picture, place: int, caption: ParsedCaption) -> str:
    """Returns ten columns as of CoNLL-X, words counted from 1."""
    words = enumerate(zip(caption.words, caption.heads, caption.labels, strict=True), start=1)
    lines = [f"{number}\t{word}\t_\t_\t_\t_\t{head + 1}\t{label}\t_\t_" for number, (word, head, label) in words]
    return "\n".join([f"# sent_id = {picture.number}#{place}", *lines, "", ""])
