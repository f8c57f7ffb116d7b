"""Pages of a folder of HTML files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import quote

from roibeam.features.printable import printable
from roibeam.pipelines.collection.page import Page
from roibeam.pipelines.collection.reading.broken import BrokenPage
from roibeam.pipelines.collection.reasons import Reason

HTML_NAMES = (".html", ".htm", ".xhtml")


def read_html(root: str, names: tuple[str, ...], *, base_url: str, max_bytes: int) -> Iterator[Page | BrokenPage]:
    """Pages in the order of `names`. A body over `max_bytes` comes cut to one byte more.

    Args:
        root: the folder.
        names: paths below it.
        base_url: what a page's path follows; ends in "/".
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
