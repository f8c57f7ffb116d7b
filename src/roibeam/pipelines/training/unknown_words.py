"""Whether a vocabulary has the words of the texts that a run reads: what it lacks becomes [UNK], and looks learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from roibeam.features.printable import printable
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer

MOST_TEXTS = 2_000  # some tenths of a second
TOLD, STOPS = 0.01, 0.50  # shares of the pieces
_SHOWN = 3

Text = TypeVar("Text")


def unknown_notes(tokenizer: CaptionTokenizer, where: str, texts: Sequence[str], *, stops: bool) -> list[str]:
    """A line where more than 1 % of the pieces of the texts are [UNK], with the commonest such words.

    Args:
        where: what the texts are, for the line.
        texts: of which `MOST_TEXTS` at even distances are looked at.
        stops: whether a share of more than half is an error.
    Raises:
        ValueError: for such a share.
    """
    pieces, unknown = 0, Counter[str]()
    for text in evenly(texts, MOST_TEXTS):
        number, words = tokenizer.unknown_words(text)
        pieces += number
        unknown.update(words)
    share = unknown.total() / max(pieces, 1)
    if share <= TOLD:
        return []
    shown = ", ".join(printable(word, 40) for word, _ in unknown.most_common(_SHOWN))
    line = (
        f"{where}: the tokenizer ({tokenizer.description}) does not know {100 * share:.0f} % of the pieces, such as "
        f"{shown}"
    )
    if stops and share > STOPS:
        raise ValueError(
            f"{line}: a model would learn to say [UNK]; give the vocabulary of these texts' language with --tokenizer"
        )
    return [f"{line}: they are all read as one word, [UNK]"]


def evenly(items: Sequence[Text], most: int) -> list[Text]:
    """So many of them at even distances, in order, or all."""
    number = min(most, len(items))
    return [items[place * len(items) // number] for place in range(number)]
