"""Steps 1 to 4 on one page: its language, its dominant image, and texts that may be captions, or a reason to drop it.

The language is that of py3langid, whose model ships in its wheel (97 languages). The paper names "HTML tags and DOM
tree features" for the dominant image, and bad spans, noise, spam words, length and out-of-vocabulary share for texts;
the points, words and thresholds are roibeam's. Rules for texts run cheapest first, and the first that fails gives the
reason. Known words are those of the text's language; lists of bad spans, spam and adult words are English.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from roibeam.pipelines.collection.document import Document, ImageTag, decode_page, parse_document, plain
from roibeam.pipelines.collection.pairs import (
    NOWHERE,
    CandidateImage,
    CandidateText,
    Page,
    PageCandidate,
    Reason,
    TextSource,
)
from roibeam.pipelines.collection.thresholds import ImageThresholds, LanguageThresholds, TextThresholds, Thresholds
from roibeam.pipelines.data.download.robots import refusal, with_source


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def page_language(blocks: tuple[str, ...], limits: LanguageThresholds) -> tuple[str, float] | None:
    """(ISO 639-1 code, probability 0..1) of the longest blocks of visible text; None where there is too little text.

    Menus are short: the longest blocks are in the page's language.
    """
    chosen: list[str] = []
    left = limits.read_chars
    for block in sorted(blocks, key=len, reverse=True):  # a stable order: equal lengths stay as on the page
        if left <= 0:
            break
        chosen.append(block[:left])
        left -= len(block)
    text = " ".join(chosen)
    if len(text) < limits.min_chars:
        return None
    code, score = _identifier().classify(text)
    return str(code), round(float(score), 4)


OG_POINTS = 2.0  # the page's own word for it
CONTENT_POINTS, FIGURE_POINTS, CAPTION_POINTS = 1.0, 0.5, 0.5
NOT_EDGE_POINTS, EDGE_POINTS = 0.5, -2.0
ALT_POINTS = 0.5  # three words or more
LARGE_POINTS, MIDDLE_POINTS = 1.5, 0.5  # declared 300 px both ways, 200 px
NAME_POINTS = -3.0  # a logo, icon, ... by its file name, class or id
DRAWN_POINTS = -1.0  # .svg, .gif, .ico
_LARGE_PX, _MIDDLE_PX = 300, 200

_NO_PHOTO = re.compile(
    r"(?:^|[^a-z])(logos?|icons?|favicon|sprites?|banners?|buttons?|btn|badges?|avatars?|gravatar|spacer|spinner|blank|"
    r"pixel|tracking|placeholder|loading|loader|captcha|emoji|smiley|arrow|bullet|rating|stars?|ads?|advert|adserver|"
    r"doubleclick|thumbs?|thumbnail)(?:$|[^a-z])"
)
_DRAWN = (".svg", ".gif", ".ico", ".cur")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")


def dominant_image(document: Document, limits: ImageThresholds) -> CandidateImage | None:
    """Returns the image with the most points, the first of equals; None where none has `min_score`.

    Its texts are those of the page, not yet cleaned; there may be none.
    """
    best: tuple[float, ImageTag | None, tuple[str, str]] | None = None
    og_found = False
    for image in document.images:
        if not image.urls or _is_ruled_out(image, limits):
            continue
        urls = {url for url, _ in image.urls}
        is_og = document.og_image in urls
        og_found |= is_og
        score = image_score(image, is_og=is_og)
        if best is None or score > best[0]:
            best = (score, image, image.urls[0])
    if document.og_image is not None and not og_found:
        score = OG_POINTS + _name_points(document.og_image, "")
        if best is None or score > best[0]:
            best = (score, None, (document.og_image, "og:image"))
    if best is None or best[0] < limits.min_score:
        return None
    score, tag, (url, found_by) = best
    width, height = (None, None) if tag is None else (tag.width, tag.height)
    return CandidateImage(url, found_by, score, width, height, candidate_texts(document, tag, limits))


def image_score(image: ImageTag, *, is_og: bool) -> float:
    """Points of an <img>, see the names above."""
    place = image.place
    score = OG_POINTS if is_og else 0.0
    score += EDGE_POINTS if place.in_edge else NOT_EDGE_POINTS
    score += CONTENT_POINTS * place.in_content + FIGURE_POINTS * place.in_figure + CAPTION_POINTS * bool(place.caption)
    score += ALT_POINTS * (len(image.alt.split()) >= 3)
    if image.width is not None and image.height is not None:
        side = min(image.width, image.height)
        score += LARGE_POINTS if side >= _LARGE_PX else MIDDLE_POINTS if side >= _MIDDLE_PX else 0.0
    return score + _name_points(image.urls[0][0], image.names)


def _name_points(url: str, names: str) -> float:
    path = unquote(urlsplit(url).path).lower()
    folder, _, name = path.rpartition("/")
    is_no_photo = _NO_PHOTO.search(name) or _NO_PHOTO.search(names) or _NO_PHOTO.search(folder.rpartition("/")[2])
    return NAME_POINTS * bool(is_no_photo) + DRAWN_POINTS * path.endswith(_DRAWN)


def _is_ruled_out(image: ImageTag, limits: ImageThresholds) -> bool:
    """Whether an image is ruled out by its declared sides."""
    sides = [side for side in (image.width, image.height) if side is not None]
    if any(side < limits.min_declared_px for side in sides):
        return True
    return len(sides) == 2 and max(sides) > limits.max_declared_aspect * min(sides)


def candidate_texts(document: Document, tag: ImageTag | None, limits: ImageThresholds) -> tuple[CandidateText, ...]:
    """Returns texts with their sources, none twice, in the order of `TextSource`.

    Args:
        tag: None for an image that only og:image names.
    """
    given: list[tuple[TextSource, str]] = []
    if tag is not None:
        given += [(TextSource.ALT, tag.alt), (TextSource.FIGCAPTION, tag.place.caption), (TextSource.TITLE, tag.title)]
    else:
        alt = document.meta.get("og:image:alt") or document.meta.get("twitter:image:alt") or ""
        given.append((TextSource.ALT, alt))
    description = document.meta.get("og:description") or document.meta.get("description") or ""
    given.append((TextSource.OG_DESCRIPTION, description))
    if tag is not None:
        given += [(TextSource.NEAR, sentence) for sentence in _near_sentences(document, tag, limits)]
    texts: dict[str, CandidateText] = {}
    for source, text in given:
        if text := plain(text):
            texts.setdefault(text.casefold(), CandidateText(source, text))
    return tuple(texts.values())


def _near_sentences(document: Document, tag: ImageTag, limits: ImageThresholds) -> list[str]:
    """Returns the first sentences of the block after the image, else of the block before it; menus do not count."""
    after = tag.block + 1
    if after < len(document.blocks) and document.blocks[after] == tag.place.caption:
        after += 1
    for number in (after, tag.block):
        if 0 <= number < len(document.blocks) and not document.is_edge_block(number):
            text = document.blocks[number][: limits.near_chars]
            if len(text) < len(document.blocks[number]):
                text = text.rpartition(" ")[0]
            if text and text != tag.place.caption:
                return _SENTENCE_END.split(text)[: limits.near_sentences]
    return []


# A text of its own, or a part that is not about the picture.
BOILERPLATE = re.compile(
    r"\b(?:click (?:here|to|on|for|image)|tap to|image may contain|may be an image|no (?:photo|image|description)|"
    r"image (?:not )?(?:available|unavailable|result)|"
    r"stock (?:photo|image|vector|illustration|footage)s?|royalty[- ]free|"
    r"all rights reserved|terms of (?:use|service)|privacy policy|cookie|sign (?:in|up)|log ?in|subscribe|newsletter|"
    r"follow us|share (?:this|on)|read more|learn more|see more|view (?:all|more|larger)|load more|skip to|back to top|"
    r"add to (?:cart|basket|wishlist)|leave a (?:comment|reply)|related (?:posts|articles)|posted (?:by|on|in)|"
    r"last updated|featured image|default (?:image|alt)|lorem ipsum|your browser|javascript|404|page not found|"
    r"home page|main menu|download (?:now|free|here)|wallpapers?|screenshot|thumbnail|placeholder|untitled)\b",
    re.IGNORECASE,
)
SPAM = re.compile(
    r"\b(?:buy now|order now|shop now|for sale|on sale|best price|lowest price|cheap|discounts?|coupons?|promo codes?|"
    r"free shipping|limited (?:time )?offer|special offer|money back|act now|casino|poker|betting|jackpot|lottery|"
    r"viagra|cialis|payday|loans?|crypto|bitcoin|forex|weight loss|lose weight|earn money|make money|work from home|"
    r"click below|100% free|risk[- ]free|satisfaction guaranteed|replica watches|essay writing|seo services|"
    r"backlinks?|torrents?|keygen|serial key|full movie)\b|\d{1,2} ?% off\b",
    re.IGNORECASE,
)
ADULT = re.compile(
    r"\b(?:porn\w*|xxx|nsfw|nudes?|naked|sexy|sex|erotic\w*|hentai|milf|escorts?|camgirls?|onlyfans|blowjob|"
    r"boobs?|tits|pussy|cock|dick|cum|anal|fetish|bdsm|stripper|hookers?|horny|topless|lingerie)\b",
    re.IGNORECASE,
)
# Cut away before a text is judged: the rest may be a caption.
BAD_SPANS = re.compile(
    r"\s*[(\[](?:click|tap|photo|image|picture|credit|courtesy|source|via|file photo|getty|ap photo|"
    r"reuters)\b[^)\]]{0,120}[)\]]"
    r"|^\s*(?:image|photo|picture|pic|fig(?:ure)?\.?)\s*(?:\d+\s*)?[:\-\u2013]\s*(?=\w)"
    r"|\s*[|\u2022\u00b7\u2013-]?\s*(?:photo|image|picture|photograph)(?:\s+credit)?\s*"
    r"(?::|by|via|courtesy(?:\s+of)?)\s.{1,80}$"
    r"|\s*(?:\u00a9|\(c\)|copyright\b).{0,80}$",
    re.IGNORECASE,
)


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
_JOINERS = {0x200C: None, 0x200D: None}  # ZWNJ and ZWJ, visible only in the shapes of their neighbours
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_HAS_DIGIT = re.compile(r"\d")


@cache
def _frequencies(language: str) -> Mapping[str, float]:
    """Frequencies of words (wordfreq, whose lists ship in its wheel)."""
    from wordfreq import get_frequency_dict

    return get_frequency_dict(language, wordlist="best")


def clean_text(text: str) -> str:
    """Removes invisible characters, credits and prefixes ("Photo: ", "(click to enlarge)"); single blanks stay."""
    return plain(BAD_SPANS.sub("", plain(text))).strip(" |-\u2013\u2022\u00b7_*~")


def text_reason(text: str, limits: TextThresholds, language: str = "en") -> Reason | None:
    """Reason why this text, cleaned, is no caption; None where no rule is against it.

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
    """Applies the rules on counts."""
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


