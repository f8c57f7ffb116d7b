"""Hidden words, read by one who sees the picture perfectly and by one who sees the words alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from evidence.questions import GROUNDED
from evidence.readers.read_world import ReadWorld
from roibeam.pipelines.toyworld.captions import write_captions
from roibeam.pipelines.toyworld.truth import parse_caption

_COUNTED = 2_000  # scenes in whose captions the commonest word is looked for


def hidden_words(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each grounded word, and the captions that may have stood there by the word in its place."""
    words = text.split()
    for place, word in enumerate(words):
        if word in GROUNDED:
            texts = {other: " ".join([*words[:place], other, *words[place + 1 :]]) for other in sorted(GROUNDED)}
            yield word, {other: text for other, text in texts.items() if _is_sentence(text)}


def _is_sentence(text: str) -> bool:
    try:
        parse_caption(text)
    except ValueError:
        return False
    return True


def words_read(world: ReadWorld) -> tuple[float, float, float]:
    """Shares of the hidden words that are right, 0 to 1: the commonest word said always, words alone, with the
    picture."""
    first = (write_captions(*one)[0].text for one in world.others[:_COUNTED])
    common = Counter(word for text in first for word in text.split() if word in GROUNDED).most_common(1)[0][0]
    said, blind, perfect, asked = 0, 0.0, 0.0, 0
    for number, text in enumerate(world.texts):
        for word, texts in hidden_words(text):
            asked += 1
            said += word == common
            blind += share_right(word, texts, world.probability)
            perfect += share_right(word, texts, lambda text, number=number: world.known.likelihood(text)[number])
    return said / asked, blind / asked, perfect / asked


def share_right(word: str, texts: Mapping[str, str], likelihood: Callable[[str], float]) -> float:
    """1 if the likeliest text is that of the right word; its share where several are as likely, drawn from by lot."""
    found = {other: likelihood(text) for other, text in texts.items()}
    most = max(found.values()) * (1 - 1e-9)
    best = [other for other, chance in found.items() if chance >= most]
    return (word in best) / len(best)
