"""Flickr30k Entities (BryanPlummer/flickr30k_entities), and dependency parses of its captions as CoNLL files.

Sentences/<id>.txt has lines "[/EN#1/people Two men] in [/EN#2/scene/other a yard] and [/EN#0/notvisual it] .": phrases
of one chain mean the same, chain 0 means nothing that can be seen. An <object> of Annotations/<id>.xml names chains,
then has a <bndbox>, or flags <scene> and <nobndbox>. Numbers count pixels from 1, as they stand; only the authors'
Python takes one off. Id rule: the name of the file without extension ("36979").

CoNLL has a word on each line, a blank line between sentences, tabs between columns. With eight columns or more
(CoNLL-X, CoNLL-U) the head is the seventh and the label the eighth; four are number, word, head, label. "# sent_id =
36979#0" names image and caption; without it sentences are those of the captions in their order.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from roibeam.messages import plural, printable
from roibeam.pipelines.data.datasets.image_boxes import read_annotation_xml, xml_number
from roibeam.pipelines.data.datasets.rows import BadRow, MissingFileError, read_lines

# Order of jnhwkim/ban-vqa's numbers (dataset.py).
TYPES = ("people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other")
NOT_VISUAL = "0"
OWN, AUTHORS, RELEASE = RULES = ("own", "authors", "release")
_MARK = "[/EN#"
_PHRASE = re.compile(r"\[/EN#([0-9]+)((?:/[^\s\[\]/]+)*)\s([^\[\]]*)\]", re.ASCII)


@dataclass(frozen=True)
class EntityPhrase:
    """A marked phrase.

    Attributes:
        chain: its number as written.
        types: such as "people"; mostly one, sometimes none or several.
        first_word, last_word: places among the words of the sentence, from 0.
    """

    text: str
    chain: str
    types: tuple[str, ...]
    first_word: int
    last_word: int


@dataclass(frozen=True)
class EntitySentence:
    """A caption without marks, and what was marked, in reading order."""

    text: str
    phrases: tuple[EntityPhrase, ...]

    @property
    def words(self) -> list[str]:
        return self.text.split()


def parse_marked_sentence(line: str, rule: str = OWN) -> EntitySentence:
    """One line of a file of Sentences/.

    Args:
        rule: which code is followed.
            own: marks stand anywhere, "[/EN#5/animals a dog]," too; a phrase is where its mark is.
            authors: BryanPlummer/flickr30k_entities, whose phrases end with "]" at the end of a word; a mark that does
                not swallows what comes after it.
            release: jnhwkim/ban-vqa, which VisualBERT's release reads with: a phrase is where its words stand FIRST in
                the caption, so that the second "a man" lies upon the first.
    """
    if rule == OWN:
        return _own(line)
    if rule not in RULES:
        raise ValueError(f"rule {rule!r}: choose one of {', '.join(RULES)}")
    if rule == AUTHORS:
        words, marked = _by_words(line.split())
        return _sentence(words, marked, [first for _, _, first, _ in marked])
    tokens = line.strip().split(" ")
    _check_release(tokens)
    words, marked = _by_words(tokens)
    return _sentence(words, marked, [first_place(words, words[first:last]) for _, _, first, last in marked])


def first_place(words: Sequence[str], part: Sequence[str]) -> int:
    """First position of the words of `part` one after the other; ValueError where there is none."""
    count = len(part)
    for start in range(len(words) - count + 1):
        if list(words[start : start + count]) == list(part):
            return start
    raise ValueError(f"the words {' '.join(part)!r} are not in the caption")


_Marked = tuple[str, tuple[str, ...], int, int]  # chain, types, first word, and the place behind the last


def _own(line: str) -> EntitySentence:
    text, end, marked = "", 0, []
    for found in _PHRASE.finditer(line):
        text += line[end : found.start()]
        start, end = len(text), found.end()
        text += found[3]
        if not found[3].strip():
            raise ValueError("a mark without words")
        marked.append((found[1], tuple(found[2].split("/")[1:]), found[3], start, len(text)))
    text += line[end:]
    if _MARK in text:
        raise ValueError("a mark that does not end, or lies in another one")
    spans = [found.span() for found in re.finditer(r"\S+", text)]
    phrases = []
    for chain, types, words, start, stop in marked:
        touched = [place for place, (first, last) in enumerate(spans) if first < stop and last > start]
        phrases.append(EntityPhrase(" ".join(words.split()), chain, types, touched[0], touched[-1]))
    return EntitySentence(" ".join(text.split()), tuple(phrases))


def _by_words(tokens: Sequence[str]) -> tuple[list[str], list[_Marked]]:
    """A word that begins with "[" opens a phrase, one that ends with "]" closes it."""
    words: list[str] = []
    marked: list[_Marked] = []
    chain, first = "", -1
    types: tuple[str, ...] = ()
    for token in tokens:
        if first >= 0:
            if token.endswith("]"):
                words.append(token[:-1])
                marked.append((chain, types, first, len(words)))
                first = -1
            else:
                words.append(token)
        elif token.startswith("["):
            _, *parts = token.split("/")
            if not parts:
                raise ValueError(f"a word {token!r} that begins with [ and is no mark")
            chain, types, first = parts[0][3:], tuple(parts[1:]), len(words)
        else:
            words.append(token)
    return words, marked


def _check_release(tokens: Sequence[str]) -> None:
    for token in tokens:
        if token.startswith("[") and not token.startswith(_MARK):
            raise ValueError(f"a word {token!r} that begins with [ and is no mark")
        if "]" in token[:-1]:
            raise ValueError(f"a phrase that does not end with its word: {token!r}")


def _sentence(words: Sequence[str], marked: Sequence[_Marked], places: Sequence[int]) -> EntitySentence:
    phrases = [
        EntityPhrase(" ".join(words[first:last]), chain, types, place, place + last - first - 1)
        for (chain, types, first, last), place in zip(marked, places, strict=True)
    ]
    return EntitySentence(" ".join(words), tuple(phrases))


SENTENCES, ANNOTATIONS = "Sentences", "Annotations"
DATA_SET = "Flickr30k Entities"
Box = tuple[float, float, float, float]
_NAME = re.compile(r"([0-9]+)\.txt", re.ASCII)
_MAX_EXAMPLES = 3
BOXED, UNKNOWN = "boxed", "unknown chain"


@dataclass(frozen=True)
class EntityBoxes:
    """Contents of an xml file.

    Attributes:
        boxes: x1 y1 x2 y2 of each chain that has any, in file order, pixels counted from 1.
        scene, no_box: chains of objects that are the scene, and without a box; a chain may be in several of the three,
            and in a list more than once.
        height, width, depth: of the image, as written; None where not.
    """

    boxes: Mapping[str, tuple[Box, ...]]
    scene: tuple[str, ...]
    no_box: tuple[str, ...]
    height: int | None
    width: int | None
    depth: int | None

    def kind_of(self, phrase: EntityPhrase) -> str:
        """ "boxed", or why not: "not visual", "scene", "no box" or "unknown chain"; any box makes it "boxed"."""
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
        sentences: by number: the place among the lines that are not blank, from 0. A line that cannot be read has its
            number too, and is not here.
    """

    name: str
    sentences: Mapping[int, EntitySentence]
    boxes: EntityBoxes


