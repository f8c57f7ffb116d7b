"""Pages, candidate images, pictures and image-text pairs as the steps pass them on, and the reasons for dropping them.

A reason is a code, one for each rule, grouped by the step that drops. A broken page was read, but is no page.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

NOWHERE = "http://pages.invalid/"  # a host that never has an address (RFC 2606)


@dataclass(frozen=True)
class Page:
    """A page that was read, not yet looked into.

    Attributes:
        url: its address, http or https; of a folder of HTML its place below `--base-url`, by default below
            `NOWHERE`.
        charset: encoding by the HTTP header; None without one.
        robots: directives on its use in its headers, see `usage_directives`.
        place: where it was read, for reports: "crawl.warc.gz, record 17" or "docs/a.html".
    """

    url: str
    body: bytes
    charset: str | None = None
    robots: tuple[str, ...] = ()
    place: str = ""


class CollectionStep(StrEnum):
    """The eight steps in order of cost; the funnel of the report has one bar for each."""

    PAGES = "pages"
    LANGUAGE = "language"
    IMAGE = "image"
    TEXT = "text"
    FETCH = "fetch"
    PICTURE = "picture"
    SCORE = "score"
    AGGREGATION = "aggregation"


class Reason(StrEnum):
    """Code of each rule, as in counts, tables and the report."""

    # pages: a record or file that is no page to work with
    BROKEN_RECORD = "broken record"
    NOT_HTML = "not html"
    NO_PAGE = "no page"  # an answer other than 200
    TOO_LARGE = "page too large"
    PARSE_FAILED = "cannot be parsed"
    PAGE_OPTED_OUT = "page opted out"  # X-Robots-Tag or <meta name=robots> of noai, noimageai, noimageindex, ...
    # language
    TOO_LITTLE_TEXT = "too little text"
    OTHER_LANGUAGE = "other language"
    # image
    NO_IMAGE = "no image"
    NO_DOMINANT_IMAGE = "no dominant image"
    RELATIVE_ADDRESS = "relative address"  # of the image, on a page whose own address is not known
    # text: of one candidate text
    NO_TEXT = "no text"
    TOO_SHORT = "too short"
    TOO_LONG = "too long"
    MARKUP = "markup"
    URL_OR_EMAIL = "url or e-mail"
    FILE_NAME = "file name"
    NUMBERS = "numbers"  # dates, prices, dimensions, and little else
    BOILERPLATE = "boilerplate"
    SPAM_WORD = "spam word"
    ADULT_WORD = "adult word"
    REPEATED_WORDS = "repeated words"
    CAPITALS = "all capitals"
    NOISE = "noise"  # control characters, too few letters
    UNKNOWN_WORDS = "unknown words"
    # fetch: the downloader's own reason stands in `detail`
    NOT_FETCHED = "not fetched"
    IMAGE_OPTED_OUT = "image opted out"
    # picture
    UNDECODABLE = "cannot be decoded"
    TOO_SMALL = "too small"
    NSFW = "nsfw"
    NOT_NATURAL = "not natural"
    # score
    LOW_SCORE = "low score"
    # aggregation
    EVALUATION_IMAGE = "evaluation image"
    SAME_IMAGE = "same image"  # another page's text of this image is better
    SHARED_TEXT = "shared text"


STEP_OF: dict[Reason, CollectionStep] = {
    reason: step
    for step, first, last in (
        (CollectionStep.PAGES, Reason.BROKEN_RECORD, Reason.PAGE_OPTED_OUT),
        (CollectionStep.LANGUAGE, Reason.TOO_LITTLE_TEXT, Reason.OTHER_LANGUAGE),
        (CollectionStep.IMAGE, Reason.NO_IMAGE, Reason.RELATIVE_ADDRESS),
        (CollectionStep.TEXT, Reason.NO_TEXT, Reason.UNKNOWN_WORDS),
        (CollectionStep.FETCH, Reason.NOT_FETCHED, Reason.IMAGE_OPTED_OUT),
        (CollectionStep.PICTURE, Reason.UNDECODABLE, Reason.NOT_NATURAL),
        (CollectionStep.SCORE, Reason.LOW_SCORE, Reason.LOW_SCORE),
        (CollectionStep.AGGREGATION, Reason.EVALUATION_IMAGE, Reason.SHARED_TEXT),
    )
    for reason in list(Reason)[list(Reason).index(first) : list(Reason).index(last) + 1]
}


@dataclass(frozen=True)
class BrokenPage:
    """Attributes:
    place: as of `Page`.
    detail: one line for people.
    """

    place: str
    reason: Reason
    detail: str


class TextSource(StrEnum):
    """Place of a text on the page. The order is roibeam's: the first is trusted most while no model judges pairs."""

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
    """An image of a page.

    Attributes:
        url: absolute, http or https, without fragment.
        found_by: "img", "srcset" or "og:image".
        score: of its dominance of the page, by `Thresholds.image`; larger is more.
        declared_width, declared_height: pixels, by the tag's attributes; None without them.
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
    """Result of steps 1 to 4 on one page: its dominant image with the texts that passed the rules (at least one).

    Attributes:
        language: of its visible text ("en"); `language_score` 0..1.
    """

    page_url: str
    language: str
    language_score: float
    image: CandidateImage
    robots: str = ""  # the page's directives for robots, none of them a refusal
    place: str = ""  # of the page, see `Page`


@dataclass(frozen=True)
class FetchedPicture:
    """A picture that was fetched and can be decoded.

    Attributes:
        path: absolute, of its file.
        sha256: of its bytes, hex.
        phash: perceptual hash, 16 hex digits (64 bits, a DCT of 32x32 grey pixels).
        width, height: pixels, as decoded.
        num_bytes: of its file.
        nsfw, racy: the classifier's scores 0..1; None where it did not run.
        natural: a `TrainedPictureJudge`'s score 0..1; None without one.
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
        score: a `TrainedPairJudge`'s, 0..1; None without one.
    """

    pair_id: str
    text: CandidateText
    picture: FetchedPicture
    page_url: str
    language: str
    language_score: float
    score: float | None = None
    robots: str = ""
    place: str = ""
    num_pages: int = 1  # that have the image


def pair_id(sha256: str) -> str:
    """Returns the id of the one pair of an image: 24 hex digits of its bytes' SHA-256, so no rerun, order of pages or
    number of workers changes it."""
    return hashlib.sha256(b"roibeam pair\n" + sha256.encode("ascii")).hexdigest()[:24]


def pair_from_json(data: dict[str, Any]) -> Pair:
    """Reverses `dataclasses.asdict`."""
    text = CandidateText(TextSource(data["text"]["source"]), data["text"]["text"])
    return Pair(**{**data, "text": text, "picture": FetchedPicture(**data["picture"])})
