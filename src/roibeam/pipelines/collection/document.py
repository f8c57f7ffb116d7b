"""Parsed HTML document of a page: blocks of visible text and the images between them, in the order of the page.

Decoding never fails: bytes without a meaning in the page's charset become U+FFFD. Lexbor (by selectolax) parses as
browsers do. HTML has no entities but its own, so there is no bomb to go off; scripts are removed unread.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from selectolax.lexbor import LexborHTMLParser

from roibeam.pipelines.data.download.robots import AGENT, TDM

_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([a-zA-Z0-9_.:-]{1,40})""", re.IGNORECASE)
_META_BYTES = 4096  # HTML's own rule is 1024; many pages have it later
# Python's own encodings, of no page: they decode into other text than was meant, or take quadratic time.
_NOT_OF_PAGES = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "utf-7"})
# Encodings that browsers use for these names.
_READ_AS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}


def decode_page(body: bytes, declared: str | None) -> str:
    """Decodes a page: by byte order mark, the server's declared charset, the page's own <meta>, UTF-8, Windows-1252.

    Args:
        declared: charset of the Content-Type header; None or an unknown name is passed over.
    """
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    found = _META.search(body[:_META_BYTES])
    for label in (declared, found[1].decode("ascii") if found else None):
        known = _known(label)
        # A page that is readable this far is in no 16-bit encoding, whatever its <meta> declares (HTML's rule too).
        if known is not None and not (known.startswith("utf-16") and found):
            return body.decode(known, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _known(label: str | None) -> str | None:
    if not label or len(label) > 40:
        return None
    try:
        info = codecs.lookup(label.strip().strip("\"'"))
    except (LookupError, ValueError):
        return None
    if not getattr(info, "_is_text_encoding", True) or info.name in _NOT_OF_PAGES:
        return None
    return _READ_AS.get(info.name, info.name)


_HIDDEN = "script style template svg math iframe object embed canvas select textarea video audio".split()
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol p pre section summary table tbody td tfoot th thead tr ul "
    "br".split()
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]"
)
# ZWNJ and ZWJ shape the letter or emoji before them; where there is none, or another of them, they are only invisible.
_JOINS_NOTHING = re.compile(r"(?<![^\s\u200c\u200d])[\u200c\u200d]+")
_LINE_END, _BLANK = re.compile(r"[\t\n\r]"), re.compile(r"\s")
_MAX_URL_CHARS = 2048
_VERSION = re.compile(r"([^\s,]\S*+)(?:(?<!,)\s++([^,]*+))?")  # of a srcset: address and its descriptor
_SIZE = re.compile(r"(\d+(?:\.\d+)?)[wxh](?:\s|$)")
# Attributes with the address for scripts that load images later; the first that holds one counts.
_LAZY = (
    "data-src", "data-original", "data-original-src", "data-lazy-src", "data-lazy", "data-lazyload", "data-actualsrc",
    "data-full-src", "data-hi-res-src", "data-img-src", "data-image-src", "data-echo",
)  # fmt: skip
_SETS = ("data-srcset", "data-lazy-srcset", "data-original-set", "srcset")
_IS_ADDRESS = re.compile(r"/|\.[a-z]", re.IGNORECASE)  # data-lazy="true" is none
_IMAGES = ("img", "amp-img")
_MAX_IMAGES = 500  # of one page; a page with more is an index of images
_MAX_ANCESTORS = 60
_MAX_NAMES_CHARS = 500  # of a class, id and role
_MAX_CAPTION_CHARS = 2000  # of a figcaption: longer than any text that the rules let through
_MAX_SOURCES = 50  # of a <picture>
_CONTENT, _EDGE = frozenset({"main", "article", "figure"}), frozenset({"nav", "aside", "footer", "header", "menu"})
_EDGE_WORDS = re.compile(
    r"\b(nav|navbar|sidebar|footer|header|menu|breadcrumb|advert\w*|ads?|banner|promo|share|social|related|comments?)\b"
)


@dataclass(frozen=True)
class ElementPlace:
    """Place of an element. `in_edge`: in navigation, sidebar, footer or the like; `caption`: text of its figure's
    figcaption."""

    in_content: bool
    in_edge: bool
    in_figure: bool
    caption: str


@dataclass(frozen=True)
class ImageTag:
    """An <img> or <amp-img>: its attributes, the number of the block of text before it, its place."""

    urls: tuple[tuple[str, str], ...]  # (url, found by), best first, absolute
    alt: str
    title: str
    names: str  # of its class and id, lower case
    width: int | None
    height: int | None
    block: int
    place: ElementPlace


