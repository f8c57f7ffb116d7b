"""A folder at a URL that fsspec knows (gs, s3, hdfs, http, memory, file, a plain path), read file by file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsspec.core import split_protocol, url_to_fs
from fsspec.registry import known_implementations

from roibeam.features.folders.folder_protocol import MAX_METADATA_BYTES

_CHUNK_BYTES = 8 * 2**20


class TooShortError(OSError):
    """A file ended before its time: it is short where it lies, or the line was cut and nobody said so."""


@dataclass(frozen=True)
class RemoteFolder:
    """Holds no connection, so it can be pickled and used after a fork.

    Attributes:
        url: of the folder.
        options: arguments of fsspec's driver, such as credentials.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    def where(self, name: str) -> str:
        """The URL of a file, for messages."""
        return f"{self.url.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        """A small file.

        Raises:
            ValueError: when it has more than `MAX_METADATA_BYTES`, or the URL's driver is missing.
            FileNotFoundError, OSError: naming the URL.
        """
        with self._opened(name) as source, self._named(name):
            data = source.read(MAX_METADATA_BYTES + 1)
        if len(data) > MAX_METADATA_BYTES:
            raise ValueError(f"{self.where(name)}: has more than {MAX_METADATA_BYTES} bytes; is it a manifest?")
        return data

    def download(self, name: str, target: Path, num_bytes: int) -> None:
        """Writes the first `num_bytes` of a file to `target`, going on where that ends, and makes them durable.

        Raises:
            ValueError: when the URL's driver is missing, or the file is larger than `num_bytes`.
            FileNotFoundError, OSError: naming the URL when it cannot be read or is too short; what came stays.
        """
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        with open(descriptor, "ab") as file:
            if file.tell() > num_bytes:
                file.truncate(0)
            have = os.fstat(descriptor).st_size
            if have < num_bytes:
                with self._opened(name) as source:
                    size = getattr(source, "size", None)
                    if isinstance(size, int) and size > num_bytes:
                        raise ValueError(
                            f"{self.where(name)}: has {size} bytes, its manifest says {num_bytes}; copy it there again"
                        )
                    with self._named(name):
                        if have and not _seek(source, have):
                            file.truncate(0)
                            have = 0
                    while have < num_bytes:
                        with self._named(name):
                            data = source.read(min(_CHUNK_BYTES, num_bytes - have))
                        if not data:
                            raise TooShortError(
                                f"{self.where(name)}: ends after {have} bytes, its manifest says {num_bytes}; "
                                f"copy it there again"
                            )
                        file.write(data)
                        have += len(data)
            file.flush()
            os.fsync(descriptor)

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        with self._named(name):
            # Asked for each time: fsspec keeps one object per process and does the right thing after a fork.
            system, path = self.system()
            source = system.open(f"{path.rstrip('/')}/{name}", "rb")
        with source:
            yield source

    def system(self) -> tuple[Any, str]:
        """fsspec's driver for the URL, and the folder's path as the driver takes it."""
        try:
            if self.url.lower().startswith(("http://", "https://")):
                # Here, not above: aiohttp comes with the extra `remote`, and others have no use for it.
                from roibeam.features.folders.web_driver import WebFiles

                return WebFiles(**self.options), self.url
            return url_to_fs(self.url, **self.options)
        except ImportError as error:
            protocol = split_protocol(self.url)[0] or "file"
            package = known_implementations.get(protocol, {}).get("class", "").split(".")[0]
            told = f"pip install {package}" if package not in ("", "fsspec") else str(error)
            raise ValueError(f"{self.url}: the package that reads {protocol}:// is missing: {told}") from error
        except ValueError as error:
            raise ValueError(f"{self.url}: {error}; stores are in folders, or at s3://, gs://, hdfs://") from error

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            if self.url in str(error):
                raise
            raise ValueError(f"{self.where(name)}: {error}; is the URL right?") from error
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.where(name)}: is not there; is the URL right, and the store whole?"
            ) from error
        except Exception as error:  # each driver has kinds of its own, not all of them OSError
            raise OSError(
                f"{self.where(name)}: cannot be read ({type(error).__name__}: {error}); run again to go on from here"
            ) from error


def _seek(source: Any, position: int) -> bool:
    """Whether the source could go there: a web server need not know ranges."""
    try:
        return source.seek(position) == position
    except ValueError:
        return False
