"""Flickr30k Entities (BryanPlummer/flickr30k_entities): Sentences/<id>.txt, Annotations/<id>.xml, {train,val,test}.txt.

An <object> of the xml names one or more chains of the captions, then has a <bndbox>, or flags <scene> and <nobndbox>.
A chain may have several boxes. Its numbers count pixels from 1, as they stand; only the authors' Python takes one off.

Id rule: the name of the file without extension ("36979").
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from roibeam.features.counted import counted
from roibeam.features.printable import printable
from roibeam.pipelines.data.datasets.annotation_xml import read_annotation_xml, xml_number
from roibeam.pipelines.data.datasets.marked_sentences import (
    NOT_VISUAL,
    OWN,
    EntityPhrase,
    EntitySentence,
    parse_marked_sentence,
)
from roibeam.pipelines.data.datasets.rows import BadRow, read_lines

SENTENCES, ANNOTATIONS = "Sentences", "Annotations"
DATA_SET = "Flickr30k Entities"
Box = tuple[float, float, float, float]
_NAME = re.compile(r"([0-9]+)\.txt", re.ASCII)
_MAX_EXAMPLES = 3
BOXED, UNKNOWN = "boxed", "unknown chain"


@dataclass(frozen=True)
class EntityBoxes:
    """What an xml file says.

    Attributes:
        boxes: x1 y1 x2 y2 of each chain that has any, in file order, pixels counted from 1.
        scene, no_box: chains of objects that are the scene, and that nobody boxed; a chain may be in several of the
            three, and in a list more than once.
        height, width, depth: of the image, as written; None where not.
    """

    boxes: Mapping[str, tuple[Box, ...]]
    scene: tuple[str, ...]
    no_box: tuple[str, ...]
    height: int | None
    width: int | None
    depth: int | None

    def kind_of(self, phrase: EntityPhrase) -> str:
        """ "boxed", or why not: "not visual", "scene", "no box" or "unknown chain"; whoever has a box is boxed."""
        if phrase.chain == NOT_VISUAL:
            return "not visual"
        if phrase.chain in self.boxes:
            return BOXED
        if phrase.chain in self.scene:
            return "scene"
        return "no box" if phrase.chain in self.no_box else UNKNOWN


@dataclass(frozen=True)
class EntityImage:
    """An image.

    Attributes:
        name: of its two files.
        sentences: by number: the place among the lines that are not blank, from 0. A line that cannot be read has its
            number too, and is not here.
    """

    name: str
    sentences: Mapping[int, EntitySentence]
    boxes: EntityBoxes


@dataclass
class EntityCounts:
    """What a folder has, and what of it cannot be used; counted while it is read."""

    phrases: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    images: int = 0
    sentences: int = 0
    _examples: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, reason: str, where: str) -> None:
        self.left_out[reason] += 1
        examples = self._examples.setdefault(reason, [])
        if len(examples) < _MAX_EXAMPLES:
            examples.append(printable(where, 300))

    def lines(self) -> list[str]:
        """For people: one line on what there is, one for each reason why something is not used."""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.phrases.items()))
        lines = [f"{counted(self.sentences, 'caption')} of {counted(self.images, 'image')}; phrases: {kinds or 'none'}"]
        for reason, count in sorted(self.left_out.items()):
            shown = self._examples[reason]
            lines.append(f"{count:,} {reason}: {', '.join(shown)}{', ...' if count > len(shown) else ''}")
        return lines


def check_entities(folder: str, split: str | None = None) -> None:
    """Raises ValueError when the folder is not laid out as the data set is, or has no list of the split."""
    for part in (SENTENCES, ANNOTATIONS):
        if not os.path.isdir(os.path.join(folder, part)):
            raise ValueError(
                f"--entities {folder!r} has no folder {part}; expected that of {DATA_SET}, with Sentences/<id>.txt and "
                "Annotations/<id>.xml"
            )
    if split is not None:
        split_names(folder, split)


def split_names(folder: str, split: str) -> frozenset[str]:
    """The images of FOLDER/<split>.txt.

    Raises:
        ValueError: when there is no such list, or no name in it.
    """
    if not re.fullmatch(r"\w+", split):
        raise ValueError(f"--split {split!r}: expected the name of a list beside Sentences, such as val")
    path = os.path.join(folder, f"{split}.txt")
    if not os.path.isfile(path):
        found = sorted(name[:-4] for name in os.listdir(folder) if name.endswith(".txt"))
        raise ValueError(
            f"--split {split!r}: {folder!r} has no {split}.txt; it has lists of {', '.join(found) or 'no split'}"
        )
    names = frozenset(row[1].strip() for row in read_lines(path) if not isinstance(row, BadRow)) - {""}
    if not names:
        raise ValueError(f"--split {split!r}: {path!r} names no image")
    return names


def read_entities(
    folder: str, counts: EntityCounts, *, names: Collection[str] | None = None, rule: str = OWN
) -> Iterator[EntityImage]:
    """The images whose both files can be read, in the order of their files' names.

    Args:
        counts: gets what was read and what was left out.
        names: only these; None for all.
        rule: as of `parse_marked_sentence`.
    Raises:
        ValueError: as `check_entities`; at the end, when no caption of all of them could be used.
    """
    check_entities(folder)
    entries = os.listdir(os.path.join(folder, SENTENCES))
    for name in sorted(found[1] for entry in entries if (found := _NAME.fullmatch(entry))):
        if names is not None and name not in names:
            continue
        boxes = _boxes(folder, name, counts)
        if boxes is None:
            continue
        if not boxes.boxes:
            counts.leave_out("xml files without a box", f"{name}.xml")
        sentences = _sentences(folder, name, counts, rule)
        counts.images += 1
        counts.sentences += len(sentences)
        for place, sentence in sentences.items():
            for phrase in sentence.phrases:
                kind = boxes.kind_of(phrase)
                counts.phrases[kind] += 1
                if kind == UNKNOWN:
                    counts.leave_out(f"phrases of an {UNKNOWN}", f"{name}.txt caption {place}, {phrase.text!r}")
        yield EntityImage(name, sentences, boxes)
    if not counts.sentences:
        told = "; ".join(counts.lines()[1:])
        raise ValueError(f"--entities {folder!r}: no caption can be used{f' ({told})' if told else ''}")


def _boxes(folder: str, name: str, counts: EntityCounts) -> EntityBoxes | None:
    path = os.path.join(folder, ANNOTATIONS, f"{name}.xml")
    try:
        return entity_boxes(read_annotation_xml(path, DATA_SET), path)
    except FileNotFoundError:
        counts.leave_out("images without an xml file", name)
    except ValueError as error:
        counts.leave_out("damaged xml files", str(error))
    return None


def _sentences(folder: str, name: str, counts: EntityCounts, rule: str) -> dict[int, EntitySentence]:
    found: dict[int, EntitySentence] = {}
    number = 0
    for row in read_lines(os.path.join(folder, SENTENCES, f"{name}.txt")):
        reason = ""
        if isinstance(row, BadRow):
            reason = row.reason
        elif not row[1].strip():
            continue
        else:
            try:
                found[number] = parse_marked_sentence(row[1], rule)
            except ValueError as error:
                reason = str(error)
        if reason:
            counts.leave_out("captions that cannot be read", f"{name}.txt caption {number}: {reason}")
        number += 1
    return found


def entity_boxes(root: ElementTree.Element, where: str) -> EntityBoxes:
    """
    Args:
        root: of `read_annotation_xml`.
        where: the file, for errors.
    Raises:
        ValueError: naming the object whose box has no four numbers, or that names no chain.
    """
    boxes: dict[str, list[Box]] = {}
    flagged: dict[str, list[str]] = {"scene": [], "nobndbox": []}
    for place, entry in enumerate(root.iterfind("object")):
        chains = [(each.text or "").strip() for each in entry.iterfind("name")]
        if not chains or "" in chains:
            raise ValueError(f"{where}, object {place}: names no chain")
        if entry.find("bndbox") is None:
            for flag, found in flagged.items():
                if (xml_number(entry, flag) or 0) > 0:
                    found += chains
            continue
        corners = [xml_number(entry, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
        numbers = [each for each in corners if each is not None]
        if len(numbers) < 4:
            raise ValueError(f"{where}, object {place}: its box has no four numbers")
        for chain in chains:
            boxes.setdefault(chain, []).append((numbers[0], numbers[1], numbers[2], numbers[3]))
    height, width, depth = (xml_number(root, f"size/{edge}") for edge in ("height", "width", "depth"))
    return EntityBoxes(
        boxes={chain: tuple(each) for chain, each in boxes.items()},
        scene=tuple(flagged["scene"]),
        no_box=tuple(flagged["nobndbox"]),
        height=None if height is None else int(height),
        width=None if width is None else int(width),
        depth=None if depth is None else int(depth),
    )
