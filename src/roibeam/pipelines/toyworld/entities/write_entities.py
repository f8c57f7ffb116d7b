"""Flickr30k Entities of a toy world on disk:

    ENTITIES/
      entities.json        what is here: version, world, counts, digest of all texts
      Sentences/<n>.txt    the captions of picture n, phrases marked with what they mean
      Annotations/<n>.xml  the boxes of what captions name; the ground is a scene
      parses.conll         a gold dependency parse of each caption
      {train,val,test}.txt names of the pictures; train has those of restval

An object has one chain, and so has a group of which a caption says the number: its boxes are those of all members.
Pixels count from 1, corners belong to the box. No file of the world changes; all is written beside and gets its name at
the end: a folder that is there is whole.

FROZEN: heads are compared on these files. Whoever changes what is written must raise `ENTITIES_VERSION`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from roibeam.features.folders.durable_files import write_json_atomically
from roibeam.features.folders.folder_lock import store_lock
from roibeam.pipelines.common.console.progress import Progress
from roibeam.pipelines.toyworld.beside_world import WrittenFiles, check_beside, found_beside
from roibeam.pipelines.toyworld.entities.caption_parse import NamedPart, ParsedCaption, parse_of
from roibeam.pipelines.toyworld.files import write_text
from roibeam.pipelines.toyworld.picture import SCENES_NAME, Picture, read_pictures
from roibeam.pipelines.toyworld.world import WORLD_VERSION
from roibeam.pipelines.toyworld.write import PICTURES

ENTITIES_VERSION = 1
ENTITIES_NAME = "entities.json"
ENTITIES_FORMAT = "roibeam-toyworld-entities"
PARSES_NAME = "parses.conll"
_SPLIT_OF = {"restval": "train"}
# As people of Flickr30k Entities might say; all others are "other".
_TYPES = {
    "fish": "animals", "hat": "clothing", "button": "clothing", "boat": "vehicles", "bell": "instruments",
    "heart": "bodyparts", "house": "scene",
}  # fmt: skip
_FIRST_GROUP, _GROUND = 50, 99  # chains of a picture: its number and two digits, objects from 00


@dataclass(frozen=True)
class ToyEntities:
    """The entities that are asked for.

    Attributes:
        folder: of them, as it was typed.
        world: folder of the toy world.
        seed, num_images: of the world.
    """

    folder: str
    world: Path
    seed: int
    num_images: int

    def check(self) -> None:
        """Sees that they can be written, or are there, before anything is drawn.

        Raises:
            ValueError: if the folder cannot be theirs, or holds others.
        """
        check_beside("--entities", self.folder, self.world, holds="entities")
        self._found()

    def write(self) -> WrittenFiles:
        """Writes the entities of the drawn world, or finds them.

        Raises:
            ValueError: as `check`.
        """
        start, out = time.monotonic(), Path(self.folder).resolve()
        with store_lock(self.world):
            found = self._found()
            if found is not None:
                return WrittenFiles(found, False, time.monotonic() - start)
            beside = out.with_name(f".{out.name}.tmp")
            shutil.rmtree(beside, ignore_errors=True)  # of a run that was stopped
            manifest = self._plan() | self._write_files(beside)
            write_json_atomically(beside / ENTITIES_NAME, manifest)
            os.replace(beside, out)
        return WrittenFiles(manifest, True, time.monotonic() - start)

    def _plan(self) -> dict[str, Any]:
        world = {"world_version": WORLD_VERSION, "seed": self.seed, "images": self.num_images}
        return {"format": ENTITIES_FORMAT, "entities_version": ENTITIES_VERSION, "world": world}

    def _found(self) -> dict[str, Any] | None:
        return found_beside("--entities", self.folder, ENTITIES_NAME, self._plan(), holds="entities")

    def _write_files(self, folder: Path) -> dict[str, Any]:
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
    """What the captions of a picture name, each with its number."""

    def __init__(self, picture: Picture, captions: Sequence[ParsedCaption]) -> None:
        self._picture = picture
        parts = [part for caption in captions for part in caption.parts]
        self._single = sorted({part.objects for part in parts if len(part.objects) == 1})
        self._groups = sorted({part.objects for part in parts if len(part.objects) > 1})
        self._has_ground = any(part.is_ground for part in parts)

    def mark(self, part: NamedPart) -> str:
        """Chain and type, as they stand in a mark."""
        if part.is_ground:
            return f"{self._number(_GROUND)}/scene"
        if not part.objects:
            return "0/notvisual"
        category = self._picture.scene.objects[part.objects[0]].category
        return f"{self._of(part.objects)}/{_TYPES.get(category, 'other')}"

    def annotation(self) -> str:
        scene = self._picture.scene
        root = ElementTree.Element("annotation")
        _child(root, "filename", f"{self._picture.number}.jpg")
        size = ElementTree.SubElement(root, "size")
        for tag, value in (("width", scene.width), ("height", scene.height), ("depth", 3)):
            _child(size, tag, value)
        for thing in scene.objects:
            chains = [self._of(each) for each in (*self._single, *self._groups) if thing.number in each]
            if chains:
                entry = _object(root, chains)
                x, y, width, height = thing.box
                corners = ElementTree.SubElement(entry, "bndbox")
                for tag, value in (("xmin", x + 1), ("ymin", y + 1), ("xmax", x + width), ("ymax", y + height)):
                    _child(corners, tag, value)
        if self._has_ground:
            entry = _object(root, [self._number(_GROUND)])
            _child(entry, "scene", 1)
            _child(entry, "nobndbox", 0)
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
        _child(entry, "name", chain)
    return entry


def _child(parent: ElementTree.Element, tag: str, value: str | int) -> None:
    ElementTree.SubElement(parent, tag).text = str(value)


def _marked(caption: ParsedCaption, chains: _Chains) -> str:
    words = list(caption.words)
    for part in caption.parts:
        words[part.first] = f"[/EN#{chains.mark(part)} {words[part.first]}"
        words[part.last] += "]"
    return " ".join(words)


def _block(picture: Picture, place: int, caption: ParsedCaption) -> str:
    """Ten columns as of CoNLL-X, words counted from 1."""
    return "".join([f"# sent_id = {picture.number}#{place}\n", *_lines(caption), "\n"])


def _lines(caption: ParsedCaption) -> Iterator[str]:
    for place, (word, head, label) in enumerate(zip(caption.words, caption.heads, caption.labels, strict=True)):
        yield f"{place + 1}\t{word}\t_\t_\t_\t_\t{head + 1}\t{label}\t_\t_\n"