@dataclass
class EntityCounts:
    """Counts of a folder's sentences and phrases, and of unusable ones, made while it is read."""

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
        """Lines for the log: one on what there is, one for each reason why something is not used."""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.phrases.items()))
        lines = [f"{plural(self.sentences, 'caption')} of {plural(self.images, 'image')}; phrases: {kinds or 'none'}"]
        for reason, count in sorted(self.left_out.items()):
            examples = self._examples[reason]
            lines.append(f"{count:,} {reason}: {', '.join(examples)}{', ...' if count > len(examples) else ''}")
        return lines


def check_entities(folder: str, split: str | None = None) -> None:
    """Raises ValueError when the folder is not laid out as the data set is, or has no list of the split."""
    for part in (SENTENCES, ANNOTATIONS):
        if not os.path.isdir(os.path.join(folder, part)):
            raise MissingFileError(
                f"--entities {folder!r} has no folder {part}; expected that of {DATA_SET}, with Sentences/<id>.txt and "
                "Annotations/<id>.xml"
            )
    if split is not None:
        split_names(folder, split)


def split_names(folder: str, split: str) -> frozenset[str]:
    """The images of FOLDER/<split>.txt. Raises ValueError when there is no such list, or no name in it."""
    if not re.fullmatch(r"\w+", split):
        raise ValueError(f"--split {split!r}: expected the name of a list beside Sentences, such as val")
    path = os.path.join(folder, f"{split}.txt")
    if not os.path.isfile(path):
        found = sorted(name[:-4] for name in os.listdir(folder) if name.endswith(".txt"))
        raise MissingFileError(
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
        reasons = "; ".join(counts.lines()[1:])
        raise ValueError(f"--entities {folder!r}: no caption can be used{f' ({reasons})' if reasons else ''}")


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


ROOT = -1
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(.*\S)")
_PASSED_OVER = re.compile(r"[0-9]+[-.][0-9]+")
_COLUMNS = {4: (2, 3), 8: (6, 7)}  # of the head and the label
MAX_WORDS = 1000


@dataclass(frozen=True)
class Parse:
    """One sentence.

    Attributes:
        where: file and line, for errors.
        sent_id: as the file has it; None where it has none.
        words, heads, labels: of equal length; a head is the place of a word, from 0, or `ROOT`.
    """

    where: str
    sent_id: str | None
    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]


