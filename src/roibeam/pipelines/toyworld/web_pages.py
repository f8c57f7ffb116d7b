"""Pages of the toy web as files: HTML in four builds and two charsets, boilerplate, and pictures.

Boilerplate: navigation, styles, scripts, related stories, comments, a footer. Pictures are scenes of the toy world in
any size, or no photo at all. Workers draw some pages of the plan; this file imports little, so that processes start
quickly.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from roibeam.pipelines.toyworld.picture import Picture, describe
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.rendering import encoded, render
from roibeam.pipelines.toyworld.scene import Drawing, generate
from roibeam.pipelines.toyworld.web_texts import (
    FIRST_WEB_SCENE,
    FOREIGN,
    NAVIGATION,
    NUM_SITES,
    SENTENCES,
    SITE_WORDS,
    PagePlan,
    PageText,
    page_texts,
    plan_pages,
    site_name,
)

THUMBNAIL_PX = 120
BANNER_HW = (90, 728)
LOGO_HW = (80, 320)
ICON_PX = 32
NUM_STATIC = 6  # thumbnails and banners of a site


def header(site: str, name: str) -> str:
    """Returns the site's logo with its name, and its navigation."""
    links = "".join(f'<li><a href="/{site}/{escape(word)}.html">{word}</a></li>' for word in NAVIGATION[:9])
    height, width = LOGO_HW
    logo = (
        f'<img class="logo" src="/{site}/static/logo.png" alt="{escape(name)} logo" width="{width}" height="{height}">'
    )
    return f'<header class="site"><a href="/{site}/">{logo}</a><nav><ul>{links}</ul></nav></header>'


def banner(site: str, stream: IntegerStream) -> str:
    height, width = BANNER_HW
    source = f"/{site}/static/banner-{stream.below(NUM_STATIC)}.png"
    alt = stream.pick(("Advertisement", "", "Subscribe to our newsletter today"))
    return (
        f'<aside class="ad"><a href="https://ads.example/click?id={stream.below(10_000)}" rel="nofollow">'
        f'<img src="{source}" alt="{alt}" width="{width}" height="{height}"></a></aside>'
    )


def footer(site: str, name: str) -> str:
    links = " | ".join(f'<a href="/{site}/{escape(word)}.html">{word}</a>' for word in NAVIGATION[11:])
    icons = "".join(
        f'<img src="/{site}/static/icon-{kind}.png" width="{ICON_PX}" height="{ICON_PX}" alt="{kind}">'
        for kind in ("mail", "share")
    )
    pixel = '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=" width="1" height="1" alt="">'
    return f"<footer><p>{links}</p><p>{icons} © {escape(name)}</p>{pixel}</footer>"


