"""Why something is not among the kept pairs: one code for each rule, grouped by the step that drops it."""

from __future__ import annotations

from enum import StrEnum


class Step(StrEnum):
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
    """The code of each rule, as counts, tables and the report name it."""

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


STEP_OF: dict[Reason, Step] = {
    reason: step
    for step, first, last in (
        (Step.PAGES, Reason.BROKEN_RECORD, Reason.PAGE_OPTED_OUT),
        (Step.LANGUAGE, Reason.TOO_LITTLE_TEXT, Reason.OTHER_LANGUAGE),
        (Step.IMAGE, Reason.NO_IMAGE, Reason.RELATIVE_ADDRESS),
        (Step.TEXT, Reason.NO_TEXT, Reason.UNKNOWN_WORDS),
        (Step.FETCH, Reason.NOT_FETCHED, Reason.IMAGE_OPTED_OUT),
        (Step.PICTURE, Reason.UNDECODABLE, Reason.NOT_NATURAL),
        (Step.SCORE, Reason.LOW_SCORE, Reason.LOW_SCORE),
        (Step.AGGREGATION, Reason.EVALUATION_IMAGE, Reason.SHARED_TEXT),
    )
    for reason in list(Reason)[list(Reason).index(first) : list(Reason).index(last) + 1]
}
