"""What a download may cost: connections, seconds, bytes, pixels, attempts."""

from __future__ import annotations

from dataclasses import dataclass, fields

from roibeam.extraction.photos.decode import DEFAULT_MAX_PIXELS, LARGEST_MAX_PIXELS


@dataclass(frozen=True)
class DownloadLimits:
    """Defaults are for a list of millions of URLs on as many hosts, from one machine.

    Attributes:
        connections: open at once.
        per_host: of these, to one host name.
        attempts: tries of one URL in all; only what may pass (no connection, 429, 500, a cut-off body) is tried again.
        connect_seconds: until a connection stands.
        stall_seconds: longest silence of a server.
        total_seconds: for one answer, whole; a server that sends a byte now and then is not silent.
        max_wait_seconds: longest Retry-After that is waited for; a URL whose host asks for more is given up, and the
            host with it after five such answers in a row.
        backoff_seconds: before the second attempt; doubled for each further one, times 0.5 to 1.5 at random.
        max_redirects: followed for one URL.
        max_bytes: of one image, also after decompression.
        max_pixels: of one image, by its header.
        min_side: pixels that the shorter side of an image must have; 0 takes all.
    """

    connections: int = 64
    per_host: int = 8
    attempts: int = 3
    connect_seconds: float = 10.0
    stall_seconds: float = 15.0
    total_seconds: float = 60.0
    max_wait_seconds: float = 60.0
    backoff_seconds: float = 1.0
    max_redirects: int = 5
    max_bytes: int = 20_000_000
    max_pixels: int = DEFAULT_MAX_PIXELS
    min_side: int = 0

    def __post_init__(self) -> None:
        may_be_zero = ("max_wait_seconds", "backoff_seconds", "max_redirects", "min_side")
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name not in may_be_zero):
                raise ValueError(f"{field.name} is {value}, expected more than 0")
        if self.max_pixels > LARGEST_MAX_PIXELS:
            raise ValueError(f"max_pixels is {self.max_pixels}, expected at most {LARGEST_MAX_PIXELS}")
