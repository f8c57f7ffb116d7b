"""fsspec's driver for http and https, for servers of strangers, and for those without sizes, ranges or HEAD.

Each read has a bound in bytes, and in time: it ends after `STALL_SECONDS` without a byte, or with fewer than
`MIN_BYTES_PER_SECOND`. A server's answer to a range is compared with the request.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import aiohttp
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFileSystem

from roibeam.features.folders.folder_protocol import MAX_METADATA_BYTES, UNKNOWN_BYTES, SlowServerError

STALL_SECONDS = 15.0
MIN_BYTES_PER_SECOND = 4096  # on average, once `STALL_SECONDS` are over
_BLOCK_BYTES = 8 * 2**20
# No "<" in it: a page of "<a <a <a" takes no more time than another.
_LINK = re.compile(r"""<a\s[^<>]*?href\s*=\s*["']([^"'<>]+)["']""", re.IGNORECASE)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class WebFiles(HTTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """
    Args:
        socket_factory: as of `aiohttp.TCPConnector`; decides which addresses may be connected to.
        options: as of `HTTPFileSystem`.
    """

    def __init__(
        self,
        *arguments: Any,
        socket_factory: Callable[..., socket.socket] | None = None,
        client_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        given = dict(client_kwargs or {})
        # The size of packed bytes is unknown before they are unpacked: they are refused, see `_request`.
        given["headers"] = {"Accept-Encoding": "identity", **given.get("headers", {})}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALL_SECONDS, sock_read=STALL_SECONDS)
        given = {"timeout": timeout, "auto_decompress": False, **given}

        async def client(**settings: Any) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(socket_factory=socket_factory)
            return aiohttp.ClientSession(**{"connector": connector, **settings})

        options.setdefault("get_client", client)
        super().__init__(*arguments, client_kwargs=given, **options)

    async def _cat_file(self, url: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """A whole file of at most `MAX_METADATA_BYTES`, or bytes `start` to `end`, fewer where it is shorter."""
        if start is None and end is None:
            async with self._request(url) as answer:
                return await answer.whole()
        assert start is not None and end is not None and start >= 0, "negative limits would need a size"
        if start >= end:
            return b""
        async with self._request(url, start, end) as answer:
            return await answer.range(start, end)

    async def _info(self, url: str, **options: Any) -> dict[str, Any]:
        size = None
        for method in ("HEAD", "GET"):
            try:
                async with self._request(url, 0, 1, method=method) as answer:
                    size = answer.file_bytes
            except aiohttp.ClientResponseError:  # a server that knows no HEAD
                if method == "GET":
                    raise
            if size is not None:
                break
        return {"name": url, "size": UNKNOWN_BYTES if size is None else size, "type": "file"}

    async def _ls_real(self, url: str, detail: bool = True, **options: Any) -> list[Any]:
        """Links of a page to files directly below it; their sizes are not known."""
        async with self._request(url.rstrip("/") + "/") as answer:
            page = (await answer.whole()).decode("utf-8", "ignore") if answer.is_page else ""
        names = {name for link in _LINK.findall(page) if (name := _below(url, unescape(link)))}
        if not detail:
            return sorted(f"{url.rstrip('/')}/{name}" for name in names)
        return [
            {"name": f"{url.rstrip('/')}/{name}", "size": UNKNOWN_BYTES,
             "type": "directory" if name.endswith("/") else "file"}
            for name in sorted(names)
        ]  # fmt: skip

    async def _find(self, path: str, **options: Any) -> Any:
        raise FileNotFoundError(f"{path}: folders of web servers are not searched; name a file of it")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> WebFile:
        assert mode == "rb", mode
        return WebFile(self, path)

    @asynccontextmanager
    async def _request(
        self, url: str, start: int = 0, end: int | None = None, *, method: str = "GET"
    ) -> AsyncIterator[_Answer]:
        """Response to a request, its body not read yet.

        Args:
            start, end: of the range to request; 0 and None request all, without a range.
        """
        options = dict(self.kwargs)
        if (start or end is not None) and method == "GET":
            last = "" if end is None else end - 1
            options["headers"] = {**options.get("headers", {}), "Range": f"bytes={start}-{last}"}
        session, begin = await self.set_session(), time.monotonic()
        try:
            async with asyncio.timeout(2 * STALL_SECONDS):  # redirects, and headers without end
                response = await session.request(method, self.encode_url(url), allow_redirects=True, **options)
        except TimeoutError:
            raise SlowServerError(f"no answer in {time.monotonic() - begin:.0f} s") from None
        async with response:
            if response.status != 416:  # the range begins behind the end of the file
                self._raise_not_found_for_status(response, url)
            packed = response.headers.get("Content-Encoding", "identity")
            if packed.lower() not in ("", "identity"):
                raise ValueError(f"its server sends it packed ({packed[:40]}), against the request")
            yield _Answer(response, start)


class WebFile(io.RawIOBase):
    """A file to read from: by ranges where its server knows them, else as one stream that cannot seek.

    Attributes:
        size: in bytes; None where its server does not state it.
    """

    def __init__(self, system: WebFiles, url: str) -> None:
        self._system, self._url = system, url
        self._place = self._block_start = 0
        self._block = b""
        self._stream: _Answer | None = None
        self._opened: Any = None
        self.size: int | None = sync(system.loop, self._first)

    async def _first(self) -> int | None:
        opened = self._system._request(self._url, 0, _BLOCK_BYTES)
        answer: _Answer = await opened.__aenter__()
        self._opened = opened
        if not answer.is_range:
            self._stream = answer
            return answer.file_bytes
        try:
            self._block = await answer.range(0, _BLOCK_BYTES)
        finally:
            await self._end_stream()
        return answer.file_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream is None and self.size is not None

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place = offset if whence == io.SEEK_SET else (self._place if whence == io.SEEK_CUR else self.size or 0) + offset
        if place != self._place and not self.seekable():
            raise io.UnsupportedOperation("its server knows no ranges")
        self._place = place
        return place

    def readinto(self, buffer: Any) -> int:
        have = 0
        view = memoryview(buffer)
        while have < len(view) and (data := self._next(len(view) - have)):
            view[have : have + len(data)] = data
            have += len(data)
            self._place += len(data)
        return have

    def _next(self, num_bytes: int) -> bytes:
        """Some bytes from the position; none at the end."""
        if self._stream is not None:
            return bytes(sync(self._system.loop, self._stream.take, num_bytes))
        at = self._place - self._block_start
        if not 0 <= at < len(self._block):
            if not self._block or (self.size is not None and self._place >= self.size):
                return b""
            self._block = self._system.cat_file(self._url, self._place, self._place + _BLOCK_BYTES)
            self._block_start, at = self._place, 0
        return self._block[at : at + num_bytes]

    async def _end_stream(self) -> None:
        opened, self._opened, self._stream = self._opened, None, None
        if opened is not None:
            await opened.__aexit__(None, None, None)

    def __del__(self) -> None:
        """Does nothing: `close` would wait for the loop, which may be gone."""

    def close(self) -> None:
        if not self.closed and self._opened is not None:
            sync(self._system.loop, self._end_stream)
        super().close()


class _Answer:
    """
    Attributes:
        is_range: whether it holds the requested range; else it begins with the file's first byte.
        file_bytes: size of the whole file; None where the server does not state it.
    """

    def __init__(self, response: aiohttp.ClientResponse, start: int) -> None:
        self._response = response
        self._seconds = self._received = 0.0
        self.is_page = response.headers.get("Content-Type", "text/html").lower().startswith("text/html")
        self.is_range = response.status in (206, 416)
        stated = response.content_length  # of a range, not of the file
        self.file_bytes = None if self.is_range else stated
        self._end = start
        if response.status == 206:
            content_range = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if content_range is None or int(content_range[1]) != start:
                raise ValueError(f"its server sent another range than bytes {start} and on, as requested")
            self._end = int(content_range[2]) + 1
            self.file_bytes = None if content_range[3] == "*" else int(content_range[3])
            if stated is not None and stated != self._end - start:
                raise ValueError(f"its server sent {stated} bytes of a range of {self._end - start}")
        elif response.status == 416:
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            self.file_bytes = int(total) if re.fullmatch(r"\d{1,18}", total) else 0 if start == 0 else None

    async def whole(self) -> bytes:
        if self.is_range:
            raise ValueError("its server sent a part of the file, not the whole as requested")
        if self.file_bytes is not None and self.file_bytes > MAX_METADATA_BYTES:
            raise ValueError(f"has {self.file_bytes} bytes, expected at most {MAX_METADATA_BYTES}")
        data = await self._filled(MAX_METADATA_BYTES + 1)
        if len(data) > MAX_METADATA_BYTES:
            raise ValueError(f"has more than {MAX_METADATA_BYTES} bytes")
        return data

    async def range(self, start: int, end: int) -> bytes:
        """The bytes of the file from `start` to `end`: a server that knows no ranges sends those before them, too."""
        if not self.is_range:
            while start > self._received and await self.take(int(start - self._received)):
                pass
            return await self._filled(end - start)
        expected = self._end - start
        if expected > end - start:
            raise ValueError(f"its server sent {expected} bytes of a range of {end - start}")
        data = await self._filled(expected + 1)
        if len(data) != expected:
            raise OSError(f"its server sent {len(data)} bytes and announced {expected}")
        if self.file_bytes is not None and expected and self._end < min(end, self.file_bytes):
            raise OSError(f"its server sent {expected} bytes of a range of {min(end, self.file_bytes) - start}")
        return data

    async def _filled(self, num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes and (piece := await self.take(num_bytes - len(data))):
            data += piece
        return bytes(data)

    async def take(self, num_bytes: int) -> bytes:
        """Some bytes, at most so many; none at the end."""
        if self._response.status == 416:
            return b""
        begin = time.monotonic()
        try:
            data = await self._response.content.read(num_bytes)
        except TimeoutError:
            raise SlowServerError(f"nothing in {STALL_SECONDS:.0f} s") from None
        self._seconds += time.monotonic() - begin
        self._received += len(data)
        if self._received < (self._seconds - STALL_SECONDS) * MIN_BYTES_PER_SECOND:
            raise SlowServerError(f"{self._received:.0f} bytes in {self._seconds:.0f} s")
        return data


def _below(url: str, link: str) -> str:
    """The name of what a link names directly below a URL; "" where it names anything else."""
    if "://" in link:
        scheme, _, rest = link.partition("://")
        same = url.partition("://")[2].rstrip("/") + "/"
        if scheme.lower() not in ("http", "https") or not rest.startswith(same):
            return ""
        link = rest.removeprefix(same)
    elif link.startswith("/"):
        path = "/" + url.partition("://")[2].rstrip("/").partition("/")[2].strip("/")
        below = path.rstrip("/") + "/"
        if not link.startswith(below):
            return ""
        link = link.removeprefix(below)
    link = link.removeprefix("./")
    name = link.removesuffix("/")
    return "" if not name or name in (".", "..") or re.search(r"[/?#\\]", name) else link
