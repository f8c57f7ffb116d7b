"""The images of a download on disk: OUT/images/00012/00012345.jpg is that of row 12,345, a thousand rows in a folder.

A file gets this name only when it is whole, checked and on the disk; until then it is in OUT/.tmp.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from roibeam.extraction.photos.decode import DecodeError, check_encoded, image_sides
from roibeam.features.folders.durable_files import fsync_folder
from roibeam.features.printable import printable
from roibeam.pipelines.data.download.failures import DownloadError, LocalFaultError

IMAGES_NAME = "images"
SCRATCH_NAME = ".tmp"
_ROWS_PER_FOLDER = 1000
# By content, not by what the URL says; all of them are read again by `roibeam extract`.
_EXTENSIONS = {
    "JPEG": ".jpg", "MPO": ".jpg", "PNG": ".png", "GIF": ".gif", "WEBP": ".webp", "AVIF": ".avif", "BMP": ".bmp",
    "TIFF": ".tif", "PPM": ".ppm", "JPEG2000": ".jp2",
}  # fmt: skip
_NAME = re.compile(r"(\d{8})\.[a-z0-9]+")


@dataclass(frozen=True)
class StoredImage:
    """An image in its place: path below OUT, size, SHA-256 (hex)."""

    path: str
    num_bytes: int
    sha256: str


def image_id(row: int) -> str:
    """What the image of this row is called in captions, records and dead letters: its path without extension."""
    return f"{IMAGES_NAME}/{row // _ROWS_PER_FOLDER:05d}/{row:08d}"


class ImageFiles:
    """Writes images below `out`, one process at a time.

    Args:
        out: the folder of the download, there already.
        max_pixels: of an image, by its header.
        min_side: of an image, by its header; 0 takes all.
    """

    def __init__(self, out: Path, *, max_pixels: int, min_side: int = 0) -> None:
        self.folder, self._max_pixels, self._min_side = out, max_pixels, min_side
        self._unsynced: set[Path] = set()
        self._lock = threading.Lock()  # images are kept by several threads

    def start(self) -> None:
        """Makes an empty scratch folder; what a killed run left there goes."""
        shutil.rmtree(self.folder / SCRATCH_NAME, ignore_errors=True)
        (self.folder / SCRATCH_NAME).mkdir()
        (self.folder / IMAGES_NAME).mkdir(exist_ok=True)

    def finish(self) -> None:
        shutil.rmtree(self.folder / SCRATCH_NAME)

    def scratch(self, row: int) -> Path:
        return self.folder / SCRATCH_NAME / f"{row:08d}"

    def open_scratch(self, row: int) -> FileIO:
        """An empty file for the bytes of this row, without a buffer: closing it writes nothing that could fail."""
        try:
            return self.scratch(row).open("wb", buffering=0)
        except OSError as error:
            raise _local_fault(error) from error

    def keep(self, row: int) -> StoredImage:
        """Checks the scratch file of this row and moves it to its place.

        Raises:
            DownloadError: stage "decode", if it is no image that can be used.
            LocalFaultError: if it cannot be written.
        """
        path = self.scratch(row)
        try:
            data = path.read_bytes()
            kind = check_encoded(data, max_pixels=self._max_pixels)
            if self._min_side:
                self._check_sides(data)
            name = image_id(row) + _EXTENSIONS[kind]
            place = self.folder / name
            with path.open("rb") as file:
                os.fsync(file.fileno())
            with self._lock:
                if not place.parent.is_dir():
                    place.parent.mkdir()
                    self._unsynced.add(place.parent.parent)
                self._unsynced.add(place.parent)
            path.rename(place)
        except DecodeError as error:
            # A body that ends early without its server saying so may be whole next time.
            may_pass = error.reason == "truncated"
            raise DownloadError("decode", error.reason, printable(str(error), 200), may_pass=may_pass) from None
        except OSError as error:
            raise _local_fault(error) from error
        return StoredImage(name, len(data), hashlib.sha256(data).hexdigest())

    def _check_sides(self, data: bytes) -> None:
        width, height = image_sides(data)
        if min(width, height) < self._min_side:
            detail = f"{width} x {height} pixels, each side must have {self._min_side} (--min-side)"
            raise DownloadError("decode", "too small", detail)

    def sync(self) -> None:
        """Makes the names of all images kept so far durable."""
        with self._lock:
            folders, self._unsynced = self._unsynced, set()
        for folder in folders:
            fsync_folder(folder)

    def files(self) -> Iterator[tuple[int, str, int]]:
        """(row, path below OUT, size) of all files named as an image is."""
        for folder in sorted((self.folder / IMAGES_NAME).iterdir()):
            if not folder.is_dir():
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    if (match := _NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False):
                        yield int(match[1]), f"{IMAGES_NAME}/{folder.name}/{entry.name}", entry.stat().st_size

    def sha256(self, path: str) -> str:
        """Of a file that `files` gave."""
        with (self.folder / path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def remove(self, path: str) -> None:
        (self.folder / path).unlink()


def _local_fault(error: OSError) -> LocalFaultError:
    return LocalFaultError(f"{error.filename or 'writing an image'}: {error.strerror}; nothing is lost, run again")