def padding(site: str, stream: IntegerStream, sentences: Sequence[str], num_bytes: int) -> tuple[str, str]:
    """Returns filler for the head, and for the end of the body, of about `num_bytes` bytes together."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    makers: tuple[tuple[bool, Callable[[], str]], ...] = (
        (True, lambda: _script(stream)),
        (False, lambda: _related(site, stream, sentences)),
        (True, lambda: _style(stream)),
        (False, lambda: _comments(stream, sentences)),
    )
    length, turn = 0, 0
    while length < num_bytes:
        in_head, make = makers[turn % len(makers)]
        parts[in_head].append(make())
        length += len(parts[in_head][-1].encode("utf-8"))
        turn += 1
    return "\n".join(parts[True]), "\n".join(parts[False])


def _script(stream: IntegerStream) -> str:
    """Returns a program with a table of data, as trackers and shops have them; it would change the title if it ran."""
    rows = [
        {"id": stream.below(1 << 30), "slot": f"{stream.pick(SITE_WORDS)}-{stream.below(99)}", "on": stream.percent(50)}
        for _ in range(stream.between(12, 45))
    ]
    return (
        f"<script>(function(w,d){{w.dataLayer=w.dataLayer||[];var rows={json.dumps(rows)};\n"
        "for(var i=0;i<rows.length;i++){if(rows[i].on&&i<3){w.dataLayer.push(rows[i]);}}\n"
        "d.title='a script ran';})(window,document);</script>"
    )


def _style(stream: IntegerStream) -> str:
    rules = "".join(
        f".{stream.pick(SITE_WORDS)}-{number}{{margin:{stream.below(40)}px {stream.below(40)}px;"
        f"color:#{stream.below(1 << 24):06x};font-size:{stream.between(11, 22)}px}}\n"
        for number in range(stream.between(15, 50))
    )
    return f"<style>{rules}</style>"


def _related(site: str, stream: IntegerStream, sentences: Sequence[str]) -> str:
    items = []
    for _ in range(stream.between(3, 8)):
        number, words = stream.below(100_000), " ".join(stream.pick(sentences).split()[:7])
        picture = f"/{site}/static/thumbnail-{stream.below(NUM_STATIC)}.jpg"
        items.append(
            f'<li><a href="/{site}/story-{number}.html"><img loading="lazy" src="{picture}" width="{THUMBNAIL_PX}" '
            f'height="{THUMBNAIL_PX}" alt=""> {escape(words)} ...</a></li>'
        )
    return f'<aside class="related"><ul>{"".join(items)}</ul></aside>'


def _comments(stream: IntegerStream, sentences: Sequence[str]) -> str:
    items = [
        f'<li id="c{stream.below(1 << 20)}"><b>{stream.pick(SITE_WORDS)}{stream.below(99)}</b> '
        f"<span>{stream.between(1, 28)}.{stream.between(1, 12)}.2019</span><p>{escape(stream.pick(sentences))}</p></li>"
        for _ in range(stream.between(3, 9))
    ]
    return f'<section class="comments"><ol>{"".join(items)}</ol></section>'


NUM_STYLES = 4
_OLD_SITE = 7  # of ten: these sites use the old charset of their language


@dataclass(frozen=True)
class PagePicture:
    """Picture of a page: `url` of the file, and of a smaller one ("" for none); size in pixels."""

    url: str
    width: int
    height: int
    smaller_url: str = ""


def site_folder(site: int) -> str:
    return f"site-{site:02d}"


def charset_of(plan: PagePlan) -> str:
    if plan.site % 10 != _OLD_SITE:
        return "utf-8"
    return "windows-1251" if plan.language == "ru" else "windows-1252"


def page_html(
    plan: PagePlan, stream: IntegerStream, url: str, picture: PagePicture, texts: Sequence[PageText], num_bytes: int
) -> bytes:
    """Writes a page.

    Args:
        num_bytes: about how many the page shall have; one has at least about 4,000.
    """
    site, name, style = site_folder(plan.site), site_name(plan.site), plan.site % NUM_STYLES
    sentences = FOREIGN[plan.language][:4] if plan.language != "en" else SENTENCES
    by_source = {text.source: text.text for text in texts}
    charset = charset_of(plan)
    paragraphs = [" ".join(stream.pick(sentences) for _ in range(stream.between(2, 4))) for _ in range(4)]
    story = _story(style, stream, picture, by_source, paragraphs)
    head = _head(plan, stream, url, picture, by_source, f"{paragraphs[0].split('.')[0]} - {name}", charset)
    body = f"{header(site, name)}\n{banner(site, stream)}\n<main>{story}</main>\n"
    end = footer(site, name)
    in_head, after = padding(site, stream, sentences, num_bytes - len(head) - len(body) - len(end))
    opening = f'<!DOCTYPE html>\n<html lang="{plan.language}">\n<head>\n{head}\n{in_head}\n</head>\n'
    text = f"{opening}<body>\n{body}{after}\n{end}"
    # Old sites forget their last tags.
    return (text if style == 2 else f"{text}\n</body>\n</html>\n").encode(charset, "xmlcharrefreplace")


def _head(
    plan: PagePlan, stream: IntegerStream, url: str, picture: PagePicture, texts: Mapping[str, str], title: str,
    charset: str,
) -> str:  # fmt: skip
    lines = [f'<meta charset="{charset}">', f"<title>{escape(title)}</title>"]
    lines.append(f'<link rel="canonical" href="{escape(url)}">')
    if plan.kind == "opted out":
        lines.append('<meta name="robots" content="noai, noimageai">')
    description = texts.get("og:description")
    if description is None and stream.percent(50):
        description = f"{site_name(plan.site).capitalize()}: stories from the country, every week"
    if description is not None:
        lines.append(f'<meta property="og:description" content="{escape(description)}">')
    if stream.percent(60):
        lines.append(f'<meta property="og:image" content="{escape(picture.url)}">')
    return "\n".join(lines)


def _story(
    style: int, stream: IntegerStream, picture: PagePicture, texts: Mapping[str, str], paragraphs: Sequence[str]
) -> str:
    image = _image(style, stream, picture, texts)
    caption = texts.get("figcaption", "")
    near = texts.get("sentence")
    first = f"{_sentence(near)} {paragraphs[1]}" if near is not None else paragraphs[1]
    before, after, last = (escape(text) for text in (paragraphs[0], first, paragraphs[2]))
    heading = escape(paragraphs[3].split(".")[0])
    if style == 0:
        figure = f"<figure>{image}{f'<figcaption>{escape(caption)}</figcaption>' if caption else ''}</figure>"
        return f"<article><h1>{heading}</h1><p>{before}</p>\n{figure}\n<p>{after}</p><p>{last}</p></article>"
    if style == 1:
        below = f'<div class="caption">{escape(caption)}</div>' if caption else ""
        figure = f'<div class="img-wrap"><div>{image}</div>{below}</div>'
        return f'<div class="post"><div class="h">{heading}</div><div>{before}</div>{figure}<div>{after}</div></div>'
    if style == 2:
        below = f"<TR><TD class=caption><I>{escape(caption)}</I>" if caption else ""
        return f"<TABLE><TR><TD><H2>{heading}</H2><P>{before}<TR><TD>{image}{below}<TR><TD><P>{after}<P>{last}</TABLE>"
    figure = f"<figure>{image}{f'<figcaption><p>{escape(caption)}</p></figcaption>' if caption else ''}</figure>"
    rest = f"<section><p>{after}</p><p>{last}</p></section>"
    return f"<article itemscope><header><h1>{heading}</h1></header>{figure}{rest}</article>"


def _image(style: int, stream: IntegerStream, picture: PagePicture, texts: Mapping[str, str]) -> str:
    parts = [f'src="{escape(picture.url)}"']
    if picture.smaller_url and style != 2:
        half = picture.width // 2
        parts = [f'src="{escape(picture.smaller_url)}"']
        parts.append(f'srcset="{escape(picture.smaller_url)} {half}w, {escape(picture.url)} {picture.width}w"')
    if stream.percent(55) and not picture.smaller_url:
        parts.append(f'width="{picture.width}" height="{picture.height}"')
    for name in ("alt", "title"):
        if name in texts:
            parts.append(f'{name}="{escape(texts[name])}"')
    return f"<img {' '.join(parts)}>"


def _sentence(text: str) -> str:
    """Returns a sentence of a paragraph: a capital first, a full stop last."""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


SMALLEST_EDGE, LARGEST_EDGE = 100, 800
RULE_PX = 300  # the paper keeps larger pictures, both ways
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_WORDS = ("Summer", "Total", "Save", "Open", "North", "Menu", "Value", "Point", "Series", "Result", "Daily", "Index")


def natural_size(stream: IntegerStream, height: int, width: int, *, small: bool) -> tuple[int, int]:
    """(height, width) of 100 to 800 pixels in about the shape of the scene; more than 300 both ways, or, if `small`,
    at most 300 one way or both."""
    shorter = stream.between(SMALLEST_EDGE, RULE_PX) if small else stream.between(RULE_PX + 1, 540)
    longer = max(height, width) * shorter // min(height, width)
    longer = min(max(longer, shorter), LARGEST_EDGE)
    return (shorter, longer) if height <= width else (longer, shorter)


def natural_picture(drawing: Drawing, size_hw: tuple[int, int]) -> np.ndarray:
    """(height, width, 3) uint8 BGR: the scene as the toy world draws it, resized."""
    pixels, _ = render(drawing)
    height, width = size_hw
    way = cv2.INTER_AREA if height < pixels.shape[0] else cv2.INTER_CUBIC
    return cv2.resize(pixels, (width, height), interpolation=way)


def unnatural_picture(sort: str, stream: IntegerStream, height: int, width: int) -> np.ndarray:
    """Draws a picture that is no photo, (height, width, 3) uint8 BGR.

    Args:
        sort: "logo", "chart", "screenshot", "banner" or "diagram".
    """
    canvas = np.full((height, width, 3), _light(stream), np.uint8)
    _DRAW[sort](canvas, stream)
    return _scanned(canvas, stream) if stream.percent(50) else canvas


def _scanned(canvas: np.ndarray, stream: IntegerStream) -> np.ndarray:
    """Makes a picture look scanned: blurred, noisy, unevenly lit. Else the noise alone would identify photos."""
    height, width = canvas.shape[:2]
    light = np.array([stream.between(200, 255) for _ in range(4)], np.uint8).reshape(2, 2)
    shade = cv2.cvtColor(cv2.resize(light, (width, height), interpolation=cv2.INTER_LINEAR), cv2.COLOR_GRAY2BGR)
    picture = cv2.GaussianBlur(cv2.multiply(canvas, shade, scale=1 / 255), (3, 3), 0.7)
    noise = np.random.PCG64(stream.below(1 << 30)).random_raw(-(-picture.size // 8)).view(np.uint8)[: picture.size]
    strength = stream.between(3, 5)  # bits to lose: 2 to 31 grey levels
    return cv2.add(picture, (noise >> strength).reshape(picture.shape))


def _light(stream: IntegerStream) -> tuple[int, int, int]:
    grey = stream.between(215, 255)
    return grey, grey - stream.below(12), grey - stream.below(12)


def _strong(stream: IntegerStream) -> tuple[int, int, int]:
    return stream.between(10, 200), stream.between(10, 200), stream.between(10, 200)


def _word(canvas: np.ndarray, stream: IntegerStream, left: int, bottom: int, scale: float) -> None:
    cv2.putText(canvas, stream.pick(_WORDS), (left, bottom), _FONT, scale, _strong(stream), 1 + int(scale), cv2.LINE_AA)


def _logo(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    radius = min(height, width) // stream.between(4, 6)
    cv2.circle(canvas, (width // 2, height // 3), radius, _strong(stream), -1, cv2.LINE_AA)
    cv2.circle(canvas, (width // 2, height // 3), radius * 2 // 3, _light(stream), -1, cv2.LINE_AA)
    points = [(width // 2 + stream.between(-radius, radius) // 2, height // 3 + stream.between(-radius, radius) // 2)]
    cv2.circle(canvas, points[0], radius // 3, _strong(stream), -1, cv2.LINE_AA)
    _word(canvas, stream, width // 5, height * 4 // 5, width / 220)


def _chart(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    count, colour = stream.between(4, 12), _strong(stream)
    floor, step = height - 40, (width - 60) // count
    for row in range(5):
        level = floor - row * (floor - 40) // 5
        cv2.line(canvas, (45, level), (width - 10, level), (200, 200, 200), 1)
        cv2.putText(canvas, str(row * 20), (8, level), _FONT, 0.45, (60, 60, 60), 1, cv2.LINE_AA)
    for bar in range(count):
        top = floor - stream.between(20, max(floor - 50, 21))
        cv2.rectangle(canvas, (50 + bar * step, top), (50 + bar * step + step * 2 // 3, floor), colour, -1)
    cv2.line(canvas, (45, floor), (width - 10, floor), (30, 30, 30), 2)
    _word(canvas, stream, width // 3, 28, 0.8)


def _screenshot(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    cv2.rectangle(canvas, (0, 0), (width, 26), _strong(stream), -1)
    for line in range(44, height - 20, 22):
        if stream.percent(85):
            words = " ".join(stream.pick(_WORDS).lower() for _ in range(stream.between(2, max(width // 70, 3))))
            cv2.putText(canvas, words, (14, line), _FONT, 0.45, (40, 40, 40), 1, cv2.LINE_AA)
    for button in range(stream.between(1, 3)):
        left = width - 110 * (button + 1)
        cv2.rectangle(canvas, (left, height - 34), (left + 96, height - 8), _strong(stream), 1)
        _word(canvas, stream, left + 8, height - 15, 0.5)


def _banner(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    first, last = np.array(_strong(stream)), np.array(_strong(stream))
    share = np.arange(width)[None, :, None] * 256 // width
    canvas[...] = (first * (256 - share) + last * share) // 256
    for row in range(stream.between(2, 4)):
        words = f"{stream.pick(_WORDS)} {stream.pick(_WORDS)}"
        bottom = height * (row + 1) // 5
        cv2.putText(canvas, words, (width // 14, bottom), _FONT, width / 330, (250, 250, 250), 3, cv2.LINE_AA)


def _diagram(canvas: np.ndarray, stream: IntegerStream) -> None:
    height, width = canvas.shape[:2]
    middles = [
        (width * (1 + column) // 4, height * (1 + row) // 4) for row in range(3) for column in range(3)
        if stream.percent(65)
    ]  # fmt: skip
    for start, end in pairwise(middles):
        cv2.arrowedLine(canvas, start, end, (60, 60, 60), 2, cv2.LINE_AA, tipLength=0.08)
    for x, y in middles:
        cv2.rectangle(canvas, (x - width // 11, y - 18), (x + width // 11, y + 18), _light(stream), -1)
        cv2.rectangle(canvas, (x - width // 11, y - 18), (x + width // 11, y + 18), _strong(stream), 2)
        _word(canvas, stream, x - width // 12, y + 6, 0.5)


_DRAW: dict[str, Callable[[np.ndarray, IntegerStream], None]] = {
    "logo": _logo, "chart": _chart, "screenshot": _screenshot, "banner": _banner, "diagram": _diagram,
}  # fmt: skip
SORTS = tuple(_DRAW)


PAGES_FOLDER = "site"
_PURPOSE_OF_PICTURE, _PURPOSE_OF_TEXT, _PURPOSE_OF_PAGE = 12, 13, 14
_OTHER_SCENES = 1 << 42  # of texts about another picture; 64 for each page


@dataclass(frozen=True)
class WebPlan:
    """Settings of all pages. `base` is the address of the site folder, `median_kb` the size of a page (10^3)."""

    seed: int
    num_pages: int
    base: str
    median_kb: int
    evaluation_scenes: tuple[int, ...]


@cache
def pages_of(plan: WebPlan) -> tuple[PagePlan, ...]:
    return tuple(plan_pages(plan.seed, plan.num_pages, plan.evaluation_scenes))


def draw_pages(out: Path, plan: WebPlan, first: int, last: int) -> list[str]:
    """Writes the pages first to last - 1 with their pictures; returns a line of json for each, its truth."""
    return [_draw_page(out / PAGES_FOLDER, plan, page) for page in pages_of(plan)[first:last]]


def _draw_page(folder: Path, plan: WebPlan, page: PagePlan) -> str:
    drawing = generate(plan.seed, page.scene)
    scene = describe(drawing)
    main, file, entry = _picture(folder, plan, page, drawing)
    stream = IntegerStream(plan.seed, _PURPOSE_OF_TEXT, page.number)
    texts = page_texts(page, stream, scene, lambda number: _other(plan.seed, page.number, number), str(entry["sort"]))
    name = f"{site_folder(page.site)}/story-{page.number:06d}.html"
    stream = IntegerStream(plan.seed, _PURPOSE_OF_PAGE, page.number)
    spread = stream.between(40, 100) if stream.percent(50) else stream.between(100, 250)
    size = plan.median_kb * 10 * spread
    body = page_html(page, stream, f"{plan.base}/{name}", main, texts, size)
    (folder / name).write_bytes(body)
    good_picture = bool(entry["natural"]) and min(main.height, main.width) > RULE_PX
    good_page = good_picture and page.kind not in ("foreign", "evaluation", "opted out")
    truth = {
        "page": f"{plan.base}/{name}",
        "file": name,
        "charset": charset_of(page),
        "kind": page.kind,
        "language": page.language,
        "picture": {**entry, "file": file, "height": main.height, "width": main.width},
        "texts": [asdict(text) for text in texts],
        "good": good_page and any(text.good for text in texts),
    }
    return json.dumps(truth, ensure_ascii=True) + "\n"


@cache
def _other(seed: int, page: int, number: int) -> Picture:
    return describe(generate(seed, _OTHER_SCENES + 64 * page + number))


def _picture(folder: Path, plan: WebPlan, page: PagePlan, drawing: Drawing) -> tuple[PagePicture, str, dict[str, Any]]:
    """Writes the main picture; returns it for the page, its file below `folder`, and its entry in the truth."""
    # All copies are drawn from the stream of the first.
    owner = page.scene - FIRST_WEB_SCENE if page.copy else page.number
    stream = IntegerStream(plan.seed, _PURPOSE_OF_PICTURE, owner)
    natural = page.kind != "unnatural"
    sort = "" if natural else stream.pick(SORTS)
    if natural:
        scene = drawing.scene
        size = natural_size(stream, scene.height, scene.width, small=page.kind == "small")
    else:
        size = stream.between(RULE_PX + 1, 600), stream.between(RULE_PX + 1, LARGEST_EDGE)
    is_png = stream.percent(4 if natural else 55)
    quality = stream.between(60, 95)
    site = pages_of(plan)[owner].site if page.copy == 1 else page.site
    number = owner if page.copy == 1 else page.number  # the second page has the first one's file
    extension = ".png" if is_png else ".jpg"
    file = f"{site_folder(site)}/img/{number:06d}{extension}"
    if page.copy == 2:  # the third has a copy of its own, a little smaller where that is still large enough
        smaller = (size[0] * 9 // 10, size[1] * 9 // 10)
        size, quality = (smaller if min(smaller) > RULE_PX else size), 70
    pixels = natural_picture(drawing, size) if natural else unnatural_picture(sort, stream, *size)
    urls = [f"{plan.base}/{file}"]
    if page.copy != 1:
        (folder / file).write_bytes(encoded(pixels, extension, quality))
    smaller_url = ""
    if natural and not page.copy and stream.percent(20):
        small = file.replace(extension, f"-half{extension}")
        half = pixels[: size[0] // 2 * 2, : size[1] // 2 * 2].reshape(size[0] // 2, 2, size[1] // 2, 2, 3)
        (folder / small).write_bytes(encoded(half.mean(axis=(1, 3)).astype("uint8"), extension, quality))
        smaller_url = f"{plan.base}/{small}"
        urls.append(smaller_url)
    entry = {"id": page.scene if natural else -1 - page.number, "urls": urls, "natural": natural, "sort": sort}
    return PagePicture(urls[0], size[1], size[0], smaller_url), file, entry


def draw_static(out: Path, seed: int) -> None:
    """Draws the small pictures that all pages of a site have: logo, icons, banners, thumbnails."""

    for site in range(NUM_SITES):
        folder = out / PAGES_FOLDER / site_folder(site)
        (folder / "img").mkdir(parents=True)
        (folder / "static").mkdir()
        stream = IntegerStream(seed, _PURPOSE_OF_PICTURE, FIRST_WEB_SCENE + site)
        logo = unnatural_picture("logo", stream, *LOGO_HW)
        (folder / "static" / "logo.png").write_bytes(encoded(logo, ".png", 0))
        for kind in ("mail", "share"):
            icon = unnatural_picture("logo", stream, ICON_PX, ICON_PX)
            (folder / "static" / f"icon-{kind}.png").write_bytes(encoded(icon, ".png", 0))
        for number in range(NUM_STATIC):
            banner = unnatural_picture("banner", stream, *BANNER_HW)
            (folder / "static" / f"banner-{number}.png").write_bytes(encoded(banner, ".png", 0))
            drawing = generate(seed, _OTHER_SCENES - NUM_SITES * NUM_STATIC + site * NUM_STATIC + number)
            thumbnail = natural_picture(drawing, (THUMBNAIL_PX, THUMBNAIL_PX))
            (folder / "static" / f"thumbnail-{number}.jpg").write_bytes(encoded(thumbnail, ".jpg", 80))
