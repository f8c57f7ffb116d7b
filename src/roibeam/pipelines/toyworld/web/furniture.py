"""What stands around the story of a page: navigation, styles, scripts, related stories, comments, a footer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape

from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.web.phrases import NAVIGATION, SITE_WORDS

THUMBNAIL_PX = 120
BANNER_HW = (90, 728)
LOGO_HW = (80, 320)
ICON_PX = 32
NUM_STATIC = 6  # thumbnails and banners of a site


def header(site: str, name: str) -> str:
    """The site's logo with its name, and its navigation."""
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
    """What belongs into the head, and what after the story, of about `num_bytes` bytes together."""
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
    """A program with a table of data, as trackers and shops have them; it would show that it ran."""
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
