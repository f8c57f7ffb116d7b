"""A page of the toy web as its server sends it: four ways to build one, two charsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.web.furniture import banner, footer, header, padding
from roibeam.pipelines.toyworld.web.page_plan import PagePlan
from roibeam.pipelines.toyworld.web.page_texts import CandidateText
from roibeam.pipelines.toyworld.web.phrases import FOREIGN, SENTENCES, site_name

NUM_STYLES = 4
_OLD_SITE = 7  # of ten: these sites use the old charset of their language


@dataclass(frozen=True)
class ShownPicture:
    """`url` of the file, and of a smaller one ("" for none); pixels."""

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
    plan: PagePlan,
    stream: IntegerStream,
    url: str,
    picture: ShownPicture,
    texts: Sequence[CandidateText],
    num_bytes: int,
) -> bytes:
    """
    Args:
        url: of the page.
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
    plan: PagePlan, stream: IntegerStream, url: str, picture: ShownPicture, texts: Mapping[str, str], title: str,
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
    style: int, stream: IntegerStream, picture: ShownPicture, texts: Mapping[str, str], paragraphs: Sequence[str]
) -> str:
    image = _image(style, stream, picture, texts)
    caption = texts.get("figcaption", "")
    near = texts.get("sentence")
    first = f"{_sentence(near)} {paragraphs[1]}" if near is not None else paragraphs[1]
    before, after, last = (escape(text) for text in (paragraphs[0], first, paragraphs[2]))
    heading = escape(paragraphs[3].split(".")[0])
    if style == 0:
        shown = f"<figure>{image}{f'<figcaption>{escape(caption)}</figcaption>' if caption else ''}</figure>"
        return f"<article><h1>{heading}</h1><p>{before}</p>\n{shown}\n<p>{after}</p><p>{last}</p></article>"
    if style == 1:
        below = f'<div class="caption">{escape(caption)}</div>' if caption else ""
        shown = f'<div class="img-wrap"><div>{image}</div>{below}</div>'
        return f'<div class="post"><div class="h">{heading}</div><div>{before}</div>{shown}<div>{after}</div></div>'
    if style == 2:
        below = f"<TR><TD class=caption><I>{escape(caption)}</I>" if caption else ""
        return f"<TABLE><TR><TD><H2>{heading}</H2><P>{before}<TR><TD>{image}{below}<TR><TD><P>{after}<P>{last}</TABLE>"
    shown = f"<figure>{image}{f'<figcaption><p>{escape(caption)}</p></figcaption>' if caption else ''}</figure>"
    rest = f"<section><p>{after}</p><p>{last}</p></section>"
    return f"<article itemscope><header><h1>{heading}</h1></header>{shown}{rest}</article>"


def _image(style: int, stream: IntegerStream, picture: ShownPicture, texts: Mapping[str, str]) -> str:
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
    """As in a paragraph: a capital first, a full stop last."""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")
