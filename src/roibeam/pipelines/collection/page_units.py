"""Units of work that PAGES are cut into: a WARC file each, or some hundred HTML files.

The order is that of the names, in bytes. One unit is done by one worker from end to end, so its result does not depend
on the number of workers.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from roibeam.messages import printable
from roibeam.pipelines.collection.pairs import BrokenPage, Page, Reason
from roibeam.pipelines.collection.warc_pages import is_warc_name, read_warc

HTML_NAMES = (".html", ".htm", ".xhtml")


def read_html(root: str, names: tuple[str, ...], *, base_url: str, max_bytes: int) -> Iterator[Page | BrokenPage]:
    """Reads pages in the order of `names`. A body over `max_bytes` comes cut to one byte more.

    Args:
        base_url: prefix of a page's path; ends in "/".
    """
    for name in names:
        place = printable(name, 300)
        try:
            with open(os.path.join(root, name), "rb") as file:
                body = file.read(max_bytes + 1)
        except OSError as error:
            yield BrokenPage(place, Reason.BROKEN_RECORD, f"cannot be read: {error.strerror}")
            continue
        url = base_url + quote(os.fsencode(name.replace(os.sep, "/")))
        yield Page(url, body, None, (), place)


HTML_FILES_PER_UNIT = 200
_LIST_NAMES = (".paths", ".txt")
_LISTED_SCHEMES = ("http", "https", "s3")


@dataclass(frozen=True)
class PageUnit:
    """Attributes:
    number: from 0.
    root: folder of HTML files; "" for a WARC.
    names: paths below `root`, or the one path or URL of a WARC.
    base_url: of the pages of a folder.
    allowed: networks beside public addresses that may be contacted for a WARC of a list, see `AddressRule`; None for
        a WARC that the user named.
    state: digest of names, sizes and times of the files: a unit whose files changed is done again.
    """

    number: int
    root: str
    names: tuple[str, ...]
    base_url: str
    state: str
    allowed: tuple[str, ...] | None = None

    def pages(self, *, max_bytes: int) -> Iterator[Page | BrokenPage]:
        """Yields its pages and broken pages in order."""
        if self.root:
            return read_html(self.root, self.names, base_url=self.base_url, max_bytes=max_bytes)
        return read_warc(self.names[0], max_bytes=max_bytes, allowed=self.allowed)


def plan_units(pages: str, *, base_url: str, allow_private: tuple[str, ...] = ()) -> list[PageUnit]:
    """Cuts PAGES into units.

    Args:
        pages: a .warc or .warc.gz, here or at a URL; a folder with such files and HTML files, at any depth (links are
            not followed); a list of places, a line each (.paths or .txt, as Common Crawl's warc.paths unpacked): paths
            below its folder, or URLs of http, https and s3.
        base_url: prefix of the path of an HTML file; http or https, ends in "/".
        allow_private: networks that lines of a list may name, although they are not public.
    """
    warcs, root, html = _found(pages)
    groups: list[tuple[str, tuple[str, ...]]] = [("", (place,)) for place in warcs]
    groups += [(root, tuple(html[at : at + HTML_FILES_PER_UNIT])) for at in range(0, len(html), HTML_FILES_PER_UNIT)]
    if not groups:
        raise ValueError(f"{pages}: no page in it; expected .warc, .warc.gz or {', '.join(HTML_NAMES)} files")
    allowed = allow_private if pages.lower().endswith(_LIST_NAMES) and not root else None
    return [
        PageUnit(number, folder, names, base_url, _state(folder, names), allowed)
        for number, (folder, names) in enumerate(groups)
    ]


def _found(pages: str) -> tuple[list[str], str, list[str]]:
    """Returns WARC files, and the folder with HTML files below it."""
    if "://" in pages:
        if not is_warc_name(pages.partition("?")[0]):
            raise ValueError(f"{pages}: a URL of pages ends in .warc or .warc.gz")
        return [pages], "", []
    if os.path.isdir(pages):
        found = sorted(_files_below(pages), key=os.fsencode)
        warcs = [os.path.join(os.path.abspath(pages), name) for name in found if is_warc_name(name)]
        return warcs, os.path.abspath(pages), [name for name in found if name.lower().endswith(HTML_NAMES)]
    if not os.path.isfile(pages):
        raise ValueError(f"{pages}: not there; expected a folder, a .warc or .warc.gz, or a list of them (.paths)")
    if is_warc_name(pages):
        return [os.path.abspath(pages)], "", []
    if pages.lower().endswith(HTML_NAMES):
        return [], os.path.dirname(os.path.abspath(pages)), [os.path.basename(pages)]
    if not pages.lower().endswith(_LIST_NAMES):
        raise ValueError(f"{pages}: expected a folder, a .warc or .warc.gz, .html, or a list of WARC files (.paths)")
    return _listed(pages), "", []


def _listed(path: str) -> list[str]:
    folder, places = os.path.dirname(os.path.abspath(path)), []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if place := line.strip():
                if not is_warc_name(place.partition("?")[0]):
                    raise ValueError(f"{path}, line {number}: expected the path or URL of a .warc or .warc.gz")
                places.append(_listed_place(place, folder, f"{path}, line {number}"))
    return places


def _listed_place(place: str, folder: str, where: str) -> str:
    """Checks a line of a foreign list: it must name no other file of this machine, and no other driver."""
    if "://" in place:
        is_chained = "::" in re.sub(r"\[[0-9a-fA-F:.]*\]", "", place)  # not in the host of an IPv6 address
        if place.partition("://")[0].lower() not in _LISTED_SCHEMES or is_chained:
            raise ValueError(
                f"{where}: {place}: expected a URL of http, https or s3, or a path below the list's folder"
            )
        return place
    found = os.path.normpath(os.path.join(folder, place))
    if not found.startswith(folder.rstrip("/") + "/"):
        raise ValueError(f"{where}: {place} is not below the folder of the list; name that folder itself as PAGES")
    if not os.path.isfile(found):
        raise ValueError(f"{where}: no file {place}")
    return found


def _files_below(folder: str) -> Iterator[str]:
    for current, folders, files in os.walk(folder):
        folders.sort()
        for name in files:
            whole = os.path.join(current, name)
            if os.path.isfile(whole) and not os.path.islink(whole):  # opening a pipe would wait for ever
                yield os.path.relpath(whole, folder)


def _state(root: str, names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(name) + b"\0")
        if "://" not in name:
            status = os.stat(os.path.join(root, name))
            digest.update(f"{status.st_size} {status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:32]