@dataclass(frozen=True)
class DroppedText:
    """A candidate text that a rule is against, as it was cleaned."""

    source: TextSource
    text: str
    reason: Reason


@dataclass(frozen=True)
class PageOutcome:
    """Outcome of one page: a candidate, or a reason with a detail for people; and the texts that were dropped."""

    page_url: str
    candidate: PageCandidate | None = None
    reason: Reason | None = None
    detail: str = ""
    dropped_texts: tuple[DroppedText, ...] = ()


def look_into(page: Page, thresholds: Thresholds) -> PageOutcome:
    """Runs the steps in order of cost; the first that is against the page ends it."""
    if len(page.body) > thresholds.page.max_bytes:
        return _dropped(page, Reason.TOO_LARGE, f"{len(page.body):,} bytes")
    if directive := refusal(page.robots):
        return _dropped(page, Reason.PAGE_OPTED_OUT, with_source(directive, "X-Robots-Tag"))
    document = parse_document(decode_page(page.body, page.charset), page.url)
    if directive := refusal(document.robots):
        return _dropped(page, Reason.PAGE_OPTED_OUT, with_source(directive, "meta robots"))
    found = page_language(document.blocks, thresholds.language)
    if found is None:
        return _dropped(page, Reason.TOO_LITTLE_TEXT, "")
    language, language_score = found
    if language != thresholds.language.language or language_score < thresholds.language.min_score:
        return _dropped(page, Reason.OTHER_LANGUAGE, f"{language} {language_score:.2f}")
    image = dominant_image(document, thresholds.image)
    if image is None:
        has_any = document.og_image is not None or any(tag.urls for tag in document.images)
        return _dropped(page, Reason.NO_DOMINANT_IMAGE if has_any else Reason.NO_IMAGE, "")
    if image.url.startswith(NOWHERE):
        return _dropped(page, Reason.RELATIVE_ADDRESS, "give --base-url")
    return _with_texts(page, document, image, (language, language_score), thresholds)