def read_conll(path: str) -> Iterator[Parse]:
    """Parses in file order. Raises ValueError, naming the line that is not as CoNLL has it, or whose head is no word of
    its sentence."""
    rows: list[tuple[int, list[str]]] = []
    sent_id: str | None = None
    for row in read_lines(path):
        if isinstance(row, BadRow):
            raise ValueError(f"{path!r}, line {row.line}: {row.reason}")
        line, text = row
        if text.startswith("#"):
            found = _SENT_ID.match(text)
            sent_id = found[1] if found else sent_id
        elif text.strip():
            rows.append((line, text.split("\t")))
            if len(rows) > MAX_WORDS:
                raise ValueError(
                    f"{path!r}, line {line}: a sentence of over {MAX_WORDS} words; sentences end with a blank line"
                )
        elif rows:
            yield _parse(path, sent_id, rows)
            rows, sent_id = [], None
    if rows:
        yield _parse(path, sent_id, rows)


def _parse(path: str, sent_id: str | None, rows: list[tuple[int, list[str]]]) -> Parse:
    words, heads, labels = [], [], []
    kept = [row for row in rows if not _PASSED_OVER.fullmatch(row[1][0])]
    for place, (line, columns) in enumerate(kept):
        where = f"{path!r}, line {line}"
        known = _COLUMNS.get(min(len(columns), 8))
        if known is None or columns[0] != str(place + 1):
            raise ValueError(
                f"{where}: expected word {place + 1} of its sentence in four columns (number, word, head, label) or in "
                f"ten of CoNLL, apart by tabs; got {len(columns)}"
            )
        head, label = (columns[each] for each in known)
        if not head.isascii() or not head.isdecimal() or not 0 <= int(head) <= len(kept):
            raise ValueError(f"{where}: head {head!r} is no word of its sentence, which has {len(kept)}")
        words.append(columns[1])
        heads.append(int(head) - 1)
        labels.append(label)
    return Parse(f"{path!r}, line {rows[0][0]}", sent_id, tuple(words), tuple(heads), tuple(labels))
