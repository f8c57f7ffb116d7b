"""How a download is done, as a command asks for it; light, so that commands look at it before anything is imported."""

from __future__ import annotations

from dataclasses import dataclass, field

from roibeam.pipelines.data.datasets.url_table import UrlColumns
from roibeam.pipelines.data.download.addresses import AddressRule
from roibeam.pipelines.data.download.limits import DownloadLimits


@dataclass(frozen=True)
class DownloadOptions:
    """How to download.

    Attributes:
        limits: see there.
        allow_private: networks that may be connected to although they are not public.
        retry_dead_letters: try the URLs again that failed in earlier runs.
        seed: of the waits between attempts.
        user_agent: what we call ourselves; None means roibeam and its version.
        as_json: progress as JSON lines on standard output.
        asks_robots_txt: whether each host's robots.txt is asked before its images.
        columns: of a list that is a table.
    Raises:
        ValueError: for a network that is none, or a name that no header can hold.
    """

    limits: DownloadLimits = field(default_factory=DownloadLimits)
    allow_private: tuple[str, ...] = ()
    retry_dead_letters: bool = False
    seed: int = 0
    user_agent: str | None = None
    as_json: bool = False
    asks_robots_txt: bool = False
    columns: UrlColumns = field(default_factory=UrlColumns)

    def __post_init__(self) -> None:
        self.address_rule()
        if self.user_agent is not None and not (self.user_agent.isascii() and self.user_agent.isprintable()):
            raise ValueError(f"--user-agent {self.user_agent!r}: expected letters, digits and signs of ASCII")

    def address_rule(self) -> AddressRule:
        """Which addresses may be connected to."""
        return AddressRule(self.allow_private)
