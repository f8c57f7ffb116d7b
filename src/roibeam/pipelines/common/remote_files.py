"""Files at URLs of Apache Beam's filesystems (gs, s3, hdfs, ...): read in whole or in part, listed, copied here.

Exceptions of drivers have no common base and often no errno. Here they become an OSError, FileNotFoundError where the
file is not there, and a ValueError where the driver itself is missing.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from roibeam.extraction.weights.sources import beam_filesystems, require_credentials

_URL = re.compile(r"([a-zA-Z][-a-zA-Z0-9+.]*)://")
# Beam's extra for a scheme, and a module that it brings.
_DRIVERS = {
    "gs": ("gcp", "google.cloud.storage"), "s3": ("aws", "boto3"), "hdfs": ("hadoop", "hdfs"),
    "azfs": ("azure", "azure.storage.blob"),
}  # fmt: skip
_WILDCARD = re.compile(r"[*?\[]")
_WAITS_SECONDS = (0.5, 2.0)  # before another try: a short failure must not cost an image

_REACH_SECONDS = 10.0
_one_makes_it = threading.Lock()  # a client of S3

_T = TypeVar("_T")


def is_url(location: str) -> bool:
    return _URL.match(location) is not None


def parent_url(url: str) -> str:
    """ "gs://bucket/a/b.tsv" -> "gs://bucket/a"."""
    scheme, _, path = url.rstrip("/").partition("://")
    return f"{scheme}://{path.rpartition('/')[0]}"


def use_beam_options(arguments: Sequence[str]) -> None:
    """Sets Beam's own options, some of which are for filesystems (--hdfs_host, --s3_endpoint_url)."""
    from apache_beam.options.pipeline_options import PipelineOptions

    beam_filesystems().set_options(PipelineOptions(list(arguments)))
    _s3_client.cache_clear()


def open_url(url: str) -> BinaryIO:
    """Opens a file to read from, which can seek; an OSError names the URL."""
    from apache_beam.io.filesystem import CompressionTypes

    filesystems = beam_filesystems()

    def opened() -> BinaryIO:
        file: BinaryIO
        if _is_s3(url):
            file = importlib.import_module("apache_beam.io.aws.s3io").S3IO(client=_own_s3_client()).open(url)
        else:
            file = filesystems.open(url, "application/octet-stream", CompressionTypes.UNCOMPRESSED)
        return file

    return with_retries(url, opened)


def s3_object(url: str) -> tuple[int, Callable[[int, int], bytes]] | None:
    """Size of an object of S3, and a function that reads a range of it, from any thread; None at other URLs."""
    if not _is_s3(url):
        return None
    bucket, _, key = url.partition("://")[2].partition("/")

    def look() -> tuple[int, Callable[[int, int], bytes]]:
        client = _own_s3_client().client
        size = int(client.head_object(Bucket=bucket, Key=key)["ContentLength"])

        def fetch(start: int, stop: int) -> bytes:
            answer = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
            data: bytes = answer["Body"].read()
            return data

        return size, fetch

    return with_retries(url, look)


def _is_s3(url: str) -> bool:
    return url.lower().startswith("s3://")


def _own_s3_client() -> Any:
    """Returns Beam's client for one file. All share one client of boto's, which threads may use at once: Beam makes a
    new one for each file, which takes 0.1 s of CPU time, as long as a photo takes on a GPU."""
    with _one_makes_it:
        return copy.copy(_s3_client(os.getpid()))


@functools.lru_cache(maxsize=1)
def _s3_client(_process: int) -> Any:
    """The client of process number `process`: lines of a client are not shared with a forked one."""
    options = beam_filesystems().get_filesystem("s3://")._options
    return importlib.import_module("apache_beam.io.aws.clients.s3.boto3_client").Client(options)


