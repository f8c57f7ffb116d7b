"""One web page as it came: its address, its bytes, and what its server said."""

from __future__ import annotations

from dataclasses import dataclass

NOWHERE = "http://pages.invalid/"  # a host that never has an address (RFC 2606)


@dataclass(frozen=True)
class Page:
    """A page that was read, not yet looked into.

    Attributes:
        url: its address, http or https; of a folder of HTML its place below `--base-url`, by default below
            `NOWHERE`.
        body: the HTML, undecoded.
        charset: what the HTTP header calls its encoding; None where it says nothing.
        robots: what its headers say of its use, see `said_of_use`.
        place: where it was read, for reports: "crawl.warc.gz, record 17" or "docs/a.html".
    """

    url: str
    body: bytes
    charset: str | None = None
    robots: tuple[str, ...] = ()
    place: str = ""