def _with_texts(
    page: Page, document: Document, image: CandidateImage, language: tuple[str, float], thresholds: Thresholds
) -> PageOutcome:
    """Returns the page's candidate with the texts that pass."""
    kept: dict[str, CandidateText] = {}
    dropped: list[DroppedText] = []
    for candidate in image.texts:
        text = clean_text(candidate.text)
        reason = text_reason(text, thresholds.text, thresholds.language.language)
        if reason is None:
            kept.setdefault(text.casefold(), CandidateText(candidate.source, text))
        else:
            dropped.append(DroppedText(candidate.source, text, reason))
    if not kept:
        worst = ", ".join(sorted({each.reason.value for each in dropped}))
        return PageOutcome(page.url, None, Reason.NO_TEXT, worst or "no candidate text", tuple(dropped))
    robots = "; ".join((*page.robots, *document.robots))[:200]
    chosen = replace(image, texts=tuple(kept.values()))
    return PageOutcome(
        page.url, PageCandidate(page.url, *language, chosen, robots, page.place), dropped_texts=tuple(dropped)
    )


def _dropped(page: Page, reason: Reason, detail: str) -> PageOutcome:
    return PageOutcome(page.url, None, reason, detail)


def outcome_from_json(data: dict[str, Any]) -> PageOutcome:
    """Reverses `dataclasses.asdict`."""
    found = data["candidate"]
    return PageOutcome(
        data["page_url"],
        None if found is None else candidate_from_json(found),
        None if data["reason"] is None else Reason(data["reason"]),
        data["detail"],
        tuple(
            DroppedText(TextSource(each["source"]), each["text"], Reason(each["reason"]))
            for each in data["dropped_texts"]
        ),
    )


def candidate_from_json(data: dict[str, Any]) -> PageCandidate:
    image = data["image"]
    texts = tuple(CandidateText(TextSource(each["source"]), each["text"]) for each in image["texts"])
    return PageCandidate(**{**data, "image": CandidateImage(**{**image, "texts": texts})})