def read_url(url: str, *, max_bytes: int) -> bytes:

    def read() -> bytes:
        with open_url(url) as file:
            return file.read(max_bytes + 1)

    data = with_retries(url, read)
    if len(data) > max_bytes:
        raise OSError(f"larger than {max_bytes} bytes")
    return data


def url_exists(url: str) -> bool:
    """Whether a file is at the URL; raises OSError when that is not known."""
    return bool(with_retries(url, lambda: beam_filesystems().exists(url)))


def why_not_reached(url: str) -> str:
    """Reason why a URL cannot be reached from here, in a line; "" where it can, whether or not anything is there.

    A driver without a network tries for minutes: it is not waited for longer than `_REACH_SECONDS`.
    """
    reasons = [f"{url}: no answer in {_REACH_SECONDS:.0f} s"]

    def look() -> None:
        try:
            _require_driver(url)
            beam_filesystems().exists(url)
            reasons.append("")
        except Exception as error:  # errors of drivers have no common base
            reasons.append(f"{url}: {_one_line(error)}" if url not in str(error) else _one_line(error))

    looking = threading.Thread(target=look, name="looks at a URL", daemon=True)
    looking.start()
    looking.join(_REACH_SECONDS)
    return reasons[-1]


def list_url(pattern: str, *, limit: int | None = None) -> list[str]:
    """Lists the URLs of files that match a pattern, sorted: "*" stays in a folder, "**" reaches into sub-folders."""
    result = with_retries(pattern, lambda: beam_filesystems().match([pattern], [limit])[0])
    return sorted(metadata.path for metadata in result.metadata_list)


def is_url_pattern(url: str) -> bool:
    return _WILDCARD.search(url) is not None


@contextmanager
def local_copy(location: str) -> Iterator[str]:
    """Gives a path to read a file by: its own, or that of a copy which is removed afterwards."""
    if not is_url(location):
        yield location
        return
    with tempfile.TemporaryDirectory(prefix="roibeam-") as folder:
        path = Path(folder) / location.rpartition("/")[2]

        def copy() -> None:
            with open_url(location) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 2**20)

        with_retries(location, copy)
        yield str(path)


def with_retries(url: str, action: Callable[[], _T]) -> _T:
    """Returns the result of the action, tried again after a while where the driver failed."""
    for seconds in (*_WAITS_SECONDS, None):
        try:
            _require_driver(url)
            return action()
        except ValueError:
            raise  # the URL itself, or no driver: another try would not help
        except Exception as error:  # errors of drivers have no common base
            if isinstance(error, FileNotFoundError) or _is_absent(url):
                raise FileNotFoundError(f"no such file: {url}") from None
            if seconds is None:
                raise OSError(f"{url}: {_one_line(error)}") from None
            time.sleep(seconds)
    raise AssertionError("the last try returns or raises")


def _is_absent(url: str) -> bool:
    if is_url_pattern(url):
        return False
    try:
        return not beam_filesystems().exists(url)
    except Exception:  # not known: the first error stands
        return False


def _require_driver(url: str) -> None:
    match = _URL.match(url)
    scheme = match[1].lower() if match else ""
    try:
        beam_filesystems().get_filesystem(url)
        missing = scheme in _DRIVERS and importlib.util.find_spec(_DRIVERS[scheme][1]) is None
    except ValueError as error:
        if scheme in _DRIVERS and "Unable to get filesystem" not in str(error):
            raise ValueError(f"{url}: {_one_line(error)}; Beam's options for it follow after --") from None
        missing = True
    except (OSError, ImportError):  # BeamIOError is the former
        missing = True
    if missing and scheme in _DRIVERS:
        extra = _DRIVERS[scheme][0]
        raise ValueError(
            f"{url}: no driver for {scheme}:// is installed; pip install 'apache-beam[{extra}]', on the workers too"
        )
    if missing:
        raise ValueError(f"{url}: Beam has no filesystem for {scheme}://; it knows {', '.join(_DRIVERS)}")
    try:
        require_credentials(url)
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from None


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
