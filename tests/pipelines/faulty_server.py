"""A web server on 127.0.0.1 that answers as servers do: well, late, wrongly, or not at all.

The path says how: "/<kind>/<number>.jpg", see `EXPECTED`; a good image of one number has the same bytes each time.
"""

import asyncio
import functools
import ssl
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np

OK = ("stored", "")
# What becomes of each kind: stage and reason, or OK.
EXPECTED = {
    "good": OK,
    "png": OK,  # a PNG at a .jpg URL
    "gzip": OK,  # compressed without a request for it
    "moved": OK,  # one redirect, relative
    "flaky": OK,  # 500, then 200
    "busy": OK,  # 429 with Retry-After: 0, then 200
    "reset-once": OK,  # a connection reset, then 200
    "cut-once": OK,  # a body that ends early, then 200
    "404": ("fetch", "HTTP 404"),
    "410": ("fetch", "HTTP 410"),
    "403": ("fetch", "HTTP 403"),
    "204": ("fetch", "HTTP 204"),
    "500": ("fetch", "HTTP 500"),
    "429-for-long": ("fetch", "HTTP 429"),  # Retry-After: 86400
    "stall": ("fetch", "timeout"),  # half a body, then nothing
    "mute": ("fetch", "timeout"),  # no answer at all
    "trickle": ("fetch", "timeout"),  # a byte now and then, for ever
    "reset": ("fetch", "connection broken"),
    "cut": ("fetch", "connection broken"),  # Content-Length larger than the body
    "short-length": ("fetch", "bad HTTP"),  # Content-Length smaller than the body: the rest is no answer
    "no-length-cut": ("decode", "truncated"),  # no Content-Length, and the connection ends early
    "not-http": ("fetch", "bad HTTP"),
    "loop": ("fetch", "redirect loop"),
    "far": ("fetch", "too many redirects"),
    "to-private": ("connect", "private address"),
    "to-mapped": ("connect", "private address"),
    "to-number": ("connect", "private address"),  # 127.0.0.2 in another spelling
    "to-file": ("url", "not http or https"),
    "to-credentials": ("url", "credentials in URL"),
    "to-nothing": ("url", "not a URL"),
    "html": ("decode", "not an image"),
    "svg": ("decode", "not an image"),
    "empty": ("decode", "empty file"),
    "pixels": ("decode", "too many pixels"),
    "broken-png": ("decode", "corrupt"),
    "gzip-bomb": ("fetch", "too many bytes"),
    "gzip-cut": ("fetch", "damaged encoding"),
    "endless": ("fetch", "too many bytes"),
    "announced": ("fetch", "too many bytes"),
    "brotli": ("fetch", "unknown encoding"),
    "opted-out": ("fetch", "opted out"),
    "opted-out-redirect": ("fetch", "opted out"),
    "for-others": OK,  # X-Robots-Tag for another robot
}
SLOW = ("stall", "mute", "trickle")  # these take as long as the downloader's patience


@functools.cache
def _bomb() -> bytes:
    """64 MB of zeros under gzip: made by the first server, since it takes half a second."""
    return zlib.compress(bytes(64_000_000), wbits=31)