@dataclass(frozen=True)
class Document:
    """Attributes:
    blocks: visible texts in order, white space made single blanks, none empty.
    first_nodes: of each, the parser's node of its first text.
    images: in order.
    meta: names and properties of <meta>, lower case, to their first content.
    robots: contents of <meta name=robots>, of those with roibeam's name, and of tdm-reservation.
    """

    blocks: tuple[str, ...]
    first_nodes: tuple[Any, ...]
    images: tuple[ImageTag, ...]
    meta: dict[str, str]
    robots: tuple[str, ...]
    og_image: str | None

    @property
    def text(self) -> str:
        """All visible text, a line for each block."""
        return "\n".join(self.blocks)

    def is_edge_block(self, number: int) -> bool:
        """Whether this block stands in navigation, a sidebar, a footer or the like."""
        return any(_is_edge(each) for each in _ancestors(self.first_nodes[number].parent))


def plain(text: str) -> str:
    """Removes control and invisible characters (bidirectional marks too), and makes white space single blanks.

    ZWNJ and ZWJ stay where they shape a word, as in Persian, or an emoji.
    """
    text = _CONTROL.sub("", text)
    if "\u200c" in text or "\u200d" in text:
        text = _JOINS_NOTHING.sub("", text)
    return " ".join(text.split())


def web_url(base: str, reference: str) -> str | None:
    """Returns the absolute http or https URL without fragment; None where there is none that could be fetched."""
    # As browsers do: no blanks around it, no line ends and tabs inside it, other blanks encoded.
    reference = _BLANK.sub(lambda found: quote(found[0]), _LINE_END.sub("", reference).strip())
    if not reference or len(reference) > _MAX_URL_CHARS or _CONTROL.search(reference):
        return None
    try:
        url = urljoin(base, reference).partition("#")[0]
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            return None
        _ = parts.port  # raises for one that is no number
    except ValueError:
        return None
    return url if len(url) <= _MAX_URL_CHARS else None


def parse_document(html: str, url: str) -> Document:
    """Parses a page.

    Args:
        url: of the page; relative addresses are relative to it, or to its <base>.
    """
    tree = LexborHTMLParser(html)
    meta, robots = _meta(tree)
    found = tree.css_first("base[href]")
    base = (web_url(url, found.attributes.get("href") or "") if found else None) or url
    tree.strip_tags(_HIDDEN)
    has_noscripts = "noscript" in html.lower() and _strip_noscripts(tree)
    texts: list[list[str]] = [[]]
    first_nodes: list[Any] = [None]
    images: list[tuple[Any, int]] = []
    root = tree.body
    for node in root.traverse(include_text=True) if root is not None else ():
        tag = node.tag
        if tag == "-text":
            text = node.text_content
            if text and not text.isspace():
                if not texts[-1]:
                    first_nodes[-1] = node
                texts[-1].append(text)
            elif texts[-1]:
                texts[-1].append(" ")
        elif tag in _IMAGES:
            if len(images) < _MAX_IMAGES:
                images.append((node, len(texts) - 1 - (not texts[-1])))
        elif tag in _BLOCKS and texts[-1]:
            texts.append([])
            first_nodes.append(None)
    numbers, blocks, nodes = _blocks(texts, first_nodes)
    og_image = meta.get("og:image") or meta.get("og:image:url") or meta.get("twitter:image")
    return Document(
        blocks, nodes,
        tuple(_image_tag(node, numbers[block] if block >= 0 else -1, base, has_noscripts) for node, block in images),
        meta, robots,
        None if og_image is None else web_url(base, og_image),
    )  # fmt: skip


def _strip_noscripts(tree: Any) -> bool:
    """Keeps only the images of <noscript>: for a lazy image, that one may be the only one. Whether there is any."""
    has_images = False
    for noscript in reversed(tree.css("noscript")):  # one may stand in another
        if noscript.css_first("img") is None:
            noscript.decompose()
            continue
        has_images = True
        for text in [node for node in noscript.traverse(include_text=True) if node.tag == "-text"]:
            text.decompose()
    return has_images


def _blocks(texts: list[list[str]], nodes: list[Any]) -> tuple[list[int], tuple[str, ...], tuple[Any, ...]]:
    """Number of the last block kept up to each raw one (-1 for none); the kept ones; their first nodes."""
    numbers: list[int] = []
    kept: list[str] = []
    kept_nodes: list[Any] = []
    for parts, node in zip(texts, nodes, strict=True):
        if text := plain("".join(parts)):
            kept.append(text)
            kept_nodes.append(node)
        numbers.append(len(kept) - 1)
    return numbers, tuple(kept), tuple(kept_nodes)


def _meta(tree: Any) -> tuple[dict[str, str], tuple[str, ...]]:
    meta: dict[str, str] = {}
    robots: list[str] = []
    for node in tree.css("meta"):
        values = node.attributes
        name = (values.get("property") or values.get("name") or "").strip().lower()
        content = plain(values.get("content") or "")
        if name and content:
            meta.setdefault(name, content)
            if name in ("robots", AGENT):
                robots.append(content)
            elif name == TDM:
                robots.append(f"{TDM}: {content}")
    return meta, tuple(robots)


