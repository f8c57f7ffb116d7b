"""What the steps hand on: an image of a page with candidate texts, a fetched picture, an image-text pair."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class TextSource(StrEnum):
    """Where on the page a text stood. The order is ours: the first is believed most while no model judges pairs."""

    ALT = "alt"
    FIGCAPTION = "figcaption"
    TITLE = "title"  # the image's attribute
    OG_DESCRIPTION = "og:description"
    NEAR = "near"  # a sentence of the block of text that is nearest


@dataclass(frozen=True)
class CandidateText:
    """One text that may describe an image, white space made single blanks, never empty."""

    source: TextSource
    text: str


@dataclass(frozen=True)
class CandidateImage:
    """An image that a page shows.

    Attributes:
        url: absolute, http or https, without fragment.
        found_by: "img", "srcset" or "og:image".
        score: how far it dominates its page, by `Thresholds.image`; larger is more.
        declared_width, declared_height: pixels, by the tag's attributes; None where it says nothing.
        texts: its candidate texts, at most one of each source but NEAR, none twice.
    """

    url: str
    found_by: str
    score: float
    declared_width: int | None
    declared_height: int | None
    texts: tuple[CandidateText, ...]


@dataclass(frozen=True)
class PageCandidate:
    """What steps 1 to 4 keep of one page: its dominant image with the texts that passed the rules (at least one).

    Attributes:
        page_url: of the page.
        language: of its visible text ("en"); `language_score` 0..1.
    """

    page_url: str
    language: str
    language_score: float
    image: CandidateImage
    robots: str = ""  # what the page says to robots, none of it a refusal
    place: str = ""  # of the page, see `Page`


@dataclass(frozen=True)
class Picture:
    """A picture that was fetched and can be decoded.

    Attributes:
        url: that it was fetched from.
        path: absolute, of its file.
        sha256: of its bytes, hex.
        phash: perceptual hash, 16 hex digits (64 bits, a DCT of 32x32 grey pixels).
        width, height: pixels, as decoded.
        num_bytes: of its file.
        nsfw, racy: the classifier's scores 0..1; None where it did not run.
        natural: a `PictureJudge`'s score 0..1; None without one.
    """

    url: str
    path: str
    sha256: str
    phash: str
    width: int
    height: int
    num_bytes: int
    nsfw: float | None = None
    racy: float | None = None
    natural: float | None = None


@dataclass(frozen=True)
class Pair:
    """One image with one text of one page.

    Attributes:
        pair_id: `pair_id(...)` of the picture's digest; the same in every rerun.
        score: a `PairJudge`'s, 0..1; None without one.
    """

    pair_id: str
    text: CandidateText
    picture: Picture
    page_url: str
    language: str
    language_score: float
    score: float | None = None
    robots: str = ""
    place: str = ""
    num_pages: int = 1  # that show the image


def pair_id(sha256: str) -> str:
    """The id of the one pair that an image keeps: 24 hex digits of its bytes' SHA-256, so no rerun, order of pages or
    number of workers changes it."""
    return hashlib.sha256(b"roibeam pair\n" + sha256.encode("ascii")).hexdigest()[:24]


def pair_from_json(data: dict[str, Any]) -> Pair:
    """The way back from `dataclasses.asdict`."""
    text = CandidateText(TextSource(data["text"]["source"]), data["text"]["text"])
    return Pair(**{**data, "text": text, "picture": Picture(**data["picture"])})