def image(number: int, kind: str = ".jpg") -> bytes:
    pixels = np.full((24, 32, 3), (number * 7 % 256, number // 256 % 256, number * 31 % 256), np.uint8)
    pixels[number % 24, :] = 255
    return cv2.imencode(kind, pixels)[1].tobytes()


def huge_png() -> bytes:
    """A whole PNG of a few bytes that says it has 50,000 x 50,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def response(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class FaultyServer:
    """Runs in a thread of its own; `serve` starts it."""

    def __init__(self) -> None:
        self.port = 0
        self.requests = Counter[str]()  # by path
        self.largest_num_open = self.num_open = 0
        self.headers: list[bytes] = []  # of the last request

    def url(self, kind: str, number: int = 0) -> str:
        return f"http://127.0.0.1:{self.port}/{kind}/{number}.jpg"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        self.largest_num_open = max(self.largest_num_open, self.num_open)
        try:
            while lines := (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n"):
                self.headers = lines[1:]
                path = lines[0].split()[1].decode()
                self.requests[path] += 1
                if not await self._answer(path, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # the downloader has hung up, or the test is over
        finally:
            self.num_open -= 1
            writer.close()

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        _, kind, name = path.split("/")
        number = int(name.split(".")[0])
        good = image(number)
        is_first = self.requests[path] == 1
        plain = self._plain(kind, number, good, is_first)
        if plain is not None:
            writer.write(plain)
            await writer.drain()
            return True
        if kind == "reset" or (kind == "reset-once" and is_first):
            writer.transport.abort()  # asyncio's abort closes at once; unread data make it a reset
        elif kind == "cut" or (kind == "cut-once" and is_first):
            writer.write(response(good[:100], length=len(good)))
        elif kind == "no-length-cut":
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + good[:-20])
        elif kind == "not-http":
            writer.write(b"\x15\x03\x01\x00\x02\x02\x16 what do you want?\r\n\r\n")
        elif kind == "stall":
            writer.write(response(good[:100], length=len(good)))
            await asyncio.sleep(3600)
        elif kind == "mute":
            await asyncio.sleep(3600)
        elif kind == "trickle":
            writer.write(response(b"", length=10**6))
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        elif kind == "endless":
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
            while True:
                writer.write(bytes(2**16))
                await writer.drain()
        else:
            writer.write(response(good))
            return True
        await writer.drain()
        return False

    def _plain(self, kind: str, number: int, good: bytes, is_first: bool) -> bytes | None:
        """An answer that is just bytes, on a connection that goes on."""
        here = f"/good/{number}.jpg"
        gzipped = zlib.compress(good, wbits=31)

        def moved(where: str, *headers: str) -> bytes:
            return response(b"", f"Location: {where}", *headers, status="302 Found")

        answers: dict[str, Callable[[], bytes]] = {
            "good": lambda: response(good),
            "png": lambda: response(image(number, ".png"), "Content-Type: image/jpeg"),
            "gzip": lambda: response(gzipped, "Content-Encoding: gzip"),
            "moved": lambda: moved(f"..{here}"),
            **{
                code: lambda code=code: response(b"<html>", status=f"{code} No")
                for code in ("404", "410", "403", "500")
            },
            "204": lambda: b"HTTP/1.1 204 No Content\r\n\r\n",
            "429-for-long": lambda: response(b"", "Retry-After: 86400", status="429 Too Many Requests"),
            "short-length": lambda: response(good, length=len(good) - 20),
            "loop": lambda: moved(f"/loop/{number}.jpg?back=1"),
            "far": lambda: moved(f"/far/{number + 1}.jpg"),
            "to-private": lambda: moved("http://10.0.0.1/a.jpg"),
            "to-mapped": lambda: moved("http://[::ffff:169.254.169.254]/latest/meta-data"),
            "to-number": lambda: moved("http://0x7f000002/a.jpg"),
            "to-file": lambda: moved("file:///etc/passwd"),
            "to-credentials": lambda: moved(f"http://me:secret@127.0.0.1:{self.port}{here}"),
            "to-nothing": lambda: moved("http://[::1/a.jpg"),
            "html": lambda: response(b"<!doctype html><p>This photo is gone", "Content-Type: image/jpeg"),
            "svg": lambda: response(b'<svg xmlns="http://www.w3.org/2000/svg"/>', "Content-Type: image/svg+xml"),
            "empty": lambda: response(b""),
            "pixels": lambda: response(huge_png()),
            "broken-png": lambda: response(image(number, ".png").replace(b"IDAT", b"IDAX")),
            "gzip-bomb": lambda: response(_bomb(), "Content-Encoding: gzip"),
            "gzip-cut": lambda: response(gzipped[:-20], "Content-Encoding: gzip"),
            "announced": lambda: response(b"", length=10**10),
            "brotli": lambda: response(good, "Content-Encoding: br"),
            "opted-out": lambda: response(good, "X-Robots-Tag: noai, noimageai"),
            "opted-out-redirect": lambda: moved(here, "X-Robots-Tag: noimageindex"),
            "for-others": lambda: response(good, "X-Robots-Tag: otherbot: noindex", "X-Robots-Tag: nofollow"),
        }
        if is_first:
            answers["flaky"] = lambda: response(b"", status="500 Oh No")
            answers["busy"] = lambda: response(b"", "Retry-After: 0", status="429 Too Many Requests")
        if kind == "loop" and not is_first:
            return moved(f"/loop/{number}.jpg")
        return answers[kind]() if kind in answers else None


@contextmanager
def serve(certificate: Path | None = None) -> Iterator[FaultyServer]:
    """With a `certificate`, the .pem of a key and its certificate, by TLS."""
    server = FaultyServer()
    _bomb()  # not while somebody waits for an answer
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=context, backlog=1000)
        server.port = listening.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        listening.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), name="faulty server", daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def write_list(path: Path, urls: list[str]) -> str:
    """A list to download: a caption and a URL each."""
    path.write_text("".join(f"caption {row}\t{url}\n" for row, url in enumerate(urls)))
    return str(path)
