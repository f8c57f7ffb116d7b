"""Every threshold of every step, in one place. The paper prints two: English pages, and over 300 px both ways.

All others are roibeam's; the published ones that they are based on are named (DataComp: arXiv:2304.14108, its
`baselines/apply_filter.py`; OBELICS: arXiv:2306.16527).
"""

import math
from dataclasses import dataclass, field
from typing import Any

# py3langid's codes of languages with a list of wordfreq's and with blanks between words.
LANGUAGES = (
    *("ar", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hu", "id", "is", "it"),
    *("lt", "lv", "mk", "ms", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "ta", "tr", "uk", "ur", "vi"),
)


def _check(thresholds: Any, *names: str, least: float = 0, most: float = math.inf) -> None:
    """ValueError for a threshold that is outside this range, or NaN."""
    for name in names:
        value = getattr(thresholds, name)
        if not least <= value <= most:
            raise ValueError(
                f"{name} must be {least:g} {'or more' if most == math.inf else f'to {most:g}'}, got {value:g}"
            )


@dataclass(frozen=True)
class PageThresholds:
    """Step 1, roibeam's: a page over `max_bytes` is dropped unparsed; one that takes over `max_seconds`, or
    over `max_memory_mb` (10^6 bytes, beside the memory of the parser's process without a page), is dropped too."""

    max_bytes: int = 10_000_000
    max_seconds: float = 10.0
    max_memory_mb: int = 800

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_seconds", "max_memory_mb"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be over 0, got {getattr(self, name):g}")


@dataclass(frozen=True)
class LanguageThresholds:
    """Step 2. `language` is the paper's; others of `LANGUAGES` are possible. Roibeam's: at least `min_chars` of visible
    text, of which the detector reads the first `read_chars`, and is sure by at least `min_score` (0..1)."""

    language: str = "en"
    min_score: float = 0.8
    min_chars: int = 40
    read_chars: int = 1000

    def __post_init__(self) -> None:
        _check(self, "min_score", most=1)
        _check(self, "min_chars", "read_chars")
        if self.language not in LANGUAGES:
            raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, got {self.language!r}")


@dataclass(frozen=True)
class ImageThresholds:
    """Step 3, all roibeam's: an image dominates its page from a score of `min_score` on. A declared side below
    `min_declared_px` or an aspect over `max_declared_aspect` (DataComp: 3) rules it out."""

    min_score: float = 1.0
    min_declared_px: int = 100
    max_declared_aspect: float = 3.0
    near_chars: int = 400  # of the block of text that is nearest
    near_sentences: int = 3

    def __post_init__(self) -> None:
        _check(self, "min_declared_px", "near_chars", "near_sentences")
        _check(self, "max_declared_aspect", least=1)


@dataclass(frozen=True)
class TextThresholds:
    """Step 4, all roibeam's. Words 3 to 50 (DataComp: more than 2 words and 5 characters; LAIT's mean is 13)."""

    min_words: int = 3
    max_words: int = 50
    min_chars: int = 6
    max_chars: int = 400
    min_letter_share: float = 0.6  # of characters that are not blanks
    max_number_share: float = 0.5  # words that hold a digit
    max_repeat_share: float = 0.5  # words that stood before; only from 4 words on
    max_unknown_share: float = 0.3
    unknown_zipf: float = 1.5  # a word of a lower Zipf frequency (wordfreq) is unknown

    def __post_init__(self) -> None:
        _check(self, "min_letter_share", "max_number_share", "max_repeat_share", "max_unknown_share", most=1)
        _check(self, "min_words", "min_chars", "unknown_zipf")
        for least, most in (("min_words", "max_words"), ("min_chars", "max_chars")):
            if getattr(self, least) > getattr(self, most):
                raise ValueError(f"{least} is {getattr(self, least)} and {most} {getattr(self, most)}: no text passes")


KEEPS_RACY = 1.01  # a threshold that no score reaches


@dataclass(frozen=True)
class PictureThresholds:
    """Step 5. `larger_than_px` is the paper's: each side must be larger. It drops porn and racy pictures, by
    roibeam's scores. Racy is 0.7, as that classifier gives dressed people up to 0.55 (26 photos of COCO and
    Flickr30k), and the bare belly of its own README 0.8. 1.01 drops none."""

    larger_than_px: int = 300
    max_nsfw: float = 0.5
    max_racy: float = 0.7

    def __post_init__(self) -> None:
        _check(self, "max_nsfw", "max_racy", most=KEEPS_RACY)
        _check(self, "larger_than_px")

    def is_unfit(self, nsfw: float, racy: float) -> bool:
        """Whether a picture of these scores is dropped as porn or racy."""
        return nsfw >= self.max_nsfw or racy >= self.max_racy


@dataclass(frozen=True)
class AggregationThresholds:
    """Step 7. The paper has both rules and no number: a text of more than `max_images_per_text` images goes with all
    its pairs; pictures whose perceptual hashes differ in at most `max_phash_bits` of 64 are one image."""

    max_images_per_text: int = 10
    max_phash_bits: int = 4

    def __post_init__(self) -> None:
        _check(self, "max_phash_bits", most=16)  # photos of two things differ in 32, give or take 6
        _check(self, "max_images_per_text", least=1)


@dataclass(frozen=True)
class Thresholds:
    """All thresholds, by step; `--set text.min_words=4` changes one."""

    page: PageThresholds = field(default_factory=PageThresholds)
    language: LanguageThresholds = field(default_factory=LanguageThresholds)
    image: ImageThresholds = field(default_factory=ImageThresholds)
    text: TextThresholds = field(default_factory=TextThresholds)
    picture: PictureThresholds = field(default_factory=PictureThresholds)
    aggregation: AggregationThresholds = field(default_factory=AggregationThresholds)