def _ancestors(node: Any) -> Iterator[Any]:
    """Yields the element itself, then its ancestors, nearest first."""
    for _ in range(_MAX_ANCESTORS):
        if node is None or node.tag in ("body", "html", None):
            return
        yield node
        node = node.parent


def _is_edge(node: Any) -> bool:
    if node.tag in _EDGE:
        return True
    values = node.attributes
    names = " ".join((values.get(name) or "")[:_MAX_NAMES_CHARS] for name in ("class", "id", "role"))
    return len(names) > 2 and _EDGE_WORDS.search(names.lower().replace("_", " ")) is not None


def _place(node: Any) -> ElementPlace:
    in_content = in_edge = in_figure = False
    caption = ""
    for each in _ancestors(node.parent):
        if each.tag == "figure" and not in_figure:
            in_figure = True
            found = each.css_first("figcaption")
            caption = "" if found is None else _caption(found)
        # An article has a header of its own: the nearer ancestor counts.
        in_content |= each.tag in _CONTENT and not in_edge
        in_edge |= not in_content and _is_edge(each)
    return ElementPlace(in_content, in_edge, in_figure, caption)


def _caption(node: Any) -> str:
    """Text of a figcaption, cut: hundreds of images may stand in one figure, whose caption is as long as a page."""
    parts: list[str] = []
    left = _MAX_CAPTION_CHARS
    for each in node.traverse(include_text=True):
        if each.tag in _BLOCKS:
            parts.append(" ")
        elif each.tag == "-text" and (text := each.text_content):
            parts.append(text[:left])
            left -= len(text)
            if left <= 0:
                break
    return plain("".join(parts))


def _image_tag(node: Any, block: int, base: str, has_noscripts: bool) -> ImageTag:
    values = node.attributes
    names = " ".join((values.get(name) or "")[:_MAX_NAMES_CHARS] for name in ("class", "id")).lower()
    sides = (_pixels(values.get("width")), _pixels(values.get("height")))
    if values.get("layout") == "responsive":  # of an <amp-img>: they are a ratio, and may be 16 and 9
        sides = (None, None)
    return ImageTag(
        tuple(_urls(node, values, base, has_noscripts)), plain(values.get("alt") or ""),
        plain(values.get("title") or ""), names, *sides, block, _place(node),
    )  # fmt: skip


def _urls(node: Any, values: dict[str, str | None], base: str, has_noscripts: bool) -> Iterator[tuple[str, str]]:
    """Yields addresses, of the largest version first; of a lazy image those of its script, or of the <noscript> beside
    it, before its placeholder."""
    parent = node.parent
    tags = [values]
    if parent is not None and parent.tag == "picture":
        tags += [each.attributes for each in islice(parent.iter(), _MAX_SOURCES) if each.tag == "source"]
    for each in tags:
        for name in _SETS:
            if (given := each.get(name)) and (best := _largest(given)) and (url := web_url(base, best)):
                yield url, "srcset"
    for name in _LAZY:
        given = values.get(name)
        is_url = given and len(given) <= _MAX_URL_CHARS and _IS_ADDRESS.search(given)
        if given and is_url and (url := web_url(base, given)):
            yield url, "img"
    given = values.get("src")
    url = web_url(base, given) if given and len(given) <= _MAX_URL_CHARS else None
    if has_noscripts and (spare := _image_without_scripts(node, values.get("alt") or "", url)) is not None:
        yield from _urls(spare, spare.attributes, base, False)
    if url:
        yield url, "img"


def _image_without_scripts(node: Any, alt: str, url: str | None) -> Any:
    """Returns the image of a <noscript> directly beside an image, if both are one: they have one alt text, or this one
    has no address. Otherwise it is an image of its own, such as a counter of visitors."""
    for neighbour in (_beside(node, "next"), _beside(node, "prev")):
        found = neighbour.css_first("img") if neighbour is not None and neighbour.tag == "noscript" else None
        if found is not None and (url is None or (alt and alt == found.attributes.get("alt"))):
            return found
    return None


def _beside(node: Any, side: str) -> Any:
    """Returns the next or previous sibling that is not blank text."""
    found = getattr(node, side)
    while found is not None and found.tag == "-text" and (found.text_content or "").isspace():
        found = getattr(found, side)
    return found


def _largest(srcset: str) -> str | None:
    """Returns the address of the widest (or densest) version of a srcset."""
    best, largest = None, -1.0
    # An address ends at a blank, or at a comma that a blank follows; its descriptor ends at any comma.
    for address, words in _VERSION.findall(srcset[:20_000]):
        number = _SIZE.match(words)
        size = float(number[1]) if number else 1.0
        if size > largest:
            best, largest = address.rstrip(","), size
    return best


def _pixels(value: str | None) -> int | None:
    """Pixels of a width or height attribute; None where it is no number of pixels ("100%")."""
    found = re.fullmatch(r"\s*(\d{1,6})(?:\.\d+)?\s*(?:px)?\s*", value or "")
    return int(found[1]) if found else None
