"""One attempt at one URL: follows redirects, streams the body into a file, or fails with a reason.

`HostGates` bounds the requests of one host, in number and in time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import FileIO
from time import monotonic
from typing import TypeVar
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from roibeam.messages import printable
from roibeam.pipelines.data.download.limits import AddressRule, DownloadLimits, PrivateAddressError
from roibeam.pipelines.data.download.response import Body, DownloadError, LocalFaultError, Unpacker
from roibeam.pipelines.data.download.robots import (
    MAX_ROBOTS_BYTES,
    RobotsTxt,
    agent_names,
    refusal,
    usage_directives,
    with_source,
)

_SWEEP_AT = 4096  # hosts that are only remembered because of a pause
_MOST_LONG = 5  # answers in a row with a pause over the limit, before a host is given up


class HostGates:
    """Turns at hosts. A host without waiting requests and without a pause takes no memory."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._gates: dict[str, _Gate] = {}

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Waits until `host` may get one more request."""
        gate = self._gates.get(host)
        if gate is None:
            if len(self._gates) >= _SWEEP_AT:
                self._gates = {name: old for name, old in self._gates.items() if old.is_needed()}
            gate = self._gates[host] = _Gate(self._per_host)
        gate.users += 1
        try:
            async with gate.places:
                while (seconds := gate.closed_until - monotonic()) > 0:
                    await asyncio.sleep(seconds)
                yield
        finally:
            gate.users -= 1
            if not gate.is_needed():
                self._gates.pop(host, None)

    def note_long_pause(self, host: str, seconds: float) -> None:
        """Notes that `host` wants a pause over the limit. The caller must hold the gate."""
        gate = self._gates[host]
        gate.num_long += 1
        gate.away_until = monotonic() + seconds

    def note_answer(self, host: str) -> None:
        """Notes that `host` answered a request. The caller must hold the gate."""
        self._gates[host].num_long = 0

    def is_given_up(self, host: str) -> bool:
        """Whether `host` gets no requests now: one answer may be about one image, several are about all of them."""
        gate = self._gates[host]
        return gate.num_long >= _MOST_LONG and gate.away_until > monotonic()

    def pause(self, host: str, seconds: float) -> None:
        """Blocks requests to `host` for `seconds`. The caller must hold the gate."""
        gate = self._gates[host]
        gate.closed_until = max(gate.closed_until, monotonic() + seconds)


class _Gate:
    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.users = 0
        self.closed_until = self.away_until = 0.0
        self.num_long = 0  # answers in a row with a pause over the limit

    def is_needed(self) -> bool:
        return self.users > 0 or self.closed_until > monotonic() or self.away_until > monotonic()


_log = logging.getLogger(__name__)
T = TypeVar("T")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAY_HAVE_PAUSE = frozenset({429, 503})
_OUR_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
_PIECE_BYTES = 2**16
_SENDABLE = "%:/?#[]@!$&'()*+,;="  # in a URL, RFC 3986, beside letters and digits


@asynccontextmanager
async def open_fetcher(
    limits: DownloadLimits,
    rule: AddressRule,
    *,
    user_agent: str,
    reads_robots_txt: bool = False,
    resolver: AbstractResolver | None = None,
) -> AsyncIterator[Fetcher]:
    """
    Args:
        reads_robots_txt: whether each host's robots.txt is read before its images.
        resolver: of host names; None means the system's.
    """
    connector = aiohttp.TCPConnector(
        limit=limits.connections,
        resolver=resolver or aiohttp.ThreadedResolver(),
        ttl_dns_cache=300,
        socket_factory=rule.open_socket,
        keepalive_timeout=15,
    )
    session = aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,  # `Body` does, within a limit
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # a proxy would connect to any address
        headers={"User-Agent": user_agent, "Accept": "image/*,*/*;q=0.5", "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=limits.connect_seconds, sock_read=limits.stall_seconds, ceil_threshold=1e9
        ),
    )
    async with session:
        yield Fetcher(session, limits, agents=agent_names(user_agent), reads_robots_txt=reads_robots_txt)


class Fetcher:
    """Fetches through one pool of connections, in turns at each host."""

    def __init__(
        self, session: aiohttp.ClientSession, limits: DownloadLimits, *, agents: tuple[str, ...], reads_robots_txt: bool
    ) -> None:
        self._session, self._limits, self._agents = session, limits, agents
        self._gates = HostGates(limits.per_host)
        self._places = asyncio.Semaphore(limits.connections)
        self._robots = RobotsTxt(self._robots_text, agents) if reads_robots_txt else None

    async def fetch(self, address: str, open_file: Callable[[], FileIO]) -> int:
        """Writes the body of the image at `address` into a file.

        Args:
            open_file: gives the file, empty; called when there is a body to write.
        Returns:
            Its size in bytes.
        Raises:
            DownloadError: why there is none.
            LocalFaultError: if this machine is to blame.
        """

        async def read(answer: aiohttp.ClientResponse, url: URL) -> Body | URL:
            return await self._read(answer, url, open_file)

        return (await self._follow(_parse(address), read, self._robots)).num_bytes

    async def _follow(
        self, url: URL, read: Callable[[aiohttp.ClientResponse, URL], Awaitable[T | URL]], robots: RobotsTxt | None
    ) -> T:
        """Result of `read` on the answer that the redirects end at.

        Args:
            read: gives what it read, or the next URL.
            robots: checked before each request.
        """
        seen = {url}
        while True:
            if robots is not None:
                await robots.check(url)
            # Waiting for a turn costs no connection and counts for no time limit.
            async with self._gates.turn(url.host or ""), self._places:
                if self._gates.is_given_up(url.host or ""):
                    raise DownloadError("fetch", "host asks to wait", "no request: it wants a pause over --max-wait")
                found = await self._request(url, read)
                self._gates.note_answer(url.host or "")
            if not isinstance(found, URL):
                return found
            url = found
            if url in seen:
                raise DownloadError("fetch", "redirect loop", f"back to {_text(url)}")
            if len(seen) > self._limits.max_redirects:
                limit = self._limits.max_redirects
                raise DownloadError("fetch", "too many redirects", f"over the limit of {limit}, next to {_text(url)}")
            seen.add(url)

    async def _request(self, url: URL, read: Callable[[aiohttp.ClientResponse, URL], Awaitable[T]]) -> T:
        try:
            async with (
                asyncio.timeout(self._limits.total_seconds),
                self._session.get(url, allow_redirects=False) as answer,
            ):
                return await read(answer, url)
        except (DownloadError, LocalFaultError):
            raise
        except Exception as error:  # a client's assertions fail too when a server breaks off at the wrong moment
            raise _failure_of(error, url) from error

    async def _read(self, answer: aiohttp.ClientResponse, url: URL, open_file: Callable[[], FileIO]) -> Body | URL:
        """The body of an image, or where else to look."""
        directives = usage_directives(lambda name: answer.headers.getall(name, ()))
        if directive := refusal(directives, self._agents):
            raise DownloadError("fetch", "opted out", with_source(directive, "X-Robots-Tag"))
        if answer.status in _REDIRECTS and "Location" in answer.headers:
            return _parse(answer.headers["Location"], base=url)
        if answer.status != 200:
            raise self._refused(answer, url)
        if (answer.content_length or 0) > self._limits.max_bytes:
            limit = self._limits.max_bytes
            detail = f"{answer.content_length} bytes announced, the limit is {limit} (--max-bytes)"
            raise DownloadError("fetch", "too many bytes", detail)
        encoding = answer.headers.get("Content-Encoding", "")
        with open_file() as file:
            body = Body(file, encoding=encoding, max_bytes=self._limits.max_bytes)
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                body.add(piece)
        body.finish()
        return body

    async def _robots_text(self, url: URL) -> str:
        """The text of a robots.txt, cut where it is too long; "" where there is none."""

        async def read(answer: aiohttp.ClientResponse, url: URL) -> str | URL:
            if answer.status in _REDIRECTS and "Location" in answer.headers:
                return _parse(answer.headers["Location"], base=url)
            if 400 <= answer.status < 500 and answer.status not in _MAY_PASS:
                return ""
            if answer.status != 200:
                raise self._refused(answer, url)
            data = bytearray()
            unpacker = Unpacker(answer.headers.get("Content-Encoding", ""))
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                for part in unpacker.pieces(piece):
                    data += part
                    if len(data) >= MAX_ROBOTS_BYTES:
                        return data[:MAX_ROBOTS_BYTES].decode("utf-8-sig", "replace")
            unpacker.finish()
            return data.decode("utf-8-sig", "replace")

        return await self._follow(url, read, None)

    def _refused(self, answer: aiohttp.ClientResponse, url: URL) -> DownloadError:
        """Failure of an answer without an image; a pause within the limit is granted to the host."""
        reason, detail = f"HTTP {answer.status}", printable(answer.reason or "no reason given")
        wait = _retry_after(answer.headers.get("Retry-After")) if answer.status in _MAY_HAVE_PAUSE else None
        if wait is not None and wait > self._limits.max_wait_seconds:
            limit = self._limits.max_wait_seconds
            detail += f"; asks to wait {wait:.0f} s, the limit is {limit:g} s (--max-wait)"
            self._gates.note_long_pause(url.host or "", wait)
            return DownloadError("fetch", reason, detail)
        if wait:
            self._gates.pause(url.host or "", wait)
        return DownloadError("fetch", reason, detail, may_pass=answer.status in _MAY_PASS, wait_seconds=wait)


def _parse(address: str, base: URL | None = None) -> URL:
    """The URL of an address, which may be relative where a redirect came from `base`."""
    where = "" if base is None else "a redirect to "
    try:
        # Sent as it is written where possible: yarl would spell %2C as a comma and a blank as a plus.
        address = quote(address, safe=_SENDABLE, encoding="utf-8", errors="strict") if address.isascii() else address
        url = URL(address, encoded=address.isascii())
        if base is not None:
            url = base.join(url)
        url = url.with_fragment(None)
        has_host, is_web = bool(url.host), url.scheme in ("http", "https")
        has_credentials = url.user is not None or url.password is not None
        _ = url.port  # parsed at access
    except ValueError as error:
        raise DownloadError("url", "not a URL", f"{where}{printable(address)}: {printable(str(error))}") from None
    if not is_web:
        raise DownloadError("url", "not http or https", f"{where}{printable(address)}")
    if not has_host:
        raise DownloadError("url", "not a URL", f"{where}{printable(address)}: no host")
    if has_credentials:
        raise DownloadError("url", "credentials in URL", f"{where}a URL with a name or password for {url.host}")
    return url


def _text(url: URL) -> str:
    return printable(str(url), limit=200)


def _retry_after(value: str | None) -> float | None:
    """Seconds from now; RFC 9110, 10.2.3: a number of seconds or a date. None when there is none that can be read."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])  # longer than any life
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def _failure_of(error: Exception, url: URL) -> Exception:
    """Failure that an error of the connection stands for."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    detail = printable(f"{url.host}: {cause or type(cause).__name__}", limit=200)
    if isinstance(cause, PrivateAddressError):
        return DownloadError("connect", "private address", f"{url.host} is at an address that is not public")
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return DownloadError("connect", "TLS error", detail)
    if isinstance(cause, socket.gaierror):
        # Only "try again" may pass; that a name does not exist is an answer.
        return DownloadError("connect", "host not found", detail, may_pass=cause.errno == socket.EAI_AGAIN)
    if isinstance(cause, OSError) and cause.errno in _OUR_SHORTAGES:
        return LocalFaultError(f"{cause.strerror or cause}: give fewer --connections; nothing is lost, run again")
    if isinstance(error, TimeoutError):
        return DownloadError("fetch", "timeout", f"{url.host} did not answer in time", may_pass=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        return DownloadError("connect", "no connection", detail, may_pass=True)
    if isinstance(error, aiohttp.InvalidURL):
        return DownloadError("url", "not a URL", detail)
    if isinstance(error, aiohttp.ClientResponseError):
        # May pass: what a server sends beyond its Content-Length is read as the next answer.
        return DownloadError("fetch", "bad HTTP", printable(error.message), may_pass=True)
    if isinstance(error, ValueError):  # a host name that has no IDNA spelling
        return DownloadError("url", "not a URL", detail)
    if not isinstance(error, aiohttp.ClientError | OSError):
        _log.warning("%s: unexpected %r, taken for a broken connection", detail, error)
    return DownloadError("fetch", "connection broken", detail, may_pass=True)
