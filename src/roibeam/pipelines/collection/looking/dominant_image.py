"""Step 3: which image dominates its page, and the texts that may describe it.

The paper says "according to HTML tags and DOM tree features" and no more: the points below are ours.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from roibeam.pipelines.collection.looking.document import Document, ImageTag, plain
from roibeam.pipelines.collection.pair import CandidateImage, CandidateText, TextSource
from roibeam.pipelines.collection.thresholds import ImageThresholds

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
    """The image with the most points, the first of equals; None where none has `min_score`.

    Its texts are those that the page has, cleaned of nothing yet; there may be none.
    """
    best: tuple[float, ImageTag | None, tuple[str, str]] | None = None
    og_shown = False
    for image in document.images:
        if not image.urls or _is_ruled_out(image, limits):
            continue
        urls = {url for url, _ in image.urls}
        is_og = document.og_image in urls
        og_shown |= is_og
        score = image_score(image, is_og=is_og)
        if best is None or score > best[0]:
            best = (score, image, image.urls[0])
    if document.og_image is not None and not og_shown:
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
    """By its declared sides."""
    sides = [side for side in (image.width, image.height) if side is not None]
    if any(side < limits.min_declared_px for side in sides):
        return True
    return len(sides) == 2 and max(sides) > limits.max_declared_aspect * min(sides)


def candidate_texts(document: Document, tag: ImageTag | None, limits: ImageThresholds) -> tuple[CandidateText, ...]:
    """Texts with where they stood, none twice, in the order of `TextSource`.

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
    """The first sentences of the block after the image, else of the block before it; menus do not count."""
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
