"""Step 4: whether a text may be a caption, by rules, cheapest first; the first rule that fails gives the reason.

The paper names bad spans, noise, spam words, length and out-of-vocabulary share; words and thresholds are ours. Known
words are those of the text's language; lists of bad spans, spam and adult words are English.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from roibeam.pipelines.collection.looking.document import plain
from roibeam.pipelines.collection.looking.word_lists import ADULT, BAD_SPANS, BOILERPLATE, SPAM
from roibeam.pipelines.collection.reasons import Reason
from roibeam.pipelines.collection.thresholds import TextThresholds

_MARKUP = re.compile(
    r"</?[a-z][^>]*>|\{\{|\}\}|\[/?[a-z]+\]|&[a-z]+;|&#\d+;|<!--|-->|=\s*[\"']|\bfunction\s*\(|;\s*$", re.I
)
_ADDRESS = re.compile(
    r"https?:|www\.|\w@\w+\.\w|\b[a-z0-9-]+\.(?:com|org|net|info|co\.uk|de|fr|ru|cn|io|html?|php|aspx?)\b", re.I
)
_FILE = re.compile(
    r"\.(?:jpe?g|png|gif|webp|bmp|tiff?|svg|pdf|mp4|avi|zip)\b|\b"
    r"(?:img|dsc[nf]?|dscf|pict?|image|screen ?shot)[ _-]?\d{2,}",
    re.I,
)
_JOINERS = {0x200C: None, 0x200D: None}  # ZWNJ and ZWJ, which are seen in the shapes of their neighbours alone
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_HAS_DIGIT = re.compile(r"\d")


@cache
def _frequencies(language: str) -> Mapping[str, float]:
    """Words by frequency (wordfreq, whose lists ship in its wheel)."""
    from wordfreq import get_frequency_dict

    return get_frequency_dict(language, wordlist="best")


def clean_text(text: str) -> str:
    """Without invisible characters, credits and prefixes ("Photo: ", "(click to enlarge)"), white space made single."""
    return plain(BAD_SPANS.sub("", plain(text))).strip(" |-\u2013\u2022\u00b7_*~")


def text_reason(text: str, limits: TextThresholds, language: str = "en") -> Reason | None:
    """Why this text, cleaned, is no caption; None where no rule is against it.

    Args:
        language: one of `thresholds.LANGUAGES`; its words are known.
    """
    words = text.split()
    if len(words) < limits.min_words or len(text) < limits.min_chars:
        return Reason.FILE_NAME if _FILE.search(text) else Reason.TOO_SHORT
    if len(words) > limits.max_words or len(text) > limits.max_chars:
        return Reason.TOO_LONG
    for reason, pattern in (
        (Reason.MARKUP, _MARKUP),
        (Reason.FILE_NAME, _FILE),
        (Reason.URL_OR_EMAIL, _ADDRESS),
        (Reason.ADULT_WORD, ADULT),
        (Reason.SPAM_WORD, SPAM),
        (Reason.BOILERPLATE, BOILERPLATE),
    ):
        if pattern.search(text):
            return reason
    return _by_shares(text, words, limits, language)


def _by_shares(text: str, words: list[str], limits: TextThresholds, language: str) -> Reason | None:
    """The rules that count."""
    if sum(_HAS_DIGIT.search(word) is not None for word in words) > limits.max_number_share * len(words):
        return Reason.NUMBERS
    visible = text.replace(" ", "").translate(_JOINERS)
    letters = sum(map(str.isalpha, visible))
    if letters < limits.min_letter_share * len(visible):
        return Reason.NOISE
    if letters and sum(map(str.isupper, visible)) == letters:
        return Reason.CAPITALS
    if len(words) >= 4 and len(words) - len({word.casefold() for word in words}) > limits.max_repeat_share * len(words):
        return Reason.REPEATED_WORDS
    if unknown_share(text, limits.unknown_zipf, language) > limits.max_unknown_share:
        return Reason.UNKNOWN_WORDS
    return None


def unknown_share(text: str, unknown_zipf: float, language: str) -> float:
    """Share 0..1 of words of a lower Zipf frequency in the language (log10 of occurrences in 10^9 words); 1 for none.

    A word with hyphens is known where its parts are.
    """
    known = _frequencies(language)
    least = 10.0 ** (unknown_zipf - 9)
    words = [word.replace("\u2019", "'").casefold() for word in _WORD.findall(text.translate(_JOINERS))]
    if not words:
        return 1.0

    def is_known(word: str) -> bool:
        word = word.removesuffix("'s")
        return known.get(word, 0.0) >= least or (
            "-" in word and all(known.get(part, 0.0) >= least for part in word.split("-"))
        )

    return sum(not is_known(word) for word in words) / len(words)
